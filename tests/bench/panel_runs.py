"""One run of panel.py: an editor, or a LoRA trained on everything at once, on one stream of one model."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.anchors import Anchor, drift, make_anchor
from more_cli.editors.base import Editor, EditOutcome, EditRequest
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.evaluation.names import SUCCESS_METRICS
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.evaluation.streams import apply_stream
from more_cli.inputs.edits import Edit, Probe, read_probes
from more_cli.model.batches import Query
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import identity
from more_cli.ops.auto_anchors import AUTO, of_edits, told_apart
from more_cli.ops.session import versions
from more_cli.recipe.files import load_recipe, pick_recipe
from more_cli.suites.annotations import read_pool
from more_lab.editors.lora import LoraEditor, LoraTuning

METRICS = {
    "Rel": "rel.tf_exact",
    "Rel gen": "rel.gen_exact",
    "T-Gen": "gen_text.tf_exact",
    "M-Gen": "gen_image.tf_exact",
    "T-Loc": "loc_text.loc_expkl_answer",
    "M-Loc": "loc_image.loc_expkl_answer",
}
FILES = {"evaluation": ("eval.json", "first.jsonl", "second.jsonl"), "calibration": ("calibration.json",)}
"""Of a pool, those that a stream's folder has: eval.json or, for contradictions, the other two."""
BATCH = 8
"""Corrections in a step of the LoRA that is trained on all of them."""
Values = list[float | None]


@dataclass(frozen=True)
class Variant:
    """One way to write a stream of edits into a model."""

    kind: Literal["online", "consolidated", "anew", "batch", "lora"] = "online"
    """`lora`: trained on all corrections at once; `consolidated`, `anew` and `batch` as the switches of `more edit`."""
    editor: str = "more"
    recipe: str = ""
    """By default the architecture decides."""
    settings: tuple[str, ...] = ()
    anchors: str = "anchors.jsonl"
    """File in the stream's folder; `auto` for those that `more edit` makes of the stream; empty for none."""
    epochs: int = 0
    """Of the LoRA; 0 for as many as cost what `match` costs."""
    match: str = "default"
    rate: float = 0.0
    """Of the LoRA; 0 for the best of `RATES` on the calibration pool."""
    rank: int = 8
    held: int = 0
    """Anchors in each step of the LoRA."""

    def per_epoch(self, edits: int) -> float:
        """Return what an epoch of the LoRA costs per edit, in samples sent forward and backward."""
        return 1 + self.held * -(-edits // BATCH) / edits


@dataclass(frozen=True)
class Job:
    """A variant on one stream of one model."""

    model: str
    path: Path
    suites: Path
    half: str
    stream: str
    """Name of a folder in `suites`; with `+` between several, one after the other."""
    pool: str
    limit: int
    """First edits of each file."""
    seed: int
    """Of the order within each file (0: as it is), of the rehearsal and of the LoRA."""
    name: str
    variant: Variant
    dtype: str = "float32"

    @property
    def folders(self) -> list[Path]:
        """Folders of the stream."""
        return [self.suites / name for name in self.stream.split("+")]

    @property
    def files(self) -> list[Path]:
        """Files of edits of the stream."""
        return [folder / name for folder in self.folders for name in FILES[self.pool] if (folder / name).is_file()]

    @property
    def complete(self) -> bool:
        """Whether every folder has edits of the pool."""
        return {file.parent for file in self.files} == set(self.folders)

    def edits(self) -> list[Edit]:
        """Return the stream, file after file."""
        edits: dict[str, Edit] = {}
        for file in self.files:
            pool = list(read_pool(file, file.parent)[: self.limit])
            if self.seed:
                random.Random(self.seed).shuffle(pool)
            edits |= {edit.id: edit for edit in pool}
        return list(edits.values())

    def anchors(self, edits: Sequence[Edit], runtime: Runtime) -> tuple[list[Probe], int]:
        """Return the anchors, and how many were left out because a probe or an edit of the stream asks the same."""
        found = {identity(probe): probe for probe in self._given(edits, runtime)}
        asked = {identity(probe) for edit in edits for probe in edit.locality}
        asked |= {
            identity(Probe(question, image))
            for edit in edits
            for question in (edit.question, *edit.rephrases)
            for image in (edit.images[0] if edit.images else None, *edit.image_rephrases)
        }
        kept = [probe for key, probe in found.items() if key not in asked]
        return kept, len(found) - len(kept)

    def _given(self, edits: Sequence[Edit], runtime: Runtime) -> Iterable[Probe]:
        if self.variant.anchors == AUTO:
            bare = [replace(edit, rephrases=(), image_rephrases=(), locality=(), portability=()) for edit in edits]
            candidates = of_edits(bare, load_recipe(self.recipe, self.variant.settings))
            with runtime.attached([]):
                return told_apart(runtime, candidates).anchors
        files = [folder / self.variant.anchors for folder in self.folders] if self.variant.anchors else []
        return [probe for file in files if file.is_file() for probe in read_probes(file)]

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self.variant.recipe or pick_recipe(str(open_checkpoint(self.path).config.get("model_type", "")))


@dataclass
class Written:
    """What a variant did to the model, and what was measured after it."""

    outcomes: Sequence[EditOutcome]
    seconds: Sequence[float]
    statuses: list[str]
    once: float
    """Cost of what was done for the whole stream at once."""
    constants: Mapping[str, Any]
    scores: list[ProbeScore]


class Together(LoraEditor):
    """A LoRA that is trained on all corrections at once."""

    def fit(self, edits: Sequence[Edit], anchors: Sequence[Anchor], epochs: int, held: int) -> float:
        """Train with AdamW at a constant rate, and return the samples sent forward and backward.

        L is the editor's: the mean NLL of a batch and the mean KL(base || edited) of `held` anchors.
        """
        runtime, parts = self.working
        encoded = [runtime.encode(EditRequest.of(edit).query, edit.target) for edit in edits]
        parameters = [parameter for part in parts for parameter in part.parameters().values()]
        optimiser = torch.optim.AdamW(parameters, lr=self.tuning.rate, weight_decay=self.tuning.decay)
        draw, cost = random.Random(self.tuning.seed), 0
        for _ in range(epochs):
            order = draw.sample(encoded, len(encoded))
            for start in range(0, len(order), BATCH):
                chosen, kept = order[start : start + BATCH], draw.sample(anchors, min(held, len(anchors)))
                scored = runtime.score(runtime.batch(chosen + [anchor.encoded for anchor in kept]), record=True)
                loss = scored[: len(chosen)].nll().mean()
                if kept:
                    loss = loss + drift(scored[len(chosen) :], kept).mean()
                optimiser.zero_grad(set_to_none=True)
                runtime.backward(loss)
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.grad /= runtime.loss_scale
                optimiser.step()
                cost += len(chosen) + len(kept)
        for part in parts:
            part.written = True
        return float(cost)


@lru_cache(maxsize=1)
def runtime_of(path: Path, dtype: str, system: str) -> Runtime:
    """Return a model, kept until another one is asked for."""
    return load_runtime(open_checkpoint(path), Machine(dtype=dtype), system=system)


def perform(job: Job) -> dict[str, Any]:
    """Make one run and return what was measured."""
    torch.set_num_threads(1)
    started, variant = time.perf_counter(), job.variant
    editor = make_editor(job)
    system = editor.constants().get("system")
    if system is None:  # an editor without a recipe is asked as the default would be
        system = load_recipe(job.recipe).system
    runtime, edits = runtime_of(job.path, job.dtype, system), job.edits()
    questions, dropped = job.anchors(edits, runtime)
    uses = variant.held > 0 if variant.kind == "lora" else "anchors" in editor.capabilities
    with editor.attach(runtime):
        anchors = [make_anchor(runtime, query_of(probe), probe.answer) for probe in questions] if uses else []
        if isinstance(editor, Together):
            done = together(editor, runtime, edits, anchors, variant)
        else:
            if anchors:
                editor.hold(anchors, fresh=True)
            done = one_by_one(editor, runtime, edits, variant)
    scored = [edit for edit, stands in zip(edits, standing(edits), strict=True) if stands]
    refused = {edit.id for edit, status in zip(edits, done.statuses, strict=True) if status == "refused"}
    return {
        "constants": done.constants,
        "anchors": len(anchors),
        "anchors_dropped": dropped if uses else 0,
        "n": len(edits),
        "ids": [edit.id for edit in scored],
        "statuses": {status: done.statuses.count(status) for status in sorted(set(done.statuses))},
        "reasons": [
            [edit.id, status, outcome.reason]
            for edit, status, outcome in zip(edits, done.statuses, done.outcomes, strict=False)
            if outcome.reason
        ],
        "values": {label: by_edit(scored, done.scores, metric, refused) for label, metric in METRICS.items()},
        "cost": [outcome.cost for outcome in done.outcomes],
        "once": round(done.once, 2),
        "writes": [outcome.writes for outcome in done.outcomes],
        "seconds": [round(value, 4) for value in done.seconds],
        "wall": round(time.perf_counter() - started, 1),
        "versions": versions(Machine(dtype=job.dtype)),
    }


def make_editor(job: Job) -> Editor:
    """Return a variant's editor without edits; `seed` also draws its rehearsal, if it has one."""
    variant = job.variant
    if variant.kind == "lora":
        return Together(LoraTuning(rate=variant.rate, rank=variant.rank, alpha=2 * variant.rank, seed=job.seed))
    entry = entry_of(variant.editor)
    editor = entry.make(EditorOptions(job.path, variant.recipe or None, variant.settings))
    if job.seed and isinstance(editor, MoreEditor) and not any("rehearsal.seed" in s for s in variant.settings):
        settings = (*variant.settings, f"rehearsal.seed={job.seed}")
        editor = entry.make(EditorOptions(job.path, variant.recipe or None, settings))
    return editor


def one_by_one(editor: Editor, runtime: Runtime, edits: Sequence[Edit], variant: Variant) -> Written:
    """Apply the stream as `more edit` does, consolidate if the variant says so, and score it."""
    joint, started = variant.kind == "batch", time.perf_counter()
    stream = apply_stream(editor, edits, joint=joint)
    statuses: list[str] = [outcome.status for outcome in stream.outcomes]
    once = editor.catch_up()
    if variant.kind in ("batch", "consolidated", "anew"):
        assert isinstance(editor, MoreEditor)
        context = stream.memory.context(len(edits) + 1)
        numbers = list(context.past)
        if variant.kind == "consolidated":
            done = editor.consolidate(numbers, context)
        elif joint:
            done = editor.write_batch(numbers, numbers, context)
        else:
            done = editor.write_anew(numbers, [], context)
        once += done.cost
        if joint:
            failing = set(done.failing)
            written = ["not-learnt" if number in failing else "learnt" for number in range(1, len(edits) + 1)]
            statuses = [old if old == "refused" else new for old, new in zip(statuses, written, strict=True)]
    rest = time.perf_counter() - started - sum(stream.seconds)
    seconds = [value + rest / len(edits) for value in stream.seconds]
    return Written(stream.outcomes, seconds, statuses, once, editor.constants(), score(runtime, editor, edits))


def together(
    editor: Together, runtime: Runtime, edits: Sequence[Edit], anchors: Sequence[Anchor], variant: Variant
) -> Written:
    """Train on all corrections that stand at the end of the stream, and score them."""
    started = time.perf_counter()
    final = [edit for edit, stands in zip(edits, standing(edits), strict=True) if stands]
    cost = editor.fit(final, anchors, variant.epochs, variant.held)
    seconds = [(time.perf_counter() - started) / len(edits)] * len(edits)
    scores = score(runtime, editor, edits)
    right = {s.probe.edit for s in scores if s.probe.kind == "rel" and s.values["tf_exact"] == 1.0}
    kept = {edit.id for edit in final}
    statuses = [
        "superseded" if edit.id not in kept else "learnt" if edit.id in right else "not-learnt" for edit in edits
    ]
    constants = editor.constants() | {"epochs": variant.epochs, "held": variant.held, "batch": BATCH}
    return Written([], seconds, statuses, cost, constants, scores)


def standing(edits: Sequence[Edit]) -> list[bool]:
    """Return per edit whether no later edit of the stream gives another answer to the same question."""
    last = {edit.subject: edit.content for edit in edits}
    return [last[edit.subject] == edit.content for edit in edits]


def query_of(probe: Probe) -> Query:
    """Return an anchor's question."""
    return Query((probe.image,) if probe.image else (), probe.question)


def score(runtime: Runtime, editor: Editor, edits: Sequence[Edit]) -> list[ProbeScore]:
    """Score every edit and its probes."""
    return run_probes(runtime, editor, [probe for edit in edits for probe in probes_of(edit)])


def by_edit(edits: Sequence[Edit], scores: Sequence[ProbeScore], name: str, refused: set[str]) -> Values:
    """Return the mean of a metric over each edit's probes, None if it has none; a refused edit has no success."""
    kind, _, metric = name.partition(".")
    found: dict[str, list[float]] = {}
    for score in scores:
        if score.probe.kind == kind:
            lost = score.probe.edit in refused and metric in SUCCESS_METRICS
            found.setdefault(score.probe.edit, []).append(0.0 if lost else score.values[metric])
    return [round(sum(values) / len(values), 7) if (values := found.get(edit.id)) else None for edit in edits]
