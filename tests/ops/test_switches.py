"""Every switch for an ablation through the commands: resumed to the same bytes, merged, exported, reverted, said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from more_cli.editors.more.sites import rebuild_basis
from more_cli.recipe.files import load_recipe, shipped_recipes
from more_cli.recipe.schema import SWITCHES
from more_cli.store.state import load_meta, load_state, save_state
from support.helpers import Result, World, at_call, die, forks, in_child, run, stopped_at

SMALL = tuple(
    word
    for key in ("last=1", "max_steps=2", "halvings=0", "rehearsal.size=0", "compact=none")
    for word in ("--set", key)
)
SWITCHED: dict[str, tuple[str, ...]] = {
    "one P per modality": ("statistics=modality",),
    "one P for all sites": ("statistics=shared",),
    "keys of text sites from all tokens": ("key_mask=false",),
    "the key taken after the write": ("key_taken=after",),
    "P absorbs a key after every write": ("absorb=write",),
    "a rank of up to 100% of a site's inputs": ("rank_share=1",),
    "no P": ("precondition=false",),
    "basis gaussian": ("basis=gaussian",),
    "basis xavier": ("basis=xavier",),
    "basis pca": ("basis=pca",),
    "A trained at rate 0.05": ("basis_rate=0.05",),
    "A orthonormal again after every write": ("basis_rate=0.05", "basis_orthonormal=true"),
    "the last 1 vision layer": ('sites=["text.ffn_out","projector","vision.ffn_out"]', "last_vision=1"),
    "writes to 2 groups of the largest gradient": ("top_k=2",),
    "targets without their end": ("end_of_sequence=false",),
    "targets tokenised alone": ("labels=alone",),
    "2 anchor keys in P after every edit": ("anchors.per_edit=2",),
    "seed 43 of the basis": ("seed=43",),
}
"""What `status` says of settings."""
MADE = {
    "none": (),
    "drawn": (
        "statistics=shared",
        "key_mask=false",
        "key_taken=after",
        "basis=gaussian",
        *SWITCHED["the last 1 vision layer"],
    ),
    "whole": ("rank_share=1",),
    "pca": ("basis=pca", "statistics=modality", "key_taken=after", "absorb=write"),
    "trained": ("basis_rate=0.05",),
    "orthonormal": ("basis_rate=0.05", "basis_orthonormal=true", "statistics=shared"),
}
"""States of four edits."""
STORED = ("pca", "trained", "orthonormal")
"""Those of them that hold A."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("switches") / "world", text_layers=2)
    world.edits(4)
    world.write(
        [{"question": "what is in the image ?", "image": "img/white.png"}, {"question": "why ?"}], "asked.jsonl"
    )
    return world


def init(world: World, sidecar: Path, settings: Sequence[str], *options: object) -> None:
    few = "--set", "anchors.prompts=[]"  # a model of random weights answers each at length
    held = ("--anchors", world.root / "asked.jsonl", *few) if "basis=pca" in settings else ()
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = run("init", world.model, "--state", sidecar, *SMALL, *chosen, *held, *options)
    assert done.code == 0, done.err


def edit(world: World, sidecar: Path, *options: object) -> None:
    done = world.edit("--state", sidecar, *options)
    assert done.code in (0, 3), done.err


@pytest.fixture(scope="module")
def made(world: World) -> dict[str, Path]:
    states = {name: world.root / f"{name}.more" for name in MADE}
    for name, path in states.items():
        init(world, path, MADE[name])
        edit(world, path)
    return states


@pytest.mark.parametrize("words", SWITCHED)
def test_status_says_what_is_switched(world: World, tmp_path: Path, words: str) -> None:
    settings = SWITCHED[words]
    init(world, tmp_path / "s.more", settings)
    said = run("status", world.model, "--state", tmp_path / "s.more").out
    assert "\nswitches " in said
    assert words in " ".join(said.split())
    own = {setting.partition("=")[0] for setting in settings} & set(SWITCHES)
    assert set(SWITCHES) & set(load_meta(tmp_path / "s.more").recipe.canonical()) == own, "the others are not stored"


def test_status_is_silent_without_a_switch(world: World, made: dict[str, Path]) -> None:
    assert "\nswitches " not in run("status", world.model, "--state", made["none"]).out


@pytest.mark.parametrize("name", MADE)
def test_two_edits_and_then_the_rest_give_the_same_bytes(
    world: World, made: dict[str, Path], tmp_path: Path, name: str
) -> None:
    init(world, tmp_path / "s.more", MADE[name])
    edit(world, tmp_path / "s.more", "--limit", 2)
    edit(world, tmp_path / "s.more")
    assert (tmp_path / "s.more").read_bytes() == made[name].read_bytes()


@forks
@pytest.mark.parametrize("name", STORED)
def test_a_killed_run_ends_with_the_same_bytes(world: World, made: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Killed before the third edit, with one edit in the ledger that the sidecar lacks."""
    from more_cli.ops.session import Session

    sidecar = tmp_path / "s.more"
    init(world, sidecar, MADE[name])

    def killed() -> object:
        at_call(4, [(Session, "count"), (Session, "save")], die)
        return world.edit("--state", sidecar, "--save-every", 2)

    assert in_child(killed) == -9
    assert load_meta(sidecar).edits < len(world.entries(sidecar)) < 4
    edit(world, sidecar)
    assert sidecar.read_bytes() == made[name].read_bytes()


@pytest.mark.parametrize("name", MADE)
def test_a_merge_is_the_live_model(world: World, made: dict[str, Path], tmp_path: Path, name: str) -> None:
    merged = run("merge", world.model, "--state", made[name], "-o", tmp_path / "out", "--verify", "--json")
    assert merged.code in (0, 3), merged.err
    found = merged.json["verification"]
    assert (found["lost"], found["gained"]) == ([], [])
    assert found["largest_logit_gap"] < 1e-3
    assert all(0.99 < fold["realised"] <= 1 for fold in merged.json["folds"])


@pytest.mark.parametrize("name", MADE)
def test_both_exports_hold_the_basis_that_the_edits_were_written_with(
    world: World, made: dict[str, Path], tmp_path: Path, name: str
) -> None:
    adapter, deltas = tmp_path / "adapter", tmp_path / "deltas.safetensors"
    for out, kind in ((adapter, "peft"), (deltas, "delta")):
        done = run("export", world.model, "--state", made[name], "--format", kind, "-o", out)
        assert done.code in (0, 3), done.err
    state, found, delta = load_state(made[name]), load_file(adapter / "adapter_model.safetensors"), load_file(deltas)
    for site in state.meta.sites:
        if not bool(state.B[site.name].any()):
            continue
        A = found[f"base_model.model.{site.module}.lora_A.weight"]
        drawn = rebuild_basis(site, state.meta.recipe.basis)
        assert A.equal(state.A[site.name] if name in STORED else drawn)
        assert torch.allclose(A, drawn, atol=1e-6) != (name in STORED), "A has moved"
        torch.testing.assert_close(delta[site.disk_key], site.scale * state.B[site.name] @ A)


@pytest.mark.parametrize("name", MADE)
def test_a_revert_gives_the_state_without_the_edits(
    world: World, made: dict[str, Path], tmp_path: Path, name: str
) -> None:
    here, settings = tmp_path / "here.more", MADE[name]
    init(world, here, settings)
    edit(world, here)
    assert run("revert", world.model, "--last", 2, "--state", here).code in (0, 3)
    init(world, tmp_path / "two.more", settings)
    edit(world, tmp_path / "two.more", "--limit", 2)
    assert here.read_bytes() == (tmp_path / "two.more").read_bytes()
    assert run("revert", world.model, "--to", 0, "--state", here).code in (0, 3)
    init(world, tmp_path / "none.more", settings)
    assert here.read_bytes() == (tmp_path / "none.more").read_bytes()


@pytest.mark.parametrize("name", MADE)
def test_a_state_verifies(world: World, made: dict[str, Path], name: str) -> None:
    deep = ("--deep",) if name in STORED else ()
    checked = run("verify", world.model, "--state", made[name], *deep, "--json")
    assert checked.code == 0, checked.json["checks"]
    details = {check["name"]: check["detail"] for check in checked.json["checks"]}
    assert any("is stored" in detail for detail in details.values()) == (name in STORED)


def test_a_stored_basis_is_checked_as_every_tensor_is(world: World, made: dict[str, Path], tmp_path: Path) -> None:
    sidecar = tmp_path / "s.more"
    state = load_state(made["trained"])
    name = next(iter(state.A))
    whole = state.A.pop(name)
    for damage, said in (
        ({}, f"`{name}.A` is not"),
        ({name: whole[:1]}, f"`{name}.A` is not"),
        ({name: whole / 0}, "not finite"),
    ):
        state.A = {key: value for key, value in state.A.items() if key != name} | damage
        save_state(sidecar, state)
        done = run("verify", world.model, "--state", sidecar)
        assert done.code == 5
        assert said in done.err + done.out


def test_a_state_without_switches_is_what_it_was(world: World, made: dict[str, Path]) -> None:
    """None of the keys is stored at its default, and none of the tensors is new."""
    with safe_open(made["none"], framework="pt") as file:
        meta, names = json.loads(file.metadata()["more"]), set(file.keys())
    assert not set(SWITCHES) & set(meta["recipe"])
    assert {name.rpartition(".")[2] for name in names} == {"B", "P"}
    for name in shipped_recipes().keys() - {"paper-literal"}:
        assert set(SWITCHES) & set(load_recipe(name).canonical()) <= {"compact"}


def test_a_basis_from_data_needs_data(world: World, tmp_path: Path) -> None:
    done = run("init", world.model, "--state", tmp_path / "s.more", "--set", "basis=pca")
    assert (done.code, done.err) == (
        2,
        "error: basis `pca` is computed from anchors, and there are none\nhint: add --anchors FILE|auto\n",
    )
    assert not (tmp_path / "s.more").exists()
    where = "--suite", world.root / "edits.jsonl", "--cache", tmp_path / "cache"
    measured = run("run", world.model, *where, "--editor", "more", "--set", "basis=pca")
    assert measured.code == 2
    assert "computed from anchors" in measured.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["statistics=all"], '`statistics` cannot be `all`; it takes `"site"` or `"modality"` or `"shared"`'),
        (["statistics=shared", "visual.lambda=7"], "statistics `shared` has one `lambda` for sites that share"),
        (["last_vision=3"], "`last_vision` counts layers of `vision.ffn_out`, which is not in `sites`"),
        (["basis_orthonormal=true"], "`basis_orthonormal` is for a trained A: set `basis_rate` too"),
        (["basis_rate=0.1", "basis=pca"], "`basis_rate` trains a basis that was drawn"),
        (["basis_rate=-1"], "`basis_rate` cannot be `-1`; it takes a number > 0"),
    ],
)
def test_what_does_not_fit_is_said_plainly(world: World, tmp_path: Path, settings: list[str], said: str) -> None:
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = run("init", world.model, "--state", tmp_path / "s.more", *chosen)
    assert done.code == 2
    assert said in done.err
    assert "hint:" in done.err
    assert not (tmp_path / "s.more").exists()


def test_lambdas_of_modalities_may_differ_where_only_a_modality_shares(world: World, tmp_path: Path) -> None:
    init(world, tmp_path / "s.more", ["statistics=modality", "visual.lambda=7"])


def test_recipes_show_describes_every_switch() -> None:
    keys = {key["key"]: key for key in run("recipes", "show", "default", "--json").json["keys"]}
    assert set(SWITCHES) <= set(keys)
    shown = " ".join(run("recipes", "show", "default").out.split())
    assert all(key in shown for key in SWITCHES)


def test_recipes_that_differ_in_a_switch_are_compared(world: World, tmp_path: Path) -> None:
    recipe = tmp_path / "after.toml"
    recipe.write_text('extends = "llava"\nmax_steps = 2\nkey_taken = "after"\nstatistics = "shared"\n')
    where = "--suite", world.root / "edits.jsonl", "--model", world.model, "--cache", tmp_path / "cache"
    done = run("compare", "more", f"more@{recipe}", *where, "--set", "more:max_steps=2", "--limit", 2, "--json")
    assert done.code == 0, done.err
    plain, switched = (each["reproduce"]["constants"] for each in done.json["editors"].values())
    assert set(SWITCHES) & set(plain) == {"compact"}
    assert (switched["key_taken"], switched["statistics"]) == ("after", "shared")


@forks
@pytest.mark.parametrize("name", ["none", "trained"])
def test_a_suite_run_resumes_to_the_same_state(
    name: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at the third edit: A comes back with B and P."""
    from more_cli.runner import steps as run_steps

    monkeypatch.setattr(run_steps, "SAVE_EDITS", 1)
    suite = ("--suite", world.root / "edits.jsonl", "--editor", "more", "--dtype", "float32", "--json")
    settings = (*SMALL, *(word for setting in MADE[name] for word in ("--set", setting)))

    def evaluated(cache: str) -> Result:
        return run("run", world.model, *suite, *settings, "--cache", tmp_path / cache)

    def kept(cache: str) -> bytes:
        (path,) = (tmp_path / cache).glob("runs/*/state.safetensors")
        return path.read_bytes()

    assert stopped_at(3, run_steps.Run, "_edited", lambda: evaluated("torn")) == 130
    rest, whole = evaluated("torn"), evaluated("whole")
    assert (rest.json["resumed"], rest.json["matrix"]) == (2, whole.json["matrix"])
    assert kept("torn") == kept("whole")
