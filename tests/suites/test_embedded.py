"""The mini suites of the package are unpacked once, in one step, into the cache."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from more_cli.errors import StateError
from more_cli.suites import embedded
from support.helpers import run

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "more" / "suites"


def test_a_suite_is_unpacked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded.suite_folder("e-ic-mini")
    assert folder.is_relative_to(cache)
    assert {"eval.json", "calibration.json", "images"} <= {path.name for path in folder.iterdir()}
    monkeypatch.setattr(embedded, "_unpack", lambda *_: pytest.fail("it is there"))
    assert embedded.suite_folder("e-ic-mini") == folder
    assert [path.name for path in folder.parent.iterdir()] == ["e-ic-mini"], "nothing else is left"


def test_two_processes_may_unpack_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def later(source: Path, target: Path) -> None:
        """Another process finishes just before."""
        monkeypatch.setattr(embedded.os, "rename", rename)
        embedded.suite_folder("mme-mini")
        rename(source, target)

    monkeypatch.setattr(embedded.os, "rename", later)
    folder = embedded.suite_folder("mme-mini")
    assert (folder / "color").is_dir()
    assert [path.name for path in folder.parent.iterdir()] == ["mme-mini"]


@pytest.mark.skipif(ROOT, reason="root may write everywhere")
def test_a_cache_that_is_not_writable_is_an_error_with_a_hint(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = run("suites", "show", "e-ic")
    tmp_path.chmod(0o700)
    assert done.code in (5, 6)
    assert "hint:" in done.err


def test_a_cache_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    done = run("suites", "show", "e-ic")
    assert done.code != 0
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_a_suite_that_cannot_be_moved_into_place_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(old: Path, new: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(embedded.os, "rename", failing)
    with pytest.raises(StateError, match=r"cannot use .*e-ic-mini"):
        embedded.suite_folder("e-ic-mini")
