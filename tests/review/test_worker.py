"""One thread for the model: in order, and to an end at a place where nothing is lost."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `review` is not installed")

from more_cli.review import worker
from more_cli.review.worker import Worker

TICKS = 5_000


@dataclass
class Task:
    """Reports progress until it is stopped or released."""

    title: str = "counting"
    path: str = "/"
    started: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)

    def run(self, model: Any) -> str:
        for number in range(TICKS):
            model(number, TICKS, "counting")
            self.started.set()
            if self.free.wait(0.001):
                break
        return "done"


def made() -> Worker:
    return Worker(lambda progress: progress, lambda error: None)  # type: ignore[arg-type, return-value]


def test_what_runs_stops_at_its_next_report_and_what_waits_is_not_begun() -> None:
    shared = made()
    first, second = Task(), Task()
    running, waiting = shared.submit(first), shared.submit(second)
    assert first.started.wait(60)
    assert shared.running is running
    assert f" of {TICKS}" in running.progress
    shared.stop()
    assert running.ended.is_set()
    assert running.error is not None
    assert not second.started.is_set()
    assert waiting.result is None


def test_results_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "KEPT", 3)
    shared = made()
    for number in range(1, 7):
        task = Task()
        task.free.set()
        job = shared.submit(task)
        assert job.ended.wait(60)
        assert (job.number, job.result) == (number, "done")
    assert [shared.job(number) is not None for number in range(1, 7)] == [False] * 3 + [True] * 3
    shared.stop()
