"""The anchors of a session: those that its editor holds, the base's answers to them, and the files that keep these."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.more.editor import MoreEditor
from more_cli.inputs.edits import Edit, Probe
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.versions import versions
from more_cli.ops.anchors import (
    Said,
    anchors_digest,
    as_line,
    ask_anchors,
    ask_once,
    cache_name,
    keep_answers,
    load_anchors,
    read_answers,
    read_cache,
    write_cache,
)
from more_cli.ops.arriving import Arrivals, answered
from more_cli.ops.auto_anchors import PICTURED
from more_cli.ops.held import corrected, held_at
from more_cli.store.ledger import Ledger
from more_cli.store.state import SiteRecord, StateMeta


class SessionAnchors:
    """The anchors that a state holds now, also those whose answers edits correct.

    What the base says about them is kept in the folder `cache`; it can be computed again.
    """

    def __init__(self, meta: StateMeta, ledger: Ledger, machine: Machine, cache: Path) -> None:
        self._meta, self._ledger, self._machine, self._cache = meta, ledger, machine, cache
        self._held = held_at(ledger, meta, meta.edits)
        self._arrivals = Arrivals(meta.recipe, ledger)
        self._answers: list[Anchor] = []
        """The anchors with the base's answers, once the editor holds them."""
        self._said: dict[str, Said] = {}
        self._directed: dict[str, Tensor] = {}
        """Answers and directions that other sessions had, by the anchor's line."""
        self._stored: Sequence[Path] = ()
        """Files of answers and directions of the anchors so far: of no use once edits bring more."""
        self._grown = False

    @property
    def questions(self) -> Sequence[Probe]:
        """The anchors: a place among them stays, whatever is added."""
        return self._held.anchors

    @property
    def digest(self) -> str | None:
        """Digest of the anchors; None without any."""
        return anchors_digest(self.questions) if self.questions else None

    @property
    def most(self) -> int:
        """Number of anchors with those that edits may still bring."""
        return len(self.questions) + (PICTURED - self._held.pictured if self._meta.arriving else 0)

    @property
    def answers(self) -> Path:
        """The file that caches the base's answers."""
        return self._cache / answers_name(self._meta, self.digest, self._machine)

    def give(
        self, editor: MoreEditor, runtime: Runtime, *, fresh: bool = False, absorb_from: int | None = None
    ) -> None:
        """Give an editor the anchors, with their cached answers and directions; see `MoreEditor.hold`."""
        meta, answers = self._meta, self.answers
        asked = self._answers if len(self._answers) == absorb_from else ()  # a later set begins with the one before
        self._answers = ask_anchors(runtime, self.questions, answers, known=asked, said=self._said)
        path = self._directions_file(editor.records)
        cached = read_directions(path, editor.records, len(self.questions))
        known = {**self._taken(editor, self.questions, 0), **cached, **editor.directions}
        editor.hold(self._answers, fresh=fresh, absorb_from=absorb_from, directions=known)
        if editor.directions.keys() != cached.keys():
            keep_directions(path, editor)
        self._stored, self._grown = (answers, path), False
        editor.release(corrected(self._held, self._ledger, meta.edits))

    def _directions_file(self, sites: Sequence[SiteRecord]) -> Path:
        """Return the file that caches the directions of the watched anchors at these sites."""
        return self._cache / directions_name(self._meta, self.digest, sites, self._machine)

    def _taken(self, editor: MoreEditor, questions: Sequence[Probe], start: int) -> dict[int, Tensor]:
        """Return the directions of these anchors that other sessions had, by their places from `start` on."""
        length = _length(editor.records)
        found = ((place, self._directed.get(as_line(each))) for place, each in enumerate(questions, start))
        return {place: one for place, one in found if one is not None and len(one) == length}

    def take_over(self, other: SessionAnchors) -> None:
        """Take over what the base said about another session's anchors, and their directions.

        Both sessions must be about the same base and recipe.
        """
        lines, sites = list(map(as_line, other.questions)), other._meta.sites
        self._said |= dict(zip(lines, read_answers(other.answers, len(lines)), strict=False))  # all of them, or none
        directed = read_directions(other._directions_file(sites), sites, len(lines))
        self._directed |= {lines[place]: one for place, one in directed.items()}

    def load(self, digest: str) -> int:
        """Take the set of anchors with this digest, those of now and more; return how many there were."""
        known = len(self.questions)
        self._held.add(load_anchors(self._ledger.folder, digest)[known:])
        return known

    def release(self, editor: MoreEditor, edit: Edit) -> None:
        """Let an editor release the anchors whose answers an edit corrects."""
        if places := self._held.corrected_by(edit):
            editor.release(places)

    def bring(self, editor: MoreEditor, runtime: Runtime, edit: Edit) -> list[Probe]:
        """Hold anchors made of the picture of the next edit from now on, if the state takes such, and return them."""
        if not self._meta.arriving:
            return []
        questions = self._arrivals.questions(edit, self._meta.edits, self._held)
        made = answered(runtime, edit, questions, self._said) if questions else {}
        self._add(editor, list(made), list(made.values()))
        return list(made)

    def bring_again(self, editor: MoreEditor, runtime: Runtime, made: Sequence[Probe]) -> None:
        """Hold the anchors that an edit brought, by its ledger line."""
        self._add(editor, made, [ask_once(runtime, question, self._said) for question in made])

    def _add(self, editor: MoreEditor, questions: Sequence[Probe], answers: Sequence[Anchor]) -> None:
        if questions:
            start = len(self.questions)
            editor.add(answers, start, self._taken(editor, questions, start))
            self._answers += answers
            self._held.add(questions, written=False)
            self._grown = True

    def keep(self, editor: MoreEditor) -> None:
        """Write answers and directions if edits brought anchors: once a session, since they take megabytes."""
        if self._grown:
            for path in self._stored:
                with suppress(OSError):
                    path.unlink()
            answers, path = self.answers, self._directions_file(editor.records)
            keep_answers(answers, self._answers)
            keep_directions(path, editor)
            self._stored, self._grown = (answers, path), False


def answers_name(meta: StateMeta, digest: str | None, machine: Machine) -> str:
    """Return the name of the file that caches the base's answers to the set of anchors with this digest."""
    return cache_name(digest, meta.base, meta.template, meta.recipe.asking, versions(machine))


def directions_name(meta: StateMeta, digest: str | None, sites: Sequence[SiteRecord], machine: Machine) -> str:
    """Return the name of the file that caches the directions of those anchors of this set that are watched."""
    ranks = [site.rank for site in sites]
    facts = digest, meta.base, meta.template, meta.recipe.canonical(), ranks, versions(machine)
    return cache_name(*facts, kind="directions")


def read_directions(path: Path, sites: Sequence[SiteRecord], anchors: int) -> dict[int, Tensor]:
    """Return the directions of watched anchors from a file, by place; what cannot be one of so many is left out."""
    places, found, shape = {str(place): place for place in range(anchors)}, read_cache(path), (_length(sites),)
    fitting = {name: one for name, one in found.items() if one.shape == shape and str(one.dtype) == "torch.float64"}
    return {places[name]: one for name, one in fitting.items() if name in places and not bool(one.isnan().any())}


def _length(sites: Sequence[SiteRecord]) -> int:
    """Return how many numbers a direction has: one for each of an input's keys at the text sites."""
    return sum(site.rank for site in sites if site.modality == "text")


def keep_directions(path: Path, editor: MoreEditor) -> None:
    """Write the directions of an editor's watched anchors, if there are any.

    With the basis `pca` they stay in memory: its A, in which they are measured, can change in a compaction.
    """
    if editor.directions and editor.recipe.basis != "pca":
        write_cache(path, {str(place): one for place, one in editor.directions.items()})
