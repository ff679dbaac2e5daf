"""A 5x7 bitmap alphabet, so that printed text does not depend on installed fonts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 5, 7

# Seven rows a character, top first; the five low bits of a number are the pixels, leftmost highest.
ROWS: dict[str, tuple[int, ...]] = {
    "0": (14, 17, 19, 21, 25, 17, 14),
    "1": (4, 12, 4, 4, 4, 4, 14),
    "2": (14, 17, 1, 6, 8, 16, 31),
    "3": (31, 2, 4, 2, 1, 17, 14),
    "4": (2, 6, 10, 18, 31, 2, 2),
    "5": (31, 16, 30, 1, 1, 17, 14),
    "6": (6, 8, 16, 30, 17, 17, 14),
    "7": (31, 1, 2, 4, 8, 8, 8),
    "8": (14, 17, 17, 14, 17, 17, 14),
    "9": (14, 17, 17, 15, 1, 2, 12),
    "+": (0, 4, 4, 31, 4, 4, 0),
    "a": (14, 17, 17, 31, 17, 17, 17),
    "b": (30, 17, 17, 30, 17, 17, 30),
    "c": (14, 17, 16, 16, 16, 17, 14),
    "d": (28, 18, 17, 17, 17, 18, 28),
    "e": (31, 16, 16, 30, 16, 16, 31),
    "f": (31, 16, 16, 30, 16, 16, 16),
    "g": (14, 17, 16, 23, 17, 17, 15),
    "h": (17, 17, 17, 31, 17, 17, 17),
    "i": (14, 4, 4, 4, 4, 4, 14),
    "j": (7, 2, 2, 2, 2, 18, 12),
    "k": (17, 18, 20, 24, 20, 18, 17),
    "l": (16, 16, 16, 16, 16, 16, 31),
    "m": (17, 27, 21, 21, 17, 17, 17),
    "n": (17, 25, 21, 19, 17, 17, 17),
    "o": (14, 17, 17, 17, 17, 17, 14),
    "p": (30, 17, 17, 30, 16, 16, 16),
    "q": (14, 17, 17, 17, 21, 18, 13),
    "r": (30, 17, 17, 30, 20, 18, 17),
    "s": (15, 16, 16, 14, 1, 1, 30),
    "t": (31, 4, 4, 4, 4, 4, 4),
    "u": (17, 17, 17, 17, 17, 17, 14),
    "v": (17, 17, 17, 17, 17, 10, 4),
    "w": (17, 17, 17, 21, 21, 27, 17),
    "x": (17, 17, 10, 4, 10, 17, 17),
    "y": (17, 17, 10, 4, 4, 4, 4),
    "z": (31, 1, 2, 4, 8, 16, 31),
}


def bitmap(text: str, scale: int) -> npt.NDArray[np.bool_]:
    """`text` as filled pixels, shape [7 * scale, (6 * len(text) - 1) * scale]."""
    columns = np.zeros((HEIGHT, len(text) * (WIDTH + 1) - 1), dtype=np.bool_)
    for position, character in enumerate(text):
        for y, row in enumerate(ROWS[character]):
            for x in range(WIDTH):
                columns[y, position * (WIDTH + 1) + x] = bool(row >> (WIDTH - 1 - x) & 1)
    return columns.repeat(scale, axis=0).repeat(scale, axis=1)
