"""Shipped pictures: a still's file name is its seed, so any of them can be drawn again from its name."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from world.drawing import picture, png
from world.pools import Pool
from world.scenes import Scene, emblem_scene, scene

EMBLEM_INDEX = 1 << 32  # emblem scenes of a pool are numbered from here, one an emblem, then one more an emblem, ...
AGAIN = 1000  # from one scene of an emblem to its next
NAME = re.compile(r"([a-z]+)-(scene|emblem)(\d+)-v(\d+)\.png")


@dataclass(frozen=True)
class Still:
    """One picture of a scene."""

    shown: Scene
    variant: int = 0

    @property
    def name(self) -> str:
        """File name, for example "evaluation-scene42-v0.png"."""
        index = self.shown.index
        number = f"scene{index}" if index < EMBLEM_INDEX else f"emblem{index - EMBLEM_INDEX}"
        return f"{self.shown.pool.name.lower()}-{number}-v{self.variant}.png"

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """The picture, shape [84, 84, 3] RGB."""
        return picture(self.shown, self.variant)

    @property
    def bytes(self) -> bytes:
        """The picture as a PNG."""
        return png(self.pixels)


def emblem_still(pool: Pool, emblem: int, variant: int = 0, again: int = 0) -> Still:
    """The pool's picture of an emblem, known or new, or its scene number `again` that shows it."""
    return Still(emblem_scene(pool, EMBLEM_INDEX + again * AGAIN + emblem, emblem), variant)


def still(name: str) -> Still:
    """The still of this file name.

    Raises:
        ValueError: when the name is no still's.
    """
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name}: not the name of a still")
    pool, kind, number, variant = Pool[match[1].upper()], match[2], int(match[3]), int(match[4])
    if kind == "emblem":
        return emblem_still(pool, number % AGAIN, variant, number // AGAIN)
    return Still(scene(pool, number), variant)
