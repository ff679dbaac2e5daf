"""A disk that refuses: full or failing at every step, once or for ever, and a small file system that really is full."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.disk import Step, Watch, refuse_at, watched
from faults.kill import chosen, steps_of
from faults.stream import Stream, attempt, judged, last, unclear
from faults.tally import Problem, Tally, forked

FULL, FAILING, REAL = "disk full (ENOSPC)", "disk failing (EIO)", "disk full (a real one)"
CODES = {errno.ENOSPC: 7, errno.EIO: 5}
DONE = 3
"""Exit code of a stream with edits that were not learnt, as on the tiny model."""


def at_every_step(stream: Stream, tally: Tally, most: int | None, seed: int) -> None:
    """Refuse each step of a run, once and for ever; then run it again on a disk that works."""
    counted = stream.state("counted-refusals")
    steps = [step for step in steps_of(counted.parent, lambda: stream.edit(counted)) if not step.after]
    for part, code in ((FULL, errno.ENOSPC), (FAILING, errno.EIO)):
        for for_ever in (False, True):
            for step in chosen(steps, most, seed + code + for_ever):
                sidecar = stream.state(f"refused-{code}-{step.number}-{for_ever}")

                watch = refuse_at(step.number, code, for_ever=for_ever)
                met = forked(lambda: _refused(stream, sidecar, watch, step, CODES[code]))
                first = [Problem(*pair) for pair in met.value or ()]
                judged(tally, part, step.kind, lambda: first + stream.recovered(sidecar), met)
                shutil.rmtree(sidecar.parent)


def _refused(stream: Stream, sidecar: Path, watch: Watch, step: Step, code: int) -> list[tuple[str, str]]:
    with watched(sidecar.parent, watch):
        result, problems = attempt("edit", lambda: stream.edit(sidecar))
    # A file that cannot be removed is no reason to fail: the run may succeed.
    if result is not None and result.code != DONE:
        problems += unclear(f"refused {step.title}", result, (code,))
    return [(problem.kind, problem.text) for problem in problems]


def on_a_small_disk(stream: Stream, tally: Tally, count: int) -> None:
    """Run on a file system of n pages for growing n; then again after it has grown."""
    folder = stream.world.root / "small"
    folder.mkdir()
    need = sum(path.stat().st_size for path in stream.state("undisturbed").parent.rglob("*") if path.is_file())
    for number in range(1, count + 1):
        size = 4096 * (8 + number * (3 * need // 4096) // count)
        try:
            with _file_system(folder, size) as grow:

                def judge() -> list[Problem]:
                    sidecar = folder / "s.more"
                    result, problems = attempt("edit", lambda: stream.edit(sidecar))
                    if result is not None and result.code != DONE:
                        problems += unclear(f"with {size:,} bytes", result, (CODES[errno.ENOSPC],))
                    grow()
                    return problems + stream.recovered(sidecar)

                judged(tally, REAL, "tmpfs", judge)
        except OSError as error:
            tally.notes.append(f"{REAL}: {last(str(error))}")
            break


@contextmanager
def _file_system(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """Mount a tmpfs of `size` bytes; yield a function that enlarges it."""

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"no file system can be mounted: {done.stderr}")

    mount(f"size={size}")
    try:
        yield lambda: mount("remount,size=64m")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
