"""What a family cannot do: the exit code, one line that explains it, and an unchanged disk."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForSeq2SeqLM
from transformers.models.smolvlm import processing_smolvlm

from support import tiny
from support.helpers import World, line, run, tree
from support.refused import assert_refused
from support.tiny_families import make_family, tiny_family
from support.tiny_language import tiny_language_model
from support.tiny_processors import spells_numbers

Argv = tuple[Any, ...]
CASES: list[Any] = []
without_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed: there is what is missing"
)


def case(code: int, *said: str, marks: Any = ()) -> Callable[[Callable[[Path], Argv]], Callable[[Path], Argv]]:
    """Add a case to the table: a function that writes a checkpoint and returns the command to run on it."""

    def add(make: Callable[[Path], Argv]) -> Callable[[Path], Argv]:
        CASES.append(pytest.param(make, code, said, id=make.__name__, marks=marks))
        return make

    return add


@pytest.mark.parametrize(("make", "code", "said"), CASES)
def test_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Argv], code: int, said: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = make(tmp_path)
    before = tree(tmp_path)
    assert_refused(run(*argv), code, *said)
    assert tree(tmp_path) == before


def sites(*groups: str) -> tuple[str, str]:
    return "--set", f"sites={json.dumps(groups)}"


def without_processor(folder: Path, model_type: str, **parts: Any) -> Path:
    """Write a checkpoint with random modules and the processor files of a LLaVA."""
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(model_type, **parts))
    model.save_pretrained(folder)
    tiny.make_processor().tokenizer.save_pretrained(folder)
    return folder


# ------------------------------------------------------------------------------------------------ other formats


def holding(folder: Path, **files: str) -> Path:
    """Write a folder with these files; `__` in a name stands for a dot."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


@case(5, "model_type 't5' is neither an image-text nor a causal language model", "hint: only image-text")
def encoder_decoder(root: Path) -> Argv:
    sizes = {"d_model": 64, "d_ff": 96, "d_kv": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 500}
    AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **sizes)).save_pretrained(root / "model")
    tiny.make_processor().tokenizer.save_pretrained(root / "model")
    return "init", "model"


@case(5, "config.json names architectures ['LlamaForSequenceClassification']", "hint: only image-text")
def classifier(root: Path) -> Argv:
    tiny.set_config(tiny_language_model(root / "model"), architectures=["LlamaForSequenceClassification"])
    return "init", "model"


@case(4, "e.jsonl:1: a plain language model takes no image", "hint: leave the image out")
def picture_for_a_language_model(root: Path) -> Argv:
    tiny_language_model(root / "model")
    Image.new("RGB", (28, 28)).save(root / "x.png")
    (root / "e.jsonl").write_text('{"image": "x.png", "question": "what is it ?", "target": "red"}\n')
    return "edit", "model", "e.jsonl"


@case(4, "anchors.jsonl:2: a plain language model takes no image", "hint: leave the image out")
def pictured_anchor_of_a_language_model(root: Path) -> Argv:
    tiny_language_model(root / "model")
    Image.new("RGB", (28, 28)).save(root / "x.png")
    (root / "anchors.jsonl").write_text('{"question": "who ?"}\n{"image": "x.png", "question": "what is it ?"}\n')
    return "init", "model", "--anchors", "anchors.jsonl"


@case(5, "its tokenizer has no end-of-sequence token", "hint: tokenizer, processor and chat template files")
def no_end_of_sequence(root: Path) -> Argv:
    folder = tiny_language_model(root / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": None}))
    return "ask", "model", "what is it ?"


@case(
    5,
    "model: a PEFT adapter (adapter_config.json), not a whole checkpoint",
    "hint: merge it into 'llava-hf/llava-1.5-7b-hf' first, with peft's merge_and_unload",
)
def adapter(root: Path) -> Argv:
    base = '{"base_model_name_or_path": "llava-hf/llava-1.5-7b-hf"}'
    holding(root / "model", adapter_config__json=base, adapter_model__safetensors="", README__md="")
    return "init", "model"


@case(5, "model: a PEFT adapter (adapter_config.json)", "hint: merge it into its base first")
def adapter_beside_a_config(root: Path) -> Argv:
    holding(root / "model", adapter_config__json="{}", adapter_model__safetensors="", config__json="{}")
    return "status", "model"


GGUF = "made for llama.cpp, which cannot be edited"
MADE_FROM = "hint: pass the folder of the safetensors checkpoint that the GGUF file was made from"


@case(5, f"model.gguf: a GGUF file, {GGUF}", MADE_FROM)
def gguf_file(root: Path) -> Argv:
    (root / "model.gguf").write_text("GGUF")
    return "init", "model.gguf"


@case(5, f"model/q4.gguf: a GGUF file, {GGUF}", MADE_FROM)
def gguf_folder(root: Path) -> Argv:
    holding(root / "model", q4__gguf="GGUF", mmproj__json="", config__json="{}")
    return "init", "model"


@case(
    5,
    "model: a checkpoint of LLaVA's own code (LlavaLlamaForCausalLM), not of transformers",
    "hint: convert it with convert_llava_weights_to_hf.py of transformers' repository",
)
def original_llava(root: Path) -> Argv:
    config = {"model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"], "mm_projector_type": "mlp2x_gelu"}
    holding(root / "model", config__json=json.dumps(config), pytorch_model__bin="", mm_projector__bin="")
    return "init", "model"


@case(5, "model.safetensors: a file, not a checkpoint directory", "hint: pass the folder it lies in: model")
def weights_file(root: Path) -> Argv:
    return "init", tiny.tiny_llava(root / "model").relative_to(root) / tiny.SINGLE


@case(5, "model.more: a state, not a checkpoint directory", "hint: name it with --state; MODEL is the checkpoint")
def state_file(root: Path) -> Argv:
    (root / "model.more").touch()
    return "status", "model.more"


@case(5, "model: an empty directory", "hint: pass the folder that holds config.json")
def empty_folder(root: Path) -> Argv:
    holding(root / "model")
    return "init", "model"


@case(
    5,
    "model: no config.json, and only pickled weights (pytorch_model.bin), never loaded",
    "hint: save the whole model once with transformers' save_pretrained",
)
def pickles_without_a_config(root: Path) -> Argv:
    holding(root / "model", pytorch_model__bin="")
    return "init", "model"


@case(5, "run: no config.json", "hint: did you mean `run/checkpoint-1000`?")
def folder_of_a_run(root: Path) -> Argv:
    for number in (500, 1000):
        holding(root / f"run/checkpoint-{number}", config__json="{}", model__safetensors="")
    return "init", "run"


@case(5, "hub: no config.json", "hint: did you mean `hub/snapshots/a1b2`?")
def folder_of_the_hub(root: Path) -> Argv:
    holding(root / "hub/snapshots/a1b2", config__json="{}", model__safetensors="")
    return "init", "hub"


@case(5, "parts: no config.json", "hint: pass the folder that holds config.json and model*.safetensors")
def folder_of_parts_without_weights(root: Path) -> Argv:
    holding(root / "parts/1_Pooling", config__json="{}")
    return "init", "parts"


# ------------------------------------------------------------------------------------------------ processors


@case(5, "the processor does not load", "Torchvision", "pip install torchvision", marks=without_torchvision)
def mistral3(root: Path) -> Argv:
    tiny_family(root / "model", "mistral3")
    tiny.make_processor().tokenizer.save_pretrained(root / "model")
    return "init", "model"


@case(5, "the processor does not load", marks=without_torchvision)
def llama4(root: Path) -> Argv:
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 2}
    vision = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"image_size": 56, "patch_size": 14, "projector_input_dim": 48, "projector_output_dim": 48}
    vision |= {"vision_output_dim": 48}
    folder = without_processor(
        root / "model", "llama4", text_config=text | {"vocab_size": 500, "pad_token_id": 0}, vision_config=vision
    )
    (folder / "processor_config.json").write_text('{"processor_class": "Llama4Processor"}')
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Llama4ImageProcessorFast"}')
    return "init", "model"


@case(
    5,
    "the processor does not load: Package `num2words` is required",
    "pip install num2words",
    marks=pytest.mark.skipif(processing_smolvlm.num2words is not None, reason="num2words is installed"),
)
def smolvlm(root: Path) -> Argv:
    tiny_family(root / "model", "smolvlm")
    return "init", "model"


SIZES = "processor_config.json` makes images of 48 x 48 pixels, the vision tower in config.json takes 28 x 28"
OWN_FILES = "hint: put the processor files that the model was trained with beside its config.json"


def other_pixels(root: Path) -> Path:
    """Write a LLaVA whose processor makes larger images than its vision tower takes, and edits for it."""
    world = World(root, text_layers=1)
    world.edits(1)
    file = world.model / "processor_config.json"
    file.write_text(file.read_text().replace("28", "48"))
    return world.model


@case(5, SIZES, OWN_FILES)
def other_pixels_at_init(root: Path) -> Argv:
    return "init", other_pixels(root)


@case(5, SIZES, OWN_FILES)
def other_pixels_at_edit(root: Path) -> Argv:
    return "edit", other_pixels(root), "edits.jsonl"


@case(5, SIZES, OWN_FILES)
def other_pixels_in_a_dry_run(root: Path) -> Argv:
    return "edit", other_pixels(root), "edits.jsonl", "--dry-run"


@case(5, SIZES, OWN_FILES)
def other_pixels_of_a_model_without_a_state(root: Path) -> Argv:
    return "run", other_pixels(root), "--suite", "edits.jsonl", "--editor", "none"


@case(
    5, "the processor puts 16 image tokens into a prompt, the model in config.json has 4", "hint: compare `patch_size`"
)
def other_image_tokens(root: Path) -> Argv:
    folder = tiny.tiny_llava(root / "model", text_layers=1)
    file = folder / "processor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"patch_size": 7}))
    return "init", folder


# ------------------------------------------------------------------------------------------------ sites


@case(5, "nothing to edit in projector", "mm_input_projection_weight, not a plain Linear", "choose other sites")
def gemma3_projector(root: Path) -> Argv:
    tiny_family(root / "model", "gemma3")
    return "init", "model", *sites("text.ffn_out", "projector")


@case(
    5, "nothing to edit in text.ffn_in", "Qwen3VLMoeTextExperts with raw parameters gate_up_proj", "choose other sites"
)
def experts(root: Path) -> Argv:
    mrope = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    text = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 500, "rope_parameters": mrope}
    text |= {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24}
    vision = {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 4}
    vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    without_processor(root / "model", "qwen3_vl_moe", text_config=text, vision_config=vision)
    return "init", "model"


@case(5, "nothing to edit in qformer", "LlavaForConditionalGeneration has no such part")
def no_q_former(root: Path) -> Argv:
    tiny.tiny_llava(root / "model")
    return "init", "model", *sites("qformer")


@case(5, "nothing to edit in re:lm_head", "neither in a text layer nor on the image's path")
def head(root: Path) -> Argv:
    tiny_family(root / "model", "qwen2_vl")
    return "init", "model", *sites("re:lm_head")


@case(5, "nothing to edit in re:nothing")
def pattern_without_a_match(root: Path) -> Argv:
    tiny_family(root / "model", "qwen2_vl")
    return "init", "model", *sites("re:nothing")


@case(2, "`(` is not a regular expression")
def pattern_that_is_none(root: Path) -> Argv:
    tiny.tiny_llava(root / "model")
    return "init", "model", *sites("re:(")


@case(2, "unknown site group `text.mlp`", "re:<regex>")
def unknown_group(root: Path) -> Argv:
    tiny.tiny_llava(root / "model")
    return "init", "model", *sites("text.mlp")


@case(5, "nothing to edit in text.ffn_out", "quantised: U8 beside weight.absmax")
def quantised(root: Path) -> Argv:
    folder = tiny_family(root / "model", "qwen2_vl", "native")
    for layer in range(3):
        tiny.quantised(folder, f"model.language_model.layers.{layer}.mlp.down_proj")
    return "init", "model", *sites("text.ffn_out")


# ------------------------------------------------------------------------------------------------ questions


@pytest.mark.parametrize("family", ["blip-2", "blip-2 t5", "instructblip", "paligemma", "mllama"])
def test_an_edit_without_an_image(tmp_path: Path, family: str) -> None:
    world = World(tmp_path, family=family)
    edits = world.write([line(0), {"question": "what ?", "target": "r"}])
    assert_refused(world.edit(edits=edits), 4, f"{edits}:2: this model takes no question without an image", "add one")
    assert not world.sidecar.exists()
    skipped = world.edit("--on-error", "skip", "--dry-run", edits=edits)
    assert (skipped.code, "1 edit applied" in skipped.err + skipped.out) == (0, True)


@pytest.mark.parametrize("family", ["paligemma", "mllama"])
def test_locality_without_an_image(tmp_path: Path, family: str) -> None:
    world = World(tmp_path, family=family)
    edits = world.write([line(0, locality=[{"image": "img/blue.png", "question": "what ?"}, {"question": "what ?"}])])
    said = f"{edits}:1: locality 2: this model takes no question without an image"
    assert_refused(world.edit(edits=edits), 4, said, "leave the question out")


@pytest.mark.parametrize("family", ["blip-2", "mllama"])
def test_an_edit_with_two_images(tmp_path: Path, family: str) -> None:
    world = World(tmp_path, family=family)
    edits = world.write([{"image": ["img/red.png", "img/blue.png"], "question": "what ?", "target": "r"}])
    assert_refused(world.edit(edits=edits), 4, f"{edits}:1: this model takes 1 image a question, not 2", "one image")


def test_locality_without_an_image_is_asked_of_the_language_model_alone(tmp_path: Path) -> None:
    world = World(tmp_path, family="blip-2")
    edits = world.write([line(0, locality=[{"question": "what ?", "answer": "red"}]), line(1)])
    assert world.edit("--set", "max_steps=30", edits=edits).code in (0, 3)
    found = run("eval", world.model, "--json")
    assert found.code == 0, found.err
    assert any(name.startswith("loc_text") for name in found.json["metrics"])


def test_every_family_of_these_cases_would_work_but_for_its_reason(tmp_path: Path) -> None:
    """SmolVLM works with the missing package, Gemma 3 with sites that it has."""
    with spells_numbers():
        assert run("init", tiny_family(tmp_path / "smolvlm", "smolvlm")).code == 0
    assert run("init", tiny_family(tmp_path / "gemma3", "gemma3")).code == 0
    assert make_family("mistral3")[1] is None
