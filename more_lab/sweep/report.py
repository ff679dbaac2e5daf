"""The results of a sweep's trials side by side, each paired by edit with the first trial of its model and suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from more_cli.errors import DataError
from more_cli.evaluation.metrics import Estimate
from more_cli.runner.report import SHOWN
from more_cli.text import canonical_json, finite
from more_lab.experiments.compare_results import Comparison, Run, paired
from more_lab.sweep.file import Grid, SweepFile
from more_lab.sweep.folder import Done
from more_lab.sweep.trials import Trial


@dataclass(frozen=True)
class SweepReport:
    """What became of the trials of a sweep."""

    file: SweepFile
    trials: Sequence[Trial]
    done: Done

    @property
    def finished(self) -> dict[str, Trial]:
        """Trials with a result, by label; of several with the same key the first."""
        first = dict[str, Trial]()
        for trial in self.trials:
            if trial.key in self.done.values:
                first.setdefault(trial.key, trial)
        return {trial.label: trial for trial in first.values()}

    @property
    def repeated(self) -> int:
        """Trials that are the same as an earlier one: they have its key."""
        keys = [trial.key for trial in self.trials if trial.key]
        return len(keys) - len(set(keys))

    @property
    def lines(self) -> dict[str, dict[str, Any]]:
        """The results by key, with the trial's own names."""
        return {
            trial.key: {"schema": "more.sweep.trial/1", "trial": names_of(trial), **self.done.values[trial.key]}
            for trial in self.finished.values()
        }

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics in tables: the columns of the preset or, without one, the usual ones."""
        assert isinstance(self.file.table, Grid)
        preset = self.file.table.preset
        return tuple(preset.columns.values()) if preset else SHOWN

    def estimates(self, trial: Trial) -> dict[str, Estimate]:
        """Return the shown metrics of a finished trial, in its headline."""
        values = self.done.values[trial.key]
        found = values["metrics"][values["headline"]]
        return {name: estimate_of(found[name]) for name in self.shown if name in found}

    @cached_property
    def comparisons(self) -> dict[str, Comparison | str]:
        """Each finished trial minus the first one of its model, suite and number of edits; or why not, by label."""
        return dict(self._compared())

    def _compared(self) -> Iterator[tuple[str, Comparison | str]]:
        firsts = dict[tuple[object, ...], Trial]()
        for trial in self.trials:
            firsts.setdefault(_group(trial), trial)
        runs = {label: self._run(trial) for label, trial in self.finished.items()}
        for label, trial in self.finished.items():
            first = firsts[_group(trial)]
            if first.key == trial.key:
                continue
            if first.label not in runs:
                yield label, f"the first trial, {first.label}, has no result"
                continue
            try:
                yield label, paired(first.label, runs[first.label], label, runs[label])
            except DataError as error:
                yield label, error.message

    def _run(self, trial: Trial) -> Run:
        return Run.model_validate_json(canonical_json(finite(self.done.values[trial.key])))


def _group(trial: Trial) -> tuple[object, ...]:
    """What trials have in common that are compared."""
    return trial.names.model, trial.names.suite, trial.names.limit


def names_of(trial: Trial) -> dict[str, Any]:
    """Return a trial as its file names it; how edits are written where that is not each as it comes."""
    names = {**vars(trial.names), "settings": list(trial.names.settings), "threads": trial.threads}
    return names if names["writing"] != "online" else {name: names[name] for name in names if name != "writing"}


def estimate_of(values: Mapping[str, Any]) -> Estimate:
    """Return a mean as it was written; what was not finite is not a number."""
    value, low, high = (float("nan") if values[name] is None else values[name] for name in ("value", "low", "high"))
    return Estimate(value, low, high, values["n"], values["interval"])
