"""`files`: whole files or nothing, at every step a crash can fall into."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from more_cli import files
from more_cli.errors import MoreError, ResourceError, StateError, UsageError
from more_cli.files import check_free, replacing, replacing_directory, sizes_of
from more_cli.store.lock import writer_lock
from support.disk import fail_at, posix, raising, umask
from support.helpers import in_child
from support.paths import ROOT


def write(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text)


def write_folder(path: Path, text: str, force: bool = False) -> None:
    with replacing_directory(path, force) as scratch:
        (scratch / "a").write_text(text)
        (scratch / "sub").mkdir()
        (scratch / "sub" / "b").write_text(text)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"more")
    assert files.sha256_file(tmp_path / "a") == files.sha256_bytes(b"more")


# --- replacing a file ---


@posix
@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_follows_the_umask_whatever_mode_was_written(tmp_path: Path, mask: int, expected: int) -> None:
    with umask(mask), replacing(tmp_path / "a") as scratch:
        scratch.unlink()  # as a writer does that makes its own file
        scratch.write_text("new")
        scratch.chmod(0o600)
    assert mode(tmp_path / "a") == expected


@posix
def test_an_existing_mode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    write(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o640)


@posix
@pytest.mark.parametrize("dangling", [False, True])
def test_a_symlink_is_replaced_at_its_target(tmp_path: Path, dangling: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "a"
    if not dangling:
        target.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(Path("elsewhere") / "a")
    write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(path) as scratch:
            scratch.write_text("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, ResourceError), (errno.EIO, StateError), (errno.EROFS, StateError)],
)
def test_a_failing_step_is_reported_by_name_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, number: int, kind: type[MoreError]
) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    calls = fail_at(monkeypatch, step, raising(number))
    with pytest.raises(kind, match=str(path)):
        write(path, "new")
    assert len(calls) == step
    assert path.read_text() == ("new" if step == 3 else "old")  # step 3 syncs the folder, after the rename
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_within_the_block_is_reported_by_the_name_of_the_output(tmp_path: Path) -> None:
    for make in (replacing, lambda path: replacing_directory(path, False)):
        with (
            pytest.raises(ResourceError, match=f"cannot write `{tmp_path / 'a'}`: no space left"),
            make(tmp_path / "a"),
        ):
            raise OSError(errno.ENOSPC, "No space left on device")  # as `write` does: without a file name
    assert os.listdir(tmp_path) == []


@posix
@pytest.mark.parametrize("step", [1, 2, 3])
def test_killed_at_any_step_the_file_is_whole_and_the_next_writer_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def killed() -> None:
        fail_at(monkeypatch, step, lambda: os._exit(9))
        write(path, "new")

    assert in_child(killed) == 9
    assert path.read_text() == ("new" if step == 3 else "old")
    write(path, "newer")
    assert path.read_text() == "newer"
    assert os.listdir(tmp_path) == ["a"]


def test_a_living_writer_keeps_its_scratch_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as outer:
        write(tmp_path / "a", "inner")
        outer.write_text("outer")
    assert (tmp_path / "a").read_text() == "outer"


def test_no_such_folder_is_a_state_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no such file"):
        write(tmp_path / "absent" / "a", "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match="folder"):
        write(tmp_path / "folder", "new")


@posix
def test_a_folder_without_write_permission_is_a_state_error(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    for parent in [tmp_path, *tmp_path.parents][:4]:
        parent.chmod(mode(parent) | 0o011)

    def refused() -> None:
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may write anywhere
        for action in (lambda: write(folder / "a", "new"), lambda: writer_lock(folder / "lock").__enter__()):
            with pytest.raises(StateError, match="not writable") as caught:
                action()
            assert "--state" in caught.value.hint

    assert in_child(refused) == 0


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, StateError),
        (errno.EPERM, StateError),
        (errno.EDQUOT, ResourceError),
        (errno.EFBIG, ResourceError),
        (errno.ENOMEM, ResourceError),
        (errno.ENOTDIR, StateError),
    ],
)
def test_disk_errors_name_the_path(number: int, kind: type[MoreError]) -> None:
    with pytest.raises(kind, match="some/place"), files.disk_errors(Path("some/place")):
        raising(number)()


def test_disk_errors_leave_other_errors_alone() -> None:
    with pytest.raises(BrokenPipeError), files.disk_errors(Path("a")):
        raising(errno.EPIPE)()
    with pytest.raises(KeyError), files.disk_errors(Path("a")):
        raise KeyError


# --- replacing a folder ---


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    write_folder(out, "x")
    assert (out / "sub" / "b").read_text() == "x"
    assert os.listdir(out.parent) == ["out"]


def test_a_folder_that_is_not_empty_needs_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_folder(out, "1")  # an empty one is fine
    with pytest.raises(UsageError, match="not empty") as caught:
        write_folder(out, "2")
    assert "--force" in caught.value.hint
    assert (out / "a").read_text() == "1"
    (out / "stale").write_text("")
    write_folder(out, "2", force=True)
    assert sorted(os.listdir(out)) == ["a", "sub"]
    assert os.listdir(tmp_path) == ["out"]


def test_force_replaces_only_what_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "models"
    (precious / "inner").mkdir(parents=True)
    with (
        pytest.raises(UsageError, match=r"holds no `more\.json`"),
        replacing_directory(precious, True, marker="more.json"),
    ):
        pass
    (precious / "more.json").write_text("{}")
    monkeypatch.chdir(precious / "inner")
    with pytest.raises(UsageError, match="the folder you are in"):
        write_folder(precious, "x", force=True)
    with pytest.raises(UsageError, match="is a file"):
        write_folder(precious / "more.json", "x", force=True)
    monkeypatch.chdir(tmp_path)
    (precious / "inner" / "a").touch()
    (precious / "link").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(UsageError, match=r"holds more than was written there: inner/a, link$"):
        check_free(precious, True, own=lambda folder: ["more.json"])
    with replacing_directory(precious, True, marker="more.json") as scratch:
        (scratch / "more.json").write_text("{}")
    assert os.listdir(precious) == ["more.json"]


@pytest.mark.parametrize("step", range(1, 9))
def test_a_failing_step_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    out = tmp_path / "out"
    write_folder(out, "old")
    calls = fail_at(monkeypatch, step, raising(errno.EIO))
    if step == 8:  # two files, two folders, three names: there is no eighth step
        write_folder(out, "new", force=True)
        assert len(calls) == 7
    else:
        with pytest.raises(StateError, match="out"):
            write_folder(out, "new", force=True)
    assert (out / "sub" / "b").read_text() == ("new" if step >= 7 else "old")
    if step != 7:  # synced only after the swap: the old folder is left for the next writer to remove
        assert os.listdir(tmp_path) == ["out"]


@posix
@pytest.mark.parametrize("step", range(1, 8))
def test_killed_at_any_step_a_folder_comes_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    out = tmp_path / "out"
    write_folder(out, "old")

    def killed() -> None:
        fail_at(monkeypatch, step, lambda: os._exit(9))
        write_folder(out, "new", force=True)

    assert in_child(killed) == 9
    with pytest.raises(UsageError, match="not empty"):  # also when killed between the two renames
        write_folder(out, "newer")
    assert (out / "a").read_text() == (out / "sub" / "b").read_text() == ("new" if step == 7 else "old")
    assert os.listdir(tmp_path) == ["out"]


# --- appending ---


@pytest.mark.parametrize("step", [1, 2])
def test_a_failed_append_cuts_the_file_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    files.append_line(fd, b"one\n")
    with monkeypatch.context() as patch:
        fail_at(patch, step, raising(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            files.append_line(fd, b"two\n")
    files.append_line(fd, b"three\n")
    os.close(fd)
    assert (tmp_path / "a").read_bytes() == b"one\nthree\n"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_write", lambda fd, data: os.write(fd, data[:3]))
    fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    files.append_line(fd, b"0123456789\n")
    os.close(fd)
    assert (tmp_path / "a").read_bytes() == b"0123456789\n"


# --- the lock ---

HOLD = """
import sys, time
from pathlib import Path
from more_cli.store.lock import writer_lock
with writer_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    lock = tmp_path / "x.more.d" / "lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        for _ in range(2):  # asking does not disturb the holder
            with pytest.raises(StateError, match=f"in use by process {process.pid}") as caught, writer_lock(lock):
                pass
        assert f"kill {process.pid}" in caught.value.hint
        process.send_signal(signal.SIGKILL)
        process.wait()
    started = time.monotonic()
    with writer_lock(lock):
        assert time.monotonic() - started < 5
        with pytest.raises(StateError, match=f"{os.getpid()}, this one") as caught, writer_lock(lock):
            pass
        assert "kill" not in caught.value.hint, "a program would end itself"
    with writer_lock(lock):
        pass


def test_the_lock_is_let_go_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(KeyError), writer_lock(tmp_path / "lock"):
        raise KeyError
    with writer_lock(tmp_path / "lock"):
        (tmp_path / "lock.pid").write_text("not a number")
        with pytest.raises(StateError, match="by another process"), writer_lock(tmp_path / "lock"):
            pass


def test_lines_are_appended_as_bytes_where_the_system_would_translate_newlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows has the flag `O_BINARY`; here a free bit stands for it."""
    opened: list[int] = []
    monkeypatch.setattr(os, "O_BINARY", 1 << 28, raising=False)
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, mode: opened.append(flags) or real(path, flags & ~(1 << 28), mode)
    )
    files.add_line(tmp_path / "lines", b"one\n")
    assert opened[0] & (1 << 28)
    assert (tmp_path / "lines").read_bytes() == b"one\n"


def test_what_a_killed_writer_left_is_of_its_own_target_only(tmp_path: Path) -> None:
    gone = 2**22 + 1  # no process has this number
    names = {"out.v2": f".out.v2.{gone}-0123abcd.old", "out": f".out.{gone}-0123abcd.old"}
    for target, left in names.items():
        (tmp_path / left).mkdir()
        (tmp_path / left / "whose").write_text(target)

    with replacing_directory(tmp_path / "out", force=True) as scratch:
        (scratch / "whose").write_text("new")

    assert (tmp_path / "out" / "whose").read_text() == "new"
    assert not (tmp_path / names["out"]).exists()
    assert (tmp_path / names["out.v2"] / "whose").read_text() == "out.v2"


def test_long_names_that_begin_alike_have_leftovers_of_their_own(tmp_path: Path) -> None:
    first, second = tmp_path / ("a" * 80 + "1"), tmp_path / ("a" * 80 + "2")
    with replacing_directory(first, force=False) as scratch:
        left = scratch.name
    with replacing_directory(second, force=False) as scratch:
        assert scratch.name.rpartition(".")[0].rpartition(".")[0] != left.rpartition(".")[0].rpartition(".")[0]


def test_files_that_another_process_removes_meanwhile_have_no_size(tmp_path: Path) -> None:
    for name in ("kept", "gone"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder").mkdir()

    def listed() -> Iterator[Path]:
        for path in sorted(tmp_path.iterdir()):
            (tmp_path / "gone").unlink(missing_ok=True)
            yield path

    assert sizes_of(listed()) == {tmp_path / "kept": 4}
