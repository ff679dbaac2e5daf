"""A stream of edits applied in memory, one after the other, as a session would apply them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from more_cli.editors.base import Editor, EditOutcome, EditRequest
from more_cli.editors.memory import Memory
from more_cli.inputs.edits import Edit


@dataclass
class Stream:
    """The result of a stream."""

    memory: Memory
    """The last margin of every edit, by its position from 1."""
    outcomes: list[EditOutcome] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def apply_stream(
    editor: Editor,
    edits: Sequence[Edit],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    joint: bool = False,
) -> Stream:
    """Apply edits in order, with the memory that a session would keep; the editor must be attached.

    With `joint` they are only admitted; a consolidation writes them.
    """
    stream = Stream(Memory(lambda number: EditRequest.of(edits[number - 1])))
    for number, edit in enumerate(edits, 1):
        started = time.perf_counter()
        context = stream.memory.context(number, edit.subject, edit.content)
        outcome = (editor.admit if joint else editor.edit)(EditRequest.of(edit), context)
        stream.seconds.append(time.perf_counter() - started)
        if outcome.status != "refused":
            stream.memory.add(number, edit.subject, edit.content)
        stream.memory.update(number, outcome.margins.items())
        stream.outcomes.append(outcome)
        on_progress(number, len(edits))
    return stream
