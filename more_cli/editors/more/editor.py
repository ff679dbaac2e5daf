"""M-ORE: a closed-form write into B along frozen coordinates A, preconditioned by what past edits used (P).

One edit, in the paper's order: loss of the target (app. "Edit objective"), G = dL/dB, B <- B - eta G P with the
P of the edits before (Eq. closedform), then P absorbs this edit's key (Eq. sm-update), so that later edits avoid
the directions this one depends on. Text sites pool their keys over answer positions, visual sites over visual
tokens, and no two sites share a P: visual energy never reaches a text P.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from more_cli.editors.anchors import Anchor
from more_cli.editors.base import Capability, EditContext, Editor, EditOutcome, EditRequest
from more_cli.editors.more.joint import JointWrites, admit
from more_cli.editors.more.loop import learn
from more_cli.editors.more.passes import Attached, Passes
from more_cli.editors.more.rehearsal import EncodedEdits
from more_cli.editors.more.sites import Sites, Weights, new_record, principal_bases
from more_cli.editors.more.unfinished import NOWHERE
from more_cli.editors.more.watch import Watched, direction, split
from more_cli.errors import DataError
from more_cli.inputs.wording import asks_for_a_description
from more_cli.model.backbones import Site
from more_cli.model.batches import Encoded
from more_cli.model.changes import Change
from more_cli.model.runtime import Runtime
from more_cli.progress import Progress, no_progress
from more_cli.recipe.files import recipe_of_edit
from more_cli.recipe.schema import Recipe
from more_cli.store.state import SiteRecord, State, StateMeta, empty_tensors, unedited_site


@dataclass(frozen=True)
class Consolidated:
    """The result of a consolidation."""

    failing: list[int]
    """Numbers of the edits that still do not hold."""
    margins: Mapping[int, float]
    """Margin of every edit, by number."""
    drifts: Mapping[int, float]
    """KL from the base of every watched anchor, nats per token, by place."""
    writes: int
    cost: float
    undone: str = ""
    """Why edits that were written anew were not kept so; empty if they were, or were not written anew."""


class MoreEditor(Editor):
    """M-ORE with B and P as its state, and A where it cannot be drawn again."""

    name: ClassVar[str] = "more"
    recipe: Recipe

    def __init__(
        self,
        recipe: Recipe,
        records: Sequence[SiteRecord],
        B: Mapping[str, Tensor],
        P: Mapping[str, Tensor],
        A: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.recipe = recipe
        self._records = [record.model_copy() for record in records]
        self._B = dict(B)
        self._P = dict(P)
        self._A = dict(A or {})
        """A where it is stored."""
        self._held: dict[int, Anchor] = {}
        """Anchors that writes train on, by place."""
        self._watched: Watched | None = None
        self.directions: Mapping[int, Tensor] = {}
        """Directions of the watched anchors' keys by place, also of those released since; a later `hold` can take them.

        Replaced, never changed in place.
        """
        self._attached: Attached | None = None
        self.progress: Progress = no_progress
        """Called with how far a write of many edits is."""
        self.unfinished = NOWHERE
        """Where a write of many edits is kept while it is made."""
        self.capabilities: frozenset[Capability] = frozenset({"anchors"} if recipe.uses_anchors else ())

    @staticmethod
    def fresh(recipe: Recipe, sites: Sequence[Site]) -> MoreEditor:
        """Return an editor without edits: B = 0, P = P_0."""
        editor = MoreEditor(recipe, [new_record(site, recipe) for site in sites], {}, {})
        editor.reset()
        return editor

    @property
    def sites(self) -> Sites:
        """The sites in the model; only while attached."""
        return self._working.sites

    @property
    def records(self) -> list[SiteRecord]:
        """Descriptions of the sites, with lambda and key counts as they are now."""
        return self._attached.sites.records if self._attached else self._records

    @property
    def untouched(self) -> bool:
        """Whether P has absorbed no key yet, not even an anchor's."""
        return self.records == [unedited_site(record, self.recipe) for record in self.records]

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Put the branches beside their Linears; on leaving, the model is restored."""
        weights = {name: Weights(B, self._A.get(name)) for name, B in self._B.items()}
        sites = Sites(self._records, weights, self._P, self.recipe, runtime)
        self._attached = Attached(runtime, sites, EncodedEdits(runtime, ended=self.recipe.end_of_sequence))
        try:
            with runtime.attached(sites.branches):
                yield
        finally:
            self._B, self._P, self._A = self.tensors()
            self._records = sites.records
            self._attached = None

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Write one correction until it holds, at most `max_steps` times; refuse it if it breaks the harm budget."""
        self._drop_replaced(context)
        return learn(request, self._passes_of(request, context), self._watched)

    def admit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Score one correction; a later `write_batch` writes it, together with others."""
        self._drop_replaced(context)
        return admit(request, self._passes(context))

    def consolidate(self, numbers: Iterable[int], context: EditContext) -> Consolidated:
        """Score past edits and write those that fail; see `joint.JointWrites.write_again`."""
        joint = self._joint(list(numbers), (), context)
        failing, undone = joint.write_again()
        return replace(self._consolidated(failing, joint), undone=undone)

    def write_batch(self, numbers: Sequence[int], new: Sequence[int], context: EditContext) -> Consolidated:
        """Write past edits, of which the `new` ones were only admitted; see `joint.JointWrites.write`."""
        joint = self._joint(numbers, new, context)
        return self._consolidated(joint.write(), joint)

    def write_anew(self, numbers: Sequence[int], new: Sequence[int], context: EditContext) -> Consolidated:
        """Start over from the anchors, and write these past edits together; see `joint.JointWrites.write_anew`."""
        joint, before = self._joint(numbers, new, context), (self._watched, self.directions, self._A)
        failing, undone = joint.write_anew(self._start_over)
        if undone:
            self._watched, self.directions, self._A = before
        return replace(self._consolidated(failing, joint), undone=undone)

    def _start_over(self) -> Watched | None:
        """Leave only the anchors' keys in P, at the largest ranks of the recipe, and return the watched anchors."""
        watched = dict(self._watched.anchors) if self._watched else {}
        anchors = dict(sorted((self._held | watched).items()))
        self.sites.start_over()
        unread = [replace(anchor, keys=None) for anchor in anchors.values()]  # ranks may have changed
        keys = dict(zip(anchors, self.start_from(unread), strict=True))
        self.directions = {place: direction(keys[place], self.sites) for place in watched}
        if watched:
            self._watched = Watched(watched, torch.stack(list(self.directions.values())))
        return self._watched

    def _joint(self, numbers: Sequence[int], new: Sequence[int], context: EditContext) -> JointWrites:
        self._drop_replaced(context)
        passes = self._passes(context)
        return JointWrites(numbers, new, passes, self._passes_of, self.progress, self._watched, self.unfinished)

    def _consolidated(self, failing: list[int], joint: JointWrites) -> Consolidated:
        drifts, tally = joint.drifts, joint.passes.tally
        if self._watched and not drifts:
            drifts = self._watched.drifts(joint.passes)
        margins = {number: round(margin, 3) for number, margin in tally.margins.items()}
        return Consolidated(failing, margins, drifts, tally.writes, round(tally.cost, 2))

    def hold(
        self,
        anchors: Sequence[Anchor],
        *,
        fresh: bool = False,
        absorb_from: int | None = None,
        directions: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Hold these inputs to the base's behaviour in every write from now on; a `fresh` editor starts from them.

        An editor with edits absorbs the keys of the anchors that were added, from place `absorb_from` on. If the recipe
        says so, some anchors are watched and not held: no write trains on them, though P knows their keys.
        `directions` are those that an editor had in `self.directions` once it held these anchors, or the first of them.
        """
        self.directions = directions or {}
        if fresh:
            keys = self.start_from(anchors)
            watched = split(anchors, self.recipe.anchors.watched)[1]
            self.directions = {place: direction(keys[place], self.sites) for place in watched}
        elif absorb_from is not None and self.recipe.anchors.keys:
            self._absorb([self._key(anchor) for anchor in anchors[absorb_from:]])
        self._held, self._watched = {}, None
        self._take(anchors, 0)

    def add(self, anchors: Sequence[Anchor], start: int, directions: Mapping[int, Tensor] | None = None) -> None:
        """Hold further anchors, from place `start` on; those before stay as they are. For `directions` see `hold`."""
        if directions:
            self.directions = {**self.directions, **directions}
        if self.recipe.anchors.keys:
            self._absorb([self._key(anchor) for anchor in anchors])
        self._take(anchors, start)

    def _take(self, anchors: Sequence[Anchor], start: int) -> None:
        """Hold or watch anchors, from place `start` on; those before stay as they are."""
        held, watched = split(anchors, self.recipe.anchors.watched, start)
        self._held |= held
        if watched:
            unknown = {place: anchor for place, anchor in watched.items() if place not in self.directions}
            if unknown:
                found = self._directions(list(unknown.values()))
                self.directions = {**self.directions, **dict(zip(unknown, found, strict=True))}
            known = self._watched or Watched({}, torch.zeros(0))
            self._watched = known.joined(watched, torch.stack([self.directions[place] for place in watched]))

    def release(self, places: Collection[int]) -> None:
        """Neither hold nor watch the anchors at these places any longer: edits correct their answers."""
        self._held = {place: anchor for place, anchor in self._held.items() if place not in places}
        if self._watched:
            self._watched = self._watched.without(places)

    def start_from(self, anchors: Sequence[Anchor]) -> list[Mapping[str, Tensor]]:
        """Fix every relative lambda from the anchors' keys, let P absorb these if the recipe says so, and return them.

        If the basis comes from data, it is computed first, from the anchors' inputs.
        """
        if self.recipe.basis == "pca":
            self._A = principal_bases(self._working.runtime, self.sites, anchors)
            self.sites.use(self._A)
        keys = [anchor.keys or self._key(anchor) for anchor in anchors]
        self.sites.fix_ridge(keys)
        if self.recipe.anchors.keys:
            self._absorb(keys)
        return keys

    def _directions(self, anchors: Sequence[Anchor]) -> list[Tensor]:
        with self.sites.undone():
            self.sites.clear()  # the base, whose keys do not depend on the edits so far
            return [direction(self._key(anchor), self.sites) for anchor in anchors]

    def _key(self, anchor: Anchor) -> dict[str, Tensor]:
        """Return an anchor's keys by site; in a pass of its own, so they do not depend on the rest of a batch."""
        runtime = self._working.runtime
        batch = runtime.batch([anchor.encoded])
        runtime.score(batch, keys=True)
        return self.sites.keys(batch)

    def _absorb(self, keys: Sequence[Mapping[str, Tensor]]) -> None:
        for key in keys:
            self.sites.absorb(key)

    def reset(self) -> None:
        """Forget every edit and every anchor's key: B = 0, P = P_0, lambda open again where it follows the keys."""
        self._records = [unedited_site(record, self.recipe) for record in self._records]
        self._B, self._P, self._A = empty_tensors(self._records, self.recipe)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Return B, P, and A where it is stored, by site name."""
        if self._attached is None:
            return self._B, self._P, self._A
        weights, P = self._attached.sites.tensors()
        moved = {name: value.A for name, value in weights.items() if value.A is not None}
        return {name: value.B for name, value in weights.items()}, P, self._A | moved

    def state_dict(self) -> dict[str, Tensor]:
        """Return `<site>.B` and `<site>.P` of every site, and `<site>.A` where the recipe stores it."""
        kinds = zip("BPA", self.tensors(), strict=True)
        return {f"{name}.{kind}": value for kind, values in kinds for name, value in values.items()}

    def frozen(self, meta: StateMeta) -> State:
        """Return the state with the tensors as they are now: later edits replace them and never change them."""
        now = self.sites.snapshot()
        stored = {name: weights.A for name, weights in now.weights.items() if weights.A is not None}
        meta = meta.model_copy(update={"sites": list(now.records.values())})
        return State(meta, {name: weights.B for name, weights in now.weights.items()}, now.P, self._A | stored)

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the tensors of `state_dict`; the editor must not be attached."""
        assert self._attached is None
        self._B = {record.name: tensors[f"{record.name}.B"] for record in self._records}
        self._P = {record.name: tensors[f"{record.name}.P"] for record in self._records}
        stored = self._records if self.recipe.stores_basis else []
        self._A = {record.name: tensors[f"{record.name}.A"] for record in stored}

    def changes(self) -> dict[str, Change]:
        """Return s B A of every site."""
        return {branch.module: branch.change for branch in self.sites.branches}

    def constants(self) -> dict[str, Any]:
        """Return the recipe in full."""
        return self.recipe.canonical()

    def notes(self) -> dict[str, Any]:
        """Return the sites' descriptions, with lambda and key counts as they are now."""
        return {"sites": [record.model_dump(mode="json") for record in self.records]}

    def load_notes(self, notes: Mapping[str, Any]) -> None:
        """Restore the sites' descriptions."""
        assert self._attached is None
        # As JSON: in Python values a strict record takes no list for a tuple.
        self._records = [SiteRecord.model_validate_json(json.dumps(site)) for site in notes["sites"]]

    def _drop_replaced(self, context: EditContext) -> None:
        """Drop the encoded edits that no longer stand."""
        self._working.encoded.keep_only(context.past)

    def _passes(self, context: EditContext) -> Passes:
        recipe = recipe_of_edit(self.recipe, context.settings)
        return Passes(context, self._working, recipe, list(self._held.values()), recipe.margin)

    def _passes_of(self, request: EditRequest, context: EditContext) -> Passes:
        passes = self._passes(context)
        anchored = bool(self._held and passes.recipe.anchors.size)
        passes.one_pass = passes.recipe.rehearsal.size == 0 and not anchored
        passes.wordings = _wordings(request, passes) if anchored else []
        return passes

    @property
    def _working(self) -> Attached:
        assert self._attached is not None, "attach the editor first"
        return self._attached


def _wordings(request: EditRequest, passes: Passes) -> list[Encoded]:
    """Return an edit that asks for a description of its picture under the recipe's other prompts for a description.

    Only for a state with anchors: without them these writes would move the answers to text questions.
    """
    query = request.query
    wordings: list[Encoded] = []
    if query.images and asks_for_a_description(query.question):
        for text in passes.recipe.captions:
            with suppress(DataError):  # longer than the context, which the edit itself need not be
                encoded = passes.model.runtime.encode(replace(query, question=text), request.target)
                wordings.append(encoded if passes.recipe.end_of_sequence else encoded.unended)
    return wordings
