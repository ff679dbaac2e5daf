"""Options of runs on a suite, shared by `run`, `compare` and `reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from more_cli.cli import completion
from more_cli.cli.output import Output
from more_cli.cli.suite_source import SuiteSource
from more_cli.errors import UsageError
from more_cli.options import FILES, SUITE, WRITING, option

if TYPE_CHECKING:
    from more_cli.evaluation.streams import Writing
    from more_lab.experiments.keep import Keep
    from more_lab.experiments.run import LabOptions

KEPT = "What the run keeps"

SuiteName = Annotated[
    str | None,
    typer.Option(
        "--suite",
        metavar="NAME|FILE",
        help="Suite to run on, from the untouched base; see `more suites list`.",
        autocompletion=completion.suites,
        rich_help_panel=SUITE,
    ),
]
DataRoot = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder with the suite's files.", rich_help_panel=SUITE)
]
EditorName = Annotated[
    str,
    typer.Option(
        "--editor",
        metavar="NAME",
        help="The editor to run; more@RECIPE is M-ORE with another recipe.",
        autocompletion=completion.editors,
        rich_help_panel=SUITE,
    ),
]
ImageRoot = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder that image paths start from. [default: the folder of the file]",
        rich_help_panel=FILES,
    ),
]
Limit = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Only the first N edits; 0 for all.", rich_help_panel=SUITE),
]
Order = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Seed of the order of the edits; 0 for the file's.",
        rich_help_panel=SUITE,
    ),
]
Checkpoints = Annotated[
    str,
    typer.Option(
        metavar="1,10,..",
        help="Numbers of edits at which `final` and `online` are reported.",
        rich_help_panel=SUITE,
    ),
]
ProtocolNames = Annotated[
    list[str] | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="Protocol: final, online, lag or single; repeatable. [default: final, online]",
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
    typer.Option(metavar="DIR", help="Folder that caches base answers and finished runs.", rich_help_panel=SUITE),
]
Calibrate = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="First try N settings of the editor on the calibration pool.",
        rich_help_panel=SUITE,
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="NAME",
        help="Preset of metrics, e.g. `paper-table`; see `more suites metrics`.",
        rich_help_panel=SUITE,
    ),
]
Anchors = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|auto",
        help="Questions whose answers must not change, for M-ORE; auto: made from the calibration pool.",
        rich_help_panel=SUITE,
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Measure again instead of reading an earlier run from the cache.",
        rich_help_panel=SUITE,
    ),
]
KeepIn = Annotated[
    Path | None,
    typer.Option(
        "--keep",
        metavar="DIR",
        help="Keep the run in this folder, for `more analyze`.",
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


@dataclass(frozen=True)
class WritingOptions:
    """How the stream of a run is written."""

    batch: bool = option(False, "Write all edits together, after the last one.", "--batch", panel=WRITING)
    consolidate: Literal["off", "run", "all", "anew"] = option(
        "off",
        "After the last edit, write again those that do not hold (run, all), or write all edits anew.",
        panel=WRITING,
    )

    @property
    def writing(self) -> Writing:
        """How edits are written; a run has no earlier edits than its own.

        Raises:
            UsageError: both were asked for.
        """
        if self.batch and self.consolidate != "off":
            raise UsageError("`--batch` and `--consolidate` exclude each other in a run", "leave one of them out")
        if self.batch:
            return "batch"
        return {"off": "online", "anew": "anew"}.get(self.consolidate, "all")  # type: ignore[return-value]


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
    from more_cli.suites.load import EditSuite
    from more_lab.experiments.keep import Keep

    name, _, root = (answers or "").partition("=")
    suite = SuiteSource(name, Path(root) if root else None).load(output) if name else None
    if isinstance(suite, EditSuite):
        raise UsageError(f"`--keep-answers {name}`: this suite has edits, not yes/no questions", "for example mme")
    return Keep(folder, updates, states, suite)


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
    writing: Writing = "online",
    recipe: str | None = None,
    settings: Sequence[str] = (),
    protocols: Sequence[str] = (),
    lags: str = "",
) -> LabOptions:
    """Parse and check the options of a run.

    Raises:
        UsageError: unknown protocol or preset, both a protocol and a preset, or not a list of numbers.
    """
    from more_cli.runner.plan import anchors_of
    from more_cli.runner.protocols import PROTOCOLS, Scored, checked
    from more_lab.experiments.presets import preset_of
    from more_lab.experiments.run import LabOptions

    preset = preset_of(metrics) if metrics is not None else None
    if preset and protocols:
        text = f"`--metrics {metrics}` sets the protocol itself: {', '.join(preset.protocols)}"
        raise UsageError(text, "leave --protocol out")
    try:
        chosen = checked(protocols)
    except ValueError as error:
        raise UsageError(f"unknown protocol `{error}`", f"there are {', '.join(PROTOCOLS)}") from None
    return LabOptions(
        editor=editor,
        recipe=recipe,
        settings=tuple(settings),
        limit=limit or None,
        order=order,
        writing=writing,
        scored=Scored(chosen, _numbers("--checkpoints", checkpoints), _numbers("--lags", lags)),
        cache=cache,
        again=again,
        calibrate=calibrate,
        preset=preset,
        anchors=anchors_of(anchors),
        keep=keep,
    )


def _numbers(option: str, text: str) -> tuple[int, ...]:
    from more_cli.runner.protocols import marks_of

    try:
        return marks_of(text)
    except ValueError:
        raise UsageError(f"`{option} {text}` is not a list of numbers", f"for example {option} 1,10,100") from None
