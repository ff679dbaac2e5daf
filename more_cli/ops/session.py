"""A session: the checkpoint, its state, its ledger, and the model with its editor."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from more_cli import __version__
from more_cli.checkpoint.reader import require_checkpoint
from more_cli.clock import timed
from more_cli.editors.base import EditOutcome, EditRequest
from more_cli.editors.more.editor import Consolidated, MoreEditor
from more_cli.editors.more.memory import Memory
from more_cli.errors import DataError, UsageError
from more_cli.inputs.edits import Edit
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime, load_runtime
from more_cli.ops.anchors import ask_anchors, cache_name, load_anchors
from more_cli.ops.base import open_base
from more_cli.ops.estimate import estimate, require
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import Entry, Status
from more_cli.store.ledger import Ledger, extend_digest
from more_cli.store.snapshots import replay_start
from more_cli.store.state import State, StateMeta, load_state, save_state
from more_cli.store.target import Target

SAVE_SECONDS = 30.0
"""Longest time between two saves of the sidecar while edits are made."""


class Session:
    """A state with its ledger; the model is loaded on first use."""

    def __init__(self, target: Target, state: State, machine: Machine, progress: Progress = no_progress) -> None:
        self.target = target
        self.state = state
        self.machine = machine
        self.progress = progress
        self._saved = state.meta.digest
        self.checkpoint = open_base(target, state)
        self.memory = Memory(self._recall)
        self.unwritten: int | None = None
        """Place of the first edit of a batch that no consolidation has written yet."""
        self.ledger = Ledger(target.folder, self._on_line, name=target.ledger_name)
        self.state = replay_start(state, self.ledger, target.sidecar)
        self.outdated = self.state is not state
        """Whether the sidecar on disk is from before a revert."""
        if self.ledger.has_reverts:
            self._rebuild_memory()
        self.editor = MoreEditor(state.meta.recipe, self.state.meta.sites, self.state.B, self.state.P)
        self._runtime: Runtime | None = None
        self.anchors = load_anchors(target.folder, state.meta.anchors) if state.meta.anchors else []

    @property
    def behind(self) -> int:
        """Number of ledger lines in force that the state lacks."""
        return len(self.ledger.history) - self.state.meta.edits

    @property
    def unsettled(self) -> bool:
        """Whether P still has to absorb the keys of the anchors."""
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
        """Free the memory of the model; it is loaded again on the next use."""
        self._runtime = None

    @contextmanager
    def attached(self, *, writing: bool = False, replay: bool = True) -> Iterator[int]:
        """Attach the editor to the model and apply the ledger lines that the sidecar lacks; yields how many.

        `writing` says that edits follow, so anchors are made ready. Without `replay` the state stays as it is.
        """
        with self.editor.attach(self.runtime):
            if self.anchors and (writing or self.behind or self.unsettled):
                cache = anchors_cache(self.target, self.state.meta, self.machine)
                if fresh := self.unsettled:
                    self._saved = ""
                self.editor.hold(ask_anchors(self.runtime, self.anchors, cache), fresh=fresh)
            yield self.replay() if replay else 0

    def consolidate(self, since: int) -> Consolidated:
        """Write the edits from place `since` on again where they do not hold."""
        context = self.memory.context(self.state.meta.edits + 1)
        batch = self.unwritten is not None and since <= self.unwritten
        return self.editor.consolidate([number for number in context.past if number >= since], context, batch=batch)

    def _on_line(self, entry: Entry) -> None:
        if entry.seq <= self.state.meta.edits:
            self._remember(entry.seq, entry)

    def _rebuild_memory(self) -> None:
        """Rebuild the memory after a revert, when a place in the history is no longer a line number."""
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
        self.memory.update(place, entry.looks)

    def _recall(self, number: int) -> EditRequest:
        return EditRequest.of(self.ledger.edit_of(self.ledger.history[number - 1]))

    def replay(self, until: int | None = None) -> int:
        """Apply the history's entries that the state lacks, in order, and return how many there were.

        With `until`, stop once the state has that many entries.
        """
        missing = self.ledger.history[self.state.meta.edits : until]
        for number, entry in enumerate(missing):
            self.progress(number, len(missing), f"replaying {entry.id}")
            self.repeat(entry)
        return len(missing)

    def repeat(self, entry: Entry) -> None:
        """Apply the first entry of the history that the state lacks."""
        if entry.kind == "consolidate":
            self.consolidate(entry.since)
        elif entry.status is not Status.REFUSED:  # a refused edit changed nothing
            self._learn(self.ledger.edit_of(entry), joint=entry.joint)
        self.count(entry)

    def count(self, entry: Entry) -> None:
        """Record that the state now contains this ledger entry."""
        self.state.meta.edits += 1
        self.state.meta.digest = extend_digest(self.state.meta.digest, entry)
        self._remember(self.state.meta.edits, entry)

    @timed("sidecar")
    def save(self) -> None:
        """Write the sidecar, unless it is up to date."""
        if self.state.meta.digest == self._saved:
            return
        take_over(self.state, self.editor)
        save_state(self.target.sidecar, self.state)
        self.outdated = False
        self._saved = self.state.meta.digest

    def apply(self, edit: Edit, *, joint: bool = False) -> EditOutcome:
        """Let the editor learn one correction or, if `joint`, accept it for the next consolidation.

        An edit that cannot be turned into a prompt is refused with the reason.
        """
        try:
            return self._learn(edit, joint=joint)
        except DataError as error:
            return EditOutcome("refused", 0.0, 0.0, "", "", False, 0, 0, reason=error.message)

    def commit_edit(self, edit: Edit, kept: Mapping[str, Any], *, joint: bool) -> Entry:
        """Apply one edit and append its ledger line: what is `kept` of the edit, and what was measured."""
        started = time.monotonic()
        outcome = self.apply(edit, joint=joint)
        measured = _measured(outcome) | {"joint": joint}
        if joint:
            measured |= dict.fromkeys(("nll_after", "answer_after", "right_after"))  # it is written later
        wall_ms = round(1000 * (time.monotonic() - started), 1)
        entry = self.ledger.append({**kept, **measured, "wall_ms": wall_ms, "versions": versions(self.machine)})
        self.count(entry)
        return entry

    def commit_consolidation(self, since: int) -> Entry:
        """Consolidate the edits from place `since` on, and append a ledger line about it."""
        self.progress(0, None, "consolidating")
        started = time.monotonic()
        done = self.consolidate(since)
        entry = self.ledger.append(
            {
                "kind": "consolidate",
                "id": f"consolidation-{len(self.ledger.history) + 1}",
                "status": Status.NOT_LEARNT if done.failing else Status.LEARNT,
                "since": since,
                "writes": done.writes,
                "cost": done.cost,
                "looks": list(done.looks.items()),
                "wall_ms": round(1000 * (time.monotonic() - started), 1),
                "versions": versions(self.machine),
            }
        )
        self.count(entry)
        return entry

    def machine_notes(self) -> list[str]:
        """Return what differs from the machine of the last edit, because a replay may then differ in its bytes."""
        if not self.ledger.entries:
            return []
        before, now = self.ledger.entries[-1].versions, versions(self.machine)
        changed = [f"{key} {before[key]} -> {now[key]}" for key in now if before.get(key, now[key]) != now[key]]
        return [f"differs from the last edit's machine: {', '.join(changed)}"] if changed else []

    def _learn(self, edit: Edit, *, joint: bool) -> EditOutcome:
        context = self.memory.context(self.state.meta.edits + 1, edit.subject, edit.content)
        return (self.editor.admit if joint else self.editor.edit)(EditRequest.of(edit), context)


def open_session(target: Target, machine: Machine, progress: Progress = no_progress) -> Session:
    """Open an existing state with its base and ledger.

    Raises:
        StateError: no checkpoint, no state, another base, or a damaged ledger.
    """
    require_checkpoint(target.model)  # first, since a mistyped folder has no state either
    return Session(target, load_state(target.sidecar), machine, progress)


def versions(machine: Machine) -> dict[str, str]:
    """Return everything that decides the bytes of an edit: versions, device, dtype and threads."""
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
    """Return the file that caches the base's answers to a state's anchors."""
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


def _measured(outcome: EditOutcome) -> dict[str, object]:
    return {
        "status": Status(outcome.status),
        "reason": outcome.reason,
        "nll_before": outcome.nll_before,
        "nll_after": outcome.nll_after,
        "answer_before": outcome.answer_before,
        "answer_after": outcome.answer_after,
        "right_after": outcome.right_after,
        "writes": outcome.writes,
        "sites": list(outcome.sites),
        "cost": outcome.cost,
        "looks": list(outcome.looks.items()),
    }


class Every:
    """Returns true once per so many ticks or so many seconds, whichever comes first."""

    def __init__(self, ticks: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.ticks, self.seconds, self.clock = ticks, seconds, clock
        self._count, self._since = 0, clock()

    def __call__(self) -> bool:
        """Count one tick and return whether it is time."""
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
