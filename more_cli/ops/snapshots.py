"""Snapshots that are taken by themselves while edits are applied, so that a later revert replays few of them."""

from __future__ import annotations

import math
import time
from contextlib import suppress

from more_cli.errors import ResourceError
from more_cli.files import disk_errors
from more_cli.ops.session import Session
from more_cli.store.snapshots import snapshots_folder, take_snapshot
from more_cli.store.state import State

BYTES_A_SECOND = 10_000_000
"""Bytes of snapshots that are written per second of editing. A disk is about fifty times as fast: edits hardly wait."""


class Snapshots:
    """Takes snapshots of a session's state before its edits.

    A small state is written before every edit, a large one after some seconds of editing, and the one before the last
    edit always: undoing that one then replays nothing.
    """

    def __init__(self, session: Session) -> None:
        """Remove what killed writers of snapshots left behind; the session has the writer lock."""
        self._session = session
        self._latest = -math.inf
        """When the last snapshot was taken."""
        self._before: State | None = None
        """The state before the last edit, unless it is empty or written."""
        folder = snapshots_folder(session.target.folder)
        with disk_errors(folder):
            for path in folder.glob(".*.part"):
                path.unlink(missing_ok=True)

    def before_edit(self) -> None:
        """Remember the state as it is, and take a snapshot of it if the last one was long enough ago."""
        session = self._session
        if not session.state.meta.edits:
            return
        self._before = state = session.editor.frozen(session.state.meta)
        size = sum(tensor.nbytes for kind in (state.B, state.P, state.A) for tensor in kind.values())
        if (time.monotonic() - self._latest) * BYTES_A_SECOND >= size:
            self.take()

    def take(self) -> None:
        """Write the state before the last edit, unless it is written."""
        if self._before is None:
            return
        with suppress(ResourceError):  # no space: the edits go on, and undoing them takes longer
            take_snapshot(self._session.target, self._session.ledger, self._before)
        self._before, self._latest = None, time.monotonic()
