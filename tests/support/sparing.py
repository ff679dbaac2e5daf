"""What the tests of commands spare: to load the same files again, and to wait for answers that do not end.

A command of these tests loads a tiny model, which takes longer than what it does with it. So one that was loaded is
kept, and each command gets a copy of its own. The files decide, byte for byte: of a folder that has changed nothing is
taken from before (`tests/ops/test_sparing.py`). How a checkpoint is loaded is shown in `tests/model` and
`tests/checkpoint`, where nothing is kept, and by every test that runs a real process.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from more_cli.checkpoint.reader import Checkpoint
from more_cli.editors import anchors
from more_cli.evaluation import probes
from more_cli.model import loading
from more_cli.ops import commit, plan, snapshots

KEPT = 24
"""Most models, models without weights and processors that are kept: some tests make dozens of checkpoints."""
_KEPT: dict[tuple[object, ...], Any] = {}


@pytest.fixture(scope="module", autouse=True)
def loaded_once() -> Iterator[None]:
    """Keep what is loaded, for the tests of a module and for those after them."""
    build, process, auto_class = loading.meta_model, loading.load_processor, loading.auto_class

    def meta_model(checkpoint: Checkpoint) -> Any:
        return _copied(("meta", _digest(checkpoint.path)), lambda: build(checkpoint))

    def load_processor(path: Path) -> Any:
        found = _copied(("processor", _digest(path)), lambda: process(path))
        found.tokenizer.name_or_path = str(path)  # where a message says that a file is
        return found

    def kept_class(checkpoint: Checkpoint) -> Any:
        kind = auto_class(checkpoint)
        return kind if checkpoint.scheme else _Kept(kind)

    with pytest.MonkeyPatch.context() as patch:
        for module in (loading, plan):
            patch.setattr(module, "meta_model", meta_model)
        patch.setattr(loading, "load_processor", load_processor)
        patch.setattr(loading, "auto_class", kept_class)
        yield


@pytest.fixture(scope="module", autouse=True)
def short_answers() -> Iterator[None]:
    """Let answers be cut off early: a model with random weights never ends one, so all would be as long as they may."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors, "ANSWER_TOKENS", 4)
        for module in (commit, probes):
            patch.setattr(module, "SPARE_TOKENS", 2)
        yield


@pytest.fixture(scope="module", autouse=True)
def small_states() -> Iterator[None]:
    """Take a snapshot before every edit, as of a small state, however little time an edit takes here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "BYTES_A_SECOND", 1e15)
        yield


class _Kept:
    """A class of transformers that loads the same files in the same way once."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def from_pretrained(self, path: Path, **options: Any) -> Any:
        """Load, or copy what was loaded."""
        load = self._kind.from_pretrained
        if "device_map" in options or "output_loading_info" in options:  # hooks hold the model that they were made for
            return load(path, **options)
        how = getattr(load, "__func__", load)  # a test may put another in its place
        key = ("weights", _digest(path), self._kind, how, *sorted(map(repr, options.items())))
        return _copied(key, lambda: load(path, **options))


def _copied(key: tuple[object, ...], make: Callable[[], Any]) -> Any:
    if key not in _KEPT:
        if len(_KEPT) == KEPT:
            del _KEPT[next(iter(_KEPT))]  # the oldest
        # A copy, since loaded weights lie in the mapped file, which a later test may cut short: reading them would end
        # the process.
        _KEPT[key] = copy.deepcopy(make())
    return copy.deepcopy(_KEPT[key])


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file():
            data = file.read_bytes()
            found.update(f"{file.name} {len(data)} ".encode() + data)
    return found.hexdigest()
