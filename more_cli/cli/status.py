"""`more status`: shows a state, or what `init` would choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from more_cli.cli import options as opt
from more_cli.cli.hub import fetched
from more_cli.cli.init import show_notices
from more_cli.cli.output import Output
from more_cli.cli.project import in_force, recipe_of
from more_cli.cli.records import command
from more_cli.errors import UsageError
from more_cli.model.machine import GIB, Machine
from more_cli.options import HubOptions
from more_cli.store.names import sidecar_path
from more_cli.store.project import settings_for
from more_cli.store.target import locate
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.cli.project import InForce
    from more_cli.model.backbones import Site
    from more_cli.ops.estimate import Estimate
    from more_cli.ops.plan import Plan
    from more_cli.ops.status import StatusReport
    from more_cli.store.state import SiteRecord, StateMeta

AnySite = TypeVar("AnySite")


@command
def status(
    ctx: typer.Context,
    model: opt.Model = None,
    state: opt.StateFile = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Also show how much memory editing needs, part by part.")
    ] = False,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="With --estimate: length of a sequence, in tokens.")
    ] = None,
    signers: opt.Signers = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show instead every setting in force and where it comes from.")
    ] = False,
    *,
    hub: HubOptions,
    machine: Machine,
    output: Output,
) -> None:
    """Show a state or, if there is none, what `init` would choose.

    Sites are weights that can be edited. Those of one group and shape share a line; with -v each has its own.

    \b
    Examples:
      more status llava/
      more status llava/ --estimate
    """
    from more_cli.ops.status import estimated
    from more_cli.ops.status import status as run

    if settings:
        _show_settings(output, list(in_force(ctx)))
        return
    if tokens and not estimate:
        raise UsageError("--tokens needs --estimate", "add --estimate, or leave --tokens out")
    target = locate(*fetched(output, model, state, hub))
    recipe = None if target.sidecar.exists() else recipe_of(settings_for(target.model))
    report = run(target, signers, recipe)
    if estimate:
        report = estimated(report, machine, tokens)
    _show_status(output, report)


def _show_settings(output: Output, found: Sequence[InForce]) -> None:
    from more_cli.outputs.states import SettingsOutput

    output.json(SettingsOutput(settings=found))
    rows = [(each.key, _said(each.value), f"{each.origin} {each.place}".rstrip()) for each in found]
    output.table(("setting", "value", "from"), rows)


def _said(value: str | list[str] | None) -> str:
    return ", ".join(value) if isinstance(value, list) else value or "-"


def _show_status(output: Output, report: StatusReport) -> None:
    if output.as_json:
        from more_cli.outputs.states import StatusOutput

        output.json(StatusOutput.of_report(report))
    if report.state is not None:
        _show_state(output, report, report.state)
    if report.plan is not None:
        _show_plan(output, report, report.plan)
    if report.estimate is not None:
        _show_estimate(output, report.estimate)
    if report.plan is not None:
        show_notices(output, report.plan)


def _show_state(output: Output, report: StatusReport, meta: StateMeta) -> None:
    from more_cli.store.entry import failed_sentence

    disk = report.disk
    statuses = ", ".join(f"{count:,} {status}" for status, count in report.statuses.items()) or "none yet"
    output.fields(
        {
            "state": str(report.target.sidecar),
            "name": report.naming,
            "base": str(report.pin or ""),
            "recipe": f"{meta.recipe.name}, editor {meta.recipe.editor}",
            "extensions": report.extensions or "none, as in the paper",
            "switches": report.switches,
            "rank": report.rank,
            "edits": f"{sum(report.statuses.values()):,} ({statuses})",
            "failed": failed_sentence(report.failed, report.asked) if report.failed else "",
            "anchors": str(report.held) if report.held.total else "",
            "drift": report.drift.sentence if report.drift else "",
            "ledger": f"{counted(report.disk.behind, 'line')} not in the state yet"
            if report.disk.behind
            else "all in the state",
            "signed": f"no: {report.signature}" if isinstance(report.signature, str) else str(report.signature),
            "size": f"state {disk.sidecar:,} bytes, ledger and images {disk.folder - disk.snapshots:,} bytes"
            + (f", snapshots {disk.snapshots:,} bytes" if disk.snapshots else ""),
        }
    )
    output.line()
    if output.verbose:
        output.table(
            ("site", "shape", "rank", "lambda", "keys"),
            [(site.name, _shape(site), site.rank, _range([site.ridge]), site.keys) for site in meta.sites],
            numbers=("rank", "lambda", "keys"),
        )
    else:
        output.table(
            ("sites", "layers", "count", "shape", "rank", "lambda", "keys"),
            [
                (
                    *_alike(sites),
                    sites[0].rank,
                    _range([site.ridge for site in sites]),
                    _range([site.keys for site in sites]),
                )
                for sites in _grouped(meta.sites, lambda site: (site.group, site.shape, site.rank))
            ],
            numbers=("count", "rank", "lambda", "keys"),
        )
    if report.failed:
        output.note(f"hint: `more edit {report.target.typed} --retry` tries them again; `more log show ID` says why")
    if not report.held.total and meta.recipe.anchors.size:
        command = f"`more anchors add {report.target.typed} FILE`"
        output.note(f"note: no anchors; {command} protects answers that must not change")


def _show_plan(output: Output, report: StatusReport, plan: Plan) -> None:
    target = report.target
    output.line(f"no state yet; `more init {target.typed}` would use recipe {plan.recipe.name} on:")
    if target.sidecar != sidecar_path(target.model):
        output.note(f"note: the state in use is `{target.sidecar}`, which is not there")
    if output.verbose:
        output.table(
            ("site", "module", "tensor on disk", "shape"),
            [(site.name, site.module, site.disk_key, _shape(site)) for site in plan.sites],
        )
    else:
        output.table(
            ("sites", "layers", "count", "shape"),
            [_alike(sites) for sites in _grouped(plan.sites, lambda site: (site.group, site.shape))],
            numbers=("count",),
        )
    output.fields({"rank": report.rank})


def _grouped(sites: Sequence[AnySite], kind: Callable[[AnySite], object]) -> list[list[AnySite]]:
    """Return sites of one kind together, in the order in which each kind first occurs."""
    groups: dict[object, list[AnySite]] = {}
    for site in sites:
        groups.setdefault(kind(site), []).append(site)
    return list(groups.values())


def _alike(sites: Sequence[Site | SiteRecord]) -> tuple[str, str, int, str]:
    """Return group, layers, number and shape of sites of one shape."""
    layers = sorted({int(part) for site in sites for part in site.name.split(".")[1:2] if part.isdecimal()})
    return sites[0].group, _runs(layers), len(sites), _shape(sites[0])


def _runs(numbers: Sequence[int]) -> str:
    """Return sorted numbers as runs: `1-7, 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _shape(site: Site | SiteRecord) -> str:
    return f"{site.shape[0]} x {site.shape[1]}"


def _range(values: Sequence[float | None]) -> str:
    """Return the least and the greatest of some numbers, or the one that all are."""
    known = sorted({value for value in values if value is not None})
    if not known:
        return "not set"
    return " to ".join(f"{value:.4g}" for value in dict.fromkeys((known[0], known[-1])))


def _show_estimate(output: Output, estimate: Estimate) -> None:
    rows = [(part.name, f"{part.bytes / GIB:.2f}", part.note) for part in estimate.parts]
    rows.append(("total", f"{estimate.total / GIB:.2f}", f"sequences of {estimate.tokens} tokens"))
    output.line()
    output.table(("memory", "GiB", "used for"), rows, numbers=("GiB",))
    free = "unknown" if estimate.free is None else f"{estimate.free / GIB:.2f} GiB"
    output.line(f"free: {free}; size of the state on disk: {estimate.state / GIB:.2f} GiB")
