"""Anchors that come with the edits, where the user wrote none: each edit brings some, made of its own picture.

They depend on the recipe, the edits before and the edit itself, and its ledger line names them. So a stream that is cut
anywhere has the same anchors at every edit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from more_cli.editors.anchors import ANSWER_TOKENS, Anchor
from more_cli.errors import DataError
from more_cli.inputs.edits import Edit, Probe
from more_cli.inputs.images import ImageSource
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.ops.about import Corrected, Question
from more_cli.ops.anchors import Said, ask_once, identity
from more_cli.ops.auto_anchors import PICTURED, drawn, shipped
from more_cli.ops.held import Held
from more_cli.recipe.schema import Recipe
from more_cli.store.ledger import Ledger

PER_EDIT = 4
"""Largest number of anchors that an edit brings."""
OTHERS = 3
"""How many of them ask a question of an earlier edit, if there are so many; the others ask a neutral one."""


class Arrivals:
    """Chooses the questions that pictures of edits are asked."""

    def __init__(self, recipe: Recipe, ledger: Ledger) -> None:
        self._seed = recipe.seed
        self._ledger = ledger
        self._read = 0
        """Lines of the history that were read."""
        self._corrected = Corrected()
        self._asked: dict[str, Question] = {}
        self._neutral = shipped(recipe.anchors.questions, recipe.seed)
        self._uses = Counter[str]()
        """How often a question was used before."""

    def questions(self, edit: Edit, place: int, held: Held) -> list[Probe]:
        """Return what the first picture of an edit is asked, after the first `place` lines of the history.

        The questions that were used least come first. No edit so far is about them, nor this one.
        """
        room = min(PER_EDIT, PICTURED - held.pictured)
        if not edit.images or room <= 0:
            return []
        self._read_until(place)
        picture, own = edit.images[0], Corrected.of([edit])
        asked = drawn(self._asked, self._seed)
        others = self._free(asked, picture, held, Corrected.allows, own)
        neutral = self._free(self._neutral, picture, held, Corrected.allows_neutral, own)
        chosen = list(islice(others, min(OTHERS, room)))
        return [*chosen, *islice(neutral, room - len(chosen))]

    def _free(
        self,
        questions: Sequence[Question],
        picture: ImageSource,
        held: Held,
        rule: Callable[[Corrected, Question, ImageSource], bool],
        own: Corrected,
    ) -> Iterator[Probe]:
        """Yield the questions that the picture may be asked, those that were used least first."""
        about = self._corrected, own
        for question in sorted(questions, key=lambda question: self._uses[question.text]):
            probe = Probe(question.text, (picture,))
            if identity(probe) not in held.places and all(rule(each, question, picture) for each in about):
                yield probe

    def _read_until(self, place: int) -> None:
        for entry in self._ledger.history[self._read : place]:
            self._uses.update(anchor.question for anchor in entry.made)
            if entry.kind == "edit":
                edit = self._ledger.edit_of(entry)
                self._corrected.add(edit)
                for key, question in Question.of_edits([edit]).items():
                    known = self._asked.get(key, question)
                    wordings = tuple(dict.fromkeys((*known.wordings, *question.wordings)))
                    self._asked[key] = Question(known.text, wordings)
        self._read = place


def answered(runtime: Runtime, edit: Edit, questions: Iterable[Probe], said: Mapping[str, Said]) -> dict[Probe, Anchor]:
    """Return the questions with the base's answers, without those that it answers as the edit's own question.

    For `said` see `ask_once`.
    """
    found = dict[Probe, Anchor]()
    with suppress(DataError), runtime.base():  # a question that is too long for the model
        (wrong,) = runtime.generate([Query.of(edit)], ANSWER_TOKENS)
        for question in questions:
            anchor = ask_once(runtime, question, said)
            if anchor.tokens.tolist() != list(wrong):
                found[question] = anchor
    return found
