"""M-ORE: a closed-form write into B along frozen coordinates A, preconditioned by what past edits used (P).

One edit, in the paper's order: loss of the target (app. "Edit objective"), G = dL/dB, B <- B - eta G P with the
P of the edits before (Eq. closedform), then P absorbs this edit's key (Eq. sm-update), so that later edits avoid
the directions this one depends on. Text sites pool their keys over answer positions, visual sites over visual
tokens, and no two sites share a P: visual energy never reaches a text P.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from more_cli.core import basis, recursion, write
from more_cli.editors.base import EditContext, Editor, EditOutcome, EditRequest, Family, Status
from more_cli.errors import StateError
from more_cli.model.backbones import Site
from more_cli.model.batches import Batch
from more_cli.model.branches import Branch
from more_cli.model.runtime import Runtime, Scored
from more_cli.recipe import Recipe
from more_cli.state import SiteRecord

RIDGE_KEYS = 16
"""A relative lambda follows the mean |z|^2 of this many first keys of its site, then stays."""


def new_record(site: Site, recipe: Recipe) -> SiteRecord:
    """Describe a site that has seen no edit, its basis drawn from the recipe's seed."""
    rank = basis.usable_rank(recipe.rank, site.shape[1])
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
        basis_fingerprint=basis.fingerprint(basis.draw_basis(rank, site.shape[1], seed)),
        ridge=recipe.constants_of(site.name, site.modality).ridge,
    )


def rebuild_basis(record: SiteRecord) -> Tensor:
    """Draw a site's A (r, d_in) again from its seed.

    Raises:
        StateError: what comes out is not the basis that B was written in.
    """
    A = basis.draw_basis(record.rank, record.shape[1], record.seed)
    if record.basis_version != basis.VERSION or not basis.matches(A, record.basis_fingerprint):
        raise StateError(
            f"the basis of site `{record.name}` cannot be rebuilt on this machine",
            "use the versions of numpy and torch that the ledger names",
        )
    return A


@dataclass
class _Site:
    """One site at work: its description, its branch (A, B) and its P."""

    record: SiteRecord
    branch: Branch
    P: Tensor
    limit: float
    """Largest |Delta B|_F of one write: `max_write` |W|_F / s, since A's rows are orthonormal."""

    @property
    def layer(self) -> str:
        """The group that `top_k` chooses: one layer's modules together, the projector as one."""
        return self.record.group if self.record.group == "projector" else self.record.name.rpartition(".")[0]


@dataclass
class _Tally:
    """What one edit has taken so far, and why it cannot go on."""

    writes: int = 0
    passes: int = 1
    sites: set[str] = field(default_factory=set)
    reason: str = ""


@dataclass(frozen=True)
class _Snapshot:
    """Everything an edit may change, for taking it back."""

    B: dict[str, Tensor]
    P: dict[str, Tensor]
    records: dict[str, SiteRecord]


class MoreEditor(Editor):
    """M-ORE with B and P as its state."""

    name: ClassVar[str] = "more"
    family: ClassVar[Family] = "lowrank"
    capabilities: ClassVar[frozenset[str]] = frozenset({"merge", "export"})

    def __init__(
        self, recipe: Recipe, records: Sequence[SiteRecord], B: Mapping[str, Tensor], P: Mapping[str, Tensor]
    ) -> None:
        self.recipe = recipe
        self._records = [record.model_copy() for record in records]
        self._B = dict(B)
        self._P = dict(P)
        self._sites: list[_Site] = []
        self._runtime: Runtime | None = None

    @staticmethod
    def fresh(recipe: Recipe, sites: Sequence[Site]) -> MoreEditor:
        """Return an editor without edits: B = 0, P = P_0."""
        editor = MoreEditor(recipe, [new_record(site, recipe) for site in sites], {}, {})
        editor.reset()
        return editor

    @property
    def records(self) -> list[SiteRecord]:
        """Descriptions of the sites, with lambda and key counts as they are now."""
        return [site.record for site in self._sites] or self._records

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Put the branches beside their Linears; on leaving the model is as it was found."""
        self._sites = [self._site(record, runtime) for record in self._records]
        self._runtime = runtime
        try:
            with runtime.attached([site.branch for site in self._sites]):
                yield
        finally:
            self._B, self._P = self._tensors()
            self._records = [site.record for site in self._sites]
            self._sites, self._runtime = [], None

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Write one correction until it is learnt, at most `max_steps` times, or take it back and refuse it."""
        assert self._runtime is not None, "attach the editor first"
        batch = self._runtime.batch([self._runtime.encode(request.query, request.target)])
        before = self._snapshot()
        outcome = self._learn(batch)
        if outcome.status == "refused":
            self._restore(before)
        return outcome

    def reset(self) -> None:
        """Forget every edit: B = 0, P = P_0, lambda open again where it follows the keys."""
        self._records = [
            record.model_copy(
                update={
                    "ridge": self.recipe.constants_of(record.name, record.modality).ridge,
                    "keys": 0,
                    "energy": 0.0,
                }
            )
            for record in self._records
        ]
        self._B = {record.name: torch.zeros(record.shape[0], record.rank) for record in self._records}
        self._P = {
            # A recipe in the paper's form has a fixed lambda; in the code's form P_0 = I does not depend on it.
            record.name: recursion.initial(record.rank, record.ridge or 0.0, self.recipe.normalisation)
            for record in self._records
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return `<site>.B` and `<site>.P` of every site."""
        B, P = self._tensors()
        return {f"{name}.B": value for name, value in B.items()} | {f"{name}.P": value for name, value in P.items()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take back the tensors of `state_dict`; the editor must not be attached."""
        assert not self._sites
        self._B = {record.name: tensors[f"{record.name}.B"] for record in self._records}
        self._P = {record.name: tensors[f"{record.name}.P"] for record in self._records}

    def footprint(self) -> dict[str, int]:
        """Return bytes of B, P and A; an edit adds none."""
        basis_bytes = sum(4 * record.rank * record.shape[1] for record in self.records)
        held = sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())
        return {"fixed": held + basis_bytes, "per_edit": 0}

    def _learn(self, batch: Batch) -> EditOutcome:
        scored = self._look(batch, self.recipe.max_steps)
        first, keys = scored, self._keys(batch)
        tally = _Tally()
        while tally.writes < self.recipe.max_steps and not self._done(scored):
            steps = self._steps(scored)
            if self.recipe.absorb == "write":
                self._absorb(self._keys(batch), [self._by_name[name] for name in steps])
            after = self._advance(batch, scored, steps, tally)
            if after is None:
                return self._outcome(first, scored, tally)
            if after is scored:
                break
            scored = after
        if self.recipe.absorb == "edit":
            # With the keys of the first pass: what the edit will look like to a model that has not drifted yet.
            self._absorb(keys, self._sites)
        return self._outcome(first, scored, tally)

    def _advance(self, batch: Batch, scored: Scored, steps: Mapping[str, Tensor], tally: _Tally) -> Scored | None:
        """Write the steps and look again; one that raises the loss is taken back and tried at half its length.

        Deviation from the paper, which has no guard. When both raise the loss the model is back where it was: then
        the same scores are returned if the answer is right, else None with the reason in the tally.
        """
        before = {name: self._by_name[name].branch.B for name in steps}
        loss = _mean_nll(scored)
        for share in (1.0, 0.5) if self.recipe.guard else (1.0,):
            for name, step in steps.items():
                self._by_name[name].branch.B = before[name] + share * step
            tally.passes += 1
            after = self._look(batch, self.recipe.max_steps - tally.writes - 1)
            if not math.isfinite(_mean_nll(after)) or not all(_finite(site.branch.B) for site in self._sites):
                tally.reason = "a write is not finite"
                return None
            if not self.recipe.guard or _mean_nll(after) <= loss or self._learnt(after):
                tally.writes += 1
                tally.sites.update(steps)
                return after
        if _right(scored):
            # The target is the answer already, only less sure than wanted: that much stands.
            for name, B in before.items():
                self._by_name[name].branch.B = B
            return scored
        tally.reason = f"two writes raised the loss (from {loss:.3g} to {_mean_nll(after):.3g} nats)"
        return None

    @property
    def _by_name(self) -> dict[str, _Site]:
        return {site.record.name: site for site in self._sites}

    def _look(self, batch: Batch, writes_left: int) -> Scored:
        """Run a pass, with a graph only while a write may follow it."""
        assert self._runtime is not None
        return self._runtime.score(batch, record=writes_left > 0)

    def _learnt(self, scored: Scored) -> bool:
        return _right(scored) and _mean_nll(scored) < self.recipe.target_nll

    def _done(self, scored: Scored) -> bool:
        return self.recipe.stop_early and self._learnt(scored)

    def _steps(self, scored: Scored) -> dict[str, Tensor]:
        """Return Delta B = -eta G P for every chosen site (Eq. closedform), by site name."""
        loss = scored.nll().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {site.record.name: site.branch.gradient() for site in self._sites}
        sites = self._chosen(gradients)
        directions = {site.record.name: self._direction(site, gradients[site.record.name]) for site in sites}
        polyak = 0.0
        if self.recipe.uses_polyak:
            decrease = sum(gradients[name].inner(direction) for name, direction in directions.items())
            polyak = write.polyak_step(float(loss.detach()), decrease, self.recipe.rho)
        steps = {}
        for site in sites:
            step = self.recipe.constants_of(site.record.name, site.record.modality).step
            eta = step if isinstance(step, float) else polyak
            steps[site.record.name] = write.capped(-eta * directions[site.record.name], site.limit)
        return steps

    def _direction(self, site: _Site, gradient: write.Gradient) -> Tensor:
        return gradient.preconditioned(site.P) if self.recipe.precondition else gradient.dense()

    def _chosen(self, gradients: Mapping[str, write.Gradient]) -> list[_Site]:
        """Return the sites of the `top_k` groups with the largest gradient, or all (the paper's text)."""
        if self.recipe.top_k is None:
            return self._sites
        energy: dict[str, float] = {}
        for site in self._sites:
            energy[site.layer] = energy.get(site.layer, 0.0) + gradients[site.record.name].norm() ** 2
        best = sorted(energy, key=lambda layer: energy[layer], reverse=True)[: self.recipe.top_k]
        return [site for site in self._sites if site.layer in best]

    def _keys(self, batch: Batch) -> dict[str, Tensor]:
        """Return each site's key (r,), or keys (n, r), from the last recorded pass; no key where nothing ran."""
        keys = {}
        for site in self._sites:
            relevant = batch.answer if site.record.modality == "text" else None
            if site.branch.ran:
                mean = self.recipe.pooling == "mean"
                keys[site.record.name] = site.branch.key(relevant) if mean else site.branch.token_keys(relevant)
        return keys

    def _absorb(self, keys: Mapping[str, Tensor], sites: Sequence[_Site]) -> None:
        """P takes the keys in (Eq. sm-update); a relative lambda follows them until it is settled."""
        for site in sites:
            if site.record.name not in keys:
                continue
            key = keys[site.record.name].reshape(-1, site.record.rank)
            site.record = self._observe(site.record, key)
            ridge = site.record.ridge or self._relative_ridge(site.record)
            site.P = recursion.absorb(site.P, key, ridge, self.recipe.normalisation)

    def _observe(self, record: SiteRecord, key: Tensor) -> SiteRecord:
        record = record.model_copy(update={"keys": record.keys + len(key)})
        if record.ridge is None:
            energy = record.energy + float(key.double().square().sum())
            record = record.model_copy(update={"energy": energy})
            if record.keys >= RIDGE_KEYS:
                record = record.model_copy(update={"ridge": self._relative_ridge(record)})
        return record

    def _relative_ridge(self, record: SiteRecord) -> float:
        relative = self.recipe.constants_of(record.name, record.modality).ridge_rel
        assert relative is not None
        # The floor keeps the denominator positive when every key so far was zero.
        return max(relative * record.energy / record.keys, 1e-12)

    def _outcome(self, first: Scored, last: Scored, tally: _Tally) -> EditOutcome:
        assert self._runtime is not None
        refused = bool(tally.reason)
        last = first if refused else last
        status: Status = "learnt" if _right(last) else "not-learnt"
        if refused:
            status = "refused"
        elif tally.writes == 0:
            status = "already-right"
        text = self._runtime.prompter.text
        return EditOutcome(
            status=status,
            nll_before=_mean_nll(first),
            nll_after=_mean_nll(last),
            answer_before=text(first.predicted()[0][first.mask[0]]),
            answer_after=text(last.predicted()[0][last.mask[0]]),
            right_after=_right(last),
            writes=0 if refused else tally.writes,
            passes=tally.passes,
            reason=tally.reason,
            sites=() if refused else tuple(sorted(tally.sites)),
        )

    def _site(self, record: SiteRecord, runtime: Runtime) -> _Site:
        weight = runtime.model.get_submodule(record.module).weight
        branch = Branch(
            record.name,
            record.module,
            rebuild_basis(record).to(weight.device),
            self._B[record.name].to(weight.device),
            record.scale,
        )
        limit = self.recipe.max_write * float(torch.linalg.vector_norm(weight.detach().float())) / record.scale
        return _Site(record, branch, self._P[record.name].to(weight.device), limit)

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        if not self._sites:
            return self._B, self._P
        B = {site.record.name: site.branch.B.cpu() for site in self._sites}
        return B, {site.record.name: site.P.cpu() for site in self._sites}

    def _snapshot(self) -> _Snapshot:
        # B and P are replaced, never changed in place, so keeping references is enough.
        return _Snapshot(
            {site.record.name: site.branch.B for site in self._sites},
            {site.record.name: site.P for site in self._sites},
            {site.record.name: site.record for site in self._sites},
        )

    def _restore(self, snapshot: _Snapshot) -> None:
        for site in self._sites:
            site.branch.B = snapshot.B[site.record.name]
            site.P = snapshot.P[site.record.name]
            site.record = snapshot.records[site.record.name]


def _finite(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())


def _right(scored: Scored) -> bool:
    return bool(scored.all_right().all())


def _mean_nll(scored: Scored) -> float:
    return float(scored.nll().detach().mean())
