"""What `more edit` and `more revert` print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from more_cli.outputs.base import FilePath, Number, Part, Printed, Seconds
from more_cli.store.entry import Entry

if TYPE_CHECKING:
    from more_cli.ops.edit import EditReport


class EditResult(Part, like=Entry):
    """What became of one edit."""

    id: str
    question: str
    target: str
    status: str
    """`learnt`, `not-learnt`, `refused`, `already-right`, `superseded` or `reverted`"""
    reason: str
    answer_base: str | None
    """greedy answer of the base; `null` in ledgers of older versions"""
    answer_before: str | None
    """greedy answer before this edit, with all earlier ones; `null` in ledgers of older versions"""
    answer_after: str | None
    """greedy answer after this edit, before any later one"""
    forced_before: str | None
    forced_after: str | None
    right_after: bool | None
    drift: Number | None
    """largest KL divergence from the base, in nats per token, of the watched anchors that were looked at after it; \
`null` where none was"""
    nll_before: Number | None
    nll_after: Number | None
    writes: int
    cost: Number | None
    wall_ms: Number | None

    @classmethod
    def of_entry(cls, entry: Entry, status: str | None = None, **values: object) -> Self:
        """Make it of a ledger line; `status` is today's, by default the line's own."""
        return cls.of(entry, status=status or entry.status, **answers_of(entry), **values)


def answers_of(entry: Entry) -> dict[str, str | None]:
    """Return the greedy answers of a ledger line by their keys in outputs."""
    return {f"answer_{when}": getattr(entry, f"greedy_{when}") for when in ("base", "before", "after")}


class Ended(Part):
    """How a command that applies edits ended."""

    notes: list[str]
    """what to know, such as another number of threads"""
    dry_run: bool
    """whether nothing was written because of `--dry-run`"""
    interrupted: bool
    """whether a signal ended the run; what was done is kept, and the same command goes on"""
    wall_seconds: Seconds


class Again(Ended):
    """How a command ended that applies edits again."""

    expected_edits: int
    """edits to apply, as known before the start"""
    expected_seconds: Seconds
    """how long they took before; loading the model is not counted"""
    statuses: dict[str, str]
    """status of each edit made again or, in a new state, of each edit that is not reverted"""
    changed: dict[str, list[str]]
    """edits with another status than before, or than in the state that they were taken from: before and after"""


class Stream(Ended):
    """What became of a stream of edits."""

    state: FilePath
    total: int
    """edits in the stream"""
    applied: int
    """edits applied by this command"""
    skipped: int
    """edits that the ledger had already"""
    replayed: int
    counts: dict[str, int]
    """edits of the stream by status"""
    superseded: dict[str, list[str]]
    """by edit: earlier edits with the same question, and picture if any, that it takes the place of"""
    failed: list[str]
    """ids of the stream's edits that are `not-learnt` or `refused`, also from earlier runs"""
    reverted: list[str]
    """ids of the stream's edits that are reverted and stay so without `--reapply`"""
    consolidation: EditResult | None
    """with `--consolidate`: what it wrote again"""
    compactions: list[EditResult]
    """each time that all standing edits were written together, because there were enough of them"""


class WholeStream(Stream):
    """What became of a stream, and of each edit."""

    edits: list[EditResult]
    """one per edit that this command applied or, as a dry `--retry`, would try again"""
    problems: list[str]
    """bad lines left out with `--on-error skip`, one sentence each"""

    @classmethod
    def of_report(cls, report: EditReport) -> Self:
        """Make it of the report of a stream."""
        run = report.run
        return cls.of(
            report,
            state=report.target.sidecar,
            replayed=run.replayed,
            consolidation=EditResult.of_entry(run.consolidation) if run.consolidation else None,
            compactions=[EditResult.of_entry(entry) for entry in run.compactions],
            edits=[EditResult.of_entry(entry, report.statuses[entry.id]) for entry in report.entries],
        )


class EditOutput(WholeStream, Printed, schema="more.edit/2", command="more edit MODEL EDITS --json"):
    """What became of a stream, and of each edit."""


class EditResultOutput(EditResult, Printed, schema="more.edit.result/2", command="more edit MODEL - --json-lines"):
    """One line per edit, once it is safe on disk."""

    new: bool
    """`false` if the ledger had this edit already"""
    source: str
    line: int
    supersedes: list[str]
    """ids of earlier edits with the same question, and picture if any, that it takes the place of"""


class EditProblemOutput(Printed, schema="more.edit.problem/1", command="more edit MODEL - --json-lines"):
    """One line per problem of a bad edit line."""

    where: str
    """file and line"""
    line: int
    """line number, from 1; 0 for the whole file"""
    text: str
    """what is wrong"""
    hint: str
    """what to do; may be empty"""


class EditEndOutput(Stream, Printed, schema="more.edit.end/1", command="more edit MODEL - --json-lines"):
    """The last line of a stream: the keys of `more.edit/2` without `edits` and `problems`."""


class RevertOutput(Again, Printed, schema="more.revert/1", command="more revert [MODEL] IDS --json"):
    """Which edits were reverted, and what became of those that were made again."""

    state: FilePath
    reverted: list[str]
    """ids of the reverted edits"""
    again: list[str]
    """ids of later edits that are made again, in order"""
    kept: int
    """lines at the start of the history that stay as they are"""
    replayed: int
    """lines that stay but had to be replayed, because no snapshot was near"""
    snapshot: FilePath | None
    """where the state before the revert is kept"""
    failed: list[str]
    """ids of edits made again that are `not-learnt` or `refused`"""
