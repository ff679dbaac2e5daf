"""Options of runs on a suite, shared by `run`, `compare` and `reproduce`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from more_cli.cli import completion
from more_cli.cli.output import Output
from more_cli.cli.suite_source import loaded_suite
from more_cli.errors import UsageError
from more_cli.options import FILES, SUITE, WRITING, FileOptions, option
from more_cli.text import shorten

if TYPE_CHECKING:
    from more_cli.evaluation.streams import Writing
    from more_cli.suites.load import EditSuite
    from more_lab.experiments.keep import Keep
    from more_lab.experiments.run import LabOptions

KEPT = "What the run keeps"
MOST = 1_000_000
"""Largest number of a list such as `1,10,100`, and of numbers in its ranges."""

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


MARKS, LAG = "1,10,100", "10"
"""Defaults of --checkpoints and --lags."""


@dataclass(frozen=True)
class MeasureOptions:
    """When edits are scored, with which settings, and where that is remembered."""

    checkpoints: str = option(
        MARKS, "Numbers of edits at which `final` and `online` are reported.", metavar="1,10,..", panel=SUITE
    )
    calibrate: int = option(
        0, "First try N settings of the editor on the calibration pool.", metavar="N", least=0, panel=SUITE
    )
    cache: Path | None = option(
        None, "Folder that caches base answers, fits and finished runs.", metavar="DIR", panel=SUITE
    )
    again: bool = option(False, "Measure again instead of reading the cache.", "--again", panel=SUITE)


@dataclass(frozen=True)
class StreamOptions(MeasureOptions):
    """Which edits of a suite are run, how they are written, and what is measured."""

    data_root: Path | None = option(None, "Folder with the suite's files.", metavar="DIR", panel=SUITE)
    limit: int = option(100, "Only the first N edits; 0 for all.", metavar="N", least=0, panel=SUITE)
    order: int = option(0, "Seed of the order of the edits; 0 for the file's.", metavar="N", least=0, panel=SUITE)
    metrics: str | None = option(
        None, "Preset of metrics, e.g. `paper-table`; see `more suites metrics`.", metavar="NAME", panel=SUITE
    )
    anchors: str | None = option(
        None,
        "Questions whose answers must not change, for M-ORE; auto: made from the calibration pool.",
        metavar="FILE|auto",
        panel=SUITE,
    )
    batch: bool = option(False, "Write all edits together, after the last one.", "--batch", panel=WRITING)
    consolidate: Literal["off", "run", "all", "anew"] = option(
        "off",
        "After the last edit, write again those that do not hold (run, all), or all edits together (anew).",
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

    def run_options(self, editor: str, **others: Any) -> LabOptions:
        """Return them as a run takes them, checked; `others` are further fields of `LabOptions`.

        Raises:
            UsageError: an unknown preset, not a list of numbers, or two ways of writing.
        """
        from more_cli.runner.plan import anchors_of

        if self.writing != "online" and self.checkpoints != MARKS:
            what = "`--checkpoints`: edits that are written together are scored after the last one alone"
            raise UsageError(what, "leave it out, or --batch and --consolidate")

        return checked(
            self,
            editor,
            metrics=self.metrics,
            limit=self.limit or None,
            order=self.order,
            writing=self.writing,
            anchors=anchors_of(self.anchors),
            **others,
        )


@dataclass(frozen=True)
class ProtocolOptions:
    """After which further edits an edit is scored."""

    protocol: tuple[str, ...] = option(
        (),
        "Protocol: final, online, lag or single; repeatable. [default: final, online]",
        "--protocol",
        metavar="NAME",
        panel=SUITE,
    )
    lags: str = option(
        LAG, "With --protocol lag: score an edit after this many further edits.", metavar="10,..", panel=SUITE
    )


@dataclass(frozen=True)
class KeepOptions:
    """What a run keeps for `more analyze`."""

    keep: Path | None = option(None, "Keep the run in this folder, for `more analyze`.", metavar="DIR", panel=KEPT)
    keep_updates: bool = option(False, "With --keep: each edit's change of every weight.", "--keep-updates", panel=KEPT)
    keep_states: bool = option(
        False, "With --keep: hidden states of the locality probes, at --checkpoints.", "--keep-states", panel=KEPT
    )
    keep_answers: str | None = option(
        None,
        "With --keep: answers to a yes/no suite, such as mme, at --checkpoints; DIR holds its files.",
        metavar="NAME[=DIR]",
        panel=KEPT,
    )

    def kept(self, output: Output) -> Keep | None:
        """Return what a run keeps; None without --keep.

        Raises:
            UsageError: an option that needs --keep, or a suite that has no yes/no questions.
            DataError: a file of that suite is missing or bad.
        """
        if self.keep is None:
            needs = {
                "--keep-updates": self.keep_updates,
                "--keep-states": self.keep_states,
                "--keep-answers": self.keep_answers,
            }
            for flag in (flag for flag, given in needs.items() if given):
                raise UsageError(f"`{flag}` needs `--keep DIR`", f"name a folder: --keep run {flag}")
            return None
        from more_cli.suites.load import EditSuite
        from more_lab.experiments.keep import Keep

        name, _, root = (self.keep_answers or "").partition("=")
        suite = loaded_suite(output, name, Path(root) if root else None, FileOptions()) if name else None
        if isinstance(suite, EditSuite):
            raise UsageError(f"`--keep-answers {name}`: this suite has edits, not yes/no questions", "for example mme")
        return Keep(self.keep, self.keep_updates, self.keep_states, suite)


def loaded_edits(output: Output, name: str, data_root: Path | None, images: FileOptions) -> EditSuite:
    """As `loaded_suite`, but only a suite of edits.

    Raises:
        UsageError: also a suite that has questions but no edits.
    """
    from more_cli.suites.load import EditSuite

    suite = loaded_suite(output, name, data_root, images)
    if not isinstance(suite, EditSuite):
        hint = f"score a model on it with: more eval MODEL --suite {suite.name}"
        raise UsageError(f"suite `{suite.name}` has no edits, only questions", hint)
    return suite


def checked(
    measured: MeasureOptions,
    editor: str,
    *,
    metrics: str | None = None,
    protocols: ProtocolOptions | None = None,
    **others: Any,
) -> LabOptions:
    """Return options as a run takes them; `others` are further fields of `LabOptions`.

    Raises:
        UsageError: unknown protocol or preset, both a protocol and a preset, or not a list of numbers.
    """
    from more_cli.runner.protocols import PROTOCOLS, Scored
    from more_cli.runner.protocols import checked as known
    from more_lab.experiments.presets import preset_of
    from more_lab.experiments.run import LabOptions

    preset, scored = preset_of(metrics) if metrics is not None else None, protocols or ProtocolOptions()
    if preset and scored.protocol:
        text = f"`--metrics {metrics}` sets the protocol itself: {', '.join(preset.protocols)}"
        raise UsageError(text, "leave --protocol out")
    try:
        chosen = known(scored.protocol)
    except ValueError as error:
        raise UsageError(f"unknown protocol `{error}`", f"there are {', '.join(PROTOCOLS)}") from None
    if scored.lags != LAG and "lag" not in (*chosen, *(preset.protocols if preset else ())):
        raise UsageError("`--lags` needs `--protocol lag`", "add it, or leave --lags out")
    return LabOptions(
        editor=editor,
        scored=Scored(chosen, _numbers("--checkpoints", measured.checkpoints), _numbers("--lags", scored.lags)),
        preset=preset,
        cache=measured.cache,
        again=measured.again,
        calibrate=measured.calibrate,
        **others,
    )


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    try:
        return _marks(text)
    except ValueError:
        what = f"`{flag} {shorten(text)}` is not a list of numbers from 1 to {MOST:,}"
        raise UsageError(what, f"for example {flag} 1,10,100") from None


def _marks(text: str) -> tuple[int, ...]:
    """Parse a list of numbers and ranges such as `1,10,100` or `1-9`, from 1 to `MOST`."""
    parts = [part.partition("-") for part in text.split(",") if part.strip()]
    ends = [(int(first), int(last) if dash else int(first)) for first, dash, last in parts]
    if any(not 1 <= first <= last <= MOST for first, last in ends) or sum(last - first for first, last in ends) > MOST:
        raise ValueError(text)
    return tuple(number for first, last in ends for number in range(first, last + 1))
