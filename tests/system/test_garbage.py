"""The first search for garbage comes late, the next ones do not, and the last one does not come."""

import gc
import sys
from collections.abc import Iterator

import pytest

from more_cli.system.memory import FIRST, LATER, leave_garbage, search_late


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    threshold, callbacks = gc.get_threshold(), gc.callbacks.copy()
    yield
    gc.set_threshold(*threshold)
    gc.callbacks[:] = callbacks
    gc.unfreeze()


def test_only_the_first_search_is_put_off() -> None:
    older, callbacks = gc.get_threshold()[1:], len(gc.callbacks)
    search_late()
    assert gc.isenabled()
    assert gc.get_threshold() == (FIRST, *older)
    gc.collect(0)
    assert gc.get_threshold() == (LATER, *older)
    assert len(gc.callbacks) == callbacks


def test_a_process_that_ends_leaves_its_garbage_unless_triton_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()
    monkeypatch.setitem(sys.modules, "triton", sys)
    leave_garbage()
    assert gc.get_freeze_count() == 0
    monkeypatch.delitem(sys.modules, "triton")
    leave_garbage()
    assert gc.get_freeze_count() > 0
