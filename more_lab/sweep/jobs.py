"""A job of a sweep, and where jobs run: in this process, in worker processes, or on a Ray cluster.

A job is known by its key alone: whoever runs it, and whatever ran before, it has the same values. So a job that was cut
short is simply run again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from more_cli.errors import MoreError, UsageError, install_hint
from more_cli.progress import Progress, no_progress

TRIES = 3
"""How often a job is started alone whose process ends before it: by a kill, or for lack of memory."""
LOST = f"its process ended {TRIES} times before it: killed, or out of memory"


class Job(Protocol):
    """A piece of work that can be pickled."""

    @property
    def key(self) -> str:
        """Hash of everything that decides its values, hex digits."""

    @property
    def label(self) -> str:
        """What people call it."""

    @property
    def group(self) -> str:
        """Name of the jobs that take about as long."""

    @property
    def problem(self) -> str:
        """Why it cannot be run; it has no key then. Empty if it can."""

    @property
    def threads(self) -> int:
        """Threads that it uses."""

    def run(self, progress: Progress) -> tuple[dict[str, Any], bool]:
        """Return its values, and whether all of the work was done just now."""

    def stands(self, values: Mapping[str, Any]) -> bool:
        """Return whether the values of an earlier run are still its own."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    values: dict[str, Any] | None
    """None if it failed."""
    problem: str = ""
    """Why it failed and what to do, on one line."""
    seconds: float | None = None
    """Wall time; None if a part of the work was done before."""


Runner: TypeAlias = Callable[[Sequence[Job], Progress], Iterator[tuple[Job, Outcome]]]
"""Runs jobs and yields each as it ends, in any order."""


def run_job(job: Job, progress: Progress = no_progress) -> Outcome:
    """Run one job in this process; what goes wrong is its outcome."""
    import torch

    torch.set_num_threads(job.threads)
    started = time.monotonic()
    try:
        values, whole = job.run(progress)
    except MoreError as error:
        return Outcome(None, reason(error))
    except Exception as error:  # of one job: the others are still done
        logging.getLogger(__name__).info("%s failed", job.label, exc_info=True)
        return Outcome(None, _one_line(f"{type(error).__name__}: {error}"))
    return Outcome(values, seconds=time.monotonic() - started if whole else None)


def reason(error: MoreError) -> str:
    """Return what went wrong, and what to do about it, on one line."""
    return _one_line(f"{error.message}; hint: {error.hint}" if error.hint else error.message)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def here(jobs: Sequence[Job], progress: Progress) -> Iterator[tuple[Job, Outcome]]:
    """Run jobs one after the other in this process."""
    for number, job in enumerate(jobs):

        def named(done: int, total: int | None, text: str, *, number: int = number, label: str = job.label) -> None:
            progress(number, len(jobs), f"{label}: {text}")

        yield job, run_job(job, named)


def processes(workers: int) -> Runner:
    """Return a runner with so many worker processes; it starts them again if one of them is killed.

    Which job ended a worker is not known while several run, so each of them then runs alone, after the others: a job is
    lost when it was alone and its process ended, `TRIES` times.
    """

    def run(jobs: Sequence[Job], progress: Progress) -> Iterator[tuple[Job, Outcome]]:
        waiting, suspects, ended = deque(jobs), set[str](), Counter[str]()
        while waiting:
            running: dict[Future[Outcome], Job] = {}
            # Not forked: threads of torch do not survive it.
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(workers, context, initializer=_end_with_parent)
            try:
                while waiting or running:
                    # No more than there are workers: when one is killed, the jobs that it may have had are known.
                    while waiting and len(running) < (1 if waiting[0].key in suspects else workers):
                        running[pool.submit(run_job, waiting[0])] = waiting[0]
                        waiting.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        outcome = future.result()
                        yield running.pop(future), outcome
            except BrokenProcessPool:
                ended.update(job.key for job in running.values() if len(running) == 1)
                suspects.update(job.key for job in running.values())
                for job in running.values():
                    if ended[job.key] < TRIES:
                        waiting.append(job)  # behind the others: nothing starts beside it
                    else:
                        yield job, Outcome(None, LOST)
            except BaseException:  # such as Ctrl-C: a job may take hours, and continues next time
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
            finally:
                pool.shutdown(cancel_futures=True)

    return run


def _end_with_parent() -> None:
    """End this process when the one that started it ends, also if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def on_ray(address: str, gpus: float) -> Runner:
    """Return a runner on the Ray cluster at an address, with so many GPUs for each job.

    Raises:
        UsageError: Ray is not installed, or no cluster is at the address.
    """
    try:
        import ray.exceptions
    except ImportError:  # also where a folder `ray` without code hides it
        raise UsageError("`--address` needs Ray", install_hint("cluster")) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        hint = "start one with `ray start --head`, or use --address local; one with a token needs RAY_AUTH_MODE=token"
        raise UsageError(f"`--address {address}`: {_one_line(str(error)).partition('. ')[0]}", hint) from None

    def run(jobs: Sequence[Job], progress: Progress) -> Iterator[tuple[Job, Outcome]]:
        # Tasks, not Tune: a trial reports once and never ends early, and what is done is kept by our keys. Tune would
        # keep a second account of it, with state of its own to restore.
        task = ray.remote(max_retries=TRIES - 1)(run_job)
        tasks = {task.options(num_cpus=job.threads, num_gpus=gpus).remote(job): job for job in jobs}
        try:
            while tasks:
                (ended, *_), _ = ray.wait(list(tasks))
                job = tasks.pop(ended)
                try:
                    outcome = ray.get(ended)
                except ray.exceptions.RayError as error:
                    lost = isinstance(error, ray.exceptions.WorkerCrashedError)
                    outcome = Outcome(None, LOST if lost else _one_line(str(error)))
                yield job, outcome
        finally:
            ray.shutdown()

    return run
