"""A branch whose A is trained too, which the paper's is not (its ablation "without freezing A")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from more_cli.model.branches import Branch, RecordedBranch


class MovingBranch(Branch):
    """A branch whose backward pass also keeps the gradient of A (r, d_in), and whose A stays in float32 as B does."""

    def __init__(self, name: str, module: str, A: Tensor, B: Tensor, scale: float) -> None:
        super().__init__(name, module, A, B, scale)
        self.basis = A
        self._basis_gradient = torch.zeros_like(A)

    @property
    def basis(self) -> Tensor:
        """A in float32; passes use it as rounded to the branch's dtype."""
        return self._basis

    @basis.setter
    def basis(self, value: Tensor) -> None:
        self._basis = value
        self.A = value.to(self.dtype)

    def insert(self, model: nn.Module) -> Callable[[], None]:
        """Attach to the Linear."""
        remove = super().insert(model)
        self.basis = self._basis
        return remove

    def start_recording(self, *, add: bool = False) -> None:
        """Drop what earlier passes recorded and record the next one; with `add` gradients are summed over passes."""
        super().start_recording(add=add)
        if not add:
            self._basis_gradient = torch.zeros_like(self._basis)

    def basis_gradient(self) -> Tensor:
        """Return dL/dA of the recorded backward passes, summed, (r, d_in) float32."""
        return self._basis_gradient

    def keep_basis_gradient(self, D: Tensor, B: Tensor, x: Tensor) -> None:
        """Keep s (D B)^T x of output gradients D (..., d_out) and inputs x (..., d_in)."""
        back = D.reshape(-1, D.shape[-1]).float() @ B.float()
        self._basis_gradient = torch.addmm(
            self._basis_gradient, back.T, x.reshape(-1, x.shape[-1]).float(), alpha=self.scale / self.loss_scale
        )

    def recorded(self, x: Tensor, B: Tensor) -> Tensor:
        """Return s B (A x) of a pass whose backward pass gives the gradients of B and of A."""
        delta: Tensor = _RecordedMovingBranch.apply(x, B, self)  # type: ignore[no-untyped-call]
        return delta


class _RecordedMovingBranch(RecordedBranch):
    """As `RecordedBranch`, and its backward also hands the gradient of A to the branch."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, B: Tensor, branch: Branch) -> Tensor:
        ctx.x = x.detach()  # type: ignore[attr-defined]
        return RecordedBranch.forward(ctx, x, B, branch)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, None, None]:
        ctx.branch.keep_basis_gradient(D, ctx.saved_tensors[1], ctx.x)
        return RecordedBranch.backward(ctx, D)
