"""States of one base side by side: what each of them holds, what they share, and where they contradict each other.

Only metadata and ledgers are read. An edit is known by its id; the same id with other content is another edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from more_cli.errors import StateError, UsageError
from more_cli.inputs.edits import Probe
from more_cli.ops.anchors import load_anchors
from more_cli.ops.held import added_at
from more_cli.recipe.settings import dotted
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger
from more_cli.store.names import model_of_state
from more_cli.store.snapshots import replay_start
from more_cli.store.state import StateMeta, open_state
from more_cli.store.status import FAILED, GONE, Status
from more_cli.store.target import Target
from more_cli.text import listed, shorten

Moment = tuple[datetime, int, int]
"""When an edit was made: time, number of its state, number of its ledger line."""
START = datetime.min.replace(tzinfo=UTC)
"""Before every edit."""


class SourceState:
    """One of several states: its metadata and its ledger.

    Raises:
        StateError: there is no state, it is damaged, or its ledger is missing, damaged or another's.
    """

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number
        state = open_state(path)  # before the ledger: an edit that comes in between makes only the ledger longer
        self.meta: StateMeta = state.meta
        self._times: dict[int, datetime] = {}
        """Of the lines that have a valid time, by number."""
        self.ledger = Ledger(Target(path, path).folder, self._note)
        replay_start(state, self.ledger, path)  # raises if they do not belong together
        self._moments = self._ordered()
        statuses = self.ledger.statuses()
        self.holdings = {id: self._holding(id, status) for id, status in statuses.items()}
        """Every edit that the ledger ever had, by id."""

    def _note(self, entry: Entry) -> None:
        if entry.moment:
            self._times[entry.seq] = entry.moment

    def _ordered(self) -> dict[int, Moment]:
        """Return the moments of edits and anchors in force, by line; a clock that went back changes no order."""
        moments, latest = dict[int, Moment](), START
        history = self.ledger.history
        for number, (kind, _) in zip(history.numbers(), history.kinds(), strict=True):
            if kind in ("edit", "anchors"):
                latest = max(latest, self._times.get(number, latest))
                moments[number] = (latest, self.number, number)
        return moments

    def _holding(self, id: str, status: Status) -> Holding:
        entry = self.ledger.by_id[id]
        reverted = self._times.get(entry.seq, START), self.number, entry.seq
        moment = self._moments.get(entry.seq, reverted)
        return Holding(self, id, entry.seq, entry.content, entry.subject, status, moment)

    @property
    def counting(self) -> dict[str, Holding]:
        """The edits that count, by what they are about."""
        return {edit.subject: edit for edit in self.holdings.values() if edit.status not in GONE}

    def added_anchors(self) -> Iterator[tuple[Moment, Sequence[Probe]]]:
        """Yield the sets of anchors that somebody wrote or that the state began with, and when."""
        if self.meta.anchors:
            yield (START, self.number, 0), load_anchors(self.ledger.folder, self.meta.anchors)
        for place, (kind, _) in enumerate(self.ledger.history.kinds(), 1):
            if kind == "anchors":
                entry = self.ledger.history[place - 1]
                yield self._moments[entry.seq], added_at(self.ledger, self.meta, place)


class Holding(NamedTuple):
    """An edit as one state holds it."""

    source: SourceState
    id: str
    seq: int
    """Number of its last ledger line."""
    content: str
    subject: str
    status: Status
    """As of today."""
    moment: Moment

    @property
    def entry(self) -> Entry:
        """Its last ledger line."""
        return self.source.ledger.entries[self.seq - 1]

    @property
    def in_force(self) -> bool:
        """Whether it was not reverted."""
        return self.status is not Status.REVERTED

    def __str__(self) -> str:
        """Return target, id, state, and who made it when, in words."""
        entry = self.entry
        line = f"{entry.source}:{entry.line}, " if entry.source else ""
        target, time = shorten(entry.target), entry.time.replace("T", " ")[:19]
        return f"`{target}` in `{self.source.path}` ({self.id}, {line}{time} UTC)"


class Contradiction(NamedTuple):
    """Two edits with the same images and question and another target, of states of which none has decided."""

    earlier: Holding
    later: Holding

    def __str__(self) -> str:
        """Return the question and both targets, in words."""
        return f"`{shorten(self.earlier.entry.question)}` has two targets: {self.earlier}, {self.later}"


class Union(NamedTuple):
    """The edits of several states together."""

    edits: Sequence[Holding]
    """Those in force, in order of time, each from the state in which it went best."""
    reverted: Sequence[Holding]
    """Those that one of the states reverted: they stay so."""
    withdrawn: Mapping[str, SourceState]
    """Of these, the edits that are in force in another state: by id, the state that reverted them."""
    contradictions: Sequence[Contradiction]
    clashes: Sequence[tuple[Holding, Holding]]
    """Ids that are used for two different edits."""


def open_sources(paths: Sequence[Path]) -> list[SourceState]:
    """Open several states, each once.

    Raises:
        StateError: as `SourceState`.
        UsageError: fewer than two, or one of them twice.
    """
    if len(paths) < 2:
        raise UsageError("at least two states are needed", "name two: A.more B.more")
    real = [path.resolve() for path in paths]
    if twice := [path for number, path in enumerate(paths) if real[number] in real[:number]]:
        raise UsageError(f"`{twice[0]}` is named twice", "name different states")
    if missing := [path for path in paths if not path.exists()]:
        raise StateError(f"no state at `{missing[0]}`", "name state files, such as llava.more")
    return [SourceState(path, number) for number, path in enumerate(paths)]


def union(sources: Sequence[SourceState]) -> Union:
    """Return the edits of several states together, and what keeps them from being combined."""
    by_id: dict[str, list[Holding]] = {}
    for source in sources:
        for holding in source.holdings.values():
            by_id.setdefault(holding.id, []).append(holding)
    edits, reverted, clashes = list[Holding](), list[Holding](), list[tuple[Holding, Holding]]()
    withdrawn: dict[str, SourceState] = {}
    for id, holdings in by_id.items():
        held = [holding for holding in holdings if holding.in_force] or holdings[:1]
        same = [holding for holding in holdings if holding.content == held[0].content]
        clashes += [(held[0], other) for other in held if other.content != held[0].content]
        if gone := next((holding for holding in same if not holding.in_force), None):
            reverted.append(gone)
            if held[0].in_force:
                withdrawn[id] = gone.source
        else:
            edits.append(min(held, key=lambda holding: (holding.status in FAILED, holding.moment)))
    edits.sort(key=lambda holding: holding.moment)
    reverted.sort(key=lambda holding: holding.moment)
    return Union(edits, reverted, withdrawn, list(_contradictions(edits, sources)), clashes)


def _contradictions(edits: Iterable[Holding], sources: Sequence[SourceState]) -> Iterator[Contradiction]:
    """Yield the pairs about the same images and question that both count somewhere, unless a state decided them.

    A state that has both decided by their order, which must be theirs here too.
    """
    rivals: dict[str, list[Holding]] = {}
    for edit in edits:
        if any(_status(source, edit) not in (None, Status.SUPERSEDED, Status.REVERTED) for source in sources):
            rivals.setdefault(edit.subject, []).append(edit)
    for alike in rivals.values():
        for earlier, later in combinations(alike, 2):
            found = [(_status(source, earlier), _status(source, later)) for source in sources]
            both = [pair for pair in found if None not in pair and Status.REVERTED not in pair]
            undone = any(last is Status.SUPERSEDED and first is not last for first, last in both)
            if earlier.content != later.content and (undone or not both):
                yield Contradiction(earlier, later)


def _status(source: SourceState, edit: Holding) -> Status | None:
    """Return the status of an edit in a state; None if the state never had it."""
    known = source.holdings.get(edit.id)
    return known.status if known and known.content == edit.content else None


def differing(first: StateMeta, other: StateMeta) -> dict[str, tuple[object, object]]:
    """Return what two states have been made with that differs: by name, both values.

    The base's files and tensors, the prompts' template, keys of the recipe (its seed is that of the bases), and whether
    edits bring anchors.
    """
    found: dict[str, tuple[object, object]] = {}
    for name in sorted(first.base.keys() | other.base.keys()):
        # Which tensors are hashed depends on the sites: those of one state alone say nothing about the base.
        known = name in first.base and name in other.base
        if first.base.get(name) != other.base.get(name) and (known or not name.startswith("tensor:")):
            found[f"base {name}"] = first.base.get(name), other.base.get(name)
    if first.template != other.template:
        found["base template"] = first.template, other.template
    ours, theirs = (dotted(meta.recipe.canonical()) for meta in (first, other))
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            found[f"recipe {key}"] = ours.get(key), theirs.get(key)
    if first.arriving != other.arriving:
        found["edits bring anchors"] = first.arriving, other.arriving
    return found


def model_of(paths: Iterable[Path]) -> Path:
    """Return the checkpoint folder that the name of one of the states says: of `llava.more` or `llava.ann.more`.

    Raises:
        UsageError: none is there.
    """
    tried = list[Path]()
    for path in paths:
        if folder := model_of_state(path):
            return folder
        tried.append(path.with_suffix(""))
    raise UsageError(f"no checkpoint folder `{tried[0] if tried else ''}`", "name it before the states")


def require_same_setup(sources: Sequence[SourceState]) -> None:
    """Refuse states that differ in base, recipe or seed.

    Raises:
        StateError: they do; it names all that differs.
    """
    first = sources[0]
    for other in sources[1:]:
        found = differing(first.meta, other.meta)
        if not found:
            continue
        names = listed([_difference(name, *values) for name, values in found.items()], 5)
        text = f"`{other.path}` differs from `{first.path}`: {names}"
        if any(name.startswith("base ") for name in found):
            raise StateError(text, "states of different bases cannot be combined")
        raise StateError(text, f"apply the edits of one of them with the other's setup: {_ANEW}")


_ANEW = "more edit MODEL EDITS --state NEW.more, with its --recipe, --set and --anchors"


def _difference(name: str, ours: object, theirs: object) -> str:
    if name.startswith("base "):
        return name
    return f"{name} ({shorten(str(ours), 30)}, {shorten(str(theirs), 30)})"
