"""More streams of a hundred corrections like those of a mini suite, for what its pools are too small for.

python -m tests.worlds.embedded.streams FOLDER [--suite e-vqa] [--pool evaluation] [--streams 9] [--family llava]

The same model gives the same bytes, as in build.py, on a processor that rounds alike: the mistakes are its answers.
New emblems appear again in other pictures; no picture is in a suite or in another stream.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from .build import ANSWERED_KINDS, interleaved, load, paired, write_suite
from .families import FAMILIES, model_folder
from .harvest import Candidate, Judge, emblem_edits, mistakes, questions
from .world.emblems import new_emblems
from .world.pictures import Picture, emblem_picture
from .world.pools import Pool
from .world.scenes import scene

FILE = "edits.json"
EDITS, EMBLEMS, CAP = 100, 18, 12
"""Per stream: corrections, emblems to ask about, and most mistakes of one kind; in e-vqa-mini's proportions."""
VQA, CAPTIONS, APART, UNRELATED = 10_000_000, 20_000_000, 200_000, 100_000
"""Number of each suite's first scene, distance to the next stream's, and to a stream's unrelated scenes."""
STREAMS = 9
"""Captions show the emblems in scenes after those of so many streams of the other suite."""

Records = list[tuple[Candidate, Candidate]]
"""Corrections, each with an unrelated question about a picture."""


def main() -> None:
    """Build the streams that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suite", choices=sorted(SUITES), default="e-vqa")
    parser.add_argument("--pool", choices=["evaluation", "calibration"], default="evaluation")
    parser.add_argument("--streams", type=int, default=9)
    parser.add_argument("--family", choices=sorted(FAMILIES), default="llava")
    arguments = parser.parse_args()
    judge = load(model_folder(arguments.family))
    for number in range(arguments.streams):
        folder = arguments.folder / str(number)
        if not (folder / FILE).exists():
            write_suite(folder, FILE, SUITES[arguments.suite](judge, Pool[arguments.pool.upper()], number))


def vqa_records(judge: Judge, pool: Pool, number: int, edits: int = EDITS) -> Records:
    """Corrections of answers, stream `number`."""
    start = VQA + number * APART
    emblems = emblem_edits(judge, emblem_pictures(pool, number), ("emblem", "is_emblem"))[: edits // 3]
    wrong = mistakes(judge, pool, start, ANSWERED_KINDS, edits - len(emblems), CAP)
    return paired(judge, pool, start + UNRELATED, interleaved(wrong, emblems))


def caption_records(judge: Judge, pool: Pool, number: int, edits: int = EDITS) -> Records:
    """Corrections of captions, stream `number`.

    The model describes 99 of 100 pictures correctly: beside the new emblems a picture gets another one's caption.
    """
    start = CAPTIONS + number * APART
    emblems = emblem_edits(judge, emblem_pictures(pool, STREAMS + number), ("caption",))[: edits // 3]
    asked = [item for i in range(edits) for item in questions(Picture(scene(pool, start + i)), ("caption",))]
    known = judge.right(asked)[: edits - len(emblems)]
    swapped = [
        replace(item, question=replace(item.question, answer=other.question.answer))
        for item, other in zip(known, known[1:] + known[:1], strict=True)
    ]
    return paired(judge, pool, start + UNRELATED, interleaved(swapped, emblems))


SUITES = {"e-vqa": vqa_records, "e-ic": caption_records}


def emblem_pictures(pool: Pool, number: int) -> list[Picture]:
    """The stream's pictures of new emblems: those of the pool in turn, in other scenes for every stream."""
    share = new_emblems(pool)
    chosen = [share[(number * EMBLEMS + i) % len(share)] for i in range(EMBLEMS)]
    return [emblem_picture(pool, emblem, again=1 + number) for emblem in chosen]


if __name__ == "__main__":
    main()
