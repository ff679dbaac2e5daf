"""`more compare EDITOR... --suite`: run editors on one suite, one after the other, and compare them edit by edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from more_cli.editors.registry import EditorOptions, entry_of
from more_cli.errors import UsageError
from more_cli.evaluation.streams import writes_together
from more_cli.model.machine import Machine
from more_cli.ops.anchors import identities
from more_cli.progress import Progress, no_progress
from more_cli.runner.anchors import choose_anchors
from more_cli.runner.protocols import Scored
from more_cli.runner.report import SHOWN, SuiteReport
from more_cli.suites.load import EditSuite
from more_cli.text import shorten
from more_lab.experiments.paired import Difference, compare_edits
from more_lab.experiments.run import LabOptions, run_suite


@dataclass(frozen=True)
class EditorComparison:
    """Editors side by side."""

    reports: dict[str, SuiteReport]
    """By editor, in the order they were named."""
    differences: dict[str, dict[str, Difference]]
    """By editor except the first, then by the metric's full name: this editor minus the first, in the headline."""
    skipped: dict[str, dict[str, str]]
    """Metrics that could not be compared, and why, by editor."""

    @property
    def first(self) -> SuiteReport:
        """The report that the others are compared with."""
        return next(iter(self.reports.values()))

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics in tables: the preset's columns or, without a preset, the usual ones."""
        preset = self.first.preset
        return tuple(preset.columns.values()) if preset else SHOWN


def compare_editors(
    suite: EditSuite,
    model: Path,
    settings: Mapping[str, Sequence[str]],
    options: LabOptions,
    machine: Machine,
    progress: Progress = no_progress,
) -> EditorComparison:
    """Run every editor in `settings` with its settings, as `run_suite` does; finished runs are read from the cache.

    Anchors are passed to the editors that use them, joint writing to those that know it. A locality probe that is an
    anchor is left out for every editor.

    Raises:
        UsageError: unknown editor or setting.
        StreamErrors: an image of the suite is missing or cannot be read.
        StateError: not a checkpoint that can be edited.
    """
    # All are made first, so that a mistake shows before an hour is spent on the first run.
    made = {name: entry_of(name).make(EditorOptions(model, settings=tuple(own))) for name, own in settings.items()}
    if options.anchors is not None and not any("anchors" in editor.capabilities for editor in made.values()):
        raise UsageError("no editor uses anchors with these settings", "drop --anchors")
    joint = {name: options.writing if writes_together(editor) else "online" for name, editor in made.items()}
    if options.writing not in joint.values():
        raise UsageError("no editor writes several edits together", "leave --batch and --consolidate out")
    asked = {name: options.anchors if "anchors" in editor.capabilities else None for name, editor in made.items()}
    held = [
        anchor for name, editor in made.items() for anchor in choose_anchors(editor, asked[name], suite, options.limit)
    ]
    options, reports = replace(options, unscored=identities(held)), {}
    # All are scored alike: those that write each edit as it comes after the last one alone, too.
    scored = options.scored if options.writing == "online" else Scored(options.protocols, ())
    for name, own in settings.items():
        chosen = replace(
            options, editor=name, settings=tuple(own), anchors=asked[name], writing=joint[name], scored=scored
        )
        reports[name] = run_suite(suite, model, chosen, machine, _named(progress, name))
    first, *others = reports.items()
    values = [scores.values() for scores in first[1].per_edit]
    differences, skipped = {}, {}
    for name, report in others:
        pairs = zip(values, (scores.values() for scores in report.per_edit), strict=True)
        differences[name], skipped[name] = compare_edits(list(pairs))
    return EditorComparison(reports, differences, skipped)


def settings_by_editor(editors: Sequence[str], spelled: Sequence[str]) -> dict[str, list[str]]:
    """Parse settings of the form `EDITOR:key=value`.

    Raises:
        UsageError: an editor is named twice, or a setting names none of the editors.
    """
    settings: dict[str, list[str]] = {editor: [] for editor in editors}
    if len(settings) < len(editors):
        twice = next(editor for editor in editors if editors.count(editor) > 1)
        hint = "name each once; EDITOR@RECIPE is another one, and --set EDITOR:key=value changes one"
        raise UsageError(f"editor `{shorten(twice)}` is named twice", hint)
    for text in spelled:
        # The name of an editor may hold a colon, and the path of its recipe anything.
        named = [editor for editor in editors if text.startswith(f"{editor}:") and "=" in text]
        if not named:
            hint = f"write EDITOR:key=value with one of {', '.join(editors)}"
            raise UsageError(f"`--set {shorten(text)}` names none of the editors", hint)
        editor = max(named, key=len)
        settings[editor].append(text.removeprefix(f"{editor}:"))
    return settings


def _named(progress: Progress, editor: str) -> Progress:
    return lambda done, total, text: progress(done, total, f"{editor}: {text}")
