"""Options of runs on a suite, shared by `eval --suite` and `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from more_cli.cli import completion
from more_cli.cli.options import KEPT, SUITE
from more_cli.cli.output import Output
from more_cli.errors import StateError, UsageError
from more_cli.store.target import Target, locate, sidecar_path

if TYPE_CHECKING:
    from more_cli.experiments.keep import Keep
    from more_cli.experiments.run_plan import RunOptions
    from more_cli.suites.load import EditSuite, Suite

SuiteName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Suite to run an editor on, from the untouched base; see `more suites`.",
        autocompletion=completion.suites,
        rich_help_panel=SUITE,
    ),
]
DataRoot = Annotated[
    Path | None, typer.Option(metavar="DIR", help="With --suite: folder with the suite's files.", rich_help_panel=SUITE)
]
EditorName = Annotated[
    str,
    typer.Option(
        "--editor",
        metavar="NAME",
        help="With --suite: the editor to run; more@RECIPE is M-ORE with another recipe.",
        autocompletion=completion.editors,
        rich_help_panel=SUITE,
    ),
]
Limit = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="With --suite: only the first N edits; 0 for all.", rich_help_panel=SUITE),
]
Order = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="With --suite: seed of the order of the edits; 0 for the file's.",
        rich_help_panel=SUITE,
    ),
]
Checkpoints = Annotated[
    str,
    typer.Option(
        metavar="1,10,..",
        help="With --suite: numbers of edits at which `final` and `online` are reported.",
        rich_help_panel=SUITE,
    ),
]
ProtocolNames = Annotated[
    list[str] | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="With --suite: final, online, lag or single; repeatable. [default: final, online]",
        rich_help_panel=SUITE,
    ),
]
Lags = Annotated[
    str,
    typer.Option(
        metavar="10,..", help="With --protocol lag: score an edit after this many further edits.", rich_help_panel=SUITE
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="With --suite: folder that caches base answers and finished runs.", rich_help_panel=SUITE
    ),
]
Calibrate = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="With --suite: first try N settings of the editor on the calibration pool.",
        rich_help_panel=SUITE,
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="NAME",
        help="With --suite: preset of metrics, e.g. `paper-table`; see `more suites metrics`.",
        rich_help_panel=SUITE,
    ),
]
Anchors = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|auto",
        help="With --suite: questions whose answers must not change, for M-ORE; auto: made from the calibration pool.",
        rich_help_panel=SUITE,
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="With --suite: measure again instead of reading an earlier run from the cache.",
        rich_help_panel=SUITE,
    ),
]


KeepIn = Annotated[
    Path | None,
    typer.Option(
        "--keep",
        metavar="DIR",
        help="With --suite: keep the run in this folder, for `more analyze`.",
        rich_help_panel=KEPT,
    ),
]
KeepUpdates = Annotated[
    bool, typer.Option("--keep-updates", help="With --keep: each edit's change of every weight.", rich_help_panel=KEPT)
]
KeepStates = Annotated[
    bool,
    typer.Option(
        "--keep-states",
        help="With --keep: hidden states of the locality probes, at --checkpoints.",
        rich_help_panel=KEPT,
    ),
]
KeepAnswers = Annotated[
    str | None,
    typer.Option(
        "--keep-answers",
        metavar="NAME[=DIR]",
        help="With --keep: answers to a yes/no suite, such as mme, at --checkpoints; DIR holds its files.",
        rich_help_panel=KEPT,
    ),
]


def kept(output: Output, folder: Path | None, *, updates: bool, states: bool, answers: str | None) -> Keep | None:
    """Return what a run keeps; None without --keep.

    Raises:
        UsageError: an option that needs --keep, or a suite that has no yes/no questions.
        DataError: a file of that suite is missing or bad.
    """
    if folder is None:
        for option, given in {"--keep-updates": updates, "--keep-states": states, "--keep-answers": answers}.items():
            if given:
                raise UsageError(f"`{option}` needs `--keep DIR`", f"name a folder: --keep run {option}")
        return None
    from more_cli.experiments.keep import Keep
    from more_cli.suites.load import EditSuite

    name, _, root = (answers or "").partition("=")
    suite = SuiteSource(name, Path(root) if root else None).load(output) if name else None
    if isinstance(suite, EditSuite):
        raise UsageError(f"`--keep-answers {name}`: this suite has edits, not yes/no questions", "for example mme")
    return Keep(folder, updates, states, suite)


@dataclass(frozen=True)
class SuiteSource:
    """Where a suite and its images are."""

    name: str
    """Of the catalog, or a file of edits."""
    data_root: Path | None = None
    image_root: Path | None = None
    strict_paths: bool = False

    def load(self, output: Output) -> Suite:
        """Load the suite and show its notices.

        Raises:
            UsageError: unknown suite.
            DataError: a file of it is missing or bad.
        """
        from more_cli.suites.load import load_suite

        suite = load_suite(self.name, self.data_root, self.image_root, strict_paths=self.strict_paths)
        for notice in suite.notices:
            output.note(f"note: {notice}")
        return suite

    def load_edits(self, output: Output) -> EditSuite:
        """Load a suite of edits and show its notices.

        Raises:
            UsageError: unknown suite, or it has questions but no edits.
            DataError: a file of it is missing or bad.
        """
        from more_cli.suites.load import EditSuite

        suite = self.load(output)
        if not isinstance(suite, EditSuite):
            hint = f"score a model on it with: more eval MODEL --suite {suite.name}"
            raise UsageError(f"suite `{suite.name}` has no edits, only questions", hint)
        return suite


def run_options(
    *,
    editor: str,
    limit: int,
    checkpoints: str,
    cache: Path | None,
    again: bool,
    calibrate: int,
    metrics: str | None,
    anchors: str | None,
    order: int = 0,
    keep: Keep | None = None,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    protocols: Sequence[str] = (),
    lags: str = "",
) -> RunOptions:
    """Parse and check the options of a run.

    Raises:
        UsageError: unknown protocol or preset, both a protocol and a preset, or not a list of numbers.
    """
    from more_cli.experiments.presets import preset_of
    from more_cli.experiments.protocols import PROTOCOLS, checked
    from more_cli.experiments.run_plan import RunOptions
    from more_cli.ops.auto_anchors import AUTO

    preset = preset_of(metrics) if metrics is not None else None
    if preset and protocols:
        text = f"`--metrics {metrics}` sets the protocol itself: {', '.join(preset.protocols)}"
        raise UsageError(text, "leave --protocol out")
    try:
        chosen = checked(protocols or (preset.protocols if preset else ("final", "online")))
    except ValueError as error:
        raise UsageError(f"unknown protocol `{error}`", f"there are {', '.join(PROTOCOLS)}") from None
    return RunOptions(
        editor=editor,
        recipe=recipe,
        settings=tuple(settings),
        limit=limit or None,
        order=order,
        protocols=chosen,
        checkpoints=_numbers("--checkpoints", checkpoints),
        lags=_numbers("--lags", lags),
        cache=cache,
        again=again,
        calibrate=calibrate,
        preset=preset,
        anchors=AUTO if anchors == AUTO else Path(anchors) if anchors else None,
        keep=keep,
    )


def _numbers(option: str, text: str) -> tuple[int, ...]:
    from more_cli.experiments.protocols import marks_of

    try:
        return marks_of(text)
    except ValueError:
        raise UsageError(f"`{option} {text}` is not a list of numbers", f"for example {option} 1,10,100") from None


def embedded_target(output: Output, model: Path | None, state: Path | None) -> Target | None:
    """Return the embedded demo model if nothing names another one, and say so on stderr; else None."""
    if model is not None or state is not None or any(Path.cwd().glob("*.more")):
        return None
    from more_cli.demo.files import demo_model_dir

    output.note("note: no MODEL given and no `*.more` file here; using the embedded demo model")
    return Target(demo_model_dir(), sidecar_path(demo_model_dir()))


def suite_target(
    output: Output, suite: Suite, model: Path | None, state: Path | None, *, usage: str = "more eval MODEL --suite NAME"
) -> Target:
    """Return model and state of a run on a suite, and say on stderr what was chosen for what was not named.

    Without a model it is the one of the state or of the only `*.more` file here; with no such file, the embedded demo
    model. Only a suite of questions uses the state. `usage` shows how the command takes its model.

    Raises:
        UsageError: several `*.more` files are here, or the only one does not lie beside its model.
        StateError: a state was named and there is none.
    """
    from more_cli.suites.load import YesNoSuite

    if embedded := embedded_target(output, model, state):
        return embedded
    hint = f"name the checkpoint folder: {usage}"
    try:
        target = locate(model, state)
    except UsageError as error:
        raise UsageError(error.message, hint) from None
    if model is None and not target.model.is_dir():
        raise UsageError(f"no model named, and `{target.sidecar}` has no folder `{target.model}` beside it", hint)
    if not isinstance(suite, YesNoSuite):
        if model is None:
            output.note(f"note: no MODEL given; using `{target.model}`, without the edits of its state")
        return target
    has_state = target.sidecar.exists()
    if state is not None and not has_state:
        raise StateError(f"no state at `{state}`", "name an existing `.more` file, or leave --state out")
    if target.model.is_dir():
        which = f"and its state `{target.sidecar}`" if has_state else f"alone: it has no state `{target.sidecar}`"
        output.note(f"note: asking `{target.model}` {which}")
    return target
