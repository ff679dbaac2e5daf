"""`more verify` names everything that is damaged, missing or exchanged, and still checks all the rest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.core import recursion
from more_cli.files import sha256_bytes
from more_cli.inputs.edits import content_hash
from more_cli.ops import verify as verifying
from more_cli.store.entry import parse_entry
from more_cli.store.state import State, load_state, save_state
from support.forging import forge
from support.helpers import LEARNING, QUESTION, Result, World, forks, line, run, tree

QUICK = ["state", "ledger", "digest", "signed", "anchors", "images", "base", "basis", "P"]
DEEP = [*QUICK, "shards", "replay"]
UNSIGNED = {"signed": "skipped"}
ANCHORS = [{"image": "img/purple.png", "question": "what is in the image ?"}, {"question": "a photo of"}]
OPTIONS = (*LEARNING, "--set", "rehearsal.size=2", "--set", "criterion=margin", "--set", "anchors.prompts=[]")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("verify"), text_layers=1)
    world.write(ANCHORS, "anchors.jsonl")
    probe = {"image": "img/orange.png", "question": QUESTION}
    world.write([line(0, locality=[probe]), line(1, image_rephrases=["img/white.png"]), line(2), line(0, id="e4")])
    assert run("init", world.model, "--anchors", world.root / "anchors.jsonl", *OPTIONS).code == 0
    assert world.edit().code in (0, 3)
    return world


@pytest.fixture
def world(original: World, tmp_path: Path) -> World:
    """A copy to damage."""
    shutil.copytree(original.root, tmp_path / "world")
    return World.at(tmp_path / "world")


def verify(world: World, *options: object) -> Result:
    return run("verify", world.model, *options)


def verdicts(result: Result) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in result.json["checks"]}


def details(result: Result) -> dict[str, str]:
    return {check["name"]: check["detail"] for check in result.json["checks"]}


# --- a sound state ---


def test_a_sound_state_passes_every_check_and_nothing_is_written(world: World) -> None:
    before = tree(world.root)
    result = verify(world, "--json")
    assert (result.code, result.json["schema"], result.json["ok"]) == (0, "more.verify/1", True)
    assert verdicts(result) == dict.fromkeys(QUICK, "ok") | UNSIGNED
    assert tree(world.root) == before


def test_a_deep_check_applies_every_edit_again_to_the_same_bytes(world: World) -> None:
    shutil.rmtree(world.folder / "cache")  # the base is asked again about the anchors
    before = tree(world.root)
    result = verify(world, "--deep", "--json")
    assert (result.code, verdicts(result)) == (0, dict.fromkeys(DEEP, "ok") | UNSIGNED)
    assert details(result)["replay"] == "4 lines applied again from an empty state give the same bytes"
    assert sha256_bytes((world.model / "model.safetensors").read_bytes()) in details(result)["shards"]
    assert tree(world.root) == before


def test_too_little_memory_is_no_damage(world: World) -> None:
    short = verify(world, "--deep", "--memory", "0.01", "--json")
    assert (short.code, short.json["ok"]) == (7, False)
    assert verdicts(short) == dict.fromkeys(DEEP, "ok") | UNSIGNED | {"replay": "skipped"}
    assert "GiB are free" in short.err
    assert "--set" not in short.err, "the sites of a state stay"


def test_too_little_memory_hides_no_damage(world: World) -> None:
    stored(world).unlink()
    both = verify(world, "--deep", "--memory", "0.01")
    assert both.code == 5
    assert "failed 1 of" in both.err


def test_text_output_has_one_line_per_check(world: World) -> None:
    shown = verify(world)
    assert [text.split()[:2] for text in shown.out.splitlines()] == [[UNSIGNED.get(name, "ok"), name] for name in QUICK]
    assert verify(world, "-q").out == ""


def test_a_state_behind_its_ledger_and_a_torn_line_are_no_faults(world: World) -> None:
    world.sidecar.unlink()
    run("init", world.model, "--anchors", world.root / "anchors.jsonl", *OPTIONS)
    with open(world.folder / "ledger.jsonl", "ab") as ledger:
        ledger.write(b'{"torn')
    result = verify(world, "--deep", "--json")
    assert (result.code, verdicts(result)) == (0, dict.fromkeys(DEEP, "ok") | UNSIGNED)
    assert "the next command replays 4 more" in details(result)["digest"]
    assert "6 bytes of an unfinished line" in details(result)["ledger"]


def test_images_that_were_not_stored_are_checked_at_their_paths(tmp_path: Path) -> None:
    world = World(tmp_path, text_layers=1)
    world.edits(2)
    world.edit(*LEARNING, "--no-store-images")
    assert "0 stored, 2 not stored" in details(verify(world, "--json"))["images"]
    shutil.copy(world.root / "img" / "blue.png", world.root / "img" / "red.png")
    assert verify(world).code == 0
    assert verify(world, "--deep").code == 5
    (world.root / "img" / "red.png").unlink()
    assert "red.png` cannot be read: no such file" in verify(world).out


def test_nothing_to_verify(world: World) -> None:
    missing = run("verify", world.root / "img")
    assert (missing.code, missing.out) == (5, "")
    assert "no state at" in missing.err


# --- damage ---

Damage = Callable[[World], object]
DAMAGES: list[Any] = []


def damage(failing: str, said: str, *, deep: bool = False) -> Callable[[Damage], Damage]:
    """Add a case to the table: the damage to a sound state, the checks that fail, and a part of the message."""

    def add(spoil: Damage) -> Damage:
        DAMAGES.append(pytest.param(spoil, set(failing.split()), said, deep, id=spoil.__name__))
        return spoil

    return add


@pytest.mark.parametrize(("spoil", "failing", "said", "deep"), DAMAGES)
def test_damage_is_detected_and_named(world: World, spoil: Damage, failing: set[str], said: str, deep: bool) -> None:
    spoil(world)
    if deep:
        assert verify(world).code == 0
    result = verify(world, "--json", *(["--deep"] if deep else []))
    assert (result.code, result.json["ok"]) == (5, False)
    assert {name for name, verdict in verdicts(result).items() if verdict == "FAILED"} == failing
    assert list(verdicts(result)) == (DEEP if deep else QUICK)
    assert any(said in details(result)[name] for name in failing), details(result)
    errors = result.err.splitlines()
    assert errors[0].startswith("error: ")
    assert f"failed {len(failing)} of {len(DEEP if deep else QUICK)} checks" in errors[0]
    assert all(errors)


def edited(path: Path, old: bytes, new: bytes) -> None:
    raw = path.read_bytes()
    assert old in raw
    path.write_bytes(raw.replace(old, new, 1))


def changed(world: World, change: Callable[[State], object]) -> None:
    """Save the state again with something else in it, well formed."""
    state = load_state(world.sidecar)
    change(state)
    save_state(world.sidecar, state)


def stored(world: World) -> Path:
    """An image of the first edit."""
    return world.folder / "images" / world.entries()[0]["images"][0]


@damage("ledger", "ledger.jsonl:2: line was changed")
def a_line_was_changed(world: World) -> None:
    edited(world.folder / "ledger.jsonl", b'"id":"e2"', b'"id":"f2"')


@damage("digest", "disagree about the first 4 edits")
def lines_are_missing_at_the_end(world: World) -> None:
    lines = (world.folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (world.folder / "ledger.jsonl").write_bytes(b"".join(lines[:2]))


@damage("digest", "disagree about the first 4 edits")
def the_last_line_was_changed_and_is_well_formed(world: World) -> None:
    forge(world.folder / "ledger.jsonl", 4, target="b", hashed=True)


@damage("ledger", "ledger.jsonl:2: line was changed: its question, target or images do not match their hash")
def a_target_was_changed_and_the_chain_made_again(world: World) -> None:
    forge(world.folder / "ledger.jsonl", 2, target="b")


@damage("ledger", "ledger.jsonl:1: line was changed: its question, target or images do not match their hash")
def a_question_was_changed_with_its_content_but_not_its_subject(world: World) -> None:
    path = world.folder / "ledger.jsonl"
    first = parse_entry(path.read_bytes().splitlines(keepends=True)[0], path, 1)
    forge(path, 1, question="is it ?", content=content_hash(first.images, "is it ?", first.target))


@damage("digest", "holds 4 edits, and their ledger")
def the_ledger_is_gone(world: World) -> None:
    (world.folder / "ledger.jsonl").unlink()


@damage("ledger", "is not a file")
def the_ledger_is_a_folder(world: World) -> None:
    the_ledger_is_gone(world)
    (world.folder / "ledger.jsonl").mkdir()


@damage("state", "is damaged")
def the_state_is_cut_short(world: World) -> None:
    world.sidecar.write_bytes(world.sidecar.read_bytes()[:-10])


@damage("state", "no state at")
def the_state_is_gone(world: World) -> None:
    world.sidecar.unlink()


@damage("P", "not symmetric")
def an_entry_of_p_was_changed(world: World) -> None:
    changed(world, lambda state: next(iter(state.P.values()))[0, 1].add_(1e-12))


@damage("P", "eigenvalues from")
def p_is_too_large(world: World) -> None:
    changed(world, lambda state: next(iter(state.P.values())).mul_(1000))


@damage("P", "directions lowered by")
def p_saw_keys_that_are_not_counted(world: World) -> None:
    changed(world, lambda state: setattr(state.meta.sites[0], "keys", 1))


@damage("basis", "rank, seed or scale is not the recipe's")
def a_site_has_another_seed(world: World) -> None:
    changed(world, lambda state: setattr(state.meta.sites[0], "seed", 1))


@damage("basis", "cannot be rebuilt")
def a_site_has_another_basis(world: World) -> None:
    changed(world, lambda state: state.meta.sites[0].basis_fingerprint.reverse())


@damage("basis", "the base has no")
def a_site_is_too_wide_for_any_memory(world: World) -> None:
    def widen(state: State) -> None:
        state.meta.sites[0].shape = (state.meta.sites[0].shape[0], 10**15)

    changed(world, widen)


@damage("images", "is missing")
def an_image_is_gone(world: World) -> None:
    stored(world).unlink()


@damage("images", "has 0 bytes")
def an_image_is_empty(world: World) -> None:
    stored(world).write_bytes(b"")


@damage("images", "is not a stored image")
def an_unknown_file_is_among_the_images(world: World) -> None:
    (world.folder / "images" / "cat\x1b[2J.png").write_bytes(b"x")


@damage("images replay", "has another hash", deep=True)
def an_image_has_other_bytes(world: World) -> None:
    raw = bytearray(stored(world).read_bytes())
    raw[-1] ^= 1
    stored(world).write_bytes(raw)


@damage("anchors", "has changed since it was written")
def an_anchor_was_changed(world: World) -> None:
    edited(world.folder / "anchors.jsonl", b"a photo of", b"a phone of")


@damage("images", "of anchor 1 is missing")
def an_anchors_image_is_gone(world: World) -> None:
    image = json.loads((world.folder / "anchors.jsonl").read_text().splitlines()[0])["image"]
    (world.folder / "images" / image).unlink()


@damage("base", "config.json differ")
def the_config_has_changed(world: World) -> None:
    edited(world.model / "config.json", b"{", b"{ ")


@damage("base", "tensor:")
def a_weight_of_a_site_has_changed(world: World) -> None:
    state = load_state(world.sidecar)
    from more_cli.checkpoint.opening import open_checkpoint

    entry = open_checkpoint(world.model).tensors[state.meta.sites[0].disk_key]
    path = world.model / entry.shard
    raw = bytearray(path.read_bytes())
    raw[entry.start] ^= 1
    path.write_bytes(raw)


@damage("base", "truncated")
def a_shard_is_cut_short(world: World) -> None:
    path = world.model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


@damage("replay", "another state on the same machine: B of", deep=True)
def b_was_changed_a_little(world: World) -> None:
    changed(world, lambda state: next(iter(state.B.values())).mul_(1 + 1e-5))


@damage("state ledger images", "is not JSON")
def everything_is_damaged_at_once(world: World) -> None:
    stored(world).write_bytes(b"")
    world.sidecar.write_bytes(b"\0" * 100)
    edited(world.folder / "ledger.jsonl", b"{", b"[")


@forks
def test_what_cannot_be_read_is_named(world: World) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    stored(world).chmod(0)
    assert "cannot be read: permission denied" in verify(world, "--deep").out


def test_names_with_escape_codes_are_shown_without_them(world: World) -> None:
    an_unknown_file_is_among_the_images(world)
    shown = verify(world)
    assert all(char.isprintable() or char == "\n" for char in shown.out + shown.err)


# --- another machine ---


def test_on_another_machine_the_numbers_are_compared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    b_was_changed_a_little(world)
    here = verifying.versions
    monkeypatch.setattr(verifying, "versions", lambda machine: here(machine) | {"threads": "64"})
    result = verify(world, "--deep", "--json")
    assert (result.code, verdicts(result)["replay"]) == (0, "ok")
    threads = torch.get_num_threads()
    assert "the same numbers within 10%, not the same bytes" in details(result)["replay"]
    assert f"on another machine (threads {threads} -> 64): B of" in details(result)["replay"]
    changed(world, lambda state: next(iter(state.B.values())).mul_(1.2))
    assert "another state on another machine" in details(verify(world, "--deep", "--json"))["replay"]


@pytest.mark.slow
def test_a_key_of_every_token_is_resumed_and_replayed_to_the_same_bytes(tmp_path: Path) -> None:
    at_once, in_parts = (World(tmp_path / name) for name in ("at-once", "in-parts"))
    options = LEARNING
    for world in (at_once, in_parts):
        world.edits(4)
    assert in_parts.edit(*options, "--limit", 2).code in (0, 3)
    assert in_parts.edit(*options, "--consolidate", "all").code in (0, 3)
    at_once.edit(*options, "--consolidate", "all")
    assert in_parts.sidecar.read_bytes() == at_once.sidecar.read_bytes()
    assert run("verify", in_parts.model, "--deep").code == 0


# --- merged folders and adapters ---

WRITTEN = ["origin", "files", "copies", "tensors", "signed"]


@pytest.fixture
def merged(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world.root)
    assert run("merge", world.model, "-o", "merged", "--sha256").code == 0
    return world.root / "merged"


def test_an_unchanged_merged_folder_passes(merged: Path) -> None:
    result = run("verify", merged, "--deep", "--json")
    assert (result.code, verdicts(result), result.err) == (0, dict.fromkeys(WRITTEN, "ok") | UNSIGNED, "")
    assert details(result)["files"] == "1 file, with the recorded hashes"
    assert details(result)["tensors"] == "5 edited tensors, with the recorded hashes"
    assert details(result)["origin"].startswith("4 ledger lines up to ")


@pytest.mark.parametrize(
    ("name", "old", "new", "failing", "said"),
    [
        ("config.json", b"{", b"{ ", ["copies"], "`config.json` differs from the base's"),
        ("model.safetensors", b"F32", b"U32", ["files", "copies"], "`headers` differs from the base's"),
        ("more.json", b'"folds":[{', b'"folds":[[],{', ["origin"], "does not list the edited tensors"),
        ("more.json", b'"disk_key":"', b'"disk_key":"\\u2028', ["tensors"], "has changed since it was written"),
        ("more.json", b'"files"', b'"fils"', ["origin"], "does not list files and base"),
        ("more.json", b'"failed":[]', b'"failed":null', ["origin"], "does not say which edits were written"),
        ("more.json", b'"edits":4', b'"edits":null', ["origin"], "does not say which edits were written"),
        ("more.json", b"provenance/1", b"provenance/2", ["origin"], "is not of the schema"),
        ("more.json", b"{", b"[", ["origin"], "cannot be read: not JSON"),
        ("more.json", b'"model.safetensors":', b'"../\\u2028":', ["files"], "is missing"),
    ],
)
def test_a_merged_folder_that_was_changed(
    merged: Path, name: str, old: bytes, new: bytes, failing: list[str], said: str
) -> None:
    edited(merged / name, old, new)
    result = run("verify", merged, "--deep", "--json")
    assert (result.code, [name for name, verdict in verdicts(result).items() if verdict == "FAILED"]) == (5, failing)
    assert any(said in details(result)[name] for name in failing), details(result)
    assert result.err.startswith(f"error: `{merged}` failed {len(failing)} of 5 checks")


def test_what_failed_is_named_where_a_merged_folder_has_a_state_of_its_own(merged: Path) -> None:
    run("init", merged)
    edited(merged / "more.json", b"provenance/1", b"provenance/2")
    folder = run("verify", merged)
    assert (folder.code, folder.err.startswith(f"error: `{merged}` failed 1 of ")) == (5, True), folder.err
    merged.with_name("merged.more").write_bytes(b"")
    both = run("verify", merged)
    assert both.err.startswith(f"error: `{merged}` and `{merged}.more` failed 2 of "), both.err


def test_a_merged_folder_that_is_no_checkpoint_any_more_is_to_be_written_again(merged: Path) -> None:
    edited(merged / "config.json", b"{", b"[")
    failed = [check for check in run("verify", merged, "--json").json["checks"] if check["verdict"] == "FAILED"]
    assert [check["name"] for check in failed] == ["copies"]
    assert failed[0]["hint"] == "copy it again, or write it again with `more merge` or `more export`"


def test_only_deep_reads_the_weights(merged: Path) -> None:
    flip(merged / "model.safetensors", -1)
    assert run("verify", merged).code == 0
    assert "`model.safetensors` has changed since it was written" in run("verify", merged, "--deep").out


def flip(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(raw)


def test_without_hashes_of_shards_the_edited_tensors_are_compared(world: World) -> None:
    out = world.root / "out"
    run("merge", world.model, "-o", out)
    result = run("verify", out, "--deep", "--json")
    assert (result.code, verdicts(result)) == (0, {**dict.fromkeys(WRITTEN, "ok"), **UNSIGNED, "files": "skipped"})
    assert "`more merge --sha256`" in details(result)["files"]
    key = json.loads((out / "more.json").read_text())["folds"][-1]["disk_key"]
    flip(out / "model.safetensors", open_checkpoint(out).tensors[key].start)
    assert run("verify", out).code == 0
    damaged = run("verify", out, "--deep", "--json")
    assert (damaged.code, details(damaged)["tensors"]) == (5, f"`{key}` has changed since it was written")


def test_an_adapter_is_checked_too(world: World, tmp_path: Path) -> None:
    assert run("export", world.model, "-o", tmp_path / "adapter").code == 0
    result = run("verify", tmp_path / "adapter", "--deep", "--json")
    assert (result.code, verdicts(result)) == (0, dict.fromkeys(WRITTEN[:2], "ok") | UNSIGNED)
    edited(tmp_path / "adapter" / "adapter_config.json", b'"r"', b'"s"')
    assert run("verify", tmp_path / "adapter", "--deep").code == 5
    (tmp_path / "adapter" / "adapter_config.json").unlink()
    assert "`adapter_config.json` is missing" in run("verify", tmp_path / "adapter").out
    card = (tmp_path / "adapter" / "README.md").read_text()
    head = "---\nlibrary_name: peft\ntags:\n- model-editing\n- m-ore\n---\n"
    assert card.startswith(f"{head}\n## Corrected with more\n\n4 corrections were written into ")


# --- P against its closed form ---


@pytest.mark.parametrize("form", ["unit", "paper"])
def test_every_p_of_the_recursion_passes(form: recursion.Normalisation) -> None:
    generator = torch.Generator().manual_seed(0)
    P = recursion.initial(16, 0.5, form)
    for keys in range(1, 200):
        P = recursion.absorb(P, torch.randn(16, generator=generator, dtype=torch.float64) * 10, 0.5, form)
        assert recursion.flaw(P, keys, 0.5, form) == ""
    assert recursion.flaw(P, 15, 0.5, form) == "16 directions lowered by 15 keys"
    assert "not in (0, " in recursion.flaw(-P, 200, 0.5, form)
