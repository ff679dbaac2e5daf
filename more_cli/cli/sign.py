"""`more sign`: signs a state with its ledger, or a folder that merge or export wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.store.target import locate
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.ops.sign import SignReport


@command
def sign(
    model: opt.Model = None,
    key: Annotated[
        Path,
        typer.Option(
            "--key", metavar="KEY", help="Private SSH key, or a public key whose private key the ssh-agent has."
        ),
    ] = ...,  # type: ignore[assignment]
    state: opt.StateFile = None,
    *,
    output: Output,
) -> None:
    """Sign a state with its ledger, or a folder that merge or export wrote.

    `ssh-keygen` signs an in-toto statement: base, recipe, the ledger's head and the hash of every file. Statement and
    signature lie in the ledger's folder, or in the folder that is signed; `more verify --signers` checks them. Edits
    that are made later are not signed. merge and export copy the signature of a state into their more.json.

    \b
    Examples:
      more sign llava/ --key ~/.ssh/id_ed25519
      more sign llava-edited/ --key ~/.ssh/id_ed25519
    """
    from more_cli.ops.sign import sign as run

    with output.progress() as progress:
        reports = run(locate(model, state), key, progress)
    _show_sign(output, reports)


def _show_sign(output: Output, reports: Sequence[SignReport]) -> None:
    from more_cli.outputs.states import SignOutput

    output.json(SignOutput.of_reports(reports))
    for report in reports:
        lines = "" if report.lines is None else f" and {counted(report.lines, 'line')} of its ledger"
        output.line(f"signed `{report.subject}`: {counted(report.files, 'file')}{lines}, by {report.signer}")
        output.line(f"statement {report.statement}, signature {report.signature.name}")
