"""Anchors: inputs whose behaviour must not move, held to the base's answers while edits are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from more_cli.model.batches import Batch, Encoded, Query
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored

ANSWER_TOKENS = 32
"""Longest answer of the base that an anchor holds, in tokens."""


@dataclass(frozen=True)
class Anchor:
    """A question with the answer whose distribution must not move."""

    question: str
    tokens: Tensor
    """(K,) the answer, its end included."""
    base: Tensor
    """(K, vocabulary) float32: the base's log-probabilities at the answer's positions."""
    encode: Callable[[], Encoded]
    keys: Mapping[str, Tensor] | None = None
    """The base's keys by site, where the pass that measured `base` also recorded them."""

    @cached_property
    def encoded(self) -> Encoded:
        """Question and answer as tokens and pixels, made on first use: a write draws a few of many anchors."""
        return self.encode()


ReadKeys = Callable[[Batch], Mapping[str, Tensor]]
"""Returns the keys by site of the last recorded pass."""


def make_anchor(runtime: Runtime, query: Query, answer: str | None, keys: ReadKeys | None = None) -> Anchor:
    """Make an anchor by asking the untouched base: for the given `answer` or, without one, its own greedy answer.

    Anchors are made one at a time, so that what is cached does not depend on what else was in a batch. With `keys` the
    attached branches record the same pass.
    """
    with runtime.base():
        if answer is None:
            tokens = runtime.generate([query], ANSWER_TOKENS)[0]
        else:
            whole = runtime.encode(query, answer)
            tokens = whole.input_ids[whole.target.start :].tolist()
        encoded = runtime.encode(query).followed_by(tokens)
        batch = runtime.batch([encoded])
        scored = runtime.score(batch, keys=keys is not None)
    answered = encoded.input_ids[encoded.target.start : encoded.target.stop]
    base = scored.log_probabilities()[0][scored.mask[0]].cpu()
    return Anchor(query.question, answered, base, lambda: encoded, keys(batch) if keys else None)


def restore_anchor(runtime: Runtime, query: Query, tokens: Tensor, base: Tensor) -> Anchor:
    """Make an anchor again from its answer's tokens and log-probabilities, without asking the model."""
    return Anchor(query.question, tokens, base, lambda: runtime.encode(query).followed_by(tokens.tolist()))


def drift(scored: Scored, anchors: Sequence[Anchor]) -> Tensor:
    """Return KL(base || edited) per anchor, (N,), the mean over answer positions, in nats.

    `scored` has the anchors' rows in their order. Not in the paper, which protects locality by P alone.
    """
    losses = []
    for row, anchor in zip(scored.log_probabilities(), anchors, strict=True):
        base = anchor.base.to(row.device)
        answer = row[-len(base) :]  # right-aligned: a mask would make Python wait for the GPU
        losses.append(functional.kl_div(answer, base, log_target=True, reduction="sum") / len(base))
    return torch.stack(losses)
