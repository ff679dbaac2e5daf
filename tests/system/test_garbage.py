"""The first search for garbage comes late, the next ones do not."""

import gc
from collections.abc import Iterator

import pytest

from more_cli.system.memory import FIRST, LATER, search_late


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    threshold, callbacks = gc.get_threshold(), gc.callbacks.copy()
    yield
    gc.set_threshold(*threshold)
    gc.callbacks[:] = callbacks


def test_only_the_first_search_is_put_off() -> None:
    older, callbacks = gc.get_threshold()[1:], len(gc.callbacks)
    search_late()
    assert gc.isenabled()
    assert gc.get_threshold() == (FIRST, *older)
    gc.collect(0)
    assert gc.get_threshold() == (LATER, *older)
    assert len(gc.callbacks) == callbacks
