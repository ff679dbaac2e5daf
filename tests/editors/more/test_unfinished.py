"""What is kept of an interrupted joint write is untrusted: damaged or forged, the write begins again."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from more_cli.editors.more import joint
from more_cli.editors.more.passes import Passes
from more_cli.editors.more.unfinished import CHECK, FACTS
from more_cli.ops import session
from support.helpers import COLOURS, Result, World, at_call, die, forks, in_child, line, run

KEYS = ("compact=2", "criterion=margin", "joint.rounds=40", "max_steps=2", "last=1", "rank_share=0.5")
SETTINGS = tuple(part for key in KEYS for part in ("--set", key))
SITE = "text.0.down_proj"
Forgery = Callable[[Any, dict[str, Tensor]], object]
"""Changes the facts, and the tensors beside them."""

ANY: dict[str, Forgery] = {
    "no site": lambda facts, tensors: facts.update(records=[]),
    "another rank": lambda facts, tensors: facts["records"][0].update(rank=3),
    "another site": lambda facts, tensors: facts["records"][0].update(name="text.9.gate_proj"),
    "keys without end": lambda facts, tensors: facts["records"][0].update(energy=math.inf),
    "-1 writes": lambda facts, tensors: facts["tally"].update(writes=-1),
    "a cost without end": lambda facts, tensors: facts["tally"].update(cost=math.inf),
    "the margin of an edit that is none": lambda facts, tensors: facts["tally"]["margins"].update({"99": 1.0}),
    "no B": lambda facts, tensors: tensors.pop(f"B.{SITE}"),
    "no P": lambda facts, tensors: tensors.pop(f"P.{SITE}"),
    "B of another shape": lambda facts, tensors: tensors.update({f"B.{SITE}": torch.zeros(2, 3)}),
    "B of another type": lambda facts, tensors: tensors.update({f"B.{SITE}": tensors[f"B.{SITE}"].half()}),
    "P that is not finite": lambda facts, tensors: tensors[f"P.{SITE}"].fill_(math.nan),
}
ROUNDS: dict[str, Forgery] = {
    "round -1": lambda facts, tensors: facts.update(round=-1),
    "the score of an edit that is none": lambda facts, tensors: facts["scores"][0].__setitem__(0, 99),
    "a token that is none": lambda facts, tensors: facts["scores"][0].__setitem__(4, [10**30]),
    "an edit that is none is left": lambda facts, tensors: facts.update(left=[99]),
    "the next edit is left": lambda facts, tensors: facts.update(left=[3]),
    "an edit that is none was written": lambda facts, tensors: facts.update(last=[99]),
    "the slope of a site that is none": lambda facts, tensors: facts["slopes"].update(nosuch=1.0),
    "a slope without a step": lambda facts, tensors: tensors.pop(f"B.step.{SITE}"),
}
WATCHED: dict[str, Forgery] = {"an anchor that is none": lambda facts, tensors: facts.update(trained_on=[10**6])}
REST: dict[str, Forgery] = {
    "an edit that is none fails": lambda facts, tensors: facts.update(failing=[99]),
    "-1 edits are written": lambda facts, tensors: facts.update(done=-1),
    "memory of an edit that is none": lambda facts, tensors: facts["memory"].update({"99": {"margin": 1.0, "at": 1}}),
    "memory of no moment": lambda facts, tensors: facts["memory"].update({"1": {"margin": 1.0, "at": 10**30}}),
}


def forge(path: Path, forgery: Forgery) -> None:
    """Change what is kept, with a checksum that fits."""
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items() if name != CHECK}
    facts = json.loads(bytes(tensors.pop(FACTS).tolist()))
    forgery(facts, tensors)
    tensors[FACTS] = as_bytes(json.dumps(facts))
    save_file(tensors | {CHECK: as_bytes(hashlib.sha256(save(tensors)).hexdigest())}, path)


def as_bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def flip(path: Path) -> None:
    """Flip a bit of a tensor: the file can still be read."""
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)


def compact(world: World) -> Result:
    return run("edit", world.model, world.root / "edits.jsonl", "--limit", 2)


def killed(world: World, write: int) -> Path:
    """Kill a compaction at one of the writes of the call, and return what is kept of it."""

    def call() -> None:
        at_call(write, [(Passes, "write")], die)
        compact(world)

    assert in_child(call) < 0
    (path,) = world.folder.glob("cache/unfinished-*")
    return path


@forks
@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "settings", "forgeries"),
    [
        pytest.param(5, ("--no-anchors",), ANY | ROUNDS, id="rounds"),
        pytest.param(6, ("--no-anchors", "--set", "joint.rounds=1"), ANY | REST, id="the rest one by one"),
        pytest.param(5, ("--anchors", "anchors.jsonl", "--set", "anchors.watched=2"), WATCHED, id="watched anchors"),
    ],
)
def test_what_is_damaged_or_forged_is_left_aside(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: int,
    settings: Sequence[str],
    forgeries: dict[str, Forgery],
) -> None:
    monkeypatch.setattr(joint, "FEW", 1.0)
    monkeypatch.setattr(session, "SAVE_SECONDS", 0.0)
    world = World(tmp_path / "world", text_layers=1)
    world.write([line(number, id=f"e{number}") for number in range(2)])
    world.write([{"image": f"img/{colour}.png", "question": "what is it ?"} for colour in COLOURS[:4]], "anchors.jsonl")
    monkeypatch.chdir(world.root)
    assert run("init", world.model, *SETTINGS, *settings).code == 0
    world.edit("--limit", 1)
    whole = World.at(shutil.copytree(world.root, tmp_path / "whole"))
    assert compact(whole).code in (0, 3)
    kept = killed(world, write).relative_to(world.root)
    wrong = []
    for name, forgery in {"a flipped bit": None, **forgeries}.items():
        here = World.at(shutil.copytree(world.root, tmp_path / name))
        if forgery is None:
            flip(here.root / kept)
        else:
            forge(here.root / kept, forgery)
        done = compact(here)
        if done.code not in (0, 3) or here.sidecar.read_bytes() != whole.sidecar.read_bytes():
            wrong.append(f"{name}: {done.code}: {done.err.splitlines()[-1:]}")
    assert not wrong, "\n".join(wrong)
