"""The server: one port of 127.0.0.1, until Ctrl-C."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvicorn

from more_cli.errors import UsageError
from more_cli.inputs.ratings import Ratings
from more_cli.ops.signals import stoppable
from more_cli.review.app import make_app
from more_cli.review.guard import Guard
from more_cli.review.worker import Worker
from more_cli.store.target import Target
from more_cli.text import reason_of

ADDRESS = "127.0.0.1"
PATIENCE = 2
"""Seconds for which requests that are being answered may go on after Ctrl-C."""


def serve(
    target: Target,
    worker: Worker,
    port: int,
    started: Callable[[str], None],
    log: Callable[[str], None],
    ratings: Ratings | None = None,
) -> None:
    """Serve the page of a state until Ctrl-C; `started` gets its address with the token, `log` every refusal.

    Mistakes among `ratings` are a queue. Uploaded pictures lie in a temporary folder, which is removed at the end.
    Port 0 is any free one.

    Raises:
        UsageError: the port is taken, or not allowed.
    """
    with (
        _listening(port) as listener,
        tempfile.TemporaryDirectory(prefix="more-review-") as uploads,
        stoppable(),  # uvicorn ends at the first Ctrl-C, then sends it on to this
    ):
        port = listener.getsockname()[1]
        guard = Guard(make_app(target, Path(uploads), worker, ratings), port, log)
        config = uvicorn.Config(
            guard,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=PATIENCE,
        )
        started(f"http://{ADDRESS}:{port}/?token={guard.token}")
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            if running := worker.running:  # it may end meanwhile
                log(f"waiting until {running.task.title} can stop; Ctrl-C again ends at once")
            worker.stop()


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        if os.name == "posix":  # elsewhere this option would let two programs share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen()
    except OSError as error:
        listener.close()
        what = f"port {port} cannot be used: {reason_of(error)}"
        raise UsageError(what, "leave --port out for any free one") from None
    return listener
