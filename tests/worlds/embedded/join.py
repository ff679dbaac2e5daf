"""Joins the streams of streams.py, one after the other, to a copy of a mini suite.

python -m tests.worlds.embedded.join STREAMS OUT [--suite e-vqa] [--family llava]    # as the pool `fit`
python -m tests.worlds.embedded.join STREAMS OUT [--suite e-vqa] --after 100         # as edits after the first 100

Rival editors that are trained before their first edit learn from the pool `fit`. Its streams are of the calibration
pool (`streams.py --pool calibration --streams 7`, captions 6), whose pictures are in no other pool. LLaVA's suites have
it: they were joined so, and packed with `--pack`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from more_cli.suites.embedded import ARCHIVES, suite_folder

from .draw import pack, suites_folder, with_pictures
from .families import FAMILIES
from .streams import FILE, SUITES


def main() -> None:
    """Joins the streams of a folder to a suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", choices=sorted(SUITES), default="e-vqa")
    parser.add_argument("--family", choices=sorted(FAMILIES), default="llava")
    parser.add_argument("--after", type=int, help="edits of the suite that the streams follow; without it, pool `fit`")
    parser.add_argument("--pack", action="store_true", help="pack the result into the package (llava)")
    arguments = parser.parse_args()
    name = f"{arguments.suite}-mini"
    llava = arguments.family == "llava"
    suite = suite_folder(name) if llava else with_pictures(suites_folder(arguments.family) / name)
    join(suite, arguments.streams, arguments.out, arguments.after)
    if arguments.pack:
        pack(arguments.out, ARCHIVES / f"{name}.zip")


def join(suite: Path, streams: Path, out: Path, after: int | None) -> None:
    """Copy `suite` to `out` with the streams as its pool `fit`, or as its evaluation pool from edit `after` on."""
    shutil.copytree(suite, out)
    file, records = ("fit.json", []) if after is None else ("eval.json", read(suite / "eval.json")[:after])
    for path in sorted(streams.glob(f"*/{FILE}"), key=lambda path: int(path.parent.name)):
        records += read(path)
        shutil.copytree(path.parent / "images", out / "images", dirs_exist_ok=True)
    (out / file).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[dict[str, object]]:
    """Return the records of a pool or a stream."""
    records: list[dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))
    return records


if __name__ == "__main__":
    main()
