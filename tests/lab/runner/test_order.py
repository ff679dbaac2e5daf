"""`--order`: the same edits in another order are another run, and are paired by edit with the run in file order."""

from __future__ import annotations

import pytest

from more_cli.model.machine import Machine
from more_cli.runner.plan import RunOptions
from more_cli.runner.run import run_suite
from more_cli.suites.load import EditSuite, load_suite
from more_cli.text import canonical_json, finite
from more_lab.experiments.compare_results import Run, paired
from more_lab.sweep.trials import result_of
from support.helpers import World, line, run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("order") / "world")
    world.write([line(n, locality=[{"question": "is it a dog ?"}]) for n in range(5)])
    return world


def streamed(world: World, order: int, limit: int | None = 4):
    suite = load_suite(str(world.root / "edits.jsonl"))
    assert isinstance(suite, EditSuite)
    options = RunOptions(editor="none", order=order, limit=limit, cache=world.root / "cache")
    return run_suite(suite, world.model, options, Machine(dtype="float32"))


def test_every_order_has_the_first_edits_each_in_a_sequence_of_its_own(world: World) -> None:
    reports = [streamed(world, order) for order in (0, 1, 4, 7)]
    streams = [tuple(edit.id for edit in report.edits) for report in reports]
    assert streams[0] == ("e1", "e2", "e3", "e4")
    assert len(set(streams)) == 4
    assert {tuple(sorted(stream)) for stream in streams} == {streams[0]}
    assert [report.reproduce.get("order") for report in reports] == [None, 1, 4, 7], "older runs keep their keys"
    assert [report.work.resumed for report in reports] == [0] * 4, "none is read from another's cache"
    values = [{scores.id: scores.values() for scores in report.per_edit} for report in reports]
    assert values == [values[0]] * 4, "the base's answers are those of one batch, in whatever order"


def test_two_orders_are_paired_by_edit(world: World) -> None:
    one, other = (canonical_json(finite(result_of(streamed(world, order)))) for order in (0, 4))
    found = paired("file", Run.model_validate_json(one), "order 4", Run.model_validate_json(other))
    assert {(value.difference, value.n) for value in found.metrics.values()} == {(0.0, 4)}
    assert found.differ == ["edits", "order"]


def test_a_run_says_its_order(world: World) -> None:
    where = "--suite", world.root / "edits.jsonl", "--editor", "none", "--limit", 4, "--cache", world.root / "cache"
    shown = run("run", world.model, *where, "--dtype", "float32", "--order", 2)
    assert shown.code == 0, shown.err
    assert "edits, 4 edits in order 2 (the first of 5" in shown.out
    moved = run("eval", world.model, *where, "--order", 2)
    assert (moved.code, moved.err.splitlines()[0]) == (2, "error: `--editor` is an option of `more run`")
