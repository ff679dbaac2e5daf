"""From questions as tokens to the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from more_cli.images import ImageSource

_CROSS = "cross_attention_mask"
PER_TOKEN = ("mm_token_type_ids", "token_type_ids", _CROSS)
"""What a processor gives for every token of a prompt, (1, T, ...)."""


@dataclass(frozen=True)
class Query:
    """A question about zero or more images."""

    images: tuple[ImageSource, ...]
    question: str


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
    """What else the processor made of the prompt: of its images (`pixel_values`, sizes, ...) or, by the names in
    `PER_TOKEN`, of its tokens."""
    answer_type: int = 0
    """Token type of what follows the prompt."""

    @property
    def bytes(self) -> int:
        """What it holds in memory."""
        return sum(value.numel() * value.element_size() for value in (self.input_ids, *self.extras.values()))

    def followed_by(self, answer: Sequence[int]) -> Encoded:
        """Return this prompt with an answer, given as tokens, for its target."""
        ids = torch.cat([self.input_ids, self.input_ids.new_tensor(list(answer))])
        return replace(self, input_ids=ids, target=Span(len(self.input_ids), len(ids)))


@dataclass(frozen=True)
class Batch:
    """Sequences padded on the left, so that all answers end at the same position."""

    inputs: dict[str, Tensor]
    sequences: tuple[Encoded, ...]
    """What it was made of."""
    targets: Tensor
    """(N, K) target token ids, right-aligned, 0 where `mask` is false."""
    mask: Tensor
    """(N, K) bool, true at target tokens."""
    keep: Tensor
    """(K,) positions of the sequence whose logits predict `targets`."""
    answer: Tensor
    """(N, T) bool, true at the positions that predict a target token."""

    def __len__(self) -> int:
        return int(self.mask.shape[0])


def collate(sequences: Sequence[Encoded], pad: int, device: torch.device | str = "cpu") -> Batch:
    """Pad sequences on the left and mark their answers; prompts without a target keep their last position."""
    longest = max(len(sequence.input_ids) for sequence in sequences)
    width = max(1, *(len(sequence.target) for sequence in sequences))
    shape = (len(sequences), longest)
    ids, attention = torch.full(shape, pad), torch.zeros(shape, dtype=torch.long)
    answer = torch.zeros(shape, dtype=torch.bool)
    targets = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        offset = longest - len(sequence.input_ids)
        ids[row, offset:] = sequence.input_ids
        attention[row, offset:] = 1
        if length := len(sequence.target):
            predicting = answer_positions(sequence.target)
            answer[row, offset + predicting.start : offset + predicting.stop] = True
            targets[row, width - length :] = sequence.input_ids[sequence.target.start : sequence.target.stop]
            mask[row, width - length :] = True
    ends = {len(sequence.target) > 0 for sequence in sequences}
    assert len(ends) == 1, "prompts with and without a target do not share a batch"
    # Answers end at the last position, which predicts nothing; a bare prompt is continued from it.
    last = longest - 1 if ends == {True} else longest
    inputs = {"input_ids": ids, "attention_mask": attention} | _stack_extras(sequences, longest)
    return Batch(
        {name: value.to(device) for name, value in inputs.items()},
        tuple(sequences),
        targets.to(device),
        mask.to(device),
        torch.arange(last - width, last, device=device),
        answer.to(device),
    )


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
    """Put what belongs to the prompts' tokens into `whole` (N, T, ...), and behind each prompt what its answer has."""
    for row, sequence in enumerate(sequences):
        if name in sequence.extras:
            part = sequence.extras[name][0]
            start = whole.shape[1] - len(sequence.input_ids)
            whole[row, start : start + len(part)] = part
            # An answer attends to the images that the end of its prompt does.
            whole[row, start + len(part) :] = part[-1] if name == _CROSS else sequence.answer_type
    return whole


def _cat_padded(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along images; where these differ in tiles or size, zeros fill up, which no model reads."""
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(list(parts))
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    whole = parts[0].new_zeros(sum(len(part) for part in parts), *shape)
    start = 0
    for part in parts:
        whole[(slice(start, start + len(part)), *map(slice, part.shape[1:]))] = part
        start += len(part)
    return whole
