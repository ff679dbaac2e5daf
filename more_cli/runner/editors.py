"""M-ORE as an editor of a run on a suite, made for one checkpoint."""

from __future__ import annotations

from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.registry import EditorOptions, editor, tries
from more_cli.ops.plan import plan
from more_cli.store.names import sidecar_path
from more_cli.store.target import Target
from more_cli.text import counted


@editor(
    "more",
    tries=tries(
        ("margin=3.0", "default.lambda_rel=1.0"), margin=(1.0, 3.0, 6.0), default__lambda_rel=(0.2, 1.0, 5.0, 0.002)
    ),
    takes_recipe=True,
)
def more(options: EditorOptions) -> MoreEditor:
    """Make M-ORE with the recipe that `more init` would choose."""
    chosen = plan(Target(options.model, sidecar_path(options.model)), options.recipe, options.settings)
    made = MoreEditor.fresh(chosen.recipe, chosen.sites)
    if points := len(chosen.recipe.departures):
        listed = f"`more recipes show {chosen.recipe.name}` lists them"
        departs = f"departs from what was published in {counted(points, 'point')}; {listed}"
        made.notices = (departs, *chosen.notices, *filter(None, [chosen.capped]))
    return made
