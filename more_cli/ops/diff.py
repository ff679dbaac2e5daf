"""`more diff`: in what two states differ: setup, anchors, edits and, if the model is asked, answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from more_cli.editors.base import EditRequest
from more_cli.errors import DataError, UsageError
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import identity
from more_cli.ops.ask import ANSWER_TOKENS
from more_cli.ops.session import open_session
from more_cli.ops.shared import Contradiction, Holding, SourceState, differing, open_sources, union
from more_cli.progress import Progress, no_progress
from more_cli.store.target import Target

What = Literal[
    "only in the first", "only in the second", "with another status", "with another target", "about something else"
]


class Difference(NamedTuple):
    """An edit that two states do not hold alike."""

    what: What
    first: Holding | None
    second: Holding | None

    @property
    def edit(self) -> Holding:
        """The edit as the first of the states that has it holds it."""
        found = self.first or self.second
        assert found is not None
        return found


class Asked(NamedTuple):
    """A question of an edit to which two states give different answers."""

    edit: Holding
    first: str
    second: str


@dataclass
class DiffReport:
    """In what two states differ."""

    first: SourceState
    second: SourceState
    setup: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """What they were made with, where it differs: by name, the value of each."""
    anchors: tuple[Sequence[str], Sequence[str]] = ((), ())
    """Questions of the anchors that only one of them holds; those that edits brought are not counted."""
    edits: Sequence[Difference] = ()
    alike: int = 0
    """Edits that both hold alike."""
    contradictions: Sequence[Contradiction] = ()
    asked: int | None = None
    """How many questions both were asked; None if none."""
    answers: Sequence[Asked] = ()
    wall_seconds: float = 0.0

    @property
    def same_bytes(self) -> bool:
        """Whether the two files are the same, to the byte."""
        return bool(self.first.meta.checksum) and self.first.meta.checksum == self.second.meta.checksum

    @property
    def same(self) -> bool:
        """Whether setup, anchors and edits are the same; the order of the edits may differ."""
        return not (self.setup or self.edits or any(self.anchors))

    @property
    def behind(self) -> Sequence[Path]:
        """The files that lack lines of their ledgers, as after a crash."""
        return [each.path for each in (self.first, self.second) if each.meta.edits < len(each.ledger.history)]

    @property
    def counts(self) -> dict[str, int]:
        """How many edits are alike, and how many differ, by how."""
        return {"alike": self.alike, **Counter(each.what for each in self.edits)}


def diff(paths: Sequence[Path]) -> DiffReport:
    """Compare two states by their metadata and ledgers; no model is loaded.

    Raises:
        StateError: a state is missing or damaged.
        UsageError: not exactly two.
    """
    started = time.monotonic()
    if len(paths) != 2:
        raise UsageError(f"`diff` compares two states, not {len(paths)}", "type: more diff A.more B.more")
    first, second = open_sources(paths)
    differences, alike = list[Difference](), 0
    for id in dict.fromkeys((*first.holdings, *second.holdings)):
        ours, theirs = first.holdings.get(id), second.holdings.get(id)
        what = _what(ours, theirs)
        if what is None:
            alike += 1
        else:
            differences.append(Difference(what, ours, theirs))
    differences.sort(key=lambda each: each.edit.moment)
    report = DiffReport(first, second, differing(first.meta, second.meta), _anchors(first, second), differences, alike)
    report.contradictions = union([first, second]).contradictions
    report.wall_seconds = time.monotonic() - started
    return report


def _what(first: Holding | None, second: Holding | None) -> What | None:
    if first is None or second is None:
        return "only in the second" if first is None else "only in the first"
    if first.content != second.content:
        return "with another target" if first.subject == second.subject else "about something else"
    return None if first.status is second.status else "with another status"


def _anchors(first: SourceState, second: SourceState) -> tuple[list[str], list[str]]:
    """Return the questions of the anchors that only one of the states holds."""
    held = [
        {identity(anchor): anchor.question for _, anchors in source.added_anchors() for anchor in anchors}
        for source in (first, second)
    ]
    ours, theirs = ([held[one][key] for key in held[one].keys() - held[1 - one].keys()] for one in (0, 1))
    return sorted(ours), sorted(theirs)


def ask_both(report: DiffReport, model: Path, machine: Machine, progress: Progress = no_progress) -> None:
    """Ask both states the questions of the edits that count in either, and note the answers that differ.

    Raises:
        StateError: a state was made for another base.
        ResourceError: the model does not fit into memory.
    """
    started = time.monotonic()
    edits = report.second.counting | report.first.counting
    asked = sorted(edits.values(), key=lambda edit: edit.moment)
    runtime, said = None, list[list[str]]()
    for source in (report.first, report.second):
        if said and report.first.meta.recipe.asking != source.meta.recipe.asking:
            runtime = None
        answers, runtime = _answers(source, Target(model, source.path), asked, machine, progress, runtime)
        said.append(answers)
    report.asked = len(asked)
    report.answers = [Asked(edit, *pair) for edit, *pair in zip(asked, *said, strict=True) if pair[0] != pair[1]]
    report.wall_seconds += time.monotonic() - started


def _answers(
    source: SourceState,
    target: Target,
    edits: Sequence[Holding],
    machine: Machine,
    progress: Progress,
    runtime: Runtime | None,
) -> tuple[list[str], Runtime]:
    """Return what a state answers to the questions of edits, and the model, so that it is loaded once."""
    session = open_session(target, machine, progress, runtime)
    said = list[str]()
    with session.attached():
        for number, edit in enumerate(edits):
            progress(number, len(edits), f"asking {source.path.name}: {edit.id}")
            query = EditRequest.of(edit.source.ledger.edit_of(edit.entry)).query
            try:
                (tokens,) = session.runtime.generate([query], ANSWER_TOKENS)
            except DataError:  # an edit that was refused because it makes no prompt
                said.append("")
                continue
            said.append(session.runtime.prompter.spoken(tokens))
    return said, session.runtime
