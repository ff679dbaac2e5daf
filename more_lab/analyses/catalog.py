"""The analyses of `more analyze` by name. What computes one is imported when it runs, so that listing is instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from more_cli.errors import UsageError
from more_cli.text import did_you_mean, shorten

if TYPE_CHECKING:
    from more_cli.model.machine import Machine
    from more_cli.progress import Progress
    from more_lab.analyses.kept import KeptRun, Reads
    from more_lab.analyses.result import Result

ALL = "all"
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Analysis:
    """One analysis."""

    name: str
    title: str
    paper: str
    """Where the paper shows it."""
    reads: Reads
    """What of a run it reads."""
    module: str
    """Module beside this one with a function of the analysis's name."""
    runs_model: bool = False
    """Whether it runs the model; the others only read what the run kept."""

    def of(self, runs: Sequence[KeptRun], machine: Machine, progress: Progress) -> Result:
        """Compute it.

        Raises:
            NotKept: the runs lack what it reads.
            DataError: a file of a run is damaged.
            StateError: the model of a run cannot be used.
        """
        make = getattr(import_module(f"more_lab.analyses.{self.module}"), self.name)
        result: Result = make(runs, machine, progress) if self.runs_model else make(runs)
        return result


ANALYSES: dict[str, Analysis] = {
    analysis.name: analysis
    for analysis in (
        Analysis("variance", "Variance of image and text features", "Fig. 2, left", "the model", "scales", True),
        Analysis("energy", "Output of attention, FFN and projector", "Fig. 2, right", "the model", "scales", True),
        Analysis("overlap", "Top-k overlap of updates", "Fig. 3a, 5a", "--keep-updates", "geometry"),
        Analysis("cosine", "Cosine of updates", "Fig. 3b, 5b", "--keep-updates", "geometry"),
        Analysis("horizon", "Entanglement against the lag", "Fig. 3c", "--keep-updates", "geometry"),
        Analysis("forgetting", "Sequential forgetting", "Fig. 3d", "the journal", "stream"),
        Analysis("drift", "Drift of hidden states", "Fig. 4, RQ4", "--keep-states", "drift"),
        Analysis("capability", "Accuracy on unrelated questions", "MME figures", "--keep-answers", "capability"),
        Analysis("efficiency", "Time and state over the stream", "scaling figure", "the journal", "stream"),
        Analysis("sensitivity", "Scores by setting, of several runs", "rank, lambda figures", "the journal", "stream"),
        Analysis("flips", "Stable and flipped locality answers", "flip table", "--keep-states", "flips"),
        Analysis("rollout", "Attention on the image", "case studies", "--keep-updates", "rollout", True),
        Analysis("scope", "How far edits reach", "ScopeEdit", "the journal", "stream"),
    )
}


def chosen(name: str) -> list[Analysis]:
    """Return the analysis of a name, or all of them.

    Raises:
        UsageError: there is no such analysis.
    """
    return one_or_all(name, ANALYSES, "unknown analysis", f"there are {', '.join(ANALYSES)}, and all")


def one_or_all(name: str, known: Mapping[str, Choice], unknown: str, hint: str) -> list[Choice]:
    """Return what has this name, or everything that is known.

    Raises:
        UsageError: nothing has it; the message begins with `unknown`, and `hint` is for a name unlike all others.
    """
    if name == ALL:
        return list(known.values())
    if name in known:
        return [known[name]]
    raise UsageError(f"{unknown} `{shorten(name)}`", did_you_mean(name, [*known, ALL]) or hint)
