"""A disk that is full while a command writes what it was asked for: whole or not at all, and whole the next time."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.disk import Watch, refuse_at, watched
from faults.kill import chosen, steps_of
from faults.refuse import CODES
from faults.stream import Stream, attempt, beside, judged, last, unclear
from faults.tally import Problem, Tally, forked
from support.helpers import Result, run, tree

PART = "disk full, outputs"
Files = dict[str, bytes | None]


@dataclass(frozen=True)
class Writer:
    """A command that writes into a folder."""

    name: str
    write: Callable[[Path], Result]
    """Run it in this folder."""
    whole: str = ""
    """An output folder, which appears whole or not at all; of other files each one does."""
    code: int = 0
    """Its exit code on a disk that works."""


def at_every_step(stream: Stream, tally: Tally, most: int | None, seed: int) -> None:
    """Refuse each step of every command that writes outputs of a state, once and for ever."""
    start, base = _start(stream), tree(stream.world.model)
    for writer in _writers(stream):
        full_at_every_step(writer, start, tally, most, seed)
    if tree(stream.world.model) != base:
        tally.add(PART, "the base", [Problem("wrong state", "a command has changed the base")])


def full_at_every_step(writer: Writer, start: Path, tally: Tally, most: int | None, seed: int) -> None:
    """Refuse each step of a command in copies of the folder `start`, then run it again on a disk that works."""
    counted, before = _copy(start, "counted"), tree(start)
    steps = [step for step in steps_of(counted, lambda: writer.write(counted)) if not step.after]
    whole = _shown(counted)
    assert steps, writer.name
    assert whole != before, writer.name
    for for_ever in (False, True):
        for step in chosen(steps, most, seed + for_ever):
            folder = _copy(start, f"{step.number}-{for_ever}")
            watch = refuse_at(step.number, errno.ENOSPC, for_ever=for_ever)
            met = forked(lambda: _refused(writer, folder, watch, step.title))

            def judge() -> list[Problem]:
                problems = [Problem(*pair) for pair in met.value or ()]
                problems += _halves(writer, before, _shown(folder), whole)
                result, raised = attempt(writer.name, lambda: writer.write(folder))
                if result is not None and result.code != writer.code:
                    raised.append(Problem("wrong state", f"{writer.name}, again: {result.code}: {last(result.err)}"))
                if _shown(folder, hidden=True) != whole:
                    raised.append(Problem("wrong state", f"{writer.name}, again: other files than without a fault"))
                return problems + raised

            judged(tally, PART, f"{writer.name}: {step.kind}", judge, met)
            shutil.rmtree(folder)
    shutil.rmtree(counted)


def _copy(start: Path, name: str) -> Path:
    # Every copy lies in a folder of its own under the same name: what is written may hold it.
    folder = start.parent.parent / name / start.name
    shutil.copytree(start, folder)
    return folder


def _shown(folder: Path, *, hidden: bool = False) -> Files:
    """Return the files of a folder, without lock and times, and without scratch files, which the next run removes."""
    files = tree(folder).items()
    shown = {name: data for name, data in files if hidden or not any(part[0] == "." for part in Path(name).parts)}
    return {name: data for name, data in shown.items() if Path(name).name not in ("lock", "lock.pid", "timings.jsonl")}


def _refused(writer: Writer, folder: Path, watch: Watch, title: str) -> list[tuple[str, str]]:
    with watched(folder, watch):
        result, problems = attempt(writer.name, lambda: writer.write(folder))
    # A file that cannot be removed is no reason to fail: the run may succeed.
    if result is not None and result.code != writer.code:
        problems += unclear(f"{writer.name}, refused {title}", result, (CODES[errno.ENOSPC],))
        if result.err.count("error: ") != 1:
            problems.append(Problem("unclear error", f"{writer.name}: several lines: {last(result.err)}"))
    return [(problem.kind, problem.text) for problem in problems]


def _halves(writer: Writer, before: Files, found: Files, whole: Files) -> Iterator[Problem]:
    """Yield what is neither as it was nor as it should become."""
    old, new, now = (
        {name: data for name, data in files.items() if _within(writer, name)} for files in (before, whole, found)
    )
    if now not in (old, new):
        yield Problem("wrong state", f"{writer.name}: half of `{writer.whole}` is there: {sorted(now)}")
    for name in sorted({*before, *found} - {*now, *old}):
        if found.get(name) not in (before.get(name), whole.get(name)):
            yield Problem("wrong state", f"{writer.name}: `{name}` is half written")


def _within(writer: Writer, name: str) -> bool:
    return bool(writer.whole) and Path(name).parts[0] == writer.whole


def _start(stream: Stream) -> Path:
    """Make a folder with an edited state, a merge of it, an adapter, and a key."""
    sidecar = stream.state("outputs-start").with_name("w") / "s.more"
    sidecar.parent.mkdir()
    folder = sidecar.parent

    def make() -> int:
        stream.edit(sidecar)
        done = _merge(stream, "old")(folder).code or _export(stream, "old-adapter")(folder).code
        for name in ("old", "old-adapter"):
            (folder / name / "README.md").write_text("replaced as a whole\n")
        return done

    assert forked(make).value == 0
    if shutil.which("ssh-keygen"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / "key"], check=True)
    assert beside(sidecar).is_dir()
    return folder


def _command(stream: Stream, name: str, *words: object) -> Callable[[Path], Result]:
    """Return a command about the state of a folder; words that start with `@` name files there."""

    def command(folder: Path) -> Result:
        model = stream.world.model
        spelled = [folder / word[1:] if isinstance(word, str) and word.startswith("@") else word for word in words]
        return run(name, model, "--state", folder / "s.more", *spelled, "-q")

    return command


def _merge(stream: Stream, out: str) -> Callable[[Path], Result]:
    return _command(stream, "merge", "-o", f"@{out}", "--force", "--sha256")


def _export(stream: Stream, out: str) -> Callable[[Path], Result]:
    return _command(stream, "export", "-o", f"@{out}", "--force")


def _writers(stream: Stream) -> Iterator[Writer]:
    yield Writer("merge", _merge(stream, "out"), "out")
    yield Writer("merge --link", _command(stream, "merge", "-o", "@out", "--force", "--link"), "out")
    yield Writer("merge over another", _merge(stream, "old"), "old")
    yield Writer("export", _export(stream, "out"), "out")
    yield Writer("export over another", _export(stream, "old-adapter"), "old-adapter")
    yield Writer("export deltas", _command(stream, "export", "--format", "delta", "-o", "@out.safetensors", "--force"))
    yield Writer("reports", _command(stream, "eval", "--report", "@a.html", "--report", "@b.md"))
    if shutil.which("ssh-keygen"):
        yield Writer("sign a state", _command(stream, "sign", "--key", "@key"))
        yield Writer("sign a folder", lambda folder: run("sign", folder / "old", "--key", folder / "key", "-q"))
