"""More streams of a hundred corrections like e-vqa-mini's, for comparisons that its pools are too small for.

python recipes/demo_model/further.py FOLDER [--pool evaluation] [--streams 9]

The same model gives the same bytes, as in build.py. New emblems appear again in other pictures; no picture is in a
suite or in another stream.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from build import ANSWERED_KINDS, interleaved, load, paired, write_suite
from folders import model_folder
from harvest import Candidate, Judge, emblem_edits, mistakes
from world.pictures import Picture, emblem_picture
from world.pools import Pool
from world.shares import new_emblems

FILE = "edits.json"
EDITS, EMBLEMS, CAP = 100, 18, 12
"""Per stream: corrections, emblems to ask about, and most mistakes of one kind; in e-vqa-mini's proportions."""
FIRST, APART, UNRELATED = 10_000_000, 200_000, 100_000
"""Number of the first stream's first scene, distance to the next stream's, and to a stream's unrelated scenes."""


def main() -> None:
    """Build the streams that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pool", choices=["evaluation", "calibration"], default="evaluation")
    parser.add_argument("--streams", type=int, default=9)
    arguments = parser.parse_args()
    judge = load(model_folder("llava"))
    for number in range(arguments.streams):
        folder = arguments.folder / str(number)
        if not (folder / FILE).exists():
            write_suite(folder, FILE, records(judge, Pool[arguments.pool.upper()], number))


def records(judge: Judge, pool: Pool, number: int, edits: int = EDITS) -> list[tuple[Candidate, Candidate]]:
    """Corrections of stream `number`, each with an unrelated question about a picture."""
    start = FIRST + number * APART
    emblems = emblem_edits(judge, emblem_pictures(pool, number), ("emblem", "is_emblem"))[: edits // 3]
    wrong = mistakes(judge, pool, start, ANSWERED_KINDS, edits - len(emblems), CAP)
    return paired(judge, pool, start + UNRELATED, interleaved(wrong, emblems))


def emblem_pictures(pool: Pool, number: int) -> list[Picture]:
    """The stream's pictures of new emblems: those of the pool in turn, in other scenes for every stream."""
    share = new_emblems(pool)
    chosen = [share[(number * EMBLEMS + i) % len(share)] for i in range(EMBLEMS)]
    return [emblem_picture(pool, emblem, again=1 + number) for emblem in chosen]


if __name__ == "__main__":
    main()
