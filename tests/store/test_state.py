"""The sidecar: one file, the same bytes for the same edits, read back as it was or not at all."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from more_cli.errors import StateError
from more_cli.store.names import sidecar_path
from more_cli.store.state import load_state, save_state
from more_cli.text import canonical_json
from support.helpers import QUICK, World, run

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("state"), text_layers=1)
    world.edits()
    assert world.edit(*QUICK).code == 3
    return world


def header(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return file.metadata()


def test_what_was_written_is_read_again_and_written_the_same(world: World, tmp_path: Path) -> None:
    save_state(tmp_path / "again.more", load_state(world.sidecar))
    assert (tmp_path / "again.more").read_bytes() == world.sidecar.read_bytes()


def test_the_header_is_one_key_of_canonical_json_without_anything_volatile(world: World) -> None:
    (key,) = header(world.sidecar)
    text = header(world.sidecar)[key]
    meta = json.loads(text)
    assert key == "more"
    assert text == json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert meta["edits"] == 8
    assert meta["recipe"]["max_steps"] == 1
    assert str(world.root) not in text
    assert not {"time", "version", "versions", "host", "path"} & set(meta)


def test_the_same_edits_give_the_same_bytes_in_another_place(world: World, tmp_path: Path) -> None:
    other = World(tmp_path / "deeper" / "elsewhere", text_layers=1)
    other.edits(name="renamed.jsonl")
    other.edit(*QUICK, edits=other.root / "renamed.jsonl")
    assert other.sidecar.read_bytes() == world.sidecar.read_bytes()


def test_its_size_does_not_depend_on_the_number_of_edits(world: World, tmp_path: Path) -> None:
    sizes = set()
    for count in (1, 4):
        world.edit(*QUICK, "--limit", count, "--state", tmp_path / f"{count}.more")
        sizes.add(sum(tensor.nbytes for tensor in load_file(tmp_path / f"{count}.more").values()))
    assert sizes == {sum(tensor.nbytes for tensor in load_file(world.sidecar).values())}


def test_it_holds_b_and_p_of_every_site_and_no_basis(world: World) -> None:
    tensors = load_file(world.sidecar)
    sites = {name.rpartition(".")[0] for name in tensors}
    assert set(tensors) == {f"{site}.{letter}" for site in sites for letter in "BP"}
    assert {tensors[f"{site}.B"].dtype for site in sites} == {torch.float32}
    assert {tensors[f"{site}.P"].dtype for site in sites} == {torch.float64}
    assert all(tensors[f"{site}.P"].equal(tensors[f"{site}.P"].T) for site in sites)


def test_it_lies_beside_the_model_also_when_that_is_spelled_oddly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.model").mkdir()
    monkeypatch.chdir(tmp_path / "my.model")
    assert sidecar_path(Path(".")) == tmp_path / "my.model.more"
    assert sidecar_path(Path("../my.model/")) == tmp_path / "my.model.more"


@pytest.mark.skipif(os.name == "nt", reason="no umask")
def test_others_may_read_it_as_the_umask_says(world: World, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        save_state(tmp_path / "s.more", load_state(world.sidecar))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "s.more").stat().st_mode) == 0o640


def _nan(tensors: Tensors, meta: dict[str, Any]) -> None:
    tensors["text.0.down_proj.P"][0, 0] = float("nan")


def _shape(tensors: Tensors, meta: dict[str, Any]) -> None:
    tensors["text.0.down_proj.B"] = torch.zeros(3, 3)


def _dtype(tensors: Tensors, meta: dict[str, Any]) -> None:
    tensors["text.0.down_proj.P"] = tensors["text.0.down_proj.P"].float()


def _missing(tensors: Tensors, meta: dict[str, Any]) -> None:
    del tensors["text.0.down_proj.B"]


def _surplus(tensors: Tensors, meta: dict[str, Any]) -> None:
    tensors["surplus"] = torch.zeros(1)


def _field(tensors: Tensors, meta: dict[str, Any]) -> None:
    meta["surplus"] = 1


def _count(tensors: Tensors, meta: dict[str, Any]) -> None:
    meta["edits"] = -1


def _recipe(tensors: Tensors, meta: dict[str, Any]) -> None:
    meta["recipe"]["rank"] = "many"


def _infinite(tensors: Tensors, meta: dict[str, Any]) -> None:
    meta["sites"][0]["energy"] = float("inf")


def _seed(tensors: Tensors, meta: dict[str, Any]) -> None:
    meta["sites"][0]["seed"] = 10**30


def _keys(tensors: Tensors, meta: dict[str, Any]) -> None:
    meta["sites"][0]["keys"] = 10**400


SPOILT = [_nan, _shape, _dtype, _missing, _surplus, _field, _count, _recipe, _infinite, _seed, _keys]


@pytest.mark.parametrize("spoil", SPOILT)
def test_damage_is_one_error(world: World, tmp_path: Path, spoil: Callable[[Tensors, dict[str, Any]], None]) -> None:
    tensors, meta = load_file(world.sidecar), json.loads(header(world.sidecar)["more"])
    del meta["checksum"]
    meta["schema_version"] = 1  # which has no checksum that would see it first
    spoil(tensors, meta)
    save_file(tensors, tmp_path / "s.more", {"more": json.dumps(meta)})
    with pytest.raises(StateError, match="is damaged") as caught:
        load_state(tmp_path / "s.more")
    assert "replays the ledger" in caught.value.hint


@pytest.mark.parametrize("place", [0.001, 0.01, 0.02, 0.1, 0.5, 0.9, 0.99999])
def test_one_bit_anywhere_is_seen(world: World, tmp_path: Path, place: float) -> None:
    spoilt = bytearray(world.sidecar.read_bytes())
    spoilt[int(place * len(spoilt))] ^= 1
    (tmp_path / "s.more").write_bytes(spoilt)
    with pytest.raises(StateError, match=r"is damaged|is not a state"):
        load_state(tmp_path / "s.more")


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"description": "other"}},
        {"calibration": {"rule": "other"}},
        {"checksum": ""},
        {"checksum": "0" * 64},
        {"schema_version": 1},
    ],
)
def test_what_no_replay_would_notice_is_seen(world: World, tmp_path: Path, change: dict[str, Any]) -> None:
    meta = json.loads(header(world.sidecar)["more"])
    for name, value in change.items():
        meta[name] = meta[name] | value if isinstance(meta[name], dict) else value
    save_file(load_file(world.sidecar), tmp_path / "s.more", {"more": canonical_json(meta)})
    with pytest.raises(StateError, match="does not match its checksum"):
        load_state(tmp_path / "s.more")


def test_a_state_from_before_checksums_is_read_and_gets_one(world: World, tmp_path: Path) -> None:
    meta = json.loads(header(world.sidecar)["more"])
    del meta["checksum"]
    save_file(load_file(world.sidecar), tmp_path / "s.more", {"more": canonical_json(meta | {"schema_version": 1})})
    save_state(tmp_path / "again.more", load_state(tmp_path / "s.more"))
    assert (tmp_path / "again.more").read_bytes() == world.sidecar.read_bytes()


@pytest.mark.parametrize("size", [0, 5, 8, 100, 5000])
def test_a_beginning_is_no_state(world: World, tmp_path: Path, size: int) -> None:
    (tmp_path / "s.more").write_bytes(world.sidecar.read_bytes()[:size])
    with pytest.raises(StateError):
        load_state(tmp_path / "s.more")


def test_a_state_keeps_its_bytes_when_nothing_is_applied(world: World) -> None:
    before = world.sidecar.read_bytes()
    for command in (("status",), ("eval",), ("init", *QUICK)):
        assert run(command[0], world.model, *command[1:]).code == 0
    assert world.sidecar.read_bytes() == before
