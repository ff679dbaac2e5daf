"""Pages that are made from the code say what the code says, and every key of every JSON output is explained."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import generate
from generator import examples
from generator.outputs import example
from generator.schemas import KEYS, rows_of, type_schema, variants, version_of
from more_cli.cli.output import Output
from more_cli.inputs.edits import EditLine, ProbeLine
from more_cli.store.entry import Entry
from more_cli.store.state import SiteRecord, StateMeta
from support.paths import ROOT
from support.schemas import differences

AGAIN = "run `python docs/generate.py`"
PUBLISHED = json.loads((ROOT / "docs/schemas.json").read_text(encoding="utf-8"))


def test_generated_pages_are_up_to_date() -> None:
    assert generate.outdated() == [], AGAIN


@pytest.mark.parametrize("name", KEYS["schemas"])
def test_each_example_follows_its_schema(name: str) -> None:
    value = example(KEYS["schemas"][name]["example"])
    assert value["schema"] == version_of(name)
    assert differences(value) == []
    Draft202012Validator(PUBLISHED).validate(value)


@pytest.mark.parametrize(("name", "model"), [("edit_line", EditLine), ("probe_line", ProbeLine)])
def test_each_line_of_a_file_has_every_field(name: str, model: Any) -> None:
    assert set(KEYS[name]) == set(model.model_fields)


@pytest.mark.parametrize(("name", "model"), [("ledger", Entry), ("state", StateMeta), ("site", SiteRecord)])
def test_each_stored_format_has_every_field(name: str, model: Any) -> None:
    only_on_disk = {"site": {"dtype"}}
    assert set(rows_of(KEYS["shared"][name])) - only_on_disk.get(name, set()) == set(model.model_fields)


# --- the published schemas ---


def test_readers_may_meet_further_keys_but_no_other_type() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    reader = Draft202012Validator(PUBLISHED)
    value = example("edit")
    assert reader.is_valid(value | {"new": 1})
    assert not reader.is_valid(value | {"total": "3"})
    assert not reader.is_valid(value | {"edits": [example("edit")["edits"][0] | {"writes": None}]})
    assert not reader.is_valid({key: item for key, item in value.items() if key != "total"})
    assert not reader.is_valid(value | {"schema": "more.other/1"})


def test_every_schema_has_a_version_and_no_retired_one_is_printed() -> None:
    assert all(
        re.fullmatch(r"more\.[a-z.-]+/[1-9]\d*", version) for version in PUBLISHED["properties"]["schema"]["enum"]
    )
    assert not KEYS["schemas"].keys() & KEYS["retired"].keys()


def test_every_schema_in_the_code_is_published_or_retired() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "more_cli").rglob("*.py"))
    printed = set(re.findall(r"\bmore\.[a-z.-]+/\d+", text))
    published = set(map(version_of, KEYS["schemas"]))
    assert published <= printed
    assert printed <= published | set(map(version_of, KEYS["retired"])) | set(KEYS["files"])


def test_an_earlier_version_is_listed_for_every_later_one() -> None:
    """A schema whose number was raised says what changed."""
    for name in KEYS["schemas"]:
        subject, _, number = version_of(name).partition("/")
        earlier = {f"{subject}/{n}" for n in range(1, int(number))}
        assert earlier <= set(map(version_of, KEYS["retired"])), f"add {earlier} to [retired] in keys.toml"


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        ("list of text", {"type": "array", "items": {"type": "string"}}),
        ("integer or null", {"type": ["integer", "null"]}),
        ("map of list of number", {"type": "object", "additionalProperties": type_schema("list of number")}),
        ("@score or null", {"anyOf": [{"$ref": "#/$defs/score"}, {"type": "null"}]}),
    ],
)
def test_a_type_in_words_is_a_schema(words: str, schema: dict[str, Any]) -> None:
    assert type_schema(words) == schema


@pytest.mark.parametrize("word", ["string", "@scores", "optional text"])
def test_an_unknown_word_is_not_a_type(word: str) -> None:
    with pytest.raises(ValueError, match=f"no type `{word}`"):
        type_schema(f"list of {word}")


# --- what the commands print ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"further": 1}, "'further' was unexpected"),
        ({"bytes": "12"}, "$.bytes: '12' is not of type 'integer'"),
        ({"files": {"a": None}}, "$.files.a: None is not of type 'integer'"),
        ({"bytes": ...}, "'bytes' is a required property"),
        ({"bytes": float("nan")}, "$.bytes: None is not of type 'integer'"),
    ],
)
def test_a_command_fails_in_any_test_if_its_output_is_not_as_documented(
    change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    documented = {key: value for key, value in example("gc").items() if key != "schema"}
    Output(as_json=True).json("more.gc/1", documented)
    changed = {key: value for key, value in (documented | change).items() if value is not ...}
    Output().json("more.gc/1", changed)  # prints nothing without --json
    with pytest.raises(AssertionError, match=re.escape(message)):
        Output(as_json=True).json("more.gc/1", changed)


def test_a_command_fails_in_any_test_if_its_schema_is_not_published() -> None:
    with pytest.raises(AssertionError, match=r"more\.gc/99: no such schema"):
        Output(as_json=True).json("more.gc/99", {})


@pytest.mark.slow
def test_a_real_run_prints_every_schema_and_the_keys_of_the_examples(tmp_path: Path) -> None:
    seen = set()
    for name, value in examples.run(tmp_path, demo=False):
        (schema,) = [one for one in variants(value["schema"]) if KEYS["schemas"][one]["example"] == name]
        seen.add(schema)
        assert differences(value) == [], name
        if name != "gc":
            shown = example(name)
            assert set(shown) == set(value), f"{name}: run `python docs/generate.py --examples`"
    assert {name for name in KEYS["schemas"] if name not in seen} == {"more.demo/2"}
