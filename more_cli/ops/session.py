"""A session: the checkpoint, its state, its ledger, and the model with its editor."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from more_cli import __version__
from more_cli.checkpoint.folder import require_checkpoint
from more_cli.clock import timed
from more_cli.editors.anchors import Anchor
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.memory import Memory
from more_cli.editors.more.editor import Consolidated, MoreEditor
from more_cli.editors.more.unfinished import NOWHERE, Unfinished
from more_cli.inputs.edits import Edit, Probe
from more_cli.model.loading import Blueprint, load_blueprint, load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import (
    anchors_digest,
    ask_anchors,
    ask_base,
    cache_name,
    keep_answers,
    load_anchors,
    read_cache,
    write_cache,
)
from more_cli.ops.arriving import Arrivals, answered
from more_cli.ops.auto_anchors import PICTURED
from more_cli.ops.base import open_base
from more_cli.ops.estimate import estimate, require
from more_cli.ops.held import corrected, held_at
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger, extend_digest
from more_cli.store.snapshots import replay_start
from more_cli.store.state import State, StateMeta, open_state, save_state
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.system.cpu import cpu
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
    ) -> None:
        self.target = target
        self.state = state
        self.machine = machine
        self.progress = progress
        self._saved = state.meta.digest
        self.checkpoint = open_base(target, state)
        self.memory = Memory(self._recall)
        self._refused: dict[str, dict[str, str]] = {}
        """Refused edits that no later edit contradicts: by subject, the content of each id."""
        self.unwritten: list[int] = []
        """Places of the edits of a batch that no consolidation has written yet."""
        self.ledger = Ledger(target.folder, self._on_line, name=target.ledger_name)
        self.state = replay_start(state, self.ledger, target.sidecar)
        self.outdated = self.state is not state
        """Whether the sidecar on disk is from before a revert."""
        if self.ledger.has_reverts:
            self._rebuild_memory()
        self._runtime = runtime
        self.blueprint: Blueprint | None = None
        """The checkpoint without its weights, if the caller has it."""
        self.compacts = True
        """Whether this call writes all standing edits together where there are enough of them."""
        self.cache = target.folder / "cache"
        """Folder of what can be computed again."""
        self._held = held_at(self.ledger, self.state.meta, self.state.meta.edits)
        self._arrivals = Arrivals(self.state.meta.recipe, self.ledger)
        self._answers: list[Anchor] = []
        """The anchors with the base's answers, once the editor holds them."""
        self._stored: Sequence[Path] = ()
        """Files of what the base said about the anchors at the begin: of no use once edits brought more."""
        self._grown = False

    @property
    def anchors(self) -> Sequence[Probe]:
        """The anchors that are held now, also those whose answers edits correct."""
        return self._held.anchors

    @property
    def anchors_digest(self) -> str | None:
        """Digest of the anchors that are held now; None without anchors."""
        return anchors_digest(self.anchors) if self.anchors else None

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
        return bool(self.anchors) and self.editor.untouched and not later

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
                anchors=len(self.anchors) + (PICTURED - self._held.pictured if meta.arriving else 0),
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
            if self.anchors and (writing or self.behind or self.lacks_anchor_keys):
                self._hold()
            yield self.replay() if replay else 0
            self._keep_answers()

    def _hold(self) -> None:
        """Let the editor hold the anchors; on a state without keys, P absorbs theirs first."""
        if fresh := self.lacks_anchor_keys:
            self._saved = ""
        self._give_anchors(fresh=fresh)

    def _give_anchors(self, *, fresh: bool = False, absorb_from: int | None = None) -> None:
        """Give the editor its anchors, with their cached answers and directions."""
        meta, digest = self.state.meta, anchors_digest(self.anchors)
        answers = self.cache / anchors_cache(meta, digest, self.machine)
        asked = self._answers if len(self._answers) == absorb_from else ()  # a later set begins with the one before
        self._answers = ask_anchors(self.runtime, self.anchors, answers, known=asked)
        ranks = [site.rank for site in self.editor.records]
        facts = digest, meta.base, meta.template, meta.recipe.canonical(), ranks, versions(self.machine)
        path = self.cache / cache_name("directions", *facts)
        known = read_cache(path).get("directions")
        self.editor.hold(self._answers, fresh=fresh, absorb_from=absorb_from, directions=known)
        found = self.editor.directions
        if found is not None and found is not known:
            write_cache(path, {"directions": found})
        self._stored, self._grown = (answers, path), False
        self.editor.release(corrected(self._held, self.ledger, self.state.meta.edits))

    def release(self, edit: Edit) -> None:
        """Release the anchors whose answers an edit corrects."""
        if places := self._held.corrected_by(edit):
            self.editor.release(places)

    def bring(self, edit: Edit) -> list[Probe]:
        """Hold anchors made of the picture of the next edit from now on, if the state takes such, and return them."""
        if not self.state.meta.arriving:
            return []
        questions = self._arrivals.questions(edit, self.state.meta.edits, self._held)
        made = answered(self.runtime, edit, questions) if questions else {}
        self._add(list(made), list(made.values()))
        return list(made)

    def _add(self, questions: Sequence[Probe], answers: Sequence[Anchor]) -> None:
        """Hold further anchors, that edits brought."""
        if questions:
            self.editor.add(answers, len(self.anchors))
            self._answers += answers
            self._held.add(questions, written=False)
            self._grown = True

    def _keep_answers(self) -> None:
        """Write the base's answers if edits brought anchors: once a session, since they take megabytes."""
        if self._grown:
            for path in self._stored:
                with suppress(OSError):
                    path.unlink()
            digest = anchors_digest(self.anchors)
            answers = self.cache / anchors_cache(self.state.meta, digest, self.machine)
            keep_answers(answers, self._answers)
            self._stored, self._grown = (answers,), False

    def take_anchors(self, digest: str) -> None:
        """Hold another set of anchors from now on, the present ones and more; P absorbs the keys of the new ones."""
        known = len(self.anchors)
        self._held.add(load_anchors(self.target.folder, digest)[known:])
        if self.lacks_anchor_keys:
            self._hold()
        else:
            self._give_anchors(absorb_from=known)

    @property
    def compaction_due(self) -> bool:
        """Whether all standing edits are to be written together before the next line."""
        return self.compacts and not self.unwritten and self.memory.compaction_due(self.state.meta.recipe.compact)

    def compact(self) -> Consolidated:
        """Write all standing edits together, as if they had come at once; keep what was if that is better.

        An interrupted compaction of the same edits continues.
        """
        context = self.memory.context(self.state.meta.edits + 1)
        with self._continued("compact"):
            return self.editor.write_anew(list(context.past), [], context)

    def consolidate(self, since: int, *, anew: bool = False) -> Consolidated:
        """Write the edits from place `since` on again where they do not hold, or all of these `anew`.

        Edits of a batch that are among them are written for the first time. An interrupted consolidation continues.
        """
        context = self.memory.context(self.state.meta.edits + 1)
        numbers = [number for number in context.past if number >= since]
        new = [number for number in self.unwritten if number in numbers]
        with self._continued("consolidate", since, anew):
            if anew:
                return self.editor.write_anew(numbers, new, context)
            if self.unwritten and since <= self.unwritten[0]:
                return self.editor.write_batch(numbers, new, context)
            return self.editor.consolidate(numbers, context)

    @contextmanager
    def _continued(self, *how: object) -> Iterator[None]:
        """Let a write of many edits continue an interrupted one of the same edits, and be kept until it ends."""
        meta = self.state.meta
        edits = self.ledger.head, meta.edits, self.anchors_digest
        facts = how, edits, meta.base, meta.template, meta.recipe.canonical(), versions(self.machine)
        path, due = self.cache / cache_name(*facts, kind="unfinished"), Every(1 << 62, SAVE_SECONDS)

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
            self._remember(entry.seq, entry)

    def _rebuild_memory(self) -> None:
        """Rebuild the memory after a revert, when a place in the history is no longer a line number."""
        self.memory, self._refused, self.unwritten = Memory(self._recall), {}, []
        for place, entry in enumerate(self.ledger.history[: self.state.meta.edits], 1):
            self._remember(place, entry)

    def _remember(self, place: int, entry: Entry) -> None:
        if entry.kind == "edit" and entry.status is Status.REFUSED:
            self._refused.setdefault(entry.subject, {})[entry.id] = entry.content
        elif entry.kind == "edit":
            for id in (entry.id, *self._refused_about(entry)):
                self._refused.get(entry.subject, {}).pop(id, None)
            self.memory.add(place, entry.subject, entry.content, retry=entry.retry)
            if entry.joint:
                self.unwritten.append(place)
        if entry.kind == "consolidate" and self.unwritten and entry.since <= self.unwritten[0]:
            self.unwritten = []
        if entry.kind == "compact" or entry.anew:
            self.memory.together = len(entry.looks)
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
            self.consolidate(entry.since, anew=entry.anew)
        elif entry.kind == "compact":
            self.compact()
        elif entry.kind == "anchors":
            self.take_anchors(entry.content)
        else:
            edit, attempt, made = self.ledger.edit_of(entry), Try.of(entry), self.ledger.made_of(entry)
            self.release(edit)
            self._add(made, [ask_base(self.runtime, question) for question in made])
            if entry.status is not Status.REFUSED:  # a refused edit changed nothing but the anchors
                learn = self.editor.admit if attempt.joint else self.editor.edit
                learn(EditRequest.of(edit), self.context(edit, attempt))
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
        update_state(self.state, self.editor)
        save_state(self.target.sidecar, self.state)
        self.outdated = False
        self._saved = self.state.meta.digest

    def context(self, edit: Edit, attempt: Try) -> EditContext:
        """Return what the editor may use to learn the next edit: past edits, and the settings of this try."""
        number = self.state.meta.edits + 1
        context = self.memory.context(number, edit.subject, edit.content, retry=attempt.retry)
        return replace(context, settings=attempt.settings)

    def contradicted(self, edit: Edit) -> list[str]:
        """Return the ids of the edits that an edit supersedes if it is not refused."""
        places = self.memory.contradicted(edit.subject, edit.content)
        written = (self.ledger.history[place - 1].id for place in places)
        return list(dict.fromkeys([*written, *self._refused_about(edit)]))  # a refused retry is among both

    def _refused_about(self, edit: Edit | Entry) -> list[str]:
        """Return the ids of the refused edits about the same images and question with another target."""
        refused = self._refused.get(edit.subject, {})
        return [id for id, content in refused.items() if content != edit.content]

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


def versions(machine: Machine) -> dict[str, str]:
    """Return everything that decides the bytes of an edit: versions, device, processor, dtype and threads."""
    return {
        "more": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version_of("transformers"),
        "numpy": _version_of("numpy"),
        "device": machine.place,
        "cpu": f"{cpu()}, {torch.backends.cpu.get_cpu_capability()}",
        "dtype": machine.dtype,
        "attention": machine.attention,
        "threads": str(torch.get_num_threads()),
    }


@cache
def _version_of(package: str) -> str:
    """Return the version of an installed package: every ledger line has it, and its metadata lies on the disk."""
    return version(package)


def anchors_cache(meta: StateMeta, anchors: str | None, machine: Machine) -> str:
    """Return the name of the file that caches the base's answers to the set of anchors with this digest."""
    return cache_name(anchors, meta.base, meta.template, meta.recipe.asking, versions(machine))


def update_state(state: State, editor: MoreEditor) -> None:
    """Take the editor's tensors and site descriptions into the state."""
    tensors = editor.state_dict()
    state.meta.sites = editor.records
    names = [site.name for site in state.meta.sites]
    state.B, state.P = ({name: tensors[f"{name}.{kind}"] for name in names} for kind in "BP")
    state.A = {name: tensors[f"{name}.A"] for name in names} if state.meta.recipe.stores_basis else {}


class Every:
    """Returns true once per so many ticks or so many seconds, whichever comes first."""

    def __init__(self, ticks: int, seconds: float) -> None:
        self.ticks, self.seconds = ticks, seconds
        self._count, self._since = 0, time.monotonic()

    def __call__(self) -> bool:
        """Count one tick and return whether it is time."""
        self._count += 1
        if self._count < self.ticks and time.monotonic() - self._since < self.seconds:
            return False
        self._count, self._since = 0, time.monotonic()
        return True
