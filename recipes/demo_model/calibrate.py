"""Tries the constants of the demo's recipe on the calibration pool, and prints what each would give.

    python recipes/demo_model/calibrate.py [--records 60] [--set key=value ...]

The rule: of the settings that learn every edit when it is applied, the one with the best mean of reliability and
image locality after all edits (protocol final). The evaluation pool is never read.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence

from more_cli.checkpoint import open_checkpoint
from more_cli.demo.files import demo_model_dir, suite_dir
from more_cli.editors.base import EditContext
from more_cli.editors.more import MoreEditor
from more_cli.edits import Edit, read_edits
from more_cli.evaluation.probes import probes_of, run_probes
from more_cli.model.backbones import find_sites
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.runtime import Runtime, load_runtime
from more_cli.ops.evaluate import summarise
from more_cli.ops.session import request_of
from more_cli.recipe import load_recipe

GRID = {
    "default.lambda_rel": ("0.005", "0.02", "0.1", "0.5"),
    "max_steps": ("10", "20"),
    "target_nll": ("0.05", "0.2"),
}
COLUMNS = ("rel.tf_exact", "gen_text.tf_exact", "gen_image.tf_exact", "loc_text.loc_expkl_answer")
IMAGE_LOCALITY = "loc_image.loc_expkl_answer"


def main() -> None:
    """Parses the command line and tries every setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="llava")
    parser.add_argument("--records", type=int, default=60)
    parser.add_argument("--set", action="append", default=[], help="a constant to hold fixed, key=value")
    arguments = parser.parse_args()
    edits = read_edits(suite_dir("e-vqa-mini") / "calibration.json").edits[: arguments.records]
    runtime = load_runtime(open_checkpoint(demo_model_dir()))
    fixed = {setting.partition("=")[0] for setting in arguments.set}
    free = {key: values for key, values in GRID.items() if key not in fixed}
    print("setting", "learnt", *COLUMNS, IMAGE_LOCALITY, "passes", "seconds", sep=" | ")
    for values in itertools.product(*free.values()):
        settings = [f"{key}={value}" for key, value in zip(free, values, strict=True)]
        print(*trial(runtime, edits, arguments.recipe, [*arguments.set, *settings]), sep=" | ", flush=True)


def trial(runtime: Runtime, edits: Sequence[Edit], recipe: str, settings: Sequence[str]) -> list[str]:
    """Applies a stream from the untouched base, scores all of it at the end, and returns one row of the table."""
    chosen = load_recipe(recipe, settings)
    checkpoint = open_checkpoint(demo_model_dir())
    model = meta_model(checkpoint)
    sites, _ = find_sites(model, key_map(model, checkpoint), checkpoint, chosen.sites, chosen.last)
    editor = MoreEditor.fresh(chosen, sites)
    started = time.monotonic()
    with editor.attach(runtime):
        outcomes = [editor.edit(request_of(edit), EditContext()) for edit in edits]
        seconds = time.monotonic() - started
        scores = run_probes(runtime, editor, [probe for edit in edits for probe in probes_of(edit)], generate=False)
    found = summarise(scores)
    learnt = sum(outcome.right_after for outcome in outcomes) / len(outcomes)
    passes = sum(outcome.passes for outcome in outcomes) / len(outcomes)
    values = [found[name].value for name in (*COLUMNS, IMAGE_LOCALITY)]
    return [
        " ".join(settings),
        *(f"{100 * value:.1f}" for value in (learnt, *values)),
        f"{passes:.1f}",
        f"{seconds:.0f}",
    ]


if __name__ == "__main__":
    main()
