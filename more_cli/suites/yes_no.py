"""Yes/no answers, read and counted as MME does: pure functions of text.

accuracy    right answers over questions; 0.5 by chance.
accuracy+   images with every question right over images; 0.25 by chance.
score       100 (accuracy + accuracy+), at most 200 a category.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["yes", "no", "other"]

CATEGORY_MAXIMUM = 200.0
_PREFIX = 4
"""Characters of a longer answer that are read."""


def parse_answer(text: str) -> Verdict:
    """Return the verdict of an answer, by the rule of MME's own tool and lmms-eval.

    Lower-cased, without full stops: `yes` or `no`, a single `y` or `n`, else `yes` and then `no` anywhere in the first
    four characters. So `not sure` and `know` say no; `other` counts as wrong.
    """
    answer = text.lower().strip().replace(".", "")
    if answer in ("y", "n"):
        return "yes" if answer == "y" else "no"
    head = answer[:_PREFIX]
    if "yes" in head:
        return "yes"
    return "no" if "no" in head else "other"


@dataclass(frozen=True)
class YesNoScore:
    """Counts of one category, of at least one image."""

    questions: int
    right: int
    images: int
    images_right: int
    """Images with every question right."""
    unparsable: int
    """Answers that say neither yes nor no."""

    @property
    def accuracy(self) -> float:
        """Right answers over questions, in [0, 1]."""
        return self.right / self.questions

    @property
    def accuracy_plus(self) -> float:
        """Images with every question right over images, in [0, 1]."""
        return self.images_right / self.images

    @property
    def score(self) -> float:
        """MME's score, in [0, 200]."""
        return 100 * (self.accuracy + self.accuracy_plus)

    @property
    def unparsable_rate(self) -> float:
        """Answers that say neither over questions, in [0, 1]."""
        return self.unparsable / self.questions


def score_category(images: Iterable[Sequence[tuple[str, str]]]) -> YesNoScore:
    """Count a category's answers; each image is its questions' (expected, given) answers, in words.

    Raises:
        ValueError: there is no image, or one without a question.
    """
    questions = right = unparsable = count = whole = 0
    for answers in images:
        if not answers:
            raise ValueError("an image without a question")
        given = [parse_answer(answer) for _, answer in answers]
        held = [a == parse_answer(expected) for a, (expected, _) in zip(given, answers, strict=True)]
        questions += len(held)
        right += sum(held)
        count += 1
        whole += all(held)
        unparsable += given.count("other")
    if not count:
        raise ValueError("a category without an image")
    return YesNoScore(questions, right, count, whole, unparsable)


@dataclass(frozen=True)
class Total:
    """The sum of several categories' scores."""

    score: float
    maximum: float
    """The highest possible score: 200 for every category in the data."""


def totals(scores: Mapping[str, YesNoScore], groups: Mapping[str, Sequence[str]]) -> dict[str, Total]:
    """Return the sum of scores per group, such as perception and cognition, over the categories in the data."""
    there = {group: [scores[name].score for name in names if name in scores] for group, names in groups.items()}
    return {group: Total(sum(found), CATEGORY_MAXIMUM * len(found)) for group, found in there.items() if found}
