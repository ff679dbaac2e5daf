"""The short form of the fault harness finds no problem in `more`, and finds those of a careless version."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from faults import fuzz, kill, outputs, parsers, power
from faults.run import SHORT, Part, parts
from faults.stream import Stream
from faults.tally import Problem, Tally, page
from more_cli import files
from more_cli.errors import MoreError
from support.helpers import forks

NAMES = tuple(parts(SHORT, 0, Path()))


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Part]:
    return parts(SHORT, 0, tmp_path_factory.mktemp("faults"))


def resident() -> int:
    """Return the MiB that this process holds, which is more the more tests it has run."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20 if pages.exists() else 0


@forks
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_fault_does_harm(harness: dict[str, Part], name: str) -> None:
    if name == "fuzz":
        pytest.importorskip("atheris", reason="the fuzzer is built for few platforms")
    tally = Tally(inherited=resident())
    harness[name](tally)
    assert not tally.found, tally.found
    assert tally.parts or tally.notes


def test_the_corpus_is_read_or_refused(tmp_path: Path) -> None:
    """What the fuzzer has kept, without the fuzzer; the files of a state are only seeds, and may be empty."""
    (tmp_path / "empty").touch()
    readers = parsers.parsers(*[tmp_path / "empty"] * 4)
    assert {fuzz.corpus_file(parser.name) for parser in readers} == set(fuzz.CORPUS.iterdir())
    for parser in readers:
        for data in fuzz.kept(parser.name):
            with suppress(MoreError):
                parser.read(data)
    assert sum(path.stat().st_size for path in fuzz.CORPUS.iterdir()) < 200_000
    shutil.rmtree(parsers.scratch())
    parsers.scratch.cache_clear()


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    return Stream(tmp_path_factory.mktemp("careless"), 2, 1)


def _no_sync(_: int) -> None:
    """Do not sync: the system decides when a file reaches the disk."""


@forks
@pytest.mark.slow
def test_a_missing_sync_is_found(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    monkeypatch.setattr(files, "_fsync", _no_sync)
    power.at_every_step(stream, tally, 12, 0)
    assert tally.total(power.PART).problems["wrong state"]


@forks
@pytest.mark.slow
def test_a_line_that_is_not_cut_off_is_found(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    monkeypatch.setattr("more_cli.store.ledger.cut", lambda fd, size: None)
    kill.at_every_step(stream, tally, 24, 0)
    assert tally.total(kill.HALVES).problems


@contextmanager
def _in_place(path: Path, *_: object, **__: object) -> Iterator[Path]:
    """Write a folder where it belongs, file by file."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    yield path


@forks
@pytest.mark.slow
def test_an_output_that_is_written_in_place_is_found(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    monkeypatch.setattr("more_cli.ops.merge.replacing_directory", _in_place)
    outputs.at_every_step(stream, tally, 3, 0)
    assert tally.total(outputs.PART).problems["wrong state"]


def test_the_page_says_what_was_found() -> None:
    tally = Tally()
    tally.add("a part", "a kind", count=1200, seconds=0.5, peak=100)
    tally.add("a part", "another", [Problem("lost edit", "e1")], seconds=11, peak=2000)
    text = page(tally, "command", "facts")
    assert "| a part | 1,201 | 1 | 0 | 0 | 1 | 1 | 0 | 0 | 11.00 | 2000 |" in text
    assert "- a part, another: lost edit: e1" in text
    assert "- a part, another: hang: 11.0 s" in text
