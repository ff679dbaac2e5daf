"""`more compare EDITOR... --suite`: editors go through one suite one after the other, and are compared edit by edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from more_cli.errors import UsageError
from more_cli.evaluation.paired import Difference, compare_edits
from more_cli.experiments.editors import Wish, entry_of
from more_cli.experiments.held_anchors import takes_anchors
from more_cli.experiments.report import SHOWN, SuiteReport
from more_cli.experiments.run import RunOptions, run_suite
from more_cli.files import shorten
from more_cli.model.machine import Machine
from more_cli.progress import Progress, no_progress
from more_cli.suites.load import EditSuite


@dataclass(frozen=True)
class EditorComparison:
    """Editors side by side."""

    reports: dict[str, SuiteReport]
    """By editor, in the order they were named."""
    differences: dict[str, dict[str, Difference]]
    """By editor, all but the first, then by the metric's full name: the editor minus the first one in the headline."""
    skipped: dict[str, dict[str, str]]
    """Metrics that could not be compared, and why, by editor."""

    @property
    def first(self) -> SuiteReport:
        """What the others are held against."""
        return next(iter(self.reports.values()))

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics that people see: the columns of the preset, or ours."""
        preset = self.first.preset
        return tuple(preset.columns.values()) if preset else SHOWN


def compare_editors(
    suite: EditSuite,
    model: Path,
    settings: Mapping[str, Sequence[str]],
    options: RunOptions,
    machine: Machine,
    progress: Progress = no_progress,
) -> EditorComparison:
    """Run every editor named in `settings`, each with its own, as `run_suite` does; finished runs are only read.

    Anchors go to the editors that make use of them.

    Raises:
        UsageError: unknown editor or setting.
        StreamErrors: an image of the suite is missing or cannot be read.
        StateError: not a checkpoint that can be edited.
    """
    # All of them are made before an hour is spent on the first.
    made = {name: entry_of(name).make(Wish(model, settings=tuple(own))) for name, own in settings.items()}
    if options.anchors is not None and not any(map(takes_anchors, made.values())):
        raise UsageError("none of the editors as they are makes use of anchors", "leave --anchors out")
    reports = {}
    for name, own in settings.items():
        anchors = options.anchors if takes_anchors(made[name]) else None
        chosen = replace(options, editor=name, settings=tuple(own), anchors=anchors)
        reports[name] = run_suite(suite, model, chosen, machine, _named(progress, name))
    first, *others = reports.items()
    values = [scores.values() for scores in first[1].per_edit]
    differences, skipped = {}, {}
    for name, report in others:
        pairs = zip(values, (scores.values() for scores in report.per_edit), strict=True)
        differences[name], skipped[name] = compare_edits(list(pairs))
    return EditorComparison(reports, differences, skipped)


def settings_by_editor(editors: Sequence[str], spelled: Sequence[str]) -> dict[str, list[str]]:
    """Read settings as they are typed, `EDITOR:key=value`.

    Raises:
        UsageError: an editor named twice, a setting without one, or with one that does not run.
    """
    found: dict[str, list[str]] = {editor: [] for editor in editors}
    if len(found) < len(editors):
        twice = next(editor for editor in editors if editors.count(editor) > 1)
        raise UsageError(
            f"editor `{shorten(twice)}` is named twice", "name each once; --set EDITOR:key=value changes one"
        )
    for text in spelled:
        key, equals, value = text.partition("=")
        editor, _, name = key.rpartition(":")
        if editor not in found:
            hint = f"spell it EDITOR:key=value with one of {', '.join(editors)}"
            raise UsageError(f"`--set {shorten(text)}` names none of the editors", hint)
        found[editor].append(f"{name}{equals}{value}")
    return found


def _named(progress: Progress, editor: str) -> Progress:
    return lambda done, total, text: progress(done, total, f"{editor}: {text}")
