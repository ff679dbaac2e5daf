"""Model requests run one at a time, in a thread of their own, so that reading pages is never blocked."""

from __future__ import annotations

import itertools
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from more_cli.errors import MoreError

if TYPE_CHECKING:
    from more_cli.api import Model
    from more_cli.progress import Progress
    from more_cli.review.tasks import Task

KEPT = 100
"""Jobs whose results are kept, with those that are not done."""


class Stopped(Exception):
    """The server ends: what runs stops at its next report of progress, that is between two edits."""


@dataclass
class Job:
    """A task in line, under way or done."""

    number: int
    task: Task
    result: Any = None
    error: MoreError | None = None
    progress: str = "waiting for what came before"
    share: float | None = None
    """How much of it is done, from 0 to 1; None if that is unknown."""
    ended: threading.Event = field(default_factory=threading.Event)


class Worker:
    """Runs tasks one after the other, each with the model, which the first one opens.

    `explain` turns an exception into an error for users; None means a bug.
    """

    def __init__(self, opened: Callable[[Progress], Model], explain: Callable[[Exception], MoreError | None]) -> None:
        self._opened = opened
        self._explain = explain
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.running: Job | None = None
        """The job that runs now."""
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._lock = threading.Lock()

    def submit(self, task: Task) -> Job:
        """Put a task in line."""
        with self._lock:
            job = Job(next(self._numbers), task)
            self._jobs[job.number] = job
            done = [number for number, job in self._jobs.items() if job.ended.is_set()]
            for number in done[: max(0, len(self._jobs) - KEPT)]:
                del self._jobs[number]
            if not self._thread.is_alive():
                self._thread.start()
        self._queue.put(job)
        return job

    def job(self, number: int) -> Job | None:
        """Return a job by its number; None if it is unknown or too old."""
        return self._jobs.get(number)

    def stop(self) -> None:
        """End what runs at a place where nothing is lost, and wait for it."""
        self._stopping = True
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _report(self, done: int, total: int | None, text: str) -> None:
        if self._stopping:
            raise Stopped
        if self.running is not None:
            self.running.progress = f"{text}: {done} of {total}" if total else text
            self.running.share = done / total if total else None

    def _work(self) -> None:
        model: Model | None = None
        while (job := self._queue.get()) is not None and not self._stopping:
            self.running, job.progress = job, "starting"
            try:
                model = model or self._opened(self._report)
                job.result = job.task.run(model)
            except Stopped:
                job.error = MoreError("the server was stopped")
            except Exception as error:
                job.error = self._explained(error)
            self.running = None
            job.ended.set()

    def _explained(self, error: Exception) -> MoreError:
        if known := self._explain(error):
            return known
        traceback.print_exception(error)
        return MoreError(f"a bug: {type(error).__name__}", "the terminal of `more review` shows where")
