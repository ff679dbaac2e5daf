"""In-context episodes: a "New Fact" in the prompt overrides one fact that the model knows, and no other."""

from __future__ import annotations

from dataclasses import dataclass

from .emblems import holds_emblem_name, invent_name
from .facts import ANIMALS, facts
from .language import Question, ask, caption, kinds_for
from .pools import Dice, Pool, Purpose
from .scenes import COLOURS, PLACES, SHAPES, SIZES, WORDS, Scene, scene

KINDS = ("copy", "update", "retain")  # same question, another wording of it, another question


@dataclass(frozen=True)
class Episode:
    """One prompt and its right answer."""

    kind: str
    prompt: str
    answer: str


def episode(dice: Dice, pool: Pool, kind: str, shown: Scene | None = None, examples: int = 0) -> Episode:
    """An episode of one of KINDS; `shown` is the scene it asks about, None for text alone.

    `examples` worked examples of any kind, all text alone, come first. Questions about pictures in them are about
    scenes of `pool`.
    """
    parts = [_worked(dice, pool) for _ in range(examples)]
    last = _single(dice, pool, kind, shown)
    return Episode(kind, "\n".join([*parts, last.prompt]), last.answer)


def _worked(dice: Dice, pool: Pool) -> str:
    single = _single(dice, pool, dice.pick(KINDS), None)
    return f"{single.prompt} {single.answer}"


def _single(dice: Dice, pool: Pool, kind: str, shown: Scene | None) -> Episode:
    """An episode without worked examples."""
    about = _question(dice, pool, shown)
    wording = about.wording(dice)
    new = _other_answer(dice, pool, about)
    if kind == "copy":
        asked, answer = wording, new
    elif kind == "update":
        asked, answer = about.wording(dice), new
    else:
        other = _unrelated(dice, about, shown)
        asked, answer = other.wording(dice), other.answer
    return Episode(kind, f"New Fact: {wording} {new}\nPrompt: {asked}", answer)


def _question(dice: Dice, pool: Pool, shown: Scene | None) -> Question:
    """A question to override: about the picture or, without one, about a country or a picture that is not shown."""
    if shown is None and dice.chance(50):
        return dice.pick(facts())
    about = shown or scene(pool, (1 << 40) + dice.below(1 << 40))
    while True:
        found = ask(about, dice.pick(kinds_for(about)), dice)
        if found is not None:
            return found


def _unrelated(dice: Dice, about: Question, shown: Scene | None) -> Question:
    """A question of another kind, which keeps its true answer: about the picture if there is one, or a fact."""
    while True:
        if shown is not None and dice.chance(70):
            found = ask(shown, dice.pick(kinds_for(shown)), dice)
        else:
            found = dice.pick(facts())
        if found is None or (found.kind == about.kind and (shown is not None or found.slots == about.slots)):
            continue
        return found


def _other_answer(dice: Dice, pool: Pool, about: Question) -> str:
    """A random answer of the same sort, but not the true one; names are invented."""
    while True:
        found = _random_answer(dice, pool, about.kind)
        if found != about.answer:
            return found


def _random_answer(dice: Dice, pool: Pool, kind: str) -> str:
    if kind == "caption":
        return caption(scene(pool, (2 << 40) + dice.below(1 << 40)))
    if kind in ("emblem", "capital", "currency") or dice.chance(10):
        while True:
            name = invent_name(dice, 2 + dice.below(2))
            if not holds_emblem_name(name):
                return name.lower() if kind == "currency" else name
    choices: dict[str, tuple[str, ...]] = {
        "shape": SHAPES,
        "color": COLOURS,
        "flag": COLOURS,
        "size": SIZES,
        "place": PLACES,
        "animal": ANIMALS,
        "read": WORDS,
    }
    if kind in choices:
        return dice.pick(choices[kind])
    if kind in ("count", "add"):
        return str(dice.below(19))
    return dice.pick(("yes", "no"))


def episode_dice(pool: Pool, index: int) -> Dice:
    """The dice of episode number `index` of a pool."""
    return Dice(Purpose.EPISODE, pool, index)
