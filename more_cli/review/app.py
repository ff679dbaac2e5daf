"""The addresses of the page, and what stands on each; `guard` decides who gets this far.

Reading pages reads the ledger only. What needs the model becomes a job of the worker: its page refreshes itself until
the job is done, and then leads to the page with the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Form, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from more_cli.errors import DataError, MoreError, UsageError
from more_cli.inputs.ratings import Ratings
from more_cli.ops.log import show
from more_cli.options import CombineOptions
from more_cli.render.templates import static
from more_cli.review import tasks
from more_cli.review.drafts import EARLIER, OTHER, Draft
from more_cli.review.edits import PAGE, Edits
from more_cli.review.pages import STATIC, page, standalone
from more_cli.review.pictures import SIDES, Pictures
from more_cli.review.queue import Queue
from more_cli.review.tasks import Applied, Task, combine_path, edit_path
from more_cli.review.worker import Job, Worker
from more_cli.store.target import Target

SHOWN = 22
"""Pictures that a form shows at a time."""
FILES = 51
"""Most pictures that are uploaded with one form."""
FIELDS = 1_000
"""Most fields of a form."""
_TOO_MUCH = "Part exceeded", "Field exceeded", "Too many"
"""How Starlette begins what it says of a form with too long or too many fields."""
WAIT = 0.4
"""Seconds for which a job's page waits before it says that the job is not done; then it looks again every second."""
DRAFT_TASKS: dict[str, Callable[[Draft, Desk], Task]] = {
    "base": lambda draft, desk: tasks.base_answers(draft, desk.pictures),
    "check": lambda draft, desk: tasks.check(draft, desk.pictures),
    "apply": lambda draft, desk: tasks.apply(draft, desk.pictures, desk.queue),
}


@dataclass(frozen=True)
class Desk:
    """What the handlers share."""

    target: Target
    edits: Edits
    pictures: Pictures
    worker: Worker
    queue: Queue | None = None

    def page(self, template: str, code: int = 200, **values: Any) -> HTMLResponse:
        """Return a page with what stands on every page."""
        about = {"target": self.target, "running": self.worker.running, "queue": self.queue}
        return HTMLResponse(page(template, **about, **values), code)

    def start(self, task: Task) -> RedirectResponse:
        """Put a task in line and lead to its job's page."""
        return RedirectResponse(f"/jobs/{self.worker.submit(task).number}", 303)

    def done(self, number: int | None, path: str) -> Job | None:
        """Return a job that is done and whose result belongs on a page; None if there is no such job."""
        job = None if number is None else self.worker.job(number)
        return job if job is not None and job.ended.is_set() and job.task.path == path else None


def make_app(target: Target, uploads: Path, worker: Worker, ratings: Ratings | None = None) -> FastAPI:
    """Return the page of one state, still without its guard; `uploads` is a folder for uploaded pictures.

    Mistakes among `ratings` are a queue.

    Raises:
        StateError: it cannot be read which of them are done.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pictures = Pictures(target.folder / "images", uploads)
    queue = Queue(ratings, target, pictures) if ratings else None
    desk = Desk(target, Edits(target), pictures, worker, queue)
    _reading(app, desk)
    _asking(app, desk)
    _changing(app, desk)
    _scoring(app, desk)
    _combining(app, desk)
    _queueing(app, desk)
    _failing(app, desk)
    return app


def _reading(app: FastAPI, desk: Desk) -> None:
    """Add the pages that need the ledger only."""

    @app.get("/")
    def edits(status: str = "", text: str = "", sort: str = "", number: int = 1, job: int | None = None) -> Response:
        listing = desk.edits.now()
        chosen = listing.chosen(status, text, sort)
        pages = max(1, -(-len(chosen) // PAGE))
        number = min(max(1, number), pages)
        rows = chosen[(number - 1) * PAGE : number * PAGE]
        values: dict[str, Any] = {"status": status, "text": text, "sort": sort, "number": number, "pages": pages}
        done = desk.done(job, "/")
        return desk.page("edits.html", listing=listing, chosen=len(chosen), rows=rows, job=done, **values)

    @app.get("/export")
    def export(status: str = "", text: str = "", sort: str = "") -> Response:
        rows = desk.edits.now().chosen(status, text, sort)
        named = {"Content-Disposition": 'attachment; filename="edits.html"'}
        return HTMLResponse(standalone(desk.target, rows, desk.pictures, status, text), headers=named)

    @app.get("/edit")
    def edit(id: str, job: int | None = None) -> Response:
        listing = desk.edits.now()  # before the edit is read: if it changes in between, the button is stale, not wrong
        record = show(desk.target, id)
        done, drafted = desk.done(job, edit_path(id)), desk.done(job, "/draft")
        if drafted and isinstance(drafted.result, Applied) and drafted.result.id == id:
            done = drafted
        from more_cli.ops.revert import work_of_revert  # with torch, which the server starts without

        work = None
        with suppress(MoreError):  # reverted already, no edit, or a damaged state: the button says what is wrong
            work = work_of_revert(desk.target, [id])
        return desk.page("edit.html", record=record, head=listing.head, work=work, job=done)

    @app.get("/image/{size}/{digest}")
    def image(size: str, digest: str) -> Response:
        jpeg = desk.pictures.jpeg(digest, SIDES[size]) if size in SIDES else None
        if jpeg is None:
            raise HTTPException(404)
        return Response(jpeg, media_type="image/jpeg")

    @app.get("/static/{name}")
    def file(name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404)
        return Response(static(name), media_type=STATIC[name])

    @app.get("/jobs/{number}")
    def job(number: int) -> Response:
        job = desk.worker.job(number)
        if job is None:
            raise HTTPException(404)
        if not job.ended.wait(WAIT):
            return desk.page("job.html", job=job)
        path = edit_path(job.result.id) if isinstance(job.result, Applied) else job.task.path
        return RedirectResponse(f"{path}{'&' if '?' in path else '?'}job={number}", 303)


def _asking(app: FastAPI, desk: Desk) -> None:
    """Add the pages that ask the model and change nothing."""

    @app.get("/ask")
    def form(picture: str = "", question: str = "", job: int | None = None) -> Response:
        done = desk.done(job, "/ask")
        if done and (asked := done.task.draft):
            picture, question = asked.picture, asked.question
        return _ask_page(desk, picture, question, job=done)

    @app.post("/ask")
    async def ask(request: Request) -> Response:
        form, problem = await _form(desk, request)
        picture, question = form["picture"], form.get("question", "")
        place = _place(form)
        if problem or place is not None:
            return _ask_page(desk, picture, question, problem=problem, place=place or 0)
        return desk.start(tasks.ask(Draft(question, picture=picture), desk.pictures))

    @app.post("/probe")
    def probe(id: Annotated[str, Form()]) -> Response:
        show(desk.target, id)
        return desk.start(tasks.ask_all(id, desk.edits))


def _changing(app: FastAPI, desk: Desk) -> None:
    """Add the pages that draft, apply and revert."""

    @app.get("/draft")
    def form(
        picture: str = "", question: str = "", target: str = "", like: str = "", job: int | None = None
    ) -> Response:
        done = desk.done(job, "/draft")
        if done and done.error is None and isinstance(done.result, Draft):
            return _draft_page(desk, done.result)
        if done and (drafted := done.task.draft):
            return _draft_page(desk, drafted, error=done.error)
        if like:
            return _draft_page(desk, Draft.like(desk.edits.edit(like)))
        return _draft_page(desk, Draft(question, target, picture=picture))

    @app.post("/draft")
    async def draft(request: Request) -> Response:
        form, problem = await _form(desk, request)
        drafted, task = Draft.of_form(form), DRAFT_TASKS.get(form.get("do", "check"))
        if not problem and (place := _place(form)) is not None:
            return _draft_page(desk, drafted, place=place)
        if problem or task is None:
            wrong = {"image": [problem.message]} if problem else {"": ["no such button"]}
            return _draft_page(desk, replace(drafted, problems=wrong))
        return desk.start(task(drafted, desk))

    @app.post("/retry")
    def retry(id: Annotated[str, Form()] = "", settings: Annotated[str, Form()] = "") -> Response:
        return desk.start(tasks.retry(id, tuple(settings.split())))

    @app.post("/revert")
    def revert(id: Annotated[str, Form()], head: Annotated[str, Form()]) -> Response:
        return desk.start(tasks.revert(id, head, desk.edits))


def _scoring(app: FastAPI, desk: Desk) -> None:
    """Add the pages that score the edits and write them into a checkpoint."""

    @app.get("/eval")
    def scores(job: int | None = None) -> Response:
        from more_cli.render.pages import of_state

        done = desk.done(job, "/eval")
        return desk.page("eval.html", job=done, scores=of_state(done.result) if done and not done.error else None)

    @app.post("/eval")
    def evaluate() -> Response:
        return desk.start(tasks.evaluate())

    @app.get("/report")
    def report(job: int) -> Response:
        from more_cli.render.html import html
        from more_cli.render.pages import of_state

        done = desk.done(job, "/eval")
        if done is None or done.error:
            raise HTTPException(404)
        named = {"Content-Disposition": 'attachment; filename="report.html"'}
        return HTMLResponse(html(of_state(done.result)), headers=named)

    @app.get("/merge")
    def form(job: int | None = None) -> Response:
        name = f"{desk.target.model.resolve().name}-edited"
        return desk.page("merge.html", job=desk.done(job, "/merge"), name=name, failed=desk.edits.now().failed)

    @app.post("/merge")
    def merge(
        name: Annotated[str, Form()],
        verify: Annotated[bool, Form()] = False,
        require_all: Annotated[bool, Form()] = False,
        force: Annotated[bool, Form()] = False,
    ) -> Response:
        return desk.start(tasks.merge(name.strip(), verify=verify, require_all=require_all, force=force))


def _combining(app: FastAPI, desk: Desk) -> None:
    """Add the page that combines this state with another one in its folder."""

    @app.get("/combine")
    def form(other: str = "", job: int | None = None) -> Response:
        own = desk.target.sidecar
        others = sorted(path.name for path in own.parent.glob("*.more") if path.name != own.name and path.is_file())
        values: dict[str, Any] = {"others": others, "other": other, "name": f"{own.stem}.combined.more"}
        values |= {"job": desk.done(job, combine_path(other)), "plan": None, "pairs": [], "error": None}
        if other in others:
            from more_cli.ops.combine import planned
            from more_cli.ops.shared import open_sources, require_same_setup
            from more_cli.review.beside import beside

            try:
                sources = open_sources([own, own.with_name(other)])
                require_same_setup(sources)
                values["plan"] = plan = planned(sources, CombineOptions(theirs=True))
            except MoreError as error:
                values["error"] = error
            else:
                desk.pictures.show_also(sources[1].ledger.folder / "images")
                values["pairs"] = beside(sources, plan.union)
        return desk.page("combine.html", **values)

    @app.post("/combine")
    def combine(
        other: Annotated[str, Form()], name: Annotated[str, Form()], theirs: Annotated[bool, Form()] = False
    ) -> Response:
        return desk.start(tasks.combine(other, name.strip(), theirs))


def _queueing(app: FastAPI, desk: Desk) -> None:
    """Add the pages of mistakes to correct."""

    @app.get("/queue")
    def queue(key: str = "") -> Response:
        if desk.queue is None:
            raise HTTPException(404)
        chosen = desk.queue.find(key) or next(iter(desk.queue.open), None)
        if chosen is None:
            return desk.page("queue.html")
        return _draft_page(desk, desk.queue.draft(chosen), focused=True)

    @app.post("/queue")
    def skip(queued: Annotated[str, Form()]) -> Response:
        if desk.queue is None or desk.queue.find(queued) is None:
            raise HTTPException(404)
        desk.queue.finish(queued, "skipped")
        return RedirectResponse("/queue", 303)


def _failing(app: FastAPI, desk: Desk) -> None:
    """Add the pages for what cannot be done."""

    @app.exception_handler(MoreError)
    def error(request: Request, error: MoreError) -> Response:
        missing = isinstance(error, UsageError)
        return desk.page("error.html", 404 if missing else 409, missing=missing, error=error)

    @app.exception_handler(RequestValidationError)
    @app.exception_handler(AnyHTTPException)
    def missing(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, AnyHTTPException) else 404
        if status == 400 and str(getattr(error, "detail", "")).startswith(_TOO_MUCH):
            text = "this form is larger than one may be"
            return desk.page("error.html", 413, missing=False, error=DataError(text, "shorten it"))
        error = MoreError("nothing is at this address", "the list has every edit")
        return desk.page("error.html", status, missing=True, error=error)

    @app.exception_handler(ClientDisconnect)
    def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody reads it: the browser has gone, or the guard answers


def _ask_page(
    desk: Desk, picture: str, question: str, *, job: Job | None = None, problem: MoreError | None = None, place: int = 0
) -> HTMLResponse:
    status, values = 422 if problem else 200, {"picture": picture, "question": question}
    choice = Choice.of(desk, picture, place)
    return desk.page("ask.html", status, job=job, problem=problem, choice=choice, **values)


def _draft_page(
    desk: Desk, draft: Draft, error: MoreError | None = None, place: int = 0, *, focused: bool = False
) -> HTMLResponse:
    """Return the form; `focused` puts the cursor into the target."""
    status = 422 if draft.problems else 200
    choice = Choice.of(desk, draft.picture, place)
    mistake = desk.queue.find(draft.queued) if desk.queue else None
    values = {"draft": draft, "error": error, "choice": choice, "mistake": mistake, "focused": focused}
    return desk.page("draft.html", status, **values)


@dataclass(frozen=True)
class Choice:
    """Some of the pictures that a form offers, the chosen one first."""

    shown: list[str]
    place: int
    """Number of the first one."""
    total: int
    step: ClassVar[int] = SHOWN

    @classmethod
    def of(cls, desk: Desk, chosen: str, place: int) -> Choice:
        """Return those from a place on: of all that are stored or uploaded, those of the last edits first."""
        found = [*desk.edits.now().pictures(), *desk.pictures.stored()]
        every = [digest for digest in dict.fromkeys(found) if digest != chosen]
        place = min(place, (len(every) - 1) // SHOWN * SHOWN) if every else 0
        shown = every[place : place + SHOWN]
        return cls([chosen, *shown] if chosen else shown, place, len(every))


def _place(form: Mapping[str, str]) -> int | None:
    """Return from which picture on a form should show them; None if no button for that was pressed."""
    name, _, place = form.get("do", "").partition("-")
    return int(place) if name == "pictures" and place.isdecimal() and len(place) < 9 else None


async def _form(desk: Desk, request: Request) -> tuple[dict[str, str], MoreError | None]:
    """Return the fields of a form, with its uploads among the chosen pictures, and what is wrong with one of them."""
    async with request.form(max_files=FILES, max_fields=FIELDS) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        fields.setdefault("picture", "")
        others = [name.removeprefix(OTHER) for name in fields if name.startswith(OTHER)]
        others += [value for name, value in fields.items() if name.startswith(EARLIER)]
        if any(desk.pictures.find(digest) is None for digest in (fields["picture"], *others) if digest):
            raise HTTPException(404)
        for name, upload in form.multi_items():
            if not isinstance(upload, UploadFile) or not upload.filename:
                continue
            try:
                digest = await run_in_threadpool(desk.pictures.add, await upload.read(), upload.filename)
            except DataError as error:
                return fields, error
            fields |= {f"{OTHER}{digest}": "on"} if name == "others" else {"picture": digest}
        return fields, None
