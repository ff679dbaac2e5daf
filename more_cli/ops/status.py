"""`more status`: what a state contains or, without a state, what `init` would choose and which modules it refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.checkpoint.hub import Pin, pin_of
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import MoreError
from more_cli.files import sizes_of
from more_cli.ops import held
from more_cli.ops.base import open_base
from more_cli.ops.drift import Drift, known_drift
from more_cli.ops.sign import Signature, state_signature
from more_cli.recipe.schema import GROWTH, Recipe
from more_cli.recipe.settings import spelled
from more_cli.store.entry import FailedEdit
from more_cli.store.ledger import Ledger
from more_cli.store.names import MAIN, current_name, name_of
from more_cli.store.pin import read_pin
from more_cli.store.project import settings_for
from more_cli.store.snapshots import replay_start, snapshots_folder
from more_cli.store.state import SiteRecord, State, StateMeta, load_meta
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.system import ssh
from more_cli.text import counted, nats

if TYPE_CHECKING:  # a state describes itself: neither torch nor transformers is needed
    from more_cli.model.backbones import Site
    from more_cli.model.machine import Machine
    from more_cli.ops.estimate import Estimate
    from more_cli.ops.plan import Plan


@dataclass(frozen=True)
class Disk:
    """What a state takes on the disk."""

    sidecar: int = 0
    """Bytes."""
    folder: int = 0
    """Bytes of ledger, images, snapshots and caches."""
    snapshots: int = 0
    """Of these, bytes of snapshots."""
    behind: int = 0
    """Lines of the ledger that the sidecar does not have yet."""


@dataclass(frozen=True)
class Held:
    """The anchors that writes hold or watch."""

    total: int = 0
    pictured: int = 0
    """Of these, about a picture."""
    made: int = 0
    """Of these, brought by edits, made of their pictures."""

    def __str__(self) -> str:
        """Return their number and kinds, such as `168: 128 about a picture, 40 text only`."""
        if not self.pictured:
            return f"{self.total:,}, all text only"
        made = f" ({self.made:,} brought by edits)" if self.made else ""
        return f"{self.total:,}: {self.pictured:,} about a picture{made}, {self.total - self.pictured:,} text only"


@dataclass(frozen=True)
class StatusReport:
    """A state, or the plan for one."""

    target: Target
    checkpoint: Checkpoint
    state: StateMeta | None
    plan: Plan | None = None
    """Without a state, what `init` would choose, and why other modules cannot be edited."""
    statuses: dict[Status, int] = field(default_factory=dict)
    asked: int = 0
    """Edits that were asked for."""
    failed: list[FailedEdit] = field(default_factory=list)
    """Those of them that do not stand."""
    disk: Disk = Disk()
    held: Held = Held()
    drift: Drift | None = None
    """Of the watched anchors; None without any."""
    signature: Signature | str = ""
    """Who signed the state, and how much of its ledger; or why it counts as not signed."""
    estimate: Estimate | None = None
    """Memory that editing needs, if requested."""

    @property
    def name(self) -> str | None:
        """The state's name; None for one that does not lie beside its checkpoint."""
        return name_of(self.target.model, self.target.sidecar)

    @property
    def current(self) -> str:
        """Name of the state that commands use if none is named, or its path where it does not lie beside the model."""
        model = self.target.model
        if (found := settings_for(model).get("state")) is None:
            return current_name(model)
        return name_of(model, found.value) or str(found.value)

    @property
    def naming(self) -> str:
        """The state's name and whether it is the one in use, in words; empty for `main` in use."""
        if self.name == self.current:
            return "" if self.name == MAIN else f"{self.name}, in use"
        return f"{self.name or 'none: it does not lie beside the model'}; in use is {self.current}"

    @property
    def pin(self) -> Pin | None:
        """The commit on the hub that the base is, if that is known."""
        return read_pin(self.target.folder) if self.state is not None else pin_of(self.target.model)

    @property
    def recipe(self) -> Recipe:
        """The state's, or the one that `init` would choose."""
        if self.state is not None:
            return self.state.recipe
        assert self.plan is not None
        return self.plan.recipe

    @property
    def rank(self) -> str:
        """The recipe's rank, and the smaller ones of some sites."""
        ranks = {record.shape[1]: record.rank for record in self.records}
        if self.plan:
            ranks = {site.shape[1]: self.recipe.rank_at(site.shape[1]) for site in self.plan.sites}
        capped = self.recipe.capped(ranks)
        return f"{self.recipe.rank}, but {capped}" if capped else str(self.recipe.rank)

    @property
    def switches(self) -> list[str]:
        """What the recipe switches for an ablation."""
        return switches(self.recipe)

    @property
    def records(self) -> list[SiteRecord]:
        """The sites of the state, none without one."""
        return self.state.sites if self.state else []

    @property
    def extensions(self) -> list[str]:
        """What the recipe does beyond the paper."""
        return extensions(self.recipe, self.held.total, self.drift.watched if self.drift else 0)


def extensions(recipe: Recipe, anchors: int, watched: int = 0) -> list[str]:
    """Name what a recipe does beyond the paper's write and recursion, with so many anchors, some of them `watched`."""
    names = []
    if recipe.uses_polyak:
        names.append("Polyak step" + (f" (visual share {recipe.visual_share})" if recipe.visual_share else ""))
    if recipe.pooling == "none":
        names.append("the key of every token in P")
    if recipe.damping is not None:
        names.append(f"a write damped by the moment of its own keys ({recipe.damping:g})")
    if recipe.stop_early:
        limit = f"margin {recipe.margin}" if recipe.criterion == "margin" else f"NLL {recipe.target_nll}"
        names.append(f"written until it holds ({limit}, at most {counted(recipe.max_steps, 'write')})")
    if recipe.conjugate:
        names.append(f"conjugate writes ({recipe.conjugate:g})")
    if recipe.halvings:
        names.append(f"shorter steps (at most {counted(recipe.halvings, 'halving')})")
    if recipe.rehearsal.size:
        names.append(f"rehearsal of {recipe.rehearsal.size}")
    if anchors and (recipe.anchors.size or recipe.anchors.keys):
        keys = ", their keys in P" if recipe.anchors.keys else ""
        names.append(f"{counted(anchors, 'anchor')} ({recipe.anchors.size} per write{keys})")
        if recipe.captions:
            names.append(f"descriptions also under {counted(len(recipe.captions), 'other prompt')}")
    if recipe.compact:
        names.append(f"compaction at {counted(recipe.compact, 'edit')}, {GROWTH * recipe.compact:,} and so on")
    if watched:
        names.append(f"harm budget ({counted(watched, 'watched anchor')}, {nats(recipe.anchors.max_drift)})")
    return names


def switches(recipe: Recipe) -> list[str]:
    """Name the switches for ablations that a recipe does not leave at their default."""
    names = {
        "statistics": {"modality": "one P per modality", "shared": "one P for all sites"}.get(recipe.statistics, ""),
        "rank_share": f"a rank of up to {recipe.rank_share:.0%} of a site's inputs",
        "key_mask": "keys of text sites from all tokens",
        "key_taken": "the key taken after the write",
        "absorb": "P absorbs a key after every write",
        "precondition": "no P",
        "basis": f"basis {recipe.basis}",
        "basis_rate": f"A trained at rate {spelled(recipe.basis_rate)}",
        "basis_orthonormal": "A orthonormal again after every write",
        "seed": f"seed {recipe.seed} of the basis",
        "last_vision": f"the last {counted(recipe.last_vision or 0, 'vision layer')}",
        "top_k": f"writes to {counted(recipe.top_k or 0, 'group')} of the largest gradient",
        "end_of_sequence": "targets without their end",
        "labels": "targets tokenised alone",
    }
    fields = type(recipe).model_fields
    named = [words for key, words in names.items() if getattr(recipe, key) != fields[key].default]
    if recipe.anchors.per_edit:
        named.append(f"{counted(recipe.anchors.per_edit, 'anchor key')} in P after every edit")
    return named


def estimated(report: StatusReport, machine: Machine, tokens: int | None = None) -> StatusReport:
    """Return the report with the memory that editing needs on this machine, for sequences of `tokens` tokens."""
    from more_cli.ops.estimate import estimate

    sites: Sequence[Site | SiteRecord] = report.plan.sites if report.plan else report.records
    anchors = report.recipe.anchors.size if report.plan else report.held.total
    needed = estimate(report.checkpoint, sites, report.recipe, machine, anchors=anchors, tokens=tokens)
    return replace(report, estimate=needed)


def status(
    target: Target, signers: Path | None = None, recipe: str | None = None, settings: Sequence[str] = ()
) -> StatusReport:
    """Describe a state, or without one the plan for it; loads no weights.

    A plan is that of `recipe`, by default the architecture's, changed by `settings`. With a file of `signers` only
    their signatures count.

    Raises:
        StateError: not a checkpoint, or a state that does not fit it.
        UsageError: there is no such file, no `ssh-keygen`, or no such recipe.
    """
    if signers:
        ssh.require(signers)
    if not target.sidecar.exists():
        from more_cli.ops.plan import plan

        chosen = plan(target, recipe, settings)
        return StatusReport(target, chosen.checkpoint, None, chosen)
    state = State(load_meta(target.sidecar))  # its tensors stay on the disk
    checkpoint = open_base(target, state)
    ledger = Ledger(target.folder)
    meta = replay_start(state, ledger, target.sidecar).meta
    counts = Counter(ledger.statuses().values())
    anchors = held.held_at(ledger, meta, len(ledger.history))
    return StatusReport(
        target=target,
        checkpoint=checkpoint,
        state=meta,
        statuses={status: counts[status] for status in Status if counts[status]},
        asked=len(ledger.asked()),
        failed=ledger.failed(),
        held=_counted(anchors, held.corrected(anchors, ledger)),
        drift=known_drift(ledger, meta),
        disk=Disk(
            target.sidecar.stat().st_size,
            _size(target.folder),
            _size(snapshots_folder(target.folder)),
            behind=len(ledger.history) - meta.edits,
        ),
        signature=_signature(target, meta, ledger, signers),
    )


def _size(folder: Path) -> int:
    return sum(sizes_of(folder.rglob("*")).values())


def _counted(anchors: held.Held, released: Collection[int]) -> Held:
    kept = [place for place in range(len(anchors.anchors)) if place not in released]
    pictured = [place for place in kept if anchors.anchors[place].images]
    return Held(len(kept), len(pictured), len(anchors.made.intersection(kept)))


def _signature(target: Target, meta: StateMeta, ledger: Ledger, signers: Path | None) -> Signature | str:
    """Return who signed a state, or why it counts as not signed."""
    try:
        found = state_signature(target, meta, ledger, signers)
    except MoreError as error:
        return error.message
    return found or f"nobody has signed it (`more sign {target.typed} --key KEY`)"
