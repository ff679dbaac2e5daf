"""Which weights can be edited, which cannot and why, over real layouts and several families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from more_cli.checkpoint.headers import TensorEntry
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError, UsageError
from more_cli.model.backbones import Refusal, Site, find_sites
from more_cli.model.families import FAMILIES, LANGUAGE_MODELS, Family, family_of
from more_cli.model.keymap import KeyMap, key_map, meta_model
from more_cli.model.structure import find_backbone, layers_of, read_vision_layers, text_layers, used_vision_layers
from more_cli.recipe.schema import SITE_GROUPS
from support import tiny, tiny_families, tiny_language

TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 99}
LLAMA = TEXT | {"model_type": "llama", "num_key_value_heads": 2}
MROPE = LLAMA | {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}, "head_dim": 16}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24, "model_type": "qwen3_vl_moe_text"}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
VISION |= {"image_size": 28, "patch_size": 14}
CLIP = VISION | {"model_type": "clip_vision_model"}
QWEN3 = {"depth": 3, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 4}
QWEN3 |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
T5 = {"model_type": "t5", "d_model": 64, "d_ff": 96, "d_kv": 16, "num_layers": 3, "num_heads": 4, "vocab_size": 99}
QFORMER = VISION | {"encoder_hidden_size": 32, "vocab_size": 99}
LLAMA4 = LLAMA | {"model_type": "llama4_text", "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 2}
LLAMA4_VISION = VISION | {"intermediate_size": 128, "image_size": 56, "projector_input_dim": 48}
CONFIGS: dict[str, dict[str, object]] = {
    "llava": {"text_config": LLAMA, "vision_config": CLIP},
    "llava_next": {"text_config": LLAMA, "vision_config": CLIP, "image_grid_pinpoints": [[28, 56]]},
    "blip-2 t5": {
        "vision_config": VISION,
        "qformer_config": QFORMER,
        "num_query_tokens": 4,
        "text_config": T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    },
    "qwen3_vl_moe": {"text_config": MROPE | MOE, "vision_config": QWEN3},
    "llama4": {
        "text_config": LLAMA4 | {"interleave_moe_layer_step": 2},
        "vision_config": LLAMA4_VISION | {"projector_output_dim": 48, "vision_output_dim": 48},
    },
}
CONFIGS |= {name: dict(row.config(lambda token: 7)) for name, row in tiny_families.FAMILIES.items()}


def build(family: str, **change: object) -> tuple[transformers.PreTrainedModel, KeyMap, Checkpoint]:
    """A family on the meta device beside a checkpoint that holds its parameters under their own names."""
    config = AutoConfig.for_model(family.split()[0], **CONFIGS[family] | change)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()
    names = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tensors = {name: TensorEntry(name, "BF16", shape, tiny.SINGLE, 0, 0) for name, shape in names.items()}
    disk = Checkpoint(Path("unused"), {}, tensors, (tiny.SINGLE,))
    return model, key_map(model, disk), disk


def modules(found: tuple[list[Site], list[Refusal]]) -> list[str]:
    return [site.module for site in found[0]]


# ------------------------------------------------------------------------------------------------ LLaVA on disk


def test_llava_sites(tmp_path: Path) -> None:
    opened = open_checkpoint(tiny.tiny_llava(tmp_path, "old_hub", dtype="bfloat16"))
    model = meta_model(opened)
    sites, refusals = find_sites(model, key_map(model, opened), opened, ["text.ffn_out", "projector"], last=1)
    assert sites == [
        Site(
            name="text.3.down_proj",
            group="text.ffn_out",
            modality="text",
            module="model.language_model.layers.3.mlp.down_proj",
            disk_key="language_model.model.layers.3.mlp.down_proj.weight",
            shape=(64, 96),
            dtype="BF16",
        ),
        *(
            Site(
                name=f"projector.linear_{number}",
                group="projector",
                modality="visual",
                module=f"model.multi_modal_projector.linear_{number}",
                disk_key=f"multi_modal_projector.linear_{number}.weight",
                shape=(64, d_in),
                dtype="BF16",
            )
            for number, d_in in [(1, 32), (2, 64)]
        ),
    ]
    assert refusals == []


def test_both_branches_of_a_gated_mlp_are_ffn_in() -> None:
    model, keys, disk = build("llava")
    sites, _ = find_sites(model, keys, disk, ["text.ffn_in"], last=2)
    assert [site.name for site in sites] == ["text.1.gate_proj", "text.1.up_proj", "text.2.gate_proj", "text.2.up_proj"]
    assert {site.shape for site in sites} == {(96, 64)}


@pytest.mark.parametrize(
    ("layer", "used"), [(-2, [0, 1]), (-1, [0, 1, 2]), (1, [0]), (3, [0, 1, 2]), ([-3, -2], [0, 1]), ([1, 2], [0, 1])]
)
def test_last_vision_layer_is_the_last_used_one(layer: int | list[int], used: list[int]) -> None:
    model, keys, disk = build("llava", vision_feature_layer=layer)
    prefix = "model.vision_tower.encoder.layers"
    assert used_vision_layers(model, find_backbone(model)) == [f"{prefix}.{index}" for index in used]
    found = find_sites(model, keys, disk, ["vision.ffn_out"], last=1)
    assert modules(found) == [f"{prefix}.{used[-1]}.mlp.fc2"]


def test_unused_vision_layer_has_no_gradient(tmp_path: Path) -> None:
    """`used_vision_layers` compared with a real model."""
    model = AutoModelForImageTextToText.from_pretrained(tiny.tiny_llava(tmp_path))
    image, text = torch.randn(1, 3, 28, 28), torch.tensor([[1, 4, 4, 4, 4, 9, 10]])
    model(input_ids=text, pixel_values=image, labels=text).loss.backward()
    layers = model.model.vision_tower.encoder.layers
    moved = [index for index, layer in enumerate(layers) if layer.mlp.fc2.weight.grad is not None]
    assert [f"model.vision_tower.encoder.layers.{index}" for index in moved] == used_vision_layers(
        model, find_backbone(model)
    )


def test_quantised_linear_is_refused_and_its_neighbours_are_not(tmp_path: Path) -> None:
    path = tiny.quantised(tiny.tiny_llava(tmp_path), "language_model.model.layers.3.mlp.down_proj")
    opened = open_checkpoint(path)
    model = meta_model(opened)
    sites, refusals = find_sites(model, key_map(model, opened), opened, ["text.ffn_out"], last=2)
    assert [site.name for site in sites] == ["text.2.down_proj"]
    assert [refusal.module for refusal in refusals] == ["model.language_model.layers.3.mlp.down_proj"]
    assert "bitsandbytes" in refusals[0].reason


# ------------------------------------------------------------------------------------------------ refusals


def lines(family: str, spoil: Callable[[dict[str, TensorEntry], str], object]) -> str:
    """Damage the last down_proj's entry; return the reason for the refusal."""
    model, _, disk = build(family)
    tensors = dict(disk.tensors)
    spoil(tensors, "model.language_model.layers.2.mlp.down_proj.weight")
    disk = replace(disk, tensors=tensors)
    sites, refusals = find_sites(model, key_map(model, disk), disk, ["text.ffn_out"], last=2)
    assert [site.name for site in sites] == ["text.1.down_proj"]
    return refusals[0].reason


def test_side_tensors() -> None:
    def fp8(tensors: dict[str, TensorEntry], key: str) -> None:
        tensors[f"{key}_scale_inv"] = TensorEntry(f"{key}_scale_inv", "F32", (1,), "s", 0, 0)

    assert "weight_scale_inv" in lines("llava", fp8)


def test_dtype() -> None:
    def eight_bits(tensors: dict[str, TensorEntry], key: str) -> None:
        tensors[key] = replace(tensors[key], dtype="I8")

    assert "I8" in lines("llava", eight_bits)


def test_shape() -> None:
    def transposed(tensors: dict[str, TensorEntry], key: str) -> None:
        tensors[key] = replace(tensors[key], shape=tensors[key].shape[::-1])

    assert "(96, 64)" in lines("llava", transposed)


def test_missing() -> None:
    assert "no tensor on disk" in lines("llava", lambda tensors, key: tensors.pop(key))


def test_shared_weight_and_linear_subclass() -> None:
    model, keys, disk = build("llava")
    layers = model.model.language_model.layers
    layers[1].mlp.down_proj.weight = layers[2].mlp.down_proj.weight

    class Special(torch.nn.Linear):
        pass

    layers[0].mlp.down_proj = Special(96, 64, bias=False, device="meta")
    with pytest.raises(StateError, match=r"layers\.0\.mlp\.down_proj: Special with .* \(and 2 more\)"):
        find_sites(model, keys, disk, ["text.ffn_out"], last=None)
    with pytest.raises(StateError, match=r"tied to model\.language_model\.layers\.1\.mlp\.down_proj\.weight"):
        find_sites(model, keys, disk, ["text.ffn_out"], last=1)


def test_disputed_key() -> None:
    model, keys, disk = build("llava")
    name = "model.language_model.layers.2.mlp.down_proj.weight"
    keys = replace(keys, disputed={name: "x by transformers' tables, y by structure"})
    _, refusals = find_sites(model, keys, disk, ["text.ffn_out"], last=2)
    assert "x by transformers' tables" in refusals[0].reason


def test_fused_experts_are_refused() -> None:
    model, keys, disk = build("qwen3_vl_moe")
    with pytest.raises(StateError, match="Qwen3VLMoeTextExperts with raw parameters"):
        find_sites(model, keys, disk, ["text.ffn_out"], last=1)


def test_shared_expert_beside_fused_experts() -> None:
    model, keys, disk = build("llama4")
    sites, refusals = find_sites(model, keys, disk, ["text.ffn_out"], last=None)
    assert {site.module.split(".feed_forward.")[1] for site in sites} == {"down_proj", "shared_expert.down_proj"}
    assert {refusal.module.rsplit(".", 1)[1] for refusal in refusals} == {"experts"}


def test_projector_that_is_a_raw_parameter() -> None:
    model, keys, disk = build("gemma3")
    with pytest.raises(StateError, match="mm_input_projection_weight") as caught:
        find_sites(model, keys, disk, ["projector"], last=None)
    assert caught.value.hint


def test_group_the_model_does_not_have() -> None:
    with pytest.raises(StateError, match="qformer: LlavaForConditionalGeneration has no such part") as caught:
        find_sites(*build("llava"), ["qformer"], last=None)
    assert "multi_modal_projector" in caught.value.hint


def test_bad_requests() -> None:
    with pytest.raises(UsageError, match=r"text\.mlp") as caught:
        find_sites(*build("llava"), ["text.mlp"], last=None)
    assert all(group in caught.value.hint for group in SITE_GROUPS)
    with pytest.raises(UsageError, match="last 0 layers"):
        find_sites(*build("llava"), ["projector"], last=0)


# ------------------------------------------------------------------------------------------------ families

LLAVA_LIKE = ["text.2.down_proj", "projector.linear_1", "projector.linear_2", "vision.2.fc2"]
BLIP_LIKE = ["projector.language_projection", "vision.2.fc2"]
IDEFICS_LIKE = ["text.2.down_proj", "projector.modality_projection.proj", "vision.2.fc2"]
EXPECTED = {
    "llava": [*LLAVA_LIKE[:3], "vision.1.fc2"],
    "llava_next": [*LLAVA_LIKE[:3], "vision.1.fc2"],
    "llava_onevision": LLAVA_LIKE,
    "blip-2": ["text.2.fc2", *BLIP_LIKE],
    "blip-2 t5": ["text.2.wo", *BLIP_LIKE],
    "instructblip": ["text.2.down_proj", *BLIP_LIKE],
    "qwen2_vl": ["text.2.down_proj", "projector.mlp.0", "projector.mlp.2", "vision.2.fc2"],
    "qwen2_5_vl": ["text.2.down_proj", "projector.mlp.0", "projector.mlp.2", "vision.2.down_proj"],
    "qwen3_vl": [
        "text.2.down_proj",
        "projector.merger.linear_fc1",
        "projector.merger.linear_fc2",
        *(f"projector.deepstack_merger_list.{k}.linear_fc{n}" for k in (0, 1) for n in (1, 2)),
        "vision.2.linear_fc2",
    ],
    "qwen3_5": ["text.2.down_proj", "projector.linear_fc1", "projector.linear_fc2", "vision.2.linear_fc2"],
    "internvl": LLAVA_LIKE,
    "paligemma": ["text.2.down_proj", "projector.linear", "vision.2.fc2"],
    "idefics3": IDEFICS_LIKE,
    "smolvlm": IDEFICS_LIKE,
    "mistral3": [
        "text.2.down_proj",
        "projector.patch_merger.merging_layer",
        "projector.linear_1",
        "projector.linear_2",
        "vision.2.down_proj",
    ],
    "mllama": ["text.2.down_proj", "projector.multi_modal_projector", "vision.4.fc2"],
    "llama4": [
        "text.2.down_proj",
        "projector.vision_adapter.mlp.fc1",
        "projector.vision_adapter.mlp.fc2",
        "projector.multi_modal_projector.linear_1",
        "vision.2.fc2",
    ],
}


@pytest.mark.parametrize("family", EXPECTED)
def test_structure_finds_the_sites_of_a_family(family: str) -> None:
    sites, _ = find_sites(*build(family), ["text.ffn_out", "projector", "vision.ffn_out"], last=1)
    assert [site.name for site in sites] == EXPECTED[family]
    assert all(site.disk_key == f"{site.module}.weight" for site in sites)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_and_vision_layers_are_counted_apart(family: str) -> None:
    """The paper's vision side is the last three layers; the tiny towers have that many, of which LLaVA reads two."""
    model, keys, disk = build(family)
    sites, _ = find_sites(model, keys, disk, ["text.ffn_out", "vision.ffn_out"], last=1, last_vision=2)
    used = used_vision_layers(model, find_backbone(model))
    vision = {site.module for site in sites if site.group == "vision.ffn_out"}
    assert all(any(module.startswith(f"{layer}.") for module in vision) for layer in used[-2:])
    assert len({site.name.split(".")[1] for site in sites if site.group == "text.ffn_out"}) == 1
    alike, _ = find_sites(model, keys, disk, ["text.ffn_out", "vision.ffn_out"], last=2)
    assert vision == {site.module for site in alike if site.group == "vision.ffn_out"}, "by default as many as of text"


def test_every_listed_family_is_built_here() -> None:
    assert {*FAMILIES} <= {*CONFIGS}


def test_text_side_of_an_encoder_decoder_is_its_decoder() -> None:
    model, keys, disk = build("blip-2 t5")
    assert text_layers(model, find_backbone(model)) == [f"language_model.decoder.block.{index}" for index in range(3)]
    sites, _ = find_sites(model, keys, disk, ["text.ffn_in"], last=1)
    assert [site.name for site in sites] == ["text.2.wi_0", "text.2.wi_1"]


def test_qformer() -> None:
    sites, _ = find_sites(*build("blip-2"), ["qformer"], last=2)
    assert [site.name for site in sites] == ["qformer.0.output_query.dense", "qformer.1.output_query.dense"]
    assert {site.modality for site in sites} == {"visual"}


@pytest.mark.parametrize("family", FAMILIES)
def test_table_and_structure_agree(family: str) -> None:
    model, _, _ = build(family)
    assert find_backbone(model) == FAMILIES[family].backbone


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
def test_table_and_structure_agree_about_a_plain_language_model(family: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **tiny_language.CONFIGS[family]))
    found = find_backbone(model)
    assert found == LANGUAGE_MODELS[family].backbone
    assert (found.projector, found.vision_tower, found.vision_layers) == ((), "", ())


def test_a_language_model_that_nobody_listed_is_found_by_structure() -> None:
    assert "olmo2" not in LANGUAGE_MODELS
    assert (family_of("olmo2").sees, family_of("glm4v").sees) == (False, True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("olmo2", **tiny_language.CONFIGS["llama"]))
    assert find_backbone(model) == LANGUAGE_MODELS["llama"].backbone


def test_a_family_that_nobody_listed_is_found_by_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [site.name for site in find_sites(*build("internvl"), ["projector", "vision.ffn_out"], last=1)[0]]
    monkeypatch.delitem(FAMILIES, "internvl")
    model, keys, disk = build("internvl")
    assert [site.name for site in find_sites(model, keys, disk, ["projector", "vision.ffn_out"], last=1)[0]] == before
    # It is not known which layers its features come from: every one counts as read.
    layers = layers_of(model, find_backbone(model).vision_layers)
    assert read_vision_layers(model, find_backbone(model), layers) == layers


@pytest.mark.parametrize(
    ("family", "read"),
    [("llava", [1]), ("internvl", [2]), ("qwen2_vl", [2]), ("qwen3_vl", [0, 1, 2]), ("mllama", [0, 1, 4])],
)
def test_vision_layers_that_something_else_reads(family: str, read: list[int]) -> None:
    model, _, _ = build(family)
    backbone = find_backbone(model)
    layers = layers_of(model, backbone.vision_layers)
    assert read_vision_layers(model, backbone, layers) == [layers[index] for index in read]


def test_table_that_disagrees_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(FAMILIES["llava"].backbone, text_ffn_out=("mlp.up_proj",))
    monkeypatch.setitem(FAMILIES, "llava", Family(wrong))
    with pytest.raises(StateError, match="text_ffn_out is"):
        find_backbone(build("llava")[0])


def test_table_is_silent_about_a_variant() -> None:
    """LLaVA around Pixtral: other module names, found by structure."""
    pixtral = {"model_type": "pixtral", "head_dim": 8} | {name: VISION[name] for name in VISION}
    model, keys, disk = build("llava", vision_config=pixtral, vision_feature_layer=-1)
    assert find_backbone(model).vision_layers == ("model.vision_tower.transformer.layers",)
    sites, _ = find_sites(model, keys, disk, ["text.ffn_out", "vision.ffn_out"], last=1)
    assert [site.name for site in sites] == ["text.2.down_proj", "vision.2.down_proj"]


# ------------------------------------------------------------------------------------------------ by path


def test_sites_by_a_regular_expression() -> None:
    sites, refusals = find_sites(*build("llava"), [r"re:.*language_model.*\.[12]\.self_attn\.o_proj"], last=1)
    assert [(site.name, site.modality) for site in sites] == [("text.1.o_proj", "text"), ("text.2.o_proj", "text")]
    assert not refusals
    sites, _ = find_sites(*build("llava"), [r"re:.*vision_tower.*\.0\.self_attn\.out_proj"], last=None)
    assert [(site.name, site.modality) for site in sites] == [("vision.0.out_proj", "visual")]


def test_a_module_is_a_site_once() -> None:
    sites, _ = find_sites(*build("llava"), ["text.ffn_out", r"re:.*layers\.2\.mlp\.(up|down)_proj"], last=1)
    assert [(site.name, site.group) for site in sites] == [
        ("text.2.down_proj", "text.ffn_out"),
        ("text.2.up_proj", r"re:.*layers\.2\.mlp\.(up|down)_proj"),
    ]


@pytest.mark.parametrize(
    ("family", "pattern", "reason"),
    [
        ("llava", r".*layers\.2\.(mlp\.down_proj|input_layernorm)", "LlamaRMSNorm, not a plain Linear"),
        ("llava", r"lm_head|.*layers\.2\.mlp\.down_proj", "neither in a text layer nor on the image's path"),
        ("mllama", r".*\.1\.(mlp\.down_proj|cross_attn\.k_proj)", "reads image features inside a text layer"),
    ],
)
def test_what_a_regular_expression_names_and_cannot_be_edited(family: str, pattern: str, reason: str) -> None:
    sites, refusals = find_sites(*build(family), [f"re:{pattern}"], last=None)
    assert any(site.name.endswith("down_proj") for site in sites)
    assert reason in [refusal.reason.partition(" with")[0] for refusal in refusals]


def test_a_regular_expression_that_matches_nothing() -> None:
    with pytest.raises(StateError, match=r"nothing to edit in re:layers"):
        find_sites(*build("llava"), ["re:layers"], last=None)
