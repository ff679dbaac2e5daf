"""One writer at a time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from more_cli.errors import StateError
from more_cli.files import disk_errors
from more_cli.store.statement import NAME, SIGNATURE

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}
"""What a file system without locks answers."""
_HELD: set[Path] = set()
"""Locks that this process, or one that it was forked from, holds. The process id alone would not do: two containers
may have the same."""


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the operating system's lock on ``path`` while the block runs; a killed process releases it.

    Raises:
        StateError: another process holds it (named by its id), the file system has no locks, the folder is not
            writable, or has a link in the place of a file.
    """
    # The process id is in a second file: on Windows other processes cannot read a locked file.
    holder = path.with_name(f"{path.name}.pid")
    # Without locks, filelock would take the file's existence for one: a killed process would never let go of it.
    lock = FileLock(path, fallback_to_soft=False)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_links(path.parent)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise _held(path, holder) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            what = f"`{path.parent}` is on a file system without locks, so a second writer would not be noticed"
            raise StateError(
                what, "put it on another one: name a file there with `--state FILE` or `-o OUT`"
            ) from error
    held = path.resolve()
    _HELD.add(held)
    try:
        with suppress(OSError):  # it is only for the message
            holder.write_text(str(os.getpid()))
        yield
    finally:
        _HELD.discard(held)
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _refuse_links(folder: Path) -> None:
    """Refuse a link in the place of a file that the holder of the lock may write: it can lead to any file.

    Links in the places of images and signatures are left: what writes these replaces a link and does not follow it.
    """
    found = [*folder.glob("*"), folder / "images" / ".part", *folder.glob("snapshots/*"), *folder.glob("cache/*")]
    for path in found:
        if path.is_symlink() and not path.is_dir() and path.name not in (NAME, SIGNATURE):
            what = f"`{path}` is a link to `{path.readlink()}`, and what is written there would go to that file"
            raise StateError(what, "put the file itself in its place, or remove the link")


def _held(path: Path, holder: Path) -> StateError:
    try:
        pid = holder.read_bytes()[:20].decode("ascii")
    except (OSError, ValueError):
        pid = ""
    if not pid.isdecimal():
        return StateError(f"`{path.parent}` is in use by another process", "wait until it has ended")
    if path.resolve() in _HELD and pid == str(os.getpid()):
        return StateError(
            f"`{path.parent}` is in use by process {pid}, this one", "wait until its other thread is done"
        )
    hint = f"wait until it has ended, or stop it with `kill {pid}`: it saves what it has done"
    return StateError(f"`{path.parent}` is in use by process {pid}", hint)
