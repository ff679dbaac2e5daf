"""Bytes on disk: a file or a line is written completely or not at all.

Every step that a crash can interrupt is a small named function (`_fsync`, `_rename`, `_write`, `_truncate`), so that
a test can make exactly this step fail.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import ClassVar

from more_cli.errors import MoreError, ResourceError, StateError, UsageError
from more_cli.text import canonical_json, is_utf8, listed, reason_of, shorten

StrPath = str | os.PathLike[str]
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}
_ADVICE = {
    errno.EIO: "check the disk and the system log",
    # `mkdir(parents=True)` gives the second.
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "a part of this path is a file, not a folder: name another path"),
}
"""What helps with an operating system's error, by its number."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Numbers of the errors of a disk or a quota without space."""
_LONG = 60
"""Characters of a target's name that its scratch files have."""
_SHOWN = 3
"""Files that stand in the way of an output and are named."""


class Saves:
    """What this process has put safely on disk."""

    count: ClassVar[int] = 0
    """Files, lines and folders so far."""


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data``, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: object) -> str:
    """Return the SHA-256 of a value's canonical JSON, 64 hex digits."""
    return sha256_bytes(canonical_json(value).encode())


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hex digits, in constant memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an operating system's error in the block into one that names ``path`` and says what to do.

    Raises:
        ResourceError: the disk or the quota is full, the file too large, or memory short.
        StateError: not writable, a failing disk, or no such path.
    """
    try:
        yield
    except BrokenPipeError:  # the output pipe was closed: not an error of a disk
        raise
    except OSError as error:
        reason = reason_of(error)
        if error.errno in _NOT_WRITABLE:
            hint = "make its folder writable, or name another path: `--state FILE` for a state, `-o OUT` for an output"
            raise StateError(f"`{path}` is not writable: {reason}", hint) from error
        if error.errno in FULL:
            hint = "free some space, then run the same command again"
            raise ResourceError(f"cannot write `{path}`: {reason}", hint) from error
        if error.errno == errno.ENOMEM:
            raise ResourceError(f"cannot write `{path}`: {reason}") from error
        raise StateError(f"cannot use `{path}`: {reason}", _ADVICE.get(error.errno or 0, "")) from error


def as_user_error(error: Exception) -> MoreError | None:
    """Return the error to show instead of an exception; None for a bug."""
    if isinstance(error, MoreError):
        return error
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ResourceError(
            "out of memory", "use --dtype bfloat16, --device-map auto or fewer sites; see `status --estimate`"
        )
    if isinstance(error, OSError) and error.errno in FULL:
        place = f"`{error.filename}`" if error.filename else "standard output"
        return ResourceError(f"disk full: {place}", "free some space and run the same command again")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UsageError(f"`{shorten(str(error.filename))}`: the name is too long", "take a shorter one")
    if isinstance(error, OSError) and error.errno == errno.ENOENT and error.filename is None:  # that of `os.getcwd`
        return UsageError("the current folder has been removed", "go to another one, or into it again: cd DIR")
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # by `resolve`, before Python 3.13
        return UsageError(str(error).replace("Symlink loop from", "a symbolic link leads to itself:"), "remove it")
    if isinstance(error, ValueError) and "embedded null" in str(error):  # said by Python itself, for any path
        return UsageError("a path holds the character U+0000", "leave it out")
    return None


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a scratch path beside ``path``; move it into place only if the block succeeds.

    A reader sees the old file or the new one, never a part, also after a power cut. An exception keeps the old
    file. A symlink is kept and its target replaced; an existing file keeps its mode, a new one gets the mode of the
    umask. A file that need not be ``durable`` is not waited for: after a power cut it can be damaged or missing.

    Raises:
        StateError: the folder is not writable, or does not exist.
        ResourceError: no space.
    """
    target = Path(os.path.realpath(path))
    with disk_errors(path):
        _sweep(target)
        scratch = _beside(target, "part")
        # Created here so that the kernel applies the umask: to read it, it would have to be changed for all threads.
        os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        with disk_errors(path):
            mode = _mode(target if target.exists() else scratch)
        with _full_disk_of(path):
            yield scratch
        with disk_errors(path):
            with open(scratch, "rb+") as file:
                os.chmod(scratch, mode)  # safetensors 0.8.0 writes 0600 and ignores the umask (its issue 782)
                if durable:
                    _fsync(file.fileno())
            _rename(scratch, target)
            if durable:
                sync_folder(target.parent)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


@contextmanager
def _full_disk_of(path: Path) -> Iterator[None]:
    """Blame a full disk on the output that the block writes, where the error has no path."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            with disk_errors(path):
                raise
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file and, if it is missing, its folder; a reader sees the old file or the whole new one.

    Raises:
        StateError, ResourceError: see `disk_errors`.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            scratch.write_bytes(data)


@contextmanager
def replacing_directory(
    path: Path, force: bool | None, *, marker: str | None = None, own: OwnNames | None = None
) -> Iterator[Path]:
    """Yield an empty scratch folder beside ``path``; move it into place only if the block succeeds.

    With ``force`` an existing folder is replaced as a whole; if ``marker`` is given, only a folder with a file of
    that name, so that a mistyped path cannot remove other data, and if ``own`` is, only one that holds nothing else.

    Raises:
        UsageError: the folder is not empty and may not be replaced.
        StateError: the parent folder is not writable.
        ResourceError: no space.
    """
    target = Path(os.path.realpath(path))
    with disk_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        check_free(path, force, marker, own)
        scratch = _beside(target, "part")
        scratch.mkdir()
    try:
        with _full_disk_of(path):
            yield scratch
        with disk_errors(path):
            _sync_tree(scratch)
            check_free(path, force, marker, own)  # the block may have taken an hour
            _swap_in(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


OwnNames = Callable[[Path], Collection[str]]
"""Returns the files below a folder that may go with it, as `names_below` spells them."""


def check_free(path: Path, force: bool | None, marker: str | None = None, own: OwnNames | None = None) -> None:
    """Refuse a folder that `replacing_directory` would not replace; `force` is None where a command has no --force.

    Raises:
        UsageError: it is a file, the current folder or a parent of it, or not empty without ``force`` or ``marker``;
            it holds files that are not its ``own``; or its name is not UTF-8.
    """
    check_name(path)
    target = path.resolve()
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"`{path}` is a file", "name a new folder")
    if Path.cwd().is_relative_to(target):
        raise UsageError(f"`{path}` is the folder you are in, or above it", "name a new folder")
    if next(target.iterdir(), None) is None:
        return
    if not force:
        option = "" if force is None else "pass --force to replace it, or "
        raise UsageError(f"`{path}` is not empty", f"{option}name a new folder")
    if marker and not (target / marker).exists():
        raise UsageError(f"`{path}` holds no `{marker}`, so it was not written by `more`", "name a new folder")
    if own and (foreign := sorted(names_below(target) - set(own(path)))):
        what = f"`{path}` holds more than was written there: {listed(foreign, _SHOWN)}"
        raise UsageError(what, "move that away, or name a new folder")


def names_below(folder: Path) -> set[str]:
    """Return the paths of all files and links below a folder, with `/`; bytes that are not UTF-8 are escaped."""
    found = set[str]()
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        found |= {Path(place, name).relative_to(folder).as_posix() for name in (*names, *links)}
    return {name.encode("utf-8", "backslashreplace").decode() for name in found}


def sizes_of(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the bytes of those paths that are files; one that another process removes meanwhile is left out."""
    sizes = dict[Path, int]()
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                sizes[path] = status.st_size
    return sizes


def check_name(path: Path) -> None:
    """Refuse a name that libraries cannot open.

    Raises:
        UsageError: it is not UTF-8.
    """
    if not is_utf8(path.resolve()):
        raise UsageError(f"`{path}`: its path is not UTF-8", "name another one")


def check_free_file(path: Path, force: bool) -> None:
    """Refuse an output file that exists already, unless ``force`` allows to replace it, or that has no folder.

    Raises:
        UsageError: it exists and may not be replaced, or is a folder, a pipe or a device, or its folder is not there.
    """
    if not path.parent.is_dir():
        raise UsageError(f"`{path}`: there is no folder `{path.parent}`", "create it first")
    if path.exists() and not path.is_file():  # `replacing` would put a file in the place of /dev/null
        raise UsageError(f"`{path}` is not a file", "name another file")
    if path.exists() and not force:
        raise UsageError(f"`{path}` already exists", "pass --force to replace it")


def _swap_in(scratch: Path, target: Path) -> None:
    if not target.exists():
        _rename(scratch, target)
        sync_folder(target.parent)
        return
    # No portable call exchanges two folders. After a kill between the renames, `_sweep` puts the old one back.
    retired = _beside(target, "old")
    scratch.chmod(_mode(target))
    _rename(target, retired)
    try:
        _rename(scratch, target)
    except BaseException:
        _rename(retired, target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(retired, ignore_errors=True)


def _beside(target: Path, kind: str) -> Path:
    # Hidden, on the same file system, and with the process id, so that a later writer recognises a leftover.
    return target.with_name(f".{_stem(target)}.{os.getpid()}-{secrets.token_hex(4)}.{kind}")


def _stem(target: Path) -> str:
    """Return the part of a scratch file's name that says whose it is; a long name is cut, and its hash added."""
    name = target.name
    return name if len(name) <= _LONG else f"{name[:_LONG]}-{sha256_bytes(os.fsencode(name))[:8]}"


def _sweep(target: Path) -> None:
    """Remove what killed writers of ``target`` left beside it."""
    own = re.compile(re.escape(f".{_stem(target)}.") + r"(\d{1,9})-[0-9a-f]{8}\.(part|old)")
    for leftover in sorted(target.parent.glob(f".{glob.escape(_stem(target))}.*")):
        found = own.fullmatch(leftover.name)  # `.out.v2.7-….old` is not of `out`
        if found is None or _is_running(int(found[1])):
            continue
        if found[2] == "old" and not target.exists():
            _rename(leftover, target)
        else:
            _remove(leftover)


def _is_running(pid: int) -> bool:
    if os.name == "nt":  # os.kill would end the process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def write_new(path: Path, data: bytes) -> None:
    """Write a whole new file or none, through the scratch file ``.part`` in its folder.

    One writer at a time. The folder itself is not synced, so many files can share one `sync_folder`.
    """
    scratch = path.with_name(".part")
    with disk_errors(path):
        write_synced(scratch, data)
        _rename(scratch, path)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until its bytes are on disk.

    Raises:
        OSError: the system's error (see `disk_errors`).
    """
    with open(path, "wb") as file:
        _write_all(file.fileno(), data)
        _fsync(file.fileno())


def move(path: Path, new: Path) -> None:
    """Move a file within its disk and wait until its new name is on it.

    Raises:
        StateError: the folder is not writable.
    """
    with disk_errors(new):
        _rename(path, new)
        sync_folder(new.parent)


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    """Write all of ``data`` to an unbuffered file, each of whose writes may be partial.

    Raises:
        OSError: the system's error (see `disk_errors`).
    """
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def open_to_append(path: Path) -> int:
    """Open a file of lines for reading and appending, made if it is missing; return its descriptor.

    Raises:
        OSError: the system's error (see `disk_errors`).
    """
    # O_BINARY exists on Windows only, where a newline would be written as two bytes.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)


def append_line(fd: int, line: bytes) -> None:
    """Append ``line`` to an open file and wait until it is on disk; on failure restore the file's length.

    Raises:
        OSError: the system's error (see `disk_errors`).
    """
    start = os.lseek(fd, 0, os.SEEK_END)
    try:
        _write_all(fd, line)
        _fsync(fd)
    except BaseException:
        with suppress(OSError):
            _truncate(fd, start)
        raise


def add_line(path: Path, line: bytes) -> None:
    """Append ``line`` to a file, made if it is missing, and wait until it is on disk.

    Raises:
        StateError, ResourceError: see `disk_errors`.
    """
    with disk_errors(path):
        fd = open_to_append(path)
        try:
            append_line(fd, line)
        finally:
            os.close(fd)


def cut(fd: int, size: int) -> None:
    """Shorten an open file to ``size`` bytes and wait until that is on disk."""
    _truncate(fd, size)
    _fsync(fd)


def require_regular(path: Path) -> None:
    """Refuse what is no file in the place of one: a pipe would be waited for without end.

    Raises:
        StateError: it is a pipe, a folder or a device.
    """
    if path.exists() and not path.is_file():
        raise StateError(f"`{path}` is not a file", "move it away, and restore the file from a backup")


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` (new files, renames) are on disk."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    try:
        _sync_path(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no such call
            raise


def _sync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            _sync_path(Path(root, name))
        sync_folder(Path(root))


def _sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        _fsync(fd)
    finally:
        os.close(fd)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[_write(fd, rest) :]


def _write(fd: int, data: memoryview) -> int:
    return os.write(fd, data)


def _truncate(fd: int, size: int) -> None:
    os.ftruncate(fd, size)


def _fsync(fd: int) -> None:
    os.fsync(fd)
    Saves.count += 1


def _rename(old: Path, new: Path) -> None:
    os.replace(old, new)


def default_cache() -> Path:
    """Return the cache folder by the XDG rule."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "more"
