"""Sources of a stream: a pipe or a growing file. Lines are read as they arrive; reading waits for more.

A feed can be read in one thread and closed from another: `close` ends the waiting.
"""

from __future__ import annotations

import io
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from more_cli.errors import DataError
from more_cli.inputs.records import Record, lines, opened, url_error

POLL = 0.1
"""Seconds between two checks whether the file has grown or the feed was closed."""

_TAIL = 256
"""Bytes of a watched file that are compared before more of it is read."""

_REPLACED = "was replaced"


class Feed(ABC):
    """A source of records that ends by itself or is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Where image paths of its records start."""
        self._closed = threading.Event()

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield the records as they arrive."""

    def close(self) -> None:
        """End the feed, also while it waits."""
        self._closed.set()


class Pipe(Feed):
    """Standard input, a FIFO, or another stream.

    Text after the last newline is a record too, or a problem if it was cut off.
    """

    def __init__(self, stream: BinaryIO, name: str = "<stdin>") -> None:
        super().__init__(Path())  # not that of a FIFO: a shell makes it for `<(...)`, in a folder of its own
        self._stream = stream
        self.name = name

    def records(self) -> Iterator[Record]:
        return lines(self._closable(), self.name)

    def _closable(self) -> BinaryIO:
        try:
            descriptor = self._stream.fileno()
        except io.UnsupportedOperation:  # a stream in memory
            return self._stream
        return self._stream if os.name == "nt" else io.BufferedReader(_Descriptor(descriptor, self._closed))


class _Descriptor(io.RawIOBase):
    """Reads from a descriptor and waits for more until `closed` is set."""

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
    """A growing file, followed by name like `tail -F`: whole lines only, also after it was truncated or replaced.

    It ends after `idle` seconds without new data, if given. `notify` gets a sentence when the file is missing,
    truncated, replaced or ends without a newline.
    """

    def __init__(
        self, path: Path, idle: float | None = None, notify: Callable[[str], object] = lambda text: None
    ) -> None:
        super().__init__(path.parent)
        self.path = path
        self.idle = idle
        self.notify = notify
        self.grown = time.monotonic()
        """When there was new data last."""

    def records(self) -> Iterator[Record]:
        """Yield the records as they arrive; line numbers start at 1 again after the file was truncated or replaced.

        Raises:
            DataError: the path is a URL or not a regular file, or cannot be read.
        """
        if error := url_error(self.path):
            raise error
        self.grown = time.monotonic()
        while self._wait_for_file():
            with opened(self.path) as file:
                yield from lines(_Growing(self, file), str(self.path))

    def wait(self) -> bool:
        """Wait `POLL` seconds; return whether the feed has ended: closed, or idle for too long."""
        if self.idle is not None and time.monotonic() - self.grown >= self.idle:
            self.close()
        return self._closed.wait(POLL)

    def change(self, file: BinaryIO) -> str:
        """Return `was replaced` if the path names another file than the open one, else nothing."""
        try:
            return "" if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)) else _REPLACED
        except OSError:  # deleted: the open file is read until there is a new one
            return ""

    def _wait_for_file(self) -> bool:
        """Wait until the file exists; return False if the feed ended first."""
        notified = False
        while not self.path.exists():
            if not notified:
                self.notify(f"waiting for `{self.path}`")
            notified = True
            if self.wait():
                return False
        if not self.path.is_file():
            raise DataError(f"`{self.path}` is not a file", "a pipe is read without --watch")
        return not self._closed.is_set()


class _Growing:
    """One file of a `Watch`, from its beginning until it is truncated or replaced, or the watch ends."""

    def __init__(self, watch: Watch, file: BinaryIO) -> None:
        self._watch = watch
        self._file = file
        self._change = ""
        self._ended = False
        self._tail = b""
        """What was read last: a file that was rewritten in place has something else there."""

    def readline(self, limit: int) -> bytes:
        """Return the next line, at most `limit` bytes of it; empty at the end of the file."""
        held = b""
        while piece := self._next_piece(limit - len(held)):
            held += piece
            if held.endswith(b"\n") or len(held) >= limit:
                return held
        if held and not self._change:
            what = f"the last line of `{self._watch.path}` has no newline yet"
            self._watch.notify(f"{what}: it is left for the next run")
        # Everything written before a replacement has been read: an unfinished line stays unfinished.
        return held if self._change == _REPLACED else b""

    def _next_piece(self, limit: int) -> bytes:
        """Wait for more of a line, and return at most `limit` bytes of it; empty at the end of the file."""
        while not self._ended:
            self._change = self._change or self._lost()
            piece = self._file.readline(limit) if self._change in ("", _REPLACED) else b""
            if piece:
                self._tail = piece[-_TAIL:]
                self._watch.grown = time.monotonic()
                return piece
            if self._change:
                self._watch.notify(f"`{self._watch.path}` {self._change}: reading it from its beginning")
                self._ended = True
            else:
                self._change = self._watch.change(self._file)
                self._ended = not self._change and self._watch.wait()
        return b""

    def _lost(self) -> str:
        """Return `was cut` or `was rewritten` if what was read is no longer in the open file, else nothing."""
        descriptor, read = self._file.fileno(), self._file.tell()
        if os.fstat(descriptor).st_size < read:
            return "was cut"
        if not hasattr(os, "pread"):  # Windows
            return ""
        return "" if os.pread(descriptor, len(self._tail), read - len(self._tail)) == self._tail else "was rewritten"
