"""`more revert` and `more gc`: taking edits back, and clearing away what that leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli import options as opt
from more_cli.cli.failures import EDITS_FAILED, INTERRUPTED
from more_cli.cli.output import Output

if TYPE_CHECKING:
    from more_cli.ops.gc import GcReport
    from more_cli.ops.revert import RevertReport, Wish

_SHOWN = 20
"""Rows of a list that people see; `--json` has them all."""


def revert(
    model: opt.ModelFolder,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Edits to take back.")] = None,
    to: Annotated[int | None, typer.Option(min=0, metavar="N", help="Take back all edits after the N-th.")] = None,
    last: Annotated[int | None, typer.Option(min=1, metavar="K", help="Take back the last K edits.")] = None,
    state: opt.StateFile = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Take edits back: the state becomes that of a run that never had them.

    What was edited after them is edited again, so it may take as long as that did. Until it is finished the old state
    stands; run it again after an interruption: it continues.

    \b
    Examples:
      more revert llava/ e17 e18
      more revert llava/ --last 3 --dry-run
      more revert llava/ --to 100
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.revert import revert as run
    from more_cli.store.target import locate

    wish, target = _wish(ids or [], to, last), locate(model, state)
    with output.progress() as progress:
        report = run(target, wish, opt.machine(device, dtype, device_map, memory), dry_run=dry_run, progress=progress)
    _show_revert(output, report)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.failed:
        raise typer.Exit(EDITS_FAILED)


def gc(
    model: opt.Model = None,
    state: opt.StateFile = None,
    dry_run: opt.DryRun = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Remove what a state's folder can do without; never the ledger.

    That is: snapshots of earlier states, caches, unfinished reverts, and images that no line names.

    \b
    Examples:
      more gc llava/ --dry-run
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.gc import collect
    from more_cli.store.target import locate

    _show_gc(output, collect(locate(model, state), dry_run=dry_run))


def _wish(ids: list[str], to: int | None, last: int | None) -> Wish:
    from more_cli.errors import UsageError
    from more_cli.ops.revert import Wish

    if [bool(ids), to is not None, last is not None].count(True) != 1:
        raise UsageError("`revert` takes ids, --to N or --last K, one of them", "more revert MODEL ID...")
    return Wish(tuple(ids), to, last)


def _show_revert(output: Output, report: RevertReport) -> None:
    """Say what was taken back, what was made again, and what fares differently now."""
    plan = report.plan
    output.json("more.revert/1", _values(report))
    for note in report.notes:
        output.note(note)
    if report.dry_run:
        output.line(f"would take back {len(plan.gone)} edits and make {len(report.again)} again")
        _list(output, "would be taken back", plan.gone)
        _list(output, "would be made again", report.again)
        return
    if report.interrupted:
        output.note("interrupted, the state is as it was; run the same command again to continue")
        return
    if not plan.gone:
        output.line("nothing to take back")
        return
    output.table(
        ("edit", "before", "now"),
        [(id, *statuses) for id, statuses in list(report.changed.items())[:_SHOWN]],
    )
    made = f", {len(report.again)} made again" if report.again else ""
    output.line(f"{len(plan.gone)} edits taken back{made}; {len(report.changed)} others have another status now")
    if report.snapshot is not None:
        output.line(f"the state before is kept as {report.snapshot} until `more gc`")
    if report.failed:
        output.note(f"hint: these do not stand: {', '.join(report.failed[:_SHOWN])}")


def _list(output: Output, title: str, ids: list[str]) -> None:
    if ids:
        more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
        output.line(f"{title}: {', '.join(ids[:_SHOWN])}{more}")


def _values(report: RevertReport) -> dict[str, Any]:
    return {
        "state": str(report.target.sidecar),
        "reverted": report.plan.gone,
        "kept": report.plan.kept,
        "again": report.again,
        "replayed": report.replayed,
        "statuses": report.statuses,
        "changed": {id: list(statuses) for id, statuses in report.changed.items()},
        "failed": report.failed,
        "snapshot": str(report.snapshot) if report.snapshot else None,
        "notes": report.notes,
        "interrupted": report.interrupted,
        "dry_run": report.dry_run,
        "wall_seconds": round(report.wall_seconds, 3),
    }


def _show_gc(output: Output, report: GcReport) -> None:
    """List what was removed, or would be."""
    values = {"state": str(report.target.sidecar), "files": report.files, "bytes": report.size}
    output.json("more.gc/1", values | {"dry_run": report.dry_run})
    output.table(("file", "bytes"), [(name, f"{size:,}") for name, size in report.files.items()], numbers=("bytes",))
    verb = "would remove" if report.dry_run else "removed"
    output.line(f"{verb} {len(report.files)} files, {report.size:,} bytes")
