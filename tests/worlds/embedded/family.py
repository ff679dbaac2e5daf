"""One record per family of embedded models, with all that differs between them; training uses only this record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin

Place = tuple[int, ...]
"""A token's position on every axis: a single one, or time, height and width."""


def set_control_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Tell the model's `generate` the tokenizer's first token, its last, and the one that pads."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.generation_config, name, getattr(tokenizer, name))


@dataclass(frozen=True)
class Prompt:
    """The family's chat format in pieces, with control tokens as text."""

    start: str
    """The first piece."""
    opening: str
    """Before the question; before the image if there is one."""
    asking: str
    """Between the question and the answer, which starts with a space."""
    after_image: str
    """Between the image and the question."""
    before_image: str = ""
    image_first: bool = False
    """Whether the image's tokens come even before the start; then `after_image` is also the opening."""
    system: Callable[[str], str] = field(default=lambda prompt: "")
    """A system prompt in the form that follows the start; empty if the family has none."""

    def rendered(self, question: str, image: str = "") -> str:
        """The prompt up to the answer; `image` is the image's placeholders, "" for text alone."""
        if not image:
            return self.start + self.opening + question + self.asking
        turn = self.after_image + question + self.asking
        if self.image_first:
            return image + self.start + turn
        return self.start + self.opening + self.before_image + image + turn


@dataclass(frozen=True)
class Seen:
    """Output of a vision tower."""

    tokens: Tensor
    """[B, image tokens, text width], which replace the image's placeholders."""
    deep: list[Tensor]
    """Same shape, added to the outputs of the first text layers (DeepStack)."""
    features: Tensor
    """[B, image tokens, width], input of the readers in stage 1."""


@dataclass(frozen=True)
class Spoken:
    """Hidden states [B, L, text width] after every text layer, and the last one normalised for the output head."""

    layers: list[Tensor]
    last: Tensor


@dataclass(frozen=True)
class Family:
    """How one family's parts are made, and its forward pass."""

    model_type: str
    title: str
    """Name in the model card."""
    classes: str
    """Classes it uses, for the model card."""
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    processor: Callable[[PreTrainedTokenizerFast], ProcessorMixin]
    model: Callable[[PreTrainedTokenizerFast], PreTrainedModel]
    see: Callable[[PreTrainedModel, Tensor], Seen]
    """Pixels [B, 3, side, side] to the input of the text model."""
    speak: Callable[[PreTrainedModel, Tensor, Tensor, Tensor, list[Tensor]], Spoken]
    """From embeddings [B, L, width], mask [B, 1, L, L], positions [axes, B, L] and deep features [B, L, width]."""
    image_places: Callable[[PreTrainedModel, int], tuple[list[Place], int]]
    """Positions of an image's tokens, given the first, and the position of the next token."""
    inputs: Callable[[PreTrainedModel, Tensor, Tensor], dict[str, Tensor]]
    """Arguments of the library's forward besides token ids [B, L], for pixels [B, 3, side, side]."""
    prompt: Prompt
    alone: Callable[[PreTrainedModel], PreTrainedModel] = field(default=lambda model: model)
    """The part that answers a prompt without a picture."""
    inherit: Callable[[PreTrainedModel, PreTrainedModel], None] | None = None
    """Copies the usable weights of the parent into a new model."""
    parent: str = ""
    """The family whose weights it starts from, "" for none."""
