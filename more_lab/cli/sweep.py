"""`more sweep`: runs a grid of trials, or one stream of edits on many checkpoints, here or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.errors import FailedEditsError, UsageError
from more_cli.options import OUTPUT, option
from more_cli.text import counted
from more_lab.sweep.place import Place

if TYPE_CHECKING:
    from more_cli.render.page import Page
    from more_lab.sweep.file import SweepFile
    from more_lab.sweep.fleet import FleetReport
    from more_lab.sweep.folder import SweepFolder
    from more_lab.sweep.jobs import Job, Runner
    from more_lab.sweep.report import SweepReport

EMBEDDED = "embedded:"
"""Prefix of a model of the package."""


@dataclass(frozen=True)
class JobOptions:
    """How many jobs run at a time, and where."""

    workers: int = option(1, "Trials at a time on this machine.", metavar="N", least=1)
    address: str | None = option(None, "Run on this Ray cluster; local starts one here.", metavar="auto|ray://..")
    gpus: float = option(0, "With --address: GPUs of each trial.", "--gpus-per-trial", metavar="N", least=0)
    cache: Path | None = option(None, "Folder that caches base answers and unfinished runs.", metavar="DIR")

    def check(self) -> None:
        """Refuse options that exclude each other.

        Raises:
            UsageError: they do.
        """
        if self.gpus and self.address is None:
            raise UsageError(
                "`--gpus-per-trial` needs `--address`", "add --address auto, or leave --gpus-per-trial out"
            )
        if self.address is not None and self.workers > 1:
            raise UsageError(
                "`--workers` and `--address` were both given", "the cluster decides how many run at a time"
            )


@command
def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="TOML file with a grid or a fleet; see docs/research/sweeps.md.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for results and report.")] = ...,  # type: ignore[assignment]
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            "-n",
            help="List what would run, and how long it would take, judged by the trials in DIR.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    *,
    resources: JobOptions,
    place: Place,
    output: Output,
) -> None:
    """Run every combination of a grid as a trial, or one stream of edits on many checkpoints.

    A trial is one `more run`. After an interruption, run the same command again: what is done is kept.

    \b
    Examples:
      more sweep rank.toml -o rank/ --workers 4
      more sweep rank.toml -o rank/ --address auto --gpus-per-trial 1 --device cuda
      more sweep fleet.toml -o fleet/ --dry-run
    """
    resources.check()
    from more_lab.sweep.file import Fleet, read_sweep
    from more_lab.sweep.fleet import FleetReport, make_fleet
    from more_lab.sweep.folder import SweepFolder, run_jobs
    from more_lab.sweep.jobs import here
    from more_lab.sweep.report import SweepReport
    from more_lab.sweep.trials import Setup, make_trials

    found, folder = read_sweep(file), SweepFolder(out)
    folder.check()
    if resources.address is None:
        _ = place.machine  # a device that there is not: said once, not by every trial
    runner = here if dry_run else _runner(resources)
    setup = Setup(
        _models(found), place, found.table.threads or _threads(resources.workers, resources.address), resources.cache
    )
    members = make_fleet(found, setup, out) if isinstance(found.table, Fleet) else None
    trials = make_trials(found, setup) if members is None else []
    jobs = trials if members is None else members
    if dry_run:
        _show_plan(output, found, jobs, folder)
        return
    with output.progress() as progress:
        done = run_jobs(jobs, folder, runner, progress)
    if members is None:
        _finish_grid(output, folder, SweepReport(found, trials, done))
    else:
        _finish_fleet(output, folder, FleetReport(found, members, done))


def _runner(resources: JobOptions) -> Runner:
    from more_lab.sweep.jobs import here, on_ray, processes

    if resources.address is not None:
        return on_ray(resources.address, resources.gpus)
    return processes(resources.workers) if resources.workers > 1 else here


def _threads(workers: int, address: str | None) -> int:
    """Return the threads of one trial: the cores divided among the workers; on a cluster one."""
    import torch

    return 1 if address is not None else max(1, torch.get_num_threads() // workers)


def _models(found: SweepFile) -> dict[str, Path]:
    from more_cli.demo.files import demo_model_dir

    models = dict[str, Path]()
    for name in found.table.models:
        family = name.removeprefix(EMBEDDED)
        models[name] = found.beside(name) if family == name else demo_model_dir(family)
        if family != name and not (family.isidentifier() and models[name].is_dir()):
            raise UsageError(f"{found.path}: `models`: there is no `{name}`", f"the package has {EMBEDDED}llava")
    return models


def _show_plan(output: Output, found: SweepFile, jobs: Sequence[Job], folder: SweepFolder) -> None:
    """Show what would run, and how long it takes if equal work was done before in this folder."""
    from more_lab.outputs.experiments import PlannedJob, SweepPlanOutput, problems_of
    from more_lab.sweep.folder import unfinished

    missing, times = unfinished(jobs, folder), folder.times()
    seconds = {job.key: times.get(job.group) for job in missing}
    keys = {job.key for job in jobs if job.key}
    output.json(
        SweepPlanOutput(
            file=found.path,
            done=len(keys) - len(missing),
            jobs=[PlannedJob.of(job, seconds=seconds[job.key]) for job in missing],
            problems=problems_of({job.label: job.problem for job in jobs if job.problem}),
        )
    )
    output.table(
        ("key", "what", "time"),
        [(job.key[:8], job.label, _time(seconds[job.key])) for job in missing],
        numbers=("time",),
    )
    known = [each for each in seconds.values() if each is not None]
    rest = f", and {len(missing) - len(known)} of unknown time" if len(known) < len(missing) else ""
    total = f"{_time(sum(known))} one after the other{rest}" if known or not missing else "time unknown"
    if keys:
        output.line(f"{len(missing)} of {len(keys)} to run: {total}; nothing written")
    problems = {job.label: job.problem for job in jobs if job.problem}
    for label, problem in problems.items():
        output.line(f"cannot run: {label}: {problem}")
    if problems:
        hint = f"the lines `cannot run` say why{'; the others would run' if keys else ''}"
        raise FailedEditsError(f"{len(problems)} of {counted(len(jobs), 'job')} cannot run", hint)


def _time(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:,.0f} s"


def _finish_grid(output: Output, folder: SweepFolder, report: SweepReport) -> None:
    from more_lab.outputs.experiments import SweepOutput, Trial, problems_of
    from more_lab.render.sweep import draw_figures, of_sweep, shown_metrics, trial_rows
    from more_lab.sweep.folder import FIGURE

    _write(folder, report.lines, of_sweep(report))
    draw_figures(report, folder.path / FIGURE)
    # On a terminal one metric of each kind of probe; the report has all.
    names = list({name.partition(".")[0]: name for name in reversed(shown_metrics(report))}.values())[::-1]
    output.json(
        SweepOutput(
            file=report.file.path,
            out=folder.path,
            trials=[Trial(key=trial.key, label=label) for label, trial in report.finished.items()],
            repeated=report.repeated,
            problems=problems_of(report.done.problems),
        )
    )
    output.table(("trial", *names, "cost"), trial_rows(report, names), numbers=(*names, "cost"))
    if report.repeated:
        output.note(f"note: {counted(report.repeated, 'combination')} left out: the same trial as another one")
    _close(output, folder, report.done.problems, len(report.finished), "trial")


def _finish_fleet(output: Output, folder: SweepFolder, report: FleetReport) -> None:
    from more_lab.outputs.experiments import SweepFleetOutput, problems_of
    from more_lab.render.sweep import FLEET, fleet_rows, of_fleet

    _write(folder, report.lines, of_fleet(report))
    output.json(
        SweepFleetOutput(
            file=report.file.path,
            out=folder.path,
            checkpoints=list(report.lines.values()),
            problems=problems_of(report.done.problems),
        )
    )
    output.table(FLEET, fleet_rows(report), numbers=("edits", "rel.gen_exact"))
    _close(output, folder, report.done.problems, len(report.lines), "checkpoint")
    if report.failed_edits:
        where = counted(len(report.failed_edits), "checkpoint")
        hint = "`more edit MODEL --state STATE --retry` tries them again; then the same command takes over what holds"
        raise FailedEditsError(f"edits do not stand in {where}: {', '.join(report.failed_edits)}", hint)


def _write(folder: SweepFolder, lines: Mapping[str, Mapping[str, Any]], page: Page) -> None:
    from more_cli.render.outlets import write_outlets
    from more_lab.sweep.folder import PAGES

    folder.write_results(lines)
    write_outlets(page, [folder.path / name for name in PAGES], None)


def _close(output: Output, folder: SweepFolder, problems: Mapping[str, str], done: int, noun: str) -> None:
    for label, reason in problems.items():
        output.line(f"failed: {label}: {reason}")
    output.note(f"results: {folder.path / 'results.jsonl'}; report: {folder.path / 'report.html'}")
    if problems:
        failed = f"{len(problems)} of {counted(len(problems) + done, noun)} failed"
        raise FailedEditsError(failed, "the lines `failed` say why; mend that, then the same command tries them again")
