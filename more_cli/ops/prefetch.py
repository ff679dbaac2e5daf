"""Fetching the next edit while the current one is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

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
        self._worker: ThreadPoolExecutor | None = None
        self._next: Future[T] | None = None

    def start(self, prepare: Callable[[T], object], idle: Callable[[], object], patience: float) -> None:
        """Start to prefetch; `prepare` gets each item in the thread, `idle` runs in this thread every `patience` s."""
        self._prepare, self._idle, self._patience = prepare, idle, patience
        self._worker = ThreadPoolExecutor(1, "prefetch")
        self._next = self._worker.submit(self._fetch)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._worker is None or self._next is None:
            return next(self._items)
        item = self._result(self._next)
        self._next = self._worker.submit(self._fetch)
        return item

    def _fetch(self) -> T:
        item = next(self._items)
        self._prepare(item)
        return item

    def _result(self, future: Future[T]) -> T:
        while True:
            try:
                return future.result(self._patience)
            except TimeoutError:
                if future.done():  # its own
                    raise
                self._idle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        if self._worker is not None:
            self._worker.shutdown()
