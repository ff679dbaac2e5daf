"""The sites that M-ORE writes to: the basis A, the written B and the statistic P of each.

Text sites pool their keys over answer positions, visual sites over visual tokens, and no two sites share a P:
visual energy never reaches a text P (the paper's modality-decoupled statistics). Each of these, and the frozen A, can
be switched off in the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from more_cli.clock import timed
from more_cli.core import basis, recursion
from more_cli.core.write import Gradient, capped, conjugacy, length, polyak_step, read
from more_cli.editors.anchors import Anchor
from more_cli.errors import StateError
from more_cli.model.backbones import Site
from more_cli.model.batches import Batch
from more_cli.model.branches import Branch, TrainedBasisBranch
from more_cli.model.runtime import Runtime
from more_cli.model.taps import inputs_of
from more_cli.recipe.schema import Recipe
from more_cli.recipe.tables import Statistics
from more_cli.store.state import SiteRecord, State, unedited_site

RIDGE_KEYS = 16
"""Without anchors, a relative lambda follows the mean |z|^2 of this many first keys of a site, and is then fixed."""
PRINCIPAL_TOKENS = 32
"""Largest number of tokens of an anchor at one site, evenly spaced: an image has hundreds that are alike."""


def new_record(site: Site, recipe: Recipe) -> SiteRecord:
    """Return the record of a site without edits; its basis is drawn from the recipe's seed."""
    rank = recipe.rank_at(site.shape[1])
    seed = basis.site_seed(recipe.seed, site.name)
    return SiteRecord(
        name=site.name,
        group=site.group,
        modality=site.modality,
        module=site.module,
        disk_key=site.disk_key,
        shape=site.shape,
        rank=rank,
        scale=recipe.scale,
        seed=seed,
        basis_version=basis.VERSION,
        basis_fingerprint=basis.drawn_fingerprint(rank, site.shape[1], seed, recipe.basis),
        ridge=recipe.constants_of(site.name, site.modality).ridge,
    )


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
        """Whether all numbers of B are finite, and those of A: () bool each, so that Python need not wait for a GPU."""
        return [torch.isfinite(value).all() for value in (self.B, self.A) if value is not None]


def rebuild_basis(record: SiteRecord, kind: basis.Kind = "orthonormal") -> Tensor:
    """Draw a site's A (r, d_in) again from its seed.

    Raises:
        StateError: the result is not the basis that B was written with.
    """
    A = basis.draw_basis(record.rank, record.shape[1], record.seed, kind)
    _require_same(record, basis.fingerprint(A))
    return A


def check_basis(record: SiteRecord, kind: basis.Kind) -> None:
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
    """<G, Delta B>, the first-order change of the loss; 0 if the recipe does not need it."""


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
        """The group that `top_k` counts: all modules of one layer, or the projector."""
        return self.record.group if self.record.group == "projector" else self.record.name.rpartition(".")[0]

    @property
    def weights(self) -> Weights:
        """What a write changes."""
        return Weights(self.branch.B)

    @weights.setter
    def weights(self, value: Weights) -> None:
        self.branch.B = value.B

    def clear(self) -> None:
        """Set B to zero."""
        self.branch.B = torch.zeros_like(self.branch.B)

    def step(self, change: Tensor, limit: float, norm: float, slope: float) -> Step:
        """Return the step that changes B by `change`, of this norm, shortened if |Delta B A|_F is above `limit`."""
        limit /= self.stretch
        return Step(capped(change, limit, norm), slope=slope * min(1.0, limit / norm) if norm else 0.0)

    def write(self, before: Weights, step: Weights, share: float) -> None:
        """Set B to what it was before plus this share of the step."""
        self.branch.B = before.B + share * step.B


@dataclass
class TrainedBasisSite(WrittenSite):
    """A site whose A is trained too, by plain gradient descent: the paper's ablation "without freezing A".

    The paper says that A is updated "jointly with B" and not how. Here both steps start from the same gradients; that
    of A is not multiplied by anything, as P knows nothing of d_in. P stays what it is when A moves, in coordinates that
    are no longer those of its keys: that is the drift which freezing A removes.
    """

    branch: TrainedBasisBranch
    _: KW_ONLY
    rate: float
    """Learning rate of A."""
    orthonormal: bool
    """Whether A's rows are made orthonormal again after each write."""
    drawn: Tensor
    """A before the first write."""

    @property
    def weights(self) -> Weights:
        """What a write changes."""
        return Weights(self.branch.B, self.branch.basis)

    @weights.setter
    def weights(self, value: Weights) -> None:
        assert value.A is not None
        self.branch.B, self.branch.basis = value.B, value.A

    def clear(self) -> None:
        """Set B to zero and A to what it was before the first write."""
        super().clear()
        self.branch.basis = self.drawn

    def step(self, change: Tensor, limit: float, norm: float, slope: float) -> Step:
        """Return the step that changes B by `change` and A along its gradient; each changes B A by at most `limit`."""
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
            L, Q = basis.lq(A.double())
            B, A = (B.double() @ L).to(B), Q.to(A)  # B A = (B L) Q: the model stays the same
        # Row-major, as they are stored: a product must round the same after a restart.
        self.branch.B, self.branch.basis = B.contiguous(), A.contiguous()


def make_site(record: SiteRecord, weights: Weights, P: Tensor, recipe: Recipe, runtime: Runtime) -> WrittenSite:
    """Return a site beside its Linear; an A that is not stored is drawn again."""
    device = runtime.device_of(record.module)
    B, P = weights.B.to(device), P.to(device)
    A = (rebuild_basis(record, recipe.basis) if weights.A is None else weights.A).to(device)
    if recipe.basis_rate is None:
        return WrittenSite(record, Branch(record.name, record.module, A, B, record.scale), P, _stretch(A, recipe))
    drawn = rebuild_basis(record, recipe.basis).to(device).contiguous()
    branch = TrainedBasisBranch(record.name, record.module, A.contiguous(), B, record.scale)
    return TrainedBasisSite(
        record, branch, P, rate=recipe.basis_rate, orthonormal=recipe.basis_orthonormal, drawn=drawn
    )


def _stretch(A: Tensor, recipe: Recipe) -> float:
    return 1.0 if recipe.orthonormal else basis.stretch(A)


@dataclass(frozen=True)
class Snapshot:
    """Everything that an edit may change, so that it can be undone."""

    weights: dict[str, Weights]
    A: dict[str, Tensor]
    """As its branch uses it: a compaction gives it more rows."""
    P: dict[str, Tensor]
    records: dict[str, SiteRecord]
    stretch: dict[str, float]


class Sites:
    """The sites of an attached editor, by name."""

    def __init__(
        self,
        records: Sequence[SiteRecord],
        weights: Mapping[str, Weights],
        P: Mapping[str, Tensor],
        recipe: Recipe,
        runtime: Runtime,
    ) -> None:
        """Put sites beside a model; `weights` have A where it is stored, the other A are drawn again."""
        self.recipe = recipe
        self._runtime = runtime
        self._norms: dict[str, float] = {}
        self._sites = {r.name: make_site(r, weights[r.name], P[r.name], recipe, runtime) for r in records}
        self._key_sources = key_sources(records, recipe.statistics)
        self._narrow = narrow(records)

    def __iter__(self) -> Iterator[WrittenSite]:
        return iter(self._sites.values())

    @property
    def branches(self) -> list[Branch]:
        """The branches of all sites."""
        return [site.branch for site in self]

    @property
    def records(self) -> list[SiteRecord]:
        """The records of all sites, with lambda and key counts as they are now."""
        return [site.record for site in self]

    def tensors(self) -> tuple[dict[str, Weights], dict[str, Tensor]]:
        """Return what was written and P of every site, on the CPU."""
        weights = {site.record.name: site.weights.cpu() for site in self}
        return weights, {site.record.name: site.P.cpu() for site in self}

    def snapshot(self) -> Snapshot:
        """Return what an edit may change; B and P are replaced, never changed in place, so references are enough."""
        return Snapshot(
            {name: site.weights for name, site in self._sites.items()},
            {name: site.branch.A for name, site in self._sites.items()},
            {name: site.P for name, site in self._sites.items()},
            {name: site.record for name, site in self._sites.items()},
            {name: site.stretch for name, site in self._sites.items()},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Undo every change since the snapshot."""
        for name, site in self._sites.items():
            site.branch.A = snapshot.A[name]
            site.weights, site.P, site.record = snapshot.weights[name], snapshot.P[name], snapshot.records[name]
            site.stretch = snapshot.stretch[name]

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo on leaving what the block does to the sites."""
        before = self.snapshot()
        try:
            yield
        finally:
            self.restore(before)

    def clear(self) -> None:
        """Set B of every site to zero; P stays."""
        for site in self:
            site.clear()

    def start_over(self) -> None:
        """Give every site the largest rank of its recipe, B = 0 and P = P_0, as if no key had ever come."""
        for site in self:
            rank = self.recipe.largest_rank(site.record.shape[1])
            if rank != site.record.rank:
                record = unedited_site(site.record, self.recipe, rank)
                A = rebuild_basis(record, self.recipe.basis).to(site.P.device)
                site.stretch = _stretch(A, self.recipe)
                site.branch.A = A.to(site.branch.A)
                site.branch.B = site.branch.B.new_zeros(record.shape[0], rank)
            site.clear()
            site.record = unedited_site(site.record, self.recipe, rank)
            P = recursion.initial(rank, site.record.ridge or 0.0, self.recipe.normalisation)
            site.P = P.to(site.P.device)

    @timed("absorb")
    def keys(self, batch: Batch) -> dict[str, Tensor]:
        """Return each site's key (r,), or keys (n, r), from the last recorded pass; none if it did not run."""
        keys, mean = {}, self.recipe.pooling == "mean"
        for name, site in self._sites.items():
            if site.branch.ran:
                relevant = batch.answer_places if self.keys_from_answer(site) else None
                keys[name] = site.branch.key(relevant) if mean else site.branch.token_keys(relevant)
        return keys

    def keys_from_answer(self, site: WrittenSite) -> bool:
        """Return whether a site's key comes from the answer's tokens (app. "Edit objective"), not from all of them.

        At visual sites all are the image's tokens, and no others reach one.
        """
        return site.record.modality == "text" and self.recipe.key_mask

    @timed("absorb")
    def mean_keys(self) -> dict[str, Tensor]:
        """Return each site's mean key (r,) over all tokens of the last recorded pass; none if it did not run."""
        return {name: site.branch.key(None) for name, site in self._sites.items() if site.branch.ran}

    @timed("absorb")
    def absorb(self, keys: Mapping[str, Tensor]) -> None:
        """Let P absorb the keys (Eq. sm-update); a relative lambda follows them until it is fixed."""
        absorbed = {}
        for name in self._sites:
            if found := [keys[other] for other in self._key_sources[name] if other in keys]:
                absorbed[name] = stacked(found)
        energies = self._energies(absorbed)
        for name, site in self._sites.items():
            if (key := absorbed.get(name)) is not None:
                site.record = self._observe(site.record, len(key), energies.get(name, 0.0))
                ridge = site.record.ridge or self._relative_ridge(site.record)
                key = fitted(key, site.record.rank).to(site.P.device)
                site.P = recursion.absorb(site.P, key, ridge, self.recipe.normalisation)

    def fix_ridge(self, keys: Sequence[Mapping[str, Tensor]]) -> None:
        """Fix every relative lambda from the mean |z|^2 of these keys, given by site name."""
        for name, site in self._sites.items():
            relative = self.recipe.constants_of(name, site.record.modality).ridge_rel
            seen = [key[other] for key in keys for other in self._key_sources[name] if other in key]
            if relative is not None and seen:
                energy = float(stacked(seen).double().square().sum(dim=1).mean())
                site.record = site.record.model_copy(update={"ridge": max(relative * energy, 1e-12)})

    @timed("write")
    def steps(self, loss: float, recipe: Recipe, last: Mapping[str, Step] | None = None) -> dict[str, Step]:
        """Return Delta B = -eta G P (Eq. closedform) of the last recorded backward pass, by site name.

        With `damping` P is `recursion.damped` at text sites.

        `recipe` is the state's, or one that differs in how a single edit is written. `last` is the write before, of the
        same edits: where the recipe says so, this one is conjugate to it.
        """
        gradients = {name: site.branch.gradient() for name, site in self._sites.items()}
        chosen = self._chosen(gradients, recipe.top_k)
        directions = self._directions(chosen, gradients, recipe)
        known = recipe.uses_polyak or recipe.conjugate
        slopes = self._slopes_along(gradients, directions) if known else dict.fromkeys(directions, 0.0)
        if recipe.conjugate and last and last.keys() == directions.keys():
            self._make_conjugate(directions, slopes, gradients, last, recipe)
        polyak = self._polyak(loss, slopes, recipe) if recipe.uses_polyak else {}
        changes = {}
        for site in chosen:
            name, modality = site.record.name, site.record.modality
            step = recipe.constants_of(name, modality).step
            eta = step if isinstance(step, float) else polyak[modality]
            changes[name] = -eta * directions.pop(name)
            slopes[name] *= -eta
        norms = read([length(change) for change in changes.values()])
        return {
            name: site.step(changes.pop(name), self._limit(site, recipe), norm, slopes[name])
            for site, name, norm in zip(chosen, tuple(changes), norms, strict=True)
        }

    @timed("write")
    def write(self, before: Snapshot, steps: Mapping[str, Weights], share: float = 1.0) -> None:
        """Set B to what it was before plus this share of the steps."""
        for name, step in steps.items():
            self._sites[name].write(before.weights[name], step, share)

    def use(self, bases: Mapping[str, Tensor]) -> None:
        """Use these A, (r, d_in) by name of the site, on sites without edits."""
        for name, A in bases.items():
            branch = self._sites[name].branch
            branch.A = A.to(branch.A)

    def finite(self) -> bool:
        """Return whether everything that was written is finite."""
        return all(read([flag for site in self for flag in site.weights.finite]))

    def _limit(self, site: WrittenSite, recipe: Recipe) -> float:
        """Return the largest |Delta B A|_F of one write: `max_write` |W|_F / s."""
        record = site.record
        if record.name not in self._norms:
            self._norms[record.name] = self._runtime.norm(record.module, record.disk_key)
        return recipe.max_write * self._norms[record.name] / record.scale

    def _polyak(self, loss: float, slopes: Mapping[str, float], recipe: Recipe) -> dict[str, float]:
        """Return eta by modality: one for all sites or, with `visual_share`, each modality's own part of the loss."""
        decrease = {"text": 0.0, "visual": 0.0}
        for name, slope in slopes.items():
            decrease[self._sites[name].record.modality] += slope
        share, rho = recipe.visual_share, recipe.rho
        if share is not None:
            share *= self._narrow
        if share is None or min(decrease.values()) <= 0.0:  # a question without an image has no visual part
            eta = polyak_step(loss, sum(decrease.values()), rho)
            return dict.fromkeys(decrease, eta)
        return {
            "text": polyak_step((1.0 - share) * loss, decrease["text"], rho),
            "visual": polyak_step(share * loss, decrease["visual"], rho),
        }

    @staticmethod
    def _slopes_along(gradients: Mapping[str, Gradient], changes: Mapping[str, Tensor]) -> dict[str, float]:
        """Return <G, change> by site name."""
        slopes = read([gradients[name].inner(change) for name, change in changes.items()])
        return dict(zip(changes, slopes, strict=True))

    def _make_conjugate(
        self,
        directions: dict[str, Tensor],
        slopes: dict[str, float],
        gradients: Mapping[str, Gradient],
        last: Mapping[str, Step],
        recipe: Recipe,
    ) -> None:
        """Make each direction d conjugate to the last step and update <G, d>; sites that share a step share beta."""
        before = {name: step.slope for name, step in last.items()}
        after = self._slopes_along(gradients, {name: step.B for name, step in last.items()})
        sharing = [("text", "visual")] if recipe.visual_share is None else [("text",), ("visual",)]
        for modalities in sharing:
            names = [name for name in directions if self._sites[name].record.modality in modalities]
            slope, start, end = (sum(values[name] for name in names) for values in (slopes, before, after))
            beta = conjugacy(slope, start, end, recipe.conjugate)
            for name in names:
                directions[name] = directions[name] - beta * last[name].B
                slopes[name] -= beta * after[name]

    @staticmethod
    def _directions(
        chosen: Sequence[WrittenSite], gradients: Mapping[str, Gradient], recipe: Recipe
    ) -> dict[str, Tensor]:
        """Return G P by site name, (d_out, r)."""
        damping, directions = recipe.damping, {}
        names = [site.record.name for site in chosen if damping is not None and site.record.modality == "text"]
        moments = {name: gradients[name].moment() for name in names}
        traces = dict(zip(names, read([M.double().trace() for M in moments.values()]), strict=True))
        for site in chosen:
            name = site.record.name
            P = site.P if recipe.precondition else torch.eye(len(site.P), device=site.P.device).to(site.P)
            if damping is not None and name in moments:
                P = recursion.damped(P, moments[name], damping, traces[name])
            directions[name] = gradients[name].preconditioned(P)
        return directions

    def _chosen(self, gradients: Mapping[str, Gradient], top_k: int | None) -> list[WrittenSite]:
        """Return the sites of the `top_k` groups with the largest gradient, or all (the paper's text)."""
        if top_k is None:
            return list(self)
        energy: dict[str, float] = {}
        norms = read([gradients[name].norm() for name in self._sites])
        for site, norm in zip(self, norms, strict=True):
            energy[site.layer] = energy.get(site.layer, 0.0) + norm**2
        best = sorted(energy, key=lambda layer: energy[layer], reverse=True)[:top_k]
        return [site for site in self if site.layer in best]

    def _energies(self, keys: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the sum of |z|^2 over keys (n, r) by site, where lambda is open and follows it."""
        names = [name for name in keys if self._sites[name].record.ridge is None]
        return dict(zip(names, read([keys[name].double().square().sum() for name in names]), strict=True))

    def _observe(self, record: SiteRecord, keys: int, energy: float) -> SiteRecord:
        record = record.model_copy(update={"keys": record.keys + keys})
        if record.ridge is None:
            record = record.model_copy(update={"energy": record.energy + energy})
            if record.keys >= RIDGE_KEYS:
                record = record.model_copy(update={"ridge": self._relative_ridge(record)})
        return record

    def _relative_ridge(self, record: SiteRecord) -> float:
        relative = self.recipe.constants_of(record.name, record.modality).ridge_rel
        assert relative is not None
        # The floor keeps the denominator positive when every key so far was zero.
        return max(relative * record.energy / record.keys, 1e-12)


def narrow(records: Sequence[SiteRecord]) -> float:
    """Return what `visual_share` is multiplied by: text width / projector width, at most 1.

    Not in the paper. On a small Qwen2-VL, whose projector is three times as wide as its text model, the edits hold on
    more of the other pictures the less of the loss is left to it; on a Qwen3-VL of that shape nothing changes. That in
    a wide projector two pictures share few keys is the likely reason, and was not measured.
    """
    text = [record.shape[1] for record in records if record.modality == "text"]
    projector = [record.shape[1] for record in records if record.group == "projector"]
    return min(1.0, min(text) / max(projector)) if text and projector else 1.0


def key_sources(records: Sequence[SiteRecord], statistics: Statistics) -> dict[str, tuple[str, ...]]:
    """Return, by name of a site, the names of the sites whose keys its P absorbs: its own, or those of others too.

    The paper argues against sharing and leaves open how sites of different rank would share. Here S = sum z z^T has
    as many coordinates as the largest rank, and shorter keys end with zeros. A site of rank r uses the leading block of
    S: its write minimises Eq. proj-obj over its r coordinates, so P = (I + S_rr / lambda)^-1. That is the P of a site
    that absorbs every key cut or filled to r. So each site keeps a P of its own size, and sites of one rank keep the
    same P. They have one lambda too: a relative lambda follows the mean |z|^2 of all these keys.
    """
    group_of = {
        record.name: {"site": record.name, "modality": record.modality, "shared": ""}[statistics] for record in records
    }
    return {name: tuple(other for other in group_of if group_of[other] == group_of[name]) for name in group_of}


def stacked(keys: Sequence[Tensor]) -> Tensor:
    """Return keys (r,) or (n, r) of one or several sites as rows (n, R), the shorter ones filled up with zeros."""
    width = max(key.shape[-1] for key in keys)
    rows = [fitted(key.reshape(-1, key.shape[-1]).to(keys[0].device), width) for key in keys]
    return rows[0] if len(rows) == 1 else torch.cat([row.double() for row in rows])


def fitted(key: Tensor, rank: int) -> Tensor:
    """Return keys (n, R) cut or filled with zeros to (n, rank)."""
    return key if key.shape[-1] == rank else pad(key, (0, rank - key.shape[-1]))


def principal_bases(runtime: Runtime, sites: Sites, anchors: Sequence[Anchor]) -> dict[str, Tensor]:
    """Return A (r, d_in) float32 of every site by name, from the base's inputs at the tokens that its keys come from.

    A site that no anchor reaches keeps the basis that was drawn.
    """
    inputs: dict[str, list[Tensor]] = {site.record.name: [] for site in sites}
    with runtime.base(), inputs_of(runtime.model, [site.branch.module for site in sites]) as read:
        for anchor in anchors:
            read.clear()
            batch = runtime.batch([anchor.encoded])
            runtime.score(batch)
            for site in sites:
                if site.branch.module in read:
                    relevant = batch.answer if sites.keys_from_answer(site) else None
                    inputs[site.record.name].append(_spaced(read[site.branch.module], relevant))
    drawn = {site.record.name: rebuild_basis(site.record, "pca") for site in sites}
    return {name: basis.principal(torch.cat(seen), A) if (seen := inputs[name]) else A for name, A in drawn.items()}


def _spaced(x: Tensor, relevant: Tensor | None) -> Tensor:
    rows = x if relevant is None else x[relevant.reshape(-1).to(x.device)]
    places = torch.linspace(0, len(rows) - 1, min(len(rows), PRINCIPAL_TOKENS)).round().long()
    return rows[places.to(rows.device)].float().cpu()
