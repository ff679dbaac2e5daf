"""The report of a run on a suite: every protocol of its score matrix, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.metrics import Estimate, change, estimate
from more_cli.evaluation.names import SUCCESS_METRICS, Yardstick, all_groups, full_names, groups, is_locality
from more_cli.evaluation.per_edit import EditScores
from more_cli.evaluation.probes import ProbeScore, probes_of
from more_cli.inputs.edits import Edit
from more_cli.ops.anchors import left_out_sentence
from more_cli.runner.plan import Preset, RunOptions, schedule_of
from more_cli.runner.protocols import SINGLE, Cell, Readout, Schedule, first_failing, forgetting, retained
from more_cli.suites.load import EditSuite

LEAST_RIGHT = 0.9
"""Share of the held-out edits that a fitted editor must learn, each alone."""

SHOWN = (
    "rel.gen_exact",
    "rel.tf_exact",
    "rel.tf_token_acc",
    "gen_text.gen_exact",
    "gen_image.gen_exact",
    "portability.gen_exact",
    "loc_text.loc_top1_answer",
    "loc_text.loc_expkl_answer",
    "loc_image.loc_top1_answer",
    "loc_image.loc_expkl_answer",
)
"""Metrics in the tables of a run; `--json` has every metric."""


@dataclass(frozen=True)
class FitReport:
    """What a fit made, and how well the editor learns edits that it never saw, one at a time."""

    key: str
    """SHA-256 of everything that decides the fit."""
    facts: Mapping[str, Any]
    """Of the editor: iterations, losses, ranks."""
    records: int
    """Edits it was fitted on."""
    held_out: int
    right: int
    """Held-out edits that it learnt, each alone."""
    seconds: float

    @property
    def undertrained(self) -> bool:
        """Whether it learns too few edits for its scores to say anything about the method."""
        return self.right < LEAST_RIGHT * self.held_out

    @property
    def warning(self) -> str:
        """Why the editor's scores say little about the method; empty if they do.

        What in the base keeps the method from working, however it is fitted, goes before a fit that does not suffice.
        """
        if obstacle := self.facts.get("obstacle"):
            return f"{obstacle}; its scores say little about the method"
        if self.undertrained:
            learnt = f"it learns {self.right} of {self.held_out} held-out edits, each alone"
            return f"undertrained: {learnt}; its scores say little about the method"
        return ""


@dataclass(frozen=True)
class Work:
    """What this run did itself, beside what it read from the cache."""

    base_asked: int = 0
    """Questions that the base was asked."""
    resumed: int = 0
    """Steps that an earlier run had finished."""
    seconds: float = 0.0


@dataclass
class SuiteReport:
    """The results of one run, computed from the lines of its journal.

    As for a state, the `SUCCESS_METRICS` of a refused edit's targets are 0.
    """

    suite: EditSuite
    model: Path
    options: RunOptions
    edits: Sequence[Edit]
    """In the order of the stream."""
    lines: Sequence[dict[str, Any]]
    """The journal: one line per edit, in order, those of protocol `single` after those of the stream."""
    reproduce: dict[str, Any]
    """Base, editor's constants, template, suite and versions: everything needed to reproduce these numbers."""
    left_out: int = 0
    """Locality probes that are anchors too: they were not scored."""
    work: Work = field(default_factory=Work)
    fit: FitReport | None = None
    """How the editor was fitted; None for editors that need none."""
    notices: Sequence[str] = ()
    """What to know about the editor's scores, one line each."""
    gates: list[Judgement] = field(default_factory=list)

    @property
    def editor(self) -> str:
        """Name of the editor."""
        return self.options.editor

    @property
    def preset(self) -> Preset | None:
        """The preset of metrics, if one was named."""
        return self.options.preset

    @property
    def available(self) -> int:
        """Edits that the suite has."""
        return len(self.suite.pools["evaluation"])

    @cached_property
    def schedule(self) -> Schedule:
        """What was scored after which edit."""
        return schedule_of(self.suite, self.options)

    @cached_property
    def readouts(self) -> list[Readout]:
        """What is reported, the headline first."""
        return list(self.schedule.readouts())

    @property
    def headline(self) -> str:
        """The readout that is the run's main result, such as `final@100`."""
        return self.readouts[0].name

    @cached_property
    def cells(self) -> dict[Cell, list[dict[str, Any]]]:
        """Every score, by (t, i)."""
        return dict(cells_of(self.lines))

    @cached_property
    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """By readout, such as `online@10`, then by the metric's full name."""
        return {readout.name: summary(readout, self.cells) for readout in self.readouts}

    @cached_property
    def preset_values(self) -> dict[str, dict[str, Estimate]]:
        """By readout, then by the preset's column; `Avg` is the mean of an edit's columns."""
        preset = self.preset
        return {one.name: _preset_values(preset, one, self.cells) for one in self.readouts} if preset else {}

    @cached_property
    def _held(self) -> dict[Cell, float]:
        return {cell: _rel(scores) for cell, scores in self.cells.items()}

    @cached_property
    def forgetting(self) -> Estimate | None:
        """`rel.gen_exact` right after an edit minus at the end, if both were measured."""
        measured = {"final", "online"} <= set(self.schedule.protocols)
        lost = forgetting(self._held, self.schedule.edits) if measured else []
        return change(lost) if lost else None

    @property
    def first_failing(self) -> str | None:
        """The first edit that does not hold in the headline."""
        first = first_failing(self._held, self.readouts[0])
        return self.edits[first - 1].id if first else None

    @cached_property
    def retention(self) -> dict[int, Estimate]:
        """`rel.gen_exact` by how many edits came after; 0 is protocol `online`."""
        schedule = self.schedule
        return {lag: estimate(retained(self._held, schedule.edits, lag)) for lag in schedule.measured_lags}

    @cached_property
    def lost(self) -> dict[int, Estimate]:
        """The forgetting curve: `rel.gen_exact` right after an edit minus later, by how many edits came after."""
        lags = filter(None, self.schedule.measured_lags)
        curve = {lag: forgetting(self._held, self.schedule.edits, lag) for lag in lags}
        return {lag: change(values) for lag, values in curve.items() if values}

    @property
    def yardstick(self) -> Yardstick:
        """How locality was measured."""
        return self.options.yardstick

    @property
    def locality(self) -> str:
        """What locality compares with, in words."""
        baseline = {"base": "the base", "prev": "the model just before each edit"}[self.yardstick.baseline]
        prefix = {"own": "", "gold": ", on gold answers"}[self.yardstick.prefix]
        return f"locality against {baseline}{prefix}"

    @property
    def left_out_sentence(self) -> str:
        """How many locality probes were left out, on one line; empty for none."""
        return left_out_sentence(self.left_out, self.left_out + sum(len(edit.locality) for edit in self.edits))

    @property
    def statuses(self) -> dict[str, int]:
        """Number of the stream's edits by status."""
        return dict(Counter(line["outcome"]["status"] for line in self.lines[: len(self.edits)]))

    @property
    def per_edit(self) -> list[EditScores]:
        """The scores by edit, of the headline readout."""
        return [_edit_scores(self.edits[i - 1], self.cells[t, i]) for t, i in self.readouts[0].cells]

    @property
    def so_far(self) -> list[float]:
        """Mean of `rel.gen_exact` right after each edit, over the edits so far; empty without protocol `online`."""
        if "online" not in self.schedule.protocols:
            return []
        online = (_rel(self.cells[t, t]) for t in range(1, len(self.edits) + 1))
        return [total / t for t, total in enumerate(accumulate(online), 1)]

    @property
    def gated(self) -> dict[str, Estimate]:
        """The metrics by `gate_names`: `@online` or `@online@10` names a readout, no suffix the headline."""
        suffixes = _suffixes(self.schedule)
        return {
            f"{name}{suffix}": value
            for suffix, readout in suffixes.items()
            for name, value in self.estimates[readout].items()
        }

    @property
    def base_answers(self) -> dict[str, str]:
        """Greedy answer of the untouched base to each edit's question, by id."""
        return {line["id"]: line["base"] for line in self.lines[: len(self.edits)]}

    @property
    def footprints(self) -> dict[int, dict[str, int]]:
        """What the editor kept, by number of edits, as in `editors.base.Footprint`."""
        return {line["t"]: line["footprint"] for line in self.lines if "footprint" in line}

    @property
    def cost(self) -> float:
        """Samples sent forward and backward per edit, as in `EditOutcome`."""
        stream = self.lines[: len(self.edits)]
        return float(sum(line["outcome"]["cost"] + line["catch_up"] for line in stream)) / len(stream)


def gate_names(schedule: Schedule) -> list[str]:
    """Return every metric name that a gate on a run may use."""
    return [f"{name}{suffix}" for suffix in _suffixes(schedule) for name in full_names()]


def _suffixes(schedule: Schedule) -> dict[str, str]:
    """Return readouts by the suffix of a metric: none, a protocol (then its last checkpoint), or a readout's name."""
    suffixes: dict[str, str] = {}
    for readout in schedule.readouts():
        for suffix in ("", f"@{readout.name.partition('@')[0]}", f"@{readout.name}"):
            suffixes.setdefault(suffix, readout.name)
    return suffixes


def cells_of(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Cell, list[dict[str, Any]]]]:
    """Yield every score by (t, i): what the model says by itself is no success of an edit that was refused."""
    refused = {(line["t"] == SINGLE, line["id"]) for line in lines if line["outcome"]["status"] == "refused"}
    ids = {line["t"]: line["id"] for line in lines if line["t"] != SINGLE}
    for line in lines:
        for i, scores in line["scores"].items():
            lost = (line["t"] == SINGLE, ids[int(i)]) in refused
            yield (line["t"], int(i)), [_unsuccessful(score) for score in scores] if lost else scores


def _unsuccessful(score: dict[str, Any]) -> dict[str, Any]:
    if is_locality(score["kind"]):
        return score
    return score | {"values": score["values"] | dict.fromkeys(SUCCESS_METRICS, 0.0)}


def _preset_values(
    preset: Preset, readout: Readout, cells: Mapping[Cell, Sequence[Mapping[str, Any]]]
) -> dict[str, Estimate]:
    columns = preset.pick(summary(readout, cells))
    averages = [preset.average(_by_name(cells[cell])) for cell in readout.cells]
    whole = [average for average in averages if average is not None]
    return columns | ({"Avg": estimate(whole)} if whole else {})


def _edit_scores(edit: Edit, values: Sequence[Mapping[str, Any]]) -> EditScores:
    scores = [
        ProbeScore(probe, dict(score["values"]), score["answer"], score["base"])
        for probe, score in zip(probes_of(edit), values, strict=True)
    ]
    return EditScores(edit.id, tuple(scores))


def _rel(scores: Sequence[Mapping[str, Any]]) -> float:
    return next(float(score["values"]["gen_exact"]) for score in scores if score["kind"] == "rel")


def summary(readout: Readout, cells: Mapping[Cell, Sequence[Mapping[str, Any]]]) -> dict[str, Estimate]:
    """Return every metric of one readout, by its full name."""
    values, edits = dict[str, list[float]](), dict[str, list[int]]()
    for cell in readout.cells:
        for name, found in _by_name(cells[cell]).items():
            values.setdefault(name, []).extend(found)
            edits.setdefault(name, []).extend([cell[1]] * len(found))
    order = {group: number for number, group in enumerate(all_groups())}
    names = sorted(values, key=lambda name: order[name.partition(".")[0]])
    return {name: estimate(values[name], edits[name]) for name in names}


def _by_name(scores: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the values of all probes by the metric's full name."""
    values: dict[str, list[float]] = {}
    for score in scores:
        for group in groups(score["kind"], score["hop"]):
            for metric, value in score["values"].items():
                values.setdefault(f"{group}.{metric}", []).append(float(value))
    return values
