"""`more run`: one editor on one suite, with everything that a study needs: gates, reports, calibration, kept files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import completion
from more_cli.cli import options as opt
from more_cli.cli.outlets import Outlets
from more_cli.cli.output import Output
from more_cli.cli.records import command
from more_cli.cli.suite_eval import run_and_show
from more_cli.cli.suite_source import suite_target
from more_cli.model.machine import Machine
from more_cli.options import SUITE, FileOptions, RecipeOptions, TrackOptions
from more_lab.cli import suite_options as suites

if TYPE_CHECKING:
    from more_cli.progress import Progress
    from more_cli.runner.report import SuiteReport


@command
def run(
    suite: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Suite to run on, from the untouched base; see `more suites list`.",
            autocompletion=completion.suites,
            rich_help_panel=SUITE,
        ),
    ],
    model: opt.Model = None,
    editor: suites.EditorName = "more",
    state: opt.StateFile = None,
    *,
    files: Outlets,
    stream: suites.StreamOptions,
    protocols: suites.ProtocolOptions,
    recipe: RecipeOptions,
    kept: suites.KeepOptions,
    images: FileOptions,
    machine: Machine,
    tracker: TrackOptions,
    output: Output,
) -> None:
    """Run an editor on a suite of edits, from the untouched base.

    No state is read or changed. An interrupted run continues; a finished one is read from the cache.

    \b
    Examples:
      more run --editor lora --suite e-vqa --calibrate 5
      more run llava/ --editor naive --suite e-vqa --data-root data/mmedit --metrics mmedit
      more run --suite e-vqa --batch
      more run --suite e-vqa --limit 10 --keep run --keep-updates --keep-states
    """
    files.check()
    options = stream.run_options(
        editor, protocols=protocols, recipe=recipe.recipe, settings=recipe.settings, keep=kept.kept(output)
    )
    from more_lab.experiments.run import run_suite

    loaded = suites.loaded_edits(output, suite, stream.data_root, images)
    target = suite_target(output, loaded, model, state, usage="more run MODEL --suite NAME")
    for notice in options.preset.notices if options.preset else ():
        output.note(f"note: {notice}")

    def measured(progress: Progress) -> SuiteReport:
        return run_suite(loaded, target.model, options, machine, progress)

    run_and_show(output, loaded, options, files, measured, tracker, "more run")
