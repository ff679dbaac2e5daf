"""`more run --batch` and `--consolidate`: edits that are written together, by the loop that writes one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.helpers import Result, World, forks, line, run, stopped_at

LOOP = ("--set", "max_steps=6", "--dtype", "float32")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("writing") / "world")
    asked = [{"question": "is it a dog ?"}, {"question": "what is in the image ?", "image": "img/black.png"}]
    world.write([line(n, rephrases=["which colour ?"], locality=asked) for n in range(4)])
    return world


def suite(world: World, *options: object, cache: str = "cache") -> Result:
    where = "--cache", world.root / cache
    return run("run", world.model, "--suite", world.root / "edits.jsonl", *where, *LOOP, *options)


COMPACTED = ("--set", "compact=4", "--protocol", "final")


@pytest.mark.parametrize("options", [("--batch",), ("--consolidate", "all"), ("--consolidate", "anew"), COMPACTED])
def test_it_ends_as_the_same_edits_in_a_state(world: World, options: tuple[str, ...], tmp_path: Path) -> None:
    """Two ways to the same scores and statuses: a run, and `edit` with these options, then `eval`."""
    found = suite(world, *options, "--json")
    assert found.code == 0, found.err
    assert found.json["headline"] == "final@4"
    state = "--state", tmp_path / "state.more"
    edited = run("edit", world.model, world.root / "edits.jsonl", *LOOP, *options[:2], "--no-anchors", *state, "--json")
    assert edited.code in (0, 5), edited.err
    scored = run("eval", world.model, *state, "--dtype", "float32", "--json").json
    ours = {edit["id"]: edit["values"] for edit in found.json["per_edit"]}
    for edit in scored["per_edit"]:
        for name, values in edit["values"].items():
            assert ours[edit["id"]][name] == pytest.approx(values, abs=1e-4), (edit["id"], name)
    learnt = {status: found.json["counts"].get(status, 0) for status in ("learnt", "not-learnt", "refused")}
    assert learnt == {status: edited.json["counts"].get(status, 0) for status in learnt}


def test_the_run_has_a_key_of_its_own_and_says_how_it_wrote(world: World) -> None:
    """Runs that write each edit as it comes keep the keys that they had."""
    one_by_one, batch = (suite(world, *options, "--json").json for options in ((), ("--batch",)))
    assert "writing" not in one_by_one["reproduce"]
    assert batch["reproduce"]["writing"] == "batch"
    assert sum(line["outcome"]["writes"] for line in batch["stream"]) == 0 < batch["stream"][-1]["catch_up"]
    shown = suite(world, "--batch")
    assert ", written together (--batch); locality" in shown.out
    assert "4 steps are from an earlier run" in shown.err


@forks
def test_an_interrupted_batch_resumes_and_ends_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from more_cli.runner import steps

    monkeypatch.setattr(steps, "SAVE_EDITS", 1)
    torn = "--batch", "--json"
    assert stopped_at(1, steps.Run, "_finish", lambda: suite(world, *torn, cache="torn")) == 130
    rest = suite(world, *torn, cache="torn").json
    assert rest["resumed"] == 3
    assert rest["matrix"] == suite(world, *torn).json["matrix"]


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (("--batch", "--consolidate", "all"), "`--batch` and `--consolidate` exclude each other", "leave one"),
        (("--batch", "--protocol", "online"), "there is no protocol `online`", "leave --protocol out, or name `final`"),
        (("--batch", "--metrics", "mmedit"), "there is no protocol `single`", "leave --metrics out"),
        (("--consolidate", "anew", "--editor", "none"), "editor `none` writes each edit as it comes", "`lora-all`"),
    ],
)
def test_what_cannot_be_written_together_is_one_line(
    world: World, options: tuple[str, ...], message: str, hint: str
) -> None:
    where = "--suite", world.root / "edits.jsonl", "--cache", world.root / "refused"
    refused = run("run", world.model, *where, *options)
    assert refused.code == 2, refused.out
    error, tip = refused.err.strip().splitlines()[-2:]
    assert message in error
    assert hint in tip


def test_editors_are_compared_after_the_last_edit_alone(world: World) -> None:
    where = "--suite", world.root / "edits.jsonl", "--model", world.model, "--cache", world.root / "cache"
    options = "--set", "more:max_steps=6", "--dtype", "float32", "--json"
    found = run("compare", "more", "none", *where, "--batch", *options)
    assert found.code == 0, found.err
    assert {name: list(one["protocols"]) for name, one in found.json["editors"].items()} == {
        "more": ["final@4"],
        "none": ["final@4"],
    }
    refused = run("compare", "none", "ike", *where, "--batch", "--dtype", "float32")
    assert (refused.code, refused.err.splitlines()[0]) == (2, "error: no editor writes several edits together")
