"""`more revert` gives the bytes of a run that never had the edits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.helpers import World, assert_same_state, line, run, tree
from support.reverts import JOINT, SMALL, Runs, begin, edit, left, revert

HELD = (*SMALL, "--set", "anchors.size=2", "--set", "anchors.keys=true", "--set", "anchors.prompts=[]")
"""With anchors in every write, and their keys in P."""


# --- the same bytes ---


@pytest.fixture
def world(runs: Runs, tmp_path: Path) -> World:
    return runs.at(tmp_path)


@pytest.mark.parametrize("gone", [[0], [7], [2, 3, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_the_bytes_of_a_run_that_never_had_them(runs: Runs, world: World, gone: list[int]) -> None:
    begin(world, runs.of(range(8), *SMALL))
    done = revert(world, *(f"e{number + 1}" for number in gone), "--json")
    assert done.code in (0, 3), done.err
    assert done.json["schema"] == "more.revert/1"
    assert done.json["reverted"] == [f"e{number + 1}" for number in gone]
    rest = [number for number in range(8) if number not in gone]
    assert_same_state(world.sidecar, runs.of(rest, *SMALL).sidecar)
    assert left(world) == set()
    held = run("status", world.model, "--state", world.sidecar, "--json").json
    assert (held["edits"], held["behind"], held["statuses"]["reverted"]) == (len(rest), 0, len(gone))


def test_reverting_every_edit_gives_the_fresh_state(world: World) -> None:
    run("init", world.model, *SMALL, "--state", world.sidecar)
    before = world.sidecar.read_bytes()
    edit(world, range(3))
    assert revert(world, "--to", 0).code == 0
    assert world.sidecar.read_bytes() == before
    assert run("eval", world.model, "--state", world.sidecar, "--json").json["edits"] == 0


def test_later_edits_see_no_trace_of_reverted_ones(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(6), *SMALL))
    revert(world, "e2", "e5")
    edit(world, [6, 7])
    revert(world, "e7")
    never = runs.of([0, 2, 3, 5, 7], *SMALL).sidecar.read_bytes()
    assert world.sidecar.read_bytes() == never
    checked = run("verify", world.model, "--deep", "--state", world.sidecar)
    assert checked.code == 0, checked.out + checked.err
    assert "e2" in run("log", "show", "e2", world.model, "--state", world.sidecar).out
    world.sidecar.unlink()
    assert "replayed 5 ledger lines" in edit(world, [0], *SMALL).err
    assert world.sidecar.read_bytes() == never


@pytest.mark.parametrize("option", [("--to", 5), ("--last", 3)])
def test_to_and_last_revert_the_last_edits(runs: Runs, world: World, option: tuple[str, int]) -> None:
    begin(world, runs.of(range(8), *SMALL))
    done = revert(world, *option, "--json")
    assert done.json["reverted"] == ["e6", "e7", "e8"]
    assert (done.json["again"], done.json["replayed"]) == ([], 1)
    assert_same_state(world.sidecar, runs.of(range(5), *SMALL).sidecar)


@pytest.mark.parametrize("kind", ["run", "all"])
def test_consolidations_are_applied_again(world: World, kind: str) -> None:
    for numbers in (range(3), range(6)):
        edit(world, numbers, *JOINT, "--consolidate", kind)
    done = revert(world, "e2", "e5", "--json")
    assert done.json["again"] == ["e3", "e4", "e6"]
    other = world.root / "other.more"
    for numbers in ([0, 2], [0, 2, 3, 5]):
        edit(world, numbers, *JOINT, "--consolidate", kind, state=other)
    assert_same_state(world.sidecar, other)


def test_a_plan_says_how_often_edits_are_written_together_again(world: World) -> None:
    for _ in range(2):
        edit(world, range(3), *JOINT, "--consolidate", "all")
    shown = {id: revert(world, id, "--dry-run").out.splitlines()[-1] for id in ("e2", "e3")}
    assert shown["e3"].startswith("edits are written together again 2 times: about ")
    assert ", and edits are written together again 2 times: about " in shown["e2"]


def test_a_consolidation_is_reverted_with_its_run(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(3), *JOINT, "--consolidate", "all"))
    once = world.sidecar.read_bytes()
    edit(world, range(6), *JOINT, "--consolidate", "all")
    revert(world, "--to", 3)
    assert world.sidecar.read_bytes() == once


@pytest.mark.parametrize("gone", [["e3"], ["e1", "e5"], ["e4", "e5"]])
def test_a_batch_is_written_again_without_it(runs: Runs, world: World, gone: list[str]) -> None:
    begin(world, runs.of(range(5), *JOINT, "--batch"))
    assert revert(world, *gone).code in (0, 3)
    rest = [number for number in range(5) if f"e{number + 1}" not in gone]
    assert_same_state(world.sidecar, runs.of(rest, *JOINT, "--batch").sidecar)
    assert {entry["joint"] for entry in world.entries(world.sidecar) if entry["kind"] == "edit"} == {True}


def test_a_later_batch_is_counted_by_places(runs: Runs, world: World) -> None:
    """`since` and the numbers of scored edits shift when earlier edits are reverted."""
    begin(world, runs.of(range(2), *JOINT, "--batch"))
    edit(world, range(5), *JOINT, "--batch")
    revert(world, "e1")
    other = world.root / "other.more"
    edit(world, [1], *JOINT, "--batch", state=other)
    edit(world, [1, 2, 3, 4], *JOINT, "--batch", state=other)
    assert_same_state(world.sidecar, other)
    made = [entry for entry in world.entries(world.sidecar) if entry["kind"] == "consolidate"]
    assert [entry["since"] for entry in made] == [1, 4, 1, 3]


@pytest.fixture
def anchored(world: World) -> World:
    world.write([{"question": "a photo of"}, {"image": "img/white.png", "question": "what ?"}], "anchors.jsonl")
    for state in (world.sidecar, world.root / "never.more"):
        made = run("init", world.model, *HELD, "--anchors", world.root / "anchors.jsonl", "--state", state)
        assert made.code == 0, made.err
    return world


@pytest.mark.parametrize("gone", [["e1"], ["e3", "e4"], ["--to", 0]])
def test_anchors_hold_again(anchored: World, gone: list[object]) -> None:
    never = anchored.root / "never.more"
    edit(anchored, range(4))
    assert revert(anchored, *gone).code in (0, 3)
    rest = [number for number in range(4) if gone[0] != "--to" and f"e{number + 1}" not in gone]
    if rest:
        edit(anchored, rest, state=never)
    assert_same_state(anchored.sidecar, never)


def test_merge_export_and_eval_give_the_same(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(5), *SMALL))
    revert(world, "e2")
    other = world.root / "other.more"
    edit(world, [0, 2, 3, 4], *SMALL, state=other)
    result = []
    for state in (world.sidecar, other):
        out, delta = world.root / f"merged-{state.stem}", world.root / f"{state.stem}.safetensors"
        assert run("merge", world.model, "-o", out, "--state", state).code == 0
        assert run("export", world.model, "-o", delta.with_suffix(""), "--state", state).code == 0
        scores = run("eval", world.model, "--state", state, "--json").json
        weights = [*sorted(out.glob("*.safetensors")), delta.with_suffix("") / "adapter_model.safetensors"]
        result.append(([file.read_bytes() for file in weights], scores["edits"], scores["metrics"]))
    assert result[0] == result[1]
    assert result[0][1] == 4


@pytest.mark.slow
def test_three_of_twenty_on_the_demo_model(tmp_path: Path) -> None:
    from more_cli.demo.files import demo_model_dir

    world = World.at(tmp_path)
    world.model, world.sidecar, world.folder = demo_model_dir(), tmp_path / "s.more", tmp_path / "s.more.d"
    assert run("suites", "convert", "e-vqa", "-o", tmp_path / "all.jsonl").code == 0
    records = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines()[:20])
    lines = [{**record, "id": f"e{number}"} for number, record in enumerate(records, 1)]
    gone = {"e5", "e11", "e14"}
    world.write(lines)
    world.write([line for line in lines if line["id"] not in gone], "rest.jsonl")
    never = tmp_path / "never.more"
    assert world.edit("--state", world.sidecar).code in (0, 3)
    assert world.edit("--state", never, edits=tmp_path / "rest.jsonl").code in (0, 3)
    done = revert(world, *gone, "--json")
    assert (done.code, set(done.json["reverted"]), len(done.json["again"])) == (0, gone, 13), done.err
    assert_same_state(world.sidecar, never)


# --- the state before ---


def test_the_state_before_is_kept(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(4), *SMALL))
    before = world.sidecar.read_bytes()
    kept = revert(world, "e1", "--json").json["snapshot"]
    assert Path(kept) == world.folder / "snapshots" / "000004.more"
    assert Path(kept).read_bytes() == before


# --- what stands ---


def test_a_reverted_edit_stays_reverted_until_reapply(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(3), *SMALL))
    revert(world, "e2")
    held = world.sidecar.read_bytes()
    again = edit(world, range(3))
    assert "1 of these edits stay reverted; --reapply" in again.err
    assert again.code in (0, 3)
    assert world.sidecar.read_bytes() == held
    back = edit(world, range(3), "--reapply", "--json").json
    assert ([entry["id"] for entry in back["edits"]], back["reverted"]) == (["e2"], [])
    assert_same_state(world.sidecar, runs.of([0, 2, 1], *SMALL).sidecar)
    assert edit(world, range(3), "--reapply", "--json").json["applied"] == 0


def test_a_superseded_edit_stands_again(runs: Runs, world: World) -> None:
    corrected = world.write([line(0), line(1), line(0, id="later", target="x")])
    options = *SMALL, "--state", world.sidecar, "--image-root", world.root
    world.edit(*options, edits="-", stdin=corrected.read_bytes())
    done = revert(world, "later", "--json").json
    assert done["changed"]["e1"][0] == "superseded"
    assert done["changed"]["e1"][1] != "superseded"
    assert run("eval", world.model, "--state", world.sidecar, "--json").json["edits"] == 2
    assert_same_state(world.sidecar, runs.of(range(2), *SMALL).sidecar)


def test_the_ledger_only_grows_and_records_the_revert(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(4), *SMALL))
    before = (world.folder / "ledger.jsonl").read_bytes()
    revert(world, "e2")
    after = (world.folder / "ledger.jsonl").read_bytes()
    assert after.startswith(before)
    recorded, *made = world.entries(world.sidecar)[4:]
    assert (recorded["kind"], recorded["id"], recorded["status"]) == ("revert", "revert-5", "reverted")
    assert (recorded["ids"], recorded["since"], recorded["redone"]) == (["e2"], 2, 2)
    assert [(entry["seq"], entry["id"]) for entry in made] == [(6, "e3"), (7, "e4")]
    assert {number for entry in made for number, _ in entry["looks"]} <= {1, 2, 3}
    assert made[0]["target"] == line(2)["target"]


def test_dry_run_says_what_would_be_done_and_writes_nothing(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(4), *SMALL))
    before = tree(world.root)
    shown = revert(world, "e2", "e3", "--dry-run")
    assert (shown.code, tree(world.root)) == (0, before)
    assert "would revert 2 edits and apply 1 again" in shown.out
    assert "would be applied again: e4" in shown.out


def test_model_and_ids_come_in_any_order(runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(world, runs.of(range(4), *SMALL))
    (world.root / "s").symlink_to(world.model, target_is_directory=True)
    monkeypatch.chdir(world.root)
    for words in (("s", "e2", "e3"), ("e2", "./s/", "e3"), ("e2", "e3", "s"), ("e2", "e3")):
        shown = run("revert", *words, "--dry-run", "--json", *(["--state", "s.more"] if len(words) == 3 else []))
        assert (shown.code, shown.json["reverted"]) == (0, ["e2", "e3"]), shown.err
    assert run("revert", "--last", 1, "--dry-run", "--json").json["reverted"] == ["e4"]


# --- what is refused ---


def test_a_revert_without_a_model_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    type_it = "add MODEL, the checkpoint folder: more revert MODEL ID..."
    for words, said, hint in [
        (("e1", "e2"), "no model named, and no `*.more` file here; `e1`, `e2` are taken as ids", type_it),
        (("--last", 1), "no model named, and no `*.more` file here", type_it),
        (("lava/", "e1"), "lava/: no such directory", "type: more revert MODEL ID..."),
        (("e1", "./file"), "./file: a file, not a checkpoint directory", "type: more revert MODEL ID..."),
    ]:
        refused = run("revert", *words)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.splitlines() == [f"error: {said}", f"hint: {hint}"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["e9"], "no edit `e9`"),
        (["e1", "e2"], "edit `e2` is reverted already"),
        (["--last", 4], "--last 4: there are 3 edits"),
        (["--to", 9], "--to 9: there are 3 edits"),
        ([], "needs exactly one of: ids, --to N, --last K"),
        (["e1", "--last", 1], "needs exactly one of: ids, --to N, --last K"),
    ],
)
def test_invalid_requests_are_refused(runs: Runs, world: World, options: list[object], said: str) -> None:
    begin(world, runs.of(range(4), *SMALL))
    revert(world, "e2")
    before = tree(world.root)
    refused = revert(world, *options)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    assert len(refused.err.splitlines()) == 2
    assert tree(world.root) == before


def test_to_the_current_number_of_edits_reverts_nothing(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(3), *SMALL))
    before = tree(world.root)
    done = revert(world, "--to", 3)
    assert (done.code, "nothing to revert" in done.out, tree(world.root)) == (0, True, before)


def test_a_missing_image_is_named_before_anything_is_written(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(4), *SMALL))
    image = world.folder / "images" / world.entries(world.sidecar)[2]["images"][0]
    image.rename(world.root / "elsewhere.png")
    before = tree(world.root)
    refused = revert(world, "e2")
    assert (refused.code, tree(world.root)) == (5, before)
    assert "error: edit `e3` cannot be applied or rehearsed again" in refused.err
    assert image.name in refused.err
    (world.root / "elsewhere.png").rename(image)
    assert revert(world, "e2").code in (0, 3)


def test_an_image_that_was_not_stored_is_read_from_its_path(runs: Runs, world: World) -> None:
    edit(world, range(4), *SMALL, "--no-store-images")
    revert(world, "e2")
    assert not (world.folder / "images").exists()
    assert_same_state(world.sidecar, runs.of([0, 2, 3], *SMALL).sidecar)
    (world.root / "img" / "yellow.png").unlink()
    refused = revert(world, "e1")
    assert (refused.code, "yellow.png" in refused.err) == (4, True)


def test_a_missing_state(world: World) -> None:
    refused = revert(world, "e1")
    assert (refused.code, tree(world.root).keys() & {"s.more", "s.more.d"}) == (5, set())


@pytest.mark.parametrize("options", [("--consolidate", "run"), ("--batch",)])
def test_what_was_written_together_goes_with_its_edits_also_after_an_earlier_run(
    runs: Runs, world: World, options: tuple[str, ...]
) -> None:
    edit(world, [0], *JOINT)
    edit(world, [1, 2], *options)
    assert revert(world, "--last", 2).code == 0
    assert_same_state(world.sidecar, runs.of([0], *JOINT).sidecar)
    assert run("verify", world.model, "--deep", "--state", world.sidecar).code == 0


def test_what_is_made_again_keeps_its_time(world: World) -> None:
    edit(world, range(3), *SMALL)
    revert(world, "e1")
    times: dict[str, set[str]] = {}
    for entry in world.entries():
        times.setdefault(entry["id"], set()).add(entry["time"])
    assert len(times["e2"]) == len(times["e3"]) == 1
