"""A hundred facts about invented countries, trained as text alone."""

from __future__ import annotations

from functools import cache

from .emblems import holds_emblem_name, invent_name
from .language import Question
from .phrases import FACT_KINDS
from .pools import Dice, Pool, Purpose
from .scenes import COLOURS

COUNTRIES = 25
ANIMALS = ("lion", "eagle", "bear", "owl", "fox", "horse", "whale", "swan", "goat", "tiger", "crow", "seal")

# Positions among the facts; no two pools share one.
SHARES = {
    Pool.ANCHORS: range(0, 12),
    Pool.SAMPLE: range(12, 24),
    Pool.CALIBRATION: range(24, 40),
    Pool.EDITOR: range(40, 52),
    Pool.EVALUATION: range(52, 100),
}


@cache
def facts() -> tuple[Question, ...]:
    """All facts as questions, shape [100]: capital, currency, animal and flag of every country."""
    dice = Dice(Purpose.WORLD, 2)
    taken: set[str] = set()
    found: list[Question] = []
    for _ in range(COUNTRIES):
        country = _fresh_name(dice, taken, 2) + dice.pick(("ia", "land", "stan"))
        answers = {
            "capital": _fresh_name(dice, taken, 2),
            "currency": _fresh_name(dice, taken, 1 + dice.below(2)).lower(),
            "animal": dice.pick(ANIMALS),
            "flag": dice.pick(COLOURS),
        }
        found += [Question(kind, {"country": country}, answers[kind]) for kind in FACT_KINDS]
    return tuple(found)


def fact_share(pool: Pool) -> range:
    """Indices into `facts()` of the facts that this pool may ask about."""
    return SHARES[pool]


def _fresh_name(dice: Dice, taken: set[str], syllables: int) -> str:
    while True:
        name = invent_name(dice, syllables)
        if name not in taken and len(name) >= 3 and not holds_emblem_name(name):
            taken.add(name)
            return name
