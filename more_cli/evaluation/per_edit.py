"""Scores of each edit's probes, for verdicts, the gallery and paired comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from more_cli.evaluation.names import WORDS, Kind
from more_cli.evaluation.probes import Probe, ProbeScore
from more_cli.files import sha256_json
from more_cli.store.entry import FailedEdit
from more_cli.store.status import Status
from more_cli.text import counted, verb

UNRELATED = "unrelated"
"""Both kinds of locality questions together."""
VARIANTS: dict[Kind, str] = {
    "gen_text": "in other words",
    "gen_image": "with other pictures",
    "portability": "that follow",
}
"""Kinds of questions that should have the target too, each as it follows a number."""


@dataclass(frozen=True)
class EditScores:
    """The scores of one edit's probes, or of one line of a probes file."""

    id: str
    scores: tuple[ProbeScore, ...]
    """At least one."""
    failed: FailedEdit | None = None
    """What the ledger says of an edit that does not stand."""

    @property
    def rel(self) -> ProbeScore | None:
        """The score of the edit itself; None for a question without a target."""
        return next((score for score in self.scores if score.probe.kind == "rel"), None)

    @property
    def shown(self) -> ProbeScore:
        """The score that reports show: the edit's own if there is one."""
        return self.rel or self.scores[0]

    @property
    def others(self) -> list[ProbeScore]:
        """Every score but the one shown."""
        return [score for score in self.scores if score is not self.shown]

    @property
    def moved(self) -> list[ProbeScore]:
        """The others whose answer is not the expected one."""
        return [score for score in self.others if score.holds is False]

    @property
    def refused(self) -> bool:
        """Whether the edit was asked for and rolled back."""
        return self.failed is not None and self.failed.status is Status.REFUSED

    @property
    def good(self) -> bool:
        """Whether the greedy answer is the target or, where there is none, still the base's; never if it was refused.

        A refused edit was not written, so its answer is no merit of the edit.
        """
        return not self.refused and self.shown.holds is True

    @property
    def verdict(self) -> str:
        """`good` in words."""
        if self.refused:
            return "refused"
        words = ("holds", "does not hold") if self.rel else ("unchanged", "changed")
        return words[not self.good]

    @property
    def why(self) -> str:
        """Status and reason of an edit that does not stand, and that a question without a target changed."""
        if self.failed is None:
            return "" if self.rel else self.verdict
        return f"{self.failed.status}: {self.failed.reason}" if self.failed.reason else str(self.failed.status)

    @property
    def wanted(self) -> str:
        """The target or, where there is none, the base's greedy answer."""
        return self.shown.expected

    @cached_property
    def probes(self) -> str:
        """SHA-256 over questions and targets: runs with the same probes can be compared."""
        return probes_hash(score.probe for score in self.scores)

    def words(self, score: ProbeScore) -> str:
        """Return what one of its probes asks, in words."""
        kind = WORDS[score.probe.kind]
        return f"{kind}, refused" if self.refused and not score.probe.is_locality else kind

    def values(self) -> dict[str, list[float]]:
        """Return the value of every probe by the metric's full name; a probe that was not asked can lack some."""
        found: dict[str, list[float]] = {}
        for score in self.scores:
            for group in score.probe.groups:
                for name, value in score.values.items():
                    found.setdefault(f"{group}.{name}", []).append(value)
        return found


def by_edit(scores: Iterable[ProbeScore], failed: Iterable[FailedEdit] = ()) -> list[EditScores]:
    """Group scores by the edit they belong to, in the order in which edits first appear; `failed` do not stand."""
    groups: dict[str, list[ProbeScore]] = {}
    for score in scores:
        groups.setdefault(score.probe.edit, []).append(score)
    reasons = {edit.id: edit for edit in failed}
    return [EditScores(id, tuple(group), reasons.get(id)) for id, group in groups.items()]


def headline(edits: Sequence[EditScores]) -> str:
    """Return how many edits hold and, in the same breath, how many of their variants."""
    own = [scores.good for scores in edits if scores.rel]
    held = [f"{sum(own):,} of {len(own):,} {verb(sum(own), 'holds', 'hold')}"] if own or not edits else []
    return "; ".join(filter(None, [*held, variants(edits)]))


def variants(edits: Iterable[EditScores]) -> str:
    """Return how many other questions have the expected answer, such as `47 of 48 in other words`; empty for none."""
    held = held_by_kind(edits)
    kept = held.get(UNRELATED, [])
    changed = f"{kept.count(False):,} of {counted(len(kept), 'unrelated answer')} changed" if kept else ""
    return ", ".join(filter(None, [carried_over(held), changed]))


def carried_over(held: Mapping[str, Sequence[bool]]) -> str:
    """Return how many questions that should have the target do; `held` is that of `held_by_kind`."""
    found = {words: held[kind] for kind, words in VARIANTS.items() if kind in held}
    return ", ".join(f"{sum(right):,} of {len(right):,} {words}" for words, right in found.items())


def held_by_kind(edits: Iterable[EditScores]) -> dict[str, list[bool]]:
    """Return which answers are as expected by the probe's kind, both kinds of locality as `UNRELATED`.

    What could not be asked counts nowhere. The edits' own answers are under `rel`.
    """
    held: dict[str, list[bool]] = {}
    for score in (score for scores in edits for score in scores.scores if score.holds is not None):
        held.setdefault(UNRELATED if score.probe.is_locality else score.probe.kind, []).append(bool(score.holds))
    return held


def moved(edits: Iterable[EditScores]) -> list[tuple[EditScores, ProbeScore]]:
    """Return the probes beside the edits themselves whose answer is not the expected one; refused edits come last."""
    return [(scores, score) for scores in sorted(edits, key=lambda one: one.refused) for score in scores.moved]


def probes_hash(probes: Iterable[Probe]) -> str:
    """Return the SHA-256 over the questions and targets of probes."""
    return sha256_json([_content(probe) for probe in probes])


def _content(probe: Probe) -> list[object]:
    query, turns = probe.query, list(map(list, probe.query.turns))
    asked = probe.kind, [image.sha256 for image in query.images], query.question, probe.target
    return [*asked, turns] if turns else [*asked]
