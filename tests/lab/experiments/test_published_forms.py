"""`more:paper` and `more:authors` by name: they run on a suite, and differ from `more` in what their recipes say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.core import recursion
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.inputs.edits import read_edits
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from support.helpers import World, line, run
from support.tiny_families import FAMILIES, tiny_family


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("published") / "world", text_layers=4)
    world.write([line(n, locality=[{"question": "is it a dog ?"}]) for n in range(3)])
    return world


@pytest.fixture(scope="module")
def runtime(world: World) -> Runtime:
    return load_runtime(open_checkpoint(world.model), Machine(dtype="float32"))


def made(world: World, name: str, *settings: str) -> MoreEditor:
    editor = entry_of(name).make(EditorOptions(world.model, settings=settings))
    assert isinstance(editor, MoreEditor)
    return editor


def suite(world: World, editor: str, *options: object) -> dict[str, Any]:
    where = "--cache", world.root / editor.replace(":", "-"), "--dtype", "float32", "--json"
    result = run("run", world.model, "--suite", world.root / "edits.jsonl", "--editor", editor, *where, *options)
    assert result.code == 0, result.err
    return result.json


def keys(world: World, editor: str) -> dict[str, int]:
    """How many keys the P of every site had absorbed at the end of a run."""
    (state,) = (world.root / editor.replace(":", "-")).glob("runs/*/state.safetensors")
    with safe_open(state, framework="pt") as file:
        notes = json.loads(file.metadata()["more"])["notes"]
    return {site["name"]: site["keys"] for site in notes["sites"]}


def test_the_paper_writes_once_an_edit_and_absorbs_its_key(world: World) -> None:
    result = suite(world, "more:paper")
    assert [edit["outcome"]["writes"] for edit in result["stream"]] == [1, 1, 1]
    absorbed = keys(world, "more:paper")
    assert set(absorbed.values()) == {3}
    assert not any("ffn_in" in name or "up_proj" in name or "gate_proj" in name for name in absorbed)
    constants = result["reproduce"]["constants"]
    assert (constants["default"]["step"], constants["default"]["lambda"]) == (0.1, 2000.0)


def test_the_authors_write_five_times_an_edit_in_some_groups(world: World) -> None:
    result = suite(world, "more:authors")
    assert [edit["outcome"]["writes"] for edit in result["stream"]] == [5, 5, 5]
    absorbed = keys(world, "more:authors")
    assert max(absorbed.values()) == 15, "P gets the key of every write"
    assert any("up_proj" in name for name in absorbed)
    assert not any("gate_proj" in name for name in absorbed)


def test_more_stops_when_an_edit_holds(world: World) -> None:
    """Unlike both published forms, `more` checks before it writes, and its step follows the loss."""
    result = suite(world, "more", "--set", "max_steps=30")
    assert {edit["outcome"]["status"] for edit in result["stream"]} == {"learnt"}
    constants = result["reproduce"]["constants"]
    assert (constants["default"]["step"], constants["criterion"]) == ("polyak", "margin")
    for name in ("more:paper", "more:authors"):
        other = made(world, name).recipe
        assert (other.stop_early, other.halvings, other.rehearsal.size, other.anchors.used) == (False, 0, 0, False)


def first_write(world: World, runtime: Runtime, editor: MoreEditor) -> dict[str, torch.Tensor]:
    (edit, *_) = read_edits(world.root / "edits.jsonl").edits
    with editor.attach(runtime):
        editor.edit(EditRequest.of(edit), EditContext())
    return editor.state_dict()


def test_the_printed_p_0_makes_the_first_step_smaller_by_1_plus_lambda(world: World, runtime: Runtime) -> None:
    """P_0 = I / (1 + lambda) as printed, P_0 = I as coded: with eta fixed, the writes differ by exactly that factor."""
    coded = first_write(world, runtime, made(world, "more:paper"))
    printed = first_write(world, runtime, made(world, "more:paper", "normalisation=paper"))
    for name, value in coded.items():
        if name.endswith(".B"):
            assert value.abs().max() > 0
            torch.testing.assert_close(printed[name] * 2001, value, atol=1e-6, rtol=1e-4)
    rank = made(world, "more:paper").records[0].rank
    torch.testing.assert_close(recursion.initial(rank, 2000.0, "paper") * 2001, torch.eye(rank, dtype=torch.float64))


def test_the_printed_step_is_eta_whatever_the_loss(world: World, runtime: Runtime) -> None:
    """A fixed eta: twice the eta is twice the write; a Polyak step has no eta."""
    once = first_write(world, runtime, made(world, "more:paper"))
    twice = first_write(world, runtime, made(world, "more:paper", "default.step=0.2"))
    for name, value in once.items():
        if name.endswith(".B"):
            torch.testing.assert_close(twice[name], 2 * value, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("form", ["paper", "authors", "strict"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_sites_for_every_form(
    tmp_path_factory: pytest.TempPathFactory, family: str, form: str
) -> None:
    model = family_folder(tmp_path_factory, family)
    editor = entry_of(f"more:{form}").make(EditorOptions(model))
    assert isinstance(editor, MoreEditor)
    groups = {record.group for record in editor.records}
    text = {"text.ffn_out"} if form == "paper" else {"text.ffn_out", "text.ffn_in"}
    assert groups == text | ({"projector"} if family != "gemma3" else set())
    said = "; ".join(editor.notices)
    assert ("the paper published no constants" in said) == (family.split()[0] not in ("blip-2", "qwen2_vl", "qwen3_vl"))
    assert ("nothing to edit in projector" in said) == (family == "gemma3")
    assert "`more recipes show" in said


@pytest.mark.parametrize("form", ["paper", "authors"])
def test_a_family_without_published_constants_is_run_and_says_so(tmp_path: Path, form: str) -> None:
    world = World(tmp_path / "world", family="gemma3")
    world.write([line(0, locality=[{"question": "is it a dog ?"}])])
    page = tmp_path / "page.md"
    unknown = "the paper published no constants for gemma3: these are LLaVA-1.5's"
    result = suite(world, f"more:{form}", "--report", page)
    assert result["notices"][0] == unknown
    assert result["reproduce"]["constants"]["name"] == form
    assert [edit["outcome"]["writes"] for edit in result["stream"]] == [5 if form == "authors" else 1]
    assert unknown.partition(":")[0] in page.read_text()
    where = "--cache", world.root / f"more-{form}", "--dtype", "float32"
    shown = run("run", world.model, "--suite", world.root / "edits.jsonl", "--editor", f"more:{form}", *where)
    assert f"note: more:{form}: {unknown}" in shown.err
    compared = run(
        "compare", "none", f"more:{form}", "--suite", world.root / "edits.jsonl", "--model", world.model, *where
    )
    assert f"note: more:{form}: {unknown}" in compared.err


def family_folder(tmp_path_factory: pytest.TempPathFactory, family: str) -> Path:
    """A tiny model of a family, made once."""
    folder = tmp_path_factory.getbasetemp() / f"family-{family}"
    if not folder.exists():
        tiny_family(folder, family=family)
    return folder


def test_the_recipe_lists_what_it_leaves_out() -> None:
    shown = run("recipes", "show", "authors-blip2")
    assert shown.code == 0
    assert "- no LayerNorm on A x" in shown.out
    listed = run("recipes", "show", "authors-blip2", "--json").json
    assert any("warm up" in point for point in listed["departures"])
    assert not any(key["key"] == "departures" for key in listed["keys"])
