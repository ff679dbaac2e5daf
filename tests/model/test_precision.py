"""Half-precision bases: writes are float32, sums float64, and small gradients are not lost."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from more_cli.core import basis
from more_cli.model import widened
from more_cli.model.batches import Query
from more_cli.model.branches import Branch
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import LOSS_SCALE, Runtime
from more_cli.store.state import load_state
from support.editing import picture
from support.helpers import LEARNING, World, run
from support.tiny import make_model, make_processor

SITES = ("model.multi_modal_projector.linear_1", "model.language_model.layers.3.mlp.down_proj")


def half(dtype: torch.dtype) -> Runtime:
    processor = make_processor()
    model = make_model(processor.tokenizer, text_layers=4, seed=0).eval().to(dtype)
    return Runtime(model, Prompter(processor))


def gradients(runtime: Runtime, folder: Path, share: float) -> dict[str, torch.Tensor]:
    """Return G of a loss scaled down to `share` of itself."""
    made = []
    for number, module in enumerate(SITES):
        d_out, d_in = runtime.model.get_submodule(module).weight.shape
        rank = min(16, d_in // 4)
        made.append(Branch(module, module, basis.draw_basis(rank, d_in, number), torch.zeros(d_out, rank), 2.0))
    with runtime.attached(made):
        batch = runtime.batch([runtime.encode(Query((picture(folder),), "what colour is it ?"), "red")])
        loss = runtime.score(batch, record=True).nll().mean()
        assert runtime.backward(share * loss) == pytest.approx(share * float(loss.detach()))
        return {branch.name: branch.gradient().dense() / share for branch in made}


def error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    return max(float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact)


@pytest.mark.parametrize("share", [1.0, 2.0**-15])
def test_gradients_of_half_precision_models_are_those_of_float32(tmp_path: Path, share: float) -> None:
    exact = gradients(half(torch.float32), tmp_path, share)
    assert error(gradients(half(torch.bfloat16), tmp_path, share), exact) < 0.05
    assert error(gradients(half(torch.float16), tmp_path, share), exact) < 0.01
    if share < 1.0:
        unscaled = half(torch.float16)
        unscaled.loss_scale = 1.0
        assert error(gradients(unscaled, tmp_path, share), exact) > 0.05, "the scale is needed"
    assert math.frexp(LOSS_SCALE)[0] == 0.5, "dividing by a power of two is exact"


@pytest.mark.parametrize(
    ("disk", "dtype"),
    [
        ("bfloat16", "auto"),
        ("float16", "auto"),
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("bfloat16", "float32"),
    ],
)
def test_edits_are_learnt_in_every_precision(tmp_path: Path, disk: str, dtype: str) -> None:
    world = World(tmp_path, dtype=disk)
    world.edits(2)
    found = world.edit(*LEARNING, "--set", "rehearsal.draws=30", "--dtype", dtype, "--json")
    assert found.code == 0, found.err
    assert found.json["counts"] == {"learnt": 2}
    state = load_state(world.sidecar)
    assert {B.dtype for B in state.B.values()} == {torch.float32}
    assert {P.dtype for P in state.P.values()} == {torch.float64}
    scored = run("eval", world.model, "--dtype", dtype, "--json").json["metrics"]
    assert scored["rel.tf_exact"]["value"] == 1.0


@pytest.mark.parametrize("units", [True, False])
def test_a_branch_beside_bfloat16_adds_what_one_in_float32_would(units: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widened, "multiplies_in", lambda _: units)
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(256, 192, bias=False).bfloat16().requires_grad_(False)
    A = basis.draw_basis(64, 256, 0)
    B = 0.01 * torch.randn(192, 64, generator=generator)
    x = torch.randn(300, 256, generator=generator).bfloat16()
    exact = (2.0 * (x.double() @ A.double().T @ B.double().T)).float()
    branch = Branch("site", "0", A, B, 2.0)
    branch.insert(torch.nn.Sequential(linear))
    added = branch(linear, (x,), torch.zeros(300, 192, dtype=torch.bfloat16))
    assert added.dtype == branch.dtype == torch.bfloat16
    assert branch.B.dtype == torch.float32
    assert 0.001 < float((added.float() - exact).norm() / exact.norm()) < 0.005
    # Many small writes add up, though each is below what bfloat16 can add to an entry.
    for _ in range(100):
        branch.B = branch.B + 1e-4 * B
    torch.testing.assert_close(branch.B, 1.01 * B)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_in_float32_is_the_plain_one_rounded_once(
    dtype: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widened, "multiplies_in", lambda _: False)
    torch.manual_seed(0)
    plain = torch.nn.Linear(96, 64, bias=bias, dtype=dtype)
    wide = copy.deepcopy(plain)
    widened.widen_products(wide)
    x, D = torch.randn(3, 20, 96).to(dtype), torch.randn(3, 20, 64).to(dtype)
    made = []
    for linear in (plain, wide):
        given = x.clone().requires_grad_()
        out = linear(given)
        out.backward(D)
        made.append([out, given.grad, *(parameter.grad for parameter in linear.parameters())])
    for theirs, ours in zip(*made, strict=True):
        assert ours.dtype == theirs.dtype == dtype
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        exact = plain.weight.double(), None if plain.bias is None else plain.bias.double()
        torch.testing.assert_close(wide(x), functional.linear(x.double(), *exact).to(dtype), rtol=1e-2, atol=1e-3)
        assert torch.equal(wide(x[0, :1]), plain(x[0, :1])), "few rows are multiplied as they were"


def test_only_plain_linears_of_half_precision_are_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widened, "multiplies_in", lambda dtype: dtype == torch.float32)

    class Packed(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Packed(4, 4).half(), torch.nn.Linear(4, 4).half())
    model.append(torch.nn.Linear(4, 4, device="meta", dtype=torch.float16))
    widened.widen_products(model)
    assert ["forward" in vars(module) for module in model] == [False, False, True, False]
    monkeypatch.setattr(widened, "multiplies_in", lambda _: True)
    with_units = torch.nn.Sequential(torch.nn.Linear(4, 4).half())
    widened.widen_products(with_units)
    assert "forward" not in vars(with_units[0])
