"""From questions as tokens to the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from more_cli.inputs.edits import Edit
from more_cli.inputs.edits import Probe as Question
from more_cli.inputs.images import ImageSource
from more_cli.inputs.turns import Turn

_CROSS = "cross_attention_mask"
PER_TOKEN = ("mm_token_type_ids", "token_type_ids", _CROSS)
"""Outputs of a processor with one value per token of the prompt, (1, T, ...)."""


@dataclass(frozen=True)
class Query:
    """A question about zero or more images, at the end of a conversation."""

    images: tuple[ImageSource, ...]
    """Of the earlier turns, then of the question."""
    question: str
    turns: tuple[Turn, ...] = ()
    """What was said before the question."""

    @classmethod
    def of(cls, asked: Edit | Question) -> Query:
        """Return what an edit or a probe asks."""
        return cls(asked.images, asked.question, asked.turns)


@dataclass(frozen=True)
class Span:
    """Token positions [start, stop) of a target, the end-of-sequence token included."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def answer_positions(span: Span) -> slice:
    """Return the positions whose logits predict the target: logits at t predict the token at t + 1."""
    return slice(span.start - 1, span.stop - 1)


@dataclass(frozen=True)
class Encoded:
    """One sequence before padding."""

    input_ids: Tensor
    """(T,) int64."""
    target: Span
    """Empty, at the end of the sequence, for a prompt without a target."""
    images: tuple[str, ...] = ()
    """sha256 of each image, the key of its vision features."""
    extras: dict[str, Tensor] = field(default_factory=dict)
    """The processor's other outputs: of the images (`pixel_values`, sizes, ...) or, under the names in `PER_TOKEN`, of
    the tokens."""
    answer_type: int = 0
    """Token type of what follows the prompt."""
    decoder_start: int | None = None
    """In an encoder-decoder, the token that the decoder's sequence starts with."""

    @property
    def bytes(self) -> int:
        """Bytes of memory that its tensors hold."""
        return sum(value.numel() * value.element_size() for value in (self.input_ids, *self.extras.values()))

    @property
    def prompt(self) -> Encoded:
        """The same without the target."""
        start = self.target.start
        return replace(self, input_ids=self.input_ids[:start], target=Span(start, start))

    @property
    def blind(self) -> Encoded:
        """The same tokens without the pixels, for passes that start after the last module that reads them."""
        sizes = {name: value for name, value in self.extras.items() if not value.is_floating_point()}
        return replace(self, images=(), extras=sizes)

    @property
    def answering(self) -> tuple[Tensor, Span]:
        """The sequence that ends in the answer, and the answer's span: of prompt and answer, or the decoder's own."""
        if self.decoder_start is None:
            return self.input_ids, self.target
        ids = torch.cat([self.input_ids.new_tensor([self.decoder_start]), self.input_ids[self.target.start :]])
        return ids, Span(1, len(ids))

    @property
    def target_ids(self) -> list[int]:
        """The target's tokens."""
        found: list[int] = self.input_ids[self.target.start : self.target.stop].tolist()
        return found

    @property
    def unended(self) -> Encoded:
        """The same without the target's last token, which ends the answer; a target of one token stays."""
        stop = max(self.target.stop - 1, self.target.start + 1)
        return replace(self, input_ids=self.input_ids[:stop], target=Span(self.target.start, stop))

    def followed_by(self, answer: Sequence[int]) -> Encoded:
        """Return this prompt with the tokens of an answer as its target."""
        ids = torch.cat([self.input_ids, self.input_ids.new_tensor(list(answer))])
        return replace(self, input_ids=ids, target=Span(len(self.input_ids), len(ids)))


@dataclass(frozen=True)
class Batch:
    """Sequences padded on the left, so that all answers end at the same position."""

    inputs: dict[str, Tensor]
    sequences: tuple[Encoded, ...]
    """The sequences before padding."""
    targets: Tensor
    """(N, K) target token ids, right-aligned, 0 where `mask` is false."""
    mask: Tensor
    """(N, K) bool, true at target tokens."""
    keep: Tensor
    """(K,) positions, in the sequence that ends in the answer, whose logits predict `targets`."""
    answer: Tensor
    """(N, T) bool, true at the positions of that sequence that predict a target token."""
    prompt: Tensor
    """(N, T) bool, true at the positions of that sequence that lie before the target."""

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    @cached_property
    def answer_places(self) -> Tensor:
        """(n,) int64, where `answer` is true when its rows are put side by side: found once for all sites."""
        return self.answer.reshape(-1).nonzero()[:, 0]


def moved(value: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device; a GPU fetches it from pinned memory while this process goes on."""
    if value.device.type == "cpu" and torch.device(device).type == "cuda":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def collate(sequences: Sequence[Encoded], pad: int, device: torch.device | str = "cpu") -> Batch:
    """Pad sequences on the left and mark their answers; prompts without a target keep their last position."""
    streams = [sequence.answering for sequence in sequences]
    ids, attention = _padded([stream for stream, _ in streams], pad)
    longest, width = ids.shape[1], max(1, *(len(span) for _, span in streams))
    answer, prompt = torch.zeros(2, *ids.shape, dtype=torch.bool)
    targets = torch.zeros(len(streams), width, dtype=torch.long)
    mask = torch.zeros(len(streams), width, dtype=torch.bool)
    for row, (stream, span) in enumerate(streams):
        offset = longest - len(stream)
        prompt[row, offset : offset + span.start] = True
        if length := len(span):
            predicting = answer_positions(span)
            answer[row, offset + predicting.start : offset + predicting.stop] = True
            targets[row, width - length :] = stream[span.start : span.stop]
            mask[row, width - length :] = True
    ends = {len(span) > 0 for _, span in streams}
    assert len(ends) == 1, "prompts with and without a target do not share a batch"
    # Answers end at the last position, which predicts nothing; a bare prompt is continued from it.
    last = longest - 1 if ends == {True} else longest
    inputs = {"input_ids": ids, "attention_mask": attention}
    if sequences[0].decoder_start is not None:
        inputs = {"decoder_input_ids": ids, "decoder_attention_mask": attention}
        prompts = [sequence.input_ids[: sequence.target.start] for sequence in sequences]
        inputs["input_ids"], inputs["attention_mask"] = _padded(prompts, pad)
    inputs |= _stack_extras(sequences, inputs["input_ids"].shape[1])
    return Batch(
        {name: moved(value, device) for name, value in inputs.items()},
        tuple(sequences),
        targets.to(device),
        mask.to(device),
        torch.arange(last - width, last, device=device),
        answer.to(device),
        prompt.to(device),
    )


def _padded(sequences: Sequence[Tensor], pad: int) -> tuple[Tensor, Tensor]:
    """Return sequences padded on the left to the longest, (N, T), and their attention mask, (N, T)."""
    own = [torch.ones_like(sequence) for sequence in sequences]
    left = partial(pad_sequence, batch_first=True, padding_side="left")
    return left(list(sequences), padding_value=pad), left(own)


def _stack_extras(sequences: Sequence[Encoded], longest: int) -> dict[str, Tensor]:
    stacked = {}
    for name in sorted({name for sequence in sequences for name in sequence.extras}):
        parts = [sequence.extras[name] for sequence in sequences if name in sequence.extras]
        if name in PER_TOKEN:
            whole = parts[0].new_zeros(len(sequences), longest, *parts[0].shape[2:])
            stacked[name] = _stack_tokens(sequences, name, whole)
        else:
            stacked[name] = _cat_padded(parts)
    return stacked


def _stack_tokens(sequences: Sequence[Encoded], name: str, whole: Tensor) -> Tensor:
    """Fill `whole` (N, T, ...) with the values of the prompts' tokens, and behind each prompt those of its answer."""
    for row, sequence in enumerate(sequences):
        if name in sequence.extras:
            part = sequence.extras[name][0]
            start = whole.shape[1] - len(sequence.input_ids)
            whole[row, start : start + len(part)] = part
            # An answer attends to the same images as the last token of its prompt.
            whole[row, start + len(part) :] = part[-1] if name == _CROSS else sequence.answer_type
    return whole


def _cat_padded(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along images; those with fewer tiles or a smaller size get zeros, which no model reads."""
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(list(parts))
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    whole = parts[0].new_zeros(sum(len(part) for part in parts), *shape)
    start = 0
    for part in parts:
        whole[(slice(start, start + len(part)), *map(slice, part.shape[1:]))] = part
        start += len(part)
    return whole
