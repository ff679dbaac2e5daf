"""`eval --suite mme`: the base and the state answer yes/no questions, and what edits changed has an interval."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from more_cli.evaluation.metrics import change
from support.helpers import World, run

COLOURS = ("red", "green", "blue")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A tiny model, and an MME of one category with three images of two questions each."""
    world = World(tmp_path / "world")
    folder = tmp_path / "world" / "mme" / "color"
    folder.mkdir(parents=True)
    for colour in COLOURS:
        Image.new("RGB", (28, 28), colour).save(folder / f"{colour}.png")
        lines = f"is it {colour} ?\tYes\nis it black ?\tNo\n"
        (folder / f"{colour}.txt").write_text(lines)
    return world


def score(world: World, *options: object):
    return run("eval", world.model, "--suite", "mme", "--data-root", world.root / "mme", *options)


def test_without_a_state_the_base_alone_is_scored(world: World) -> None:
    result = score(world, "--json")
    assert result.code == 0, result.err
    found = result.json
    assert (found["schema"], found["state"], found["edited"], found["change"]) == ("more.capability/1", None, None, {})
    category = found["base"]["categories"]["color"]
    assert (category["questions"], category["images"]) == (6, 3)
    assert category["unparsable_rate"] == 1.0, "a random model says neither"
    assert found["base"]["totals"] == {"perception": {"score": 0.0, "maximum": 200.0}}
    assert "research" in result.err, "the licence is named"


def test_a_state_is_scored_beside_its_base_and_left_as_it_is(world: World) -> None:
    lines = [{"image": f"mme/color/{c}.png", "question": f"is it {c} ?", "target": "yes"} for c in COLOURS]
    world.write(lines)
    world.edit("--set", "max_steps=60", "--consolidate", "all")  # a line of the ledger that is no edit
    before = world.sidecar.read_bytes()
    result = score(world, "--json").json
    assert (result["edits"], result["base"]["accuracy"]) == (3, 0.0)
    edited = result["edited"]["categories"]["color"]
    assert result["edited"]["accuracy"] == edited["right"] / 6 >= 0.5, "every edited question is answered"
    assert result["change"]["all"]["value"] == pytest.approx(edited["right"] / 6)
    assert result["change"]["all"]["n"] == 3, "images, not questions"
    assert world.sidecar.read_bytes() == before
    shown = score(world)
    assert "change of accuracy +0." in shown.out
    assert "perception: 0.0 -> " in shown.out


def test_what_was_chosen_is_said_in_one_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    world.edits(1)
    suite = ("eval", "--suite", "mme", "--data-root", "mme")
    alone = run(*suite, "--json", world.model)
    assert alone.err.splitlines()[-1] == f"note: asking `{world.model}` alone: it has no state `{world.sidecar}`"
    assert alone.json["state"] is None
    world.edit("--set", "max_steps=1")
    typed = f"`{world.model}` and its state `{world.sidecar}`"
    for words, said in (
        ((), "`model` and its state `model.more`"),
        ((world.model,), typed),
        (("--state", world.sidecar), typed),
    ):
        chosen = run(*suite, "--json", *words)
        assert chosen.err.splitlines()[-1] == f"note: asking {said}"
        assert Path(chosen.json["state"]).resolve() == world.sidecar


@pytest.mark.parametrize(
    ("words", "code", "said", "hint"),
    [
        (("model", "--state", "typo.more"), 5, "no state at `typo.more`", "name an existing `.more` file"),
        (
            ("--state", "typo.more"),
            2,
            "no model named, and `typo.more` has no folder `typo`",
            "more eval MODEL --suite",
        ),
        ((), 2, "several `*.more` files are here: a.more, b.more", "more eval MODEL --suite NAME"),
        (("model", "--gate", "mme.accuracy_change>=0"), 2, "needs a state", "more edit MODEL EDITS"),
        (("model", "--limit", "1"), 2, "`--limit` needs a suite of edits", "leave it out"),
        (("model", "--set", "nonsense=3"), 2, "`--set` needs a suite of edits", "leave it out"),
        (("model", "--gate", "mme.accuracy_change>=-5"), 2, "`-5` is outside -1 to 1", "write -0.05 for -5 %"),
    ],
)
def test_what_is_missing_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str, hint: str
) -> None:
    monkeypatch.chdir(world.root)
    for name in ("a.more", "b.more"):
        (world.root / name).touch()
    refused = run("eval", *words, "--suite", "mme", "--data-root", "mme")
    assert (refused.code, refused.out) == (code, "")
    assert said in refused.err
    assert hint in refused.err.partition("hint: ")[2]


def test_a_change_is_a_paired_difference_by_hand() -> None:
    result = change([0.5, -0.5, 0.0, 0.0])
    assert (result.value, result.n, result.interval) == (0.0, 4, "bootstrap")
    assert -0.5 <= result.low < 0.0 < result.high <= 0.5
    still = change([0.0, 0.0])
    assert (still.low, still.value, still.high) == (0.0, 0.0, 0.0)
