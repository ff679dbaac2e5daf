"""One run of an editor on a suite: every edit in order, scored when it is due, each step in a journal.

Edits that are written together at the end of the stream are written in the step of the last one: a run that is
interrupted there does this step again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from more_cli.clock import Every
from more_cli.editors.base import Editor
from more_cli.editors.more.editor import Consolidated, MoreEditor
from more_cli.evaluation.names import Yardstick
from more_cli.evaluation.probes import Probe, References, probes_of, run_probes
from more_cli.evaluation.streams import Stream, Writing
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.progress import Progress
from more_cli.runner.anchors import HeldAnchors
from more_cli.runner.costs import PeakMemory, routing_seconds
from more_cli.runner.journal import RunJournal, outcome_values, score_values
from more_cli.runner.protocols import SINGLE, Schedule
from more_cli.runner.references import BaseAnswers, EarlierAnswers

SAVE_EDITS, SAVE_SECONDS = 10, 30.0
"""How often a run saves its editor; an interrupted run continues there."""


@dataclass(frozen=True)
class Answers:
    """Answers that scores are compared with."""

    own: BaseAnswers
    """The base's, to the edits' questions."""
    base: BaseAnswers
    """The base's, to locality questions."""
    earlier: EarlierAnswers
    """Of the model before each edit, to the edit's locality questions."""


class Observer(Protocol):
    """Something that looks at the editor during a run, such as to keep what an analysis reads."""

    def begin(self, runtime: Runtime, editor: Editor, t: int) -> None:
        """Take the attached editor as it is after `t` edits, before the next one."""

    def after(self, runtime: Runtime, editor: Editor, t: int) -> None:
        """Take what edit `t` did; the journal gets its line afterwards."""


@dataclass
class Run:
    """One run of an editor on a suite."""

    editor: Editor
    anchors: HeldAnchors
    edits: Sequence[Edit]
    schedule: Schedule
    yardstick: Yardstick
    journal: RunJournal
    progress: Progress
    writing: Writing = "online"
    observer: Observer | None = None
    asked: int = 0
    """Questions that the base was asked."""
    _save: Every = field(default_factory=lambda: Every(SAVE_SECONDS, SAVE_EDITS))

    @property
    def steps(self) -> int:
        """Number of edits, doubled when each is also made alone."""
        return len(self.edits) * (1 + ("single" in self.schedule.protocols))

    @property
    def finished(self) -> bool:
        """Whether the journal is complete."""
        return len(self.journal.lines) >= self.steps

    @property
    def asks_earlier(self) -> bool:
        """Whether locality compares with the model before each edit."""
        return self.yardstick.baseline == "prev" and not self.editor.is_base

    def go(self, runtime: Runtime, answers: Answers) -> int:
        """Run the missing steps and return how many were already done."""
        snapshot = self.journal.resume()
        if snapshot:
            snapshot.restore(self.editor)
        known = len(self.journal.lines)
        if isinstance(self.editor, MoreEditor):
            self.editor.progress = self.progress
        with self.anchors.attached(self.editor, runtime, fresh=snapshot is None):
            edits = sorted(self.edits, key=lambda edit: edit.line)  # the same batches for every order of the stream
            every = [] if self.asks_earlier else [probe for edit in edits for probe in probes_of(edit)]
            for base, probes in ((answers.own, list(map(_own_question, edits))), (answers.base, every)):
                base.prepare(probes, lambda done, total: self.progress(done, total, "asking the base"))
            self._stream(runtime, answers)
        if not self.finished:
            self._single(runtime, answers.base)
        answers.earlier.forget()
        self.asked = answers.own.asked + answers.base.asked
        return known

    def _stream(self, runtime: Runtime, answers: Answers) -> None:
        stream = Stream(self.editor, self.edits, self.writing)
        for line in self.journal.lines[: len(self.edits)]:
            stream.remember(line["t"], line["outcome"]["status"], _margins(line["outcome"]).items())
            if "compaction" in line:
                stream.remember_compaction(line["t"], _margins(line["compaction"]))
        if self.observer:
            self.observer.begin(runtime, self.editor, len(self.journal.lines))
        for t in range(len(self.journal.lines) + 1, len(self.edits) + 1):
            edit = self.edits[t - 1]
            self.progress(t - 1, self.steps, f"edit {edit.id}")
            postponed = 0.0
            if self.asks_earlier:
                postponed = self.editor.catch_up()
                answers.earlier.ask(list(probes_of(edit)))
            line = {"t": t, "base": _answer(runtime, answers.own, edit), **self._edited(runtime, stream, t)}
            due = self.schedule.due(t)
            line["catch_up"] = postponed + (self.editor.catch_up() if due else 0.0)
            self._compact(stream, t, line)
            if t == len(self.edits):
                self._finish(stream, line)
            line["scores"] = self._scores(runtime, answers.earlier if self.asks_earlier else answers.base, due)
            if t in self.schedule.marks:
                line["footprint"] = asdict(self.editor.footprint())
                line["routing"] = routing_seconds(self.editor, runtime, self.edits)
            if self.observer:
                self.observer.after(runtime, self.editor, t)
            self._keep(line)

    def _single(self, runtime: Runtime, base: BaseAnswers) -> None:
        for step in range(max(len(self.journal.lines), len(self.edits)), self.steps):
            i = step - len(self.edits) + 1
            edit = self.edits[i - 1]
            self.progress(step, self.steps, f"edit {edit.id} alone")
            self.editor.reset()
            with self.anchors.attached(self.editor, runtime, fresh=True):
                line = {"t": SINGLE, **self._edited(runtime, Stream(self.editor, [edit]), 1)}
                line["catch_up"] = self.editor.catch_up()
                line["scores"] = self._scores(runtime, base, [i])
                self._keep(line)

    def _edited(self, runtime: Runtime, stream: Stream, number: int) -> dict[str, Any]:
        memory = PeakMemory(str(runtime.device))
        held, started = memory.held(), time.perf_counter()
        memory.restart()
        outcome = stream.edit(number)
        seconds, peak = time.perf_counter() - started, memory.peak()
        line = {"id": stream.edits[number - 1].id, "seconds": seconds, "outcome": outcome_values(outcome)}
        return line if held is None or peak is None else line | {"peak": peak - held}

    def _compact(self, stream: Stream, number: int, line: dict[str, Any]) -> None:
        """Write all edits together if there are enough of them, and add to the last one's line what that took."""
        started = time.perf_counter()
        if done := stream.compact(number):
            looks = {str(edit): margin for edit, margin in done.margins.items()}
            line["catch_up"] += done.cost
            line["compaction"] = {**_together(done, started), "looks": looks}

    def _finish(self, stream: Stream, line: dict[str, Any]) -> None:
        """Write together what the stream left for its end, and add to the last edit's line what that took."""
        started = time.perf_counter()
        if done := stream.finish():
            line["catch_up"] += done.cost
            line["joint"] = _together(done, started)

    def _scores(self, runtime: Runtime, references: References, due: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
        known = self._known() if self.editor.is_base else {}  # it never changes a score
        probes = {i: list(probes_of(self.edits[i - 1])) for i in due if str(i) not in known}
        whole = [probe for group in probes.values() for probe in group]
        scores = iter(run_probes(runtime, self.editor, whole, references=references, yardstick=self.yardstick))
        fresh = {str(i): [score_values(next(scores)) for _ in group] for i, group in probes.items()}
        return {i: fresh.get(i) or known[i] for i in map(str, due)}

    def _known(self) -> dict[str, list[dict[str, Any]]]:
        return {i: scores for line in self.journal.lines for i, scores in line["scores"].items()}

    def _keep(self, line: dict[str, Any]) -> None:
        self.journal.add(line)
        if self._save() or self.finished:
            self.journal.save(self.editor)


def _margins(written: Mapping[str, Any]) -> dict[int, float]:
    return {int(number): margin for number, margin in written["looks"].items()}


def _together(done: Consolidated, started: float) -> dict[str, Any]:
    return {
        "scored": sorted(done.margins),
        "failing": done.failing,
        "undone": done.undone,
        "writes": done.writes,
        "seconds": time.perf_counter() - started,
    }


def _own_question(edit: Edit) -> Probe:
    return Probe(edit.id, "loc_image" if edit.images else "loc_text", Query.of(edit))


def _answer(runtime: Runtime, base: BaseAnswers, edit: Edit) -> str:
    (reference,) = base([_own_question(edit)])
    return runtime.prompter.text(list(reference.tokens))
