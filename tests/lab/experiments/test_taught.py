"""Prompts, labels and the end of a target are keys of every editor; and the paper to the letter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.base import EditContext, EditRequest
from more_cli.editors.registry import EditorOptions, editor_names, entry_of
from more_cli.inputs.images import ImageCache
from more_cli.model.batches import Query
from more_cli.model.loading import load_prompter, load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime, Unended
from more_cli.recipe.files import load_recipe
from support.helpers import World, run

KEYS = ("prompts=mmedit", "labels=alone", "end_of_sequence=false")
CHANGED = {"prompts": "mmedit", "labels": "alone", "end_of_sequence": False}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("taught") / "world", text_layers=4)
    (world.mmedit(2) / "img").symlink_to(world.root / "img")
    return world


@pytest.fixture(scope="module")
def runtime(world: World) -> Runtime:
    return load_runtime(open_checkpoint(world.model), Machine(dtype="float32"))


def request(world: World) -> EditRequest:
    image = ImageCache(world.root / "img").locate("red.png")
    return EditRequest("e1", Query((image,), "what colour is it ?"), "r e d")


def ran(world: World, editor: str, *options: str) -> Any:
    where = "--suite", "e-vqa", "--data-root", world.root / "mmedit", "--cache", world.root / "cache"
    return run("run", world.model, *where, "--editor", editor, "--dtype", "float32", "--limit", "1", *options)


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def test_every_editor_has_the_three_keys(world: World) -> None:
    """One with a recipe has them in it, another beside its numbers; whatever makes it."""
    lacking = []
    for name in editor_names():
        made = entry_of(name).make(EditorOptions(world.model, settings=KEYS))
        if {key: made.facts().get(key) for key in CHANGED} != CHANGED:
            lacking.append(name)
    assert lacking == []
    plain = entry_of("ft-l").make(EditorOptions(world.model))
    assert plain.facts() == plain.constants(), "without a change the keys of older runs stay"


@pytest.mark.parametrize("name", ["ft-l", "lora", "none"])
def test_an_editor_without_a_recipe_is_taught_a_target_without_its_end(
    world: World, runtime: Runtime, name: str
) -> None:
    asked = request(world)
    whole = runtime.encode(asked.query, asked.target)
    nll = {}
    for end in ("true", "false"):
        made = entry_of(name).make(EditorOptions(world.model, settings=(f"end_of_sequence={end}",)))
        with made.taught(runtime):
            nll[end] = made.edit(asked, EditContext()).before.nll
    expected = [float(runtime.score(runtime.batch([sample])).nll()[0]) for sample in (whole, whole.unended)]
    assert [nll["true"], nll["false"]] == pytest.approx(expected, abs=1e-5)
    assert runtime.encode(asked.query, asked.target).target_ids == whole.target_ids, "scores still see the end"


def test_a_model_without_ends_is_the_same_model(world: World, runtime: Runtime) -> None:
    shorter, asked = Unended(runtime), request(world)
    assert shorter.encode(asked.query).input_ids.tolist() == runtime.encode(asked.query).input_ids.tolist()
    with shorter.attached([]):
        assert shorter.activations is runtime.activations


def test_a_target_alone_is_tokenised_by_itself_behind_the_prompt(world: World) -> None:
    checkpoint, asked = open_checkpoint(world.model), request(world)
    alone = load_prompter(checkpoint, labels="alone")
    prompt, whole = alone.encode(asked.query), alone.encode(asked.query, asked.target)
    own = alone.tokenizer(asked.target, add_special_tokens=False)["input_ids"]
    assert whole.target_ids == [*own, alone.eos]
    assert whole.input_ids.tolist() == [*prompt.input_ids.tolist(), *whole.target_ids]


def test_a_rival_runs_on_a_suite_as_the_paper_s_code_would_teach_it(world: World) -> None:
    plain, taught = ran(world, "ft-l", "--json"), ran(world, "ft-l", *settings(*KEYS), "--json")
    assert (plain.code, taught.code) == (0, 0), taught.err
    before, after = (found.json["reproduce"]["constants"] for found in (plain, taught))
    assert after == before | CHANGED
    assert taught.json["resumed"] == 0, "other prompts are another run"
    none = ran(world, "none", *settings("prompts=mmedit"), "--json")
    assert none.json["reproduce"]["constants"] == {"prompts": "mmedit"}, "the base under these prompts"


@pytest.mark.parametrize(
    ("editor", "setting", "said"),
    [
        ("ft-l", "prompts=mmedt", "`prompts` cannot be"),
        ("ft-l", "label=alone", "there is no key `label`"),
        ("none", "rate=0.1", "has no setting `rate=0.1`"),
    ],
)
def test_a_wrong_value_is_refused_with_the_keys_that_there_are(
    world: World, editor: str, setting: str, said: str
) -> None:
    refused = ran(world, editor, "--set", setting)
    assert refused.code == 2
    assert said in refused.err
    assert "mmedit" in refused.err or "labels" in refused.err


def test_the_paper_to_the_letter_is_the_paper_with_its_switches(tmp_path: Path) -> None:
    literal, paper = load_recipe("paper-literal").canonical(), load_recipe("paper").canonical()
    switched = {"normalisation": "paper", "rank_share": 1.0, "key_taken": "after", **CHANGED}
    named = {key: literal[key] for key in ("name", "description")}
    assert literal == paper | switched | named | {"anchors": paper["anchors"] | {"per_edit": 2}}


def test_the_paper_to_the_letter_runs_and_says_what_still_differs(world: World) -> None:
    found = ran(world, "more@paper-literal", "--json")
    assert found.code == 0, found.err
    assert found.json["stream"][0]["outcome"]["writes"] == 1
    assert found.json["reproduce"]["anchors"], "keys of locality questions enter P"
    assert "departs from what was published in 9 points" in " ".join(found.json["notices"])
