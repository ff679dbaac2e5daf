"""`more review`: serves a page on this machine."""

from __future__ import annotations

import threading
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import options as opt
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.errors import UsageError, install_hint
from more_cli.files import as_user_error
from more_cli.model.machine import Machine
from more_cli.store.target import locate
from more_cli.text import counted

if TYPE_CHECKING:
    from more_cli.api import Model
    from more_cli.inputs.ratings import Ratings
    from more_cli.progress import Progress


@command
def review(
    model: opt.Model = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65_535, help="Port of 127.0.0.1; 0 for any free one.")
    ] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    queue: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON Lines of rated answers; those rated down are corrected one after the other."
        ),
    ] = None,
    state: opt.StateFile = None,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="More messages on stderr; -vv for all.")
    ] = 0,
    *,
    machine: Machine,
) -> None:
    """Serve a page that shows, drafts and reverts edits.

    The page lists the edits with their pictures, asks the base and the edited model, and drafts a correction, checks it
    and applies it. It is reachable from this machine only, with the address that is printed; Ctrl-C ends it. The model
    is loaded when it is first asked.

    \b
    Examples:
      more review llava/
      more review llava/ --port 8800 --open
      more review llava/ --queue answers.jsonl    # lines of question, image, answer, rating
    """
    output = Output(verbose=verbose)
    _require_extra()
    from more_cli.checkpoint.folder import require_checkpoint
    from more_cli.review.server import serve
    from more_cli.review.worker import Worker

    target = locate(model, state)
    if state is not None:
        target.require_state()
    require_checkpoint(target.model)
    ratings = None if queue is None else _rated(output, queue)

    def opened(progress: Progress) -> Model:
        from more_cli.api import open_model

        return open_model(target.model, target.sidecar, progress=progress, **asdict(machine))

    def started(address: str) -> None:
        output.text(f"{address}\n")
        output.note("open this address in a browser of this machine; it works once; Ctrl-C ends the page")
        if open_:
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    serve(target, Worker(opened, as_user_error), port, started, output.note, ratings)


def _rated(output: Output, queue: Path) -> Ratings:
    """Return the answers of a file, and say how many are mistakes."""
    from more_cli.inputs.ratings import read_ratings

    ratings = read_ratings(queue)
    left = f"{counted(ratings.up, 'answer')} rated up, {ratings.unrated} not rated"
    output.note(f"{counted(len(ratings.mistakes), 'mistake')} to correct; left out: {left}")
    return ratings


def _require_extra() -> None:
    """Check that what the page needs is installed."""
    for name in ("fastapi", "uvicorn", "python_multipart"):
        if find_spec(name) is None:
            raise UsageError(f"`more review` needs {name}", install_hint("review"))
