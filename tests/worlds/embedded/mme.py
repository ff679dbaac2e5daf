"""The mini MME: two questions per picture, one with the answer yes and one with the answer no."""

from __future__ import annotations

from pathlib import Path

from .world.language import WORDING_DRAWS, Question, ask, kinds_for
from .world.phrases import YES_NO_HINT
from .world.pictures import Picture
from .world.pools import Dice, Pool, Purpose
from .world.scenes import Scene, scene

PICTURES = 24  # per category
CATEGORIES = {
    "existence": "exist",
    "count": "is_count",
    "position": "is_place",
    "color": "is_color",
    "posters": "is_emblem",  # emblems instead of MME's film posters
    "OCR": "is_text",
    "numerical_calculation": "is_sum",
}
STRIDE = 10_000  # scenes from one category to the next
ATTEMPTS = 20


def write_mme(folder: Path, pool: Pool, start: int) -> None:
    """Writes MME's flat layout: `<category>/<stem>.png` beside `<category>/<stem>.txt`."""
    for number, (category, kind) in enumerate(CATEGORIES.items()):
        (folder / category).mkdir(parents=True, exist_ok=True)
        written, index = 0, start + number * STRIDE
        while written < PICTURES:
            picture = Picture(scene(pool, index))
            pair = both_answers(picture.scene, kind)
            index += 1
            if pair is None:
                continue
            written += 1
            lines = "".join(f"{text}{YES_NO_HINT}\t{answer}\n" for text, answer in pair)
            (folder / category / picture.name).write_bytes(picture.bytes)
            (folder / category / picture.name).with_suffix(".txt").write_text(lines, encoding="utf-8")


def both_answers(about: Scene, kind: str) -> list[tuple[str, str]] | None:
    """A question about the scene with the answer Yes and one with No, or None if there is no such pair."""
    if kind not in kinds_for(about):
        return None
    dice = Dice(Purpose.SELECTION, about.pool, about.index)
    found: dict[str, Question] = {}
    for _ in range(ATTEMPTS):
        question = ask(about, kind, dice)
        if question is not None:
            found.setdefault(question.answer, question)
    if len(found) < 2:
        return None
    wording = dice.below(WORDING_DRAWS)
    return [(found[answer].trained(wording), answer.capitalize()) for answer in ("yes", "no")]
