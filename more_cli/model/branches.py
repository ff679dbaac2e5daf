"""The low-rank branch s B (A x) beside a Linear, and what it records for a write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from more_cli.core.recursion import pool
from more_cli.core.write import Gradient
from more_cli.model.changes import Change
from more_cli.model.widened import product


class Part(Protocol):
    """What an editor adds to one module of a model; a runtime switches it and its recording on and off."""

    @property
    def module(self) -> str:
        """Path of the module."""

    enabled: bool
    recording: bool
    loss_scale: float
    """Factor on the loss of a backward pass."""

    def start_recording(self, *, add: bool = False) -> None:
        """Prepare for a pass whose gradients or keys will be read."""

    def insert(self, model: nn.Module) -> Callable[[], None]:
        """Attach to a model, and return a function that removes it again."""


AT_ONCE = frozenset({"cpu"})
"""Kinds of devices whose values can be read without waiting for queued work."""


def answers_at_once(value: Tensor) -> bool:
    """Return whether Python can read a tensor's values without waiting for a GPU."""
    return value.device.type in AT_ONCE


def computes_in(dtype: torch.dtype) -> torch.dtype:
    """Return what a branch beside weights of this dtype computes in: bfloat16 beside bfloat16, else float32.

    The output of a bfloat16 branch is off by about 0.3 % of itself, far less than the rounding of the Linear's own
    output, and on hardware with bfloat16 units it takes a fraction of the time. float16 has too little range for A x.
    """
    return dtype if dtype == torch.bfloat16 else torch.float32


def computes_beside(model: nn.Module, module: str) -> torch.dtype:
    """Return what a branch beside a Linear computes in; beside a quantised one the model's own dtype decides."""
    weight: Any = model.get_submodule(module).weight
    dtype: torch.dtype = weight.dtype if weight.dtype.is_floating_point else model.dtype  # type: ignore[assignment]
    return computes_in(dtype)


class Branch:
    """One site's branch: A (r, d_in) and B (d_out, r), given in float32 on the site's device.

    B stays in float32, where small writes add up, and is rounded for a pass as `computes_in` says. With `recording` on,
    a forward pass keeps the coordinates Z of its tokens and a backward pass the gradient of B. Switched off, the branch
    still keeps Z, but adds nothing. With B = 0 and no recording it costs nothing: the site runs unchanged.
    """

    def __init__(self, name: str, module: str, A: Tensor, B: Tensor, scale: float) -> None:
        self.name = name
        self.module = module
        self.A = A
        self.scale = scale
        self.dtype = torch.float32
        """Dtype that it computes in."""
        self.B = B
        self._written = bool(B.any())
        self.recording = False
        self.enabled = True
        self.loss_scale = 1.0
        """Factor on the loss of a backward pass."""
        self._Z: list[Tensor] = []
        self._gradient = self._zero()

    @property
    def B(self) -> Tensor:
        """The written matrix (d_out, r)."""
        return self._B

    @B.setter
    def B(self, value: Tensor) -> None:
        self._B = value
        self._rounded = value.to(self.dtype)
        # To ask a GPU, Python would have to wait for it. A branch that adds zeros changes no bit.
        self._written = not answers_at_once(value) or bool(value.any())

    @property
    def change(self) -> Change:
        """Delta W, s B A."""
        return Change(self.scale * self.B, self.A)

    def insert(self, model: nn.Module) -> Callable[[], None]:
        """Attach to the Linear."""
        linear: Any = model.get_submodule(self.module)
        self.dtype = computes_beside(model, self.module)
        self.A, self._rounded = self.A.to(self.dtype), self._B.to(self.dtype)
        hook: Callable[[], None] = linear.register_forward_hook(self).remove
        return hook

    def start_recording(self, *, add: bool = False) -> None:
        """Drop what earlier passes recorded and record the next one; with `add` gradients are summed over passes."""
        self._Z = []
        if not add:
            self._gradient = self._zero()
        self.recording = True

    @property
    def ran(self) -> bool:
        """Whether the last recorded pass went through this site: a text-only input never reaches the projector."""
        return bool(self._Z)

    def gradient(self) -> Gradient:
        """Return dL/dB of the recorded backward passes, summed."""
        return self._gradient

    def key(self, relevant: Tensor | None) -> Tensor:
        """Return the pooled key of the last recorded pass, (r,)."""
        return pool(self.token_keys(relevant))

    def token_keys(self, relevant: Tensor | None) -> Tensor:
        """Return the keys of the relevant tokens one by one, (n, r).

        `relevant` is None for all tokens, a mask (...), or places (n,), for which Python need not wait for a GPU.
        """
        Z = torch.cat([z.reshape(-1, z.shape[-1]) for z in self._Z])
        return Z if relevant is None else Z[relevant.reshape(-1).to(Z.device)]

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Forward hook: add the branch to the Linear's output."""
        adds = self.enabled and self._written
        if not (adds or self.recording):
            return output
        x = args[0].to(output.device, self.dtype)
        if self.enabled and self.recording and torch.is_grad_enabled():
            delta = self.recorded(x, self._rounded.detach().requires_grad_())
        else:
            Z = product(x, self.A)
            if self.recording:
                self._Z.append(Z)
            if not adds:
                return output
            delta = self.scale * product(Z, self._rounded)
        # Added before it is rounded to the Linear's dtype: a sum in float16 would round twice.
        return (output.to(self.dtype) + delta).to(output.dtype)

    def recorded(self, x: Tensor, B: Tensor) -> Tensor:
        """Return s B (A x) of a pass whose backward pass gives the gradient of B."""
        delta: Tensor = RecordedBranch.apply(x, B, self)  # type: ignore[no-untyped-call]
        return delta

    def _zero(self) -> Gradient:
        return Gradient.of(self.B.new_zeros(0, self.B.shape[0]), self.B.new_zeros(0, self.B.shape[1]), self.scale)

    def keep_coordinates(self, Z: Tensor) -> None:
        """Keep the coordinates of a recorded forward pass, (..., r)."""
        self._Z.append(Z)

    def keep_gradient(self, D: Tensor, Z: Tensor) -> None:
        """Keep output gradients D (..., d_out) and coordinates Z (..., r) of the tokens that have a gradient."""
        D, Z = D.reshape(-1, D.shape[-1]), Z.reshape(-1, Z.shape[-1])
        if answers_at_once(D):
            # In the last layer only answer positions have a gradient: the other rows would add zeros to G.
            rows = D.any(dim=1)
            D, Z = D[rows], Z[rows]
        # Summed at once: the rows of a batch run in parts would be larger than G.
        self._gradient += Gradient.of(D / self.loss_scale, Z, self.scale)


class RecordedBranch(torch.autograd.Function):
    """s B (A x) whose backward hands D and Z to the branch, so that G is built only when that is cheaper."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, B: Tensor, branch: Branch) -> Tensor:
        Z = product(x, branch.A)
        branch.keep_coordinates(Z)
        ctx.save_for_backward(Z, B)
        ctx.branch = branch  # type: ignore[attr-defined]
        return branch.scale * product(Z, B)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, None, None]:
        Z, B = ctx.saved_tensors
        branch: Branch = ctx.branch
        branch.keep_gradient(D, Z)
        # Earlier sites get their gradient through this branch too; the first site's input needs none.
        dx = product(branch.scale * product(D, B.T), branch.A.T) if ctx.needs_input_grad[0] else None
        return dx, None, None


class TrainedBasisBranch(Branch):
    """A branch whose A is trained too, which the paper's is not (its ablation "without freezing A").

    Its backward pass also keeps the gradient of A (r, d_in), and A stays in float32 as B does.
    """

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
        remove = super().insert(model)
        self.basis = self._basis
        return remove

    def start_recording(self, *, add: bool = False) -> None:
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
        delta: Tensor = _RecordedTrainedBasisBranch.apply(x, B, self)  # type: ignore[no-untyped-call]
        return delta


class _RecordedTrainedBasisBranch(RecordedBranch):
    """As `RecordedBranch`, and its backward also hands the gradient of A to the branch."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, B: Tensor, branch: Branch) -> Tensor:
        ctx.x = x.detach()  # type: ignore[attr-defined]
        return RecordedBranch.forward(ctx, x, B, branch)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, None, None]:
        ctx.branch.keep_basis_gradient(D, ctx.saved_tensors[1], ctx.x)
        return RecordedBranch.backward(ctx, D)


@contextmanager
def attached(model: nn.Module, parts: Sequence[Part]) -> Iterator[None]:
    """Attach an editor's parts to a model; on exit no hook, flag or mode differs from before."""
    with ExitStack() as undo:
        undo.enter_context(_frozen(model))
        for part in parts:
            undo.callback(part.insert(model))
        yield


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Switch off gradients and dropout, and restore every flag on exit."""
    training = {name: module.training for name, module in model.named_modules()}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for name, module in model.named_modules():
            module.training = training[name]
