"""A state whose file is gone, or is a link that leads nowhere, while its ledger is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.helpers import LEARNING, World, run
from support.refused import assert_refused


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, text_layers=1)
    made.edits(2)
    made.write([{"question": "who is it ?"}, {"question": "why ?"}], "anchors.jsonl")
    return made


def init(world: World, *anchors: object) -> object:
    return run("init", world.model, *LEARNING, "--set", "anchors.prompts=[]", *anchors)


def test_it_is_made_again_with_the_anchors_of_the_first_time_alone(world: World) -> None:
    ours = ("--anchors", world.root / "anchors.jsonl")
    assert init(world, *ours).code == 0
    assert world.edit("--limit", 1).code in (0, 3)
    kept, before = world.folder / "anchors.jsonl", world.sidecar.read_bytes()
    lines = kept.read_bytes()
    world.sidecar.unlink()
    world.write([{"question": "when ?"}], "others.jsonl")
    refused = init(world, "--anchors", world.root / "others.jsonl")
    assert_refused(refused, 5, "is gone, and its ledger of 1 line began with other anchors")
    assert_refused(init(world, "--no-anchors"), 5, "began with other anchors")
    assert kept.read_bytes() == lines
    assert not world.sidecar.exists()
    assert init(world, *ours).code == 0
    assert world.edit("--limit", 1).code in (0, 3)
    assert world.sidecar.read_bytes() == before


def test_a_link_that_leads_nowhere_makes_no_state(world: World) -> None:
    world.sidecar.symlink_to(world.root / "unmounted" / "model.more")
    assert_refused(world.edit(*LEARNING), 5, "is a link to")
    assert not (world.root / "unmounted").exists()
