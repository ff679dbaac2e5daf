"""`more verify`: the ledger and what belongs to it, looked at by people and pipelines."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.output import Output, fail
from more_cli.errors import StateError

if TYPE_CHECKING:
    from more_cli.ops.verify import VerifyReport


def verify(
    model: opt.Model = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also hash every image and shard, and apply every edit again.")
    ] = False,
    state: opt.StateFile = None,
    device: opt.Device = "cpu",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = "",
    memory: opt.Memory = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Check that ledger, state, images and base are whole and belong together. Writes nothing.

    Exits with 5 if a check fails; every one is made and reported. With --deep all edits are applied again from an empty
    state, which must end with the bytes of the state.

    \b
    Examples:
      more verify llava/
      more verify llava/ --deep
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.verify import verify as run
    from more_cli.target import locate

    with output.progress() as progress:
        report = run(locate(model, state), opt.machine(device, dtype, device_map, memory), deep=deep, progress=progress)
    _show_verify(output, report)
    if report.failed:
        names = ", ".join(check.name for check in report.failed)
        where = f"`{report.target.sidecar}` failed {len(report.failed)} of {len(report.checks)} checks: {names}"
        fail(StateError(where, report.failed[0].hint))
        raise typer.Exit(StateError.exit_code)


def _show_verify(output: Output, report: VerifyReport) -> None:
    output.json(
        "more.verify/1",
        {
            "state": str(report.target.sidecar),
            "deep": report.deep,
            "ok": not report.failed,
            "checks": [asdict(check) for check in report.checks],
        },
    )
    for check in report.checks:
        output.line(f"{check.verdict:8}{check.name:9}{check.detail}")
