"""Every family from `init` to a merged checkpoint and an adapter, in the saved and the published layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from more_cli.editors.base import EditRequest
from more_cli.model import families
from more_cli.model.batches import Batch
from more_cli.ops.session import Machine, Session, open_session
from more_cli.store.target import locate
from support.helpers import World, line, run, tree
from support.tiny import make_processor, read_weights, spread_weights
from support.tiny_families import FAMILIES
from support.tiny_language import CONFIGS, tiny_language_model
from support.tiny_processors import spells_numbers

COMPLETE = ["llava", "llava_next", *(name for name, row in FAMILIES.items() if row.processor is not None)]
TOLERANCE = {"float32": 2e-4, "bfloat16": 0.25}
"""Largest logit difference between branches beside the weights and weights that the branches were merged into."""
WAYS = [
    *((family, "save_pretrained", "float32") for family in COMPLETE),
    *((family, "old_hub", "bfloat16") for family in COMPLETE),
    *(("llava", "save_pretrained", "bfloat16"), ("llava", "old_hub", "float32")),
]
"""Every family in each layout and each dtype, and all four pairs of these with one family."""


@pytest.fixture(autouse=True)
def _numbers() -> Iterator[None]:
    with spells_numbers():
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout", "dtype"), WAYS)
def test_every_command(tmp_path: Path, family: str, layout: str, dtype: str) -> None:
    world = World(tmp_path, family=family, layout=layout, dtype=dtype)
    world.edits(2)
    goes_through_every_command(world, dtype, AutoModelForImageTextToText)


TEXT = [
    *((family, "float32", False) for family in CONFIGS),
    *((family, "bfloat16", True) for family in CONFIGS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "dtype", "chat"), TEXT)
def test_every_command_on_a_plain_language_model(tmp_path: Path, family: str, dtype: str, chat: bool) -> None:
    tiny_language_model(tmp_path / "model", family, dtype, chat)
    world = World.at(tmp_path)
    world.write([{"question": f"what colour is {thing} ?", "target": thing[0]} for thing in ("a fox", "blue")])
    goes_through_every_command(world, dtype, AutoModelForCausalLM)


def goes_through_every_command(world: World, dtype: str, auto: Any) -> None:
    tmp_path = world.root
    # Many rehearsal samples: on a random model the second edit breaks the first, and both must hold.
    assert run("init", world.model, "--set", "max_steps=30", "--set", "rehearsal.draws=30").code == 0
    done = world.edit("--json")
    assert done.code == 0, done.err + done.out
    assert [entry["status"] for entry in world.entries()] == ["learnt", "learnt"]
    scores = run("eval", world.model, "--json")
    assert scores.json["metrics"]["rel.tf_exact"]["value"] == 1.0, scores.err
    merged = run("merge", world.model, "-o", tmp_path / "merged", "--verify", "--json")
    assert merged.code == 0, merged.err
    assert merged.json["verification"]["lost"] == []
    assert merged.json["verification"]["largest_logit_gap"] < TOLERANCE[dtype]
    assert run("export", world.model, "-o", tmp_path / "adapter").code == 0

    base, ours = read_weights(world.model), read_weights(tmp_path / "merged")
    edited = {fold["disk_key"] for fold in merged.json["folds"]}
    session = open_session(locate(world.model, None), Machine())
    assert edited == {record.disk_key for record in session.editor.records}
    assert {name for name, value in base.items() if not torch.equal(ours[name], value)} == edited
    live, batches = said(session)
    plain = auto.from_pretrained(tmp_path / "merged", local_files_only=True)
    assert gap(plain, batches, live) < TOLERANCE[dtype]
    peft = pytest.importorskip("peft")
    untouched = auto.from_pretrained(world.model, local_files_only=True)
    assert gap(untouched, batches, live) > 0.5
    adapted = peft.PeftModel.from_pretrained(untouched, tmp_path / "adapter")
    # PEFT multiplies in float32, a branch beside bfloat16 weights in bfloat16, whose logits here are 1/8 apart.
    assert gap(adapted, batches, live) < (1e-5 if dtype == "float32" else 0.25)


def said(session: Session) -> tuple[list[torch.Tensor], list[Batch]]:
    """Logits of the live state at the target of every edit, and the inputs they come from."""
    requests = [EditRequest.of(session.ledger.edit_of(entry)) for entry in session.ledger.entries]
    with session.attached():
        encode = session.runtime.encode
        batches = [session.runtime.batch([encode(request.query, request.target)]) for request in requests]
        return [session.runtime.score(batch).logits for batch in batches], batches


def gap(model: torch.nn.Module, batches: list[Batch], live: list[torch.Tensor]) -> float:
    """Largest difference of a logit from the live state's."""
    with torch.no_grad():
        logits = [model.eval()(**batch.inputs).logits[:, batch.keep] for batch in batches]
    return max(float((one - other).abs().max()) for one, other in zip(logits, live, strict=True))


SITES = {
    "llava": ["vision.ffn_out", r"re:.*language_model\.layers\.2\.self_attn\.o_proj"],
    "blip-2": ["qformer", "vision.ffn_out"],
    "blip-2 t5": ["qformer", r"re:language_model\.decoder\.block\.2\.layer\.0\.SelfAttention\.o"],
    "instructblip": ["qformer", r"re:language_model\.model\.layers\.[12]\.self_attn\.(q|v)_proj"],
    "qwen2_vl": ["vision.ffn_out", "projector"],
    "qwen3_vl": ["projector", "vision.ffn_out", r"re:.*visual\.blocks\.2\.attn\.(qkv|proj)"],
    "qwen3_5": [r"re:.*layers\.[01]\.linear_attn\.out_proj"],
    "idefics3": ["vision.ffn_out", "text.ffn_out"],
    "mllama": ["vision.ffn_out", r"re:.*cross_attn\.(q|o)_proj"],
}


@pytest.mark.slow
@pytest.mark.parametrize("family", SITES)
def test_other_sites_and_several_images(tmp_path: Path, family: str) -> None:
    world = World(tmp_path, family=family)
    most = families.FAMILIES[family.split()[0]].images[1]
    images = ["img/red.png", "img/blue.png"][:most]
    lines = [{"image": images, "question": "what colour ?", "target": "r"}, line(1)]
    edits = world.write(lines)
    sites = f"sites={json.dumps(SITES[family])}"
    few = (
        "--set",
        "max_steps=3",
        "--set",
        "halvings=0",
        "--set",
        "last=2",
    )  # only the writes matter here, not whether edits are learnt
    done = run("init", world.model, "--set", sites, *few)
    assert done.code == 0, done.err
    assert {site["group"] for site in run("status", world.model, "--json").json["sites"]} == {*SITES[family]}
    assert world.edit(edits=edits).code in (0, 3)
    assert run("merge", world.model, "-o", tmp_path / "merged").code == 0
    assert run("export", world.model, "-o", tmp_path / "adapter").code == 0
    session = open_session(locate(world.model, None), Machine())
    live, batches = said(session)
    base, merged = (
        AutoModelForImageTextToText.from_pretrained(folder, local_files_only=True)
        for folder in (world.model, tmp_path / "merged")
    )
    assert gap(base, batches, live) > 0.05
    assert gap(merged, batches, live) < TOLERANCE["float32"]
    adapted = pytest.importorskip("peft").PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert gap(adapted, batches, live) < 1e-5


@pytest.mark.slow
def test_a_snapshot_of_links_is_read_and_never_written(tmp_path: Path) -> None:
    """The layout of a sharded checkpoint in the hub's cache."""
    world = World(tmp_path, family="qwen2_vl", layout="old_hub", dtype="bfloat16", shards=3)
    world.edits(2)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(world.model.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(Path("..") / "blobs" / str(number))
    before = tree(blobs)
    state = ("--state", tmp_path / "elsewhere.more")
    assert world.edit("--set", "max_steps=30", "--set", "rehearsal.draws=30", *state).code == 0
    merged = run("merge", world.model, *state, "-o", tmp_path / "merged", "--verify", "--json")
    assert (merged.code, merged.json["verification"]["lost"]) == (0, [])
    assert not any(file.is_symlink() for file in (tmp_path / "merged").iterdir())
    assert tree(blobs) == before
    assert all(file.is_symlink() for file in world.model.iterdir())


@pytest.mark.slow
def test_an_architecture_that_nobody_listed(tmp_path: Path) -> None:
    """ViP-LLaVA: its features come from several vision layers, under a config key that only it uses."""
    world = World(tmp_path)
    world.edits(2)
    processor = make_processor()
    llava = json.loads((world.model / "config.json").read_text())
    parts = {name: llava[name] for name in ("text_config", "vision_config")}
    config = AutoConfig.for_model(
        "vipllava", vision_feature_layers=[-2, -3], image_token_id=processor.tokenizer.image_token_id, **parts
    )
    model = AutoModelForImageTextToText.from_config(config)
    spread_weights(model, seed=0)
    model.save_pretrained(world.model)
    init = run("init", world.model, "--set", "max_steps=30", "--set", "rehearsal.draws=30")
    assert init.code == 0, init.err
    assert "model_type 'vipllava' was never tested: its sites are found by structure alone" in init.err + init.out
    assert run("status", world.model, "--json").json["recipe"]["name"] == "default"
    assert world.edit().code == 0
    assert run("merge", world.model, "-o", tmp_path / "merged", "--verify").code == 0
    live, batches = said(open_session(locate(world.model, None), Machine()))
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged", local_files_only=True)
    assert gap(plain, batches, live) < TOLERANCE["float32"]
