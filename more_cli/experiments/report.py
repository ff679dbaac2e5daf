"""What is read off a run of an editor through a suite: every protocol of the one score matrix, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from more_cli.evaluation.gates import Judgement
from more_cli.evaluation.metrics import Estimate, change, estimate
from more_cli.evaluation.names import Yardstick, all_groups, full_names, groups
from more_cli.evaluation.per_edit import EditScores
from more_cli.evaluation.probes import ProbeScore, probes_of
from more_cli.experiments.presets import Preset
from more_cli.experiments.protocols import Cell, Readout, Schedule, first_failing, forgetting, retained
from more_cli.inputs.edits import Edit
from more_cli.suites.load import EditSuite

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
"""What people see of a run; `--json` has every metric."""


@dataclass
class SuiteReport:
    """What one run measured."""

    suite: EditSuite
    model: Path
    editor: str
    edits: list[Edit]
    available: int
    """Edits that the suite has."""
    schedule: Schedule
    headline: str
    """The readout that speaks for the run, such as `final@100`."""
    estimates: dict[str, dict[str, Estimate]]
    """By readout, such as `online@10`, then by the metric's full name."""
    cells: dict[Cell, list[dict[str, Any]]]
    """Every score, by (t, i)."""
    lines: list[dict[str, Any]]
    """What became of each edit, in order, the single ones after the stream's."""
    reproduce: dict[str, Any]
    """Base, editor's constants, template, suite and versions: what is needed to get these numbers again."""
    forgetting: Estimate | None
    """`rel.gen_exact` right after an edit minus at the end, where both were measured."""
    first_failing: str | None
    """The first edit that does not hold in the headline."""
    retention: dict[int, Estimate]
    """`rel.gen_exact` by how many edits came after; 0 is protocol `online`."""
    lost: dict[int, Estimate]
    """The forgetting curve: what right after an edit was more, where both were measured, by how many came after."""
    preset: Preset | None = None
    preset_values: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    """By readout, then as the preset's source calls it, `Avg` being the mean of an edit's columns."""
    base_asked: int = 0
    """Locality probes that the base had to be asked, the others being known from an earlier run."""
    resumed: int = 0
    """Steps known from an earlier run."""
    seconds: float = 0.0
    gates: list[Judgement] = field(default_factory=list)

    @property
    def yardstick(self) -> Yardstick:
        """How locality was measured."""
        return self.preset.yardstick if self.preset else Yardstick()

    @property
    def locality(self) -> str:
        """The same in words."""
        baseline = {"base": "the base", "prev": "the model just before each edit"}[self.yardstick.baseline]
        prefix = {"own": "", "gold": ", on the suite's answers"}[self.yardstick.prefix]
        return f"locality against {baseline}{prefix}"

    @property
    def statuses(self) -> dict[str, int]:
        """How many edits of the stream ended how."""
        found: dict[str, int] = {}
        for line in self.lines[: len(self.edits)]:
            found[line["outcome"]["status"]] = found.get(line["outcome"]["status"], 0) + 1
        return found

    @property
    def per_edit(self) -> list[EditScores]:
        """The scores by edit, in the headline."""
        cells = next(iter(self.schedule.readouts())).cells
        return [_edit_scores(self.edits[i - 1], self.cells[t, i]) for t, i in cells]

    @property
    def so_far(self) -> list[float]:
        """Mean of `rel.gen_exact` right after each edit, over the edits so far; nothing where that was not measured."""
        if "online" not in self.schedule.protocols:
            return []
        online = (_rel(self.cells[t, t]) for t in range(1, len(self.edits) + 1))
        return [total / t for t, total in enumerate(accumulate(online), 1)]

    @property
    def gated(self) -> dict[str, Estimate]:
        """Every metric by the names of `gate_names`: alone the headline's, with `@online` or `@online@10` another's."""
        places = _places(self.schedule)
        return {
            f"{name}{place}": value
            for place, readout in places.items()
            for name, value in self.estimates[readout].items()
        }

    @property
    def base_answers(self) -> dict[str, str]:
        """Greedy answer of the untouched base to each edit's question, by id."""
        return {line["id"]: line["base"] for line in self.lines[: len(self.edits)]}

    @property
    def cost(self) -> float:
        """Samples sent forward and backward per edit, as in `EditOutcome`."""
        stream = self.lines[: len(self.edits)]
        return float(sum(line["outcome"]["cost"] + line["catch_up"] for line in stream)) / len(stream)


def gate_names(schedule: Schedule) -> list[str]:
    """Return every name that a gate on a run may have."""
    return [f"{name}{place}" for place in _places(schedule) for name in full_names()]


def _places(schedule: Schedule) -> dict[str, str]:
    """Return the readouts by what stands behind a metric: nothing, a protocol at its last checkpoint, or a readout."""
    found: dict[str, str] = {}
    for readout in schedule.readouts():
        for place in ("", f"@{readout.name.partition('@')[0]}", f"@{readout.name}"):
            found.setdefault(place, readout.name)
    return found


def report(
    suite: EditSuite,
    model: Path,
    editor: str,
    edits: Sequence[Edit],
    schedule: Schedule,
    lines: Sequence[dict[str, Any]],
    reproduce: dict[str, Any],
    preset: Preset | None = None,
) -> SuiteReport:
    """Read everything off a finished run's lines."""
    cells = {(line["t"], int(i)): scores for line in lines for i, scores in line["scores"].items()}
    readouts = list(schedule.readouts())
    rel = {cell: _rel(scores) for cell, scores in cells.items()}
    lost = forgetting(rel, schedule.edits) if {"final", "online"} <= set(schedule.protocols) else []
    curve = {lag: forgetting(rel, schedule.edits, lag) for lag in schedule.measured_lags}
    first = first_failing(rel, readouts[0])
    return SuiteReport(
        suite=suite,
        model=model,
        editor=editor,
        edits=list(edits),
        available=len(suite.pools["evaluation"]),
        schedule=schedule,
        headline=readouts[0].name,
        estimates={readout.name: _summary(readout, cells) for readout in readouts},
        cells=cells,
        lines=list(lines),
        reproduce=reproduce,
        forgetting=change(lost) if lost else None,
        first_failing=edits[first - 1].id if first else None,
        retention={lag: estimate(retained(rel, schedule.edits, lag)) for lag in schedule.measured_lags},
        lost={lag: change(values) for lag, values in curve.items() if lag and values},
        preset=preset,
        preset_values={readout.name: _as_in(preset, readout, cells) for readout in readouts} if preset else {},
    )


def _as_in(preset: Preset, readout: Readout, cells: Mapping[Cell, Sequence[Mapping[str, Any]]]) -> dict[str, Estimate]:
    found = preset.pick(_summary(readout, cells))
    averages = [preset.average(_by_name(cells[cell])) for cell in readout.cells]
    whole = [average for average in averages if average is not None]
    return found | ({"Avg": estimate(whole)} if whole else {})


def _edit_scores(edit: Edit, found: Sequence[Mapping[str, Any]]) -> EditScores:
    scores = [
        ProbeScore(probe, dict(score["values"]), score["answer"], score["base"])
        for probe, score in zip(probes_of(edit), found, strict=True)
    ]
    return EditScores(edit.id, tuple(scores))


def _rel(scores: Sequence[Mapping[str, Any]]) -> float:
    return next(float(score["values"]["gen_exact"]) for score in scores if score["kind"] == "rel")


def _summary(readout: Readout, cells: Mapping[Cell, Sequence[Mapping[str, Any]]]) -> dict[str, Estimate]:
    found = _by_name(score for cell in readout.cells for score in cells[cell])
    order = {group: number for number, group in enumerate(all_groups())}
    return {name: estimate(found[name]) for name in sorted(found, key=lambda name: order[name.partition(".")[0]])}


def _by_name(scores: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the values of probes by the metric's full name."""
    found: dict[str, list[float]] = {}
    for score in scores:
        for group in groups(score["kind"], score["hop"]):
            for metric, value in score["values"].items():
                found.setdefault(f"{group}.{metric}", []).append(float(value))
    return found
