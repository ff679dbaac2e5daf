"""Numbers of thousands of digits, wherever a number can be written: one error line, and no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from more_cli.cli.app import app
from more_cli.inputs.records import given
from support.helpers import QUICK, Result, World, line, run

DIGITS = "9" * 5000
HUGE = {"hex": "0x" + "f" * 5000, "decimal": DIGITS, "binary": "0b" + "1" * 20_000, "float": "1e5000"}
INSIDE = {**HUGE, "list": f"[{HUGE['hex']}]", "table": "{a = " + HUGE["hex"] + "}"}
"""Also as a part of a value of TOML."""
GRID = """
editors = ["ft-l"]
models = ["model"]
suites = ["edits.jsonl"]
limits = [1]
threads = 1
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("numbers") / "world", text_layers=1)
    world.write([line(0)])
    assert world.edit(*QUICK).code in (0, 3)
    return world


def assert_one_line(result: Result, code: int) -> None:
    assert (result.code, result.err.count("error: "), result.out) == (code, 1, ""), result.err[:1000]
    assert len(result.err) < 2_500, "the number is not repeated as a whole"
    assert "set_int_max_str_digits" not in result.err


def numeric_options() -> Iterator[tuple[str, ...]]:
    """Every command and option that takes a number."""
    group: Any = typer.main.get_command(app)
    for name in group.commands:
        command = group.commands[name]
        for inner, each in getattr(command, "commands", {"": command}).items():
            for option in each.params:
                takes = str(getattr(option.type_descriptor, "annotation", "")) if option.opts[0] != "--help" else ""
                if option.param_type_name == "option" and not option.count and ("int" in takes or "float" in takes):
                    yield *filter(None, (name, inner)), option.opts[0]


OPTIONS = list(numeric_options())


def test_there_are_options_to_try() -> None:
    assert {("edit", "--save-every"), ("log", "--limit"), ("run", "--order")} <= {
        (each[0], each[-1]) for each in OPTIONS
    }
    assert len(OPTIONS) > 30


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_every_option(words: tuple[str, ...]) -> None:
    for number in (*HUGE.values(), f"-{DIGITS}"):
        assert_one_line(run(*words, number), 2)


@pytest.mark.parametrize("number", INSIDE)
@pytest.mark.parametrize("key", ["max_steps", "rho", "last", "anchors.weight", "nokey"])
def test_every_setting(world: World, key: str, number: str) -> None:
    result = run("init", world.model, "--state", world.root / "no.more", "--set", f"{key}={INSIDE[number]}")
    assert result.code == 2
    assert_one_line(result, 2)


@pytest.mark.parametrize("number", INSIDE)
def test_settings_of_other_editors(world: World, number: str) -> None:
    suite = "--suite", world.root / "edits.jsonl"
    for key in ("rate", "steps"):
        setting = f"{key}={INSIDE[number]}"
        assert_one_line(run("run", world.model, *suite, "--editor", "ft-l", "--set", setting), 2)
        assert_one_line(run("compare", "ft-l", "none", "--model", world.model, *suite, "--set", f"ft-l:{setting}"), 2)


@pytest.mark.parametrize("number", INSIDE)
@pytest.mark.parametrize("key", ["max_steps", "rho", "anchors"])
def test_recipes(world: World, tmp_path: Path, key: str, number: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(f'extends = "default"\n{key} = {INSIDE[number]}\n')
    assert_one_line(run("recipes", "show", file), 2)
    assert_one_line(run("init", world.model, "--recipe", file, "--state", tmp_path / "no.more"), 2)


@pytest.mark.parametrize("number", ["hex", "decimal", "binary"])
@pytest.mark.parametrize("row", ["limits = [{}]", "threads = {}", "x = {}", '[settings]\n"ft-l:rate" = [{}]'])
def test_sweeps(world: World, row: str, number: str) -> None:
    file = world.root / "sweep.toml"
    name = row.partition(" ")[0]
    file.write_text(
        "".join(f"{line}\n" for line in GRID.splitlines() if not line.startswith(name)) + row.format(HUGE[number])
    )
    assert_one_line(run("sweep", file, "-o", world.root / "out"), 2)
    assert "more than 64 bits" in run("sweep", file, "-o", world.root / "out").err


@pytest.mark.parametrize("number", HUGE)
def test_gates_and_lists(world: World, number: str) -> None:
    text = HUGE[number]
    for metric in ("rel.gen_exact", "rel.target_nll", text):
        assert_one_line(run("eval", world.model, "--gate", f"{metric}>={text}"), 2)
    for marks in (text, f"1-{text}", f"{text}-{text}", "1-1000000000", "9" * 4000):
        for option in ("--checkpoints", "--lags"):
            assert_one_line(run("run", world.model, "--suite", world.root / "edits.jsonl", option, marks), 2)


@pytest.mark.parametrize("number", [DIGITS, f"-{DIGITS}", "1e5000"], ids=["decimal", "negative", "float"])
@pytest.mark.parametrize(
    "form",
    [
        '{{"question": "a", "target": {}}}',
        '{{"question": "a", "target": "b", "tags": {{"x": {}}}}}',
        '{{"question": "a", "target": "b", "portability": [{{"question": "a", "answer": "b", "hop": {}}}]}}',
        '[{{"question": "a", "target": {}}}]',
    ],
    ids=["text", "tag", "hop", "array"],
)
def test_lines_of_json(world: World, tmp_path: Path, form: str, number: str) -> None:
    file = tmp_path / "huge.jsonl"
    file.write_text(form.format(number))
    assert_one_line(run("edit", world.model, file, "--dry-run"), 4)
    assert_one_line(run("edit", world.model, "-", "--dry-run", stdin=file.read_bytes() + b"\n"), 4)
    assert_one_line(run("eval", world.model, "--probes", file), 4)
    assert_one_line(run("convert", file, "-o", tmp_path / "out.jsonl"), 4)


def test_values_of_python() -> None:
    (record,) = given([{"question": "a", "target": 10**5000}], "edits")
    assert record.problem is not None
    assert "set_int_max_str_digits" not in record.problem.text


@pytest.mark.parametrize("name", ["config.json", "processor_config.json", "tokenizer_config.json"])
def test_files_of_a_checkpoint(world: World, name: str) -> None:
    file = world.model / name
    honest = file.read_text()
    file.write_text('{"x": ' + DIGITS + ", " + honest.lstrip()[1:])
    try:
        assert_one_line(run("ask", world.model, "what ?"), 5)
    finally:
        file.write_text(honest)
