"""A disk that is full while the page keeps a picture or applies a correction: one sentence, and nothing is lost."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from more_cli.files import sha256_bytes
from more_cli.ops.snapshots import Snapshots
from support.disk import fail_at, raising
from support.helpers import run

SAID = "no space left on device"


def full_at_every_step(monkeypatch: pytest.MonkeyPatch, action: Callable[[int], str]) -> int:
    """Refuse one step after another until none is left; returns how many there were. The page names each."""
    for step in itertools.count(1):
        with monkeypatch.context() as patch:
            calls = fail_at(patch, step, raising(errno.ENOSPC))
            shown = action(step)
        if len(calls) < step:
            assert SAID not in shown
            return step - 1
        assert SAID in shown, calls
    raise AssertionError


def test_an_upload(page, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (page.world.root / "img" / "purple.png").read_bytes()
    steps = full_at_every_step(monkeypatch, lambda _: page.post("/draft", upload=("a.png", data, "image/png")).text)
    assert steps
    assert [path.name for path in Path(page.uploads).iterdir()] == [sha256_bytes(data)]


def test_applying(page, monkeypatch: pytest.MonkeyPatch) -> None:
    before = page.ledger
    # A snapshot that finds no space is left out and said nowhere: the edit stands without it.
    monkeypatch.setattr(Snapshots, "take", lambda snapshots: None)

    def apply(step: int) -> str:
        return page.result(page.post("/draft", do="apply", id=f"n{step}", question=f"what {step} ?", target="x")).text

    steps = full_at_every_step(monkeypatch, apply)
    assert steps >= 3
    assert page.ledger.startswith(before)
    assert page.ledger.endswith(b"\n")
    assert f'"id":"n{steps + 1}"'.encode() in page.ledger
    assert run("verify", page.world.model, "--deep").code == 0
    assert not list(page.world.root.rglob(".*"))
