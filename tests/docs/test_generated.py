"""Pages that are made from the code say what the code says, and every key of every JSON output is explained."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import generate
from generator import examples
from generator.outputs import FILES, RETIRED, example
from generator.schemas import definitions, printed
from more_cli.cli.output import Output
from more_cli.inputs.edits import EditLine, ProbeLine
from more_cli.outputs.base import Printed
from more_cli.outputs.states import GcOutput
from more_cli.store.entry import Entry
from more_cli.store.state import StateMeta
from support.paths import ROOT
from support.schemas import differences_of

OUTPUTS = printed()
AGAIN = "run `python docs/generate.py`"
PUBLISHED = json.loads((ROOT / "docs/schemas.json").read_text(encoding="utf-8"))


def test_generated_pages_are_up_to_date() -> None:
    assert generate.outdated() == [], AGAIN


@pytest.mark.parametrize("version", OUTPUTS)
def test_each_example_follows_its_type_and_its_schema(version: str) -> None:
    value = example(OUTPUTS[version].example)
    assert differences_of(OUTPUTS[version], value) == []
    Draft202012Validator(PUBLISHED).validate(value)


@pytest.mark.parametrize("model", [EditLine, ProbeLine, Entry, StateMeta])
def test_each_key_of_a_file_has_a_meaning(model: Any) -> None:
    assert all("description" in key for key in definitions(model)[model.__name__]["properties"].values())


def test_each_key_of_an_output_has_a_meaning_or_those_below_it_have() -> None:
    for name, part in PUBLISHED["$defs"].items():
        for key, value in part.get("properties", {}).items():
            assert {"description", "const"} & value.keys() or "#/$defs/_" in json.dumps(value), f"{name}: {key}"


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
    assert not OUTPUTS.keys() & RETIRED.keys()


def test_every_schema_in_the_code_is_published_or_retired() -> None:
    paths = [path for package in ("more_cli", "more_lab") for path in (ROOT / package).rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    printed = set(re.findall(r"\bmore\.[a-z.-]+/\d+", text))
    assert OUTPUTS.keys() <= printed
    assert printed <= OUTPUTS.keys() | RETIRED.keys() | FILES.keys()


def test_an_earlier_version_is_listed_for_every_later_one() -> None:
    """A schema whose number was raised says what changed."""
    for version in OUTPUTS:
        subject, _, number = version.partition("/")
        earlier = {f"{subject}/{n}" for n in range(1, int(number))}
        assert earlier <= RETIRED.keys() | OUTPUTS.keys(), f"add {earlier} to RETIRED in docs/generator/outputs.py"


# --- what the commands print ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"further": 1}, "'further' was unexpected"),
        ({"bytes": "12"}, "$.bytes: '12' is not of type 'integer'"),
        ({"files": {"a": None}}, "$.files.a: None is not of type 'integer'"),
        ({"bytes": ...}, "'bytes' is a required property"),
        ({"schema": "more.gc/99"}, "its schema is not more.gc/1"),
    ],
)
def test_an_output_must_have_the_keys_of_its_type_and_no_others(change: dict[str, Any], message: str) -> None:
    changed = {key: value for key, value in (example("gc") | change).items() if value is not ...}
    (found,) = differences_of(GcOutput, changed)
    assert message in found


def test_a_command_fails_in_any_test_if_its_output_is_not_as_documented() -> None:
    class Speed(Printed, schema="more.speed/1", command="more speed --json"):
        """How fast it is."""

        edits: float
        """edits a second"""

    Output().json(Speed(edits=float("nan")))  # prints nothing without --json
    with pytest.raises(AssertionError, match=re.escape("$.edits: None is not of type 'number'")):
        Output(as_json=True).json(Speed(edits=float("nan")))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_a_real_run_prints_every_schema_and_the_keys_of_the_examples(tmp_path: Path) -> None:
    seen = set()
    for name, value in examples.run(tmp_path, demo=False):
        output = OUTPUTS[value["schema"]]
        assert (name, differences_of(output, value)) == (output.example, [])
        seen.add(value["schema"])
        if name != "gc":
            shown = example(name)
            assert set(shown) == set(value), f"{name}: run `python docs/generate.py --examples`"
    assert OUTPUTS.keys() - seen == {"more.demo/2"}
