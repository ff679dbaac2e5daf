"""A state that an earlier version wrote opens, verifies and goes on."""

import json
import shutil
from pathlib import Path

import pytest

from more_cli.demo.files import demo_model_dir
from more_cli.recipe.files import data_folder
from support.helpers import run
from support.paths import DATA


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The embedded model beside a state of commit ef3bce7: seven edits, one reverted, one superseded, consolidated."""
    shutil.copytree(demo_model_dir(), tmp_path / "llava")
    shutil.unpack_archive(DATA / "state.tar.gz", tmp_path, filter="data")
    return tmp_path / "llava"


def test_a_state_with_a_key_that_is_gone_is_not_called_damaged(old: Path) -> None:
    state = old.parent / "llava.more"
    size = int.from_bytes(state.read_bytes()[:8], "little")
    header = json.loads(state.read_bytes()[8 : 8 + size])
    header["__metadata__"]["more"] = header["__metadata__"]["more"].replace('"cap":6.0', '"cap":5.0')
    data = json.dumps(header).encode()
    state.write_bytes(len(data).to_bytes(8, "little") + data + state.read_bytes()[8 + size :])
    said = run("status", old)
    assert said.code == 5
    assert "has `recipe.rehearsal.cap` = `5.0`, a key that this version of `more` does not have" in said.err
    assert "damaged" not in said.err


@pytest.mark.slow
def test_an_old_state_verifies_and_goes_on(old: Path) -> None:
    verified = run("verify", old, "--deep", "--json")
    assert verified.code == 0, verified.err
    assert {check["name"]: check["verdict"] for check in verified.json["checks"]}["replay"] == "ok"
    assert run("status", old, "--json").json["statuses"] == {"learnt": 5, "reverted": 1, "superseded": 1}
    stream = data_folder("sample_edits") / "edits.jsonl"
    edited = run("edit", old, stream, "--limit", 8, "--json")
    assert (edited.code, edited.json["applied"], edited.json["skipped"]) == (0, 2, 6), edited.err
    assert run("verify", old, "--json").code == 0
    assert run("merge", old, "-o", old.parent / "merged", "--json").json["edits"] == 7
