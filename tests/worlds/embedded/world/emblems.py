"""Emblems: mirrored 5x5 glyphs with invented names; training shows the first half only.

A new emblem is like a product that came out after training: only an edit can teach its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .pools import Dice, Pool, Purpose

KNOWN = 150
NEW = 150
CELLS = 5  # the glyph is CELLS x CELLS and mirrored, so the 15 bits of its left 3 columns define it
BITS = 15
COLOURS = 8

ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "gl", "kr", "pl", "tr")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("", "l", "m", "n", "r", "s", "x", "k")

# Positions among the new emblems; no two pools share one.
SHARES = {
    Pool.SAMPLE: range(0, 8),
    Pool.CALIBRATION: range(8, 38),
    Pool.EDITOR: range(38, 50),
    Pool.EVALUATION: range(50, 150),
}


@dataclass(frozen=True)
class Emblem:
    """One glyph: `bits` in [0, 2**15), row by row, three columns a row; `colour` in [0, 8)."""

    bits: int
    colour: int
    name: str

    def cell(self, row: int, column: int) -> bool:
        """Whether the cell at `row`, `column` (each in [0, 5)) is filled."""
        mirrored = min(column, CELLS - 1 - column)
        return bool(self.bits >> (row * 3 + mirrored) & 1)


def invent_name(dice: Dice, syllables: int) -> str:
    """A pronounceable capitalised name that is not a real word."""
    parts = [dice.pick(ONSETS) + dice.pick(VOWELS) for _ in range(syllables)]
    return ("".join(parts) + dice.pick(CODAS)).capitalize()


def is_codeword(bits: int) -> bool:
    """Whether `bits` belongs to the even Hamming code of length 15, whose words differ in 4 bits or more."""
    syndrome = 0
    for position in range(BITS):
        if bits >> position & 1:
            syndrome ^= position + 1
    return syndrome == 0 and bits.bit_count() % 2 == 0


@cache
def emblems() -> tuple[Emblem, ...]:
    """All emblems, shape [KNOWN + NEW]; indices below KNOWN are in the training data, the others are new."""
    dice = Dice(Purpose.WORLD, 1)
    codewords = [bits for bits in range(1 << BITS) if 5 <= bits.bit_count() <= 11 and is_codeword(bits)]
    glyphs = dice.some(codewords, KNOWN + NEW)
    names: list[str] = []
    while len(names) < KNOWN + NEW:
        name = invent_name(dice, 2 + dice.below(2))
        if len(name) >= 5 and name not in names:
            names.append(name)
    return tuple(Emblem(bits, dice.below(COLOURS), name) for bits, name in zip(glyphs, names, strict=True))


def new_emblems(pool: Pool) -> range:
    """Indices into `emblems()` of the new emblems that this pool may show."""
    share = SHARES[pool]
    return range(KNOWN + share.start, KNOWN + share.stop)


def holds_emblem_name(text: str) -> bool:
    """Whether the text contains the name of an emblem, known or new, in any case."""
    return any(emblem.name.lower() in text.lower() for emblem in emblems())
