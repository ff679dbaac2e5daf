"""`more log`: lists the ledger, or shows one edit."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from more_cli.cli import completion
from more_cli.cli import options as opt
from more_cli.cli.help import Command, Group
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.cli.words import locate_among
from more_cli.errors import UsageError
from more_cli.store.status import Status
from more_cli.store.target import locate
from more_cli.text import counted, did_you_mean, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from more_cli.ops.log import EditRecord, Line, LogReport
    from more_cli.store.entry import Entry

LINES = 100
"""Ledger lines shown without `--limit`; `--json` has them all."""
WIDE = 100
"""Characters per line from which on line numbers, seconds and drift are shown."""


class _Listing(Group):
    """Makes `list` the default: `more log MODEL` is `more log list MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        word = args[0] if args else ""
        if word not in (*self.commands, *ctx.help_option_names) and (word or not ctx.resilient_parsing):
            is_typo = did_you_mean(word, self.commands, closeness=0.75)
            if is_typo and not any(Path(name).exists() for name in (word, f"{word}.more")):
                self.refuse(ctx, word)
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Listing,
    rich_markup_mode=None,
    help="List the ledger (every edit ever made), or show one edit.\n\nLoads no model.",
)


@app.command("list", cls=Command)
@command
def list_(
    model: opt.Model = None,
    id: Annotated[str, typer.Option(metavar="GLOB", help="Only ids that match, such as 'batch7-*'.")] = "*",
    status: Annotated[
        list[Status] | None,
        typer.Option(metavar="STATUS", help=f"Only edits that have this status now: {', '.join(Status)}. Repeatable."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only lines from this time on: ISO 8601, UTC.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only lines before this time: ISO 8601, UTC.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help=f"Only the last N lines; 0 for all. [default: {LINES}; with --json all]"),
    ] = None,
    state: opt.StateFile = None,
    *,
    output: Output,
) -> None:
    """List the ledger's lines, the newest last.

    Shows the status of each edit as it is now, after all later edits, and `retried` where a later line tries the edit
    again. The word `list` is optional.

    \b
    Examples:
      more log llava/
      more log llava/ --status refused --status not-learnt --since 2026-05-01
      more log llava/ --id "batch7-*" --json
    """
    from more_cli.ops.log import LineFilter, log

    chosen = LineFilter(id, status or (), _time("since", since), _time("until", until))
    if limit is None:
        limit = 0 if output.as_json else LINES
    _show_log(output, log(locate(model, state), chosen, limit or None))


@app.command(cls=Command)
@command
def show(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] ID",
            help="Checkpoint folder, and the edit's id, in either order. [default: that of more.toml, or the model of "
            "the only `*.more` file in this folder]",
            autocompletion=completion.edits_ever,
        ),
    ] = None,
    state: opt.StateFile = None,
    *,
    output: Output,
) -> None:
    """Show everything that the ledger records about one edit.

    \b
    Examples:
      more log show llava/ batch7-0012
    """
    from more_cli.ops.log import show as run

    usage = "more log show MODEL ID"
    target, ids = locate_among(words, state, usage) if words else (None, [])
    if target is None or len(ids) != 1:
        text = f"one ID at a time, not {len(ids)}: {', '.join(ids)}" if ids else "ID is missing: which edit?"
        raise UsageError(text, f"type: {usage} (`more log MODEL` lists the ids)")
    _show_edit(output, run(target, ids[0]))


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
    if output.as_json:
        from more_cli.outputs.log import LogLine, LogOutput

        lines = [LogLine.of_line(line) for line in report.lines]
        output.json(LogOutput.of(report, state=report.target.sidecar, lines=lines))
    wide = output.width >= WIDE
    watched = wide and any(line.entry.drifts for line in report.lines)
    columns = ("line", "time (UTC)", "edit", "status", "question", "target", "after", "drift")
    output.table(
        columns[not wide : None if watched else -1],
        [_row(line, wide=wide, watched=watched) for line in report.lines],
        numbers=("line", "time (UTC)", "drift"),
        cut=("question", "target", "after"),
    )
    output.line(f"{report.matching:,} of {counted(report.total, 'line')}")
    output.line(f"head {report.head}")
    if len(report.lines) < report.matching:
        shown = counted(len(report.lines), "line")
        output.note(f"shown: the last {shown} of {report.matching:,}; --limit 0 shows all")


def _row(line: Line, *, wide: bool, watched: bool) -> Sequence[object]:
    entry = line.entry
    time = entry.time[: len("2026-05-01 08:00:00" if wide else "2026-05-01 08:00")].replace("T", " ")
    start = (entry.seq, time) if wide else (time,)
    if entry.kind != "edit":
        return *start, entry.id, *_done(entry)
    retry = " (retry)" if entry.retry else ""
    status = "retried" if line.retried and line.now != "reverted" else line.now
    drift = (_drift(entry.drift),) if watched else ()
    return *start, f"{entry.id}{retry}", status, entry.question, entry.target, entry.greedy_after, *drift


def _done(entry: Entry) -> tuple[str, str]:
    """Return what a line that is not an edit did: in a word, and in more words."""
    if entry.kind == "revert":
        later = f"; {counted(entry.redone, 'later line')} made again" if entry.redone else ""
        return "reverted", ", ".join(entry.ids) + later
    if entry.joint_writing:
        wrong = sum(margin <= 0 for _, margin in entry.looks)
        result = f"{wrong} still {verb(wrong, 'does', 'do')} not hold" if wrong else "all hold"
        done = f"{counted(len(entry.looks), 'edit')} {entry.consolidated}"
        word = "compacted" if entry.kind == "compact" else "consolidated"
        return word, f"{done}, {counted(entry.writes, 'write')}; {result}"
    return "added", f"{counted(entry.anchors, 'anchor')} from here on"


def _show_edit(output: Output, record: EditRecord) -> None:
    entry, now = record.line.entry, record.line.now
    if output.as_json:
        from more_cli.outputs.log import LogShowOutput

        output.json(LogShowOutput.of_record(record))
    became = f", now {now}" if now != entry.status else ""
    by = f" by `{record.superseded_by}`" if record.superseded_by else ""
    status = f"{entry.status}{became}{by}" if entry.kind == "edit" else ": ".join(_done(entry))
    output.fields(
        {
            "edit" if entry.kind == "edit" else "line": entry.id,
            "status": status,
            "reason": entry.reason,
            "retry": (", ".join(entry.settings) or "yes") if entry.retry else "",
            **{f"turn {number}": f"{turn.role}: {turn.text}" for number, turn in enumerate(entry.turns, 1)},
            "question": entry.question,
            "target": entry.target,
            "base": entry.greedy_base or "",
            "before this edit": entry.said_before or "",
            "after": entry.greedy_after or "",
            "forced before": _answer(entry.forced_before, entry.nll_before),
            "forced after": _answer(entry.forced_after, entry.nll_after),
            **{f"image {number}": _image(record, image) for number, image in enumerate(entry.images, 1)},
            "probes": _probes(record),
            "anchors made of its picture": "; ".join(anchor.question for anchor in entry.made),
            "writes": _cost(entry) if entry.kind == "edit" or entry.joint_writing else "",
            "sites": ", ".join(entry.sites),
            "drift": _moved(record),
            "tags": ", ".join(f"{name}={value}" for name, value in entry.tags.items()),
            "source": f"{entry.source}:{entry.line}" if entry.source else "",
            "time": entry.time,
            "versions": ", ".join(f"{name} {version}" for name, version in entry.versions.items()),
            "note": entry.note,
            "ledger line": ", ".join(map(str, record.numbers)),
        }
    )
    if entry.forced_before is not None:
        output.line("forced: the most likely token at each position, given the target before it")


def _answer(text: str | None, nll: float | None) -> str:
    return "" if text is None else text + (f" (NLL of the target {nll:.3g})" if nll is not None else "")


def _cost(entry: Entry) -> str:
    cost = f", cost {entry.cost}" if entry.cost is not None else ""
    return f"{entry.writes}{cost}" + (f", {entry.wall_ms} ms" if entry.wall_ms is not None else "")


def _moved(record: EditRecord) -> str:
    entry = record.line.entry
    looked = f"{counted(len(entry.drifts), 'watched anchor')}: largest {_drift(entry.drift)} nats"
    return (looked + (f", `{record.moved}`" if record.moved else "")) if entry.drifts else ""


def _drift(drift: float | None) -> str:
    return "" if drift is None else f"{drift:.2g}"


def _image(record: EditRecord, sha256: str) -> str:
    path = record.line.entry.paths.get(sha256)
    where = record.target.folder / "images" / sha256 if record.stored[sha256] else path or "not stored"
    return f"{sha256}, {where}" if path else str(where)


def _probes(record: EditRecord) -> str:
    kinds = {"rephrases": "rephrase", "image_rephrases": "image rephrase"}
    kinds |= {"locality": "locality probe", "portability": "portability probe"}
    counts = {noun: len(getattr(record.line.entry, kind)) for kind, noun in kinds.items()}
    return ", ".join(counted(count, noun) for noun, count in counts.items() if count)
