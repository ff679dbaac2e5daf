"""One site in the attached model: what a write changes there, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from more_cli.core import basis
from more_cli.core.write import capped, length
from more_cli.errors import StateError
from more_cli.model.branches import Branch
from more_cli.model.moving import MovingBranch
from more_cli.model.runtime import Runtime
from more_cli.recipe.schema import Recipe
from more_cli.store.state import SiteRecord, State


@dataclass(frozen=True)
class Weights:
    """What a write changes at one site, or a step of it."""

    B: Tensor
    """(d_out, r)"""
    A: Tensor | None = None
    """(r, d_in); only where it is not drawn from the seed."""

    def cpu(self) -> Weights:
        """Return them on the CPU."""
        return Weights(self.B.cpu(), None if self.A is None else self.A.cpu())

    @property
    def finite(self) -> list[Tensor]:
        """Whether every number of B, and of A, is: () bool each."""
        return [torch.isfinite(value).all() for value in (self.B, self.A) if value is not None]


def rebuild_basis(record: SiteRecord, kind: basis.Kind = "orthonormal") -> Tensor:
    """Draw a site's A (r, d_in) again from its seed.

    Raises:
        StateError: the result is not the basis that B was written with.
    """
    A = basis.draw_basis(record.rank, record.shape[1], record.seed, kind)
    _require_same(record, basis.fingerprint(A))
    return A


def check_basis(record: SiteRecord, kind: basis.Kind = "orthonormal") -> None:
    """Check what `rebuild_basis` checks, without drawing more of A than its fingerprint is made of.

    Raises:
        StateError: as `rebuild_basis`.
    """
    _require_same(record, basis.drawn_fingerprint(record.rank, record.shape[1], record.seed, kind))


def _require_same(record: SiteRecord, fingerprint: list[float]) -> None:
    if record.basis_version != basis.VERSION or not basis.close(fingerprint, record.basis_fingerprint):
        raise StateError(
            f"the basis of site `{record.name}` cannot be rebuilt on this machine",
            "use the versions of numpy and torch that the ledger records",
        )


def basis_of(state: State, record: SiteRecord) -> Tensor:
    """Return A of a site of a state, (r, d_in) float32; one that is not stored is drawn again.

    Raises:
        StateError: it cannot be drawn on this machine, or is damaged.
    """
    return state.A[record.name] if record.name in state.A else rebuild_basis(record, state.meta.recipe.basis)


@dataclass(frozen=True)
class Step(Weights):
    """What one write changes at one site."""

    slope: float = 0.0
    """<G, Delta B>, the first-order change of the loss; 0 where no recipe asks for it."""


@dataclass
class WrittenSite:
    """One site: its record, its branch (A, B) and its P. A write changes B."""

    record: SiteRecord
    branch: Branch
    P: Tensor
    stretch: float = 1.0
    """Largest |B A|_F / |B|_F, which is 1 for the orthonormal rows of the paper's A."""

    @property
    def layer(self) -> str:
        """The group that `top_k` chooses: one layer's modules together, the projector as one."""
        return self.record.group if self.record.group == "projector" else self.record.name.rpartition(".")[0]

    @property
    def weights(self) -> Weights:
        """What a write changes."""
        return Weights(self.branch.B)

    @weights.setter
    def weights(self, value: Weights) -> None:
        self.branch.B = value.B

    def unwrite(self) -> None:
        """Set B to zero."""
        self.branch.B = torch.zeros_like(self.branch.B)

    def step(self, change: Tensor, limit: float, norm: float, slope: float) -> Step:
        """Return the step that changes B by this, of this norm and slope, shortened where |Delta B A|_F is too long."""
        limit /= self.stretch
        return Step(capped(change, limit, norm), slope=slope * min(1.0, limit / norm) if norm else 0.0)

    def write(self, before: Weights, step: Weights, share: float) -> None:
        """Set B to what it was before plus this share of the step."""
        self.branch.B = before.B + share * step.B


@dataclass
class MovingSite(WrittenSite):
    """A site whose A is trained too, by plain gradient descent: the paper's ablation "without freezing A".

    The paper says that A is updated "jointly with B" and not how. Here both steps start from the same gradients; that
    of A is not multiplied by anything, as P knows nothing of d_in. P stays what it is when A moves, in coordinates that
    are no longer those of its keys: that is the drift which freezing A removes.
    """

    branch: MovingBranch
    rate: float = 0.0
    """Learning rate of A."""
    orthonormal: bool = False
    """Whether A's rows are made orthonormal again after each write."""
    first: Tensor | None = None
    """A before the first write."""

    @property
    def weights(self) -> Weights:
        """What a write changes."""
        return Weights(self.branch.B, self.branch.basis)

    @weights.setter
    def weights(self, value: Weights) -> None:
        assert value.A is not None
        self.branch.B, self.branch.basis = value.B, value.A

    def unwrite(self) -> None:
        """Set B to zero and A to what it was before the first write."""
        super().unwrite()
        assert self.first is not None
        self.branch.basis = self.first

    def step(self, change: Tensor, limit: float, norm: float, slope: float) -> Step:
        """Return the step that changes B by this and A along its gradient; either changes B A by the limit at most."""
        by_A = limit / max(float(torch.linalg.vector_norm(self.branch.B)), 1e-12)
        self.stretch = basis.stretch(self.branch.basis)
        change_of_A = -self.rate * self.branch.basis_gradient()
        step = super().step(change, limit, norm, slope)
        return Step(step.B, capped(change_of_A, by_A, float(length(change_of_A))), step.slope)

    def write(self, before: Weights, step: Weights, share: float) -> None:
        """Set B and A to what they were before plus this share of the step."""
        assert before.A is not None
        assert step.A is not None
        B, A = before.B + share * step.B, before.A + share * step.A
        if self.orthonormal:
            L, Q = basis.orthonormal_again(A.double())
            B, A = (B.double() @ L).to(B), Q.to(A)  # B A = (B L) Q: the model stays the same
        # Row by row, as they are stored: after a restart a product must round as it does now.
        self.branch.B, self.branch.basis = B.contiguous(), A.contiguous()


def make_site(record: SiteRecord, weights: Weights, P: Tensor, recipe: Recipe, runtime: Runtime) -> WrittenSite:
    """Return a site beside its Linear; an A that is not stored is drawn again."""
    device = runtime.device_of(record.module)
    B, P = weights.B.to(device), P.to(device)
    A = (rebuild_basis(record, recipe.basis) if weights.A is None else weights.A).to(device)
    if recipe.basis_rate is None:
        stretch = 1.0 if recipe.orthonormal else basis.stretch(A)
        return WrittenSite(record, Branch(record.name, record.module, A, B, record.scale), P, stretch)
    first = rebuild_basis(record, recipe.basis).to(device).contiguous()
    branch = MovingBranch(record.name, record.module, A.contiguous(), B, record.scale)
    return MovingSite(record, branch, P, rate=recipe.basis_rate, orthonormal=recipe.basis_orthonormal, first=first)
