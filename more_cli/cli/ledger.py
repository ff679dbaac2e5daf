"""`more log` and `more verify`: what was edited, and whether everything that says so is whole."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from more_cli.cli import options as opt
from more_cli.cli.output import Output, fail
from more_cli.errors import StateError, UsageError

if TYPE_CHECKING:
    from more_cli.ops.log import EditRecord, Line, LogReport
    from more_cli.ops.verify import VerifyReport


_SHOWN = 100
"""Lines of a ledger that people see unless they ask for another number; `--json` has them all."""

EXIT_CODES = """Exit codes: 0 done; 2 usage, or no edit of that id; 5 no ledger, or it is damaged (`more verify` says
where)."""


class _Listing(typer.core.TyperGroup):
    """`more log` alone, or with a MODEL, lists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Listing,
    rich_markup_mode=None,
    help="List the ledger, every edit ever made, or show one of them. Loads no model.",
)


class StatusName(StrEnum):
    """What can have become of an edit."""

    learnt = "learnt"
    not_learnt = "not-learnt"
    refused = "refused"
    already_right = "already-right"
    superseded = "superseded"
    reverted = "reverted"


@app.command("list", epilog=EXIT_CODES)
def list_(
    model: opt.Model = None,
    id: Annotated[str, typer.Option(metavar="GLOB", help="Ids like this, such as `batch7-*`; quote it.")] = "*",
    status: Annotated[list[StatusName] | None, typer.Option(help="Of that status now; repeatable.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="From this time on: ISO 8601, UTC.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Before this time: ISO 8601, UTC.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help=f"The last N lines, 0 for all; by default {_SHOWN}, with --json all.")
    ] = None,
    state: opt.StateFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """List the ledger's lines, the newest last.

    The status is that of today: a later edit may have superseded one. `list` may be left out.

    \b
    Examples:
      more log llava/
      more log llava/ --status refused --status not-learnt --since 2026-05-01
      more log llava/ --id "batch7-*" --json
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.log import Wanted, log
    from more_cli.store.entry import Status
    from more_cli.store.target import locate

    wanted = Wanted(id, [Status(name.value) for name in status or ()], _time("since", since), _time("until", until))
    if limit is None:
        limit = 0 if as_json else _SHOWN
    _show_log(output, log(locate(model, state), wanted, limit or None))


@app.command(epilog=EXIT_CODES)
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The edit's id.")],
    model: opt.Model = None,
    state: opt.StateFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = 0,
) -> None:
    """Show everything the ledger has on one edit.

    \b
    Examples:
      more log show batch7-0012 llava/
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.log import show as run
    from more_cli.store.target import locate

    _show_edit(output, run(locate(model, state), id))


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        hint = "write a date or a time like 2026-05-01 or 2026-05-01T18:30"
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
        output.note(f"the last {len(report.lines)} of {report.matching:,} lines; --limit 0 shows all")
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
    state, which must end with the bytes of the state. What merge or export wrote is compared with its more.json.

    \b
    Examples:
      more verify llava/
      more verify llava/ --deep
      more verify llava-edited/
    """
    output = Output(as_json=as_json, quiet=quiet, verbose=verbose)
    from more_cli.ops.verify import verify as run
    from more_cli.store.target import locate

    with output.progress() as progress:
        report = run(locate(model, state), opt.machine(device, dtype, device_map, memory), deep=deep, progress=progress)
    _show_verify(output, report)
    if report.failed:
        names = ", ".join(check.name for check in report.failed)
        where = f"`{report.subject}` failed {len(report.failed)} of {len(report.checks)} checks: {names}"
        fail(StateError(where, report.failed[0].hint))
        raise typer.Exit(StateError.exit_code)


def _show_verify(output: Output, report: VerifyReport) -> None:
    output.json(
        "more.verify/1",
        {
            "subject": str(report.subject),
            "deep": report.deep,
            "ok": not report.failed,
            "checks": [asdict(check) for check in report.checks],
        },
    )
    for check in report.checks:
        output.line(f"{check.verdict:8}{check.name:9}{check.detail}")
