"""What differs between the families of embedded models, as one record; the stages of training know nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin

Place = tuple[int, ...]
"""A token's position on every axis: one, or time, height and width."""


@dataclass(frozen=True)
class Prompt:
    """The family's chat format in pieces; control tokens stand in them as text."""

    start: str
    """Before everything."""
    opening: str
    """Before the question, or before the image where there is one."""
    asking: str
    """Between the question and the answer, which starts with a space."""
    after_image: str
    """Between the image and the question."""
    before_image: str = ""
    image_first: bool = False
    """Whether the image's tokens come before even the start; then `after_image` is the opening too."""
    system: Callable[[str], str] = field(default=lambda prompt: "")
    """A system prompt as it stands after the start; empty where the family has none."""

    def rendered(self, question: str, image: str = "") -> str:
        """The prompt up to where the answer begins; `image` is its placeholders, "" for text alone."""
        if not image:
            return self.start + self.opening + question + self.asking
        turn = self.after_image + question + self.asking
        if self.image_first:
            return image + self.start + turn
        return self.start + self.opening + self.before_image + image + turn


@dataclass(frozen=True)
class Seen:
    """What a tower makes of pictures."""

    tokens: Tensor
    """[B, image tokens, text width], in the place of the image's placeholders."""
    deep: list[Tensor]
    """The same, to be added to the outputs of the first text layers."""
    features: Tensor
    """[B, image tokens, width], what the readers of stage 1 look at."""


@dataclass(frozen=True)
class Spoken:
    """Hidden states [B, L, text width] after every text layer, and the last of them normed for the output head."""

    layers: list[Tensor]
    last: Tensor


@dataclass(frozen=True)
class Family:
    """How to make one family's parts, and how its forward goes."""

    model_type: str
    title: str
    """Of the model card."""
    classes: str
    """Which classes it uses, for the model card."""
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    processor: Callable[[PreTrainedTokenizerFast], ProcessorMixin]
    model: Callable[[PreTrainedTokenizerFast], PreTrainedModel]
    see: Callable[[PreTrainedModel, Tensor], Seen]
    """Pixels [B, 3, side, side] to what the text model takes."""
    speak: Callable[[PreTrainedModel, Tensor, Tensor, Tensor, list[Tensor]], Spoken]
    """Embeddings [B, L, width], mask [B, 1, L, L], positions [axes, B, L] and deep features [B, L, width]."""
    image_places: Callable[[PreTrainedModel, int], tuple[list[Place], int]]
    """Positions of an image that starts at this one, and the next token's."""
    inputs: Callable[[PreTrainedModel, Tensor, Tensor], dict[str, Tensor]]
    """What the library's forward takes beside token ids [B, L] for pixels [B, 3, side, side]."""
    prompt: Prompt
    alone: Callable[[PreTrainedModel], PreTrainedModel] = field(default=lambda model: model)
    """What answers a prompt without a picture."""
    inherit: Callable[[PreTrainedModel, PreTrainedModel], None] | None = None
    """Copies into a fresh model what it can use of its parent's weights."""
    parent: str = ""
    """The family that it starts from, "" for none."""
