"""Where a stream comes from: a pipe, or a growing file. Its lines are read as they come, and waited for.

Whoever reads a feed may do so in a thread; `close`, from any other, ends its waiting.
"""

from __future__ import annotations

import io
import os
import select
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from more_cli.errors import DataError
from more_cli.inputs.records import Record, lines, opened

POLL = 0.1
"""Seconds between two looks at a file that may have grown, or at whether the feed was closed."""


class Feed(ABC):
    """Records that come one at a time, until it ends or is closed."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield the records as they come."""

    def close(self) -> None:
        """End the feed, also while it waits."""
        self._closed.set()


class Pipe(Feed):
    """Standard input, a FIFO, or any other stream that somebody else writes.

    What stands behind its last newline is a record like every other, or a problem where it was cut off.
    """

    def __init__(self, stream: BinaryIO, name: str = "<stdin>") -> None:
        super().__init__()
        self._stream = stream
        self.name = name

    def records(self) -> Iterator[Record]:
        """Yield the records as they come."""
        return lines(self._closable(), self.name)

    def _closable(self) -> BinaryIO:
        try:
            descriptor = self._stream.fileno()
        except io.UnsupportedOperation:  # in memory already
            return self._stream
        return self._stream if os.name == "nt" else io.BufferedReader(_Descriptor(descriptor, self._closed))


class _Descriptor(io.RawIOBase):
    """Reads what a descriptor has, and waits for more only until `closed` is set."""

    def __init__(self, descriptor: int, closed: threading.Event) -> None:
        self._descriptor = descriptor
        self._closed_feed = closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._closed_feed.is_set():
            if select.select([self._descriptor], [], [], POLL)[0]:
                data = os.read(self._descriptor, len(buffer))
                buffer[: len(data)] = data
                return len(data)
        return 0


class Watch(Feed):
    """A growing file, followed by its name as `tail -F` does: whole lines only, on after it was cut or replaced.

    It ends after `idle` seconds without anything new, if that is given. What happens to the file is told to `say`.
    """

    def __init__(self, path: Path, idle: float | None = None, say: Callable[[str], object] = lambda text: None) -> None:
        super().__init__()
        self.path = path
        self.idle = idle
        self._say = say
        self._grown = time.monotonic()

    def records(self) -> Iterator[Record]:
        """Yield the records as they come; lines are counted from 1 again in a file that was cut or replaced.

        Raises:
            DataError: there is something of that name which is no file, or cannot be read.
        """
        self._grown = time.monotonic()
        while self._appeared():
            with opened(self.path) as file:
                yield from lines(_Growing(self, file), str(self.path))

    def over(self) -> bool:
        """Wait a little, unless the feed was closed or idle for too long: then it is over."""
        if self.idle is not None and time.monotonic() - self._grown >= self.idle:
            self.close()
        return self._closed.wait(POLL)

    def grew(self) -> None:
        """Note that there was something new."""
        self._grown = time.monotonic()

    def changed(self, file: BinaryIO) -> str:
        """Say what became of the file that is open, nothing while it is the one of that name and has not shrunk."""
        now = os.fstat(file.fileno())
        if now.st_size < file.tell():
            return "was cut"
        try:
            return "" if os.path.samestat(now, os.stat(self.path)) else "was replaced"
        except OSError:  # away: what is open is read on until there is another
            return ""

    def begin_again(self, change: str) -> None:
        """Tell that the file will be read from its beginning."""
        self._say(f"`{self.path}` {change}: reading it from its beginning")

    def waits_for_newline(self) -> None:
        """Tell that the last line is left alone."""
        self._say(f"the last line of `{self.path}` has no newline yet: it is left for the next run")

    def _appeared(self) -> bool:
        """Wait until there is a file of that name; tell whether there is."""
        said = False
        while not self.path.exists():
            if not said:
                self._say(f"waiting for `{self.path}`")
            said = True
            if self.over():
                return False
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise DataError(f"`{self.path}` is not a file", "a pipe is read without --watch")
        return not self._closed.is_set()


class _Growing:
    """One file of a `Watch`, from its beginning until it is cut or replaced, or the watch is over."""

    def __init__(self, watch: Watch, file: BinaryIO) -> None:
        self._watch = watch
        self._file = file
        self._change = ""
        self._ended = False

    def readline(self, limit: int) -> bytes:
        """Return the next line, or as much of it as `limit` allows; nothing once the file has ended."""
        held = b""
        while not self._ended:
            piece = self._file.readline(limit - len(held))
            held += piece
            if piece:
                self._watch.grew()
                if held.endswith(b"\n") or len(held) >= limit:
                    return held
            elif self._change:
                # All was read that its writer put there before it was replaced: a line cut off will not go on.
                self._watch.begin_again(self._change)
                self._ended = True
                return held
            else:
                self._change = self._watch.changed(self._file)
                if not self._change and self._watch.over():
                    self._ended = True
                    if held:
                        self._watch.waits_for_newline()
        return b""
