"""Scores of each edit's probes, for verdicts, the gallery and paired comparisons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from more_cli.evaluation.probes import Probe, ProbeScore
from more_cli.files import sha256_bytes
from more_cli.text import canonical_json


@dataclass(frozen=True)
class EditScores:
    """The scores of one edit's probes, or of one line of a probes file."""

    id: str
    scores: tuple[ProbeScore, ...]
    """At least one."""

    @property
    def rel(self) -> ProbeScore | None:
        """The score of the edit itself; None for a question without a target."""
        return next((score for score in self.scores if score.probe.kind == "rel"), None)

    @property
    def shown(self) -> ProbeScore:
        """The score that reports show: the edit's own if there is one."""
        return self.rel or self.scores[0]

    @property
    def good(self) -> bool:
        """Whether the greedy answer is the target or, where there is none, still the base's."""
        return self.rel.holds if self.rel else self.shown.values.get("loc_gen_same") == 1.0

    @property
    def verdict(self) -> str:
        """`good` in words."""
        words = ("holds", "does not hold") if self.rel else ("unchanged", "changed")
        return words[not self.good]

    @property
    def wanted(self) -> str:
        """The target or, where there is none, the base's greedy answer."""
        target = self.shown.probe.target
        return self.shown.base_answer if target is None else target

    @cached_property
    def probes(self) -> str:
        """SHA-256 over questions and targets: runs with the same probes can be compared."""
        return probes_hash(score.probe for score in self.scores)

    def values(self) -> dict[str, list[float]]:
        """Return the value of every probe by the metric's full name."""
        found: dict[str, list[float]] = {}
        for score in self.scores:
            for group in score.probe.groups:
                for name, value in score.values.items():
                    found.setdefault(f"{group}.{name}", []).append(value)
        return found


def by_edit(scores: Iterable[ProbeScore]) -> list[EditScores]:
    """Group scores by the edit they belong to, in the order in which edits first appear."""
    groups: dict[str, list[ProbeScore]] = {}
    for score in scores:
        groups.setdefault(score.probe.edit, []).append(score)
    return [EditScores(id, tuple(group)) for id, group in groups.items()]


def probes_hash(probes: Iterable[Probe]) -> str:
    """Return the SHA-256 over the questions and targets of probes."""
    return sha256_bytes(canonical_json([_content(probe) for probe in probes]).encode())


def _content(probe: Probe) -> list[object]:
    return [probe.kind, [image.sha256 for image in probe.query.images], probe.query.question, probe.target]
