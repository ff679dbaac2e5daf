"""Observes every change that this process makes below one folder, before and after it is made.

The functions of `os` and `io` through which `more` reaches the disk are wrapped while the block runs. What a step
touches (`image`, `ledger`, `sidecar`, ...) is known from its path.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

CHANGES = ("open", "write", "fsync", "rename", "truncate", "unlink", "mkdir", "rmdir")
"""The kinds of step."""


@dataclass(frozen=True)
class Step:
    """One change of the disk, before or after it is made."""

    number: int
    """Counted from 1; before and after a change are two steps."""
    change: str
    """One of `CHANGES`."""
    after: bool
    path: str
    size: int = 0
    """Bytes to be written."""
    to: str = ""
    """New name of a rename."""
    what: str = ""
    """The part of a state that it touches."""

    @property
    def kind(self) -> str:
        """Its row in a table of results."""
        return f"{self.what} {self.change}"

    @property
    def title(self) -> str:
        """The step in words."""
        return f"{'after' if self.after else 'before'} {self.kind} (step {self.number})"


Watch = Callable[[Step], "int | None"]
"""Called with every step; before a write it may return how many bytes to write."""


@dataclass
class Disk:
    """State of the wrapped functions."""

    root: str
    watch: Watch
    number: int = 0
    names: dict[int, str] = field(default_factory=dict)
    """Open descriptors below `root`."""

    def before(self, change: str, path: str, size: int = 0, to: str = "") -> int | None:
        return self._report(change, False, path, size, to)

    def after(self, change: str, path: str, size: int = 0, to: str = "") -> None:
        self._report(change, True, path, size, to)

    def _report(self, change: str, after: bool, path: str, size: int, to: str) -> int | None:
        self.number += 1
        return self.watch(Step(self.number, change, after, path, size, to, _what(change, to or path)))

    def place(self, path: Any, folder: int | None = None) -> str | None:
        """Return the absolute path if it is the watched folder or lies below it."""
        if isinstance(path, int):
            return self.names.get(path)
        spelled = os.fsdecode(path)
        if folder is not None:
            spelled = os.path.join(self.names.get(folder, "/"), spelled)
        spelled = os.path.abspath(spelled)
        return spelled if spelled == self.root or spelled.startswith(self.root + os.sep) else None


@contextmanager
def watched(root: Path, watch: Watch) -> Iterator[Disk]:
    """Call `watch` for every change below `root` while the block runs."""
    disk = Disk(os.path.abspath(root), watch)
    real = {name: getattr(os, name) for name in _WRAPPED}
    with mock.patch.multiple(os, **{name: wrap(disk, real[name]) for name, wrap in _WRAPPED.items()}):
        opened = _opener(disk, io.open)
        files = mock.patch("more_cli.checkpoint.copying.FileIO", _file_class(disk))
        with mock.patch("io.open", opened), mock.patch.object(builtins, "open", opened), files:
            yield disk


def _what(change: str, path: str) -> str:
    folder, name = os.path.split(path)
    if change in ("mkdir", "rmdir") or (change == "fsync" and os.path.isdir(path)):
        return "folder"
    if os.path.basename(folder) == "images":
        return "image"
    kinds = {"lock": "lock", "lock.pid": "lock", "ledger.jsonl": "ledger"}
    return kinds.get(name) or ("sidecar" if ".more." in name or name.endswith(".more") else "output")


def _around(change: str) -> Callable[[Disk, Callable[..., Any]], Callable[..., Any]]:
    """Wrap a function that changes one path."""

    def wrap(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            place = disk.place(path, kwargs.get("dir_fd"))
            if place is None:
                return real(path, *args, **kwargs)
            disk.before(change, place)
            result = real(path, *args, **kwargs)
            disk.after(change, place)
            return result

        return call

    return wrap


def _renaming(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(old: Any, new: Any, **kwargs: Any) -> None:
        here, there = disk.place(old), disk.place(new)
        if here is None or there is None:
            return real(old, new, **kwargs)
        disk.before("rename", here, to=there)
        real(old, new, **kwargs)
        disk.after("rename", here, to=there)
        return None

    return call


def _writing(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(fd: int, data: Any) -> int:
        place = disk.names.get(fd)
        return real(fd, data) if place is None else _written(disk, place, data, lambda part: real(fd, part))

    return call


def _written(disk: Disk, place: str, data: Any, write: Callable[[Any], int]) -> int:
    size = memoryview(data).nbytes
    limit = disk.before("write", place, size)
    done = write(data if limit is None else memoryview(data).cast("B")[:limit])
    disk.after("write", place, done)
    return done


def _copying(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(source: int, target: int, count: int, *rest: Any) -> int:
        place = disk.names.get(target)
        if place is None:
            return real(source, target, count, *rest)
        disk.before("write", place, count)
        done = real(source, target, count, *rest)
        disk.after("write", place, done)
        return done

    return call


def _sending(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(target: int, source: int, offset: int, count: int) -> int:
        place = disk.names.get(target)
        if place is None:
            return real(target, source, offset, count)
        limit = disk.before("write", place, count)
        done = real(target, source, offset, count if limit is None else limit)
        disk.after("write", place, done)
        return done

    return call


def _opening(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        place = disk.place(path, kwargs.get("dir_fd"))
        if place is None:
            return real(path, flags, *args, **kwargs)
        changes = bool(flags & (os.O_CREAT | os.O_TRUNC))
        if changes:
            disk.before("open", place)
        fd = real(path, flags, *args, **kwargs)
        disk.names[fd] = place
        if changes:
            disk.after("open", place)
        return fd

    return call


def _closing(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(fd: int) -> None:
        disk.names.pop(fd, None)
        real(fd)

    return call


_WRAPPED: dict[str, Callable[[Disk, Callable[..., Any]], Callable[..., Any]]] = {
    "open": _opening,
    "close": _closing,
    "write": _writing,
    "copy_file_range": _copying,
    "sendfile": _sending,
    "replace": _renaming,
    "rename": _renaming,
    "fsync": _around("fsync"),
    "ftruncate": _around("truncate"),
    "unlink": _around("unlink"),
    "remove": _around("unlink"),
    "mkdir": _around("mkdir"),
    "rmdir": _around("rmdir"),
}


def _file_class(disk: Disk) -> type[io.FileIO]:
    class WatchedFile(io.FileIO):
        """A file opened for writing, whose writes are steps."""

        def __init__(self, path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            self._place = disk.place(path) if set(mode) & set("wxa+") else None
            if self._place is not None and set(mode) & set("wxa"):
                disk.before("open", self._place)
            super().__init__(path, mode, *args, **kwargs)
            if self._place is not None:
                disk.names[self.fileno()] = self._place
                if set(mode) & set("wxa"):
                    disk.after("open", self._place)

        def write(self, data: Any) -> int:
            write = super().write
            return write(data) if self._place is None else _written(disk, self._place, data, write)

        def close(self) -> None:
            if not self.closed:
                disk.names.pop(self.fileno(), None)
            super().close()

    return WatchedFile


def _opener(disk: Disk, real: Callable[..., Any]) -> Callable[..., Any]:
    files = _file_class(disk)

    def opened(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = None if isinstance(file, int) else disk.place(file)
        if place is None or not set(mode) & set("wxa+"):
            return real(file, mode, buffering, encoding, *args, **kwargs)
        raw = files(file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding, *args, **kwargs)

    return opened


# --- watches ---


def recording(steps: list[Step]) -> Watch:
    """Record the steps."""

    def watch(step: Step) -> None:
        steps.append(step)

    return watch


def kill_at(number: int, *, half: bool = False) -> Watch:
    """Kill this process at one step; `half` lets half of a write through first."""

    def watch(step: Step) -> int | None:
        if step.number == number:
            if half and not step.after:
                return step.size // 2
            os.kill(os.getpid(), signal.SIGKILL)
        if half and step.number == number + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    return watch


def refuse_at(number: int, code: int, *, for_ever: bool = False) -> Watch:
    """Make the system refuse one step, once or from then on; half of a write goes through first.

    A full disk stays full for changes that need space, and still renames, removes and syncs.
    """
    refused = [False]

    def watch(step: Step) -> int | None:
        if step.after or step.number < number:
            return None
        takes_room = step.change in ("open", "write", "mkdir")
        if step.number == number and step.change == "write" and step.size > 1 and not refused[0]:
            return step.size // 2  # the next write of the rest meets the refusal
        if step.number > number and not for_ever and refused[0]:
            return None
        if step.number == number or takes_room or code == errno.EIO:
            refused[0] = True
            raise OSError(code, os.strerror(code), step.path)
        return None

    return watch
