"""A stream of corrections in memory: applied one after the other, scored after the last (protocol `final`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from more_cli.editors.base import Editor, EditOutcome, EditRequest
from more_cli.editors.more.memory import Memory
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Query


@dataclass
class Stream:
    """A stream that was applied."""

    memory: Memory
    """What was seen of the edits, by their position from 1."""
    outcomes: list[EditOutcome] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def request_of(edit: Edit) -> EditRequest:
    """Return what an editor gets to see of an edit."""
    return EditRequest(edit.id, Query(edit.images, edit.question), edit.target)


def apply_stream(
    editor: Editor,
    edits: Sequence[Edit],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    joint: bool = False,
) -> Stream:
    """Apply edits in order with what a session would remember of them; the editor must be attached.

    With `joint` they are only admitted, for a consolidation to write.
    """
    stream = Stream(Memory(lambda number: request_of(edits[number - 1])))
    for number, edit in enumerate(edits, 1):
        started = time.perf_counter()
        context = stream.memory.context(number, edit.subject, edit.content)
        outcome = (editor.admit if joint else editor.edit)(request_of(edit), context)
        stream.seconds.append(time.perf_counter() - started)
        if outcome.status != "refused":
            stream.memory.add(number, edit.subject, edit.content)
        stream.memory.see(number, outcome.looks.items())
        stream.outcomes.append(outcome)
        on_progress(number, len(edits))
    return stream
