"""Looks through a pool for what a suite needs: questions the model gets wrong, and ones it gets right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from score import Answerer, Probe
from world.facts import facts
from world.language import Question, kinds_for, posed
from world.pools import Dice, Pool, Purpose
from world.scenes import Scene, scene
from world.shares import fact_share
from world.stills import Still

CHUNK = 200  # scenes looked at before counting what was found


@dataclass(frozen=True)
class Found:
    """A question about a still, worded for training, and what the model says."""

    still: Still
    question: Question
    text: str
    said: str = ""

    @property
    def probe(self) -> Probe:
        """The same as something to score."""
        return Probe(self.question.kind, self.text, self.question.answer, self.still.shown, self.still.variant)

    @property
    def right(self) -> bool:
        """Whether the model says what is true."""
        return self.said == self.question.answer


class Judge:
    """The model in float32 and in bfloat16; a verdict counts only when both agree."""

    def __init__(self, exact: Answerer, rounded: Answerer) -> None:
        self.exact = exact
        self.rounded = rounded

    def _answered(self, answerer: Answerer, found: list[Found]) -> list[Found]:
        said = answerer.score([item.probe for item in found])
        return [replace(item, said=answer) for item, answer in zip(found, said, strict=True)]

    def wrong(self, candidates: list[Found]) -> list[Found]:
        """Those that the model answers wrongly, with its answer."""
        first = [item for item in self._answered(self.exact, candidates) if _is_mistake(item)]
        second = self._answered(self.rounded, first)
        return [item for item, again in zip(first, second, strict=True) if _is_mistake(again)]

    def right(self, candidates: list[Found]) -> list[Found]:
        """Those that the model answers rightly."""
        first = [item for item in self._answered(self.exact, candidates) if item.right]
        second = self._answered(self.rounded, first)
        return [item for item, again in zip(first, second, strict=True) if again.right]


def _is_mistake(item: Found) -> bool:
    # An answer that never ends, or is empty, is no sensible "what the model said before".
    return bool(item.said) and not item.said.endswith("...") and not item.right


def questions(about: Still, kinds: tuple[str, ...]) -> list[Found]:
    """One question of each of these kinds, where the scene allows it."""
    asked = [posed(about.shown, kind) for kind in kinds]
    return [Found(about, *pair) for pair in asked if pair is not None]


def mistakes(judge: Judge, pool: Pool, start: int, kinds: tuple[str, ...], n: int, cap: int) -> list[Found]:
    """The first `n` mistakes in the pool's scenes from `start` on, at most `cap` of a kind."""
    kept: list[Found] = []
    per_kind: Counter[str] = Counter()
    seen = 0
    while len(kept) < n:
        candidates: list[Found] = []
        for about in _scenes(pool, start + seen, CHUNK):
            open_kinds = tuple(kind for kind in kinds if per_kind[kind] < cap)
            candidates += questions(Still(about), open_kinds)
        for item in judge.wrong(candidates):
            if per_kind[item.question.kind] < cap and len(kept) < n:
                per_kind[item.question.kind] += 1
                kept.append(item)
        seen += CHUNK
        print(f"{pool.name.lower()}: {len(kept)} of {n} mistakes in {seen} scenes, {dict(per_kind)}", flush=True)
        if seen >= 200 * CHUNK:
            raise RuntimeError("the model makes too few mistakes")
    return kept


def emblem_edits(judge: Judge, stills: Iterable[Still], kinds: tuple[str, ...]) -> list[Found]:
    """Questions about these pictures whose answer holds the name of a new emblem, where the model is wrong."""
    candidates: list[Found] = []
    for about in stills:
        candidates += questions(about, kinds)
    named = [item for item in candidates if item.question.kind != "is_emblem" or item.question.answer == "yes"]
    return judge.wrong(named)


def unrelated(judge: Judge, pool: Pool, start: int, asked: list[str]) -> list[Found]:
    """For each kind in `asked` a question of another kind that the model gets right, on scenes of their own."""
    kept: list[Found] = []
    index = start
    while len(kept) < len(asked):
        batch = [scene(pool, index + i) for i in range(len(asked) - len(kept))]
        candidates: list[Found] = []
        for about, kind in zip(batch, asked[len(kept) :], strict=True):
            others = [other for other in kinds_for(about) if _family(other) != _family(kind)]
            other = Dice(Purpose.SELECTION, pool, about.index).pick(others)
            candidates += questions(Still(about), (other,))
        index += len(batch)
        right = {item.still.shown.index: item for item in judge.right(candidates)}
        for about in batch:
            item = right.get(about.index)
            if item is not None and len(kept) < len(asked) and _family(item.question.kind) != _family(asked[len(kept)]):
                kept.append(item)
    return kept


def _family(kind: str) -> str:
    """Kinds about the same thing count as one: "is_color" and "color"."""
    return kind.removeprefix("is_")


def fact_probes(pool: Pool, n: int) -> list[Question]:
    """`n` facts of the pool's share, in turn."""
    share = fact_share(pool)
    return [facts()[share[i % len(share)]] for i in range(n)]


def _scenes(pool: Pool, start: int, n: int) -> Iterator[Scene]:
    for index in range(start, start + n):
        yield scene(pool, index)
