"""From a question, its images and a target to the tensors of one forward pass.

The span of the target is found in the tokens of the whole sequence: tokenised by itself the same text can give
other tokens, and a label that is off by one trains and scores the wrong position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from more_cli.errors import DataError, StateError
from more_cli.images import ImageSource

_QUESTION = "\ue000question\ue000"
_ANSWER = "\ue000answer\ue000"


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
    """What the processor made of the images (`pixel_values`, sizes, ...), images first."""

    @property
    def bytes(self) -> int:
        """What it holds in memory."""
        return sum(value.numel() * value.element_size() for value in (self.input_ids, *self.extras.values()))

    @property
    def tiles(self) -> tuple[int, ...]:
        """How many pictures the vision tower sees of each image: one, or the tiles it was cut into."""
        pixels = self.extras.get("pixel_values")
        return (1 if pixels is None or pixels.dim() < 5 else pixels.shape[1],) * len(self.images)

    def followed_by(self, answer: Sequence[int]) -> Encoded:
        """Return this prompt with an answer, given as tokens, for its target."""
        ids = torch.cat([self.input_ids, self.input_ids.new_tensor(list(answer))])
        return Encoded(ids, Span(len(self.input_ids), len(ids)), self.images, self.extras)


@dataclass(frozen=True)
class Batch:
    """Sequences padded on the left, so that all answers end at the same position."""

    inputs: dict[str, Tensor]
    images: tuple[str, ...]
    tiles: tuple[int, ...]
    """What the vision tower sees of each image, as `Encoded.tiles`."""
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


class Prompter:
    """Renders questions with the checkpoint's chat template and tokenises them."""

    def __init__(self, processor: Any, *, system: str = "", max_length: int | None = None) -> None:
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.system = system
        self.max_length = max_length
        self.eos: int = self.tokenizer.eos_token_id
        self.template: str = getattr(processor, "chat_template", None) or self.tokenizer.chat_template or ""
        if not self.template:
            raise StateError(
                "the checkpoint has no chat template",
                "put the model's chat_template.jinja beside its config.json",
            )
        self._control = sorted(
            {str(token) for token in self.tokenizer.all_special_tokens}
            | {str(getattr(processor, name, "") or "") for name in ("image_token", "video_token")} - {""},
            key=len,
            reverse=True,
        )
        self._separator = self._find_separator()

    def encode(self, query: Query, target: str | None = None) -> Encoded:
        """Tokenise a question and, when given, its target followed by the end-of-sequence token.

        Raises:
            DataError: the sequence is longer than the model's context, or an image cannot be read.
        """
        prompt = self.render(query)
        if target is None:
            ids, extras = self._process(prompt, query)
            return Encoded(ids, Span(len(ids), len(ids)), self._keys(query), extras)
        whole = prompt + self._separator + self.inert(target)
        # Both without images: the length of the target does not depend on how often its placeholder repeats.
        length = len(self._tokens(whole)) - _common_prefix(self._tokens(prompt), self._tokens(whole))
        ids, extras = self._process(whole, query)
        ids = torch.cat([ids, ids.new_tensor([self.eos])])
        if self.max_length is not None and len(ids) > self.max_length:
            raise DataError(
                f"question and target take {len(ids)} tokens, the model's context has {self.max_length}",
                "shorten the question or the target",
            )
        return Encoded(ids, Span(len(ids) - length - 1, len(ids)), self._keys(query), extras)

    def render(self, query: Query) -> str:
        """Return the prompt up to where the answer begins, control tokens inside the question made inert."""
        return self._render(query, answer=None).replace(_QUESTION, self.inert(query.question))

    def inert(self, text: str) -> str:
        """Break up every control token inside a user's text, so that it is read as text and never as control."""
        for token in self._control:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def text(self, ids: Sequence[int] | Tensor) -> str:
        """Return the text of an answer's tokens, without control tokens."""
        return str(self.tokenizer.decode(list(map(int, ids)), skip_special_tokens=True)).strip()

    def _render(self, query: Query, answer: str | None) -> str:
        content: list[dict[str, str]] = [{"type": "image"} for _ in query.images]
        content.append({"type": "text", "text": _QUESTION})
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if self.system:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": self.system}]})
        if answer is not None:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        return str(self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=answer is None))

    def _find_separator(self) -> str:
        """Return what the template puts between the generation prompt and the answer, often one space."""
        query = Query((), "")
        prompt, whole = self._render(query, None), self._render(query, _ANSWER)
        before = whole.partition(_ANSWER)[0]
        if _ANSWER in whole and before.startswith(prompt):
            return before[len(prompt) :]
        # A template that does not continue its own generation prompt: words are separated by one space.
        return "" if prompt[-1:].isspace() else " "

    def _tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def _process(self, text: str, query: Query) -> tuple[Tensor, dict[str, Tensor]]:
        images = [source.open() for source in query.images]
        values = dict(self.processor(text=[text], images=images or None, return_tensors="pt"))
        ids: Tensor = values.pop("input_ids")[0]
        values.pop("attention_mask", None)
        return ids, {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @staticmethod
    def _keys(query: Query) -> tuple[str, ...]:
        return tuple(source.sha256 for source in query.images)


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
    inputs = {"input_ids": ids, "attention_mask": attention} | _stack_extras(sequences)
    return Batch(
        {name: value.to(device) for name, value in inputs.items()},
        tuple(key for sequence in sequences for key in sequence.images),
        tuple(count for sequence in sequences for count in sequence.tiles),
        targets.to(device),
        mask.to(device),
        torch.arange(last - width, last, device=device),
        answer.to(device),
    )


def _stack_extras(sequences: Sequence[Encoded]) -> dict[str, Tensor]:
    names = {name for sequence in sequences for name in sequence.extras}
    return {
        name: _cat_padded([sequence.extras[name] for sequence in sequences if name in sequence.extras])
        for name in sorted(names)
    }


def _cat_padded(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along images; where these have different numbers of tiles, zeros fill up, which no model reads."""
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(list(parts))
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    whole = parts[0].new_zeros(sum(len(part) for part in parts), *shape)
    start = 0
    for part in parts:
        whole[(slice(start, start + len(part)), *map(slice, part.shape[1:]))] = part
        start += len(part)
    return whole


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
