"""`more push`: publishes a merged checkpoint, an adapter or a state on the hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli.output import ROWS, Output
from more_cli.cli.records import command
from more_cli.errors import UsageError
from more_cli.options import PushOptions
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.ops.push import PushReport


@command
def push(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Folder that merge or export wrote, or a state (.more file).")
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO_ID", help="Repository on the hub, OWNER/NAME.")],
    *,
    options: PushOptions,
    output: Output,
) -> None:
    """Publish a merged checkpoint, an adapter or a state on the hub.

    A state goes with its ledger, which has every question and answer in full. Shows what would be published and asks
    first. Needs a token with the right to write: `hf auth login`, or HF_TOKEN.

    \b
    Examples:
      more push llava-edited/ me/llava-edited --dry-run
      more push llava-edited/ me/llava-edited --private --yes
      more push llava.more me/llava-corrections --images
    """
    from more_cli.ops.push import plan
    from more_cli.ops.push import push as run

    report = plan(path, repo, options)
    if not options.dry_run:
        if not options.yes:
            _confirm(output, report)
        with output.progress() as progress:
            report = run(path, repo, options, progress)
    _show_push(output, report)


def _confirm(output: Output, report: PushReport) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("nothing was published: nobody is there to confirm it", "add --yes, or look with --dry-run")
    kind = "private" if report.private else "public if new"
    output.prompt(f"publish {_what(report)} to {report.repo} ({kind})? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was published", "answer y, or add --yes")


def _show_push(output: Output, report: PushReport) -> None:
    from more_cli.outputs.products import PushOutput

    output.json(PushOutput.of(report, files=list(report.files)))
    if report.url is not None:
        output.line(f"published {_what(report)}: {report.url}")
        return
    output.line(f"would publish {_what(report)} to {report.repo}, branch {report.revision}:")
    for name in list(report.files)[:ROWS]:
        output.line(f"  {name}")
    if len(report.files) > ROWS:
        output.line(f"  and {len(report.files) - ROWS:,} more: --json has all")


def _what(report: PushReport) -> str:
    return f"{counted(len(report.files), 'file')}, {report.bytes:,} bytes"
