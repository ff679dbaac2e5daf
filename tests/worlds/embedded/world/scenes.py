"""Scenes: up to four things on a 3x3 grid, sometimes with a printed text or an emblem."""

from __future__ import annotations

from dataclasses import dataclass

from .emblems import KNOWN, emblems
from .pools import Dice, Pool, Purpose

SHAPES = (
    "circle",
    "square",
    "triangle",
    "diamond",
    "star",
    "cross",
    "ring",
    "heart",
    "moon",
    "arrow",
    "hourglass",
    "frame",
)
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
SIZES = ("small", "large")
PLACES = (
    "top left",
    "top center",
    "top right",
    "middle left",
    "middle center",
    "middle right",
    "bottom left",
    "bottom center",
    "bottom right",
)
CORNERS = (0, 2, 6, 8)  # possible places of an emblem
WORDS = (
    "taxi", "exit", "open", "stop", "cafe", "bank", "park", "sale", "ship", "farm", "golf", "milk",
    "fish", "bike", "gold", "jazz", "kiwi", "lamp", "moss", "nest", "oven", "rain", "snow", "tent",
    "vote", "wolf", "yoga", "zero", "bus", "car", "zoo", "gym", "hut", "ice", "jam", "key",
)  # fmt: skip


@dataclass(frozen=True)
class Thing:
    """One drawn object; indices into SHAPES, COLOURS, SIZES and PLACES."""

    shape: int
    colour: int
    size: int
    place: int


@dataclass(frozen=True)
class Scene:
    """Content of a picture, and its seed; things are in reading order of their places."""

    pool: Pool
    index: int
    things: tuple[Thing, ...]
    text: str = ""  # "7", "3+4" or a word
    row: int = -1  # grid row that the text fills, in [0, 3)
    emblem: int = -1  # index into emblems()
    corner: int = -1  # place of the emblem, one of CORNERS

    @property
    def summands(self) -> tuple[int, int] | None:
        """The two printed numbers, if the text is a sum."""
        left, plus, right = self.text.partition("+")
        return (int(left), int(right)) if plus else None


def scene(pool: Pool, index: int) -> Scene:
    """Scene number `index` of a pool; six in ten show only things, two also a text, two also an emblem."""
    dice = Dice(Purpose.SCENE, pool, index)
    kind = dice.below(10)
    if kind < 6:
        return Scene(pool, index, _things(dice, dice.pick((1, 1, 2, 2, 2, 3, 3, 3, 4, 4)), range(9)))
    if kind < 8:
        return _with_text(dice, pool, index)
    return _with_emblem(dice, pool, index, dice.below(KNOWN))


def text_scene(pool: Pool, index: int) -> Scene:
    """Scene number `index`, always with a printed text."""
    return _with_text(Dice(Purpose.SCENE, pool, index, 1), pool, index)


def emblem_scene(pool: Pool, index: int, emblem: int) -> Scene:
    """Scene number `index`, always with this emblem, known or new."""
    return _with_emblem(Dice(Purpose.SCENE, pool, index, 2), pool, index, emblem)


def _things(dice: Dice, n: int, free: range | list[int]) -> tuple[Thing, ...]:
    """`n` things on places in `free`; one in four repeats an earlier shape, one in four a colour."""
    things: list[Thing] = []
    for place in sorted(dice.some(free, n)):
        shape, colour = dice.below(len(SHAPES)), dice.below(len(COLOURS))
        if things and dice.chance(25):
            shape = dice.pick(things).shape
        if things and dice.chance(25):
            colour = dice.pick(things).colour
        things.append(Thing(shape, colour, dice.below(2), place))
    return tuple(things)


def _with_text(dice: Dice, pool: Pool, index: int) -> Scene:
    kind = dice.below(5)
    digit = str(dice.below(10))
    text = digit if kind == 0 else f"{digit}+{dice.below(10)}" if kind < 3 else dice.pick(WORDS)
    row = dice.below(3)
    free = [place for place in range(9) if place // 3 != row]
    return Scene(pool, index, _things(dice, dice.pick((0, 1, 1, 2, 2, 3)), free), text=text, row=row)


def _with_emblem(dice: Dice, pool: Pool, index: int, emblem: int) -> Scene:
    corner = dice.pick(CORNERS)
    row, column = min(corner // 3, 1), min(corner % 3, 1)
    covered = {(row + i) * 3 + column + j for i in (0, 1) for j in (0, 1)}
    free = [place for place in range(9) if place not in covered]
    things = _things(dice, dice.pick((0, 1, 1, 2)), free)
    return Scene(pool, index, things, emblem=emblem, corner=corner)


def emblem_name(scene: Scene) -> str:
    """The name of the scene's emblem."""
    return emblems()[scene.emblem].name
