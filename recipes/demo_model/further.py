"""Further streams of a hundred corrections, made like e-vqa-mini's, for where a pool of it is too small to tell.

python recipes/demo_model/further.py FOLDER [--pool evaluation] [--streams 9]

Same model, same bytes. New emblems come again in other pictures; no picture is one of a suite's or of another stream.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from build import ANSWERED_KINDS, interleaved, load, paired, write_suite
from folders import model_folder
from harvest import Found, Judge, emblem_edits, mistakes
from world.pools import Pool
from world.shares import new_emblems
from world.stills import Still, emblem_still

FILE = "edits.json"
EDITS, EMBLEMS, CAP = 100, 18, 12
"""Corrections of a stream, emblems that some of them are about, and mistakes of a kind at most: e-vqa-mini's shares."""
FIRST, APART, UNRELATED = 10_000_000, 200_000, 100_000
"""Where in a pool's scenes the first stream starts to look, the next one, and each for its unrelated pictures."""


def main() -> None:
    """Build the streams that are not there yet."""
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


def records(judge: Judge, pool: Pool, number: int, edits: int = EDITS) -> list[tuple[Found, Found]]:
    """Corrections of stream `number`, each with its unrelated picture question."""
    start = FIRST + number * APART
    emblems = emblem_edits(judge, stills(pool, number), ("emblem", "is_emblem"))[: edits // 3]
    wrong = mistakes(judge, pool, start, ANSWERED_KINDS, edits - len(emblems), CAP)
    return paired(judge, pool, start + UNRELATED, interleaved(wrong, emblems))


def stills(pool: Pool, number: int) -> list[Still]:
    """The stream's pictures of new emblems: the share of the pool in turn, each time in other scenes."""
    share = new_emblems(pool)
    chosen = [share[(number * EMBLEMS + i) % len(share)] for i in range(EMBLEMS)]
    return [emblem_still(pool, emblem, again=1 + number) for emblem in chosen]


if __name__ == "__main__":
    main()
