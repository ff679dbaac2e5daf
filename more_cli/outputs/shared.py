"""What `more combine`, `more diff`, `more rebase` and `more switch` print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from more_cli.outputs.base import FilePath, Part, Printed, Seconds
from more_cli.outputs.edits import Again
from more_cli.store.entry import Entry

if TYPE_CHECKING:
    from more_cli.ops.assembly import AssemblyReport
    from more_cli.ops.diff import DiffReport
    from more_cli.ops.rebase import RebaseReport
    from more_cli.ops.shared import Holding
    from more_cli.ops.switch import SwitchReport


class HeldEdit(Part, like=Entry):
    """An edit as one state holds it."""

    id: str
    state: FilePath
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


class Assembled(Again):
    """A new state, made of edits that others hold."""

    state: FilePath
    """path of the new state"""
    edits: list[HeldEdit]
    """edits of the new state in their order, each as the state holds it that it is taken from"""
    existed: bool
    """whether the new state was there already, with these edits"""

    @classmethod
    def of_assembly(cls, report: AssemblyReport, **values: object) -> Self:
        """Make it of the report of a new state and what is its own."""
        work, edits = report.plan.work, [HeldEdit.of_holding(edit) for edit in report.plan.union.edits]
        made = {"state": report.target.sidecar, "edits": edits}
        return cls.of(report, expected_edits=work.edits, expected_seconds=work.seconds, **made, **values)


class CombineOutput(Assembled, Printed, schema="more.combine/1", command="more combine A.more B.more -o C.more --json"):
    """The edits of several states in a new one."""

    sources: list[FilePath]
    """paths of the states that are combined"""
    kept: int
    """first lines of the history that are taken over as they are"""
    start: FilePath
    """the state that these lines are from"""
    reverted: list[str]
    """ids of edits that one of the states reverted: they stay so"""
    withdrawn: dict[str, FilePath]
    """of these, the edits that are in force in another state, with the state that reverted them"""
    contradictions: list[list[HeldEdit]]
    """with `--theirs`: pairs with the same pictures and question and another target; the second one counts, unless it
    is refused"""
    failed: list[str]
    """ids of edits of the new state that are `not-learnt` or `refused`"""

    @classmethod
    def of_report(cls, report: AssemblyReport) -> Self:
        """Make it of the report of a combination."""
        plan, held = report.plan, HeldEdit.of_holding
        return cls.of_assembly(
            report,
            sources=[source.path for source in plan.sources],
            kept=plan.kept,
            start=plan.start.path,
            reverted=[edit.id for edit in plan.union.reverted],
            withdrawn={id: source.path for id, source in plan.union.withdrawn.items()},
            contradictions=[[held(each.earlier), held(each.later)] for each in plan.union.contradictions],
        )


class RebaseOutput(Assembled, Printed, schema="more.rebase/1", command="more rebase [MODEL] NEW_BASE --json"):
    """The edits of a state on a new version of its base."""

    model: FilePath
    """path of the new base"""
    source: FilePath
    """path of the state whose edits these are"""
    counts: dict[str, int]
    """how many ids each of the next six lists has"""
    held: list[str]
    """ids of edits that stand because they were written"""
    already_right: list[str]
    """ids of edits that the new base answers right by itself"""
    lost: list[str]
    """ids of edits that stood, and are `not-learnt` or `refused` now"""
    still_failed: list[str]
    """ids of edits that did not stand before, and do not now"""
    superseded: list[str]
    """ids of edits that a later one supersedes"""
    reverted: list[str]
    """ids of edits that were reverted: they stay so"""
    reasons: dict[str, str]
    """of `lost` and `still_failed`: why, and what may help"""

    @classmethod
    def of_report(cls, report: RebaseReport) -> Self:
        """Make it of the report of a rebase."""
        counts = {name: len(ids) for name, ids in report.groups.items()}
        where = {"model": report.target.model, "source": report.plan.start.path}
        return cls.of_assembly(report, counts=counts, **where, **report.groups)


class DiffEdit(Part, like=Entry):
    """An edit that two states do not hold alike."""

    id: str
    what: str
    """`only in the first`, `only in the second`, `with another status`, `with another target` or, where pictures or
    question differ, `about something else`"""
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


class NamedState(Part):
    """A state beside a checkpoint."""

    name: str
    """its name: `main` for `MODEL.more`, `ann` for `MODEL.ann.more`"""
    path: FilePath
    """path of the state"""
    current: bool
    """whether commands use it"""
    edits: int | None
    """edits that are not reverted; `null` where it cannot be read"""
    failed: int | None
    problem: str
    """why it cannot be read; empty if it can"""


class SwitchOutput(Printed, schema="more.switch/1", command="more switch [MODEL] [NAME] --json"):
    """The states beside a checkpoint, and which one commands use."""

    model: FilePath
    current: str
    """name of the state that commands use without `--state`, `MORE_STATE` and `state` in more.toml"""
    created: bool
    """whether this call made it"""
    states: list[NamedState]
    """all states beside the checkpoint, `main` first"""

    @classmethod
    def of_report(cls, report: SwitchReport) -> Self:
        """Make it of the report of `switch`."""
        return cls.of(
            report,
            states=[NamedState.of(each, current=each.name == report.current) for each in report.states],
        )
