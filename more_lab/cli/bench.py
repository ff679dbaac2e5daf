"""`more bench`: measures what an edit costs on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.failures import INTERRUPTED
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.errors import UsageError
from more_cli.model.machine import Machine
from more_cli.options import RecipeOptions, given, option
from more_cli.store.project import settings_for
from more_cli.store.target import Target, locate
from more_cli.text import counted
from more_lab.cli import suite_options as suites

if TYPE_CHECKING:
    from more_lab.bench.run import BenchReport
    from more_lab.experiments.scaling import Trend

MIB = 1 << 20
_RATIOS = {
    "edit_over_floor": "edit / floor of its writes",
    "step_over_floor": "writes of an edit / their floor",
    "lora_step_over_step": "LoRA step / write",
    "lora_step_over_later_step": "LoRA step / write after the first of an edit",
}


@dataclass(frozen=True)
class TimedOptions:
    """What is timed, on which edits."""

    floor: bool = option(False, "Also time a bare PyTorch loop on the same batches, edit by edit.", "--floor")
    peers: bool = option(False, "Also time PEFT LoRA with SGD on the same batches, sites and ranks.", "--peers")
    plot: Path | None = option(None, "Plot latency and memory over the stream (.png, .svg, .pdf).", metavar="FILE")
    limit: int | None = option(None, "Only the first N edits. [default: all; 24 random ones]", metavar="N", least=1)
    seed: int = option(0, "Seed of the random edits.", metavar="N", least=0)
    anchors: Path | None = option(None, "Anchors for a new state, as in `init`.", metavar="FILE")
    save_every: int = option(10, "Write the state every N edits (and every 30 s).", metavar="N", least=1)


@command
def bench(
    model: opt.ModelFolder,
    edits: Annotated[
        Path | None,
        typer.Argument(metavar="EDITS", help="JSON Lines file. [default: edits on random pictures]"),
    ] = None,
    state: opt.StateFile = None,
    image_root: suites.ImageRoot = None,
    *,
    timed: TimedOptions,
    chosen: RecipeOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Measure what an edit costs, part by part.

    Runs in a temporary folder (TMPDIR) on a copy of the state, or on a new state if MODEL has none or if --recipe,
    --set or --anchors is given.

    \b
    Examples:
      more bench llava/
      more bench llava/ edits.jsonl --floor --peers --plot bench.svg
    """
    from more_lab.bench.plot import check_plot, draw_plot
    from more_lab.bench.run import BenchOptions, samples_for
    from more_lab.bench.run import bench as run

    if edits is not None and "--seed" in given(timed):
        raise UsageError(f"`--seed` draws random edits, and `{edits}` was given", "leave one of the two out")
    if timed.plot is not None:
        check_plot(timed.plot)
    target = _located(model, state, new=chosen != RecipeOptions() or timed.anchors is not None)
    offered, limit = None, timed.limit
    if edits is None and timed.anchors is None:
        edits, offered, limit = samples_for(
            model, limit, fresh=not target.sidecar.exists() or chosen != RecipeOptions()
        )
    options = BenchOptions(
        edits=edits,
        anchors=timed.anchors,
        offered=offered,
        recipe=chosen.recipe,
        settings=chosen.settings,
        image_root=image_root,
        limit=limit,
        save_every=timed.save_every,
        seed=timed.seed,
        floor=timed.floor,
        peers=timed.peers,
    )
    with output.progress() as progress:
        report = run(target, options, machine, progress)
    if timed.plot is not None and report.edits:
        draw_plot(report, timed.plot)
    _show(output, report)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def _located(model: Path, state: Path | None, *, new: bool) -> Target:
    """Return the checkpoint and its state; one that is named, in `more.toml` too if no `new` one is made, is there."""
    from more_cli.store.state import load_meta

    target = locate(model, state)
    if state is not None:
        target.require_state()
    elif "state" in settings_for(model) and not new:
        load_meta(target.sidecar)
    return target


def _show(output: Output, report: BenchReport) -> None:
    if output.as_json:
        from more_lab.outputs.experiments import BenchOutput

        output.json(BenchOutput.of_report(report))
    if not report.edits:
        return
    writes, count = sum(edit.writes for edit in report.edits), len(report.edits)
    done = f"{counted(count, 'edit')}, {counted(writes, 'write')}"
    output.line(f"{report.source}: {done} in {report.seconds:.2f} s")
    output.line(f"{count / report.seconds:.2f} edits a second; the first took {report.edits[0].lap.seconds:.3f} s")
    output.table(
        ("part", "ms an edit", "share"),
        [
            (part, f"{1000 * seconds / count:.2f}", f"{seconds / report.seconds:.1%}")
            for part, seconds in report.parts.items()
        ],
        numbers=("ms an edit", "share"),
    )
    output.line()
    output.table(
        ("quantity", "median", "change over the stream", "95 % interval"),
        [(_words(name), _amount(name, trend.median), *_change(name, trend)) for name, trend in report.trends.items()],
        numbers=("median", "change over the stream", "95 % interval"),
    )
    output.table(
        ("ratio", "median", "95 % interval", "n"),
        [
            (_RATIOS[name], f"{ratio.value:.2f}", f"{ratio.low:.2f} {ratio.high:.2f}", ratio.n)
            for name, ratio in report.ratios.items()
        ],
        numbers=("median", "95 % interval", "n"),
    )


def _words(name: str) -> str:
    return name.rpartition("_")[0].replace("_", " ") if name != "seconds_per_write" else "seconds per write"


def _change(name: str, trend: Trend) -> tuple[str, str]:
    """Return the change and its interval in the quantity's own unit: as a share it could be below -100 %."""
    change, low, high = (_amount(name, share * trend.median, "+") for share in (trend.growth, trend.low, trend.high))
    return change, f"{low} to {high}"


def _amount(name: str, value: float, sign: str = "") -> str:
    return f"{value / MIB:{sign}.2f} MiB" if name.endswith("bytes") else f"{1000 * value:{sign}.1f} ms"
