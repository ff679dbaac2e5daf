"""Edits that arrive one by one: results at once, nothing read too early, and every way a stream can end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from more_cli.errors import DataError
from more_cli.inputs import records
from more_cli.inputs.edits import Edit, iter_edits
from more_cli.inputs.feeds import Pipe, Watch
from more_cli.inputs.records import Problem, Record
from more_cli.model.machine import Machine
from more_cli.model.prompts import Prompter
from more_cli.ops.edit import Listener, edit_stream
from more_cli.ops.prefetch import Prefetch
from more_cli.options import EditOptions
from more_cli.store.target import Target
from support.helpers import QUICK, Result, World, line, lines_in, process, run, spelled, unix, wait_for

FIVE = [line(number) for number in range(5)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("stream"), text_layers=1)
    world.write(FIVE)
    return world


def lines_of(*values: Any) -> bytes:
    return b"".join(spelled(value) + b"\n" for value in values)


def streamed(world: World, sidecar: Path, *values: Any, options: tuple[Any, ...] = ()) -> tuple[Result, list[Any]]:
    """Send lines to standard input; return the result and the objects that were printed."""
    argv = (*QUICK, "--state", sidecar, "--image-root", world.root, "--json-lines", *options)
    result = run("edit", world.model, "-", *argv, stdin=lines_of(*values))
    return result, [json.loads(text) for text in result.out.splitlines()]


# --- what is printed ---


def test_every_edit_has_its_line_and_the_stream_its_end(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    result, (*edits, end) = streamed(world, tmp_path / "s.more", *FIVE)
    assert (result.code, end["schema"], end["applied"], end["counts"]) == (3, "more.edit.end/1", 5, {"not-learnt": 5})
    assert [(e["schema"], e["id"], e["line"], e["status"], e["new"]) for e in edits] == [
        ("more.edit.result/2", f"e{number}", number, "not-learnt", True) for number in range(1, 6)
    ]
    ledger = world.entries(tmp_path / "s.more")
    for key in ("forced_before", "forced_after", "nll_before", "nll_after", "writes", "wall_ms"):
        assert [edit[key] for edit in edits] == [entry[key] for entry in ledger]
    for moment in ("before", "after"):
        assert [edit[f"answer_{moment}"] for edit in edits] == [entry[f"greedy_{moment}"] for entry in ledger]
    assert (tmp_path / "s.more").read_bytes() == undisturbed


def test_an_edit_that_was_there_already_has_its_line_too(world: World, tmp_path: Path) -> None:
    streamed(world, tmp_path / "s.more", *FIVE[:2])
    _, (*edits, end) = streamed(world, tmp_path / "s.more", *FIVE[:3])
    assert [(edit["id"], edit["new"], edit["status"]) for edit in edits] == [
        ("e1", False, "not-learnt"),
        ("e2", False, "not-learnt"),
        ("e3", True, "not-learnt"),
    ]
    assert (end["applied"], end["skipped"]) == (1, 2)


def test_a_placeholder_in_a_question_is_noted(world: World) -> None:
    """As LLaVA's files have it: `more convert` takes it out."""
    world.write([{"image": "img/red.png", "question": "<image>\nwhat is it ?", "target": "r"}], "placed.jsonl")
    checked = world.edit("--dry-run", edits=world.root / "placed.jsonl")
    assert checked.code == 0
    assert "1 question with `<image>` in the text: it is read as text, only `image` shows a picture" in checked.err


def test_problems_have_lines_of_their_own(world: World, tmp_path: Path) -> None:
    bad = line(1, image="img/none.png")
    _, (first, problem, third, end) = streamed(
        world, tmp_path / "s.more", FIVE[0], bad, FIVE[2], options=("--on-error", "skip")
    )
    assert (first["id"], third["id"], end["applied"]) == ("e1", "e3", 2)
    assert (problem["schema"], problem["where"], problem["line"]) == ("more.edit.problem/1", "<stdin>:2", 2)
    assert problem["text"] == "image not found: `img/none.png`"
    stopped, (again, problem) = streamed(world, tmp_path / "s.more", FIVE[0], bad, FIVE[2])
    assert (stopped.code, again["new"], problem["line"]) == (4, False, 2)
    assert "error: <stdin>:2: image not found" in stopped.err


def test_problems_have_lines_in_a_dry_run_too_and_edits_have_none(world: World, tmp_path: Path) -> None:
    lines = FIVE[0], line(1, image="img/none.png"), line(0, target="z")
    for made in (False, True):  # without a state, and with one
        if made:
            streamed(world, tmp_path / "s.more", FIVE[0])
        _, (*problems, end) = streamed(world, tmp_path / "s.more", *lines, options=("--on-error", "skip", "--dry-run"))
        assert [(each["schema"], each["line"]) for each in problems] == [
            ("more.edit.problem/1", 2),
            ("more.edit.problem/1", 3),
        ]
        assert (end["total"], end["skipped"]) == (1, made)


def test_a_file_has_lines_as_well_and_all_of_its_problems(world: World, tmp_path: Path) -> None:
    path = world.write(["{", line(0, target="@" * 600), line(1)], "bad.jsonl")
    result = run("edit", world.model, path, *QUICK, "--state", tmp_path / "s.more", "--json-lines")
    assert (result.code, [json.loads(text)["line"] for text in result.out.splitlines()]) == (4, [1, 2])
    assert not (tmp_path / "s.more").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("edits.jsonl", "--json", "--json-lines"), "were both given"),
        (("edits.jsonl", "--idle", "3"), "--idle needs --watch"),
        (("-", "--watch"), "--watch reads a file"),
        (("edits.jsonl", "--watch", "--dry-run"), "waits for more"),
    ],
)
def test_options_that_do_not_go_together(world: World, options: tuple[str, ...], said: str) -> None:
    result = run("edit", world.model, *options)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


# --- one ahead, and no more ---


def test_nothing_is_read_more_than_one_edit_ahead(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    sent = 0

    class Counted(Pipe):
        def records(self) -> Iterator[Record]:
            nonlocal sent
            for number, value in enumerate(FIVE, 1):
                sent = number
                yield Record("<stdin>", number, value)

    class Watching(Listener):
        def edited(self, entry: Any, status: Any, *, new: bool, supersedes: Sequence[str] = ()) -> None:
            # Time enough for the thread to fetch more than it should.
            time.sleep(0.3)
            ahead.append(sent - entry.seq)

    ahead: list[int] = []
    target = Target(world.model, tmp_path / "s.more")
    options = EditOptions(settings=("max_steps=1", "last=1"), image_root=world.root, anchors=False)
    report = edit_stream(target, Counted(sys.stdin.buffer), options, Machine(), listener=Watching())
    assert (report.applied, ahead) == (5, [1, 1, 1, 1, 0])
    assert target.sidecar.read_bytes() == undisturbed


def test_the_next_prompt_is_made_in_a_thread_and_changes_no_byte(
    world: World, undisturbed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, bool]] = []
    real = Prompter.encode

    def encode(self: Prompter, query: Any, target: str | None = None) -> Any:
        if target is not None and query.images[0].path:  # not the image of the memory estimate
            made.append((query.images[0].path.stem, threading.current_thread() is not threading.main_thread()))
        return real(self, query, target)

    with monkeypatch.context() as patch:
        patch.setattr(Prompter, "encode", encode)
        streamed(world, tmp_path / "s.more", *FIVE)
    assert sorted(made) == [("black", True), ("blue", True), ("green", True), ("red", False), ("yellow", True)]
    assert (tmp_path / "s.more").read_bytes() == undisturbed
    monkeypatch.setattr(Prefetch, "start", lambda *_: None)
    streamed(world, tmp_path / "t.more", *FIVE)
    assert (tmp_path / "t.more").read_bytes() == undisturbed


def test_an_error_is_raised_in_place_of_its_item() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise DataError("three")

    idle: list[int] = []
    with Prefetch(items()) as ahead:
        taken = [next(ahead)]
        ahead.start(lambda item: time.sleep(0.2), lambda: idle.append(len(taken)), 0.05)
        taken.append(next(ahead))
        for _ in range(2):
            with pytest.raises(DataError, match="three"):
                next(ahead)
    assert taken == [1, 2]
    assert idle


SIGNALLED = """
import random, signal, threading
from more_cli.ops.prefetch import Prefetch
from more_cli.ops.signals import stoppable

def items(closed):
    while not closed.wait(0.0003):
        yield 1

for number in range(2000):
    closed = threading.Event()
    with stoppable() as stop, Prefetch(items(closed), closed.set) as ahead:
        ahead.start(lambda item: None, lambda: None, 0.0002)
        signal.signal(signal.SIGALRM, stop.ask)
        signal.setitimer(signal.ITIMER_REAL, random.Random(number).uniform(0.0002, 0.004))
        for item in stop.before_each(ahead):
            pass
"""


def test_a_signal_at_any_moment_ends_the_wait() -> None:
    """Among them are moments between the lines of what passes items from thread to thread."""
    done = subprocess.run([sys.executable, "-c", SIGNALLED], timeout=120, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_image_that_vanishes_after_prefetching_is_reported_for_its_edit(world: World, tmp_path: Path) -> None:
    """It existed when it was prefetched; the store reads it again."""
    picture = tmp_path / "later.png"
    picture.write_bytes((world.root / "img" / "green.png").read_bytes())

    class Spoiling(Listener):
        def edited(self, entry: Any, status: Any, *, new: bool, supersedes: Sequence[str] = ()) -> None:
            time.sleep(0.3)
            picture.unlink()

    class Two(Pipe):
        def records(self) -> Iterator[Record]:
            yield Record("<stdin>", 1, FIVE[0])
            yield Record("<stdin>", 2, line(1, image=str(picture)))

    target = Target(world.model, tmp_path / "s.more")
    options = EditOptions(settings=("max_steps=1", "last=1"), image_root=world.root, anchors=False)
    with pytest.raises(DataError, match=r"image not found: `.*later\.png`"):
        edit_stream(target, Two(sys.stdin.buffer), options, Machine(), listener=Spoiling())
    assert run("status", world.model, "--state", target.sidecar, "--json").json["behind"] == 0
    assert len(world.entries(target.sidecar)) == 1


def test_a_line_without_end_takes_no_memory() -> None:
    class Endless:
        left = 160 << 20

        def readline(self, limit: int) -> bytes:
            self.left -= limit
            return b"x" * limit if self.left > 0 else b""

    tracemalloc.start()
    (record,) = records.lines(Endless(), "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert record.problem is not None
    assert record.problem.text == "line is longer than 16 MiB"
    assert peak < 4 * records.LINE_BYTES


# --- a second process that sends ---

SENDER = """
import os, select, signal, sys, time
lines = sys.stdin.buffer.read().splitlines(keepends=True)
answers = int(sys.argv[1])                     # a pipe on which the reader's results come back
def answered():
    assert select.select([answers], [], [], 60)[0], "no result came"
    while not os.read(answers, 65536).endswith(b"\\n"):
        pass
def send(data):
    os.write(1, data)
send(lines[0][:20]); time.sleep(0.5); send(lines[0][20:])   # slowly: nothing more until there is a result
answered()
send(lines[1])
answered()
send(lines[2] + lines[3])                      # in a burst
time.sleep(0.5)
send(lines[4][: len(lines[4]) // 2])           # and dies in the middle of a line
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("through", ["pipe", "fifo"])
def test_a_sender_that_is_slow_then_hasty_then_dead(
    world: World, undisturbed: bytes, tmp_path: Path, through: str
) -> None:
    sidecar, fifo = tmp_path / "s.more", tmp_path / "fifo"
    answers, results = os.pipe()
    command = [sys.executable, "-c", SENDER, str(answers)]
    options = (*QUICK, "--image-root", world.root, "--state", sidecar, "--json-lines", "--no-anchors")
    os.mkfifo(fifo)
    argv = [sys.executable, "-m", "more_cli", "edit", world.model, "-" if through == "pipe" else fifo, *options]
    with contextlib.ExitStack() as stack:
        kind: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": results}
        if through == "pipe":
            sending = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[answers])
            reading = subprocess.Popen([*map(str, argv)], stdin=sending.stdout, **kind)
            sending.stdout.close()  # type: ignore[union-attr]
        else:
            reading = subprocess.Popen([*map(str, argv)], **kind)
            with open(fifo, "wb") as sink:
                sending = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sink, pass_fds=[answers])
        for child in (sending, reading):
            stack.callback(child.wait)
            stack.callback(child.kill)
        sending.stdin.write(lines_of(*FIVE))  # type: ignore[union-attr]
        sending.stdin.close()  # type: ignore[union-attr]
        os.close(results)
        said = reading.communicate(timeout=120)[1].decode()
        assert sending.wait(60) == -signal.SIGKILL
        assert reading.returncode == 4, said
    rest = os.read(answers, 1 << 16).decode().splitlines()
    os.close(answers)
    name = "<stdin>" if through == "pipe" else str(fifo)
    assert f"error: {name}:5: not JSON" in said
    assert "there is no newline after it: was it cut off?" in said
    assert [json.loads(text).get("id", "problem") for text in rest[-3:]] == ["e3", "e4", "problem"]
    held = run("status", world.model, "--state", sidecar, "--json").json
    assert (held["edits"], held["behind"]) == (4, 0)
    assert world.edit(*QUICK, "--state", sidecar, "--json").json["applied"] == 1
    assert sidecar.read_bytes() == undisturbed


def test_a_last_line_without_a_newline_counts_if_it_is_whole(world: World, tmp_path: Path) -> None:
    argv = (*QUICK, "--state", tmp_path / "s.more", "--image-root", world.root, "--json")
    assert run("edit", world.model, "-", *argv, stdin=lines_of(*FIVE[:2])[:-1]).json["applied"] == 2


def test_a_stream_with_a_limit_does_not_wait_for_a_line_it_will_not_apply(world: World, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, lines_of(*FIVE[:2]))
    target = Target(world.model, tmp_path / "s.more")
    options = EditOptions(settings=("max_steps=1", "last=1"), image_root=world.root, anchors=False, limit=2)
    with open(reading, "rb") as source:
        assert edit_stream(target, Pipe(source), options, Machine()).applied == 2
    os.close(writing)


# --- a reader that is gone, or asleep ---


@pytest.mark.slow
def test_the_reader_of_the_results_leaves(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    sidecar = tmp_path / "s.more"
    options = (*QUICK, "--image-root", world.root, "--state", sidecar, "--json-lines")
    with process("edit", world.model, "-", *options, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(lines_of(*FIVE[:3]))
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["id"] == "e1"
        child.stdout.close()
        child.stdin.write(lines_of(*FIVE[3:]))
        child.stdin.flush()
        said = child.stderr.read().decode()  # type: ignore[union-attr]
        assert child.wait(60) == 130
    assert said.splitlines()[-1] == "output pipe closed; finished work is saved"
    assert "Traceback" not in said
    assert "Exception" not in said
    held = run("status", world.model, "--state", sidecar, "--json").json
    assert held["behind"] == 0
    assert 1 <= held["edits"] == lines_in(sidecar) <= 5
    world.edit(*QUICK, "--state", sidecar)
    assert sidecar.read_bytes() == undisturbed


@pytest.mark.slow
def test_any_command_ends_quietly_when_its_reader_is_gone(world: World, tmp_path: Path) -> None:
    with process("status", world.model, "--json") as child:
        child.stdout.close()  # type: ignore[union-attr]
        said = child.stderr.read().decode()  # type: ignore[union-attr]
        assert (child.wait(60), "Traceback" in said, "Exception" in said) == (130, False, False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pipes of a size of their own are Linux's")
def test_a_signal_while_the_reader_sleeps(world: World, tmp_path: Path) -> None:
    """The pipe is full and the command blocked: nothing more is applied, and a signal still ends it."""
    sidecar, long = tmp_path / "s.more", " x" * 200
    edits = [line(number, question=f"which ?{long}") for number in range(8)]
    options = (*QUICK, "--image-root", world.root, "--state", sidecar, "--json-lines", "--save-every", 100)
    with process("edit", world.model, "-", *options, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        fcntl = unix("fcntl")
        fcntl.fcntl(child.stdout, fcntl.F_SETPIPE_SZ, 4096)
        child.stdin.write(lines_of(*edits))
        child.stdin.flush()
        wait_for(lambda: lines_in(sidecar) >= 4)
        time.sleep(2)
        applied = lines_in(sidecar)
        assert applied < 8
        child.send_signal(signal.SIGTERM)
        wait_for(lambda: run("status", world.model, "--state", sidecar, "--json").json["behind"] == 0)
        results = child.stdout.read().decode().splitlines()
        assert child.wait(60) == 130
    assert lines_in(sidecar) == applied
    assert [json.loads(text)["id"] for text in results[:-1]][: applied - 1] == [f"e{n}" for n in range(1, applied)]


# --- a file that grows ---


class Followed:
    """A `Watch` that is read in a thread, with its records and messages."""

    def __init__(self, path: Path, idle: float | None = None) -> None:
        self.said: list[str] = []
        self.came: list[Record] = []
        self.watch = Watch(path, idle, self.said.append)
        self.thread = threading.Thread(target=lambda: self.came.extend(self.watch.records()))

    def __enter__(self) -> Followed:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.close()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def values(self) -> list[object]:
        return [record.problem.text if record.problem else record.value for record in self.came]

    def wait_for(self, *values: object) -> None:
        wait_for(lambda: self.values() == list(values), 10)


def test_only_whole_lines_of_a_growing_file_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "grows.jsonl"
    with Followed(path) as followed:
        wait_for(lambda: followed.said == [f"waiting for `{path}`"], 10)
        with open(path, "wb", buffering=0) as file:
            file.write(b"1\n2\n[3,")
            followed.wait_for(1, 2)
            time.sleep(0.3)
            file.write(b"3]\n")
            followed.wait_for(1, 2, [3, 3])
            file.write(b"4")
            time.sleep(0.5)
    assert followed.values() == [1, 2, [3, 3]]
    assert followed.said[1:] == [f"the last line of `{path}` has no newline yet: it is left for the next run"]
    assert [record.line for record in followed.came] == [1, 2, 3]


def test_a_file_that_is_cut_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "grows.jsonl"
    path.write_bytes(b"1\n2\n")
    with Followed(path) as followed:
        followed.wait_for(1, 2)
        path.write_bytes(b"3\n")
        followed.wait_for(1, 2, 3)
        with open(path, "ab", buffering=0) as old:
            path.rename(tmp_path / "grows.jsonl.1")
            old.write(b'4\n{"5')  # its writer goes on for a while, and is cut off
            followed.wait_for(1, 2, 3, 4)
            path.write_bytes(b"6\n")
        wait_for(lambda: len(followed.came) == 6, 10)
    *_, four, torn, six = followed.came
    assert (four.value, six.value, six.line) == (4, 6, 1)
    assert isinstance(torn.problem, Problem)
    assert torn.problem.text.endswith("was it cut off?")
    begins = "reading it from its beginning"
    assert followed.said == [f"`{path}` was cut: {begins}", f"`{path}` was replaced: {begins}"]


def test_a_file_that_is_rewritten_in_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "grows.jsonl"
    path.write_bytes(b"1\n2\n")
    with Followed(path) as followed:
        followed.wait_for(1, 2)
        path.write_bytes(b"0\n1\n2\n")
        followed.wait_for(1, 2, 0, 1, 2)
        with open(path, "ab", buffering=0) as file:
            file.write(b'{"half')
            time.sleep(0.3)
            file.truncate(2)
            followed.wait_for(1, 2, 0, 1, 2, 0)
    begins = "reading it from its beginning"
    assert followed.said == [f"`{path}` was rewritten: {begins}", f"`{path}` was cut: {begins}"]


def test_a_file_that_is_read_again_may_hold_a_correction(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")

    def record(number: int, id: str, target: str) -> Record:
        value = {"id": id, "image": "p.png", "question": "What?", "target": target}
        return Record("s.jsonl", number, value)

    once = [record(1, "a", "x"), record(2, "b", "y")]
    again = [*once, *once, record(3, "c", "z"), record(4, "a", "x")]
    *edits, wrong = iter_edits(again, tmp_path)
    assert [edit.id for edit in edits if isinstance(edit, Edit)] == ["a", "b", "c"]
    assert isinstance(wrong, Problem)
    assert "repeats line 1, which a later line corrected" in wrong.text


def test_a_watch_ends_when_nothing_comes_any_more(tmp_path: Path) -> None:
    started = time.monotonic()
    assert list(Watch(tmp_path / "never.jsonl", 0.3).records()) == []
    path = tmp_path / "grows.jsonl"
    path.write_bytes(b"1\n")
    assert [record.value for record in Watch(path, 0.3).records()] == [1]
    assert 0.6 <= time.monotonic() - started < 10


def test_what_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a file"):
        list(Watch(tmp_path).records())
    with pytest.raises(DataError, match=r"`https://a\.b/fixes\.jsonl` is a URL, and files are not fetched"):
        list(Watch(Path("https://a.b/fixes.jsonl"), 0.1).records())


def test_pictures_of_a_watched_file_lie_beside_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = world.root / "watched.jsonl"
    path.write_bytes(lines_of(*FIVE[:2]))
    done = world.edit(*QUICK, "--watch", "--idle", "0.2", "--state", tmp_path / "s.more", edits=path)
    assert (done.code in (0, 3), lines_in(tmp_path / "s.more")) == (True, 2), done.err


@pytest.mark.slow
def test_a_watched_file_is_applied_until_a_signal(world: World, undisturbed: bytes, tmp_path: Path) -> None:
    sidecar, path = tmp_path / "s.more", tmp_path / "fixes.jsonl"
    path.write_bytes(lines_of(*FIVE[:2]))
    options = (*QUICK, "--image-root", world.root, "--state", sidecar, "--json-lines")
    with process("edit", world.model, "--watch", path, *options) as child:
        wait_for(lambda: lines_in(sidecar) == 2)
        (tmp_path / "next.jsonl").write_bytes(lines_of(*FIVE))  # what was there, and more
        (tmp_path / "next.jsonl").rename(path)
        # Not the ledger: a signal may come before the result of a line that is safe is printed.
        printed = [child.stdout.readline() for _ in FIVE]
        child.send_signal(signal.SIGINT)
        out, said = child.communicate(timeout=60)
        assert child.returncode == 130
    assert "was replaced: reading it from its beginning" in said.decode()
    results = [json.loads(text) for text in [*printed, *out.splitlines()]]
    assert [result.get("id", result["schema"]) for result in results] == [
        "e1",
        "e2",
        "e3",
        "e4",
        "e5",
        "more.edit.end/1",
    ]
    assert sidecar.read_bytes() == undisturbed


@pytest.mark.parametrize("form", ["file", "pipe"])
def test_an_id_that_the_ledger_has_with_other_content_is_a_line_that_can_be_skipped(
    world: World, tmp_path: Path, form: str
) -> None:
    state = tmp_path / "s.more"
    streamed(world, state, FIVE[0])
    clash, good = FIVE[0] | {"target": "x"}, FIVE[1]
    source = tmp_path / "again.jsonl"
    source.write_bytes(lines_of(clash, good))
    options = (*QUICK, "--state", state, "--image-root", world.root, "--json-lines")
    words = (source,) if form == "file" else ("-",)
    sent = None if form == "file" else lines_of(clash, good)

    refused = run("edit", world.model, *words, *options, stdin=sent)
    assert (refused.code, "id `e1` is in the ledger with other content" in refused.err) == (4, True)

    result = run("edit", world.model, *words, *options, "--on-error", "skip", stdin=sent)
    end = json.loads(result.out.splitlines()[-1])
    assert (result.code, end["applied"], end["total"]) == (3, 1, 1)
    assert "id `e1` is in the ledger with other content" in result.out, "a record of the problem"
    assert "e1" not in end["counts"]
