"""A session: the checkpoint, its state, its ledger, and the model with its editor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from more_cli.checkpoint.folder import require_checkpoint
from more_cli.clock import Every, timed
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.more.editor import Consolidated, MoreEditor
from more_cli.editors.more.unfinished import NOWHERE, Unfinished
from more_cli.inputs.edits import Edit
from more_cli.model.loading import Blueprint, load_blueprint, load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.versions import versions
from more_cli.ops.anchors import cache_name, read_cache, write_cache
from more_cli.ops.base import open_base
from more_cli.ops.estimate import estimate, require
from more_cli.ops.session_anchors import SessionAnchors
from more_cli.ops.standing import Standing
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger, extend_digest
from more_cli.store.snapshots import replay_start
from more_cli.store.state import State, open_state, save_state
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.system.memory import give_back_large_blocks

SAVE_SECONDS = 30.0
"""Longest time between two saves of the sidecar while edits are made."""


@dataclass(frozen=True)
class Try:
    """How one edit is applied."""

    joint: bool = False
    """Only its key is absorbed: the next consolidation writes it together with others."""
    retry: bool = False
    """It failed before and is tried again."""
    settings: tuple[str, ...] = ()
    """Changes of the recipe for this try alone, as KEY=VALUE."""

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Return how the edit of a ledger line was applied."""
        return cls(entry.joint, entry.retry, tuple(entry.settings))

    def fields(self) -> dict[str, Any]:
        """Return the fields of its ledger line."""
        return {"joint": self.joint, "retry": self.retry, "settings": list(self.settings)}


class Session:
    """A state with its ledger; the model is loaded on first use."""

    def __init__(
        self,
        target: Target,
        state: State,
        machine: Machine,
        progress: Progress = no_progress,
        runtime: Runtime | None = None,
        cache: Path | None = None,
    ) -> None:
        """Read the ledger of a state.

        `cache` is the folder of what can be computed again, the state's own if None.
        """
        self.target = target
        self.state = state
        self.machine = machine
        self.progress = progress
        self._saved = state.meta.digest
        self.checkpoint = open_base(target, state)
        self.standing = Standing(self._recall)
        self.ledger = Ledger(target.folder, self._on_line, name=target.ledger_name)
        self.state = replay_start(state, self.ledger, target.sidecar)
        self.outdated = self.state is not state
        """Whether the sidecar on disk is from before a revert."""
        if self.ledger.has_reverts:
            self._read_again()
        self._runtime = runtime
        self.blueprint: Blueprint | None = None
        """The checkpoint without its weights, if the caller has it."""
        self.compacts = True
        """Whether this call writes all standing edits together where there are enough of them."""
        self._cache = cache or target.folder / "cache"
        self.anchors = SessionAnchors(self.state.meta, self.ledger, machine, self._cache)

    @cached_property
    def editor(self) -> MoreEditor:
        """The editor with the tensors of the state; until then a file's tensors stay on the disk."""
        state = self.state
        editor = MoreEditor(state.meta.recipe, state.meta.sites, state.B, state.P, state.A)
        editor.progress = self.progress
        return editor

    @property
    def behind(self) -> int:
        """Number of ledger lines in force that the state lacks."""
        return len(self.ledger.history) - self.state.meta.edits

    @property
    def lacks_anchor_keys(self) -> bool:
        """Whether P still has to absorb the keys of the anchors; those that edits brought come with the edits."""
        later = self.state.meta.arriving and self.state.meta.edits > 0
        return bool(self.anchors.questions) and self.editor.untouched and not later

    @property
    def runtime(self) -> Runtime:
        """The loaded model."""
        if self._runtime is None:
            meta = self.state.meta
            blueprint = self.blueprint or load_blueprint(self.checkpoint, **meta.recipe.asking)
            needed = estimate(
                self.checkpoint,
                meta.sites,
                meta.recipe,
                self.machine,
                anchors=self.anchors.most,
                blueprint=blueprint,
            )
            require(needed, self.checkpoint)
            self.progress(0, None, "loading the model")
            self._runtime = load_runtime(
                self.checkpoint, self.machine, blueprint=blueprint, reserve=needed.beside_weights
            )
        return self._runtime

    def catch_up(self) -> State:
        """Apply the ledger lines that the sidecar lacks, if there are any, and return the state; it is not saved.

        The tensors of a state that lacks nothing stay on the disk: a command that goes from site to site has one site
        in memory at a time.
        """
        give_back_large_blocks()
        if self.behind:
            with self.attached():
                pass
            update_state(self.state, self.editor)
        return self.state

    def unload(self) -> None:
        """Free the memory of the model; it is loaded again on the next use."""
        self._runtime = None

    @contextmanager
    def attached(self, *, writing: bool = False, replay: bool = True) -> Iterator[int]:
        """Attach the editor to the model and apply the ledger lines that the sidecar lacks; yields how many.

        `writing` says that edits follow, so anchors are made ready. Without `replay` the state stays as it is.
        """
        with self.editor.attach(self.runtime):
            if self.anchors.questions and (writing or self.behind or self.lacks_anchor_keys):
                self._hold()
            yield self.replay() if replay else 0
            self.anchors.keep(self.editor)

    def _hold(self, absorb_from: int | None = None) -> None:
        """Let the editor hold the anchors; on a state without keys P absorbs those of all, else from a place on."""
        if fresh := self.lacks_anchor_keys:
            self._saved = ""
        self.anchors.give(self.editor, self.runtime, fresh=fresh, absorb_from=None if fresh else absorb_from)

    def take_anchors(self, digest: str) -> None:
        """Hold another set of anchors from now on, the present ones and more; P absorbs the keys of the new ones."""
        self._hold(absorb_from=self.anchors.load(digest))

    @property
    def compaction_due(self) -> bool:
        """Whether all standing edits are to be written together before the next line."""
        standing, first = self.standing, self.state.meta.recipe.compact
        return self.compacts and not standing.unwritten and standing.memory.compaction_due(first)

    def compact(self) -> Consolidated:
        """Write all standing edits together, as if they had come at once; keep what was if that is better.

        An interrupted compaction of the same edits continues.
        """
        context = self.standing.memory.context(self.state.meta.edits + 1)
        with self._continued("compact"):
            return self.editor.write_anew(list(context.past), [], context)

    def consolidate(self, since: int, *, anew: bool = False) -> Consolidated:
        """Write the edits from place `since` on again where they do not hold, or all of these `anew`.

        Edits of a batch that are among them are written for the first time. An interrupted consolidation continues.
        """
        context = self.standing.memory.context(self.state.meta.edits + 1)
        numbers = [number for number in context.past if number >= since]
        unwritten = self.standing.unwritten
        new = [number for number in unwritten if number in numbers]
        with self._continued("consolidate", since, anew):
            if anew:
                return self.editor.write_anew(numbers, new, context)
            if unwritten and since <= unwritten[0]:
                return self.editor.write_batch(numbers, new, context)
            return self.editor.consolidate(numbers, context)

    @contextmanager
    def _continued(self, *how: object) -> Iterator[None]:
        """Let a write of many edits continue an interrupted one of the same edits, and be kept until it ends."""
        meta = self.state.meta
        edits = self.ledger.head, meta.edits, self.anchors.digest
        facts = how, edits, meta.base, meta.template, meta.recipe.canonical(), versions(self.machine)
        path, due = self._cache / cache_name(*facts, kind="unfinished"), Every(SAVE_SECONDS)

        def save(tensors: Callable[[], dict[str, Tensor]]) -> None:
            if due():
                write_cache(path, tensors())

        self.editor.unfinished = Unfinished(lambda: read_cache(path), save)
        yield
        self.editor.unfinished = NOWHERE
        with suppress(OSError):
            path.unlink()

    def _on_line(self, entry: Entry) -> None:
        if entry.seq <= self.state.meta.edits:
            self.standing.take(entry.seq, entry)

    def _read_again(self) -> None:
        """Read the history after a revert, when a place in it is no longer a line number."""
        self.standing = Standing(self._recall)
        for place, entry in enumerate(self.ledger.history[: self.state.meta.edits], 1):
            self.standing.take(place, entry)

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
            self.consolidate(entry.since, anew=entry.anew)
        elif entry.kind == "compact":
            self.compact()
        elif entry.kind == "anchors":
            self.take_anchors(entry.content)
        else:
            edit, attempt, made = self.ledger.edit_of(entry), Try.of(entry), self.ledger.made_of(entry)
            self.anchors.release(self.editor, edit)
            self.anchors.bring_again(self.editor, self.runtime, made)
            if entry.status is not Status.REFUSED:  # a refused edit changed nothing but the anchors
                learn = self.editor.admit if attempt.joint else self.editor.edit
                learn(EditRequest.of(edit), self.context(edit, attempt))
        self.count(entry)

    def count(self, entry: Entry) -> None:
        """Record that the state now contains this ledger entry."""
        self.state.meta.edits += 1
        self.state.meta.digest = extend_digest(self.state.meta.digest, (entry.id, entry.content))
        self.standing.take(self.state.meta.edits, entry)

    @timed("sidecar")
    def save(self) -> None:
        """Write the sidecar, unless it is up to date."""
        if self.state.meta.digest == self._saved:
            return
        update_state(self.state, self.editor)
        save_state(self.target.sidecar, self.state)
        self.outdated = False
        self._saved = self.state.meta.digest

    def context(self, edit: Edit, attempt: Try) -> EditContext:
        """Return what the editor may use to learn the next edit: past edits, and the settings of this try."""
        number = self.state.meta.edits + 1
        context = self.standing.memory.context(number, edit.subject, edit.content, retry=attempt.retry)
        return replace(context, settings=attempt.settings)

    def contradicted(self, edit: Edit) -> list[str]:
        """Return the ids of the edits that an edit supersedes if it is not refused."""
        places = self.standing.memory.replaced(edit.subject, edit.content)
        written = (self.ledger.history[place - 1].id for place in places)
        return list(dict.fromkeys([*written, *self.standing.refused_about(edit)]))  # a refused retry is among both

    def machine_notes(self) -> list[str]:
        """Return what differs from the machine of the last edit, because a replay may then differ in its bytes."""
        if not self.ledger.entries:
            return []
        before, now = self.ledger.entries[-1].versions, versions(self.machine)
        changed = [f"{key} {before[key]} -> {now[key]}" for key in now if before.get(key, now[key]) != now[key]]
        return [f"differs from the last edit's machine: {', '.join(changed)}"] if changed else []


def open_session(
    target: Target, machine: Machine, progress: Progress = no_progress, runtime: Runtime | None = None
) -> Session:
    """Open an existing state with its base and ledger; `runtime` is its model if it is loaded already.

    Raises:
        StateError: no checkpoint, no state, another base, or a damaged ledger.
    """
    require_checkpoint(target.model)  # first, since a mistyped folder has no state either
    return Session(target, open_state(target.sidecar), machine, progress, runtime)


def update_state(state: State, editor: MoreEditor) -> None:
    """Take the editor's tensors and site descriptions into the state."""
    state.meta.sites = editor.records
    state.B, state.P, state.A = editor.tensors()
