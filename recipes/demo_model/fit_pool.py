"""Adds the pool `fit` to a packed mini suite: the streams of further.py, one after the other.

python recipes/demo_model/further.py FOLDER --suite SUITE --pool calibration --streams 6
python recipes/demo_model/fit_pool.py FOLDER --suite SUITE

Rival editors that are trained before their first edit learn from it. Its scenes are of the calibration pool, and no
picture is in another pool.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from further import FILE, SUITES
from more_cli.suites.embedded import ARCHIVES, pack, suite_folder


def main() -> None:
    """Joins the streams of a folder and packs the suite with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suite", choices=sorted(SUITES), default="e-vqa")
    arguments = parser.parse_args()
    name = f"{arguments.suite}-mini"
    streams = sorted(arguments.folder.glob(f"*/{FILE}"), key=lambda path: int(path.parent.name))
    with TemporaryDirectory() as scratch:
        suite = Path(shutil.copytree(suite_folder(name), Path(scratch) / name))
        records = [record for path in streams for record in json.loads(path.read_text(encoding="utf-8"))]
        (suite / "fit.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        for path in streams:
            shutil.copytree(path.parent / "images", suite / "images", dirs_exist_ok=True)
        pack(suite, ARCHIVES / f"{name}.zip")


if __name__ == "__main__":
    main()
