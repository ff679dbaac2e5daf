"""The sites that M-ORE writes to: the basis A, the written B and the statistic P of each.

Text sites pool their keys over answer positions, visual sites over visual tokens, and no two sites share a P:
visual energy never reaches a text P (the paper's modality-decoupled statistics). Each of these, and the frozen A, can
be switched off in the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from more_cli.clock import timed
from more_cli.core import basis, recursion
from more_cli.core.write import Gradient, conjugacy, length, polyak_step, read
from more_cli.editors.more.site import Step, Weights, WrittenSite, make_site
from more_cli.editors.more.statistics import fitted, heard_by, stacked
from more_cli.model.backbones import Site
from more_cli.model.batches import Batch
from more_cli.model.branches import Branch
from more_cli.model.runtime import Runtime
from more_cli.recipe.schema import Recipe
from more_cli.store.state import SiteRecord

RIDGE_KEYS = 16
"""Number of a site's first keys whose mean |z|^2 a relative lambda follows without anchors; then it stays fixed."""


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
class Snapshot:
    """Everything that an edit may change, so that it can be undone."""

    weights: dict[str, Weights]
    P: dict[str, Tensor]
    records: dict[str, SiteRecord]


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
        self._heard = heard_by(records, recipe.statistics)

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
            {name: site.P for name, site in self._sites.items()},
            {name: site.record for name, site in self._sites.items()},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Undo every change since the snapshot."""
        for name, site in self._sites.items():
            site.weights, site.P, site.record = snapshot.weights[name], snapshot.P[name], snapshot.records[name]

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        """Run with B = 0: the base, whose keys do not depend on the edits so far."""
        written = self.snapshot()
        self.unwrite()
        try:
            yield
        finally:
            self.restore(written)

    def unwrite(self) -> None:
        """Set B of every site to zero; P stays."""
        for site in self:
            site.unwrite()

    @timed("absorb")
    def keys(self, batch: Batch) -> dict[str, Tensor]:
        """Return each site's key (r,), or keys (n, r), from the last recorded pass; none if it did not run."""
        keys = {}
        places = batch.answer_places
        for name, site in self._sites.items():
            relevant = places if self.by_mask(site) else None
            if site.branch.ran:
                mean = self.recipe.pooling == "mean"
                keys[name] = site.branch.key(relevant) if mean else site.branch.token_keys(relevant)
        return keys

    def by_mask(self, site: WrittenSite) -> bool:
        """Return whether a site's key comes from the answer's tokens (app. "Edit objective"), not from all of them.

        At visual sites all are the image's tokens, and no others reach one.
        """
        return site.record.modality == "text" and self.recipe.key_mask

    @timed("absorb")
    def whole_keys(self) -> dict[str, Tensor]:
        """Return each site's mean key (r,) over all tokens of the last recorded pass; none if it did not run."""
        return {name: site.branch.key(None) for name, site in self._sites.items() if site.branch.ran}

    @timed("absorb")
    def absorb(self, keys: Mapping[str, Tensor]) -> None:
        """Let P absorb the keys (Eq. sm-update); a relative lambda follows them until it is fixed."""
        absorbed = {}
        for name in self._sites:
            if heard := [keys[other] for other in self._heard[name] if other in keys]:
                absorbed[name] = stacked(heard)
        energies = self._energies(absorbed)
        for name, site in self._sites.items():
            if (key := absorbed.get(name)) is not None:
                site.record = self._observe(site.record, len(key), energies.get(name, 0.0))
                ridge = site.record.ridge or self._relative_ridge(site.record)
                key = fitted(key, site.record.rank).to(site.P.device)
                site.P = recursion.absorb(site.P, key, ridge, self.recipe.normalisation)

    def settle(self, keys: Sequence[Mapping[str, Tensor]]) -> None:
        """Fix every relative lambda from the mean |z|^2 of these keys, given by site name."""
        for name, site in self._sites.items():
            relative = self.recipe.constants_of(name, site.record.modality).ridge_rel
            seen = [key[other] for key in keys for other in self._heard[name] if other in key]
            if relative is not None and seen:
                energy = float(stacked(seen).double().square().sum(dim=1).mean())
                site.record = site.record.model_copy(update={"ridge": max(relative * energy, 1e-12)})

    @timed("write")
    def steps(self, loss: float, recipe: Recipe, last: Mapping[str, Step] | None = None) -> dict[str, Step]:
        """Return Delta B = -eta G P (Eq. closedform) of the last recorded backward pass, by site name.

        `recipe` is the state's, or one that differs in how a single edit is written. `last` is the write before, of the
        same edits: where the recipe says so, this one is conjugate to it.
        """
        gradients = {name: site.branch.gradient() for name, site in self._sites.items()}
        chosen = self._chosen(gradients, recipe.top_k)
        directions = self._directions(chosen, gradients, recipe)
        known = recipe.uses_polyak or recipe.conjugate
        slopes = self._along(gradients, directions) if known else dict.fromkeys(directions, 0.0)
        if recipe.conjugate and last and last.keys() == directions.keys():
            self._turn(directions, slopes, gradients, last, recipe)
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
        """Whether everything that was written is."""
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
        if share is None or min(decrease.values()) <= 0.0:  # a question without an image has no visual part
            eta = polyak_step(loss, sum(decrease.values()), rho)
            return dict.fromkeys(decrease, eta)
        return {
            "text": polyak_step((1.0 - share) * loss, decrease["text"], rho),
            "visual": polyak_step(share * loss, decrease["visual"], rho),
        }

    @staticmethod
    def _along(gradients: Mapping[str, Gradient], changes: Mapping[str, Tensor]) -> dict[str, float]:
        """Return <G, change> by site name."""
        slopes = read([gradients[name].inner(change) for name, change in changes.items()])
        return dict(zip(changes, slopes, strict=True))

    def _turn(
        self,
        directions: dict[str, Tensor],
        slopes: dict[str, float],
        gradients: Mapping[str, Gradient],
        last: Mapping[str, Step],
        recipe: Recipe,
    ) -> None:
        """Make directions conjugate to the last step, those together that share a step length, and follow <G, d>."""
        before = {name: step.slope for name, step in last.items()}
        after = self._along(gradients, {name: step.B for name, step in last.items()})
        for modalities in ("text visual",) if recipe.visual_share is None else ("text", "visual"):
            names = [name for name in directions if self._sites[name].record.modality in modalities]
            slope, start, end = (sum(along[name] for name in names) for along in (slopes, before, after))
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
