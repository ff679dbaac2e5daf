"""`more log`: lists the ledger, or shows one edit."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from more_cli.cli import options as opt
from more_cli.cli.output import Output
from more_cli.errors import UsageError
from more_cli.store.target import locate

if TYPE_CHECKING:
    from more_cli.ops.log import EditRecord, Line, LogReport

LINES = 100
"""Ledger lines shown without `--limit`; `--json` has them all."""

EXIT_CODES = """Exit codes: 0 done; 2 usage, or no edit of that id; 5 no ledger, or it is damaged (`more verify` shows
where)."""


class _Listing(typer.core.TyperGroup):
    """Makes `list` the default: `more log MODEL` is `more log list MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Listing,
    rich_markup_mode=None,
    help="List the ledger (every edit ever made), or show one edit. Loads no model.",
)


class StatusName(StrEnum):
    """What an edit's status can be."""

    learnt = "learnt"
    not_learnt = "not-learnt"
    refused = "refused"
    already_right = "already-right"
    superseded = "superseded"
    reverted = "reverted"


@app.command("list", epilog=EXIT_CODES)
def list_(
    model: opt.Model = None,
    id: Annotated[str, typer.Option(metavar="GLOB", help="Only ids that match, such as 'batch7-*'.")] = "*",
    status: Annotated[
        list[StatusName] | None, typer.Option(help="Only edits that have this status now; repeatable.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only lines from this time on: ISO 8601, UTC.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only lines before this time: ISO 8601, UTC.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help=f"Only the last N lines; 0 for all. [default: {LINES}; with --json all]")
    ] = None,
    state: opt.StateFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """List the ledger's lines, the newest last.

    Shows the status of each edit as it is now, after all later edits. The word `list` is optional.

    \b
    Examples:
      more log llava/
      more log llava/ --status refused --status not-learnt --since 2026-05-01
      more log llava/ --id "batch7-*" --json
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.log import LineFilter, log
    from more_cli.store.entry import Status

    chosen = LineFilter(id, [Status(name.value) for name in status or ()], _time("since", since), _time("until", until))
    if limit is None:
        limit = 0 if as_json else LINES
    _show_log(output, log(locate(model, state), chosen, limit or None))


@app.command(epilog=EXIT_CODES)
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The edit's id.")],
    model: opt.Model = None,
    state: opt.StateFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Show everything that the ledger records about one edit.

    \b
    Examples:
      more log show batch7-0012 llava/
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.log import show as run

    _show_edit(output, run(locate(model, state), id))


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        hint = "write for example 2026-05-01 or 2026-05-01T18:30"
        raise UsageError(f"`--{option} {text}` is not an ISO 8601 time", hint) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _show_log(output: Output, report: LogReport) -> None:
    output.json(
        "more.log/1",
        {
            "state": str(report.target.sidecar),
            "head": report.head,
            "total": report.total,
            "matching": report.matching,
            "lines": [_line_values(line) for line in report.lines],
        },
    )
    output.table(
        ("line", "time (UTC)", "edit", "status", "question", "target", "answer"),
        [_row(line) for line in report.lines],
        numbers=("line",),
    )
    if len(report.lines) < report.matching:
        output.note(f"shown: the last {len(report.lines)} of {report.matching:,} lines; --limit 0 shows all")
    output.line(f"{report.matching:,} of {report.total:,} lines, head {report.head[:16]}")


def _row(line: Line) -> tuple[object, ...]:
    entry = line.entry
    time = entry.time[:19].replace("T", " ")
    return entry.seq, time, entry.id, line.now, entry.question, entry.target, entry.answer_after or ""


def _line_values(line: Line) -> dict[str, Any]:
    names = {"seq", "kind", "id", "status", "reason", "question", "target", "answer_before", "answer_after"}
    names |= {"nll_before", "nll_after", "right_after", "writes", "source", "line", "tags", "time"}
    return line.entry.model_dump(mode="json", include=names) | {"now": line.now}


def _show_edit(output: Output, record: EditRecord) -> None:
    entry, now = record.line.entry, record.line.now
    values = entry.model_dump(mode="json") | {
        "now": now,
        "lines": record.numbers,
        "superseded_by": record.superseded_by or None,
        "stored": record.stored,
    }
    output.json("more.log.show/1", {"state": str(record.target.sidecar), "edit": values})
    became = f", now {now}" if now != entry.status else ""
    by = f" by `{record.superseded_by}`" if record.superseded_by else ""
    rows = {
        "edit": entry.id,
        "status": f"{entry.status}{became}{by}",
        "reason": entry.reason,
        "question": entry.question,
        "target": entry.target,
        "before": _answer(entry.answer_before, entry.nll_before),
        "after": _answer(entry.answer_after, entry.nll_after),
        **{f"image {number}": _image(record, image) for number, image in enumerate(entry.images, 1)},
        "probes": _probes(record),
        "writes": f"{entry.writes}, cost {entry.cost}, {entry.wall_ms} ms",
        "sites": ", ".join(entry.sites),
        "tags": ", ".join(f"{name}={value}" for name, value in entry.tags.items()),
        "source": f"{entry.source}:{entry.line}" if entry.source else "",
        "time": entry.time,
        "versions": ", ".join(f"{name} {version}" for name, version in entry.versions.items()),
        "note": entry.note,
        "ledger line": ", ".join(map(str, record.numbers)),
    }
    for name, value in rows.items():
        if value:
            output.line(f"{name:12}{value}")


def _answer(text: str | None, nll: float | None) -> str:
    return "" if text is None else text + (f" (NLL of the target {nll:.3g})" if nll is not None else "")


def _image(record: EditRecord, sha256: str) -> str:
    path = record.line.entry.paths.get(sha256)
    where = record.target.folder / "images" / sha256 if record.stored[sha256] else path or "not stored"
    return f"{sha256}, {where}" if path else str(where)


def _probes(record: EditRecord) -> str:
    kinds = ("rephrases", "image_rephrases", "locality", "portability")
    counts = {kind: len(getattr(record.line.entry, kind)) for kind in kinds}
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count)
