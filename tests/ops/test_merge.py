"""A merge writes the base with the edits folded in, to the byte, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForImageTextToText

from more_cli import files
from more_cli.checkpoint.copying import Copying
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.base import EditRequest
from more_cli.editors.more.sites import rebuild_basis
from more_cli.files import sha256_bytes, sha256_file
from more_cli.model.loading import load_prompter
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.ops import folding, session
from more_cli.ops import merge as merging
from more_cli.ops import provenance as written
from more_cli.ops.session import open_session
from more_cli.outputs.products import ProvenanceFile
from more_cli.store.ledger import Ledger
from more_cli.store.state import load_state
from more_cli.store.target import locate
from support import tiny
from support.helpers import LEARNING, Result, World, at_call, die, forks, in_child, line, run, tree
from support.schemas import differences_of

ONE_SHARD = ("--set", 'sites=["text.ffn_out"]', "--set", "last=1")
"""Sites that lie in one of three shards."""
LAYOUTS = list(product(["save_pretrained", "old_hub"], [1, 3], ["float32", "bfloat16"]))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> World:
    return edited(World(tmp_path_factory.mktemp("merge") / "world"))


@pytest.fixture
def world(original: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A copy of an edited model that a test may change."""
    shutil.copytree(original.root, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    return World.at(tmp_path / "world")


def edited(world: World, count: int = 4, *options: object) -> World:
    world.edits(count)
    assert world.edit(*LEARNING, *options).code in (0, 3)
    return world


def merge(world: World, *options: object, out: object = "out") -> Result:
    return run("merge", world.model, "-o", out, *options)


def exact(world: World) -> dict[str, torch.Tensor]:
    """Every edited tensor as it would be without rounding, by disk key."""
    state, base = load_state(world.sidecar), tiny.read_weights(world.model)
    return {
        site.disk_key: base[site.disk_key].float() + site.scale * state.B[site.name] @ rebuild_basis(site)
        for site in state.meta.sites
    }


# --- the bytes ---


@pytest.mark.parametrize(("layout", "shards", "dtype"), LAYOUTS)
def test_only_the_edited_tensors_differ_from_the_base(tmp_path: Path, layout: str, shards: int, dtype: str) -> None:
    world = edited(World(tmp_path, layout=layout, shards=shards, dtype=dtype), 2)
    out = tmp_path / "out"
    assert merge(world, out=out).code == 0
    base, merged, wanted = tiny.read_weights(world.model), tiny.read_weights(out), exact(world)
    assert list(merged) == list(base)
    for name, tensor in base.items():
        if name not in wanted:
            assert merged[name].equal(tensor), name
        elif dtype == "bfloat16":
            assert merged[name].equal(wanted[name].bfloat16()), name
        else:
            assert torch.allclose(merged[name], wanted[name], atol=1e-7), name
    assert {file.name for file in out.iterdir()} == {file.name for file in world.model.iterdir()} | {
        "more.json",
        "README.md",
    }
    for shard in world.model.glob("*.safetensors"):
        assert header_bytes(out / shard.name) == header_bytes(shard)


def header_bytes(shard: Path) -> bytes:
    raw = shard.read_bytes()
    return raw[: 8 + int.from_bytes(raw[:8], "little")]


@pytest.mark.parametrize(
    ("place", "whence", "said"),
    [(9, os.SEEK_SET, "differs from its base"), (0, os.SEEK_END, "not as long as its base")],
)
def test_a_byte_outside_the_patches_is_noticed(
    world: World, place: int, whence: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte before or after the patched ranges is changed."""
    overwrite = Copying._overwrite

    def spoilt(copying: Copying, *tensor: Any) -> str:
        sha256 = overwrite(copying, *tensor)
        with open(copying._out / "model.safetensors", "r+b") as shard:
            shard.seek(place, whence)
            shard.write(b"\0")
        return sha256

    monkeypatch.setattr(Copying, "_overwrite", spoilt)
    result = merge(world)
    assert (result.code, said in result.err) == (5, True)
    assert not (world.root / "out").exists()


def test_without_a_state_nothing_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    monkeypatch.setattr(merging, "copy_patched", lambda *_, **__: pytest.fail("copied"))
    result = merge(world, out=tmp_path / "out")
    assert result.code == 5
    assert "no state at" in result.err
    assert "`more edit MODEL EDITS` makes one" in result.err


@pytest.mark.parametrize("command", ["merge", "export", "eval", "edit"])
def test_a_missing_model_is_named(command: str, world: World, tmp_path: Path) -> None:
    more = {"edit": [world.root / "edits.jsonl"], "eval": []}.get(command, ["-o", tmp_path / "out"])
    result = run(command, tmp_path / "nowhere", *more)
    assert (result.code, result.err.splitlines()[0]) == (5, f"error: {tmp_path / 'nowhere'}: no such directory")


def test_a_state_without_edits_gives_the_base(tmp_path: Path) -> None:
    world = World(tmp_path)
    run("init", world.model)
    merge(world, out=tmp_path / "out")
    assert (tmp_path / "out" / tiny.SINGLE).read_bytes() == (world.model / tiny.SINGLE).read_bytes()


# --- the behaviour ---


@pytest.mark.parametrize("layout", ["save_pretrained", "old_hub"])
def test_plain_transformers_sees_the_logits_of_the_live_state(tmp_path: Path, layout: str) -> None:
    world = edited(World(tmp_path, layout=layout))
    merge(world, out=tmp_path / "out")
    for ours, theirs in side_by_side(world, tmp_path / "out").values():
        assert (ours.logits - theirs.logits).abs().max() < 1e-4
        assert ours.all_right().equal(theirs.all_right())


def side_by_side(world: World, out: Path) -> dict[str, tuple[Scored, Scored]]:
    """Every edit's target under the live state, and under the merged folder as a user would load it."""
    session = open_session(locate(world.model, None), Machine())
    model = AutoModelForImageTextToText.from_pretrained(out, local_files_only=True).eval()
    plain = Runtime(model, load_prompter(session.checkpoint))
    requests = [EditRequest.of(session.ledger.edit_of(entry)) for entry in session.ledger.entries]
    with session.attached():
        live = [scored(session.runtime, request) for request in requests]
    return {request.id: (ours, scored(plain, request)) for request, ours in zip(requests, live, strict=True)}


def scored(runtime: Runtime, request: EditRequest) -> Scored:
    return runtime.score(runtime.batch([runtime.encode(request.query, request.target)]))


def lead(scores: Scored) -> float:
    """Return by how much the most likely tokens lead the next ones, at the closest position, in logits."""
    best = scores.logits[scores.mask].float().topk(2).values
    return float((best[:, 0] - best[:, 1]).min())


def test_verify_compares_every_edit(world: World) -> None:
    done = merge(world, "--verify", "--json")
    result = done.json["verification"]
    assert (done.code, result["edits"], result["lost"], result["gained"]) == (0, 4, [], [])
    assert result["largest_logit_gap"] < 1e-4


def test_verify_names_the_edits_that_rounding_lost(tmp_path: Path) -> None:
    # Each edit ends as soon as its answer is right, by a margin that bfloat16 can round away.
    world = World(tmp_path, dtype="bfloat16")
    world.edits()
    world.edit(*LEARNING, "--set", "target_nll=9", "--set", "max_write=0.004", "--set", "halvings=0")
    done = merge(world, "--verify", "--json", out=tmp_path / "out")
    pairs = side_by_side(world, tmp_path / "out")
    lost = [edit for edit, (ours, theirs) in pairs.items() if ours.all_right() and not theirs.all_right()]
    named = done.json["verification"]["lost"]
    assert done.code == (3 if named else 0)
    # `--verify` scores in batches: an answer whose lead is below the resolution of bfloat16 may go either way.
    certain = {edit for edit, both in pairs.items() if all(lead(scores) > 0.1 for scores in both)}
    assert set(named) & certain == set(lost) & certain


def test_lost_edits_are_named_in_the_text_output(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "fold", lambda W, A, B, s: W)
    lost = merge(world, "--verify")
    assert lost.code == 3
    assert "lost to rounding: " in lost.err
    assert "hint: try --rounding stochastic" in lost.err
    assert (world.root / "out" / "more.json").exists()


# --- rounding ---


def test_the_surviving_part_of_an_update_is_reported(tmp_path: Path) -> None:
    world = edited(World(tmp_path, dtype="bfloat16"), 2)
    shown = merge(world, out=tmp_path / "out")
    assert "update kept" in shown.out
    folds = merge(world, "--json", out=tmp_path / "again").json["folds"]
    wanted, base = exact(world), tiny.read_weights(world.model)
    for fold in folds:
        W, target = base[fold["disk_key"]], wanted[fold["disk_key"]]
        error = (target.bfloat16().float() - target).norm() / (target - W.float()).norm()
        assert fold["realised"] == pytest.approx(max(0.0, 1 - float(error)), abs=1e-3)
        assert fold["changed"] == pytest.approx(float((target.bfloat16() != W).float().mean()), abs=1e-6)
        assert fold["dtype"] == "bfloat16"


def test_a_seed_without_stochastic_rounding_is_refused(world: World) -> None:
    refused = merge(world, "--seed", "3")
    assert (refused.code, (world.root / "out").exists()) == (2, False)
    assert "`--seed` is of stochastic rounding\nhint: add --rounding stochastic, or leave --seed out" in refused.err


def test_stochastic_rounding_is_right_on_average_and_the_same_for_a_seed(tmp_path: Path) -> None:
    world = edited(World(tmp_path, dtype="bfloat16", text_layers=1), 1)
    key, wanted = "multi_modal_projector.linear_1.weight", exact(world)
    options = ("--rounding", "stochastic", "--force", "-q")
    draws = []
    for seed in range(30):
        merge(world, *options, "--seed", seed, out=tmp_path / "out")
        draws.append(tiny.read_weights(tmp_path / "out")[key])
    merge(world, *options, "--seed", 29, out=tmp_path / "out")
    assert tiny.read_weights(tmp_path / "out")[key].equal(draws[-1])
    assert not draws[0].equal(draws[1])
    target = wanted[key]
    unit = 2.0 ** torch.floor(torch.log2(target.abs())) / 128
    assert ((torch.stack(draws).float() - target).abs() <= unit * 1.001).all()
    nearest = (target.bfloat16().float() - target).norm()
    assert (torch.stack(draws).float().mean(dim=0) - target).norm() < 0.5 * nearest


# --- files beside the weights ---


CARD = b"---\nlicense: mit\ntags: [x]\n---\n# My model\n\xff\n\n\n"


def test_provenance_names_the_origin_of_the_weights(world: World) -> None:
    merge(world)
    provenance = json.loads((world.root / "out" / "more.json").read_text())
    assert provenance["schema"] == "more.provenance/1"
    assert differences_of(ProvenanceFile, provenance) == []
    assert provenance["edits"] == 4
    assert provenance["recipe"]["max_steps"] == 30
    assert provenance["ledger_head"] == run("log", world.model, "--json").json["head"]
    assert sum(provenance["statuses"].values()) == 4
    assert provenance["base"] == load_state(world.sidecar).meta.base
    assert {"torch", "transformers", "more", "threads"} <= set(provenance["versions"])
    assert provenance["files"] == {}
    written = tiny.read_weights(world.root / "out")
    hashes = {fold["disk_key"]: fold["sha256"] for fold in provenance["folds"]}
    assert hashes == {key: sha256_bytes(tiny.raw(written[key])) for key in exact(world)}
    assert str(world.root) not in json.dumps(provenance)
    assert provenance["previous"] is None


def test_the_model_card_keeps_the_bases_and_adds_a_section(world: World) -> None:
    (world.model / "README.md").write_bytes(CARD)
    merge(world)
    card = (world.root / "out" / "README.md").read_bytes()
    above, section = card.split(b"\n## Corrected with more\n")
    head = "---\nlicense: mit\ntags:\n- x\n- model-editing\n- m-ore\nlibrary_name: transformers\n---\n"
    assert above == head.encode() + b"# My model\n\xff\n"
    text = section.decode()
    assert "4 corrections were written into these weights with M-ORE." in text
    assert "| base | `model`, headers " in text
    assert "| corrections | 4 learnt |" in text
    assert "| tensors changed | 14 |" in text
    assert str(world.root) not in text
    (world.model / "README.md").unlink()
    merge(world, out="bare")
    bare = "---\nlibrary_name: transformers\ntags:\n- model-editing\n- m-ore\n---\n\n## Corrected with more\n"
    assert (world.root / "bare" / "README.md").read_bytes() == bare.encode() + section


def test_a_merge_of_a_merge_names_the_one_before(world: World) -> None:
    merge(world)
    run("edit", "out", "edits.jsonl", *LEARNING)
    run("merge", "out", "-o", "twice")
    provenance = json.loads((world.root / "twice" / "more.json").read_text())
    assert provenance["previous"] == sha256_file(world.root / "out" / "more.json")
    assert (world.root / "twice" / "README.md").read_text().count("## Corrected with more") == 2
    assert run("verify", "twice", "--deep").code == 0
    result = run("verify", "out", "--json").json
    assert (result["ok"], {"origin", "copies", "ledger"} <= {check["name"] for check in result["checks"]}) == (
        True,
        True,
    )


def test_other_copies_of_the_weights_are_named_and_not_copied(world: World) -> None:
    (world.model / "pytorch_model.bin").write_bytes(b"stale")
    (world.model / "consolidated.safetensors").write_bytes(b"stale")
    (world.model / "notes.txt").write_text("kept")
    shown = merge(world)
    assert "not copied (it may hold weights without the edits): consolidated.safetensors" in shown.err
    assert {"pytorch_model.bin", "consolidated.safetensors"}.isdisjoint(tree(world.root / "out"))
    assert tree(world.root / "out")["notes.txt"] == b"kept"


# --- edits that do not stand ---


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four edits, of which three do not fit into the context and are refused."""
    return with_refused(World(tmp_path_factory.mktemp("refused"), text_layers=1), {1, 2, 3})


def with_refused(world: World, numbers: set[int]) -> World:
    text = json.loads((world.model / "config.json").read_text())["text_config"]
    tiny.set_config(world.model, text_config=text | {"max_position_embeddings": 100})
    world.write([line(number, **({"target": "@" * 100} if number in numbers else {})) for number in range(4)])
    assert world.edit(*LEARNING).code == 3
    return world


NOT_STANDING = "3 of 4 edits do not stand: e2 (refused), e3 (refused), e4 (refused)"


@pytest.mark.parametrize("options", [[], ["--verify"], ["--dry-run"]])
def test_the_last_line_names_the_edits_that_do_not_stand(refused: World, tmp_path: Path, options: list[str]) -> None:
    done = merge(refused, *options, out=tmp_path / "out")
    assert (done.code, done.out.splitlines()[-1]) == (0, NOT_STANDING)
    assert ("merged 1 edit into " in done.out) == ("--dry-run" not in options)
    assert ("verified: 1 of 1 edit scores" in done.out) == ("--verify" in options)
    values = merge(refused, *options, "--json", "--force", out=tmp_path / "out").json
    assert (values["edits"], values["asked"]) == (1, 4)
    assert [(edit["id"], edit["status"]) for edit in values["failed"]] == [(f"e{n}", "refused") for n in (2, 3, 4)]
    assert all(edit["reason"] for edit in values["failed"])


def test_provenance_and_card_name_the_edits_that_do_not_stand(refused: World, tmp_path: Path) -> None:
    failed = merge(refused, "--json", out=tmp_path / "out").json["failed"]
    provenance = json.loads((tmp_path / "out" / "more.json").read_text())
    assert differences_of(ProvenanceFile, provenance) == []
    assert (provenance["asked"], provenance["failed"], provenance["statuses"]) == (
        4,
        failed,
        {"learnt": 1, "refused": 3},
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert "1 correction was written into these weights" in card
    assert f"`{NOT_STANDING}`; `more.json` has the reasons." in card


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--force"]])
def test_require_all_writes_nothing_and_reads_no_weights(
    refused: World, tmp_path: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "copy_patched", lambda *_, **__: pytest.fail("copied"))
    monkeypatch.setattr(session, "open_session", lambda *_, **__: pytest.fail("opened"))
    before = tree(refused.root)
    done = merge(refused, "--require-all", *options, out=tmp_path / "out")
    assert (done.code, done.out) == (3, "")
    error, hint = done.err.splitlines()
    assert error == f"error: {NOT_STANDING}"
    assert "`more edit MODEL --retry` tries them again" in hint
    assert (tree(refused.root), [*tmp_path.iterdir()]) == (before, [])


def test_require_all_sees_an_edit_that_fails_while_files_are_copied(
    refused: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "Ledger", lambda folder: Ledger(folder / "empty"))
    done = merge(refused, "--require-all", out=tmp_path / "out")
    assert (done.code, NOT_STANDING in done.err) == (3, True)
    assert [*tmp_path.iterdir()] == []


def test_require_all_is_met_when_every_edit_stands(world: World) -> None:
    assert merge(world, out="free").code == 0
    required = merge(world, "--require-all")
    assert (required.code, "not stand" in required.out) == (0, False)
    assert tree(world.root / "out") == tree(world.root / "free")
    provenance = json.loads((world.root / "out" / "more.json").read_text())
    assert (provenance["asked"], provenance["failed"]) == (4, [])


def test_a_merge_of_refused_edits_alone_says_that_nothing_changed(tmp_path: Path) -> None:
    world = with_refused(World(tmp_path, text_layers=1), {0, 1, 2, 3})
    done = merge(world, out=tmp_path / "out")
    assert (done.code, "merged" in done.out) == (0, False)
    said, last = done.out.splitlines()
    assert said == f"wrote {tmp_path / 'out'}; nothing changed: all its weights are the base's"
    assert last.startswith("4 of 4 edits do not stand: e1 (refused), ")
    assert (tmp_path / "out" / tiny.SINGLE).read_bytes() == (world.model / tiny.SINGLE).read_bytes()
    lost = run("export", world.model, "-o", tmp_path / "adapter")
    assert (lost.code, (tmp_path / "adapter").exists()) == (5, False)
    assert "has no edits to export: 4 of 4 edits do not stand: e1 (refused), " in lost.err
    assert "hint: `more edit MODEL --retry` tries them again" in lost.err


def test_an_export_names_the_edits_that_do_not_stand(refused: World, tmp_path: Path) -> None:
    for format, out in (("peft", tmp_path / "adapter"), ("delta", tmp_path / "delta.safetensors")):
        done = run("export", refused.model, "--format", format, "-o", out)
        assert (done.code, done.out.splitlines()[-1]) == (0, NOT_STANDING)
        assert ": 1 edit in " in done.out
        values = run("export", refused.model, "--format", format, "-o", out, "--force", "--json").json
        assert (values["edits"], values["asked"], len(values["failed"])) == (1, 4, 3)
    written = json.loads((tmp_path / "adapter" / "more.json").read_text())
    assert differences_of(ProvenanceFile, written) == []
    with safe_open(tmp_path / "delta.safetensors", framework="pt") as file:
        inside = json.loads(file.metadata()["more"])
    assert written["failed"] == inside["failed"] == values["failed"]
    assert (written["asked"], inside["asked"]) == (4, 4)


def test_provenance_of_older_versions_is_verified(world: World) -> None:
    merge(world)
    path = world.root / "out" / "more.json"
    values = json.loads(path.read_text())
    del values["asked"], values["failed"]
    path.write_text(json.dumps(values))
    assert run("verify", "out", "--deep").code == 0


# --- whole or not at all ---


def test_a_second_merge_needs_force_and_gives_the_same_bytes(world: World) -> None:
    merge(world)
    first = tree(world.root / "out")
    assert merge(world).code == 2
    assert merge(world, "--force").code == 0
    assert tree(world.root / "out") == first


@pytest.mark.parametrize("options", [[], ["--verify"], ["--link"]])
def test_a_dry_run_writes_nothing_and_loads_no_model(
    world: World, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "load_runtime", lambda *_, **__: pytest.fail("loaded"))
    before = tree(world.root)
    shown = merge(world, "--dry-run", *options)
    assert (shown.code, "14 tensors changed" in shown.out) == (0, True)
    fold = merge(world, "--dry-run", "--json", *options).json["folds"][0]
    assert [fold[key] for key in ("dtype", "changed", "realised")] == [None] * 3
    assert tree(world.root) == before


def test_the_base_and_the_state_are_left_alone(world: World) -> None:
    before = tree(world.root)
    merge(world, "--verify", "--sha256")
    after = {name: content for name, content in tree(world.root).items() if Path(name).parts[0] != "out"}
    assert after == before


@forks
@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True])
def test_killed_at_any_moment_it_leaves_the_old_folder_or_the_new_one(world: World, existing: bool) -> None:
    run("edit", world.model, "edits.jsonl", *LEARNING, "--limit", 1, "--state", "one.more")
    merge(world, "--state", "one.more", out="old")
    merge(world, out="new")
    out, old, new = world.root / "out", tree(world.root / "old"), tree(world.root / "new")
    step, died = 0, -signal.SIGKILL
    while died == -signal.SIGKILL:
        step += 2
        if existing:
            shutil.copytree(world.root / "old", out)
        died = in_child(lambda step=step: killed(world, step))
        assert tree(out) in ({}, old, new)
        assert merge(world, "--force").code == 0
        assert tree(out) == new
        assert not [*world.root.glob(".out.*")]
        shutil.rmtree(out)
    assert step > 20


def killed(world: World, step: int) -> Result:
    moments = [(Copying, "_overwrite"), (Copying, "_compare"), (merging, "_write_provenance")]
    at_call(step, [*moments, (files, "_write"), (files, "_fsync"), (files, "_rename")], die)
    return merge(world, "--force")


def test_force_removes_nothing_that_was_not_written(world: World) -> None:
    out = world.root / "out"
    (world.model / os.fsdecode(b"caf\xe9.txt")).write_text("of the base")
    for _ in range(2):
        assert merge(world, "--force").code == 0
    for name in ("notes.txt", "eval/r.json", ".git/HEAD", "sub/dir/a", "sub/dir/b"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("mine")
    before = tree(out)
    for options in (["--force"], ["--force", "--dry-run"]):
        refused = merge(world, *options)
        assert refused.code == 2
        first = "error: `out` holds more than was written there: .git/HEAD, eval/r.json, notes.txt and 2 more"
        assert refused.err.splitlines() == [first, "hint: move that away, or name a new folder"]
        assert tree(out) == before
    for name in (".git", "eval", "sub"):
        shutil.rmtree(out / name)
    (out / "notes.txt").unlink()
    (out / "model.safetensors.index.json").unlink(missing_ok=True)  # what is missing is no hindrance
    assert merge(world, "--force").code == 0


def test_force_replaces_no_folder_on_which_another_state_has_edits(world: World) -> None:
    assert merge(world).code == 0
    assert run("init", "out").code == 0
    assert merge(world, "--force").code == 0, "a state without edits loses nothing"
    assert run("edit", "out", world.edits(1), *ONE_SHARD, "--set", "max_steps=1", "--state", "ann").code in (0, 3)
    before = tree(world.root)
    for options in (["--force"], ["--force", "--dry-run"]):
        refused = merge(world, *options)
        first = "error: `out` is the base of `out.ann.more`, which has edits"
        second = "hint: name a new folder, or move `out.ann.more` and `out.ann.more.d` away"
        assert (refused.code, refused.err.splitlines()) == (2, [first, second])
        assert tree(world.root) == before


@pytest.mark.parametrize("damage", ["{", '{"schema": "more.provenance/1", "files": {}, "base": {}}'])
def test_force_replaces_no_folder_of_which_it_is_not_known_what_was_written(world: World, damage: str) -> None:
    out = world.root / "out"
    assert merge(world).code == 0
    (out / "more.json").write_text(damage)
    refused = merge(world, "--force")
    assert refused.code == 2
    assert refused.err.endswith("hint: name a new folder, or remove `out`\n")


@pytest.mark.parametrize("wrong", [KeyboardInterrupt, MemoryError, OSError(28, "No space left on device")])
def test_a_merge_that_fails_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    def fail(*_: Any) -> None:
        raise wrong

    before = tree(world.root)
    monkeypatch.setattr(Copying, "_overwrite", fail)
    assert merge(world).code == (130 if wrong is KeyboardInterrupt else 7)
    assert tree(world.root) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_as_ctrl_c_does_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before, handler = tree(world.root), signal.signal(number, signal.SIG_DFL)
    monkeypatch.setattr(Copying, "_overwrite", lambda *_: os.kill(os.getpid(), number))
    done = merge(world)
    assert done.code == 130
    assert done.err.startswith("interrupted; what was saved so far is kept;")
    assert tree(world.root) == before
    assert signal.signal(number, handler) is signal.SIG_DFL


def test_a_signal_within_a_lock_ends_as_ctrl_c_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("release unlocked lock")  # noqa: B904 (as `threading.Condition` raises it)

    before = tree(world.root)
    monkeypatch.setattr(Copying, "start", interrupted)
    assert merge(world).code == 130
    assert tree(world.root) == before


@pytest.mark.parametrize(
    ("wrong", "code"), [(KeyboardInterrupt(), 130), (OSError(5, "Input/output error"), 5), (OSError(28, "full"), 7)]
)
def test_hashing_that_fails_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, wrong: BaseException, code: int
) -> None:
    def fail(*_: Any) -> str:
        raise wrong

    before = tree(world.root)
    monkeypatch.setattr(written, "sha256_file", fail)
    assert merge(world, "--sha256").code == code
    assert tree(world.root) == before
    assert merge(world).code == 0


def test_torch_is_imported_while_files_are_copied(world: World) -> None:
    script = """
import sys
from more_cli.ops import merge
from more_cli.cli.app import main

copy = merge.copy_patched

def watched(*args, **kwargs):
    assert "torch" not in sys.modules
    return copy(*args, **kwargs)

merge.copy_patched = watched
sys.exit(main(["merge", *sys.argv[1:]]))
"""
    command = [sys.executable, "-c", script, str(world.model), "-o", str(world.root / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    merge(world, out="here")
    assert tree(world.root / "out") == tree(world.root / "here")


def test_a_merge_is_never_of_a_stale_state(world: World) -> None:
    merge(world, out="fresh")
    ahead = world.sidecar.read_bytes()
    run("edit", world.model, "edits.jsonl", *LEARNING, "--limit", 1, "--state", "one.more")
    world.sidecar.unlink()
    run("init", world.model, *LEARNING)
    stale = world.sidecar.read_bytes()
    replayed = merge(world)
    assert "replayed 4 ledger lines that were not in the state" in replayed.err
    assert tree(world.root / "out") == tree(world.root / "fresh")
    assert world.sidecar.read_bytes() == stale != ahead


def test_shards_without_edits_are_linked(tmp_path: Path) -> None:
    world = edited(World(tmp_path / "world", shards=3), 4, *ONE_SHARD)
    assert merge(world, "--sha256", out=tmp_path / "copied").code == 0
    before, times = tree(world.model), {path: path.stat().st_mtime_ns for path in world.model.iterdir()}
    result = merge(world, "--link", "--sha256", "--json", out=tmp_path / "linked")
    assert result.code == 0, result.err
    linked, copied = tree(tmp_path / "linked"), tree(tmp_path / "copied")
    linking, copying = (json.loads(made.pop("more.json") or b"") for made in (linked, copied))
    assert linked == copied
    # Linked shards are listed and not hashed.
    own = result.json["linked"]
    assert (linking["linked"], copying["linked"]) == (own, [])
    assert copying["files"] == {shard: sha256_file(tmp_path / "copied" / shard) for shard in shards_of(world.model)}
    assert linking["files"] == {shard: sha256 for shard, sha256 in copying["files"].items() if shard not in own}
    touched = {fold["disk_key"] for fold in result.json["folds"]}
    shards = shards_of(world.model)
    assert result.json["linked"] == sorted(shards.keys() - {shard for shard in shards if shards[shard] & touched})
    assert 0 < len(result.json["linked"]) < len(shards)
    for path in (tmp_path / "linked").iterdir():
        shared = path.stat().st_ino in {base.stat().st_ino for base in world.model.iterdir()}
        assert shared == (path.name in result.json["linked"]), path.name
    # Shared files are never written to, and stay in the base when the result is removed or replaced.
    again = merge(world, "--link", "--force", out=tmp_path / "linked")
    assert again.code == 0
    assert f"{len(result.json['linked'])} of {len(shards)} shards are hard links" in again.out
    shutil.rmtree(tmp_path / "linked")
    assert tree(world.model) == before
    assert {path: path.stat().st_mtime_ns for path in world.model.iterdir()} == times


def test_a_linked_shard_is_not_even_opened_for_writing(tmp_path: Path) -> None:
    world = edited(World(tmp_path / "world", shards=3), 2, *ONE_SHARD)
    for shard in world.model.glob("*.safetensors"):
        shard.chmod(0o444)
    opened: list[str] = []
    listening = True

    def hear(event: str, args: tuple[Any, ...]) -> None:  # an audit hook cannot be removed
        if listening and event == "open" and isinstance(args[0], str | Path) and args[2] & (os.O_WRONLY | os.O_RDWR):
            opened.append(Path(args[0]).name)

    sys.addaudithook(hear)
    result = merge(world, "--link", "--json", out=tmp_path / "linked")
    listening = False
    assert result.code == 0, result.err
    assert result.json["linked"]
    copied = shards_of(world.model).keys() - set(result.json["linked"])
    assert set(opened) & shards_of(world.model).keys() == copied


def test_a_snapshot_of_links_is_linked_to_its_files(tmp_path: Path) -> None:
    world = edited(World(tmp_path / "world", shards=3), 2, *ONE_SHARD)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for shard in world.model.glob("*.safetensors"):
        shard.rename(blobs / shard.name)
        shard.symlink_to(blobs / shard.name)
    result = merge(world, "--link", "--json", out=tmp_path / "linked")
    assert result.code == 0, result.err
    for name in result.json["linked"]:
        assert not (tmp_path / "linked" / name).is_symlink()
        assert (tmp_path / "linked" / name).samefile(blobs / name)


def test_where_nothing_can_be_linked_shards_are_copied_and_a_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = edited(World(tmp_path / "world", shards=3), 2, *ONE_SHARD)
    assert merge(world, out=tmp_path / "copied").code == 0

    def across(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", across)
    result = merge(world, "--link", out=tmp_path / "linked")
    assert result.code == 0
    reason = os.strerror(errno.EXDEV).lower()
    assert f"note: shards were copied because they cannot be linked here: {reason}" in result.err
    assert "are hard links" not in result.out
    assert tree(tmp_path / "linked") == tree(tmp_path / "copied")


def shards_of(model: Path) -> dict[str, set[str]]:
    """The tensors of every shard."""
    result: dict[str, set[str]] = {}
    for key, entry in open_checkpoint(model).tensors.items():
        result.setdefault(entry.shard, set()).add(key)
    return result
