"""Sites on several devices, offloaded weights, and the choice of places by free memory."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import backend_registration

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.errors import UsageError
from more_cli.model import machine
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine, free_memory
from more_cli.store.state import load_state
from support.helpers import QUICK, World, run
from support.paths import ROOT, TESTS

DEVICES = {"here": "cpu", "there": "elsewhere:0"}
needs_accelerate = pytest.mark.skipif(find_spec("accelerate") is None, reason="the extra `large` is not installed")


needs_another_device = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this release of torch takes no device from Python",
)


def report_of(script: str, *arguments: object) -> Any:
    """Run a script of tests/support in a process of its own, and return what its last line says."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(ROOT)])}
    command = [sys.executable, str(TESTS / "support" / script), *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


@needs_another_device
def test_sites_on_two_devices_are_edited_as_on_one(tmp_path: Path) -> None:
    report = report_of("two_devices.py", tmp_path)
    assert report["places"]["text.2.down_proj"] == "elsewhere:0 elsewhere:0"
    assert report["places"]["text.3.down_proj"] == "cpu cpu"
    assert report["places"]["projector.linear_1"] == "cpu cpu"
    assert all(report["written"].values())
    assert max(report["gaps"].values()) < 1e-5
    assert report["on"] == ["cpu"]


@needs_another_device
@pytest.mark.slow
def test_every_command_runs_on_another_device_and_ends_as_on_the_cpu(tmp_path: Path) -> None:
    """An operation on tensors of two devices ends one, as on a GPU."""
    here, there = (report_of("on_device.py", tmp_path / name, device) for name, device in DEVICES.items())
    assert there == here
    assert {*there.values()} <= {0, 3}, there


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@needs_accelerate
def test_weights_left_on_the_disk_are_edited_as_in_memory(world: World) -> None:
    world.edits(2)
    assert run("edit", world.model, world.root / "edits.jsonl", *QUICK).code in (0, 3)
    other = world.root / "other.more"
    options = ("--device-map", "auto", "--memory", "0.0003", "--state", other)
    assert run("edit", world.model, world.root / "edits.jsonl", *QUICK, *options).code in (0, 3)
    ours, theirs = load_state(world.sidecar), load_state(other)
    for name, B in ours.B.items():
        assert B.any()
        torch.testing.assert_close(theirs.B[name], B, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(theirs.P[name], ours.P[name], atol=1e-9, rtol=1e-9)
    assert world.entries(other)[0]["versions"]["device"] == "map auto"


@needs_accelerate
def test_a_small_memory_leaves_weights_on_the_disk(world: World) -> None:
    checkpoint = open_checkpoint(world.model)
    whole, part = (load_runtime(checkpoint, Machine(device_map="auto", memory=memory)) for memory in (1.0, 0.0003))
    assert {weight.device.type for weight in whole.model.parameters()} == {"cpu"}
    assert {weight.device.type for weight in part.model.parameters()} == {"cpu", "meta"}
    site = "model.language_model.layers.3.mlp.down_proj"
    assert part.model.get_submodule(site).weight.device.type == "meta"
    assert part.device_of(site) == part.device == torch.device("cpu")
    key = next(key for key in checkpoint.tensors if key.endswith("layers.3.mlp.down_proj.weight"))
    norm = float(torch.linalg.vector_norm(whole.model.get_submodule(site).weight))
    assert part.norm(site, key) == pytest.approx(norm, rel=1e-6)


@needs_accelerate
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--device-map", "balanced"), "`--device-map balanced` is not `auto`"),
        (("--device-map", "auto", "--device", "meta"), "both given"),
        (("--dtype", "int8"), "not one of"),
    ],
)
def test_placements_that_are_refused(world: World, options: tuple[str, ...], said: str) -> None:
    found = run("edit", world.model, world.edits(1), *options)
    assert found.code == UsageError.exit_code
    assert said in found.err


def test_without_accelerate_its_extra_is_named(monkeypatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as error:
        Machine(device_map="auto")
    assert error.value.hint == 'pip install "more-vlm[large]"'


def account(root: Path, **files: str) -> Path:
    """Files in which a system reports its memory."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_free_memory_is_the_least_that_system_and_control_group_leave(tmp_path: Path) -> None:
    everything = free_memory(tmp_path)
    assert everything > 0
    system = {"proc__meminfo": "MemTotal: 9 kB\nMemAvailable:   2048 kB\n"}
    assert free_memory(account(tmp_path, **system)) == 2048 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("500000\n")
    assert free_memory(tmp_path) == 2048 * 1024
    (group / "memory.max").write_text("1500000\n")
    (group / "memory.stat").write_text("anon 7\ninactive_file 40000\n")
    assert free_memory(tmp_path) == 1_040_000
    account(tmp_path, proc__self__cgroup="0::/job/step\n")
    account(group, **{"job__memory.max": "900000\n", "job__memory.current": "300000\n"})
    assert free_memory(tmp_path) == 600_000
    (tmp_path / "proc/self/cgroup").unlink()
    (group / "memory").mkdir()
    (group / "memory/memory.limit_in_bytes").write_text("1000\n")
    (group / "memory/memory.usage_in_bytes").write_text("5000\n")
    assert free_memory(tmp_path) == 0


@needs_accelerate
def test_given_memory_counts_instead_of_what_is_free() -> None:
    assert Machine(memory=2.0).free() == 2 << 30
    assert Machine(device_map="auto", memory=2.0).free() is None
    assert 0 < Machine().free() < 1 << 50
