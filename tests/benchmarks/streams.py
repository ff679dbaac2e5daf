"""One stream of corrections through the editor in memory, scored at its end: what the tables and calibrations run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from more_cli.checkpoint import open_checkpoint
from more_cli.demo.files import demo_model_dir, suite_dir
from more_cli.editors.anchors import Anchor, make_anchor
from more_cli.editors.more import MoreEditor
from more_cli.edits import Edit, read_edits, read_probes
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.evaluation.streams import apply_stream
from more_cli.model.backbones import find_sites
from more_cli.model.batches import Query
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime, load_runtime
from more_cli.recipe import load_recipe


@dataclass
class Run:
    """What one stream cost and where it ended."""

    scores: list[ProbeScore]
    cost: list[float] = field(default_factory=list)
    """Per edit, in samples sent forward and backward."""
    writes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    consolidation: float | None = None
    """Cost of the consolidation."""


def pool(name: str, file: str, records: int | None, seed: int = 0) -> list[Edit]:
    """The first records of a suite's pool, in file order for seed 0, else shuffled."""
    edits = list(read_edits(suite_dir(name) / file).edits[:records])
    if seed:
        random.Random(seed).shuffle(edits)
    return edits


def runtime() -> Runtime:
    """The embedded model in float32."""
    return load_runtime(open_checkpoint(demo_model_dir()), Machine(dtype="float32"))


def anchors_of(runtime: Runtime, limit: int | None = None) -> list[Anchor]:
    """The suites' anchors, asked of the untouched base."""
    questions = read_probes(suite_dir("e-vqa-mini") / "anchors.jsonl", None)[:limit]
    with runtime.attached([]):
        return [make_anchor(runtime, Query((q.image,) if q.image else (), q.question), q.answer) for q in questions]


def run_stream(
    runtime: Runtime,
    edits: Sequence[Edit],
    recipe: str,
    settings: Sequence[str],
    anchors: Sequence[Anchor] = (),
    *,
    drop: Sequence[str] = (),
    consolidate: str = "off",
    generate: bool = False,
) -> Run:
    """Apply a stream from the untouched base and score all of it and its probes after the last edit."""
    chosen = load_recipe(recipe, settings).model_copy(update=dict.fromkeys(drop))
    checkpoint = open_checkpoint(demo_model_dir())
    model = meta_model(checkpoint)
    found, _ = find_sites(model, key_map(model, checkpoint), checkpoint, chosen.sites, chosen.last)
    editor = MoreEditor.fresh(chosen, [site for site in found if not chosen.excludes(site.name)])
    run = Run([])
    with editor.attach(runtime):
        if anchors:
            editor.settle(anchors)
            editor.hold(anchors)
        stream = apply_stream(editor, edits)
        run.cost = [outcome.cost for outcome in stream.outcomes]
        run.writes = [outcome.writes for outcome in stream.outcomes]
        run.statuses = dict(Counter(outcome.status for outcome in stream.outcomes))
        run.seconds = stream.seconds
        if consolidate != "off":
            done = editor.consolidate(range(1, len(edits) + 1), stream.memory.context(len(edits) + 1))
            run.consolidation = done.cost
        run.scores = run_probes(
            runtime, editor, [probe for edit in edits for probe in probes_of(edit)], generate=generate
        )
    return run
