"""What every command opens: the checkpoint, its state, its ledger, and the model with its editor."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch

from more_cli import __version__
from more_cli.checkpoint.reader import require_checkpoint
from more_cli.clock import timed
from more_cli.editors.base import EditOutcome, EditRequest
from more_cli.editors.more.editor import Consolidated, MoreEditor
from more_cli.editors.more.memory import Memory
from more_cli.errors import DataError, UsageError
from more_cli.evaluation.streams import request_of
from more_cli.inputs.edits import Edit
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime, load_runtime
from more_cli.ops.anchors import ask_anchors, cache_name, load_anchors
from more_cli.ops.estimate import estimate, require
from more_cli.ops.opening import open_base
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import Entry, Status
from more_cli.store.ledger import Ledger, extend
from more_cli.store.snapshots import current
from more_cli.store.state import State, StateMeta, load_state, save_state
from more_cli.store.target import Target as Target
from more_cli.store.target import locate as locate


class Session:
    """A state brought up to its ledger, with the model loaded only once something needs it."""

    def __init__(self, target: Target, state: State, machine: Machine, progress: Progress = no_progress) -> None:
        self.target = target
        self.state = state
        self.machine = machine
        self.progress = progress
        self._saved = state.meta.digest
        self.checkpoint = open_base(target, state)
        self.memory = Memory(self._recall)
        self.unwritten: int | None = None
        """Place of the first edit that waits for a consolidation to write it."""
        self.ledger = Ledger(target.folder, self._on_line, name=target.journal)
        self.state = current(state, self.ledger, target.sidecar)
        self.outdated = self.state is not state
        """Whether the sidecar on disk is from before a revert."""
        if self.ledger.rewritten:
            self._recollect()
        self.editor = MoreEditor(state.meta.recipe, self.state.meta.sites, self.state.B, self.state.P)
        self._runtime: Runtime | None = None
        self.anchors = load_anchors(target.folder, state.meta.anchors) if state.meta.anchors else []

    @property
    def behind(self) -> int:
        """Entries of the ledger's history that the state does not have yet."""
        return len(self.ledger.history) - self.state.meta.edits

    @property
    def unsettled(self) -> bool:
        """Whether the state is from before `init` showed it its anchors."""
        return bool(self.anchors) and self.editor.untouched

    @property
    def runtime(self) -> Runtime:
        """The loaded model."""
        if self._runtime is None:
            meta = self.state.meta
            needed = estimate(self.checkpoint, meta.sites, meta.recipe, self.machine, anchors=len(self.anchors))
            require(needed, self.checkpoint)
            self._runtime = load_runtime(
                self.checkpoint, self.machine, system=meta.recipe.system, reserve=needed.beside_weights
            )
        return self._runtime

    def unload(self) -> None:
        """Let go of the model, whose memory another one needs; it is loaded again when something asks for it."""
        self._runtime = None

    @contextmanager
    def attached(self, *, writing: bool = False) -> Iterator[int]:
        """Lend the model to the editor, after replaying what the ledger has and the sidecar does not: how many.

        With `writing`, edits will follow: what they need beside the model is made ready.
        """
        with self.lent(writing=writing):
            yield self.replay()

    @contextmanager
    def lent(self, *, writing: bool = True) -> Iterator[None]:
        """Lend the model to the editor, with the state as it is."""
        with self.editor.attach(self.runtime):
            if self.anchors and (writing or self.behind or self.unsettled):
                cache = anchors_cache(self.target, self.state.meta, self.machine)
                anchors = ask_anchors(self.runtime, self.anchors, cache)
                if self.unsettled:
                    self.editor.settle(anchors)
                    self._saved = ""
                self.editor.hold(anchors)
            yield

    def consolidate(self, since: int) -> Consolidated:
        """Write the edits from place `since` on once more where they do not hold."""
        context = self.memory.context(self.state.meta.edits + 1)
        batch = self.unwritten is not None and since <= self.unwritten
        return self.editor.consolidate([number for number in context.past if number >= since], context, batch=batch)

    def _on_line(self, entry: Entry) -> None:
        if entry.seq <= self.state.meta.edits:
            self._remember(entry.seq, entry)

    def _recollect(self) -> None:
        """Build the memory anew, for a history in which places are not line numbers."""
        self.memory, self.unwritten = Memory(self._recall), None
        for place, entry in enumerate(self.ledger.history[: self.state.meta.edits], 1):
            self._remember(place, entry)

    def _remember(self, place: int, entry: Entry) -> None:
        if entry.kind == "edit" and entry.status is not Status.REFUSED:
            self.memory.add(place, entry.subject, entry.content)
            if entry.joint and self.unwritten is None:
                self.unwritten = place
        if entry.kind == "consolidate" and self.unwritten is not None and entry.since <= self.unwritten:
            self.unwritten = None
        self.memory.see(place, entry.looks)

    def _recall(self, number: int) -> EditRequest:
        return request_of(self.ledger.edit_of(self.ledger.history[number - 1]))

    def replay(self, until: int | None = None) -> int:
        """Apply the history's entries past the state again, in order, and return how many there were.

        With `until` the state ends with that many entries, else with all.
        """
        missing = self.ledger.history[self.state.meta.edits : until]
        for number, entry in enumerate(missing):
            self.progress(number, len(missing), f"replaying {entry.id}")
            self.repeat(entry)
        return len(missing)

    def repeat(self, entry: Entry) -> None:
        """Apply the first of the history's entries past the state again."""
        if entry.kind == "consolidate":
            self.consolidate(entry.since)
        elif entry.status is not Status.REFUSED:  # which left no trace
            self._learn(self.ledger.edit_of(entry), joint=entry.joint)
        self.count(entry)

    def count(self, entry: Entry) -> None:
        """Note that the state now contains this ledger entry."""
        self.state.meta.edits += 1
        self.state.meta.digest = extend(self.state.meta.digest, entry)
        self._remember(self.state.meta.edits, entry)

    @timed("sidecar")
    def save(self) -> None:
        """Write the sidecar, unless it holds all this already."""
        if self.state.meta.digest == self._saved:
            return
        take_over(self.state, self.editor)
        save_state(self.target.sidecar, self.state)
        self.outdated = False
        self._saved = self.state.meta.digest

    def apply(self, edit: Edit, *, joint: bool = False) -> EditOutcome:
        """Let the editor learn one correction or, if `joint`, take note of it for the next consolidation.

        What cannot be turned into a prompt is refused with the reason.
        """
        try:
            return self._learn(edit, joint=joint)
        except DataError as error:
            return EditOutcome("refused", 0.0, 0.0, "", "", False, 0, 0, reason=error.message)

    def _learn(self, edit: Edit, *, joint: bool) -> EditOutcome:
        context = self.memory.context(self.state.meta.edits + 1, edit.subject, edit.content)
        return (self.editor.admit if joint else self.editor.edit)(request_of(edit), context)


def open_session(target: Target, machine: Machine, progress: Progress = no_progress) -> Session:
    """Open an existing state with its base and ledger.

    Raises:
        StateError: no checkpoint, no state, another base, or a damaged ledger.
    """
    require_checkpoint(target.model)  # before the state: a mistyped folder has neither
    return Session(target, load_state(target.sidecar), machine, progress)


def versions(machine: Machine) -> dict[str, str]:
    """Return what decides the bytes of an edit: versions, device, dtype and threads."""
    return {
        "more": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "numpy": version("numpy"),
        "device": machine.place,
        "dtype": machine.dtype,
        "threads": str(torch.get_num_threads()),
    }


def anchors_cache(target: Target, meta: StateMeta, machine: Machine) -> Path:
    """Return the file for what the base says about a state's anchors."""
    return (
        target.folder
        / "cache"
        / cache_name(meta.anchors, meta.base, meta.template, meta.recipe.system, versions(machine))
    )


def take_over(state: State, editor: MoreEditor) -> None:
    """Take the editor's tensors and site descriptions into the state."""
    tensors = editor.state_dict()
    state.meta.sites = editor.records
    for site in state.meta.sites:
        state.B[site.name], state.P[site.name] = tensors[f"{site.name}.B"], tensors[f"{site.name}.P"]


class Every:
    """Says when it is time again: after so many ticks or so many seconds, whichever comes first."""

    def __init__(self, ticks: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.ticks, self.seconds, self.clock = ticks, seconds, clock
        self._count, self._since = 0, clock()

    def __call__(self) -> bool:
        """Count one tick and tell whether it is time."""
        self._count += 1
        if self._count < self.ticks and self.clock() - self._since < self.seconds:
            return False
        self._count, self._since = 0, self.clock()
        return True


def free_of_adapters(target: Target) -> None:
    """Keep the state outside the checkpoint folder, where `from_pretrained` and other tools would find it."""
    if target.sidecar.resolve().parent == target.model.resolve():
        raise UsageError(
            f"the state `{target.sidecar}` would lie inside the checkpoint folder", "put it beside or elsewhere"
        )
