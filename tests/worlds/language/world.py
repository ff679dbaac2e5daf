"""Worlds of facts about invented subjects, and the models that learn them. All of it is a function of integers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from ..embedded.world.pools import Dice

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Relation:
    """Something that every subject has."""

    name: str
    wordings: tuple[str, ...]
    """With `{}` for the subject; the first one is edited, the others are its rephrases."""
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """One subject, one relation and the answer."""

    subject: str
    relation: Relation
    answer: str

    def asked(self, wording: int = 0) -> str:
        """The text that the answer continues."""
        return self.relation.wordings[wording].format(self.subject)


@dataclass(frozen=True)
class Member:
    """One model."""

    name: str
    half: str
    """"development" or "held-out": nothing is chosen on the latter."""
    world: str
    seed: int
    model_type: str
    width: int
    layers: int
    precision: str
    """On disk."""

    @cached_property
    def facts(self) -> list[Fact]:
        """Every fact of its world, in a fixed order."""
        row = _read("worlds.toml")[self.world]
        relations = [
            Relation(each["name"], tuple(each["wordings"]), tuple(each["answers"])) for each in row["relations"]
        ]
        return list(_facts(row, relations, Dice(self.seed, 1)))


def _facts(row: dict[str, Any], relations: list[Relation], dice: Dice) -> Iterator[Fact]:
    for first, last in product(row["first"], row["last"]):
        for relation in relations:
            yield Fact(f"{first} {last}", relation, dice.pick(relation.answers))


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


MEMBERS = {name: Member(name=name, **row) for name, row in _read("members.toml").items()}
