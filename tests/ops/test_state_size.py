"""States as large as they get: `merge` and `export` hold one site, and read nothing that was changed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from more_cli.errors import StateError
from more_cli.store.sidecar import encoded
from more_cli.store.state import load_state, open_state, save_state
from support.helpers import QUICK, World, run

PEAK = """
import sys
from more_cli.ops.session import open_session
from more_cli.ops.folding import patches_of
import more_cli.ops.export, more_cli.ops.merge
from pathlib import Path
from more_cli.cli.app import main
assert main(sys.argv[1:]) == 0
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


def peak(*argv: object) -> int:
    """Return the most memory that a command's process held, in bytes."""
    command = [sys.executable, "-c", PEAK, *map(str, argv), "-q"]
    return 1024 * int(subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()[-1])


def write_all(sidecar: Path) -> None:
    """Make B of every site other than zero."""
    state = load_state(sidecar)
    state.B = {name: torch.full_like(B, 0.001) for name, B in state.B.items()}
    save_state(sidecar, state)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_follow_the_number_of_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of 3 sites and one of 36 on the same base: the second is larger by the states' difference, twice over
    if it were read whole and copied."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "bench"))
    import checkpoints

    text = checkpoints.SMALL_TEXT | {"num_hidden_layers": 12, "vocab_size": 1000}
    vision = checkpoints.BLIND | {"projection_dim": 32}
    monkeypatch.setitem(checkpoints.SHAPES, "wide", checkpoints.Shape(text, vision, repeated=True))
    model = checkpoints.build("wide", tmp_path / "model")
    peaks, sizes = [], []
    for last in (1, 12):
        sidecar = tmp_path / f"{last}.more"
        chosen = ["--set", 'sites=["text.ffn_in","text.ffn_out"]', "--set", f"last={last}", "--set", "rank=512"]
        assert run("init", model, "--state", sidecar, *chosen).code == 0
        write_all(sidecar)
        sizes.append(sidecar.stat().st_size)
        ways = [("merge", "merged"), ("export", "adapter")]
        peaks.append([peak(way, model, "--state", sidecar, "-o", tmp_path / f"{last}-{out}") for way, out in ways])
    larger = sizes[1] - sizes[0]
    assert larger > 100 << 20
    for few, many in zip(*peaks, strict=True):
        assert many - few < larger // 2, (few, many, larger)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, text_layers=1)
    assert run("init", world.model, *QUICK).code == 0
    write_all(world.sidecar)
    return world


def test_a_tensor_is_read_when_it_is_asked_for(world: World) -> None:
    lazy, whole = open_state(world.sidecar), load_state(world.sidecar)
    for kind in "BPA":
        ours, theirs = getattr(lazy, kind), getattr(whole, kind)
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(lazy.written(name) for name in lazy.B)
    assert lazy.parameters == sum(tensor.numel() for kind in "BPA" for tensor in getattr(whole, kind).values())


def test_a_state_that_is_replaced_meanwhile_is_read_as_it_was_checked(world: World) -> None:
    lazy, before = open_state(world.sidecar), load_state(world.sidecar)
    after = load_state(world.sidecar)
    after.B = {name: torch.zeros_like(B) for name, B in after.B.items()}
    save_state(world.sidecar, after)
    assert all(torch.equal(lazy.B[name], B) for name, B in before.B.items())
    fresh = open_state(world.sidecar)
    assert not any(fresh.written(name) for name in fresh.B)


@pytest.mark.parametrize("keep", [0.5, 1.0])
def test_a_state_that_is_written_over_in_place_is_refused(world: World, keep: float) -> None:
    lazy, data = open_state(world.sidecar), world.sidecar.read_bytes()
    with open(world.sidecar, "r+b") as file:  # the same file, no rename
        file.truncate(int(keep * len(data)))
    os.utime(world.sidecar, ns=(1, 1))
    with pytest.raises(StateError, match="is damaged"):
        dict(lazy.P)


def test_the_bytes_are_those_that_safetensors_writes() -> None:
    tensors = {
        "b.P": torch.eye(3, dtype=torch.float64),
        "ä.B": torch.ones(2, 3),
        "a.B": torch.arange(6.0).reshape(3, 2).T,
        "a.P": torch.eye(2, dtype=torch.float64),
    }
    metadata = {"more": '{"text":"\\u00e4\\n\\u001f\\"\\\\/\\u007f"}ä\n\x1f"\\/\x7f\u2028'}
    ours = b"".join(encoded(metadata, tensors))
    assert ours == save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=metadata)
