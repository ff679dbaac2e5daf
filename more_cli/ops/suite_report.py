"""What is read off a run of an editor through a suite: every protocol of the one score matrix, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from more_cli.edits import Edit
from more_cli.evaluation.metrics import Estimate, change, estimate
from more_cli.evaluation.names import Yardstick, all_groups, groups
from more_cli.evaluation.presets import Preset
from more_cli.evaluation.probes import Probe, probes_of
from more_cli.evaluation.protocols import Cell, Readout, Schedule, first_failing, forgetting, retained
from more_cli.files import canonical_json, sha256_bytes
from more_cli.suites.load import EditSuite


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

    @property
    def yardstick(self) -> Yardstick:
        """How locality was measured."""
        return self.preset.yardstick if self.preset else Yardstick()

    @property
    def statuses(self) -> dict[str, int]:
        """How many edits of the stream ended how."""
        found: dict[str, int] = {}
        for line in self.lines[: len(self.edits)]:
            found[line["outcome"]["status"]] = found.get(line["outcome"]["status"], 0) + 1
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


def per_edit(report: SuiteReport) -> list[dict[str, Any]]:
    """Return every edit with its values in the headline, by the metric's full name, one a probe."""
    headline = next(iter(report.schedule.readouts()))
    return [
        {
            "id": report.edits[i - 1].id,
            "probes": probes_hash(report.edits[i - 1]),
            "values": _by_name(report.cells[t, i]),
        }
        for t, i in headline.cells
    ]


def probes_hash(edit: Edit) -> str:
    """Return the SHA-256 over what an edit's probes ask and expect: runs with the same probes can be compared."""
    return sha256_bytes(canonical_json([_content(probe) for probe in probes_of(edit)]).encode())


def _content(probe: Probe) -> list[object]:
    return [probe.kind, [image.sha256 for image in probe.query.images], probe.query.question, probe.target]
