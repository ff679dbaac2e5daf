"""What the page asks of the model; each task runs in the worker's thread and names the page that shows its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from more_cli.errors import DataError, MoreError, StateError, StreamErrors, UsageError
from more_cli.inputs.images import ImageSource
from more_cli.review.drafts import Draft, by_field
from more_cli.review.edits import Edits
from more_cli.review.pictures import Pictures
from more_cli.store.status import FAILED
from more_cli.store.target import Target
from more_cli.text import counted, plain, shorten

if TYPE_CHECKING:
    from more_cli.api import Model
    from more_cli.ops.ask import Answers
    from more_cli.ops.assembly import AssemblyReport
    from more_cli.review.queue import Queue

CUT_OFF = "..."
"""How an answer ends that was longer than it may be."""
_WHAT = {
    "rel": "the correction",
    "gen_text": "in other words",
    "gen_image": "on another picture",
    "portability": "follows from it",
}
"""What a question of an edit is to its correction; locality questions are all others."""
STALE = "the ledger has changed since this page was drawn, so nothing was done"


@dataclass(frozen=True)
class Task:
    """What the model is asked to do."""

    title: str
    """What it does, in words that follow "now:"."""
    path: str
    """Address of the page that shows its result."""
    run: Callable[[Model], Any]
    """Does it and returns the result; raises what the method of `Model` does."""
    draft: Draft | None = None
    """The form that it was started from, which is shown again with its result."""


def edit_path(id: str) -> str:
    """Return the address of the page of one edit: an id can hold any letter, also `/` and `..`."""
    return f"/edit?id={quote(id, safe='')}"


def combine_path(other: str) -> str:
    """Return the address of the form that combines this state with another one, by its file name."""
    return f"/combine?other={quote(other, safe='')}"


def ask(draft: Draft, pictures: Pictures) -> Task:
    """Ask base and edited model one question."""

    def run(model: Model) -> Answers:
        with model.asking() as asker:
            return asker.ask(draft.question, _sources(pictures, draft.picture))

    return Task(f"asking `{shorten(draft.question)}`", "/ask", run, draft)


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


def ask_all(id: str, edits: Edits) -> Task:
    """Ask everything that an edit holds, in the order of its page: its question, variants and locality questions."""

    def run(model: Model) -> list[Asked]:
        from more_cli.evaluation.probes import probes_of  # with torch, which takes a second

        probes = sorted(probes_of(edits.edit(id)), key=lambda probe: probe.kind == "portability")  # they come last
        with model.asking() as asker:
            return [
                Asked(
                    _WHAT.get(probe.kind, "must stay"),
                    probe.gold if probe.is_locality else probe.target,
                    probe.query.images[-1].sha256 if probe.query.images else "",
                    asker.ask(probe.query.question, probe.query.images, turns=probe.query.turns),
                )
                for probe in probes
            ]

    return Task(f"asking the questions of {shorten(id)}", edit_path(id), run)


def base_answers(draft: Draft, pictures: Pictures) -> Task:
    """Ask the base the questions of a draft, and take its answers for the locality questions that have none."""

    def run(model: Model) -> Draft:
        shown = _sources(pictures, draft.picture)
        before = [source for digest in draft.talk.pictures for source in _sources(pictures, digest)]
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

    return _of_draft("asking the base about", draft, run)


def check(draft: Draft, pictures: Pictures) -> Task:
    """Check a draft as `more edit --dry-run` does; the result has its problems, or what an edit would do."""

    def run(model: Model) -> Draft:
        try:
            report = model.edit([_line(draft, pictures)], reapply=True, dry_run=True).report
        except (StreamErrors, DataError) as error:
            return _with_problems(draft, error)
        return replace(draft, notes=["no problems found", *report.notes])

    return _of_draft("checking", draft, run)


@dataclass(frozen=True)
class Applied:
    """An edit that was applied, or was in the ledger already."""

    id: str
    said: str


def apply(draft: Draft, pictures: Pictures, queue: Queue | None) -> Task:
    """Apply a draft as `more edit` does; if the edit stands, the mistake of the queue that it corrects is done."""

    def run(model: Model) -> Applied | Draft:
        try:
            report = model.edit([_line(draft, pictures)], reapply=True).report
        except (StreamErrors, DataError) as error:
            return _with_problems(draft, error)
        if not report.ids or report.ids[0] not in report.statuses:
            return replace(draft, problems={"": ["it was interrupted before it was applied"]})
        id = report.ids[0]
        if queue and draft.queued and report.statuses[id] not in FAILED:
            queue.finish(draft.queued, "applied")
        what = f"applied: {report.statuses[id]}" if report.applied else "this correction is in the ledger already"
        return Applied(id, "; ".join([what, *report.notes]))

    return _of_draft("applying", draft, run)


def _of_draft(verb: str, draft: Draft, run: Callable[[Model], Any]) -> Task:
    return Task(f"{verb} the correction of `{shorten(draft.question)}`", "/draft", run, draft)


def retry(id: str, settings: tuple[str, ...]) -> Task:
    """Try one edit again, or all that do not stand; `settings` change the recipe for this try, as KEY=VALUE."""

    def run(model: Model) -> Applied | str:
        report = model.retry(*([id] if id else []), settings=settings).report
        if id:
            return Applied(id, f"tried again: {report.statuses[id]}")
        counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
        return f"{counted(report.applied, 'edit')} tried again: {counts}" if report.applied else "no edit has failed"

    return Task(f"trying {shorten(id) if id else 'failed edits'} again", edit_path(id) if id else "/", run)


def evaluate() -> Task:
    """Score every edit with its probes."""
    return Task("scoring all edits", "/eval", lambda model: model.evaluate(ask_base=True).report)


def merge(name: str, **options: bool) -> Task:
    """Write a standalone checkpoint to a folder of this name beside the state; `options` are those of a merge."""
    return Task(
        f"merging into {shorten(name)}",
        "/merge",
        lambda model: model.merge(_beside(model.target, name, "folder"), **options),
    )


def combine(other: str, name: str, theirs: bool) -> Task:
    """Write the edits of this state and of another one beside it into a new state; `name` may lack `.more`."""

    def run(model: Model) -> AssemblyReport:
        file = name if name.endswith(".more") else f"{name}.more"
        second, out = _beside(model.target, other, "state"), _beside(model.target, file, "state")
        return model.combine(second, out=out, theirs=theirs)

    return Task(f"combining with {shorten(other)}", combine_path(other), run)


def revert(id: str, head: str, edits: Edits) -> Task:
    """Revert one edit, unless the ledger has another `head` than when the page with the button was drawn.

    Raises:
        StateError: it has already.
    """

    def run(model: Model) -> str:
        _require_head(head, edits)
        report = model.revert(id)
        again = f", {counted(len(report.again), 'later one')} applied again" if report.again else ""
        moved = [f"{id} is now {now}" for id, (_, now) in report.changed.items()]
        return "; ".join([f"reverted{again}", *moved[:10]])

    _require_head(head, edits)
    return Task(f"reverting {shorten(id)}", edit_path(id), run)


def _require_head(head: str, edits: Edits) -> None:
    if edits.now().head != head:
        raise StateError(STALE, "look at the edit as it is now, then press the button again")


def _line(draft: Draft, pictures: Pictures) -> dict[str, Any]:
    source = next(iter(_sources(pictures, draft.picture)), None)
    others, earlier = (
        [source.path for digest in digests for source in _sources(pictures, digest)]
        for digests in (draft.others, draft.talk.pictures)
    )
    return draft.line(source.path if source else None, others, earlier)


def _beside(target: Target, name: str, what: str) -> Path:
    """Return the path of a name in the folder of the state."""
    if name in ("", ".", "..", ".more") or Path(name).name != name:
        raise UsageError(f"`{shorten(name)}` is not a name of a {what}", "type a name without `/`")
    return target.sidecar.parent / name


def _sources(pictures: Pictures, digest: str) -> Sequence[ImageSource]:
    """Return the picture of a form; none if no picture was chosen."""
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
    return replace(draft, problems=problems, notes=[error.hint] if error.hint else [])
