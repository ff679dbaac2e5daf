"""A branch whose A is trained: the gradient of A is plain PyTorch's, and A keeps float32 beside weights in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from more_cli.core import basis
from more_cli.model.branches import TrainedBasisBranch, attached


def made(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, TrainedBasisBranch]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 10), nn.Tanh(), nn.Linear(10, 3)).to(dtype)
    return model, TrainedBasisBranch("site", "0", basis.draw_basis(5, 24, 0), 0.3 * torch.randn(10, 5), 2.0)


@pytest.mark.parametrize("loss_scale", [1.0, 64.0])
def test_the_gradients_of_a_and_b_are_those_of_plain_torch(loss_scale: float) -> None:
    model, branch = made()
    inputs = torch.randn(2, 7, 24), torch.randn(3, 7, 24)
    branch.loss_scale = loss_scale
    with attached(model, [branch]):
        for number, x in enumerate(inputs):
            branch.start_recording(add=number > 0)
            (loss_scale * model(x).square().sum()).backward()
    A, B = branch.A.clone().requires_grad_(), branch.B.clone().requires_grad_()
    first, _, last = model
    for x in inputs:
        last(torch.tanh(first(x) + 2.0 * x @ A.T @ B.T)).square().sum().backward()
    torch.testing.assert_close(branch.basis_gradient(), A.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(branch.gradient().dense(), B.grad, atol=1e-5, rtol=1e-4)
    branch.start_recording()
    assert not branch.basis_gradient().any()


def test_small_steps_of_a_are_not_rounded_away_beside_bfloat16() -> None:
    model, branch = made(torch.bfloat16)
    with attached(model, [branch]):
        before = branch.basis
        assert (branch.A.dtype, before.dtype) == (torch.bfloat16, torch.float32)
        for _ in range(100):
            branch.basis = branch.basis + 1e-5
        assert torch.allclose(branch.basis, before + 1e-3, atol=1e-6)
        assert torch.equal(branch.A, branch.basis.bfloat16())
        branch.start_recording()
        model(torch.randn(4, 24, dtype=torch.bfloat16)).float().sum().backward()
    assert branch.basis_gradient().dtype == torch.float32
    assert branch.basis_gradient().any()
