"""`edit` takes snapshots by itself: undoing the newest edits replays few others, and no byte depends on them."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from more_cli import files
from more_cli.ops import revert as reverting
from more_cli.ops import snapshots as taking
from more_cli.store import sidecar as sidecars
from more_cli.store import snapshots as storing
from more_cli.store.ledger import Ledger
from support.helpers import (
    CALM,
    REFUSING,
    Result,
    World,
    assert_same_state,
    at_call,
    die,
    forks,
    in_child,
    line,
    run,
    tree,
)
from support.reverts import JOINT, SMALL, Runs, begin, edit, left, revert


@pytest.fixture
def world(runs: Runs, tmp_path: Path) -> World:
    return runs.at(tmp_path)


def taken(world: World) -> list[str]:
    """Names of the snapshots that were taken by themselves."""
    return sorted(path.name for path in (world.folder / "snapshots").glob("*.auto.more"))


def kept(world: World) -> list[str]:
    """Names of the other snapshots."""
    return sorted({path.name for path in (world.folder / "snapshots").iterdir()} - set(taken(world)))


def undone(world: World, *what: object) -> Result:
    """Revert edits, which must not load the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("more_cli.ops.session.load_runtime", lambda *_, **__: pytest.fail("the model was loaded"))
        return revert(world, *what, "--json")


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no snapshot."""
    monkeypatch.setattr(taking.Snapshots, "take", lambda self: None)


def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the state be so large that it is written before the first edit of a call and before the last one only."""
    monkeypatch.setattr(taking, "BYTES_A_SECOND", 1e-9)


# --- what they save ---


def test_undoing_the_newest_edit_replays_nothing_and_loads_no_model(
    runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(world, runs.of(range(8), *SMALL))
    done = undone(world, "--last", 1)
    assert (done.code, done.json["replayed"], done.json["again"]) == (0, 0, [])
    assert_same_state(world.sidecar, runs.of(range(7), *SMALL).sidecar)


@pytest.mark.parametrize("last", range(1, 8))
def test_undoing_the_last_edits_replays_no_more_than_these(runs: Runs, world: World, last: int) -> None:
    begin(world, runs.of(range(8), *SMALL))
    assert revert(world, "--last", last, "--json").json["replayed"] <= last
    assert_same_state(world.sidecar, runs.of(range(8 - last), *SMALL).sidecar)


def test_edits_that_come_one_by_one_have_snapshots_too(
    runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rarely(monkeypatch)
    for count in range(1, 5):
        edit(world, range(count), *SMALL)
    assert undone(world, "--last", 1).json["replayed"] == 0
    assert_same_state(world.sidecar, runs.of(range(3), *SMALL).sidecar)


def test_of_a_large_state_only_the_one_before_the_last_edit_is_written(
    runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rarely(monkeypatch)
    edit(world, range(6), *SMALL)
    assert taken(world) == ["000001.auto.more", "000005.auto.more"]
    assert undone(world, "--last", 1).json["replayed"] == 0
    assert_same_state(world.sidecar, runs.of(range(5), *SMALL).sidecar)


def test_a_revert_leaves_snapshots_of_what_it_applied_again(
    runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(world, runs.of(range(8), *SMALL))
    revert(world, "e2")
    assert left(world) == set()
    assert undone(world, "--last", 1).json["replayed"] == 0
    assert_same_state(world.sidecar, runs.of([0, 2, 3, 4, 5, 6], *SMALL).sidecar)


def test_a_retry_has_a_snapshot_before_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(world, range(3), *REFUSING, "--set", "last=1")
    before = world.sidecar.read_bytes()
    assert run("edit", world.model, "--retry", *CALM, "--state", world.sidecar).code in (0, 3)
    assert world.sidecar.read_bytes() != before
    assert [name[:6] for name in taken(world)][-1] == "000005"
    with_model = revert(world, "e3", "--json").json
    assert (with_model["reverted"], with_model["replayed"]) == (["e3"], 0)


def test_a_snapshot_of_lines_that_were_reverted_is_removed_and_not_used(runs: Runs, world: World) -> None:
    """The same edits come back in the same places, with another setting: the digests agree, the states differ."""
    edit(world, range(2), *REFUSING, "--set", "last=1")
    run("edit", world.model, "--retry", *CALM, "--state", world.sidecar)
    stale = (world.folder / "snapshots" / "000003.auto.more").read_bytes()
    revert(world, "e1", "e2")
    edit(world, range(2), "--reapply")
    run("edit", world.model, "--retry", *CALM, "--set", "max_steps=1", "--state", world.sidecar)
    numbers = [name[:6] for name in taken(world)]
    assert not {"000002", "000003"} & set(numbers)
    assert stale not in [path.read_bytes() for path in (world.folder / "snapshots").iterdir()]
    revert(world, "e2")
    assert run("verify", world.model, "--deep", "--state", world.sidecar).code == 0


def test_a_revert_asks_the_base_for_no_anchor_again(world: World) -> None:
    """Edits bring anchors, so the state of a snapshot holds others than the newest state."""
    other = world.root / "other.more"
    few = *SMALL, "--set", "anchors.prompts=[]"
    edit(world, range(5), *few, "--anchors")
    edit(world, [0, 1, 2, 4], *few, "--anchors", state=other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("more_cli.ops.anchors.ask_base", lambda *_: pytest.fail("the base was asked"))
        done = revert(world, "e4", "--json")
    assert (done.code in (0, 3), done.json["again"]) == (True, ["e5"])
    assert_same_state(world.sidecar, other)


# --- no byte depends on them ---


def test_a_snapshot_has_the_bytes_of_a_run_that_ended_there(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(8), *SMALL))
    assert len(taken(world)) >= 3
    for name in taken(world):
        ended = runs.of(range(int(name[:6])), *SMALL)
        assert (world.folder / "snapshots" / name).read_bytes() == ended.sidecar.read_bytes()


@pytest.mark.parametrize("options", [SMALL, (*JOINT, "--batch"), (*JOINT, "--consolidate", "all")])
def test_state_and_ledger_are_those_of_a_run_without_snapshots(
    runs: Runs, world: World, options: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runs.of(range(5), *options)
    never(monkeypatch)
    edit(world, range(5), *options)
    assert not (world.folder / "snapshots").exists()
    assert_same_state(world.sidecar, made.sidecar)
    assert told(world) == told(made)


def told(world: World) -> list[dict[str, Any]]:
    """The ledger without what differs from run to run."""
    volatile = {"time", "wall_ms", "prev", "check", "source"}
    entries = world.entries(world.sidecar)
    return [{key: value for key, value in entry.items() if key not in volatile} for entry in entries]


@pytest.mark.parametrize("kind", ["run", "all", "anew"])
def test_an_edit_after_a_consolidation_is_undone_from_there(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(world, range(4), *JOINT, "--consolidate", kind)
    before = world.sidecar.read_bytes()
    edit(world, range(5), *JOINT)
    assert undone(world, "e5").json["replayed"] == 0
    assert world.sidecar.read_bytes() == before


def test_an_edit_after_further_anchors_is_undone_from_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(world, range(3), *SMALL)
    anchors = world.write([{"question": "a photo of", "answer": "r"}], "anchors.jsonl")
    assert run("anchors", "add", world.model, anchors, "--state", world.sidecar).code == 0
    before = world.sidecar.read_bytes()
    edit(world, range(5))
    revert(world, "e4", "e5")
    assert world.sidecar.read_bytes() == before


def test_an_edit_that_superseded_another_is_undone(runs: Runs, world: World) -> None:
    corrected = world.write([line(0), line(1), line(0, id="later", target="x")])
    options = *SMALL, "--state", world.sidecar, "--image-root", world.root
    world.edit(*options, edits="-", stdin=corrected.read_bytes())
    assert undone(world, "later").json["replayed"] == 0
    assert_same_state(world.sidecar, runs.of(range(2), *SMALL).sidecar)


# --- those that were asked for ---


def test_snapshot_every_keeps_them_beside_those_taken_by_themselves(
    runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    never(monkeypatch)
    edit(world, range(8), *SMALL, "--snapshot-every", 3)
    assert (taken(world), kept(world)) == ([], ["000003.more", "000006.more"])
    planned = revert(world, "e6", "--dry-run", "--json").json
    assert (planned["replayed"], planned["again"]) == (2, ["e7", "e8"])
    monkeypatch.undo()
    revert(world, "e6")
    assert kept(world) == ["000003.more", "000006.more", "000008.more"]
    assert_same_state(world.sidecar, runs.of([0, 1, 2, 3, 4, 6, 7], *SMALL).sidecar)


# --- damage and kills ---


def test_a_damaged_or_wrong_snapshot_is_skipped(runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(world, runs.of(range(6), *SMALL))
    folder = world.folder / "snapshots"
    assert taken(world) == [f"00000{number}.auto.more" for number in (2, 4, 5)]
    (folder / "000005.auto.more").write_bytes(b"damaged")
    (folder / "000004.auto.more").write_bytes((folder / "000002.auto.more").read_bytes())
    done = revert(world, "e6", "--json")
    assert (done.code, done.json["replayed"]) == (0, 3)
    assert_same_state(world.sidecar, runs.of(range(5), *SMALL).sidecar)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.999])
def test_a_torn_snapshot_is_not_used(runs: Runs, world: World, part: float) -> None:
    begin(world, runs.of(range(4), *SMALL))
    newest = world.folder / "snapshots" / taken(world)[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[: int(part * len(whole))].ljust(len(whole), b"\0"))
    assert revert(world, "e4", "--json").json["replayed"] == 1
    assert_same_state(world.sidecar, runs.of(range(3), *SMALL).sidecar)


@forks
@pytest.mark.slow
@pytest.mark.parametrize("part", ["before", "half", "written", "renamed", "thinned"])
@pytest.mark.parametrize("nth", [1, 3, 5])
def test_killed_while_a_snapshot_is_taken(runs: Runs, world: World, part: str, nth: int) -> None:
    whole = runs.of(range(6), *SMALL)

    def half(write: Callable[..., None], path: Path, parts: list[bytes | memoryview]) -> None:
        with FileIO(path, "r+") as file:
            file.write(b"".join(map(bytes, parts))[: os.stat(whole.sidecar).st_size // 2])
        die()

    def child() -> None:
        inside = {
            "before": lambda: at_call(1, [(sidecars, "write")], die),
            "half": lambda: at_call(1, [(sidecars, "write")], half),
            "written": lambda: at_call(1, [(files, "_rename")], die),
            "renamed": lambda: at_call(1, [(storing, "thin_out")], die),
            "thinned": lambda: at_call(1, [(storing, "spread")], die),
        }[part]
        at_call(nth, [(taking, "take_snapshot")], lambda *_: inside())
        edit(world, range(6), *SMALL)

    assert in_child(child) == -signal.SIGKILL
    for name in taken(world):
        ended = runs.of(range(int(name[:6])), *SMALL)
        assert (world.folder / "snapshots" / name).read_bytes() == ended.sidecar.read_bytes()
    edit(world, range(6), *SMALL)
    assert_same_state(world.sidecar, whole.sidecar)
    assert told(world) == told(whole)
    assert not [*world.folder.glob("**/.*")]
    assert revert(world, "--last", 1, "--json").json["replayed"] == 0
    assert_same_state(world.sidecar, runs.of(range(5), *SMALL).sidecar)


@forks
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["save_state", "_adopt_snapshots", "thin_out", "drop_drafts"])
def test_killed_while_a_revert_hands_its_snapshots_over(runs: Runs, world: World, moment: str) -> None:
    begin(world, runs.of(range(6), *SMALL))
    rest = [0, 2, 3, 4, 5]
    assert in_child(lambda: committing_dies(world, moment)) == -signal.SIGKILL
    edit(world, [0])
    assert_same_state(world.sidecar, runs.of(rest, *SMALL).sidecar)
    assert revert(world, "--last", 1).code in (0, 3)
    assert_same_state(world.sidecar, runs.of(rest[:-1], *SMALL).sidecar)
    assert left(world) == set()


def committing_dies(world: World, moment: str) -> None:
    at_call(1, [(reverting, "_commit")], lambda *_: at_call(1, [(reverting, moment)], die))
    revert(world, "e2")


def test_a_full_disk_keeps_no_snapshot_and_stops_no_edit(
    runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save = storing.save_state
    monkeypatch.setattr(storing, "save_state", lambda path, state, **how: wrapped(full, path))
    whole = runs.of(range(4), *SMALL)
    assert edit(world, range(4), *SMALL).code in (0, 3)
    assert taken(world) == []
    assert_same_state(world.sidecar, whole.sidecar)
    monkeypatch.setattr(storing, "save_state", save)
    assert revert(world, "--last", 1, "--json").json["replayed"] == 3


def wrapped(action: Callable[..., None], path: Path) -> None:
    with files.disk_errors(path):
        action()


# --- disk ---


def test_all_of_them_take_at_most_their_share_of_the_disk(
    runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = runs.of(range(4), *SMALL).sidecar.stat().st_size
    monkeypatch.setattr(storing, "LEAST", 1)
    monkeypatch.setattr(storing, "MOST_BYTES", int(2.5 * size))
    edit(world, range(8), *SMALL)
    assert len(taken(world)) == 2
    assert revert(world, "--last", 1, "--json").json["replayed"] == 0


def test_gc_removes_them_and_the_next_edit_takes_new_ones(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(4), *SMALL, "--snapshot-every", 2))
    revert(world, "e4")
    (world.folder / "images" / ("0" * 64)).write_bytes(b"not named by any line")
    before = tree(world.folder)
    planned = run("gc", world.model, "--state", world.sidecar, "--dry-run", "--json").json
    assert tree(world.folder) == before
    names = {f"snapshots/{name}" for name in (*taken(world), *kept(world))} | {f"images/{'0' * 64}"}
    assert {"snapshots/000002.auto.more", "snapshots/000002.more", "snapshots/000004.more"} < names
    assert set(planned["files"]) == names
    assert planned["bytes"] == sum(len(before[name] or b"") for name in names)
    done = run("gc", world.model, "--state", world.sidecar)
    assert (done.code, f"removed {len(names)} files, {planned['bytes']:,} bytes" in done.out) == (0, True)
    assert tree(world.folder) == {name: data for name, data in before.items() if name not in names}
    assert revert(world, "e1", "--json").json["replayed"] == 0  # nothing is before it
    assert_same_state(world.sidecar, runs.of([1, 2], *SMALL).sidecar)
    assert len(taken(world)) == 1


def test_status_says_how_large_they_are(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(4), *SMALL))
    size = sum(path.stat().st_size for path in (world.folder / "snapshots").iterdir())
    shown = run("status", world.model, "--state", world.sidecar)
    held = run("status", world.model, "--state", world.sidecar, "--json").json
    rest = sum(path.stat().st_size for path in world.folder.rglob("*") if path.is_file()) - size
    assert held["snapshot_bytes"] == size > 0
    assert held["ledger_bytes"] == size + rest
    assert f"ledger and images {rest:,} bytes, snapshots {size:,} bytes" in shown.out


# --- what is said before it starts ---


def slow(world: World, seconds: float) -> None:
    """Let every edit of a ledger have taken so long."""
    rows = [{**entry.fields(), "wall_ms": 1000 * seconds} for entry in Ledger(world.folder).entries]
    (world.folder / "ledger.jsonl").unlink()
    with Ledger(world.folder) as ledger:
        ledger.append_all(rows)


def test_a_dry_run_says_how_many_edits_are_applied_again_and_how_long_they_took(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(6), *SMALL))
    slow(world, 7)
    (world.folder / "snapshots" / "000004.auto.more").unlink()
    planned = revert(world, "e5", "--dry-run", "--json").json
    assert (planned["again"], planned["replayed"]) == (["e6"], 2)
    assert (planned["expected_edits"], planned["expected_seconds"]) == (3, 21.0)
    shown = revert(world, "e5", "--dry-run")
    assert (
        "3 edits are applied again, 2 of them since no snapshot has their result: about 21 s" in shown.out.splitlines()
    )
    nothing = revert(world, "--to", 0, "--dry-run")
    assert "no edit is applied again" in nothing.out.splitlines()


def test_it_is_said_before_the_first_edit_is_applied(runs: Runs, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(world, runs.of(range(4), *SMALL))
    slow(world, 0.5)
    said: list[str] = []
    finish = reverting._finish

    def finished(*args: Any) -> None:
        said.append("it starts")
        finish(*args)

    monkeypatch.setattr("more_cli.cli.output.Output.note", lambda self, text: said.append(text))
    monkeypatch.setattr(reverting, "_finish", finished)
    revert(world, "e3")
    assert said[:2] == ["1 edit is applied again: about 1 s", "it starts"]


@forks
def test_an_interrupted_revert_says_what_is_left_to_do(runs: Runs, world: World) -> None:
    begin(world, runs.of(range(6), *SMALL))
    slow(world, 7)

    def child() -> int:
        at_call(4, [(taking.Snapshots, "before_edit")], lambda *_: os.kill(os.getpid(), signal.SIGINT))
        return revert(world, "e2").code

    assert in_child(child) == 130
    planned = revert(world, "e2", "--dry-run", "--json").json
    assert (planned["expected_edits"], planned["expected_seconds"]) == (1, 7.0)
    assert json.loads(revert(world, "e2", "--json").out)["expected_edits"] == 1
    assert_same_state(world.sidecar, runs.of([0, 2, 3, 4, 5], *SMALL).sidecar)
