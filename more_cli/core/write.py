"""The closed-form write into B (Eq. closedform: Delta B = -eta G P) and its fold into W (Eq. lora).

G = dL/dB, (d_out, r), is never needed for itself: with D (n, d_out) the gradient of the loss at the site's
output for n tokens and Z (n, r) their coordinates A x, G = s D^T Z, and G P = s D^T (Z P). `Gradient` holds
the cheaper form, and its callers need not know which. It also knows M = sum |d|^2 z z^T over the tokens, the
second moment of the keys that this very write moves (`recursion.damped`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def factored_is_cheaper(n: int, d_out: int, r: int) -> bool:
    """Return whether n tokens are few enough to keep G as its factors D and Z instead of building it.

    Multiplications: built, n d_out r + d_out r^2; factored, n r^2 + n d_out r and n d_out r for <G, G P>.
    """
    return n * r * r + 2 * n * d_out * r < n * d_out * r + d_out * r * r


@dataclass(frozen=True)
class Gradient:
    """The gradient of the loss at one site: built as G (d_out, r), or as factors D (n, d_out) and Z (n, r)."""

    scale: float
    built: Tensor | None = None
    summed: Tensor | None = None
    """M (r, r), beside a built G."""
    D: Tensor | None = None
    Z: Tensor | None = None

    @staticmethod
    def of(D: Tensor, Z: Tensor, scale: float) -> Gradient:
        """Keep the cheaper form of D (n, d_out) output gradients and Z (n, r) coordinates, in a pass's dtype."""
        # float32 from here on: G P is added to B, whose small writes must not be rounded away.
        if factored_is_cheaper(D.shape[0], D.shape[1], Z.shape[1]):
            return Gradient(scale, D=D.float(), Z=Z.float())
        return Gradient(scale, built=scale * (D.T @ Z).float(), summed=_moment(D, Z))

    def __add__(self, other: Gradient) -> Gradient:
        """Return the gradient of the sum of both losses; as factors only while they have few rows."""
        if self.D is None or self.Z is None or other.D is None or other.Z is None:
            return Gradient(self.scale, built=self.dense() + other.dense(), summed=self.moment() + other.moment())
        return Gradient.of(torch.cat([self.D, other.D]), torch.cat([self.Z, other.Z]), self.scale)

    @property
    def _factors(self) -> tuple[Tensor, Tensor]:
        """D and Z, where G is not built."""
        assert self.D is not None
        assert self.Z is not None
        return self.D, self.Z

    def dense(self) -> Tensor:
        """Return G, (d_out, r)."""
        if self.built is not None:
            return self.built
        D, Z = self._factors
        return self.scale * (D.T @ Z)

    def moment(self) -> Tensor:
        """Return M = sum |d|^2 z z^T over the tokens, (r, r) float32."""
        return _moment(*self._factors) if self.summed is None else self.summed

    def preconditioned(self, P: Tensor) -> Tensor:
        """Return G P, (d_out, r) float32, for P (r, r)."""
        # P is rounded to G's float32 here: the error of one product does not accumulate, that of P would.
        if self.built is not None:
            return self.built @ P.to(self.built)
        D, Z = self._factors
        return self.scale * (D.T @ (Z @ P.to(Z)))

    def inner(self, other: Tensor) -> Tensor:
        """Return <G, X>, () float64, for X = `other` (d_out, r): with X = G P the decrease of the loss a unit step,
        to first order.

        It is a tensor, as the norms below: for a number Python would wait for the GPU at each site. `read` fetches the
        numbers of all sites at once.
        """
        if self.built is not None:
            return (self.built * other).sum(dtype=torch.float64)
        D, Z = self._factors
        return self.scale * (D * (Z @ other.T)).sum(dtype=torch.float64)

    def norm(self) -> Tensor:
        """Return |G|_F, () float32."""
        found: Tensor = torch.linalg.vector_norm(self.dense())
        return found


def read(numbers: Sequence[Tensor]) -> list[float]:
    """Return one-number tensors as Python numbers, with one transfer from each device."""
    found = [0.0] * len(numbers)
    for device in {number.device for number in numbers}:
        places = [place for place, number in enumerate(numbers) if number.device == device]
        # float64 holds every float32, and every token's id, exactly.
        values = torch.stack([numbers[place].double() for place in places]).cpu().tolist()
        for place, value in zip(places, values, strict=True):
            found[place] = value
    return found


def _moment(D: Tensor, Z: Tensor) -> Tensor:
    # float32: the squares of a pass in float16 would underflow.
    weighted = Z.float() * torch.linalg.vector_norm(D.float(), dim=1, keepdim=True)
    M: Tensor = weighted.T @ weighted
    return M


def polyak_step(loss: float, decrease: float, rho: float = 1.0) -> float:
    """Return eta such that the first-order predicted decrease is rho times the loss: rho L / sum <G, G P>.

    Deviation from the paper, which fixes eta per model: this one needs no tuning and does not depend on the
    scale of P, so both normalisations agree. `decrease` is summed over the sites that share the step.
    """
    return rho * loss / decrease if decrease > 0.0 else 0.0


def conjugacy(slope: float, before: float, after: float, part: float) -> float:
    """Return beta of the direction G P - beta s, conjugate to the last step s of the same edit.

    `slope` is <G, G P>; `before` and `after` are <G, s> at the start and at the end of s.
    beta = slope / max(after - before, -before / part): the weight of Dai and Yuan (1999), at most `part`, in (0, 1], of
    that of Fletcher and Reeves (1964). So the direction always descends.

    Deviation from the paper, where every write is along G P. The tokens of an answer have nearly the same key: a write
    along G P makes one token more likely and another one less, and the next write undoes that.
    """
    if before >= 0.0:  # nothing was written
        return 0.0
    return slope / max(after - before, -before / part)


def length(step: Tensor) -> Tensor:
    """Return the Frobenius norm of a step, () float64."""
    # float64: the squares of a step that has blown up overflow float32, and the step would look finite and tiny.
    found: Tensor = torch.linalg.vector_norm(step, dtype=torch.float64)
    return found


def capped(step: Tensor, limit: float, norm: float) -> Tensor:
    """Return the step on B, of this Frobenius norm, shortened to norm `limit` when it is longer."""
    return step * (limit / norm) if norm > limit else step


def fold(W: Tensor, A: Tensor, B: Tensor, s: float) -> Tensor:
    """Return W + s B A (Eq. lora) in float32, to be rounded once: W (rows, d_in), A (r, d_in), B (rows, r).

    Adding a bf16 delta to a bf16 weight would round twice and lose small updates.
    """
    return torch.addmm(W.float(), B.float(), A.float(), alpha=s)
