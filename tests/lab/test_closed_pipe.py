"""Standard output that nobody reads: what the commands of the laboratory were asked to write is there all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.helpers import QUICK, World, line, run, run_unread

SAVED = "output pipe closed; finished work is saved"
GRID = """
editors = ["none"]
models = ["model"]
suites = ["edits.jsonl"]
limits = [1]
checkpoints = [1]
threads = 1
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two edits on a tiny model, a copy of E-VQA, a grid, and a kept run."""
    world = World(tmp_path_factory.mktemp("pipe") / "world")
    world.write([line(n, rephrases=["which colour ?"]) for n in range(2)])
    world.mmedit(1)
    (world.root / "grid.toml").write_text(GRID)
    suite = "--suite", world.root / "edits.jsonl", "--editor", "none", "--keep", world.root / "kept"
    assert run("run", world.model, *suite, "--cache", world.root / "cache").code == 0
    return world


def words(world: World, name: str, out: Path) -> tuple[tuple[object, ...], list[str]]:
    """A command, and the files that it must write into a folder."""
    edits, cache = world.root / "edits.jsonl", ("--cache", world.root / "cache")
    report, reports = ("--report", out / "a.html", "--report", out / "b.md"), ["a.html", "b.md"]
    vqa = "--data-root", world.root / "mmedit", "--image-root", world.root, "--checkpoints", "1", "--editor", "none"
    return {
        "run": (("run", world.model, "--suite", edits, "--editor", "none", *cache, *report), reports),
        "compare": (("compare", "none", "ft-l", "--suite", edits, "--model", world.model, *cache, *report), reports),
        "reproduce": (("reproduce", "table-1", world.model, *vqa, *cache, *report), reports),
        "bench": (("bench", world.model, edits, *QUICK, "--plot", out / "bench.svg"), ["bench.svg"]),
        "analyze": (("analyze", "all", "--run", world.root / "kept", "-o", out, "--no-figures"), ["index.html"]),
        "sweep": (("sweep", world.root / "grid.toml", "-o", out, *cache), ["results.jsonl", "report.html"]),
    }[name]


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("name", ["run", "compare", "reproduce", "bench", "analyze", "sweep"])
def test_everything_is_written(world: World, tmp_path: Path, name: str, json: bool) -> None:
    if name == "bench":
        pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    out.mkdir()
    command, files = words(world, name, out)
    result = run_unread(*command, *["--json"] * json)
    assert (result.code, result.err.splitlines()[-1]) == (130, SAVED), result.err
    assert [(out / file).stat().st_size > 0 for file in files] == [True] * len(files)
