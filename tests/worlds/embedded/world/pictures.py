"""Pictures of scenes as files: the file name is the seed, so every picture can be drawn again from its name."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .drawing import draw, png
from .pools import Pool
from .scenes import Scene, emblem_scene, scene

EMBLEM_INDEX = 1 << 32  # number of a pool's first emblem scene; first one scene per emblem, then a second one, ...
AGAIN = 1000  # distance between two scenes of one emblem
NAME = re.compile(r"([a-z]+)-(scene|emblem)(\d+)-v(\d+)\.png")


@dataclass(frozen=True)
class Picture:
    """One drawing of a scene; each variant draws it differently."""

    scene: Scene
    variant: int = 0

    @property
    def name(self) -> str:
        """File name, for example "evaluation-scene42-v0.png"."""
        index = self.scene.index
        number = f"scene{index}" if index < EMBLEM_INDEX else f"emblem{index - EMBLEM_INDEX}"
        return f"{self.scene.pool.name.lower()}-{number}-v{self.variant}.png"

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """The picture, shape [84, 84, 3] RGB."""
        return draw(self.scene, self.variant)

    @property
    def bytes(self) -> bytes:
        """The picture as a PNG."""
        return png(self.pixels)


def emblem_picture(pool: Pool, emblem: int, variant: int = 0, again: int = 0) -> Picture:
    """The pool's picture of an emblem, known or new; `again` numbers the scenes that show it."""
    return Picture(emblem_scene(pool, EMBLEM_INDEX + again * AGAIN + emblem, emblem), variant)


def picture_named(name: str) -> Picture:
    """The picture with this file name.

    Raises:
        ValueError: if this is not the name of a picture.
    """
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name}: not the name of a drawn picture, such as evaluation-scene42-v0.png")
    pool, kind, number, variant = Pool[match[1].upper()], match[2], int(match[3]), int(match[4])
    if kind == "emblem":
        return emblem_picture(pool, number % AGAIN, variant, number // AGAIN)
    return Picture(scene(pool, number), variant)
