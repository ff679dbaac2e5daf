"""Bytes on disk: whole files or nothing, whole lines or nothing.

Every step that a crash can fall into goes through a small named function (`_fsync`, `_rename`, `_write`,
`_truncate`), so that a test can fail exactly there.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from more_cli.errors import ResourceError, StateError, UsageError

MAX_DEPTH = 32
"""Deepest nesting of lists and objects in JSON that is read."""

_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


# Made once: `json.dumps` makes one for each call, and a ledger calls this for every line it is read from.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: object) -> str:
    """Return the one spelling of ``value`` that is hashed and stored: sorted keys, no spaces, no NaN.

    Raises:
        ValueError: a number is not finite.
    """
    return _CANONICAL.encode(value)


def strict_json(text: str) -> object:
    """Parse JSON that can be stored again as it is: finite numbers, no field twice, no control characters.

    Raises:
        ValueError: one sentence on what is wrong, with the column where it is known.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite, parse_float=_finite_float)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column" if "\n" in text else "column"
        raise ValueError(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}, {where} {error.colno}") from None
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    _check_strings(value, 0)
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in fields if names.count(name) > 1)
        raise ValueError(f"field `{shorten(twice)}` is given twice")
    return fields


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _not_finite(shorten(text))
    return number


def _check_strings(value: object, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, str):
        if found := _UNWANTED.search(value):
            kind = "half a surrogate pair" if "\ud800" <= found[0] <= "\udfff" else "a control character"
            raise ValueError(f"text holds {kind}, U+{ord(found[0]):04X}")
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_strings(name, depth + 1)
            _check_strings(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_strings(item, depth + 1)


def shorten(text: str, limit: int = 60) -> str:
    """Return ``text`` fit for a message: on one line, printable, at most ``limit`` characters."""
    line = "".join(letter if letter.isprintable() else "�" for letter in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def plain(text: object) -> str:
    """Return ``text`` on one line without control characters: it steers no terminal and is valid in XML and HTML."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def inert(text: str) -> str:
    """Return JSON with every character that could steer a terminal spelled as an escape: it says the same."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data``, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hex digits, in constant memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an operating system's error inside the block into one that names ``path`` and says what to do.

    Raises:
        ResourceError: the disk or the quota is full, the file too large, or memory short.
        StateError: not writable, a failing disk, or no such place.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of our output left: nothing to do with a disk
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if error.errno in _NOT_WRITABLE:
            hint = "name a writable place with `--state FILE` (state) or `-o OUT` (output)"
            raise StateError(f"`{path}` is not writable: {reason}", hint) from error
        if error.errno in _FULL:
            hint = "free some space, then run the same command again: it continues where it stopped"
            raise ResourceError(f"cannot write `{path}`: {reason}", hint) from error
        if error.errno == errno.ENOMEM:
            raise ResourceError(f"cannot write `{path}`: {reason}") from error
        hint = "check the disk and the system log" if error.errno == errno.EIO else ""
        raise StateError(f"cannot use `{path}`: {reason}", hint) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside ``path``; move it into place only if the block succeeds.

    A reader, also after a power cut, sees the old file or the new one, never a half. An exception leaves the
    old file. A symlink is kept and its target replaced; an existing file keeps its mode, a new one follows the
    umask whatever mode the block wrote.

    Raises:
        StateError: the place is not writable, or does not exist.
        ResourceError: no space.
    """
    target = Path(os.path.realpath(path))
    with disk_errors(path):
        _sweep(target)
        scratch = _beside(target, "part")
        # Created here so that the kernel applies the umask: reading the umask would change it for every thread.
        os.close(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        with disk_errors(path):
            mode = _mode(target if target.exists() else scratch)
        yield scratch
        with disk_errors(path):
            with open(scratch, "rb+") as file:
                os.chmod(scratch, mode)  # safetensors 0.8.0 writes 0600 whatever the umask (its issue 782)
                _fsync(file.fileno())
            _rename(scratch, target)
            sync_folder(target.parent)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


@contextmanager
def replacing_directory(path: Path, force: bool, *, marker: str | None = None) -> Iterator[Path]:
    """Yield an empty scratch folder beside ``path``; move it into place only if the block succeeds.

    With ``force`` a folder that is in the way is replaced as a whole; if ``marker`` is given, only one that
    holds a file of that name, so that a mistyped path cannot remove something else.

    Raises:
        UsageError: the folder is in use and may not be replaced.
        StateError: the place is not writable.
        ResourceError: no space.
    """
    target = Path(os.path.realpath(path))
    with disk_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        check_free(path, force, marker)
        scratch = _beside(target, "part")
        scratch.mkdir()
    try:
        yield scratch
        with disk_errors(path):
            _sync_tree(scratch)
            check_free(path, force, marker)  # the block may have taken an hour
            _swap_in(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_free(path: Path, force: bool, marker: str | None = None) -> None:
    """Refuse a folder that `replacing_directory` would not replace.

    Raises:
        UsageError: a file, the current folder or one above it, or not empty without ``force`` or ``marker``.
    """
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
        raise UsageError(f"`{path}` is not empty", "pass --force to replace it, or name a new folder")
    if marker and not (target / marker).exists():
        raise UsageError(f"`{path}` holds no `{marker}`, so it was not written by `more`", "name a new folder")


def _swap_in(scratch: Path, target: Path) -> None:
    if not target.exists():
        _rename(scratch, target)
        sync_folder(target.parent)
        return
    # No portable call exchanges two folders. Killed between the renames, the old one is put back by `_sweep`.
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
    # Hidden, on the same file system, and naming its process, so that a later writer can tell a leftover.
    return target.with_name(f".{target.name[:60]}.{os.getpid()}-{secrets.token_hex(4)}.{kind}")


def _sweep(target: Path) -> None:
    """Clear away what killed writers of ``target`` left beside it."""
    pattern = f".{glob.escape(target.name[:60])}.*-*."
    for leftover in target.parent.glob(pattern + "part"):
        if _is_abandoned(leftover):
            _remove(leftover)
    for leftover in target.parent.glob(pattern + "old"):
        if not _is_abandoned(leftover):
            continue
        if target.exists():
            _remove(leftover)
        else:
            _rename(leftover, target)


def _is_abandoned(leftover: Path) -> bool:
    pid = re.search(r"\.(\d{1,9})-[0-9a-f]{8}\.(part|old)$", leftover.name)
    if pid is None or os.name == "nt":  # os.kill would end the process there
        return False
    try:
        os.kill(int(pid[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def write_new(path: Path, data: bytes) -> None:
    """Write a whole new file or none, through the scratch file ``.part`` in its folder.

    For one writer at a time; the folder itself is not synced, so many files can share one `sync_folder`.
    """
    scratch = path.with_name(".part")
    with disk_errors(path):
        with open(scratch, "wb") as file:
            _write_all(file.fileno(), data)
            _fsync(file.fileno())
        _rename(scratch, path)


def append_line(fd: int, line: bytes) -> None:
    """Append ``line`` to an open file and wait until it is on disk; on failure cut the file back.

    Raises:
        OSError: what the system said (see `disk_errors`).
    """
    start = os.lseek(fd, 0, os.SEEK_END)
    try:
        _write_all(fd, line)
        _fsync(fd)
    except BaseException:
        with suppress(OSError):
            _truncate(fd, start)
        raise


def cut(fd: int, size: int) -> None:
    """Shorten an open file to ``size`` bytes and wait until that is on disk."""
    _truncate(fd, size)
    _fsync(fd)


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` (new files, renames) are on disk."""
    if os.name == "nt":  # a folder cannot be opened there
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


def _rename(old: Path, new: Path) -> None:
    os.replace(old, new)
