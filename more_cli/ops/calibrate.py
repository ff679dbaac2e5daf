"""`more init --calibrate`: choose the constants that depend on the model, by a fixed rule, on given corrections.

The corrections are applied to the untouched base once per candidate and then forgotten: the state contains none of
them. Results must not be reported on the same corrections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from more_cli.editors.anchors import Anchor
from more_cli.editors.more.editor import MoreEditor
from more_cli.errors import DataError
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.evaluation.streams import Stream
from more_cli.files import sha256_json
from more_cli.inputs.edits import Edit
from more_cli.model.backbones import Site
from more_cli.model.runtime import Runtime
from more_cli.ops.evaluate import summarise
from more_cli.progress import Progress, no_progress
from more_cli.recipe.files import parse_recipe
from more_cli.recipe.schema import Recipe
from more_cli.recipe.settings import dotted, put

CANDIDATES: dict[str, tuple[float, ...]] = {
    "default.lambda_rel": (0.02, 0.2, 1.0),
    "margin": (1.0, 2.0),
    "visual_share": (0.1, 0.2, 0.3),
}
"""Tried in this order, each with the best values of those before; constants that a recipe does not use are skipped."""
MEASURED = (
    "rel.tf_exact",
    "gen_text.tf_exact",
    "gen_image.tf_exact",
    "loc_text.loc_expkl_answer",
    "loc_image.loc_expkl_answer",
)
GAIN = 0.005
"""Least gain for which a value replaces the one so far: two orders of one stream differ by more."""
RULE = (
    f"for each of {', '.join(CANDIDATES)} in turn, the value with the best mean of {', '.join(MEASURED)} "
    f"(those the stream has probes for) after the last edit; the value so far where none is better by {GAIN}"
)


def calibrate(
    runtime: Runtime,
    recipe: Recipe,
    sites: Sequence[Site],
    edits: Sequence[Edit],
    anchors: Sequence[Anchor],
    progress: Progress = no_progress,
) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe with its best constants, and what was tried.

    Raises:
        DataError: only the edits themselves can be scored, which cannot rank candidates.
    """
    if not any(edit.rephrases or edit.image_rephrases or edit.locality for edit in edits):
        raise DataError(
            "the calibration stream has no rephrases and no locality probes",
            "add some: candidates are scored on them; a probe that is an anchor too does not count",
        )
    tried: list[dict[str, Any]] = []

    def score(candidate: Recipe, **setting: float) -> float:
        progress(len(tried), None, "calibrating " + ", ".join(f"{key} {value}" for key, value in setting.items()))
        value = measure(runtime, candidate, sites, edits, anchors)
        tried.append({"setting": setting, "score": round(value, 6)})
        return value

    best = score(recipe)
    for key in CANDIDATES:
        scored = [(score(candidate, **{key: value}), candidate) for candidate, value in _variants(recipe, key)]
        top, candidate = max(scored, key=lambda pair: pair[0], default=(0.0, recipe))
        if top >= best + GAIN:
            best, recipe = top, candidate
    return recipe, {"rule": RULE, "edits": stream_digest(edits), "n": len(edits), "tried": tried}


def with_calibrated(recipe: Recipe, calibrated: Recipe) -> Recipe:
    """Return a recipe with the calibrated constants of another."""
    values, theirs = recipe.canonical(), dotted(calibrated.canonical())
    for key in CANDIDATES:
        put(values, key, theirs[key])
    return parse_recipe(values, f"recipe {recipe.name}")


def stream_digest(edits: Sequence[Edit]) -> str:
    """Return a hash that identifies a calibration stream."""
    return sha256_json([edit.content for edit in edits])


def measure(
    runtime: Runtime, recipe: Recipe, sites: Sequence[Site], edits: Sequence[Edit], anchors: Sequence[Anchor]
) -> float:
    """Return the mean of the measured metrics after a stream, in [0, 1]."""
    editor = MoreEditor.fresh(recipe, sites)
    with editor.attach(runtime):
        if anchors:
            editor.hold(anchors, fresh=True)
        Stream(editor, edits).run()
        scores = run_probes(runtime, editor, [probe for edit in edits for probe in probes_of(edit)], generate=False)
    return measured(scores)


def measured(scores: Sequence[ProbeScore]) -> float:
    """Return the mean of the metrics in `MEASURED` that have scores, in [0, 1]."""
    estimates = summarise(scores)
    values = [estimates[name].value for name in MEASURED if name in estimates]
    return sum(values) / len(values)


def _variants(recipe: Recipe, key: str) -> Iterator[tuple[Recipe, float]]:
    """Yield the recipe with each other value of a constant, if the recipe uses it."""
    values = recipe.canonical()
    own = dotted(values)[key]
    used = recipe.criterion == "margin" if key == "margin" else own is not None
    for value in CANDIDATES[key] if used else ():
        if value != own:
            put(values, key, value)
            yield parse_recipe(values, f"recipe {recipe.name}"), value
