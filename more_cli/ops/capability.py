"""`more eval --suite mme`: yes/no questions that have nothing to do with the edits, asked of base and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import fingerprint
from more_cli.evaluation.gates import CHANGE, Judgement
from more_cli.evaluation.metrics import Estimate, change
from more_cli.evaluation.probes import BATCH
from more_cli.model.batches import Query
from more_cli.model.loading import load_prompter, load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.model.versions import versions
from more_cli.ops.session import open_session
from more_cli.progress import Progress, no_progress
from more_cli.store.status import Status
from more_cli.store.target import Target
from more_cli.suites.load import YesNoSuite
from more_cli.suites.mme import AskedImage
from more_cli.suites.yes_no import Total, YesNoScore, parse_answer, score_category, totals

ANSWER_TOKENS = 8
"""Longest answer, in tokens: `yes`, `no`, or enough to see that it is neither."""
PARSER = "official: yes or no alone, else in the first four characters"

Answers = Mapping[str, Sequence[Sequence[str]]]
"""By category and image, one answer per question."""


@dataclass(frozen=True)
class Capability:
    """Scores of one model."""

    categories: dict[str, YesNoScore]
    totals: dict[str, Total]
    """Perception and cognition."""

    @property
    def accuracy(self) -> float:
        """Right answers over all questions, in [0, 1]."""
        return self._sum("right") / self._sum("questions")

    @property
    def accuracy_plus(self) -> float:
        """Images with every question right over all images, in [0, 1]."""
        return self._sum("images_right") / self._sum("images")

    @property
    def unparsable_rate(self) -> float:
        """Answers that say neither yes nor no over all questions."""
        return self._sum("unparsable") / self._sum("questions")

    def _sum(self, name: str) -> int:
        return sum(getattr(score, name) for score in self.categories.values())


@dataclass(frozen=True)
class CapabilityReport:
    """The base and, where there is one, the state."""

    suite: YesNoSuite
    target: Target
    base: Capability
    state: Capability | None
    edits: int
    changes: dict[str, Estimate]
    """State minus base accuracy by category and, as `all`, over all of them; the interval is over images."""
    replayed: int
    reproduce: dict[str, Any]
    gates: list[Judgement] = field(default_factory=list)

    @property
    def gated(self) -> dict[str, Estimate]:
        """Changes of accuracy by the names of `gate_names`; empty without a state."""
        if self.state is None:
            return {}
        changes = [self.changes[name] for name in ("all", *self.suite.categories)]
        return dict(zip(gate_names(self.suite), changes, strict=True))


def gate_names(suite: YesNoSuite) -> list[str]:
    """Return every metric name that a gate may use: the change of accuracy, over all questions and by category."""
    return [f"{suite.name}.{CHANGE}", *(f"{suite.name}.{name}.{CHANGE}" for name in suite.categories)]


def evaluate_capability(
    suite: YesNoSuite, target: Target, machine: Machine, progress: Progress = no_progress
) -> CapabilityReport:
    """Ask the base, and the state if there is one, every question of a suite.

    Raises:
        StateError: not a checkpoint, or a state that does not fit it.
        DataError: an image is missing or cannot be read.
    """
    with _opened(target, machine, progress) as (runtime, edits, replayed):
        with runtime.base():
            before = ask_all(runtime, suite, progress, "asking the base")
        after = ask_all(runtime, suite, progress, "asking the state") if edits is not None else None
    checkpoint = open_checkpoint(target.model)
    return CapabilityReport(
        suite=suite,
        target=target,
        base=_scored(suite, before),
        state=_scored(suite, after) if after is not None else None,
        edits=edits or 0,
        changes=_changes(suite, before, after) if after is not None else {},
        replayed=replayed,
        reproduce={
            "base": fingerprint(checkpoint, checkpoint.tensors),
            "template": load_prompter(checkpoint).template,
            "parser": PARSER,
            "versions": versions(machine),
        },
    )


@contextmanager
def _opened(target: Target, machine: Machine, progress: Progress) -> Iterator[tuple[Runtime, int | None, int]]:
    """Yield the model with the state attached, the state's edits (None without a state) and how many were replayed."""
    if target.sidecar.exists():
        session = open_session(target, machine, progress)
        edits = sum(status is not Status.REVERTED for status in session.ledger.statuses().values())
        with session.attached() as replayed:
            yield session.runtime, edits, replayed
        return
    progress(0, None, "loading the model")
    runtime = load_runtime(open_checkpoint(target.model), machine)
    with runtime.attached([]):
        yield runtime, None, 0


def ask_all(runtime: Runtime, suite: YesNoSuite, progress: Progress, text: str) -> Answers:
    """Return a model's answers to every question of a suite; nothing, or an editor, is attached."""
    total = sum(len(image.questions) for images in suite.categories.values() for image in images)
    answers: dict[str, list[list[str]]] = {}
    done = 0
    for category, images in suite.categories.items():
        given: list[str] = []
        queries = [Query((image.image(),), asked.question) for image in images for asked in image.questions]
        for start in range(0, len(queries), BATCH):
            tokens = runtime.generate(queries[start : start + BATCH], ANSWER_TOKENS)
            given += [runtime.prompter.text(ids) for ids in tokens]
            done += len(tokens)
            progress(done, total, text)
        rest = iter(given)
        answers[category] = [[next(rest) for _ in image.questions] for image in images]
    return answers


def pairs_of(images: Sequence[AskedImage], answers: Sequence[Sequence[str]]) -> list[list[tuple[str, str]]]:
    """Return, per image, each question's expected answer and the one that was given."""
    return [
        [(asked.answer, answer) for asked, answer in zip(image.questions, given, strict=True)]
        for image, given in zip(images, answers, strict=True)
    ]


def _scored(suite: YesNoSuite, answers: Answers) -> Capability:
    scores = {name: score_category(pairs_of(images, answers[name])) for name, images in suite.categories.items()}
    return Capability(scores, totals(scores, suite.entry.groups))


def _changes(suite: YesNoSuite, before: Answers, after: Answers) -> dict[str, Estimate]:
    """Return the mean change of accuracy; an image's questions are kept together."""
    changes, whole = {}, list[float]()
    for name, images in suite.categories.items():
        pairs = zip(pairs_of(images, before[name]), pairs_of(images, after[name]), strict=True)
        differences = [accuracy_of(new) - accuracy_of(old) for old, new in pairs]
        changes[name] = change(differences)
        whole += differences
    return changes | {"all": change(whole)}


def accuracy_of(answers: Sequence[tuple[str, str]]) -> float:
    """Return the share of (expected, given) answers that say the same, in [0, 1]."""
    return sum(parse_answer(given) == parse_answer(expected) for expected, given in answers) / len(answers)
