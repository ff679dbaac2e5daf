"""Searches a pool of scenes for questions that a suite needs: some the model gets wrong, some it gets right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .score import Answerer, Probe
from .world.facts import fact_share, facts
from .world.language import Question, kinds_for, posed
from .world.pictures import Picture
from .world.pools import Dice, Pool, Purpose
from .world.scenes import Scene, scene

CHUNK = 200  # scenes searched between two counts


@dataclass(frozen=True)
class Candidate:
    """A question about a picture in a trained wording, and the model's answer."""

    picture: Picture
    question: Question
    text: str
    said: str = ""
    """The model's answer; empty before the model is asked."""

    @property
    def probe(self) -> Probe:
        """The question in the form that `Answerer.score` takes."""
        return Probe(self.question.kind, self.text, self.question.answer, self.picture.scene, self.picture.variant)

    @property
    def right(self) -> bool:
        """Whether the model's answer is the true one."""
        return self.said == self.question.answer


class Judge:
    """The model in float32 and in bfloat16; an answer counts as right or wrong only if both agree."""

    def __init__(self, exact: Answerer, rounded: Answerer) -> None:
        self.exact = exact
        self.rounded = rounded

    def _answered(self, answerer: Answerer, candidates: list[Candidate]) -> list[Candidate]:
        said = answerer.score([item.probe for item in candidates])
        return [replace(item, said=answer) for item, answer in zip(candidates, said, strict=True)]

    def wrong(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates that the model answers wrongly, with its answer."""
        first = [item for item in self._answered(self.exact, candidates) if _is_mistake(item)]
        second = self._answered(self.rounded, first)
        return [item for item, again in zip(first, second, strict=True) if _is_mistake(again)]

    def right(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates that the model answers correctly."""
        first = [item for item in self._answered(self.exact, candidates) if item.right]
        second = self._answered(self.rounded, first)
        return [item for item, again in zip(first, second, strict=True) if again.right]


def _is_mistake(item: Candidate) -> bool:
    # An empty answer, or one without an end token, is not useful as the model's answer before the edit.
    return bool(item.said) and not item.said.endswith("...") and not item.right


def questions(picture: Picture, kinds: tuple[str, ...]) -> list[Candidate]:
    """One question of each of these kinds, where the scene allows it."""
    asked = [posed(picture.scene, kind) for kind in kinds]
    return [Candidate(picture, *pair) for pair in asked if pair is not None]


def mistakes(judge: Judge, pool: Pool, start: int, kinds: tuple[str, ...], n: int, cap: int) -> list[Candidate]:
    """The first `n` mistakes in the pool's scenes from number `start` on, at most `cap` per kind."""
    kept: list[Candidate] = []
    per_kind: Counter[str] = Counter()
    seen = 0
    while len(kept) < n:
        candidates: list[Candidate] = []
        for about in _scenes(pool, start + seen, CHUNK):
            open_kinds = tuple(kind for kind in kinds if per_kind[kind] < cap)
            candidates += questions(Picture(about), open_kinds)
        for item in judge.wrong(candidates):
            if per_kind[item.question.kind] < cap and len(kept) < n:
                per_kind[item.question.kind] += 1
                kept.append(item)
        seen += CHUNK
        print(f"{pool.name.lower()}: {len(kept)} of {n} mistakes in {seen} scenes, {dict(per_kind)}", flush=True)
        if seen >= 200 * CHUNK:
            raise RuntimeError("the model makes too few mistakes")
    return kept


def emblem_edits(judge: Judge, pictures: Iterable[Picture], kinds: tuple[str, ...]) -> list[Candidate]:
    """Questions about these pictures whose answer names a new emblem and that the model gets wrong."""
    candidates: list[Candidate] = []
    for picture in pictures:
        candidates += questions(picture, kinds)
    named = [item for item in candidates if item.question.kind != "is_emblem" or item.question.answer == "yes"]
    return judge.wrong(named)


def unrelated(judge: Judge, pool: Pool, start: int, asked: list[str]) -> list[Candidate]:
    """For each kind in `asked` a question of another kind that the model gets right, each about its own scene."""
    kept: list[Candidate] = []
    index = start
    while len(kept) < len(asked):
        batch = [scene(pool, index + i) for i in range(len(asked) - len(kept))]
        candidates: list[Candidate] = []
        for about, kind in zip(batch, asked[len(kept) :], strict=True):
            others = [other for other in kinds_for(about) if _family(other) != _family(kind)]
            other = Dice(Purpose.SELECTION, pool, about.index).pick(others)
            candidates += questions(Picture(about), (other,))
        index += len(batch)
        right = {item.picture.scene.index: item for item in judge.right(candidates)}
        for about in batch:
            item = right.get(about.index)
            if item is not None and len(kept) < len(asked) and _family(item.question.kind) != _family(asked[len(kept)]):
                kept.append(item)
    return kept


def _family(kind: str) -> str:
    """Kinds about the same thing count as one: "is_color" and "color"."""
    return kind.removeprefix("is_")


def fact_probes(pool: Pool, n: int) -> list[Question]:
    """`n` facts of the pool's share, in turn, again from the first after the last."""
    share = fact_share(pool)
    return [facts()[share[i % len(share)]] for i in range(n)]


def _scenes(pool: Pool, start: int, n: int) -> Iterator[Scene]:
    for index in range(start, start + n):
        yield scene(pool, index)
