"""`--fetch`: a model is downloaded when asked, by the real client, from a stand-in of the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

from support.helpers import QUICK, World, run, tree
from support.hub import Hub, hub_here

REPO, FIRST, SECOND = "org/tiny", "1" * 40, "2" * 40


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "world")
    made.edits(1)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return made


@pytest.fixture
def hub(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (world.model / "pytorch_model.bin").write_bytes(b"a pickle")
    (world.model / "modeling_tiny.py").write_text("raise SystemExit")
    (world.model / "original").mkdir()
    (world.model / "original" / "other.safetensors").write_bytes(b"the weights once more")
    with hub_here(tmp_path / "cache", monkeypatch) as found:
        found.add(REPO, world.model, FIRST)
        yield found


def test_without_fetch_nothing_is_asked_and_the_hint_names_it(hub: Hub, world: World) -> None:
    for command in (["init", REPO], ["edit", REPO, world.root / "edits.jsonl"], ["eval", REPO], ["status", REPO]):
        result = run(*command)
        assert (result.code, hub.asked) == (5, [])
        assert f"{REPO}: no such directory" in result.err
        assert "nothing is fetched" in result.err
        assert "--fetch" in result.err
    assert "--fetch downloads an id on the hub" in run("ask", REPO, "what ?").err
    assert hub.asked == []


def test_a_gate_that_is_none_is_named_before_anything_is_fetched(hub: Hub) -> None:
    result = run("eval", REPO, "--fetch", "--gate", "rel.gen_exact")
    assert (result.code, hub.asked) == (2, []), result.err
    assert "rel.gen_exact" in result.err


def test_weights_and_tokenizer_are_fetched_and_neither_pickles_nor_code(hub: Hub, world: World) -> None:
    result = run("init", REPO, "--fetch")
    assert result.code == 0, result.err
    (folder,) = Path(constants.HF_HUB_CACHE).glob(f"models--org--tiny/snapshots/{FIRST}")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"pytorch_model.bin", "modeling_tiny.py", "original/other.safetensors"}
    assert not any("pytorch_model" in each or "modeling" in each for each in hub.asked)
    assert json.loads(Path("tiny.more.d/hub.json").read_text()) == {
        "schema": "more.hub/1", "repo": REPO, "commit": FIRST
    }  # fmt: skip


def test_a_state_has_the_bytes_of_one_of_a_local_folder_and_no_hub_there(hub: Hub, world: World) -> None:
    assert run("edit", REPO, world.root / "edits.jsonl", "--fetch", *QUICK).code == 3
    for name in ("pytorch_model.bin", "modeling_tiny.py"):
        (world.model / name).unlink()
    assert world.edit(*QUICK).code == 3
    assert Path("tiny.more").read_bytes() == world.sidecar.read_bytes()
    assert not (world.folder / "hub.json").exists()
    assert run("status", world.model, "--json").json["hub"] is None


def test_later_commands_need_no_model_and_no_network(hub: Hub, world: World) -> None:
    assert run("edit", REPO, world.root / "edits.jsonl", "--fetch", *QUICK).code == 3
    hub.asked.clear()
    assert run("status", "--json").json["hub"] == {"repo": REPO, "commit": FIRST}
    assert f"{REPO}@{FIRST}" in run("status").out
    assert run("merge", "-o", "merged").code == 0
    assert hub.asked == []
    assert json.loads(Path("merged/more.json").read_text())["hub"] == {"repo": REPO, "commit": FIRST}
    card = Path("merged/README.md").read_text()
    assert f"`{REPO}@{FIRST}`" in card
    assert "base_model: org/tiny" in card


def test_the_state_decides_the_commit(hub: Hub, world: World) -> None:
    assert run("init", REPO, "--fetch").code == 0
    (world.model / "README.md").write_text("another commit")
    hub.add(REPO, world.model, SECOND)
    assert run("status", REPO, "--fetch", "--json").json["hub"]["commit"] == FIRST
    refused = run("status", REPO, "--fetch", "--revision", "main")
    assert (refused.code, refused.err.count("\n")) == (5, 2)
    assert f"was made from {REPO}@{FIRST}, not from {REPO}@{SECOND}" in refused.err
    other = run("init", REPO, "--fetch", "--revision", SECOND, "--state", "other.more")
    assert other.code == 0, other.err
    assert json.loads(Path("other.more.d/hub.json").read_text())["commit"] == SECOND


def test_eval_and_ask_fetch_too(hub: Hub, world: World) -> None:
    asked = run("ask", REPO, "what is it ?", "--fetch", "--json")
    assert asked.code == 0, asked.err
    assert asked.json["question"] == "what is it ?"
    assert run("edit", REPO, world.root / "edits.jsonl", "--fetch", *QUICK).code == 3
    assert run("eval", REPO, "--fetch", "--json").json["schema"].startswith("more.eval/")


def test_a_folder_is_used_as_it_is(hub: Hub, world: World) -> None:
    assert run("init", world.model, "--fetch").code == 0
    assert hub.asked == []
    refused = run("status", world.model, "--fetch", "--revision", "main")
    assert (refused.code, hub.asked) == (2, [])
    assert run("status", world.model, "--revision", "main").code == 2


@pytest.mark.parametrize(
    ("spoil", "options", "says", "hint"),
    [
        ("gone", [], "the hub has no org/none", "hf auth login"),
        ("gated", [], "org/tiny is gated", "ask for it"),
        ("revision", ["--revision", "v9"], "org/tiny has no revision `v9`", "--revision"),
        ("offline", [], "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"),
        ("unreachable", [], "cannot be reached", "check the network"),
    ],
)
def test_an_error_of_the_hub_is_one_line_with_a_hint(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, spoil: str, options: list[str], says: str, hint: str
) -> None:
    if spoil == "gated":
        hub.gated.add(REPO)
    if spoil == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if spoil == "unreachable":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    before = tree(Path())
    result = run("init", "org/none" if spoil == "gone" else REPO, "--fetch", *options)
    error, hinted = result.err.splitlines()[-2:]
    assert result.code == 5
    assert error.startswith("error: ")
    assert says in error
    assert hinted.startswith("hint: ")
    assert hint in hinted
    assert tree(Path()) == before


def test_offline_finds_what_was_fetched_before(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("init", REPO, "--fetch").code == 0
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run("status", REPO, "--fetch", "--json").json["hub"]["commit"] == FIRST
    assert hub.asked == []


@pytest.mark.slow
def test_a_process_reads_endpoint_and_cache_from_its_environment(hub: Hub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "another")}
    command = [sys.executable, "-m", "more_cli", "init", REPO, "--fetch", "--no-anchors", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"].startswith("more.init/")
    assert (tmp_path / "another" / "models--org--tiny" / "snapshots" / FIRST / "config.json").exists()
