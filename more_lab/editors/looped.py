"""Rivals in M-ORE's check-then-write loop, with its rehearsal, its stopping rule and its anchors: the loop without P.

The published rivals write a correction once, or until its own loss is low, and never look at earlier ones. M-ORE's
default checks and repeats, so a comparison with them does not say what P does. Here a rival keeps its own way to write,
and the loop is that of `more_cli.editors.more.loop`:

1. Score the new edit and K past edits at risk. An edit fails where its least sure target token leads by less than the
   margin.
2. Write what fails, with k_a anchors where there are any, and score again.
3. Stop when nothing fails or, after enough draws, when the new edit holds; at the latest after the last write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.more.rehearsal import EncodedEdits, draw, draw_anchors
from more_cli.editors.outcome import EditScore, edit_scores, outcome, refused
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.recipe.files import load_recipe
from more_cli.recipe.schema import Recipe
from more_lab.editors.joint import JointEditor
from more_lab.editors.work import Work
from more_lab.editors.wrapped import Wrapped, register


class Looped(Wrapped[EncodedEdits]):
    """A rival that writes in M-ORE's loop."""

    recipe: Recipe

    def __init__(self, inner: JointEditor, recipe: Recipe) -> None:
        super().__init__(inner)
        self.recipe = recipe
        self.capabilities = inner.capabilities | {"anchors"}
        self.anchors: Sequence[Anchor] = ()
        """Held ones; every write draws some of them."""
        self._protected = False

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Put the rival's effect into the model; on leaving, the model is restored."""
        with self.working_on(runtime, EncodedEdits(runtime)), self.inner.attach(runtime):
            yield

    def hold(self, anchors: Sequence[Anchor], *, fresh: bool) -> None:
        """Train on some of these in every write; what the rival knows of the base is completed by them, once."""
        self.anchors = anchors
        if not self._protected:
            self.inner.protect(anchors)
            self._protected = True

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Write one correction, and past ones that fail, until they hold; nothing changes if that is not finite."""
        _, encoded = self.working
        encoded.put(context.number, request)
        return Turns(self, context, encoded).run()

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        """Restore what the rival's `fit` made; anchors are to be learnt from again."""
        super().load_fitted(tensors)
        self._protected = False

    def constants(self) -> dict[str, Any]:
        """Return the rival's numbers, and the loop's."""
        recipe = self.recipe
        rehearsal = recipe.rehearsal.model_dump(mode="json")
        return super().constants() | {
            "loop": {"margin": recipe.margin, "anchors": recipe.anchors.size, "rehearsal": rehearsal}
        }


@dataclass
class Turns:
    """The turns of one edit: each writes what fails, and scores again."""

    editor: Looped
    context: EditContext
    encoded: EncodedEdits
    turn: int = 0
    """Writes so far."""
    work: Work = field(default_factory=Work)
    margins: dict[int, float] = field(default_factory=dict)
    """Last margin of every edit that was scored."""
    scores: dict[int, EditScore] = field(default_factory=dict)
    """Scores of the last pass."""

    def run(self) -> EditOutcome:
        """Write until nothing fails or, after enough draws, the new edit holds."""
        new, inner = self.context.number, self.editor.inner
        before = inner.snapshot()
        self.scores = self._score([new])
        first = self.scores[new]
        self.scores |= self._score(self._drawn())
        inner.begin()
        while self.turn < inner.most_writes() and not self._done():
            failing = [number for number in self._failing() if number != new]
            chosen = [new, *failing] if inner.writes_rest or new in self._failing() else failing
            self.turn += 1
            if reason := self._write(chosen):
                inner.restore(before)
                return refused(first, reason, passes=self.work.passes, cost=self.work.cost)
        last, work = self.scores[new], self.work
        made = outcome(self.encoded.runtime, first, last, writes=self.turn, passes=work.passes, cost=work.cost)
        return replace(made, margins={number: round(margin, 3) for number, margin in self.margins.items()})

    def _write(self, chosen: Sequence[int]) -> str:
        """Write these edits once and score them again, and return why that failed, or ""."""
        new, recipe = self.context.number, self.editor.recipe
        anchors = draw_anchors(self.editor.anchors, recipe.anchors.size, new, self.turn)
        try:
            self.editor.inner.write_together([self._get(number) for number in chosen], anchors, self.work)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return "the system of the write has no solution"
        numbers = dict.fromkeys([new, *chosen, *self._drawn(chosen)])
        self.scores = self._score(list(numbers))
        finite = all(math.isfinite(score.nll) for score in self.scores.values())
        return "" if finite else "a write is not finite"

    def _score(self, numbers: Sequence[int]) -> dict[int, EditScore]:
        passes = self.encoded.runtime.score_all(map(self._get, numbers))
        scores = dict(zip(numbers, (score for scored in passes for score in edit_scores(scored)), strict=True))
        self.margins |= {number: score.margin for number, score in scores.items()}
        self.work.forward(len(numbers))
        return scores

    def _failing(self) -> list[int]:
        return [number for number, score in self.scores.items() if score.margin < self.editor.recipe.margin]

    def _done(self) -> bool:
        failing, enough = self._failing(), self.turn + 1 >= self.editor.recipe.rehearsal.draws
        return not failing or (enough and self.context.number not in failing)

    def _drawn(self, taken: Sequence[int] = ()) -> list[int]:
        """Return the past edits to score now; none once enough were drawn."""
        rehearsal, new = self.editor.recipe.rehearsal, self.context.number
        if self.turn >= rehearsal.draws:
            return []
        return draw(self.context.past.updated(self.margins, new), new, self.turn, rehearsal.size, taken=taken)

    def _get(self, number: int) -> Encoded:
        return self.encoded.get(number, self.context)


def _loop(rival: JointEditor) -> Looped:
    """Put a rival into the loop, with the loop's numbers of the default recipe."""
    return Looped(rival, load_recipe("default"))


ft_l = register("ft-l", "loop", _loop)
lora = register("lora", "loop", _loop)
mend = register("mend", "loop", _loop)
alphaedit = register("alphaedit", "loop", _loop)
memit = register("memit", "loop", _loop)
