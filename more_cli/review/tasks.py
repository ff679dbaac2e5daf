"""What the page asks of the model; each task runs in the worker's thread and names the page that shows its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from more_cli.errors import DataError, MoreError, StateError, StreamErrors, UsageError
from more_cli.inputs.images import ImageSource
from more_cli.review.drafts import Draft, by_field
from more_cli.review.edits import Edits
from more_cli.review.pictures import Pictures
from more_cli.store.target import Target
from more_cli.text import counted, plain, shorten

if TYPE_CHECKING:
    from more_cli.api import Model
    from more_cli.model.batches import Query
    from more_cli.ops.ask import Answers
    from more_cli.ops.assembly import AssemblyReport
    from more_cli.ops.evaluate import EvalReport
    from more_cli.ops.merge import MergeReport
    from more_cli.review.queue import Queue

CUT_OFF = "..."
"""How an answer ends that was longer than it may be."""
STALE = "the ledger has changed since this page was drawn, so nothing was done"


def edit_path(id: str) -> str:
    """Return the address of the page of one edit: an id can hold any letter, also `/` and `..`."""
    return f"/edit?id={quote(id, safe='')}"


@dataclass(frozen=True)
class Ask:
    """Ask base and edited model one question."""

    question: str
    picture: str
    pictures: Pictures
    path: str = "/ask"

    @property
    def title(self) -> str:
        """What it does."""
        return f"asking `{shorten(self.question)}`"

    def run(self, model: Model) -> Answers:
        """Return both answers.

        Raises:
            DataError: as `Asker.ask`.
        """
        with model.asking() as asker:
            return asker.ask(self.question, _sources(self.pictures, self.picture))


@dataclass(frozen=True)
class Asked:
    """One of an edit's questions, as answered now."""

    what: str
    expected: str | None
    picture: str
    answers: Answers

    @property
    def differs(self) -> bool:
        """Whether the edited model's answer is not the expected one, letter for letter; without one, the base's."""
        expected = self.answers.base if self.expected is None else self.expected
        return self.answers.edited is not None and self.answers.edited.strip() != expected.strip()


@dataclass(frozen=True)
class AskAll:
    """Ask everything that an edit holds: its question, the variants and the locality questions."""

    id: str
    edits: Edits

    @property
    def title(self) -> str:
        """What it does."""
        return f"asking the questions of {shorten(self.id)}"

    @property
    def path(self) -> str:
        """The edit's page."""
        return edit_path(self.id)

    def run(self, model: Model) -> list[Asked]:
        """Return the answers, in the order of the edit's page."""
        from more_cli.model.batches import Query  # with torch, which takes a second

        edit = self.edits.edit(self.id)
        query = Query.of(edit)
        asked: list[tuple[str, Query, str | None]] = [
            ("the correction", query, edit.target),
            *(("in other words", replace(query, question=text), edit.target) for text in edit.rephrases),
            *(
                ("on another picture", replace(query, images=(*edit.before, image)), edit.target)
                for image in edit.image_rephrases
            ),
        ]
        for kind, probes in (("must stay", edit.locality), ("follows from it", edit.portability)):
            asked += [(kind, Query.of(probe), probe.answer) for probe in probes]
        with model.asking() as asker:
            return [
                Asked(
                    what,
                    expected,
                    query.images[-1].sha256 if query.images else "",
                    asker.ask(query.question, query.images, turns=query.turns),
                )
                for what, query, expected in asked
            ]


@dataclass(frozen=True)
class _OfDraft:
    """A task about a draft; its result is the draft with what was found."""

    draft: Draft
    pictures: Pictures
    path: str = "/draft"

    @property
    def title(self) -> str:
        """What it does."""
        return f"{self._verb} the correction of `{shorten(self.draft.question)}`"

    _verb: ClassVar[str] = "checking"

    def _line(self) -> dict[str, Any]:
        source = next(iter(_sources(self.pictures, self.draft.picture)), None)
        others, earlier = (
            [source.path for digest in digests for source in _sources(self.pictures, digest)]
            for digests in (self.draft.others, self.draft.talk.pictures)
        )
        return self.draft.line(source.path if source else None, others, earlier)


class BaseAnswers(_OfDraft):
    """Ask the base the questions of a draft, and take its answers for the locality questions that have none."""

    _verb = "asking the base about"

    def run(self, model: Model) -> Draft:
        """Return the draft with the base's answers."""
        draft = self.draft
        shown = _sources(self.pictures, draft.picture)
        before = [source for digest in draft.talk.pictures for source in _sources(self.pictures, digest)]
        with model.asking() as asker:
            base = type(asker)({"base": asker.models["base"]})
            said = [base.ask(row.question, shown if row.pictured else ()).base for row in draft.locality]
            whole = (*before, *shown)
            answer = base.ask(draft.question, whole, turns=draft.talk.turns).base if draft.question else None
        near = [
            replace(row, base=text, answer=row.answer or _whole(text))
            for row, text in zip(draft.locality, said, strict=True)
        ]
        return replace(draft, base=answer, locality=tuple(near))


class Check(_OfDraft):
    """Check a draft as `more edit --dry-run` does."""

    def run(self, model: Model) -> Draft:
        """Return the draft with its problems, or with what an edit would do."""
        try:
            report = model.edit([self._line()], reapply=True, dry_run=True).report
        except (StreamErrors, DataError) as error:
            return _with_problems(self.draft, error)
        return replace(self.draft, notes=["no problems found", *report.notes])


@dataclass(frozen=True)
class Applied:
    """An edit that was applied, or was in the ledger already."""

    id: str
    said: str


@dataclass(frozen=True)
class Apply(_OfDraft):
    """Apply a draft as `more edit` does; the mistake of the queue that it corrects is then done."""

    queue: Queue | None = None
    _verb: ClassVar[str] = "applying"

    def run(self, model: Model) -> Applied | Draft:
        """Return what was applied, or the draft with its problems."""
        try:
            report = model.edit([self._line()], reapply=True).report
        except (StreamErrors, DataError) as error:
            return _with_problems(self.draft, error)
        if not report.ids or report.ids[0] not in report.statuses:
            return replace(self.draft, problems={"": ["it was interrupted before it was applied"]})
        id = report.ids[0]
        if self.queue and self.draft.queued:
            self.queue.finish(self.draft.queued, "applied")
        what = f"applied: {report.statuses[id]}" if report.applied else "this correction is in the ledger already"
        return Applied(id, "; ".join([what, *report.notes]))


@dataclass(frozen=True)
class Retry:
    """Try one edit again, or all that do not stand."""

    id: str = ""
    """Empty for all."""
    settings: tuple[str, ...] = ()
    """Changes of the recipe for this try, as KEY=VALUE."""

    @property
    def title(self) -> str:
        """What it does."""
        return f"trying {shorten(self.id) if self.id else 'failed edits'} again"

    @property
    def path(self) -> str:
        """The edit's page, or the list."""
        return edit_path(self.id) if self.id else "/"

    def run(self, model: Model) -> Applied | str:
        """Return what became of the edits, in words."""
        report = model.retry(*([self.id] if self.id else []), settings=self.settings).report
        if self.id:
            return Applied(self.id, f"tried again: {report.statuses[self.id]}")
        counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
        return f"{counted(report.applied, 'edit')} tried again: {counts}" if report.applied else "no edit has failed"


@dataclass(frozen=True)
class Evaluate:
    """Score every edit with its probes."""

    title: str = "scoring all edits"
    path: str = "/eval"

    def run(self, model: Model) -> EvalReport:
        """Return the scores."""
        return model.evaluate(ask_base=True).report


@dataclass(frozen=True)
class Merge:
    """Write a standalone checkpoint to a folder beside the state."""

    name: str
    """Of the folder."""
    verify: bool = False
    require_all: bool = False
    force: bool = False
    path: str = "/merge"

    @property
    def title(self) -> str:
        """What it does."""
        return f"merging into {shorten(self.name)}"

    def run(self, model: Model) -> MergeReport:
        """Return what was written.

        Raises:
            UsageError: `name` is a path, or the folder exists and may not be replaced.
            FailedEditsError: an edit does not stand, and all are required.
        """
        out = _beside(model.target, self.name, "folder")
        return model.merge(out, verify=self.verify, require_all=self.require_all, force=self.force)


@dataclass(frozen=True)
class Combine:
    """Write the edits of this state and of another one beside it into a new state."""

    other: str
    """File name of the other state."""
    name: str
    """File name of the new one; `.more` may be left out."""
    theirs: bool = False

    @property
    def title(self) -> str:
        """What it does."""
        return f"combining with {shorten(self.other)}"

    @property
    def path(self) -> str:
        """The page of the form."""
        return f"/combine?other={quote(self.other, safe='')}"

    def run(self, model: Model) -> AssemblyReport:
        """Return what the new state holds.

        Raises:
            UsageError: a name is a path, or the new state exists with other edits.
            DataError: edits contradict each other, and the later one is not to count.
        """
        name = self.name if self.name.endswith(".more") else f"{self.name}.more"
        other, out = _beside(model.target, self.other, "state"), _beside(model.target, name, "state")
        return model.combine(other, out=out, theirs=self.theirs)


@dataclass(frozen=True)
class Revert:
    """Revert one edit, unless the ledger has changed since the page with the button was drawn."""

    id: str
    head: str
    """Hash of the ledger's last line on that page."""
    edits: Edits

    @property
    def title(self) -> str:
        """What it does."""
        return f"reverting {shorten(self.id)}"

    @property
    def path(self) -> str:
        """The edit's page."""
        return edit_path(self.id)

    def run(self, model: Model) -> str:
        """Return what was done, in words.

        Raises:
            StateError: the ledger has changed.
        """
        self.check()
        report = model.revert(self.id)
        again = f", {counted(len(report.again), 'later one')} applied again" if report.again else ""
        moved = [f"{id} is now {now}" for id, (_, now) in report.changed.items()]
        return "; ".join([f"reverted{again}", *moved[:10]])

    def check(self) -> None:
        """Compare the ledger with the page.

        Raises:
            StateError: the ledger has changed.
        """
        if self.edits.now().head != self.head:
            raise StateError(STALE, "look at the edit as it is now, then press the button again")


def _beside(target: Target, name: str, what: str) -> Path:
    """Return the path of a name in the folder of the state.

    Raises:
        UsageError: it is a path.
    """
    if name in ("", ".", "..", ".more") or Path(name).name != name:
        raise UsageError(f"`{shorten(name)}` is not a name of a {what}", "type a name without `/`")
    return target.sidecar.parent / name


def _sources(pictures: Pictures, digest: str) -> Sequence[ImageSource]:
    """Return the picture of a form; none if no picture was chosen.

    Raises:
        DataError: it is gone.
    """
    if not digest:
        return ()
    source = pictures.find(digest)
    if source is None:
        raise DataError("the picture is not there any more", "choose it again")
    return (source,)


def _whole(answer: str) -> str:
    """Return an answer as a line can expect it; nothing for one that was cut off, which stands for the base's too."""
    return "" if answer.endswith(CUT_OFF) else plain(answer)


def _with_problems(draft: Draft, error: MoreError) -> Draft:
    problems = by_field(error.problems if isinstance(error, StreamErrors) else [error.message])
    return draft.with_problems(problems, [error.hint] if error.hint else [])
