"""A suite's file of edits: all text is checked at once, images are opened when an edit is accessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from more_cli.files import sha256_file
from more_cli.inputs.edits import Edit, EditLine, checked_line, raise_all, resolve_edit
from more_cli.inputs.foreign import is_foreign, to_native
from more_cli.inputs.images import ImageCache
from more_cli.inputs.records import Problem, Record, Repeats, opened, records
from more_cli.text import canonical_json

_TRIMMED = ("question", "target", "rephrases", "locality", "portability")
"""Fields of an edit line whose text loses the white space around it."""
_ASKED = {"question", "image", "video", "frames", "messages"}
"""Fields that say what an edit is about."""


@dataclass(frozen=True)
class Annotation:
    """One edit of a file: its checked text and its place in the file."""

    record: Record
    line: EditLine


@dataclass(frozen=True, eq=False)
class EditPool(Sequence[Edit]):
    """The edits of one file in its order; an edit's images are found, decoded and hashed when it is accessed.

    Accessing an edit raises StreamErrors if one of its images is missing or cannot be read.
    """

    path: Path
    sha256: str
    """Of the file, 64 hex digits."""
    size: int
    """Of the file, bytes."""
    images: ImageCache
    annotations: tuple[Annotation, ...]
    records: int
    """In the file; records that repeat an earlier edit are not counted as edits."""
    trimmed: Mapping[str, int]
    """Texts that lost white space around them, by field."""

    def __len__(self) -> int:
        return len(self.annotations)

    @overload
    def __getitem__(self, index: int) -> Edit: ...

    @overload
    def __getitem__(self, index: slice) -> EditPool: ...

    def __getitem__(self, index: int | slice) -> Edit | EditPool:
        if isinstance(index, slice):
            return replace(self, annotations=self.annotations[index])
        annotation = self.annotations[index]
        edit = resolve_edit(annotation.record, annotation.line, self.images)
        if not isinstance(edit, Edit):
            raise_all(edit)
            raise AssertionError("neither an edit nor a problem")
        return edit


def read_pool(path: Path, image_root: Path, columns: Sequence[str] = ()) -> EditPool:
    """Read and check a file of edits, without its images; every record must have `columns`.

    Raises:
        StreamErrors: there are problems, all of them listed.
        DataError: the file cannot be read at all.
    """
    annotations: list[Annotation] = []
    problems: list[Problem] = []
    trimmed: Counter[str] = Counter()
    count = 0
    repeats = Repeats()
    with opened(path) as file:
        for record in records(file, str(path)):
            count += 1
            line = _lacking(record, columns) or checked_line(record, EditLine)
            if not isinstance(line, EditLine):
                problems += line
                continue
            trimmed.update(_trimmed(record))
            subject = canonical_json(line.model_dump(include=_ASKED))
            content = canonical_json([subject, line.target])
            admitted = repeats.admit(record, line.id or content, content, subject)
            if isinstance(admitted, Problem):
                problems.append(admitted)
            elif admitted:
                annotations.append(Annotation(replace(record, value=None), line))
    if not count:
        problems = [Problem(str(path), "holds no edits", "a suite's file holds a JSON array, or one object per line")]
    raise_all(problems)
    size, images = path.stat().st_size, ImageCache(image_root)
    return EditPool(path, sha256_file(path), size, images, tuple(annotations), count, dict(trimmed))


def _lacking(record: Record, columns: Sequence[str]) -> list[Problem]:
    if not isinstance(record.value, dict):
        return []  # reported when it is read as an edit line
    absent = [f"`{name}`" for name in columns if name not in record.value]
    if not absent:
        return []
    return [record.wrong(f"lacks {', '.join(absent)}", f"every record of this suite has {', '.join(columns)}")]


def _trimmed(record: Record) -> Iterator[str]:
    """Yield the field of every text of a checked record that has white space around it."""
    value = record.value
    assert isinstance(value, dict)
    native = to_native(value) if is_foreign(value) else value
    for name in _TRIMMED:
        yield from _padded(name, native.get(name))


def _padded(name: str, value: object) -> Iterator[str]:
    if isinstance(value, str):
        if value != value.strip():
            yield name
    elif isinstance(value, list):
        for item in value:
            yield from _padded(name, item)
    elif isinstance(value, dict):
        for part in ("question", "answer"):
            yield from _padded(f"{name}.{part}", value.get(part))
