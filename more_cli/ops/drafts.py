"""Drafts: a state that is built line by line inside a state's folder, and takes its place only when it is complete.

`revert`, `combine` and `rebase` work in one. An interrupted draft goes on from its last saved state: lines that its own
ledger has are replayed, the others are applied again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from more_cli.clock import Every
from more_cli.errors import DataError, StateError
from more_cli.inputs.images import ImageSource
from more_cli.ops.commit import compact_if_due
from more_cli.ops.session import SAVE_SECONDS, Session
from more_cli.ops.signals import Interrupted, Stop
from more_cli.ops.snapshots import Snapshots
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger
from more_cli.text import counted, verb

SAVE_EVERY = 10
"""Ledger entries applied to a draft between two saves of its state."""
Step = TypeVar("Step")


@dataclass(frozen=True)
class Work:
    """What is applied again."""

    edits: int
    replayed: int
    """Of these, the ones whose result stays: they are applied again since no snapshot has it."""
    joint: int
    """How often edits are written together again."""
    seconds: float
    """As long as their lines of the ledger took; loading the model is not counted."""

    @classmethod
    def of(cls, lines: Sequence[Entry], replayed: int) -> Work:
        """Return the work of applying these lines of a ledger again; the result of the first `replayed` ones stays."""
        edits = [line.kind == "edit" for line in lines]
        joint = sum(line.joint_writing for line in lines)
        return cls(sum(edits), sum(edits[:replayed]), joint, sum(line.wall_ms or 0.0 for line in lines) / 1000)

    def __str__(self) -> str:
        """Return it in words, such as `5 edits are applied again: about 6 s`."""
        if not (self.edits or self.joint):
            return "no edit is applied again"
        replayed = f", {self.replayed:,} of them since no snapshot has their result" if self.replayed else ""
        again = f"{counted(self.edits, 'edit')} {verb(self.edits, 'is', 'are')} applied again" if self.edits else ""
        joint = f"edits are written together again {counted(self.joint, 'time')}" if self.joint else ""
        return f"{again}{replayed}{', and ' if again and joint else ''}{joint}: about {math.ceil(self.seconds):,} s"


def finish(draft: Session, kept: int, again: Sequence[Step], apply: Callable[[Step], None], stop: Stop) -> None:
    """Replay the lines that a draft's ledger has and its state lacks, and apply what comes after them.

    `kept` is the number of lines that the draft began with; `apply` adds one line to its ledger.
    """
    own, total = draft.ledger, kept + len(again)
    again = again[len(made_lines(own, kept)) :]
    if not (again or draft.behind or draft.lacks_anchor_keys or draft.compaction_due):
        return
    due, snapshots = Every(SAVE_SECONDS, SAVE_EVERY), Snapshots(draft)
    # Not saved after an error, which may have struck inside a write: then the draft stays as last saved.
    with suppress(Interrupted), draft.attached(writing=True, replay=False):
        for place in stop.before_each(range(draft.state.meta.edits, len(own.history))):
            entry = own.history[place]
            draft.progress(place, total, entry.id)
            snapshots.before_edit()
            draft.repeat(entry)
            if due():
                draft.save()
        compact_if_due(draft, stop)
        for step in stop.before_each(again):
            snapshots.before_edit()
            apply(step)
            compact_if_due(draft, stop)
            if due():
                draft.save()
        snapshots.take()
        draft.save()


def made_lines(own: Ledger, kept: int) -> list[int]:
    """Return the places in a draft of the lines that were applied again; compactions come by themselves."""
    kinds = enumerate(own.history.kinds(), 1)
    return [place for place, (kind, _) in kinds if place > kept and kind != "compact"]


def require_images(images: Iterable[ImageSource], otherwise: str) -> None:
    """Read images before anything is written; `otherwise` begins the message where one cannot be read.

    Raises:
        StateError, DataError: one is missing or has changed.
    """
    try:
        for image in images:
            image.read()
    except (StateError, DataError) as error:
        what = f"{otherwise}: {error.message}"
        raise type(error)(what, "restore the image, then run the command again") from None


def drafts(folder: Path) -> list[Path]:
    """Return the files of unfinished reverts, combinations and rebases."""
    commands = ("revert", "combine", "rebase")
    names = [f"{command}-*.{kind}" for command in commands for kind in ("more", "jsonl")]
    return sorted(path for name in (*names, *(f".{each}-*" for each in commands)) for path in folder.glob(name))


def drop_drafts(folder: Path) -> None:
    """Remove these files: once the ledger has another line, none of them can be continued."""
    for path in drafts(folder):
        path.unlink(missing_ok=True)
