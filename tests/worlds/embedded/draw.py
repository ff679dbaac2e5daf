"""Draws the pictures of the suites in tests/data, which git does not track: a picture's file name is its seed.

python -m tests.worlds.embedded.draw             # draw those that are missing
python -m tests.worlds.embedded.draw --hashes    # print the SHA-256 of every picture: tests/data/suites/pictures.sha256
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from .world.pictures import Picture, picture_named

SUITES = Path(__file__).parents[2] / "data" / "suites"


def main() -> None:
    """Draws the pictures, or prints their hashes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hashes", action="store_true")
    if parser.parse_args().hashes:
        print(*hashes(), sep="\n")
        return
    for suite in suites():
        with_pictures(suite)


def suites_folder(family: str) -> Path:
    """The directory of the mini-suites of a family other than LLaVA, whose suites are in the package."""
    return SUITES / family


def suites() -> list[Path]:
    """The suites whose pictures git does not track."""
    return sorted(path for path in SUITES.glob("*/*") if path.is_dir())


def pack(folder: Path, archive: Path) -> None:
    """Write every file below a folder into an archive; equal files give equal bytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:  # pictures are compressed already
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            packed.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix()), path.read_bytes())


def with_pictures(suite: Path) -> Path:
    """Draw those of the suite's pictures that are missing; return `suite`."""
    save(map(picture_named, picture_names(suite)), suite / "images")
    return suite


def picture_names(suite: Path) -> set[str]:
    """File names of the pictures that the suite's records and anchors refer to."""
    texts = [path.read_text(encoding="utf-8") for path in suite.glob("*.json*")]
    return {name for text in texts for name in re.findall(r'"images/([^"]+)"', text)}


def save(pictures: Iterable[Picture], folder: Path) -> None:
    """Write the pictures that `folder` does not have, each in one step, so that two processes may draw at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        if not (folder / picture.name).exists():
            part = folder / f"{picture.name}.{os.getpid()}"
            part.write_bytes(picture.bytes)
            part.replace(folder / picture.name)


def hashes() -> Iterator[str]:
    """One line per picture, as `sha256sum` prints it; a picture that several suites show comes once."""
    for name in sorted(set().union(*map(picture_names, suites()))):
        yield f"{hashlib.sha256(picture_named(name).bytes).hexdigest()}  {name}"


if __name__ == "__main__":
    main()
