"""What a report of `ops` looks like: a few lines and tables for people, one object for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from more_cli.cli.output import Output
from more_cli.cli.scores import estimate_cells
from more_cli.ops.edit_report import Listener

if TYPE_CHECKING:
    from more_cli.demo.run import DemoReport
    from more_cli.inputs.edits import Problem
    from more_cli.ops.edit_report import EditReport
    from more_cli.ops.estimate import Estimate as MemoryEstimate
    from more_cli.ops.export import ExportReport
    from more_cli.ops.init import InitReport, Plan
    from more_cli.ops.merge import MergeReport
    from more_cli.ops.status import StatusReport
    from more_cli.store.entry import Entry, Status
    from more_cli.store.state import StateMeta

GIB = 1 << 30
_SHOWN = 20
"""Rows of a list of edits that people see; `--json` has them all."""


def show_init(output: Output, report: InitReport) -> None:
    """Say which sites a new state edits and what it takes."""
    plan = report.plan
    output.json(
        "more.init/1",
        {
            "state": str(report.target.sidecar),
            "created": report.created,
            "edits": report.state.edits,
            "anchors": report.anchors,
            "calibration": report.state.calibration,
            "recipe": report.state.recipe.canonical(),
            "sites": [asdict(site) for site in plan.sites],
            "refusals": [asdict(refusal) for refusal in plan.refusals],
            "notices": plan.notices,
            "parameters": report.parameters,
        },
    )
    _notices(output, plan)
    verb = "wrote" if report.created else "found the same state in"
    anchors = f", {report.anchors} anchors" if report.anchors else ""
    output.line(
        f"{verb} {report.target.sidecar}: recipe {plan.recipe.name}, {len(plan.sites)} sites, "
        f"{report.parameters:,} numbers, {report.state.edits} edits{anchors}"
    )
    calibration = report.state.calibration
    if calibration is not None:
        output.table(
            ("tried", "mean of what is measured"),
            [
                (", ".join(f"{key} = {value}" for key, value in trial["setting"].items()) or "as in the recipe", score)
                for trial in calibration["tried"]
                for score in [f"{trial['score']:.4f}"]
            ],
            numbers=("mean of what is measured",),
        )


class ResultLines(Listener):
    """Prints a JSON object for every edit and every problem as soon as there is one (`--json-lines`)."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def edited(self, entry: Entry, status: Status, *, new: bool) -> None:
        """Print what became of an edit."""
        values = _entry_values(entry) | {"status": status, "new": new, "source": entry.source, "line": entry.line}
        self.output.json("more.edit.result/1", values)

    def problem(self, problem: Problem) -> None:
        """Print what is wrong with a line."""
        self.output.json("more.edit.problem/1", asdict(problem))


def show_edit(output: Output, report: EditReport, *, told: bool = False) -> None:
    """Say what became of a stream, and name the edits that do not stand; edits and problems may have been `told`."""
    if told:
        values = {key: value for key, value in edit_values(report).items() if key not in ("edits", "problems")}
        output.json("more.edit.end/1", values)
    else:
        output.json("more.edit/1", edit_values(report))
    if report.created is not None:
        _notices(output, report.created.plan)
        output.note(f"created {report.created.target.sidecar} with recipe {report.created.plan.recipe.name}")
    if report.replayed:
        output.note(f"replayed {report.replayed} edits that the ledger had and the state did not")
    for problem in report.problems:
        output.note(f"skipped: {problem}")
    for note in report.notes:
        output.note(note)
    if report.reverted:
        output.note(f"{len(report.reverted)} of these edits are reverted and stay so; --reapply applies them again")
    if report.dry_run:
        output.line(f"{report.total} edits checked, nothing written")
        return
    failed = [entry for entry in report.entries if entry.id in set(report.failed)]
    output.table(
        ("edit", "status", "question", "target", "answer", "reason"),
        [(e.id, report.statuses[e.id], e.question, e.target, e.answer_after, e.reason) for e in failed[:_SHOWN]],
    )
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items()) or "no edits"
    output.line(f"{report.applied} applied, {report.skipped} skipped (already in the ledger); of this stream: {counts}")
    if report.consolidation is not None:
        done = report.consolidation
        held = "all hold" if done.status == "learnt" else "some still do not hold"
        output.line(f"consolidation: {len(done.looks)} edits looked at, {done.writes} writes, cost {done.cost}; {held}")
    if report.failed:
        output.note(f"hint: these do not stand: {', '.join(report.failed[:_SHOWN])}")
    if report.interrupted:
        output.note("interrupted, state saved; run the same command again to continue")


def edit_values(report: EditReport) -> dict[str, Any]:
    """Return an edit report as JSON values."""
    return {
        "state": str(report.target.sidecar),
        "total": report.total,
        "applied": report.applied,
        "skipped": report.skipped,
        "reverted": report.reverted,
        "replayed": report.replayed,
        "counts": report.counts,
        "failed": report.failed,
        "problems": report.problems,
        "notes": report.notes,
        "interrupted": report.interrupted,
        "dry_run": report.dry_run,
        "wall_seconds": round(report.wall_seconds, 3),
        "consolidation": _entry_values(report.consolidation) if report.consolidation else None,
        "edits": [_entry_values(entry) | {"status": report.statuses[entry.id]} for entry in report.entries],
    }


def show_merge(output: Output, report: MergeReport) -> None:
    """Show how much of each update survived rounding, and what verification found."""
    verification = report.verification
    output.json(
        "more.merge/1",
        {
            "out": str(report.out),
            "edits": report.edits,
            "replayed": report.replayed,
            "dry_run": report.dry_run,
            "bytes": report.size,
            "left_out": report.left_out,
            "linked": report.linked,
            "folds": [
                {
                    "site": fold.site,
                    "disk_key": fold.disk_key,
                    "dtype": fold.dtype,
                    "realised": fold.realised,
                    "changed": fold.changed / fold.entries if fold.entries else 0.0,
                }
                for fold in report.folds
            ],
            "verification": asdict(verification) if verification else None,
        },
    )
    if report.replayed:
        output.note(f"replayed {report.replayed} edits that the ledger had and the state did not")
    for name in report.left_out:
        output.note(f"not copied (another copy of the weights, stale now): {name}")
    if report.dry_run:
        output.line(f"would change {len(report.folds)} tensors of {report.size:,} bytes in {report.out}")
        return
    output.table(
        ("tensor", "dtype", "entries changed", "update realised"),
        [
            (fold.disk_key, fold.dtype, f"{fold.changed / max(fold.entries, 1):.1%}", f"{fold.realised:.1%}")
            for fold in report.folds
        ],
        numbers=("entries changed", "update realised"),
    )
    output.line(f"merged {report.edits} edits into {report.out}; every other byte is the base's")
    if report.not_linked:
        output.note(f"note: shards were copied, they cannot be linked here: {report.not_linked}")
    if report.linked:
        output.line(
            f"{len(report.linked)} of {report.shards} shards are linked: one file with the base's, write into neither"
        )
    if verification is not None:
        kept = verification.edits - len(verification.lost)
        output.line(
            f"verified: {kept} of {verification.edits} edits have the live state's verdict or better, "
            f"largest logit difference {verification.largest_logit_gap:.2g}"
        )
        if verification.lost:
            output.note(f"lost to rounding: {', '.join(verification.lost)}")
            output.note("hint: try --rounding stochastic, or serve the base with the state")


def show_export(output: Output, report: ExportReport) -> None:
    """Say what was written and how many of its modules the model has."""
    output.json(
        "more.export/1",
        {
            "out": str(report.out),
            "format": report.format,
            "edits": report.edits,
            "replayed": report.replayed,
            "modules": report.modules,
        },
    )
    if report.replayed:
        output.note(f"replayed {report.replayed} edits that the ledger had and the state did not")
    what = "modules, all found in the model" if report.format == "peft" else "weight deltas"
    output.line(f"wrote {report.out}: {report.edits} edits in {len(report.modules)} {what}")


def show_status(output: Output, report: StatusReport) -> None:
    """Describe a state, or what `init` would choose."""
    state, plan = report.state, report.plan
    output.json(
        "more.status/1",
        {
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
        },
    )
    if state is not None:
        _show_state(output, report, state)
    if plan is not None:
        output.line(f"no state yet; `more init {report.target.model}` would use recipe {plan.recipe.name} on:")
        output.table(
            ("site", "module", "tensor on disk", "shape"),
            [(site.name, site.module, site.disk_key, f"{site.shape[0]} x {site.shape[1]}") for site in plan.sites],
        )
    if report.estimate is not None:
        _show_estimate(output, report.estimate)
    if plan is not None:
        _notices(output, plan)


def _show_state(output: Output, report: StatusReport, meta: StateMeta) -> None:
    if not report.anchors and meta.recipe.anchors.size:
        output.note("note: no anchors; `init --anchors FILE` keeps what must not move in place")
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
            (s.name, f"{s.shape[0]} x {s.shape[1]}", s.rank, f"{s.ridge:.4g}" if s.ridge else "open", s.keys)
            for s in meta.sites
        ],
        numbers=("rank", "lambda", "keys"),
    )


def _show_estimate(output: Output, found: MemoryEstimate) -> None:
    """Show what editing takes in memory."""
    rows = [(part.name, f"{part.bytes / GIB:.2f}", part.note) for part in found.parts]
    rows.append(("together", f"{found.total / GIB:.2f}", f"sequences of {found.tokens} tokens"))
    output.line()
    output.table(("memory", "GiB", "what for"), rows, numbers=("GiB",))
    free = "not known" if found.free is None else f"{found.free / GIB:.2f} GiB"
    output.line(f"free: {free}; the state on disk: {found.state / GIB:.2f} GiB")


def _estimate_values(found: MemoryEstimate) -> dict[str, Any]:
    return {
        "parts": {part.name: part.bytes for part in found.parts},
        "total": found.total,
        "free": found.free,
        "tokens": found.tokens,
        "samples": found.samples,
        "state": found.state,
    }


def show_demo(output: Output, report: DemoReport) -> None:
    """Show every edit before and after, how many hold at the end, and what the merge kept."""
    output.json(
        "more.demo/1",
        {
            "folder": str(report.folder),
            "wall_seconds": round(report.wall_seconds, 1),
            "holding": report.holding,
            "base_answers": report.evaluation.base_answers,
            "edit": edit_values(report.edit),
            "metrics": {name: asdict(value) for name, value in report.evaluation.estimates.items()},
            "lost_in_merge": report.merge.verification.lost if report.merge.verification else [],
        },
    )
    before, ends = report.evaluation.base_answers, report.answers_at_end
    output.table(
        ("edit", "question", "target", "before", "right after", "at the end"),
        [(e.id, e.question, e.target, before.get(e.id), e.answer_after, ends.get(e.id)) for e in report.edit.entries],
    )
    total = len(report.edit.entries)
    right = sum(bool(entry.right_after) for entry in report.edit.entries)
    output.line()
    output.line(f"{right} of {total} right when applied; {report.holding} of {total} still hold after all {total}")
    output.table(
        ("metric", "value", "95 % interval", "n"),
        [(name, *estimate_cells(value)) for name, value in report.evaluation.estimates.items()],
        numbers=("value", "n"),
    )
    if report.merge.verification is not None:
        lost = report.merge.verification.lost
        output.line(f"merged into {report.merge.out}: {len(lost)} edits lost to rounding {', '.join(lost)}".rstrip())
    output.line(f"{report.wall_seconds:.0f} s; everything lies in {report.folder}")


def _notices(output: Output, plan: Plan) -> None:
    for notice in plan.notices:
        output.note(f"note: {notice}")
    for refusal in plan.refusals:
        output.note(f"note: {refusal.module} is left out: {refusal.reason}")


def _entry_values(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "status": entry.status,
        "reason": entry.reason,
        "question": entry.question,
        "target": entry.target,
        "answer_before": entry.answer_before,
        "answer_after": entry.answer_after,
        "nll_before": entry.nll_before,
        "nll_after": entry.nll_after,
        "right_after": entry.right_after,
        "writes": entry.writes,
        "cost": entry.cost,
        "wall_ms": entry.wall_ms,
    }
