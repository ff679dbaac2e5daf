"""What runs the jobs of a sweep: a job whose process is killed is started again, and what fails is its outcome."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from more_cli.progress import no_progress
from more_lab.sweep.folder import SweepFolder, run_jobs
from more_lab.sweep.jobs import LOST, TRIES, Runner, here, on_ray, processes
from more_lab.sweep.place import Place
from support.helpers import wait_for
from support.sweeps import Note

with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra `cluster`)")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def notes(folder: Path) -> list[Note]:
    folder.mkdir()
    return [Note("a", folder), Note("once", folder, killed=1), Note("ever", folder, killed=99), Note("z", folder)]


def run_with(runner: Runner, tmp_path: Path) -> tuple[dict[str, dict], dict[str, str], list[Note]]:
    jobs = notes(tmp_path / "notes")
    done = run_jobs(jobs, SweepFolder(tmp_path / "out"), runner, no_progress)
    return dict(done.values), dict(done.problems), jobs


def test_a_job_that_fails_says_why_on_one_line_and_the_next_one_runs(tmp_path: Path) -> None:
    jobs = [Note("wrong", tmp_path), Note("a", tmp_path), Note("", tmp_path, problem="there is no model")]
    done = run_jobs(jobs, SweepFolder(tmp_path / "out"), here, no_progress)
    assert dict(done.values) == {"a": {"key": "a"}}
    assert dict(done.problems) == {"note wrong": "it is wrong", "note ": "there is no model"}
    run_jobs(jobs, SweepFolder(tmp_path / "out"), here, no_progress)
    assert [job.starts for job in jobs[:2]] == [2, 1], "what failed is tried again, what is done is not"


def test_a_part_that_is_damaged_is_run_again(tmp_path: Path) -> None:
    folder, job = SweepFolder(tmp_path / "out"), Note("a", tmp_path)
    run_jobs([job], folder, here, no_progress)
    (tmp_path / "out" / "parts" / "a.json").write_text('{"key"')
    assert dict(run_jobs([job], folder, here, no_progress).values) == {"a": {"key": "a"}}
    assert job.starts == 2


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_job_started_again(tmp_path: Path) -> None:
    values, problems, jobs = run_with(processes(2), tmp_path)
    assert set(values) == {"a", "once", "z"}
    assert problems == {"note ever": LOST}
    assert jobs[2].starts in (TRIES, TRIES + 1), "alone, and perhaps once beside another"


@pytest.mark.slow
def test_a_job_is_not_lost_for_what_runs_beside_it(tmp_path: Path) -> None:
    jobs = [Note("ever", tmp_path, killed=99), *(Note(key, tmp_path, seconds=0.5) for key in "abc")]
    done = run_jobs(jobs, SweepFolder(tmp_path / "out"), processes(4), no_progress)
    assert set(done.values) == {"a", "b", "c"}
    assert dict(done.problems) == {"note ever": LOST}


DRIVER = """
import sys
from pathlib import Path
from more_lab.sweep.jobs import processes
from more_cli.progress import no_progress
from support.sweeps import Note

if __name__ == "__main__":
    list(processes(2)([Note(key, Path(sys.argv[1]), seconds=600) for key in "ab"], no_progress))
"""


@pytest.mark.slow
def test_workers_end_with_a_driver_that_was_killed(tmp_path: Path) -> None:
    script, tests = tmp_path / "driver.py", Path(__file__).parents[2]
    script.write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tests), str(tests.parent)))}
    with subprocess.Popen([sys.executable, script, tmp_path], env=environment) as driver:
        try:
            wait_for(lambda: all(note.exists() and note.read_text() for note in (tmp_path / "a.0", tmp_path / "b.0")))
        finally:
            driver.kill()
    workers = [int((tmp_path / name).read_text()) for name in ("a.0", "b.0")]
    wait_for(lambda: not any(map(is_running, workers)))


@with_ray
@pytest.mark.slow
def test_ray_starts_a_job_again_whose_worker_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)  # where its workers find Note
    values, problems, jobs = run_with(on_ray("local", 0), tmp_path)
    assert set(values) == {"a", "once", "z"}
    assert problems == {"note ever": LOST}
    assert jobs[2].starts == TRIES


def test_the_attention_kernel_is_among_what_decides_a_job() -> None:
    assert Place(attention="eager").versions(1) != Place().versions(1)
