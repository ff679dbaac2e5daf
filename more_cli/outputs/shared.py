"""What `more combine` and `more diff` print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from more_cli.outputs.base import FilePath, Part, Printed, Seconds
from more_cli.store.entry import Entry

if TYPE_CHECKING:
    from more_cli.ops.combine import CombineReport
    from more_cli.ops.diff import DiffReport
    from more_cli.ops.shared import Holding


class HeldEdit(Part, like=Entry):
    """An edit as one state holds it."""

    id: str
    state: FilePath
    """path of the state"""
    number: int
    """number of its last ledger line there"""
    status: str
    """its status there"""
    question: str
    target: str
    source: str
    line: int
    time: str

    @classmethod
    def of_holding(cls, held: Holding) -> Self:
        """Make it of an edit of one of several states."""
        return cls.of(held.entry, state=held.source.path, number=held.seq, status=held.status)


class CombineOutput(Printed, schema="more.combine/1", command="more combine A.more B.more -o C.more --json"):
    """The edits of several states in a new one."""

    state: FilePath
    """path of the new state"""
    sources: list[FilePath]
    """paths of the states that are combined"""
    edits: list[HeldEdit]
    """edits of the new state in their order, each as the state holds it that it is taken from"""
    kept: int
    """first lines of the history that are taken over as they are"""
    start: FilePath
    """the state that these lines are from"""
    expected_edits: int
    """edits to apply, as known before the start"""
    expected_seconds: Seconds
    """how long they took before; loading the model is not counted"""
    reverted: list[str]
    """ids of edits that one of the states reverted: they stay so"""
    withdrawn: dict[str, FilePath]
    """of these, the edits that are in force in another state, with the state that reverted them"""
    contradictions: list[list[HeldEdit]]
    """with `--theirs`: pairs with the same pictures and question and another target; the second one counts"""
    statuses: dict[str, str]
    """status of each edit of the new state"""
    changed: dict[str, list[str]]
    """edits with another status than in the state that they were taken from: before and after"""
    failed: list[str]
    """ids of edits of the new state that are `not-learnt` or `refused`"""
    existed: bool
    """whether the new state was there already, with these edits"""
    notes: list[str]
    """what to know"""
    dry_run: bool
    """whether nothing was written because of `--dry-run`"""
    interrupted: bool
    """whether a signal ended the run; run it again to go on"""
    wall_seconds: Seconds
    """time of the command in seconds"""

    @classmethod
    def of_report(cls, report: CombineReport) -> Self:
        """Make it of the report of a combination."""
        plan, held = report.plan, HeldEdit.of_holding
        return cls.of(
            report,
            state=report.target.sidecar,
            sources=[source.path for source in plan.sources],
            edits=list(map(held, plan.union.edits)),
            kept=plan.kept,
            start=plan.start.path,
            expected_edits=plan.work.edits,
            expected_seconds=plan.work.seconds,
            reverted=[edit.id for edit in plan.union.reverted],
            withdrawn={id: source.path for id, source in plan.union.withdrawn.items()},
            contradictions=[[held(each.earlier), held(each.later)] for each in plan.union.contradictions],
        )


class DiffEdit(Part, like=Entry):
    """An edit that two states do not hold alike."""

    id: str
    what: str
    """`only in the first`, `only in the second`, `with another status` or `with another target`"""
    first: HeldEdit | None
    """as the first state holds it"""
    second: HeldEdit | None
    """as the second state holds it"""


class DiffAnswer(Part, like=Entry):
    """A question to which two states give different answers."""

    id: str
    question: str
    target: str
    first: str
    """greedy answer of the first state"""
    second: str
    """greedy answer of the second state"""


class DiffOutput(Printed, schema="more.diff/1", command="more diff A.more B.more --json"):
    """In what two states differ."""

    first: FilePath
    """path of the first state"""
    second: FilePath
    """path of the second state"""
    same: bool
    """whether setup, anchors and edits are the same; the order of the edits may differ"""
    same_bytes: bool
    """whether the files are the same, to the byte"""
    setup: dict[str, list[Any]]
    """what of base, recipe and prompts differs: both values"""
    anchors_first: list[str]
    """questions of the anchors that only the first holds; those that edits brought are not counted"""
    anchors_second: list[str]
    """the same of the second"""
    counts: dict[str, int]
    """how many edits are `alike`, and how many differ, by how"""
    edits: list[DiffEdit]
    """edits that differ, in order of time"""
    contradictions: list[list[HeldEdit]]
    """pairs with the same pictures and question and another target that no state has decided"""
    asked: int | None
    """with `--answers`: questions that both were asked"""
    answers: list[DiffAnswer]
    """those with different answers"""
    wall_seconds: Seconds
    """time of the command in seconds"""

    @classmethod
    def of_report(cls, report: DiffReport) -> Self:
        """Make it of the report of a comparison."""
        held = HeldEdit.of_holding
        edits = [
            DiffEdit(
                id=each.edit.id,
                what=each.what,
                first=held(each.first) if each.first else None,
                second=held(each.second) if each.second else None,
            )
            for each in report.edits
        ]
        answers = [DiffAnswer.of(each.edit.entry, first=each.first, second=each.second) for each in report.answers]
        return cls.of(
            report,
            first=report.first.path,
            second=report.second.path,
            anchors_first=report.anchors[0],
            anchors_second=report.anchors[1],
            edits=edits,
            answers=answers,
            contradictions=[[held(each.earlier), held(each.later)] for each in report.contradictions],
        )
