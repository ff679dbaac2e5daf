"""Fetching the next edit while the current one is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, NoReturn, Self, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """An iterator that, once started, fetches the next item in a thread while the last one is processed.

    It fetches one item ahead and no more, so the sender waits while the receiver works. An error is raised at the
    place of its item. On leaving the `with` block, `close` ends the wait of the thread.
    """

    def __init__(self, items: Iterable[T], close: Callable[[], object] = lambda: None) -> None:
        self._items = iter(items)
        self._close = close
        self._prepare: Callable[[T], object] = lambda item: None
        self._idle: Callable[[], object] = lambda: None
        self._patience: float | None = None
        self._worker: Thread | None = None
        # A signal may raise at any line of the receiver. A Future or a Queue can keep its lock then, and the worker
        # would wait for it for ever; these queues cannot.
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._fetched: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def start(self, prepare: Callable[[T], object], idle: Callable[[], object], patience: float) -> None:
        """Start to prefetch; `prepare` gets each item in the thread, `idle` runs in this thread every `patience` s."""
        self._prepare, self._idle, self._patience = prepare, idle, patience
        self._worker = Thread(target=self._work, name="prefetch", daemon=True)
        self._worker.start()
        self._wanted.put(True)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._worker is None:
            return next(self._items)
        give = self._wait()
        try:
            item = give()
        except BaseException:
            self._fetched.put(give)  # an iterator that has ended says so whenever it is asked
            raise
        self._wanted.put(True)
        return item

    def _wait(self) -> Callable[[], T]:
        while True:
            try:
                return self._fetched.get(timeout=self._patience)
            except Empty:
                self._idle()

    def _work(self) -> None:
        while self._wanted.get():
            self._fetched.put(self._fetch())

    def _fetch(self) -> Callable[[], T]:
        """Return what gives the next item, or raises what was raised instead."""
        try:
            item = next(self._items)
            self._prepare(item)
        except BaseException as error:
            return _raising(error)
        return lambda: item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        if self._worker is not None:
            self._wanted.put(False)
            self._worker.join()


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def again() -> NoReturn:
        raise error

    return again
