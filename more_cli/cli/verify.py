"""`more verify`: checks a state, or a folder that merge or export wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.output import Output, fail
from more_cli.cli.records import command
from more_cli.errors import StateError
from more_cli.model.machine import Machine
from more_cli.store.target import locate
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.ops.verify import VerifyReport


@command
def verify(
    model: opt.Model = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also hash every image and shard, and apply every edit again.")
    ] = False,
    state: opt.StateFile = None,
    signers: opt.Signers = None,
    *,
    machine: Machine,
    output: Output,
) -> None:
    """Check ledger, state, images and base for damage.

    Also checks whether they belong together. Runs and reports every check; exits with 5 if one fails. With --deep all
    edits are applied again from an empty state, and the result must equal the state byte for byte. A folder that merge
    or export wrote is compared with its more.json. With --signers, state and ledger, or the folder, must be signed
    (`more sign`) by somebody whom FILE names. Writes nothing.

    \b
    Examples:
      more verify llava/
      more verify llava/ --deep
      more verify llava-edited/ --signers signers
    """
    from more_cli.ops.verify import verify as run

    target = locate(model, state)
    with output.progress() as progress:
        report = run(target, machine, deep=deep, signers=signers, progress=progress)
    _show_verify(output, report)
    if report.failed:
        names = ", ".join(check.name for check in report.failed)
        whose = " and ".join(f"`{subject}`" for subject in report.damaged)
        text = f"{whose} failed {len(report.failed)} of {counted(len(report.checks), 'check')}: {names}"
        fail(StateError(text, report.failed[0].hint))
        raise typer.Exit(StateError.exit_code)
    if report.short:
        raise report.short


def _show_verify(output: Output, report: VerifyReport) -> None:
    from more_cli.outputs.states import VerifyOutput

    output.json(VerifyOutput.of(report, ok=not (report.failed or report.short)))
    for check in report.checks:
        output.line(f"{check.verdict:8}{check.name:9}{check.detail}")
