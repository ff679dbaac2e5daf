"""Which attention a model computes with, that it makes no difference beyond rounding, and float8 weights."""

from pathlib import Path

import pytest
import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.errors import StateError, UsageError
from more_cli.model import machine
from more_cli.model.batches import Query
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.store.state import load_state
from support.editing import picture
from support.helpers import QUICK, World, run
from support.tiny import read_weights, write_weights


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "gemma3"])
def test_sdpa_and_eager_give_the_same_logits(tmp_path: Path, family: str) -> None:
    world = World(tmp_path / "world", **({} if family == "llava" else {"family": family}))
    logits = {}
    for attention in ("auto", "sdpa", "eager"):
        runtime = load_runtime(open_checkpoint(world.model), Machine(attention=attention))
        assert runtime.model.config._attn_implementation == ("eager" if attention == "eager" else "sdpa")
        batch = runtime.batch([runtime.encode(Query((picture(tmp_path),), "what colour is it ?"), "red")])
        logits[attention] = runtime.score(batch).logits
    assert torch.equal(logits["auto"], logits["sdpa"])
    torch.testing.assert_close(logits["eager"], logits["sdpa"], atol=1e-4, rtol=1e-4)


def test_flash_attention_that_is_not_installed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    world = World(tmp_path / "world")
    world.edits(1)
    found = world.edit(*QUICK, "--attention", "flash")
    assert found.code == UsageError.exit_code
    assert "`--attention flash` needs flash-attn" in found.err
    assert "hint: pip install flash-attn, or use --attention sdpa" in found.err
    assert "not one of auto, sdpa, eager, flash" in world.edit("--attention", "fast").err
    assert not world.sidecar.exists()


def test_a_model_without_sdpa_says_so() -> None:
    assert Machine().kernel(has_sdpa=False) == "eager"
    with pytest.raises(UsageError, match="no sdpa"):
        Machine(attention="sdpa").kernel(has_sdpa=False)


@pytest.mark.parametrize("layer", ["down_proj.weight", "q_proj.weight"])
def test_float8_weights_are_refused_by_name_at_a_site_and_beside_it(tmp_path: Path, layer: str) -> None:
    world = World(tmp_path / "world")
    weights = read_weights(world.model)
    name = next(name for name in sorted(weights) if name.endswith(layer))
    write_weights(world.model, weights | {name: weights[name].to(torch.float8_e4m3fn)})
    found = run("init", world.model)
    assert found.code == StateError.exit_code
    assert f"{name} has dtype F8_E4M3, beside which edits were not shown to work\nhint: " in found.err
    assert not world.sidecar.exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing to replay on")
def test_a_stream_on_a_gpu_ends_as_on_the_cpu_up_to_rounding(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.edits(3)
    states = []
    for number, device in enumerate(("cpu", "cuda", "cuda")):
        sidecar = tmp_path / f"{number}.more"
        assert world.edit(*QUICK, "--device", device, "--state", sidecar).code in (0, 3)
        states.append(load_state(sidecar))
    for other in states[1:]:
        for name, B in states[0].B.items():
            torch.testing.assert_close(other.B[name], B, atol=1e-5, rtol=1e-3)
            torch.testing.assert_close(other.P[name], states[0].P[name], atol=1e-5, rtol=1e-3)
