"""`more eval`: score the current state on every edit that was asked for with its probes, or on a file of questions.

An edit that was refused is scored like the others, so that its answers are known, but it counts as failed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from more_cli.errors import DataError, StreamErrors
from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.metrics import RESAMPLES, SEED, Estimate, estimate
from more_cli.evaluation.names import METRICS, SUCCESS_METRICS, all_groups, metric_of
from more_cli.evaluation.per_edit import EditScores, by_edit, headline
from more_cli.evaluation.probes import Probe, ProbeScore, locality_probes, may_not_fit, probes_of, run_probes
from more_cli.files import sha256_file
from more_cli.inputs.edits import read_probes
from more_cli.model.batches import Query
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import identities, identity, leave_out, left_out_sentence
from more_cli.ops.drift import Drift, known_drift
from more_cli.ops.held import held_at
from more_cli.ops.provenance import provenance
from more_cli.ops.session import Session, open_session
from more_cli.options import FileOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import FailedEdit, failed_sentence
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.text import counted, shorten

STATE = "state"
"""Source of the probes when no file is given."""
AGES = (0, 10, 100, 1000, 10_000)
"""Numbers of later edits at which the groups of `by_age` begin."""


@dataclass
class EvalReport:
    """Scores of one state, by probe kind and metric."""

    target: Target
    source: str
    """`state`, or the name of the probes file."""
    failed: list[FailedEdit] = field(default_factory=list)
    """Edits that do not stand by the ledger, in order."""
    left_out: int = 0
    """Locality probes, or questions of the file, that are anchors too: they were not scored."""
    drift: Drift | None = None
    """Of the watched anchors, as the ledger knows it; None without any."""
    changed: str = ""
    """When the ledger's last line was written: UTC, ISO 8601; empty without one."""
    replayed: int = 0
    base_answers: dict[str, str] = field(default_factory=dict)
    """Greedy answer of the untouched base to each edit's question, by id, if requested."""
    scores: list[ProbeScore] = field(default_factory=list)
    """Of every probe, in order."""
    gates: list[Judgement] = field(default_factory=list)
    seconds: float = 0.0
    """Wall time of the scoring."""
    reproduce: dict[str, Any] = field(default_factory=dict)
    """Base, ledger head, recipe, prompt template, versions, seed: everything needed to reproduce these numbers."""

    protocol: ClassVar[str] = "final"
    baseline: ClassVar[str] = "base"

    @property
    def edits(self) -> int:
        """Edits that were asked for, refused ones included; all of them were scored. 0 for a file of questions."""
        return len(self.rel) if self.source == STATE else 0

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The mean of each metric, by full name, such as `rel.tf_exact`."""
        return summarise(self.scores)

    @cached_property
    def retention(self) -> dict[str, Estimate]:
        """`rel.gen_exact` of edits by how many edits came after, such as `10-99`."""
        return by_age([score.values["gen_exact"] for score in self.rel]) if self.source == STATE else {}

    @property
    def first_forgotten(self) -> str | None:
        """The oldest edit that does not hold; None for a file of questions."""
        return next((scores.id for scores in self.failing), None) if self.source == STATE else None

    @property
    def forgotten(self) -> list[EditScores]:
        """Edits that stand by the ledger and do not hold; none for a file of questions."""
        return [scores for scores in self.failing if scores.failed is None] if self.source == STATE else []

    @property
    def per_edit(self) -> list[EditScores]:
        """The scores by edit, or by question of the probes file."""
        return by_edit(self.scores, self.failed)

    @property
    def scope(self) -> str:
        """What was scored, in words."""
        if self.source == STATE:
            return counted(self.edits, "edit")
        return f"{counted(len(self.per_edit), 'question')} of {self.source}"

    @property
    def headline(self) -> str:
        """The verdict in words."""
        return headline(self.per_edit)

    @property
    def failed_sentence(self) -> str:
        """Which edits do not stand, on one line; empty if all do."""
        return failed_sentence(self.failed, self.edits) if self.failed else ""

    @property
    def left_out_sentence(self) -> str:
        """How many probes were left out, on one line; empty for none."""
        if self.source != STATE:
            return left_out_sentence(self.left_out, self.left_out + len(self.per_edit), "question")
        scored = sum(score.probe.is_locality for score in self.scores)
        return left_out_sentence(self.left_out, self.left_out + scored)

    @property
    def listed(self) -> dict[str, Estimate]:
        """The metrics that tables list unasked."""
        return {name: value for name, value in self.estimates.items() if metric_of(name).listed}

    @property
    def rel(self) -> list[ProbeScore]:
        """Scores of the edits themselves, or of the questions with an answer."""
        return [score for score in self.scores if score.probe.kind == "rel"]

    @property
    def failing(self) -> list[EditScores]:
        """Edits (or questions with an answer) that do not hold: their greedy answer is not the target, or refused."""
        return [scores for scores in self.per_edit if scores.rel and not scores.good]


def evaluate_state(
    target: Target,
    machine: Machine,
    progress: Progress = no_progress,
    *,
    ask_base: bool = False,
    runtime: Runtime | None = None,
) -> EvalReport:
    """Score every edit that was asked for, with its probes, after all edits (protocol `final`).

    Edits that were reverted or superseded do not count. A refused edit counts as failed: whatever the model answers
    now, the `SUCCESS_METRICS` of its targets are 0; its locality, `target_nll` and `gen_stops` are as measured. A
    question of it that cannot be turned into a prompt has no answer, and these zeros alone. A not-learnt edit was
    written, and counts by what is measured. A locality probe that is an anchor too is left out. With `ask_base` the
    untouched base answers the edits' questions as well. `runtime` is the model if it is loaded already.

    Raises:
        StateError: no state, or one that does not fit its base.
    """
    session = open_session(target, machine, progress, runtime)
    failed = session.ledger.failed()
    edits, left_out = leave_out(map(session.ledger.edit_of, session.ledger.asked()), _anchors(session))
    probes = [probe for edit in edits for probe in probes_of(edit)]
    refused = {edit.id for edit in failed if edit.status is Status.REFUSED}
    report = _run(session, STATE, probes, progress, ask_base, refused)
    report.failed, report.left_out = failed, left_out
    return report


def evaluate_probes(
    target: Target,
    file: Path,
    files: FileOptions,
    machine: Machine,
    progress: Progress = no_progress,
    *,
    ask_base: bool = False,
    runtime: Runtime | None = None,
) -> EvalReport:
    """Score the state on a file of questions: by the given answer or, without one, by the base's own behaviour.

    A question that is an anchor too is left out: it would score training data. With `ask_base` the untouched base
    answers the questions that have an answer as well.

    Raises:
        StreamErrors: the file has problems, or questions that the model cannot be asked.
    """
    session, probes, left_out = open_session(target, machine, progress, runtime), list[Probe](), 0
    anchors = _anchors(session)
    for question in read_probes(file, files.image_root, strict_paths=files.strict_paths):
        if identity(question) in anchors:
            left_out += 1
        elif question.answer is None:
            probes += locality_probes(question.id, [question])
        else:
            probes.append(Probe(question.id, "rel", Query.of(question), question.answer))
    _require_prompts(session, probes, file.name)
    report = _run(session, file.name, probes, progress, ask_base)
    report.reproduce["probes"] = sha256_file(file)
    report.left_out = left_out
    return report


def _anchors(session: Session) -> frozenset[tuple[str, str]]:
    """Return the anchors of the whole ledger; a state that is behind lacks those that were added last."""
    ledger = session.ledger
    return identities(held_at(ledger, session.state.meta, len(ledger.history)).anchors)


def _run(
    session: Session,
    source: str,
    probes: Sequence[Probe],
    progress: Progress,
    ask_base: bool = False,
    refused: Collection[str] = (),
) -> EvalReport:
    drift = known_drift(session.ledger, session.state.meta)
    report = EvalReport(session.target, source, drift=drift, reproduce=_reproduce(session))
    report.changed = session.ledger.changed()
    if not probes:
        return report
    started = time.monotonic()
    with session.attached() as replayed:
        report.replayed = replayed
        family = session.runtime.prompter.family
        doubtful = [probe for probe in probes if probe.edit in refused or may_not_fit(probe, family)]
        misfits = {id(probe) for probe in doubtful if _misfit(session, probe)}
        asked = [probe for probe in probes if id(probe) not in misfits]
        scored = {id(score.probe): score for score in _scored(session, asked, progress, "scoring probes")}
        report.scores = [scored.get(id(probe)) or ProbeScore(probe, answer=None) for probe in probes]
        if ask_base:
            edits = [probe for probe in asked if probe.kind == "rel"]
            with session.runtime.base():
                answers = _scored(session, edits, progress, "asking the base")
            report.base_answers = {score.probe.edit: score.answer or "" for score in answers}
    for score in report.scores:
        if (score.probe.edit in refused or score.answer is None) and not score.probe.is_locality:
            # What the model says by itself is no success of an edit that was not written, nor is what cannot be asked.
            score.values |= dict.fromkeys(SUCCESS_METRICS, 0.0)
    report.seconds = time.monotonic() - started
    return report


def _scored(session: Session, probes: Sequence[Probe], progress: Progress, what: str) -> list[ProbeScore]:
    return run_probes(
        session.runtime, session.editor, probes, on_progress=lambda done, total: progress(done, total, what)
    )


def _require_prompts(session: Session, probes: Iterable[Probe], name: str) -> None:
    """Refuse a file with questions that the model cannot be asked."""
    problems, hint = list[str](), ""
    for probe in probes:
        if may_not_fit(probe, session.runtime.prompter.family) and (error := _misfit(session, probe)):
            problems.append(f"{name}: `{shorten(probe.edit)}`: {error.message}")
            hint = hint or error.hint
    if problems:
        raise StreamErrors(problems, hint)


def _misfit(session: Session, probe: Probe) -> DataError | None:
    """Return why a probe cannot be turned into a prompt; None if it can."""
    try:
        session.runtime.encode(probe.query, probe.target)
    except DataError as error:
        return error
    return None


def summarise(scores: Sequence[ProbeScore]) -> dict[str, Estimate]:
    """Return every metric of every probe kind with its interval, by full name, over the probes that have it."""
    estimates = {}
    for group in all_groups():
        chosen = [score for score in scores if group in score.probe.groups]
        for name in METRICS:
            if measured := [score for score in chosen if name in score.values]:
                values, edits = [score.values[name] for score in measured], [score.probe.edit for score in measured]
                estimates[f"{group}.{name}"] = estimate(values, edits)
    return estimates


def by_age(values: Sequence[float]) -> dict[str, Estimate]:
    """Group the values of edits, oldest first, by how many edits came after each."""
    groups = {}
    for first, beyond in zip(AGES, (*AGES[1:], len(values)), strict=True):
        stop = len(values) - first
        chosen = values[max(0, len(values) - beyond) : max(0, stop)]
        if chosen:
            groups[f"{first}-{min(beyond, len(values)) - 1}"] = estimate(chosen)
    return groups


def _reproduce(session: Session) -> dict[str, Any]:
    return provenance(session) | {
        "template": session.state.meta.template,
        "intervals": {"seed": SEED, "resamples": RESAMPLES},
    }
