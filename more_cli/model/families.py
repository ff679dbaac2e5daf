"""The tested families of vision-language models and of plain language models, one row each.

Sites are found by structure, so a family without a row can work too. A row says which modules must be found, and what
the family's processor and questions need beyond a chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Backbone:
    """Module paths of the parts of one model; empty where it has no such part."""

    text_layers: str
    """The ModuleList of text layers."""
    text_ffn_in: tuple[str, ...]
    """Relative to a text layer. Both branches of a gated MLP."""
    text_ffn_out: tuple[str, ...]
    projector: tuple[str, ...]
    """All that lies between vision features and text embeddings, in module order."""
    vision_tower: str
    vision_layers: tuple[str, ...]
    """The ModuleLists of vision layers, in the order they run."""
    vision_ffn_out: tuple[str, ...]
    qformer_layers: str = ""
    qformer_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phrasing:
    """The prompt format of a checkpoint without a chat template."""

    prompt: str
    """With `{question}`; `{images}` stands for one placeholder per image where the processor adds none itself."""
    separator: str = " "
    """Between the prompt and its answer."""
    appended: str = ""
    """What the processor puts after every prompt by itself."""


@dataclass(frozen=True)
class Family:
    """What is known about one `model_type`."""

    backbone: Backbone | None = None
    """What structural discovery must find; None for an unlisted family."""
    images: tuple[int, int | None] = (0, None)
    """Fewest and most images that one question can have."""
    language_model: str = ""
    """Module that answers text-only questions, in a family whose whole model needs an image."""
    phrasing: Phrasing | None = None
    answer_type: int = 0
    """Token type of an answer's tokens."""

    @property
    def sees(self) -> bool:
        """Whether its models take images; those of a plain language model do not."""
        return self.images[1] != 0

    def refuses(self, images: int, *, alone: bool = False) -> tuple[str, str] | None:
        """Return why a question with this many images is refused, and a hint; None if it is not.

        With `alone`, a text-only question may go to `language_model`.
        """
        fewest, most = self.images
        if images and not self.sees:
            return "a plain language model takes no image", "leave the image out, or edit a vision-language model"
        if images < fewest and not (alone and self.language_model and not images):
            return "this model takes no question without an image", "add one, or leave the question out"
        if most is not None and images > most:
            return f"this model takes {most} image a question, not {images}", "ask about one image at a time"
        return None


_GATED = ("mlp.gate_proj", "mlp.up_proj")
_LLAVA = Backbone(
    text_layers="model.language_model.layers",
    text_ffn_in=_GATED,
    text_ffn_out=("mlp.down_proj",),
    projector=("model.multi_modal_projector",),
    vision_tower="model.vision_tower",
    vision_layers=("model.vision_tower.encoder.layers",),
    vision_ffn_out=("mlp.fc2",),
)
_QWEN = replace(
    _LLAVA,
    projector=("model.visual.merger",),
    vision_tower="model.visual",
    vision_layers=("model.visual.blocks",),
)
_QWEN3 = replace(_QWEN, vision_ffn_out=("mlp.linear_fc2",))
_IDEFICS3 = replace(
    _LLAVA,
    text_layers="model.text_model.layers",
    projector=("model.connector",),
    vision_tower="model.vision_model",
    vision_layers=("model.vision_model.encoder.layers",),
)
_INSTRUCTBLIP = Backbone(
    text_layers="language_model.model.layers",
    text_ffn_in=_GATED,
    text_ffn_out=("mlp.down_proj",),
    projector=("language_projection",),
    vision_tower="vision_model",
    vision_layers=("vision_model.encoder.layers",),
    vision_ffn_out=("mlp.fc2",),
    qformer_layers="qformer.encoder.layer",
    qformer_out=("output_query.dense",),
)
_BLIP2 = replace(
    _INSTRUCTBLIP,
    text_layers="language_model.model.decoder.layers",
    text_ffn_in=("fc1",),
    text_ffn_out=("fc2",),
)
_MISTRAL3 = replace(
    _LLAVA, vision_layers=("model.vision_tower.transformer.layers",), vision_ffn_out=("feed_forward.down_proj",)
)
_MLLAMA = replace(
    _LLAVA,
    vision_tower="model.vision_model",
    vision_layers=("model.vision_model.transformer.layers", "model.vision_model.global_transformer.layers"),
)
_LLAMA4 = Backbone(
    text_layers="language_model.model.layers",
    text_ffn_in=tuple(f"feed_forward.{name}_proj" for name in ("gate", "shared_expert.gate", "shared_expert.up", "up")),
    text_ffn_out=("feed_forward.down_proj", "feed_forward.shared_expert.down_proj"),
    projector=("vision_model.vision_adapter", "multi_modal_projector"),
    vision_tower="vision_model",
    vision_layers=("vision_model.model.layers",),
    vision_ffn_out=("mlp.fc2",),
)

FAMILIES: dict[str, Family] = {
    "llava": Family(_LLAVA),
    "llava_next": Family(_LLAVA),
    "llava_onevision": Family(_LLAVA),
    "blip-2": Family(
        _BLIP2, images=(1, 1), language_model="language_model", phrasing=Phrasing("Question: {question} Answer:")
    ),
    "instructblip": Family(
        _INSTRUCTBLIP, images=(1, 1), language_model="language_model", phrasing=Phrasing("{question}")
    ),
    "qwen2_vl": Family(_QWEN),
    "qwen2_5_vl": Family(replace(_QWEN, vision_ffn_out=("mlp.down_proj",))),
    "qwen3_vl": Family(replace(_QWEN3, projector=("model.visual.merger", "model.visual.deepstack_merger_list"))),
    "qwen3_5": Family(_QWEN3),
    "internvl": Family(replace(_LLAVA, vision_layers=("model.vision_tower.encoder.layer",))),
    # Its prompt attends in both directions, its answer in one: they differ in token type.
    "paligemma": Family(
        _LLAVA, images=(1, None), phrasing=Phrasing("{images}answer en {question}", "", "\n"), answer_type=1
    ),
    "gemma3": Family(_LLAVA),  # its projector is a raw parameter, which is no site
    "idefics3": Family(_IDEFICS3),
    "smolvlm": Family(_IDEFICS3),
    "mistral3": Family(_MISTRAL3),
    # Text before its image attends to every image slot alike, padding included: each question has one image.
    "mllama": Family(_MLLAMA, images=(1, 1)),
    "llama4": Family(_LLAMA4),
}
"""Vision-language models by `model_type`."""

_BARE = Phrasing("{question}")
"""Of a base model, which continues a text; an instruction-tuned one has a chat template."""


def _language(layers: str, ffn_in: tuple[str, ...] = _GATED, ffn_out: str = "mlp.down_proj") -> Family:
    backbone = Backbone(layers, ffn_in, (ffn_out,), projector=(), vision_tower="", vision_layers=(), vision_ffn_out=())
    return Family(backbone, images=(0, 0), phrasing=_BARE)


LANGUAGE_MODELS: dict[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _language("model.layers")),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _language("model.layers")),
    "opt": _language("model.decoder.layers", ("fc1",), "fc2"),
    "gpt_neox": _language("gpt_neox.layers", ("mlp.dense_h_to_4h",), "mlp.dense_4h_to_h"),
    "phi": _language("model.layers", ("mlp.fc1",), "mlp.fc2"),
    "phi3": _language("model.layers", ("mlp.gate_up_proj",)),
}
"""Plain language models by `model_type`."""


def is_tested(model_type: str) -> bool:
    """Return whether a table here has a row for this `model_type`."""
    return model_type in FAMILIES or model_type in LANGUAGE_MODELS


def is_language_model(model_type: str) -> bool:
    """Return whether transformers has a causal language model of this type, and none that also takes images."""
    if is_tested(model_type):
        return model_type in LANGUAGE_MODELS
    from transformers.models.auto import modeling_auto as names

    causal = model_type in names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return causal and model_type not in names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def family_of(model_type: str) -> Family:
    """Return the row of a family; of an unlisted one, what all of its kind have in common."""
    unlisted = Family(images=(0, 0), phrasing=_BARE) if is_language_model(model_type) else Family()
    return FAMILIES.get(model_type) or LANGUAGE_MODELS.get(model_type) or unlisted


def family_in(config: Mapping[str, Any]) -> Family:
    """Return the row of the family that a checkpoint's config.json names."""
    return family_of(str(config.get("model_type")))
