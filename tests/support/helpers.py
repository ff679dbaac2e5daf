"""What the tests of the command line share: a small world on disk, one run of a command, and ways to end it early."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from more_cli.cli.app import main
from more_cli.store.state import load_state
from support.tiny import tiny_llava
from support.tiny_families import FAMILIES, tiny_family

COLOURS = ("red", "green", "blue", "yellow", "black", "white", "orange", "purple")
QUESTION = "what colour is it ?"
REFUSING = ("--set", "rho=1e30", "--set", "max_write=1e30", "--set", "halvings=0")
"""Steps so long that no edit of the tiny model stays finite: all are refused."""
CALM = ("--set", "rho=1", "--set", "max_write=1", "--set", "max_steps=30")
"""Settings with which a retry learns them."""
LEARNING = ("--set", "max_steps=30")
"""Enough steps for a random model to learn one letter."""
QUICK = ("--set", "max_steps=1", "--set", "last=1")
"""Too few to learn anything: for tests that compare bytes."""

forks = pytest.mark.skipif(
    not hasattr(os, "fork") or torch.cuda.is_available(), reason="autograd does not survive a fork beside a GPU"
)


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


class World:
    """A folder with a tiny model and the pictures and edit files that a test writes."""

    def __init__(self, root: Path, **kind: Any) -> None:
        self._name(root)
        (tiny_family if kind.get("family") in FAMILIES else tiny_llava)(self.model, **kind)
        (root / "img").mkdir(parents=True)
        for number, colour in enumerate(COLOURS):
            # Of several shapes, where it matters: most families cut them into different numbers of tiles or patches.
            size = ((28, 28), (90, 28), (90, 90))[number % 3] if "family" in kind else (28, 28)
            Image.new("RGB", size, colour).save(root / "img" / f"{colour}.png")

    @classmethod
    def at(cls, root: Path) -> World:
        """One that is there already."""
        world = cls.__new__(cls)
        world._name(root)
        return world

    def _name(self, root: Path) -> None:
        self.root = root
        self.model = root / "model"
        self.sidecar = root / "model.more"
        self.folder = root / "model.more.d"

    def copy(self, root: Path) -> World:
        """The same elsewhere, for a test that changes it."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        return World.at(root)

    def edits(self, count: int = 8, name: str = "edits.jsonl") -> Path:
        """Write a stream of the first colours."""
        return self.write([line(number) for number in range(count)], name)

    def write(self, lines: Iterable[dict[str, Any] | str | bytes], name: str = "edits.jsonl") -> Path:
        path = self.root / name
        path.write_bytes(b"".join(spelled(line) + b"\n" for line in lines))
        return path

    def mmedit(self, count: int) -> Path:
        """Write a copy of E-VQA with so many edits in each of its two pools."""
        records = [
            {
                "src": f"what colour is it {n} ?", "pred": "x", "alt": "r", "rephrase": f"which colour {n} ?",
                "image": "img/red.png", "image_rephrase": "img/green.png", "loc": f"is it {n} ?", "loc_ans": "no",
                "m_loc": "img/black.png", "m_loc_q": "what is it ?", "m_loc_a": "x",
            }
            for n in range(2 * count)
        ]  # fmt: skip
        root = self.root / "mmedit"
        root.mkdir()
        (root / "vqa_eval.json").write_text(json.dumps(records[:count]))
        (root / "vqa_train.json").write_text(json.dumps(records[count:]))
        return root

    def edit(self, *options: object, edits: object = None, stdin: bytes | None = None) -> Result:
        return run("edit", self.model, edits or self.root / "edits.jsonl", *options, stdin=stdin)

    def entries(self, sidecar: Path | None = None) -> list[dict[str, Any]]:
        """The lines of the ledger."""
        folder = self.folder if sidecar is None else sidecar.with_name(f"{sidecar.name}.d")
        return [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]


def line(number: int, **fields: Any) -> dict[str, Any]:
    """Edit `e1`, `e2`, ...: the first letter of a colour."""
    colour = COLOURS[number]
    return {"id": f"e{number + 1}", "image": f"img/{colour}.png", "question": QUESTION, "target": colour[0], **fields}


def spelled(line: dict[str, Any] | str | bytes) -> bytes:
    if isinstance(line, bytes):
        return line
    return (line if isinstance(line, str) else json.dumps(line)).encode()


def run(*argv: object, stdin: bytes | None = None) -> Result:
    """Run a command in this process; `init` and `edit` make no anchors unless told to, to save the time."""
    return run_as_typed(*_without_anchors(argv), stdin=stdin)


def run_as_typed(*argv: object, stdin: bytes | None = None) -> Result:
    """Run a command in this process with these words and no others."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _logging_kept(), _standard_input(stdin):
        code = main([str(word) for word in argv])
    return Result(code, out.getvalue(), err.getvalue())


def run_unread(*argv: object) -> Result:
    """Run a command in this process whose standard output is a real pipe that its reader has closed."""
    reading, writing = os.pipe()
    os.close(reading)
    out, err = os.fdopen(writing, "w"), io.StringIO()
    with out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _logging_kept():
        code = main(_without_anchors(argv))
    return Result(code, "", err.getvalue())


def _without_anchors(argv: Iterable[object]) -> list[str]:
    words = [str(word) for word in argv]
    return [words[0], "--no-anchors", *words[1:]] if _makes_anchors(words) else words


def _makes_anchors(words: list[str]) -> bool:
    return words[:1] in (["init"], ["edit"]) and not {"--anchors", "--help"}.intersection(words)


@contextlib.contextmanager
def terminal(columns: int = 80) -> Iterator[list[str]]:
    """Standard output and error are a terminal of this width; its text is in the list after the block."""
    fcntl, termios = unix("fcntl"), unix("termios")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end was closed
            while part := os.read(ours, 4096):
                parts.append(part)

    reader, shown = threading.Thread(target=read), list[str]()
    reader.start()
    try:
        with os.fdopen(theirs, "w") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            yield shown
    finally:
        reader.join()
        os.close(ours)
        shown.append(b"".join(parts).decode().replace("\r\n", "\n"))


def on_terminal(*argv: object, columns: int = 80) -> str:
    """What a command in this process shows on a terminal."""
    with terminal(columns) as shown, _logging_kept():
        main([str(word) for word in argv])
    return shown[0]


@contextlib.contextmanager
def _logging_kept() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _standard_input(data: bytes | None) -> Iterator[None]:
    before = sys.stdin
    if data is not None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(data))
    try:
        yield
    finally:
        sys.stdin = before


def in_child(action: Callable[[], object]) -> int:
    """Run in a fork of this process, where everything is imported: its exit code, or minus the signal that ended it."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            result = action()
            code = result.code if isinstance(result, Result) else int(result or 0)  # type: ignore[call-overload]
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_call(number: int, functions: Iterable[tuple[Any, str]], action: Callable[..., None]) -> Callable[[], int]:
    """Do something just before the n-th call (from 1) of any of these; returns a count of the calls so far."""
    calls = 0

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                action(function, *args)
            return function(*args, **kwargs)

        return call

    for owner, name in functions:
        setattr(owner, name, watched(getattr(owner, name)))
    return lambda: calls


def stopped_at(number: int, owner: Any, name: str, command: Callable[[], object]) -> int:
    """Run a command in a fork and interrupt it just before the n-th call of a function: its exit code."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupted() -> object:
        at_call(number, [(owner, name)], stop)
        return command()

    return in_child(interrupted)


def cut_short(
    command: Callable[[], object],
    root: Path,
    number: int,
    functions: Iterable[tuple[Any, str]],
    action: Callable[..., None] | None = None,
) -> int:
    """Run a command in a fork that dies, or does `action`, at the n-th call of these; `calls` in `root` counts them."""

    def child() -> object:
        calls = at_call(number, functions, action or die)
        result = command()
        (root / "calls").write_text(str(calls()))
        return result

    return in_child(child)


def die(*_: object) -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def unix(name: str) -> Any:
    """A module that Windows lacks; there the test that asks for it is skipped."""
    return pytest.importorskip(name, exc_type=ModuleNotFoundError)


def peak_kilobytes() -> int:
    """The most memory that this process has had."""
    resource = unix("resource")
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def tree(root: Path) -> dict[str, bytes | None]:
    """Everything below a folder, byte for byte."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


@contextlib.contextmanager
def process(*argv: object, **kind: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that runs a command; it does not outlive the test."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "more_cli", *_without_anchors(argv)]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kind)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


def lines_in(sidecar: Path) -> int:
    ledger = sidecar.with_name(f"{sidecar.name}.d") / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def assert_same_state(one: Path, other: Path) -> None:
    """Two sidecars hold the same bytes; if they do not, say in what they differ."""
    if one.read_bytes() == other.read_bytes():
        return
    a, b = load_state(one), load_state(other)
    assert a.meta.model_dump() == b.meta.model_dump()
    moved = {
        f"{kind}.{name}": float((tensor.double() - getattr(b, kind)[name].double()).abs().max())
        for kind in ("B", "P")
        for name, tensor in getattr(a, kind).items()
    }
    raise AssertionError(f"bytes differ; largest differences: {moved}")
