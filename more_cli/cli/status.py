"""`more status`: shows a state, or what `init` would choose."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli import options as opt
from more_cli.cli.init import show_notices
from more_cli.cli.output import Output
from more_cli.store.target import locate

if TYPE_CHECKING:
    from more_cli.ops.estimate import Estimate
    from more_cli.ops.init import Plan
    from more_cli.ops.status import StatusReport
    from more_cli.store.state import StateMeta

GIB = 1 << 30


def status(
    model: opt.Model = None,
    state: opt.StateFile = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Also show how much memory editing needs, part by part.")
    ] = False,
    tokens: Annotated[int | None, typer.Option(min=1, help="With --estimate: tokens of a sequence.")] = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Show a state or, if there is none, what `init` would choose.

    \b
    Examples:
      more status llava/
      more status llava/ --estimate
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.status import estimated
    from more_cli.ops.status import status as run

    report = run(locate(model, state))
    if estimate:
        report = estimated(report, opt.machine(device, dtype, device_map, memory), tokens)
    _show_status(output, report)


def _show_status(output: Output, report: StatusReport) -> None:
    output.json("more.status/1", _values(report))
    if report.state is not None:
        _show_state(output, report, report.state)
    if report.plan is not None:
        _show_plan(output, report, report.plan)
    if report.estimate is not None:
        _show_estimate(output, report.estimate)
    if report.plan is not None:
        show_notices(output, report.plan)


def _show_state(output: Output, report: StatusReport, meta: StateMeta) -> None:
    if not report.anchors and meta.recipe.anchors.size:
        output.note("note: no anchors; `init --anchors FILE` protects answers that must not change")
    statuses = ", ".join(f"{count} {status}" for status, count in report.statuses.items()) or "none yet"
    output.line(f"{report.target.sidecar}: recipe {meta.recipe.name}, editor {meta.recipe.editor}")
    output.line(f"extensions: {', '.join(report.extensions) or 'none, as in the paper'}")
    output.line(
        f"edits: {sum(report.statuses.values())} ({statuses}); ledger lines not in the state yet: {report.behind}"
    )
    output.line(f"size: state {report.sidecar_bytes:,} bytes, ledger and images {report.ledger_bytes:,} bytes")
    output.table(
        ("site", "shape", "rank", "lambda", "keys"),
        [
            (s.name, f"{s.shape[0]} x {s.shape[1]}", s.rank, f"{s.ridge:.4g}" if s.ridge else "not set", s.keys)
            for s in meta.sites
        ],
        numbers=("rank", "lambda", "keys"),
    )


def _show_plan(output: Output, report: StatusReport, plan: Plan) -> None:
    output.line(f"no state yet; `more init {report.target.model}` would use recipe {plan.recipe.name} on:")
    output.table(
        ("site", "module", "tensor on disk", "shape"),
        [(site.name, site.module, site.disk_key, f"{site.shape[0]} x {site.shape[1]}") for site in plan.sites],
    )


def _show_estimate(output: Output, estimate: Estimate) -> None:
    rows = [(part.name, f"{part.bytes / GIB:.2f}", part.note) for part in estimate.parts]
    rows.append(("total", f"{estimate.total / GIB:.2f}", f"sequences of {estimate.tokens} tokens"))
    output.line()
    output.table(("memory", "GiB", "used for"), rows, numbers=("GiB",))
    free = "unknown" if estimate.free is None else f"{estimate.free / GIB:.2f} GiB"
    output.line(f"free: {free}; size of the state on disk: {estimate.state / GIB:.2f} GiB")


def _values(report: StatusReport) -> dict[str, Any]:
    state, plan = report.state, report.plan
    return {
        "model": str(report.target.model),
        "state": str(report.target.sidecar) if state else None,
        "edits": state.edits if state else 0,
        "statuses": report.statuses,
        "behind": report.behind,
        "extensions": report.extensions,
        "anchors": report.anchors,
        "sidecar_bytes": report.sidecar_bytes,
        "ledger_bytes": report.ledger_bytes,
        "recipe": report.recipe.canonical(),
        "sites": [asdict(site) for site in plan.sites] if plan else [site.model_dump() for site in report.records],
        "refusals": [asdict(refusal) for refusal in plan.refusals] if plan else [],
        "key_method": plan.key_method if plan else None,
        "estimate": _estimate_values(report.estimate) if report.estimate else None,
    }


def _estimate_values(estimate: Estimate) -> dict[str, Any]:
    return {
        "parts": {part.name: part.bytes for part in estimate.parts},
        "total": estimate.total,
        "free": estimate.free,
        "tokens": estimate.tokens,
        "samples": estimate.samples,
        "state": estimate.state,
    }
