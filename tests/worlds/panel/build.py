"""Harvests the suites of a trained model of the panel, in the form of MMEdit's files.

    python -m tests.worlds.panel.build NAME MODEL OUT
    python -m tests.worlds.panel.build NAME MODEL OUT --long 3000

OUT gets the folders `mistakes`, `objects`, `captions` (where the world has captions) and `contradictions`. Each has
`eval.json`, `calibration.json`, `anchors.jsonl` and `images/`. Instead of the first two, `contradictions` has
`first.jsonl`, and `second.jsonl`, which corrects the same questions again. With `--long N` OUT gets one folder, `long`,
with N mistakes. The answers are greedy ones in float32. A picture's name is its seed.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path

from ..embedded.build import write_lines
from ..embedded.world.pools import Dice
from .answers import Answerer
from .members import MEMBERS, Member, pixels
from .worlds import CALIBRATED, NEW, Pool, Question, Scene, World

CHUNK = 256  # questions asked together
SEARCHED = 20_000  # questions, at most, for one suite
SEARCHED_LONG = 200_000  # the same for `long`
SIZES = {"mistakes": (100, 40), "objects": (100, 30), "captions": (100, 30)}
CONTRADICTIONS = 30
ANCHORS, ANCHOR_FACTS, EVALUATION_FACTS = 128, 42, 20
SHARE = 0.3  # of a suite, at most, is one kind of question
# Numbers of the first scene of what else is drawn from a pool; mistakes start at 0.
CAPTIONS, NAMED, MOVED, UNRELATED, TWICE = 1_000_000, 2_000_000, 3_000_000, 4_000_000, 7_000_000


@dataclass(frozen=True)
class Asked:
    """A question in a trained wording about a picture, and the model's answer."""

    scene: Scene
    question: Question
    text: str
    moved: Scene | None = None
    """For a new object: a scene where the same question has the same answer."""
    said: str = ""

    @property
    def right(self) -> bool:
        """Whether the model answers correctly."""
        return self.said == self.question.answer

    @property
    def wrong(self) -> bool:
        """Whether it gives another answer, which ends."""
        return bool(self.said) and not self.said.endswith("...") and not self.right


class Harvest:
    """A model, its world and the folder that gets its suites."""

    def __init__(self, member: Member, model: Path, out: Path, searched: int = SEARCHED) -> None:
        self.member, self.out, self.searched = member, out, searched
        self.world: World = member.of_world
        self.answerer = Answerer(model, member)
        facts = Dice(self.world.number, 9).some(self.world.known_facts, len(self.world.known_facts))
        said = self.answerer.answers([fact.trained(i) for i, fact in enumerate(facts)], None)
        texts = [(fact, fact.trained(i)) for i, fact in enumerate(facts) if said[i] == fact.answer]
        print(f"{len(texts)} of {len(facts)} facts known", flush=True)
        cut = max(0, min(ANCHOR_FACTS, len(texts) - EVALUATION_FACTS - 4))
        self.facts = {
            Pool.ANCHORS: texts[:cut],
            Pool.EVALUATION: texts[cut : cut + EVALUATION_FACTS],
            Pool.CALIBRATION: texts[cut + EVALUATION_FACTS :],
        }
        if not self.facts[Pool.CALIBRATION]:
            self.facts[Pool.CALIBRATION] = [(fact, fact.trained(0)) for fact in facts[-4:]]

    def answered(self, items: Iterable[Asked]) -> Iterator[Asked]:
        """The items with the model's answers, asked in chunks."""
        items = iter(items)
        while chunk := list(islice(items, CHUNK)):
            said = self.answerer.answers(
                [i.text for i in chunk], pixels(self.member, [i.scene for i in chunk], [0] * len(chunk))
            )
            for item, answer in zip(chunk, said, strict=True):
                yield replace(item, said=answer)

    def asked(self, scenes: Iterable[Scene], kinds: Callable[[int], str]) -> Iterator[Asked]:
        """One question about each scene that allows one of this kind, by the scene's number."""
        for scene in scenes:
            dice = Dice(self.world.number, 10, scene.pool, scene.index)
            question = self.world.ask(scene, kinds(scene.index), dice)
            if question is not None:
                yield Asked(scene, question, question.trained(dice.below(60)))

    def scenes(self, pool: Pool, start: int) -> Iterator[Scene]:
        """Scenes of a pool from a number on."""
        return (self.world.scene(pool, index) for index in range(start, start + self.searched))

    def in_turn(self, kinds: Iterable[str]) -> Callable[[int], str]:
        """The kind of question for each number of a scene, in turn."""
        every = tuple(kinds)
        return lambda index: every[index % len(every)]

    def mistakes(self, pool: Pool, n: int) -> list[Asked]:
        """The first wrong answers of the pool, not too many of one kind."""
        kinds = self.in_turn(tuple(self.world.asks)[1:])
        kept, per_kind = [], Counter[str]()
        for item in self.answered(self.asked(self.scenes(pool, 0), kinds)):
            if item.wrong and per_kind[item.question.kind] < SHARE * n:
                per_kind[item.question.kind] += 1
                kept.append(item)
                if len(kept) == n:
                    break
        print(f"{len(kept)} mistakes: {dict(per_kind)}", flush=True)
        return kept

    def captions(self, pool: Pool, n: int) -> list[Asked]:
        """The first wrong captions of the pool."""
        found = self.answered(self.asked(self.scenes(pool, CAPTIONS), lambda _: "caption"))
        return list(islice((item for item in found if item.wrong), n))

    def objects(self, pool: Pool, n: int) -> list[Asked]:
        """Everyday questions about new objects: every object once, then every object again in another picture."""

        def items() -> Iterator[Asked]:
            first, many = (NEW - CALIBRATED, CALIBRATED) if pool is Pool.CALIBRATION else (0, NEW - CALIBRATED)
            number = 0
            for index in count(NAMED):
                new = first + number % many
                scene = self.world.scene(pool, index, new)
                dice = Dice(self.world.number, 11, pool, index)
                # The kind agrees with what `World.scene` keeps: the place in even scenes, the colour in odd ones.
                question = self.world.ask(scene, ("what", "what_of")[index % 2], dice, about=0)
                if question is not None:
                    moved = self.world.scene(pool, MOVED + index, new, scene.things[0])
                    yield Asked(scene, question, question.trained(dice.below(60)), moved)
                    number += 1

        return list(islice((item for item in self.answered(items()) if item.wrong), n))

    def unrelated(self, pool: Pool, edits: list[Asked], start: int, alike: bool) -> list[Asked]:
        """For each edit a question that the model answers right, about its own picture.

        It is of another kind than the edit's. With `alike` it asks what something is, as an edit of a new object does.
        """
        kinds = ("what", "what_of") if alike else tuple(self.world.asks)[1:]
        right = (i for i in self.answered(self.asked(self.scenes(pool, start), self.in_turn(kinds))) if i.right)
        kept, spare = [], list[Asked]()
        for edit in edits:
            fits = (i for i in spare if alike or i.question.kind != edit.question.kind)
            item = next(fits, None)
            while item is None:
                item = next(right)
                if not alike and item.question.kind == edit.question.kind:
                    spare.append(item)
                    item = None
            if item in spare:
                spare.remove(item)
            kept.append(item)
        return kept

    def save(self, folder: Path, scene: Scene, variant: int = 0) -> str:
        """Draw a picture and return its path in the folder."""
        name = f"images/{scene.pool.name.lower()}-{scene.index}-v{variant}.png"
        (folder / "images").mkdir(parents=True, exist_ok=True)
        self.world.draw(scene, variant, self.member.side).save(folder / name)
        return name

    def write_suite(self, name: str, find: Callable[[Pool, int], list[Asked]], sizes: tuple[int, int]) -> None:
        """Write a suite's two files of edits and its anchors."""
        folder = self.out / name
        for number, (pool, file) in enumerate(((Pool.EVALUATION, "eval"), (Pool.CALIBRATION, "calibration"))):
            edits = find(pool, sizes[number])
            start = UNRELATED + (list(SIZES).index(name) * SEARCHED if name in SIZES else 0)
            others = self.unrelated(pool, edits, start, name == "objects")
            records = [self.record(folder, *pair, n) for n, pair in enumerate(zip(edits, others, strict=True))]
            (folder / f"{file}.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
            print(f"{name}, {file}: {len(records)} edits", flush=True)
        self.write_anchors(folder)

    def record(self, folder: Path, edit: Asked, other: Asked, number: int) -> dict[str, object]:
        """An edit in MMEdit's form."""
        facts = self.facts[edit.scene.pool]
        fact, wording = facts[number % len(facts)]
        tags: dict[str, object] = {"kind": edit.question.kind}
        if edit.moved is not None:
            tags |= {"object": edit.question.slots["kind"], "shot": 1 + number // (NEW - CALIBRATED)}
        return {
            "src": edit.text,
            "pred": edit.said,
            "alt": edit.question.answer,
            "rephrase": edit.question.unseen(number),
            "image": self.save(folder, edit.scene),
            "image_rephrase": self.save(folder, edit.moved) if edit.moved else self.save(folder, edit.scene, 1),
            "loc": wording,
            "loc_ans": fact.answer,
            "m_loc": self.save(folder, other.scene),
            "m_loc_q": other.text,
            "m_loc_a": other.question.answer,
            "tags": tags,
        }

    def write_anchors(self, folder: Path) -> None:
        """Questions that the model answers right, of every kind in turn, and facts."""
        kinds = [kind for kind in self.world.asks if kind != "list"]
        found = self.answered(self.asked(self.scenes(Pool.ANCHORS, 0), self.in_turn(kinds)))
        lines: list[dict[str, object]] = [
            {"image": self.save(folder, item.scene), "question": item.text, "answer": item.question.answer}
            for item in islice((item for item in found if item.right), ANCHORS)
        ]
        lines += [{"question": text, "answer": fact.answer} for fact, text in self.facts[Pool.ANCHORS]]
        write_lines(folder / "anchors.jsonl", lines)

    def write_contradictions(self) -> None:
        """Two streams: corrections, and the same questions with other answers; then only the second is to hold."""
        folder = self.out / "contradictions"
        kinds = self.in_turn(kind for kind in ("what", "what_of", "colour", "where") if kind in self.world.asks)
        items = list(islice(self.answered(self.asked(self.scenes(Pool.EVALUATION, TWICE), kinds)), 120))
        lines: tuple[list[dict[str, object]], list[dict[str, object]]] = ([], [])
        for number, item in enumerate(items[:CONTRADICTIONS]):
            same_kind = {each.question.answer for each in items if each.question.kind == item.question.kind}
            alike = sorted(same_kind - {item.said})
            first, second = Dice(self.world.number, 12, number).some(alike, 2)
            line = {
                "image": self.save(folder, item.scene),
                "question": item.text,
                "rephrases": [item.question.unseen(number)],
                "image_rephrases": [self.save(folder, item.scene, 1)],
                "tags": {"kind": item.question.kind, "pair": number},
            }
            for part, target in enumerate((first, second)):
                lines[part].append({"id": f"pair-{number:02d}-{part + 1}", **line, "target": target})
        write_lines(folder / "first.jsonl", lines[0])
        write_lines(folder / "second.jsonl", lines[1])
        self.write_anchors(folder)


def main() -> None:
    """Parse the command line and write the suites."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(MEMBERS))
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--long", type=int, default=0, metavar="N", help="one folder with N mistakes")
    arguments = parser.parse_args()
    searched = SEARCHED_LONG if arguments.long else SEARCHED
    harvest = Harvest(MEMBERS[arguments.name], arguments.model, arguments.out, searched)
    if arguments.long:
        harvest.write_suite("long", harvest.mistakes, (arguments.long, SIZES["mistakes"][1]))
        return
    for name, find in (("mistakes", harvest.mistakes), ("objects", harvest.objects), ("captions", harvest.captions)):
        if name != "captions" or "caption" in harvest.world.asks:
            harvest.write_suite(name, find, SIZES[name])
    harvest.write_contradictions()


if __name__ == "__main__":
    main()
