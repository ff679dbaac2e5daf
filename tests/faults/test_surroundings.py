"""What a command meets around its files: a stopped writer, no locks, links, odd names, and a clock that goes back."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.disk import Step, watched
from faults.together import backwards
from more_cli.store.target import locate
from support.helpers import QUICK, World, forks, run, tree, unix
from support.refused import assert_refused


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state of two edits."""
    world = World(tmp_path_factory.mktemp("surroundings"), text_layers=1)
    world.edits(2)
    assert world.edit(*QUICK).code == 3
    return world.root


@pytest.fixture
def world(edited: Path, tmp_path: Path) -> World:
    """A copy of it, with a third edit to apply."""
    shutil.copytree(edited, tmp_path, dirs_exist_ok=True)
    world = World.at(tmp_path)
    world.edits(3)
    return world


# --- a writer that is stopped ---


@contextmanager
def stopped_writer(world: World) -> Iterator[int]:
    """A run that got SIGSTOP while it wrote to the ledger; its process id. It goes on at the end, and succeeds."""

    def stop(step: Step) -> None:
        if (step.what, step.change, step.after) == ("ledger", "write", False):
            os.kill(os.getpid(), signal.SIGSTOP)

    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            with watched(world.root, stop):
                code = world.edit().code
        finally:
            os._exit(code)
    try:
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


@forks
def test_a_stopped_writer_is_named_and_goes_on(world: World) -> None:
    with stopped_writer(world) as pid:
        before = tree(world.root)
        for words in (
            ("edit", world.model, world.root / "edits.jsonl"),
            ("revert", world.model, "e1"),
            ("gc", world.model),
        ):
            assert_refused(run(*words), 5, f"`{world.folder}` is in use by process {pid}\n")
        assert tree(world.root) == before
        assert run("status", world.model).code == 0
    assert [entry["id"] for entry in world.entries()] == ["e1", "e2", "e3"]
    assert run("revert", world.model, "e1").code == 3
    assert run("verify", world.model).code == 0


# --- a file system without locks ---


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_one_error(world: World, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    before = tree(world.root)
    with monkeypatch.context() as patch:
        patch.setattr(unix("fcntl"), "flock", flock)
        for words in (
            ("edit", world.model, world.root / "edits.jsonl"),
            ("revert", world.model, "e1"),
            ("gc", world.model),
        ):
            assert_refused(run(*words), 5, f"`{world.folder}` is on a file system without locks", "--state FILE")
        assert run("verify", world.model).code == 0
    assert tree(world.root) == before
    assert world.edit().code == 3


# --- links ---


def linked(world: World, name: str) -> list[str | Path]:
    """Move a part of a world to another folder and put a link in its place; the words that name the state."""
    elsewhere = world.root / "elsewhere"
    elsewhere.mkdir()
    if name == "state":
        for path in (world.sidecar, world.folder):
            path.rename(elsewhere / path.name)
        world.sidecar.symlink_to(Path("elsewhere") / world.sidecar.name)
        return []
    path = world.model if name == "model" else world.folder
    path.rename(elsewhere / path.name)
    path.symlink_to(Path("elsewhere") / path.name, target_is_directory=True)
    return ["--state", world.sidecar] if name == "model" else []  # by default it lies beside what the link names


@pytest.mark.parametrize("name", ["state", "folder", "model"])
def test_a_link_stays_and_what_it_names_is_written(world: World, edited: Path, name: str) -> None:
    state = linked(world, name)
    links = [path for path in world.root.rglob("*") if path.is_symlink()]
    assert world.edit(*state).code == 3
    assert run("revert", world.model, "e2", *state).code == 3
    assert run("gc", world.model, *state).code == 0
    assert run("verify", world.model, "--deep", *state).code == 0
    assert run("merge", world.model, "-o", world.root / "out", *state).code == 0
    assert [path for path in world.root.rglob("*") if path.is_symlink()] == links

    plain = World.at(world.root / "plain")
    shutil.copytree(edited, plain.root)
    plain.edits(3)
    assert plain.edit().code == 3
    assert run("revert", plain.model, "e2").code == 3
    assert world.sidecar.read_bytes() == plain.sidecar.read_bytes()
    assert (
        world.root / "elsewhere" / {"state": "model.more", "folder": "model.more.d", "model": "model"}[name]
    ).exists()


@forks
def test_two_names_of_a_state_have_one_ledger_and_one_lock(world: World) -> None:
    link = world.root / "link.more"
    link.symlink_to(world.sidecar.name)
    assert locate(world.model, link).lock == world.folder / "lock"
    with stopped_writer(world) as pid:
        refused = run("edit", world.model, world.root / "edits.jsonl", "--state", link)
        assert_refused(refused, 5, f"in use by process {pid}")
    assert not (world.root / "link.more.d").exists()
    assert len(world.entries()) == 3


def test_output_may_be_a_link_to_a_folder(world: World) -> None:
    (world.root / "out").symlink_to("real")
    for _ in range(2):
        assert run("merge", world.model, "-o", world.root / "out", "--force").code == 0
    assert (world.root / "out").is_symlink()
    assert (world.root / "real" / "more.json").is_file()


# --- names ---

NAMES = ["new\nline", "a space", "quo'te\"`", "-dash", "\x1b[31m\x9b", "\u202eback", "[red]{x}%s"]


def shows_no_control(*said: str) -> bool:
    return all(letter.isprintable() or letter == "\n" for letter in "".join(said))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_odd_names_work_everywhere(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(world.root)
    world.model.rename(name)
    Path(f"images {name}").mkdir()
    Path("img").rename(Path(f"images {name}", "img"))
    Path("edits.jsonl").rename(f"{name}.jsonl")

    def told(code: int, command: str, *options: object) -> None:
        words = (
            (f"--state={name}.more", *QUICK, f"--image-root=images {name}")
            if command == "edit"
            else (f"--state={name}.more",)
        )
        result = run(command, *words, *options, "--", name, *([f"{name}.jsonl"] if command == "edit" else ()))
        assert result.code == code, result.err
        assert all(letter.isprintable() or letter == "\n" for letter in result.out + result.err)

    told(3, "edit", "--no-store-images")
    told(0, "status")
    told(0, "log")
    told(0, "eval", f"--report={name}.html", f"--report={name}.md")
    told(0, "merge", f"--out={name} merged", "--verify")
    told(0, "export", f"--out={name} adapter")
    told(0, "export", f"--out={name}.safetensors", "--format=delta")
    told(0, "revert", "--last=1")
    told(0, "verify", "--deep")
    assert Path(f"{name} merged", "more.json").is_file()
    assert not list(world.root.glob(".*"))


BYTES = "b\udcff"
"""A name that is no UTF-8, as Python spells it."""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ("merge", "model", "-o", BYTES)),
        (2, ("merge", "model", "-o", BYTES, "--dry-run")),
        (2, ("export", "model", "-o", BYTES)),
        (2, ("export", "model", "--format", "delta", "-o", BYTES)),
        (5, ("status", BYTES)),
        (5, ("edit", BYTES, "edits.jsonl")),
        (5, ("sign", "model", "--state", f"{BYTES}.more", "--key", "key")),
    ],
)
def test_a_name_that_is_not_utf8_is_one_error(
    world: World, monkeypatch: pytest.MonkeyPatch, code: int, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(world.root)
    Path(BYTES).mkdir()
    shutil.copy(world.sidecar, f"{BYTES}.more")
    shutil.copytree(world.folder, f"{BYTES}.more.d")
    before = tree(world.root)
    assert_refused(run(*words), code, "is not UTF-8")
    assert tree(world.root) == before


def test_pictures_below_a_name_that_is_not_utf8_are_stored(world: World) -> None:
    folder = world.root / BYTES
    folder.mkdir()
    (world.root / "img").rename(folder / "img")
    (world.root / "edits.jsonl").rename(folder / "edits.jsonl")
    assert world.edit("--no-store-images", edits=folder / "edits.jsonl").code == 3
    shutil.rmtree(folder)
    assert run("verify", world.model, "--deep").code == 0


# --- the clock ---


def test_a_clock_that_goes_back_changes_nothing(world: World) -> None:
    ids = ["e1", "e2", "e3"]
    shutil.rmtree(world.folder)
    world.sidecar.unlink()
    with backwards():
        assert world.edit(*QUICK).code == 3
        times = [entry["time"] for entry in world.entries()]
        assert times == sorted(times, reverse=True)
        for options, shown in (((), ids), (("--since", times[1]), ids[:2]), (("--until", times[1]), ids[2:])):
            listed = run("log", world.model, *options, "--json").json
            assert [each["id"] for each in listed["lines"]] == shown
        assert world.edit().out.startswith("0 applied, 3 skipped")
        assert run("revert", world.model, "e2").code == 3
        assert run("verify", world.model, "--deep").code == 0
        assert run("gc", world.model).code == 0
    assert run("verify", world.model, "--deep").code == 0
