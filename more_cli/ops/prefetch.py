"""Fetching the next edit while the current one is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """An iterator over items that, once started, fetches the next one in a thread while the last is worked on.

    No more than one is fetched ahead, so whoever sends them is held up as long as whoever takes them is. An error is
    raised where its item would have been taken. On leaving its block, `close` ends whatever the thread waits for.
    """

    def __init__(self, items: Iterable[T], close: Callable[[], object] = lambda: None) -> None:
        self._items = iter(items)
        self._close = close
        self._prepare: Callable[[T], object] = lambda item: None
        self._idle: Callable[[], object] = lambda: None
        self._patience: float | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._coming: Future[T] | None = None

    def start(self, prepare: Callable[[T], object], idle: Callable[[], object], patience: float) -> None:
        """Fetch ahead from now on; `prepare` sees each item in the thread, `idle` runs here every `patience` s."""
        self._prepare, self._idle, self._patience = prepare, idle, patience
        self._worker = ThreadPoolExecutor(1, "ahead")
        self._coming = self._worker.submit(self._fetch)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._worker is None or self._coming is None:
            return next(self._items)
        item = self._taken(self._coming)
        self._coming = self._worker.submit(self._fetch)
        return item

    def _fetch(self) -> T:
        item = next(self._items)
        self._prepare(item)
        return item

    def _taken(self, coming: Future[T]) -> T:
        while True:
            try:
                return coming.result(self._patience)
            except TimeoutError:
                if coming.done():  # its own
                    raise
                self._idle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        if self._worker is not None:
            self._worker.shutdown()
