"""ScopeEdit (arXiv 2607.01978): M-ORE whose rank is split, so that part of a correction may reach other modalities.

The rows of one orthonormal A are split into a private and a shared block, A_p A_s^T = 0, each with its own B and P:

    y = W x + s (B_p A_p x + B_s A_s x)

An edit is five steps. Each ranks groups of modules (a text layer, the projector) by |dL/dB_p|, and writes the first:
B_p <- B_p - eta G_p P_p, B_s <- B_s - eta_s gamma_T G_s P_s, both with the P of the step before; then P_p absorbs the
mean A_p x of the answer, P_s the gate's q. The gate gamma_T decides what is written and takes no part in an answer:
this is a change of W. It is closed for modules on the image's path and for questions without an image.

Deviations from the published code: keys are taken at the positions that predict the target (it takes the last T,
one further); P is float64; A x has no LayerNorm, also in BLIP-2, since a branch with one is no change of W; locality
keys come from calibration records, once, before the first edit (it takes them from each scored record after its edit);
nothing is written as a warm-up. Its 12 of 32 layers, 7 of 13 groups and rank 448 + 64 are shares here, and its eta,
lambda and rank are set anew for the embedded model, whose keys are of another length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from more_cli.core import basis, recursion
from more_cli.editors.base import Capability, EditContext, EditOutcome, EditRequest, FitData
from more_cli.editors.outcome import EditScore, edit_scores, outcome, refused, score_edit
from more_cli.editors.registry import editor, tries
from more_cli.errors import StateError
from more_cli.model.batches import Batch, Query
from more_cli.model.branches import Branch
from more_cli.model.changes import Change
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.recipe.tables import Table
from more_lab.editors.attached import WritingEditor
from more_lab.editors.modules import own_parameters
from more_lab.editors.scope import Gate, gate


class ScopeTuning(Table):
    """The numbers of ScopeEdit."""

    rank: int = Field(default=64, ge=2)
    """Rows of A, private and shared together; at most d_in."""
    shared: float = Field(default=0.125, gt=0, lt=1)
    """Share of the rows that is shared."""
    scale: float = Field(default=2.0, gt=0)
    """s, the factor on both branches."""
    seed: int = Field(default=42, ge=0)
    """Seed of every A."""
    depth: float = Field(default=0.375, gt=0, le=1)
    """Share of the text layers, the last ones, that can be written; so can the projector."""
    active: float = Field(default=0.54, gt=0, le=1)
    """Share of the groups that a step writes, those with the largest gradient."""
    steps: int = Field(default=5, ge=1)
    """Steps of one edit."""
    eta: float = Field(default=0.3, gt=0)
    """Step of the private B of text modules."""
    eta_visual: float = Field(default=0.001, gt=0)
    """Step of the private B of the projector."""
    eta_shared: float = Field(default=1.0, gt=0)
    """Step of the shared B, before the gate's factor."""
    ridge: float = Field(default=1.0, gt=0)
    """lambda of the private P, in units of |z|^2."""
    ridge_shared: float = Field(default=1.0, gt=0)
    """lambda of the shared P; its keys are of unit length."""
    tau: float = Field(default=0.2, ge=-1, le=1)
    """Cosine at which the gate is half open."""
    beta: float = Field(default=10.0, gt=0)
    """How sharply the gate opens there."""
    locality: int = Field(default=50, ge=0)
    """Calibration records whose locality questions the private P absorbs before the first edit."""


@dataclass
class Scope:
    """One module that can be written."""

    group: str
    """What is ranked: a text layer or the projector."""
    visual: bool
    """On the image's path, where the gate is always closed."""
    private: int
    """Rows of A, the first ones, that are private."""
    branch: Branch
    """A (r, d_in) and B (d_out, r), both blocks side by side."""
    P: Tensor
    """Of the private rows, (r_p, r_p) float64."""
    S: Tensor
    """P of the shared rows, (r_s, r_s) float64."""
    written: bool = False

    @property
    def kept(self) -> tuple[Tensor, Tensor, Tensor, bool]:
        """What an edit changes; it replaces tensors and never changes them in place."""
        return self.branch.B, self.P, self.S, self.written

    @kept.setter
    def kept(self, kept: tuple[Tensor, Tensor, Tensor, bool]) -> None:
        self.branch.B, self.P, self.S, self.written = kept

    def slope(self) -> float:
        """Return |dL/dB_p|_F of the last recorded pass."""
        return float(torch.linalg.vector_norm(self.branch.gradient().dense()[:, : self.private]))

    def write(self, batch: Batch, images: Tensor | None, tuning: ScopeTuning) -> None:
        """Make one step from the last recorded pass; with `images`, the mask of image tokens, the gate may open."""
        gradient, z = self.branch.gradient(), self.branch.key(None if self.visual else batch.answer)
        opened = None if images is None else self.gate(z, images, tuning)
        weights = torch.zeros(len(z), len(z)).to(self.P)
        weights[: self.private, : self.private] = (tuning.eta_visual if self.visual else tuning.eta) * self.P
        self.P = recursion.absorb(self.P, z[: self.private], tuning.ridge, "unit")
        if opened:
            weights[self.private :, self.private :] = tuning.eta_shared * opened.text * self.S
            self.S = recursion.absorb(self.S, opened.key, tuning.ridge_shared, "unit")
        self.branch.B = self.branch.B - gradient.preconditioned(weights)
        self.written = True

    def gate(self, z: Tensor, images: Tensor, tuning: ScopeTuning) -> Gate | None:
        """Return the gate for z (r,), the pooled A x of the answer, and the image tokens of the last recorded pass."""
        if self.visual or not bool(images.any()):
            return None
        return gate(z[self.private :], self.branch.key(images)[self.private :], tuning.tau, tuning.beta)


@editor(
    "scopeedit",
    tries=tries(("eta=0.2", "ridge=30.0"), eta=(0.1, 1.0), ridge=(0.1, 10.0, 100.0), eta_shared=(0.1, 3.0)),
)
class ScopeEditor(WritingEditor[list[Scope]]):
    """ScopeEdit; its state does not grow with the number of edits."""

    tuning: ScopeTuning

    def __init__(self, tuning: ScopeTuning) -> None:
        super().__init__()
        self.tuning = tuning
        self.capabilities: frozenset[Capability] = frozenset({"fit"} if tuning.locality else ())
        self._keys: dict[str, Tensor] = {}

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Put both branches beside every module; on leaving, the model is restored."""
        scopes = self._scopes(runtime)
        with self.working_on(runtime, scopes), runtime.attached([scope.branch for scope in scopes]):
            yield

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Write one correction; if that leaves numbers that are not finite, it is refused and nothing changes."""
        runtime, scopes = self.working
        encoded = runtime.encode(request.query, request.target)
        before, batch, steps = [scope.kept for scope in scopes], runtime.batch([encoded]), self.tuning.steps
        first, *_ = [self._step(batch) for _ in range(steps)]
        last = score_edit(runtime, encoded)
        finite = all(bool(torch.isfinite(tensor).all()) for scope in scopes for tensor in scope.kept[:3])
        if not finite or not math.isfinite(last.nll):
            for scope, kept in zip(scopes, before, strict=True):
                scope.kept = kept
            return refused(first, "a write is not finite", passes=steps + 1, cost=steps + 1 / 3)
        return outcome(runtime, first, last, writes=steps, passes=steps + 1, cost=steps + 1 / 3)

    def _step(self, batch: Batch) -> EditScore:
        """Make one step, and return the score before it."""
        runtime, scopes = self.working
        scored = runtime.score(batch, record=True)
        runtime.backward(scored.nll().mean())
        chosen, sharing = self._ranked(scopes)
        images = runtime.image_tokens(batch)
        for scope in scopes:
            if scope.group in chosen and scope.branch.ran:
                scope.write(batch, images if scope.group in sharing else None, self.tuning)
        return edit_scores(scored)[0]

    def _ranked(self, scopes: Sequence[Scope]) -> tuple[list[str], list[str]]:
        """Return the groups to write, the one with the largest gradient first, and those of them that may share.

        All text layers among them but one may, 6 of 7 in the published code.
        """
        slopes, visual = dict[str, float](), {scope.group for scope in scopes if scope.visual}
        for scope in scopes:
            slopes[scope.group] = slopes.get(scope.group, 0.0) + (scope.slope() if scope.branch.ran else 0.0)
        count = max(1, round(self.tuning.active * len(slopes)))
        chosen = sorted(slopes, key=lambda group: -slopes[group])[:count]
        return chosen, [group for group in chosen if group not in visual][: max(1, count - 1)]

    def fit(self, data: FitData) -> dict[str, Any]:
        """Take the keys of locality questions of calibration records, means over all tokens as in the published code.

        The published code gives them to the groups that the last edit wrote, here to all.
        """
        runtime, scopes = self.working
        probes = [probe for edit in data.edits[: self.tuning.locality] for probe in edit.locality]
        found: dict[str, list[Tensor]] = {scope.branch.module: [] for scope in scopes}
        for place, probe in enumerate(probes):
            data.progress(place, len(probes), "taking locality keys")
            runtime.score(runtime.batch([runtime.encode(Query.of(probe), probe.answer)]), keys=True)
            for scope in scopes:
                if scope.branch.ran:
                    found[scope.branch.module].append(scope.branch.key(None)[: scope.private].cpu())
        self._keys = {path: torch.stack(keys) for path, keys in found.items() if keys}
        for scope in scopes:
            scope.P = self._private_P(scope.branch.module, scope.private, scope.P.device)
        return {"locality": len(probes)}

    def fitted(self) -> dict[str, Tensor]:
        """Return the locality keys of every module, (n, r_p)."""
        return dict(self._keys)

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        """Restore the locality keys."""
        assert self._attached is None, "detach the editor first"
        self._keys = dict(tensors)

    def fit_constants(self) -> dict[str, Any]:
        """Return the numbers that the keys depend on: lambda is no part of them."""
        return self.tuning.model_dump(mode="json", include={"rank", "shared", "seed", "depth", "locality"})

    def changes(self) -> dict[str, Change]:
        """Return s B A of every module, both blocks together."""
        return {scope.branch.module: scope.branch.change for scope in self.working[1]}

    def written(self, place: list[Scope]) -> dict[str, Tensor]:
        """Return B, P and S of every module that was written, by its path."""
        return {
            f"{scope.branch.module}.{name}": tensor.cpu()
            for scope in place
            if scope.written
            for name, tensor in zip("BPS", scope.kept[:3], strict=True)
        }

    def _scopes(self, runtime: Runtime) -> list[Scope]:
        scopes = []
        for group, path in _modules(runtime, self.tuning.depth):
            linear, device = runtime.model.get_submodule(path), runtime.device_of(path)
            rank = min(self.tuning.rank, linear.in_features)
            shared = min(max(1, round(self.tuning.shared * rank)), rank - 1)
            A = basis.draw_basis(rank, linear.in_features, basis.site_seed(self.tuning.seed, path))
            branch = Branch(
                path, path, A.to(device), torch.zeros(linear.out_features, rank, device=device), self.tuning.scale
            )
            P, S = self._private_P(path, rank - shared, device), recursion.initial(shared, 1.0, "unit", device)
            scope = Scope(group, group == _PROJECTOR, rank - shared, branch, P, S)
            if f"{path}.B" in self._values:
                B, P, S = (self._values[f"{path}.{name}"].to(device) for name in "BPS")
                scope.kept = B, P, S, True
            scopes.append(scope)
        return scopes

    def _private_P(self, path: str, rank: int, device: torch.device) -> Tensor:
        """Return the private P of a module before the first edit."""
        P = recursion.initial(rank, self.tuning.ridge, "unit", device)
        keys = self._keys.get(path)
        return P if keys is None else recursion.absorb(P, keys.to(device), self.tuning.ridge, "unit")


_PROJECTOR = "projector"


def _modules(runtime: Runtime, depth: float) -> list[tuple[str, str]]:
    """Return group and path of every Linear that can be written, the projector's first.

    Of gated FFNs the `up` Linear and not the gate's, as in the published code.
    """
    model, backbone = runtime.model, runtime.backbone
    layers = text_layers(model, backbone)
    leaves = [leaf for leaf in backbone.text_ffn_in if "gate" not in leaf.rpartition(".")[2]] + [*backbone.text_ffn_out]
    last = layers[-max(1, round(depth * len(layers))) :]
    linears = {name for name, module in model.named_modules() if type(module) is nn.Linear}
    text = [(layer, path) for layer in last for leaf in leaves if (path := f"{layer}.{leaf}") in linears]
    if not text:
        raise StateError("the last text layers have no FFN that can be written", "use another --editor")
    return [(_PROJECTOR, path) for path in own_parameters(model, backbone.projector) if path in linears] + text
