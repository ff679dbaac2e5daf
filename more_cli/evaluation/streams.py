"""A stream of edits applied in memory, as a session would apply them: the loop of every run and calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from more_cli.editors.base import Editor, EditOutcome, EditRequest, Forced
from more_cli.editors.memory import Memory
from more_cli.editors.more.editor import Consolidated, MoreEditor
from more_cli.errors import DataError
from more_cli.inputs.edits import Edit

Writing = Literal["online", "batch", "all", "anew"]
"""How edits are written: each as it comes (`online`), or as `more edit` does with `--batch`, `--consolidate all` or
`--consolidate anew`."""


def writes_together(editor: Editor) -> bool:
    """Return whether an editor can write several edits at once, at the end of a stream."""
    return isinstance(editor, MoreEditor)


class Stream:
    """Edits that an attached editor applies in order, with the memory that a session would keep."""

    def __init__(self, editor: Editor, edits: Sequence[Edit], writing: Writing = "online") -> None:
        self.editor, self.edits, self.writing = editor, edits, writing
        self.memory = Memory(lambda number: EditRequest.of(edits[number - 1]))
        """The last margin of every edit, by its number from 1."""

    def run(self) -> list[EditOutcome]:
        """Apply all edits, and write at the end what is written then."""
        outcomes = []
        for number in range(1, len(self.edits) + 1):
            outcomes.append(self.edit(number))
            self.compact(number)
        self.finish()
        return outcomes

    def edit(self, number: int) -> EditOutcome:
        """Apply an edit, or only admit it if all are written at the end; refuse it if it makes no prompt."""
        edit = self.edits[number - 1]
        learn = self.editor.admit if self.writing == "batch" else self.editor.edit
        try:
            outcome = learn(EditRequest.of(edit), self.memory.context(number, edit.subject, edit.content))
        except DataError as error:
            unknown = Forced(0.0, "", right=False)
            outcome = EditOutcome("refused", unknown, unknown, 0, 0, reason=error.message)
        self.remember(number, outcome.status, outcome.margins.items())
        return outcome

    def compact(self, number: int) -> Consolidated | None:
        """Write all standing edits together if there are enough after this one, as a session does; None if not."""
        editor, memory = self.editor, self.memory
        if self.writing == "batch" or not isinstance(editor, MoreEditor):
            return None
        if not memory.compaction_due(editor.recipe.compact):
            return None
        context = memory.context(number + 1)
        done = editor.write_anew(list(context.past), [], context)
        self.remember_compaction(number, done.margins)
        return done

    def remember_compaction(self, number: int, margins: Mapping[int, float]) -> None:
        """Remember that these edits were written together after this one."""
        self.memory.update(number, margins.items())
        self.memory.together = len(margins)

    def remember(self, number: int, status: str, margins: Iterable[tuple[int, float]]) -> None:
        """Remember an edit that was applied, and the margins that were measured with it."""
        edit = self.edits[number - 1]
        if status != "refused":
            self.memory.add(number, edit.subject, edit.content)
        self.memory.update(number, margins)

    def finish(self) -> Consolidated | None:
        """After the last edit, write those that stand together, or again where they fail; None if each was written."""
        if self.writing == "online":
            return None
        assert isinstance(self.editor, MoreEditor)
        context = self.memory.context(len(self.edits) + 1)
        numbers = list(context.past)
        if self.writing == "batch":
            return self.editor.write_batch(numbers, numbers, context)
        if self.writing == "anew":
            return self.editor.write_anew(numbers, [], context)
        return self.editor.consolidate(numbers, context)
