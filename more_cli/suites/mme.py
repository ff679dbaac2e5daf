"""MME's folders: a category is a folder of images, each with a text file, side by side or in two sub-folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from more_cli.errors import DataError
from more_cli.inputs.edits import raise_all
from more_cli.inputs.images import ImageSource, locate_image
from more_cli.inputs.records import Problem, not_utf8, opened
from more_cli.text import reason_of

IMAGES, QUESTIONS = "images", "questions_answers_YN"
"""Sub-folders of a category in the layout with two sub-folders."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
TEXT_BYTES = 64 * 2**10
"""Largest file of questions, bytes."""
_SHAPE = "a line is `question<TAB>Yes` or `question<TAB>No`"


@dataclass(frozen=True)
class YesNoQuestion:
    """One question and its answer as the file spells it, Yes or No."""

    question: str
    answer: str


@dataclass(frozen=True)
class AskedImage:
    """One image with its questions; the image is not opened yet."""

    category: str
    stem: str
    path: Path
    questions: tuple[YesNoQuestion, ...]
    root: Path | None = None
    """Folder that it must lie below, after following symlinks."""

    def image(self) -> ImageSource:
        """Return the image, found, decoded and hashed.

        Raises:
            DataError: it is missing or cannot be read.
        """
        if self.root is None:
            return locate_image(str(self.path), Path())
        return locate_image(str(self.path.relative_to(self.root)), self.root, strict=True)


def category_folders(root: Path, known: Sequence[str]) -> dict[str, Path]:
    """Return the folders below `root` that are known categories, in the known order, in any case.

    Raises:
        DataError: `root` is not a folder, or cannot be listed.
    """
    there = {path.name.casefold(): path for path in _listed(root) if path.is_dir()}
    return {name: there[name.casefold()] for name in known if name.casefold() in there}


def read_category(category: str, folder: Path) -> tuple[AskedImage, ...]:
    """Read a category's questions, in the order of their files' names.

    Raises:
        StreamErrors: lines that are not a question and its answer, all of them listed.
        DataError: a file or folder cannot be read.
    """
    apart = (folder / IMAGES).is_dir() and (folder / QUESTIONS).is_dir()
    image_folder, text_folder = (folder / IMAGES, folder / QUESTIONS) if apart else (folder, folder)
    files = {path.stem: path for path in _listed(image_folder) if path.suffix.lower() in SUFFIXES}
    images: list[AskedImage] = []
    problems: list[Problem] = []
    for path in _listed(text_folder):
        if path.suffix.lower() != ".txt":
            continue
        read = list(_questions(path))
        problems += (item for item in read if isinstance(item, Problem))
        asked = tuple(item for item in read if isinstance(item, YesNoQuestion))
        # A missing image gets its most likely name: opening it reports that it is missing.
        shown = files.get(path.stem, image_folder / f"{path.stem}.jpg")
        images.append(AskedImage(category, path.stem, shown, asked))
    raise_all(problems)
    return tuple(images)


def _questions(path: Path) -> Iterator[YesNoQuestion | Problem]:
    with opened(path) as file:
        raw = file.read(TEXT_BYTES + 1)
    try:
        if len(raw) > TEXT_BYTES:
            raise ValueError(f"is larger than {TEXT_BYTES >> 10} KiB")
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        yield Problem(str(path), not_utf8(error))
        return
    except ValueError as error:
        yield Problem(str(path), str(error), _SHAPE)
        return
    if not any(line.strip() for line in lines):
        yield Problem(str(path), "holds no questions", _SHAPE)
    for number, line in enumerate(lines, 1):
        question, _, answer = line.strip().rpartition("\t")
        if question.strip() and answer.lower() in ("yes", "no"):
            yield YesNoQuestion(question.strip(), answer)
        elif line.strip():
            yield Problem(f"{path}:{number}", "is not a question and its answer", _SHAPE, number)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"`{folder}` cannot be read: {reason_of(error)}") from None
