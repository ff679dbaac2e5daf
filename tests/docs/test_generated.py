"""Pages that are made from the code say what the code says, and every key of every JSON output is explained."""

from pathlib import Path
from typing import Any

import pytest

import generate
from generator import examples
from generator.outputs import KEYS, example, unknown_keys
from more_cli.inputs.edits import EditLine, ProbeLine
from more_cli.store.entry import Entry
from more_cli.store.state import SiteRecord, StateMeta

AGAIN = "run `python docs/generate.py`"


def test_generated_pages_are_up_to_date() -> None:
    assert generate.outdated() == [], AGAIN


def schema_of(name: str, value: dict[str, Any]) -> str:
    suffix = " of a suite" if name == "eval.suite" else ""
    return f"{value['schema']}{suffix}"


@pytest.mark.parametrize("schema", KEYS["schemas"])
def test_each_example_has_its_schema_and_known_keys(schema: str) -> None:
    name = KEYS["schemas"][schema]["example"]
    assert schema_of(name, example(name)) == schema
    assert unknown_keys(schema, example(name)) == []


@pytest.mark.parametrize(
    ("name", "model"), [("edit_line", EditLine), ("probe_line", ProbeLine), ("ledger", Entry), ("state", StateMeta)]
)
def test_each_file_format_has_every_field(name: str, model: Any) -> None:
    assert set(KEYS[name]) == set(model.model_fields)
    assert set(SiteRecord.model_fields) <= set(KEYS["shared"]["site"]["keys"])


@pytest.mark.slow
def test_a_real_run_prints_the_keys_that_are_documented(tmp_path: Path) -> None:
    seen = set()
    for name, value in examples.run(tmp_path, demo=False):
        schema = schema_of(name, value)
        seen.add(schema)
        assert unknown_keys(schema, value) == [], name
        if name != "gc":
            shown = example(name)
            assert set(shown) == set(value), f"{name}: run `python docs/generate.py --examples`"
    assert seen == KEYS["schemas"].keys() - {"more.demo/1"}
