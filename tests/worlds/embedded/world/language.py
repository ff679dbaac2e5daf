"""Questions about scenes, each with one right answer, and captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .emblems import KNOWN, emblems
from .phrases import CAPTION_PROMPT, PICTURE_KINDS, WORDINGS, YES_NO_HINT, YES_NO_KINDS
from .pools import Dice, Purpose
from .scenes import COLOURS, PLACES, SHAPES, SIZES, WORDS, Scene, Thing, emblem_name

PLURALS = {"cross": "crosses", "hourglass": "hourglasses"}
WORDING_DRAWS = 2520  # a multiple of every number of wordings up to ten
ROWS = ("top", "middle", "bottom")


@dataclass(frozen=True)
class Question:
    """A question without its wording, and its answer."""

    kind: str
    slots: Mapping[str, str]
    answer: str

    def trained(self, number: int) -> str:
        """One of the wordings that occur in training, counted modulo their number."""
        wordings = WORDINGS[self.kind].trained
        return wordings[number % len(wordings)].format(**self.slots)

    def unseen(self, number: int) -> str:
        """One of the wordings that never occur in training."""
        wordings = WORDINGS[self.kind].unseen
        return wordings[number % len(wordings)].format(**self.slots)

    def wording(self, dice: Dice) -> str:
        """A random trained wording: mostly CAPTION_PROMPT for captions, often with the hint for yes/no questions."""
        if self.kind == "caption" and dice.chance(60):
            return CAPTION_PROMPT
        hint = YES_NO_HINT if self.kind in YES_NO_KINDS and dice.chance(35) else ""
        return self.trained(dice.below(WORDING_DRAWS)) + hint


def plural(noun: str) -> str:
    """`noun` in the plural."""
    return PLURALS.get(noun, noun + "s")


def with_article(noun: str) -> str:
    """`noun` after "a" or "an"."""
    return ("an " if noun[0] in "aeiou" or noun.startswith("hour") else "a ") + noun


def kinds_for(scene: Scene) -> tuple[str, ...]:
    """The kinds of question that make sense for this scene."""
    kinds = ["count", "exist", "is_count", "caption"]
    if scene.things:
        kinds += ["shape", "color", "size", "place", "is_place", "is_color"]
    if scene.text:
        kinds += ["read", "is_text"]
    if scene.summands is not None:
        kinds += ["add", "is_sum"]
    if scene.emblem >= 0:
        kinds += ["emblem", "is_emblem"]
    return tuple(kind for kind in PICTURE_KINDS if kind in kinds)


def ask(scene: Scene, kind: str, dice: Dice) -> Question | None:
    """A random question of this kind about the scene, or None if it would be ambiguous."""
    if kind == "caption":
        return Question(kind, {}, caption(scene))
    if kind in ("shape", "color", "size", "place"):
        return _attribute(scene, kind, dice)
    if kind in ("is_place", "is_color"):
        return _is_attribute(scene, kind, dice)
    if kind == "exist":
        return _exist(scene, dice)
    if kind in ("count", "is_count"):
        return _count(scene, kind, dice)
    if kind in ("read", "is_text"):
        return _read(scene, kind, dice)
    if kind in ("add", "is_sum"):
        return _add(scene, kind, dice)
    return _emblem(scene, kind, dice)


def posed(scene: Scene, kind: str) -> tuple[Question, str] | None:
    """The question of this kind that suites ask about the scene, and its wording; the same at every call."""
    if kind not in kinds_for(scene):
        return None
    dice = Dice(Purpose.SELECTION, scene.pool, scene.index, PICTURE_KINDS.index(kind))
    question = ask(scene, kind, dice)
    if question is None:
        return None
    return question, question.trained(0 if kind == "caption" else dice.below(WORDING_DRAWS))


def caption(scene: Scene) -> str:
    """The only right caption: the more things, the fewer details, so that it has about 6 to 12 words."""
    full = [f"{SIZES[t.size]} {COLOURS[t.colour]} {SHAPES[t.shape]}" for t in scene.things]
    if scene.text:
        what = "the word" if scene.text.isalpha() else "the sum" if "+" in scene.text else "the number"
        return f"{what} {scene.text} {_beside(full, ROWS[scene.row])}"
    if scene.emblem >= 0:
        return f"the emblem {emblem_name(scene)} {_beside(full, PLACES[scene.corner])}"
    if len(scene.things) == 1:
        return f"{with_article(full[0])} at the {PLACES[scene.things[0].place]} of the picture"
    if len(scene.things) == 2:
        return f"{with_article(full[0])} and {with_article(full[1])}"
    if len(scene.things) == 3:
        short = [with_article(f"{COLOURS[t.colour]} {SHAPES[t.shape]}") for t in scene.things]
    else:
        short = [with_article(SHAPES[t.shape]) for t in scene.things]
    return ", ".join(short[:-1]) + " and " + short[-1]


def _beside(full: list[str], where: str) -> str:
    if not full:
        return f"at the {where} of the picture"
    return f"with {with_article(full[0])}" + (" and more" if len(full) > 1 else "")


def _references(scene: Scene, thing: Thing, hidden: str) -> list[str]:
    """Expressions that refer to this thing only and do not mention the attribute `hidden`."""
    shape, colour = SHAPES[thing.shape], COLOURS[thing.colour]
    plain = not scene.text and scene.emblem < 0
    found = []
    if hidden != "shape" and sum(t.shape == thing.shape for t in scene.things) == 1:
        found.append(f"the {shape}")
    if hidden not in ("shape", "color"):
        same = sum((t.shape, t.colour) == (thing.shape, thing.colour) for t in scene.things)
        found += [f"the {colour} {shape}"] if same == 1 else []
    if hidden != "color" and plain and sum(t.colour == thing.colour for t in scene.things) == 1:
        found.append(f"the {colour} object")
    if hidden != "place":
        found.append(f"the object at the {PLACES[thing.place]}")
    return found


def _attribute(scene: Scene, kind: str, dice: Dice) -> Question | None:
    thing = dice.pick(scene.things)
    references = _references(scene, thing, kind)
    if not references:
        return None
    return Question(kind, {"ref": dice.pick(references)}, _value(thing, kind))


def _value(thing: Thing, kind: str) -> str:
    return {
        "shape": SHAPES[thing.shape],
        "color": COLOURS[thing.colour],
        "size": SIZES[thing.size],
        "place": PLACES[thing.place],
    }[kind]


def _is_attribute(scene: Scene, kind: str, dice: Dice) -> Question | None:
    attribute = kind.removeprefix("is_")
    thing = dice.pick(scene.things)
    references = _references(scene, thing, attribute)
    if not references:
        return None
    truth = _value(thing, attribute)
    values = PLACES if attribute == "place" else COLOURS
    said = truth if dice.chance(50) else dice.pick([value for value in values if value != truth])
    return Question(kind, {"ref": dice.pick(references), attribute: said}, _yes_no(said == truth))


def _exist(scene: Scene, dice: Dice) -> Question:
    shapes = {t.shape for t in scene.things}
    pairs = {(t.shape, t.colour) for t in scene.things}
    if scene.things and dice.chance(50):
        thing = dice.pick(scene.things)
        noun = SHAPES[thing.shape]
        return _exists(f"{COLOURS[thing.colour]} {noun}" if dice.chance(60) else noun, True)
    if dice.chance(40):
        return _exists(SHAPES[dice.pick([s for s in range(len(SHAPES)) if s not in shapes])], False)
    near = [(s, c) for s in shapes for c in range(len(COLOURS)) if (s, c) not in pairs]
    far = [(s, c) for s in range(len(SHAPES)) for c in range(len(COLOURS)) if (s, c) not in pairs]
    shape, colour = dice.pick(sorted(near) if near and dice.chance(60) else far)
    return _exists(f"{COLOURS[colour]} {SHAPES[shape]}", False)


def _exists(noun: str, answer: bool) -> Question:
    return Question("exist", {"what": with_article(noun)}, _yes_no(answer))


def _count(scene: Scene, kind: str, dice: Dice) -> Question:
    plain = not scene.text and scene.emblem < 0
    choice = dice.below(3 if plain else 1)
    seen = scene.things and dice.chance(80)
    if choice == 0:
        shape = dice.pick(scene.things).shape if seen else dice.below(len(SHAPES))
        what, n = plural(SHAPES[shape]), sum(t.shape == shape for t in scene.things)
    elif choice == 1:
        colour = dice.pick(scene.things).colour if seen else dice.below(len(COLOURS))
        what, n = f"{COLOURS[colour]} objects", sum(t.colour == colour for t in scene.things)
    else:
        what, n = "objects", len(scene.things)
    if kind == "count":
        return Question(kind, {"what": what}, str(n))
    said = n if dice.chance(50) else dice.pick([m for m in range(5) if m != n and abs(m - n) < 3])
    return Question(kind, {"what": what, "n": str(said)}, _yes_no(said == n))


def _read(scene: Scene, kind: str, dice: Dice) -> Question:
    if kind == "read":
        return Question(kind, {}, scene.text)
    said = (
        scene.text if dice.chance(50) else dice.pick([text for text in _texts_like(scene, dice) if text != scene.text])
    )
    return Question(kind, {"word": said}, _yes_no(said == scene.text))


def _texts_like(scene: Scene, dice: Dice) -> list[str]:
    if scene.text.isalpha():
        return list(WORDS)
    if scene.summands is None:
        return [str(n) for n in range(10)]
    left, right = scene.summands
    return [f"{left}+{n}" for n in range(10)] + [f"{n}+{right}" for n in range(10)]


def _add(scene: Scene, kind: str, dice: Dice) -> Question | None:
    if scene.summands is None:
        return None
    total = sum(scene.summands)
    if kind == "add":
        return Question(kind, {}, str(total))
    said = total if dice.chance(50) else dice.pick([n for n in range(19) if n != total and abs(n - total) < 6])
    return Question(kind, {"n": str(said)}, _yes_no(said == total))


def _emblem(scene: Scene, kind: str, dice: Dice) -> Question:
    name = emblem_name(scene)
    if kind == "emblem":
        return Question(kind, {}, name)
    said = name if dice.chance(50) else dice.pick([e.name for e in emblems()[:KNOWN] if e.name != name])
    return Question(kind, {"name": said}, _yes_no(said == name))


def _yes_no(truth: bool) -> str:
    return "yes" if truth else "no"
