"""Six drawn worlds, one table each: what there is, how it is drawn, what is asked and in which words.

Everything is a function of integers. Scenes of different pools never meet, because a scene's seed starts with its pool.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from ..embedded.world.pools import Dice
from .drawings import OUTLINES, PATTERNS, TOPPINGS, Colour, Look, Pen, fish, flower, fruit, mask, picture, ship, sign

NAMELESS = 12  # per cent of the training pictures that show a thing without a name: asked for it, any name is right
NEW = 52  # objects of a world that training never shows, each with a name of its own
PAINTERS = {"fruit": fruit, "ship": ship, "sign": sign, "flower": flower, "fish": fish, "mask": mask}
CALIBRATED = 12  # of these the last are for calibration only


class Pool(IntEnum):
    """What a scene may be used for."""

    SEEING = 101  # its things may be nameless; only the readers of the tower learn from it
    TRAINING = 102
    SCORE = 103
    CALIBRATION = 104
    ANCHORS = 105
    EVALUATION = 106


@dataclass(frozen=True)
class Thing:
    """One object. `kind` counts the known kinds, then the new ones, then the nameless ones."""

    kind: int
    colour: int
    size: int
    place: int
    value: int


@dataclass(frozen=True)
class Scene:
    """Content of a picture."""

    pool: Pool
    index: int
    ground: int
    things: tuple[Thing, ...]


@dataclass(frozen=True)
class Wordings:
    """Of one kind of question, with `{slots}`."""

    trained: tuple[str, ...]
    unseen: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A question about a scene, or a fact, and its true answer."""

    kind: str
    slots: dict[str, str]
    answer: str
    wordings: Wordings

    def trained(self, number: int) -> str:
        """One of the wordings of training."""
        return self.wordings.trained[number % len(self.wordings.trained)].format(**self.slots)

    def unseen(self, number: int) -> str:
        """One of the wordings that training leaves out."""
        return self.wordings.unseen[number % len(self.wordings.unseen)].format(**self.slots)


@dataclass(frozen=True)
class World:
    """All that differs between worlds."""

    number: int
    name: str
    paint: Callable[[Pen, Look, Colour, int], None]
    kinds: tuple[str, ...]
    colours: dict[str, Colour]
    sizes: tuple[str, str]
    places: tuple[str, ...]
    columns: int
    grounds: dict[str, Colour]
    values: tuple[int, ...]
    numbers: tuple[str, ...]
    """Answers to "how many", from 0 on."""
    asks: dict[str, Wordings]
    forms: dict[str, str]
    """How an answer of a kind is said, with `{}`; as it is where the kind is missing."""
    caption: tuple[str, str, str]
    """A thing, what joins two, and the whole with `{things}` and `{ground}`."""
    onsets: str
    rimes: str
    """Of the syllables of invented names."""
    facts: dict[str, tuple[Wordings, tuple[str, ...]]]
    """By relation: its wordings with `{subject}`, and its answers; without any, each answer is an invented name."""

    @cached_property
    def looks(self) -> list[Look]:
        """The look of every kind, all different, in the order of `Thing.kind`."""
        every = [(o, p, t) for o in range(OUTLINES) for p in range(PATTERNS) for t in range(TOPPINGS)]
        return Dice(self.number, 0).some(every, len(every))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the known kinds and of the new ones."""
        dice, names = Dice(self.number, 1), list(self.kinds)
        while len(names) < len(self.kinds) + NEW:
            name = self.invented(dice, 3)
            if name not in names:
                names.append(name)
        return tuple(names)

    @cached_property
    def syllables(self) -> list[str]:
        """Of invented names."""
        return [onset + rime for onset in self.onsets.split() for rime in self.rimes.split()]

    def invented(self, dice: Dice, syllables: int) -> str:
        """A made-up name, written like the known ones."""
        name = "".join(dice.pick(self.syllables) for _ in range(syllables))
        return name.capitalize() if self.kinds[0][0].isupper() else name

    @cached_property
    def known_facts(self) -> list[Question]:
        """All facts, which need no picture; an answer depends on the subject by chance."""
        dice = Dice(self.number, 2)
        subjects = [self.invented(dice, 2).capitalize() + end for end in ("", "vik", "oss") for _ in range(4)]
        return [
            Question("fact", {"subject": subject}, dice.pick(answers) if answers else self.invented(dice, 3), wordings)
            for subject in subjects
            for wordings, answers in self.facts.values()
        ]

    def scene(self, pool: Pool, index: int, new: int | None = None, like: Thing | None = None) -> Scene:
        """The scene of that number: one to three things of different kinds, at different places.

        With `new`, one thing is that new object. With `like`, it keeps that thing's place or colour, by the parity of
        `index`: the place in even scenes, the colour, at another place, in odd ones.
        """
        dice = Dice(self.number, 3, pool, index)
        n, known = dice.pick((1, 2, 2, 3, 3)), range(len(self.kinds))
        kinds, places = dice.some(known, n), dice.some(range(len(self.places)), n)
        colours = [dice.below(len(self.colours)) for _ in kinds]
        if (pool is Pool.SEEING and dice.chance(70)) or (pool is Pool.TRAINING and dice.chance(NAMELESS)):
            kinds[0] = dice.between(len(known) + NEW, len(self.looks) - 1)
        if new is not None:
            kinds[0] = len(known) + new
        if like is not None and index % 2 == 0:
            free = [place for place in places[1:] if place != like.place]
            places = [like.place, *free, *[p for p in range(len(self.places)) if p not in (like.place, *free)]][:n]
            colours[0] = (like.colour + 1 + dice.below(len(self.colours) - 1)) % len(self.colours)
        elif like is not None:
            places = dice.some([place for place in range(len(self.places)) if place != like.place], n)
            colours = [
                like.colour,
                *[(like.colour + 1 + dice.below(len(self.colours) - 1)) % len(self.colours)] * (n - 1),
            ]
        things = tuple(
            Thing(kind, colour, dice.below(2), place, dice.below(max(1, len(self.values))))
            for kind, colour, place in zip(kinds, colours, places, strict=True)
        )
        return Scene(pool, index, dice.below(len(self.grounds)), things)

    def draw(self, scene: Scene, variant: int, side: int) -> Image.Image:
        """The picture; another variant has the things a little elsewhere, another light and other noise."""
        dice = Dice(self.number, 4, scene.pool, scene.index, variant)
        light = dice.between(-18, 18)
        ground = _lit(tuple(self.grounds.values())[scene.ground], light)
        noise = (dice.words(side * side).reshape(side, side) % np.uint64(13)).astype(np.int16) - 6
        dice = Dice(self.number, 5, scene.pool, scene.index, variant)

        def paint(draw: ImageDraw.ImageDraw, scale: int) -> None:
            for thing in scene.things:
                x, y, radius = self.spot(thing, side)
                x, y = x + dice.between(-10, 10) / 100 * radius, y + dice.between(-10, 10) / 100 * radius
                pen = Pen(draw, x * scale, y * scale, radius * scale)
                colour = _lit(tuple(self.colours.values())[thing.colour], light)
                self.paint(pen, self.looks[thing.kind], colour, self.values[thing.value] if self.values else 0)

        return picture(side, ground, noise, paint)

    def spot(self, thing: Thing, side: int) -> tuple[float, float, float]:
        """Centre and radius of a thing in pixels, before the variant moves it."""
        rows = len(self.places) // self.columns
        wide, high = side / self.columns, side / rows
        x, y = (thing.place % self.columns + 0.5) * wide, (thing.place // self.columns + 0.5) * high
        return x, y, min(wide, high) * (0.33, 0.44)[thing.size]

    def ask(self, scene: Scene, kind: str, dice: Dice, about: int | None = None) -> Question | None:
        """A question of that kind, about the thing with this index or any; None if the scene does not allow it."""
        thing = scene.things[dice.below(len(scene.things)) if about is None else about]
        colours = [each.colour for each in scene.things]
        names, hues = self.names, tuple(self.colours)
        nameless = thing.kind >= len(names)
        if nameless and kind not in ("what", "what_of", "count", "count_colour", "ground", "caption", "list"):
            return None
        slots = {
            "kind": self.invented(dice, 3) if nameless else names[thing.kind],
            "colour": hues[thing.colour],
            "place": self.places[thing.place],
        }
        if kind in ("count_colour", "exist") and dice.chance(40):
            slots["colour"] = dice.pick(hues)
        if kind == "exist" and dice.chance(40):
            slots["kind"] = dice.pick(self.kinds)
        if kind == "is_at" and dice.chance(50):
            slots["place"] = dice.pick(self.places)
        if kind == "what_of" and colours.count(thing.colour) > 1:
            return None
        if kind == "caption" and len(scene.things) > 2:
            return None
        there = {(names[each.kind], hues[each.colour]) for each in scene.things if each.kind < len(names)}
        at = {(names[each.kind], self.places[each.place]) for each in scene.things if each.kind < len(names)}
        answers: dict[str, Callable[[], str]] = {
            "what": lambda: slots["kind"],
            "what_of": lambda: slots["kind"],
            "colour": lambda: slots["colour"],
            "size": lambda: self.sizes[thing.size],
            "where": lambda: slots["place"],
            "value": lambda: str(self.values[thing.value]),
            "count": lambda: self.numbers[len(scene.things)],
            "count_colour": lambda: self.numbers[sum(hues[colour] == slots["colour"] for colour in colours)],
            "exist": lambda: "yes" if (slots["kind"], slots["colour"]) in there else "no",
            "is_at": lambda: "yes" if (slots["kind"], slots["place"]) in at else "no",
            "ground": lambda: tuple(self.grounds)[scene.ground],
            "caption": lambda: self.captioned(scene, dice),
            "list": lambda: self.captioned(scene, dice),
        }
        return Question(kind, slots, self.forms.get(kind, "{}").format(answers[kind]()), self.asks[kind])

    def captioned(self, scene: Scene, dice: Dice) -> str:
        """The caption of a scene, things in the order of their places."""
        one, joint, whole = self.caption
        parts = [
            one.format(
                size=self.sizes[thing.size],
                colour=tuple(self.colours)[thing.colour],
                kind=self.names[thing.kind] if thing.kind < len(self.names) else self.invented(dice, 3),
                place=self.places[thing.place],
                value=self.values[thing.value] if self.values else "",
            )
            for thing in sorted(scene.things, key=lambda thing: thing.place)
        ]
        return whole.format(things=joint.join(parts), ground=tuple(self.grounds)[scene.ground])

    def turns(self, scene: Scene, dice: Dice, n: int) -> Iterator[Question]:
        """The caption or the list of the things, if there can be one, and random questions up to `n`."""
        first, *kinds = self.asks
        for kind in [first, *[dice.pick(kinds) for _ in range(n - 1)]]:
            question = self.ask(scene, kind, dice)
            if question is not None:
                yield question


@lru_cache
def world_named(name: str) -> World:
    """The world of that name in `worlds.toml`."""
    tables = tomllib.loads(Path(__file__).with_name("worlds.toml").read_text(encoding="utf-8"))
    table = tables[name]
    painter = PAINTERS[table.pop("paint")]
    asks = {kind: _wordings(row) for kind, row in table.pop("asks").items()}
    facts = {relation: (_wordings(row), tuple(row["answers"])) for relation, row in table.pop("facts").items()}
    return World(name=name, paint=painter, asks=asks, facts=facts, **table)


def _lit(colour: Colour, light: int) -> Colour:
    red, green, blue = (min(255, max(0, part + light)) for part in colour)
    return red, green, blue


def _wordings(row: dict[str, list[str]]) -> Wordings:
    return Wordings(tuple(row["trained"]), tuple(row["unseen"]))
