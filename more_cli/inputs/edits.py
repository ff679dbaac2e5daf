"""The stream of fixes: lines of JSON in, checked edits out, every problem with its file and line.

The line is `EditLine`, as a user writes it; the edit is `Edit`, with images found, decoded once and hashed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from more_cli.errors import DataError, StreamErrors
from more_cli.files import canonical_json, sha256_bytes, shorten
from more_cli.inputs.foreign import is_foreign, to_native
from more_cli.inputs.images import ImageCache, ImageSource
from more_cli.inputs.records import ONE_PER_LINE, Record, opened, records
from more_cli.inputs.records import Problem as Problem

TARGET_CHARACTERS = 2_000
"""Longest target, characters; how many tokens fit is checked where the tokenizer is."""
ID_CHARACTERS = 200
"""Longest id, characters."""

# What other tools call the same thing.
_MEANT = {"prompt": "question", "answer": "target", "label": "target", "img": "image", "images": "image"}


def _text(value: str) -> str:
    value = value.strip()
    if not value:
        raise ValueError("is empty")
    return value


def _target(value: str) -> str:
    value = _text(value)
    if len(value) > TARGET_CHARACTERS:
        raise ValueError(f"has {len(value):,} characters, more than {TARGET_CHARACTERS:,}")
    return value


def _id(value: str) -> str:
    if not value.strip() or len(value) > ID_CHARACTERS or not value.isprintable():
        raise ValueError(f"must be 1 to {ID_CHARACTERS} printable characters, got {_shown(value)}")
    return value


def _as_list(value: object) -> object:
    if value is None or isinstance(value, str):
        return [] if value is None else [value]
    if isinstance(value, list):
        return value
    raise ValueError(f"must be a path or a list of paths, got {_shown(value)}")


Text = Annotated[str, AfterValidator(_text)]
Id = Annotated[str, AfterValidator(_id)]
Images = Annotated[list[str], BeforeValidator(_as_list)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProbeLine(_Line):
    """A line of an anchors or probes file; without an answer the base model's own is taken."""

    question: Text
    image: str | None = None
    answer: Text | None = None
    id: Id | None = None


class LocalityProbe(_Line):
    """A question whose answer must not move, as spelled in an edit line."""

    question: Text
    image: str | None = None
    answer: Text | None = None


class PortabilityProbe(_Line):
    """A question that follows from the edit, as spelled in an edit line."""

    question: Text
    answer: Text
    image: str | None = None
    hop: Annotated[int, Field(ge=1)] | None = None


class EditLine(_Line):
    """One line of an edits file, as a user writes it."""

    question: Text
    target: Annotated[str, AfterValidator(_target)]
    image: Images = []
    id: Id | None = None
    rephrases: list[Text] = []
    image_rephrases: list[str] = []
    locality: list[LocalityProbe] = []
    portability: list[PortabilityProbe] = []
    tags: dict[str, Any] = {}


@dataclass(frozen=True)
class Probe:
    """A question that scores an edit, its locality or the state."""

    question: str
    image: ImageSource | None = None
    answer: str | None = None
    hop: int | None = None
    """Steps of reasoning from the edit, 1 or more; portability only."""
    id: str = ""
    """Set for the lines of a probes file."""

    @cached_property
    def content(self) -> str:
        """SHA-256 over image hash, question and answer."""
        return _hash([self.image.sha256 if self.image else None, self.question, self.answer])


@dataclass(frozen=True)
class Edit:
    """One correction, checked: its images exist, decode and have these hashes."""

    id: str
    images: tuple[ImageSource, ...]
    question: str
    target: str
    rephrases: tuple[str, ...] = ()
    image_rephrases: tuple[ImageSource, ...] = ()
    locality: tuple[Probe, ...] = ()
    portability: tuple[Probe, ...] = ()
    tags: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """The file's name as the user gave it."""
    line: int = 0
    """Counted from 1; in a JSON array the record's number."""

    @cached_property
    def content(self) -> str:
        """SHA-256 over image hashes, question and target: what the edit does."""
        return content_hash([image.sha256 for image in self.images], self.question, self.target)

    @cached_property
    def subject(self) -> str:
        """SHA-256 over image hashes and question: what the edit is about."""
        return _hash([[image.sha256 for image in self.images], self.question])


@dataclass(frozen=True)
class EditStream:
    """A whole edits file, checked."""

    edits: tuple[Edit, ...]
    problems: tuple[Problem, ...] = ()
    skipped: int = 0
    """Number of lines left out because of a problem."""


def content_hash(image_hashes: list[str], question: str, target: str) -> str:
    """Return the SHA-256 that says what an edit does, 64 hex digits."""
    return _hash([image_hashes, question, target])


def _hash(value: object) -> str:
    return sha256_bytes(canonical_json(value).encode())


def read_edits(
    path: Path,
    image_root: Path | None = None,
    *,
    on_error: Literal["stop", "skip"] = "stop",
    strict_paths: bool = False,
) -> EditStream:
    """Read and check a whole edits file; images start at ``image_root``, by default the file's folder.

    A file that starts with `[` is read as one JSON array of records.

    Raises:
        StreamErrors: there are problems and ``on_error`` is "stop".
        DataError: the file cannot be read at all.
    """
    images = ImageCache(image_root or path.parent, strict=strict_paths)
    with opened(path) as file:
        found = list(_checked_edits(records(file, str(path)), images))
    edits = tuple(item for item in found if isinstance(item, Edit))
    problems = tuple(item for item in found if isinstance(item, Problem))
    if not found:
        problems = (Problem(str(path), "holds no edits", ONE_PER_LINE),)
    if on_error == "stop":
        raise_all(problems)
    return EditStream(edits, problems, len({problem.line for problem in problems if problem.line}))


def iter_edits(
    records: Iterable[Record], image_root: Path | None = None, *, strict_paths: bool = False
) -> Iterator[Edit | Problem]:
    """Check records one by one as they come; images start at ``image_root``, by default the current folder.

    Keeps ids and hashes of what it has seen, nothing else.
    """
    return _checked_edits(records, ImageCache(image_root or Path(), strict=strict_paths))


def read_probes(path: Path, image_root: Path | None = None, *, strict_paths: bool = False) -> tuple[Probe, ...]:
    """Read and check an anchors or probes file: lines of `{"image"?, "question", "answer"?}`.

    A line without an id is called by the first 16 digits of its content's hash; a repeated line counts once.

    Raises:
        StreamErrors: there are problems, all of them listed.
        DataError: the file cannot be read at all.
    """
    images = ImageCache(image_root or path.parent, strict=strict_paths)
    seen: dict[str, tuple[str, int]] = {}
    probes: list[Probe] = []
    problems: list[Problem] = []
    with opened(path) as file:
        for record in records(file, str(path)):
            checked = _checked(record, ProbeLine)
            if not isinstance(checked, ProbeLine):
                problems += checked
                continue
            resolver = _Resolver(record, images)
            probe = resolver.probe(checked, id=checked.id or "")
            problems += resolver.problems
            if resolver.problems:
                continue
            probe = probe if probe.id else resolver.probe(checked, id=probe.content[:16])
            if clash := _clash(record, seen, probe.id, probe.content):
                problems.append(clash)
            elif seen.setdefault(probe.id, (probe.content, record.line))[1] == record.line:
                probes.append(probe)
    if not probes and not problems:
        problems = [Problem(str(path), "holds no questions", "a probes file holds one JSON object per line")]
    raise_all(problems)
    return tuple(probes)


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise all problems as one error, nothing when there is none.

    Raises:
        StreamErrors: there are problems.
    """
    listed = list(problems)
    if listed:
        raise StreamErrors([str(item) for item in listed], next((item.hint for item in listed if item.hint), ""))


LineModel = TypeVar("LineModel", bound=_Line)


def _checked(record: Record, model: type[LineModel]) -> LineModel | list[Problem]:
    """Return the line as ``model``, or everything that is wrong with it."""
    if record.problem:
        return [record.problem]
    value = record.value
    if not isinstance(value, dict):
        return [record.wrong(f"must be a JSON object, got {_shown(value)}", ONE_PER_LINE)]
    if model is EditLine and is_foreign(value):
        value = to_native(value)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        known = list(model.model_fields)
        return [record.wrong(_sentence(detail, known)) for detail in error.errors(include_url=False)]


def _sentence(detail: ErrorDetails, known: list[str]) -> str:
    """Say in one sentence what pydantic found."""
    *outer, last = detail["loc"]
    place = shorten("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])[1:])
    if detail["type"] == "missing":
        return f"`{place}` is missing"
    if detail["type"] == "extra_forbidden":
        near = _MEANT.get(str(last)) or next(iter(difflib.get_close_matches(str(last), known, 1)), None)
        return f"unknown field `{place}`" + (f"; did you mean `{near}`?" if near in known and not outer else "")
    if detail["type"] == "value_error":
        return f"`{place}` {detail['msg'].removeprefix('Value error, ')}"
    kind = detail["type"].removesuffix("_type")
    wanted = {"string": "a string", "list": "a list", "dict": "an object", "model": "an object"}
    expected = wanted.get(kind.removesuffix("_attributes"), "a whole number from 1")
    return f"`{place}` must be {expected}, got {_shown(detail['input'])}"


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return shorten(canonical_json(value), 40)


class _Resolver:
    """Finds the images of one line, collecting what is wrong with them."""

    def __init__(self, record: Record, images: ImageCache) -> None:
        self.record = record
        self.images = images
        self.problems: list[Problem] = []

    def image(self, spelled: str) -> ImageSource:
        try:
            return self.images.locate(spelled)
        except DataError as error:
            self.problems.append(self.record.wrong(error.message, error.hint))
            return ImageSource(spelled, None, "")

    def probe(self, line: ProbeLine | LocalityProbe | PortabilityProbe, id: str = "") -> Probe:
        image = None if line.image is None else self.image(line.image)
        return Probe(line.question, image, line.answer, getattr(line, "hop", None), id)

    def edit(self, line: EditLine) -> Edit:
        images = tuple(self.image(spelled) for spelled in line.image)
        content = content_hash([image.sha256 for image in images], line.question, line.target)
        return Edit(
            id=line.id or content[:16],
            images=images,
            question=line.question,
            target=line.target,
            rephrases=tuple(line.rephrases),
            image_rephrases=tuple(self.image(spelled) for spelled in line.image_rephrases),
            locality=tuple(self.probe(probe) for probe in line.locality),
            portability=tuple(self.probe(probe) for probe in line.portability),
            tags=line.tags,
            source=self.record.name,
            line=self.record.line,
        )


def edit_line(record: Record) -> EditLine | list[Problem]:
    """Return a record's text as an edit line, or everything that is wrong with it; no image is looked at."""
    return _checked(record, EditLine)


def located(record: Record, line: EditLine, images: ImageCache) -> Edit | list[Problem]:
    """Return the edit of a checked line with its images found and hashed, or what is wrong with them."""
    resolver = _Resolver(record, images)
    edit = resolver.edit(line)
    return resolver.problems or edit


class Repeats:
    """Tells which lines of one stream say again what an earlier one said."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, int]] = {}
        self._latest: dict[str, str] = {}  # subject -> content of the last edit about it

    def admit(self, record: Record, id: str, content: str, subject: str) -> bool | Problem:
        """Return whether the record is new, or why it must not be said again."""
        if clash := _clash(record, self._seen, id, content):
            return clash
        if id not in self._seen:
            self._seen[id] = content, record.line
            self._latest[subject] = content
            return True
        if self._latest[subject] != content:
            first = f"repeats line {self._seen[id][1]}, which a later line has corrected"
            return record.wrong(first, "to make it again, give this line an `id` of its own")
        return False


def _checked_edits(records: Iterable[Record], images: ImageCache) -> Iterator[Edit | Problem]:
    repeats = Repeats()
    for record in records:
        line = edit_line(record)
        if not isinstance(line, EditLine):
            yield from line
            continue
        edit = located(record, line, images)
        if not isinstance(edit, Edit):
            yield from edit
            continue
        admitted = repeats.admit(record, edit.id, edit.content, edit.subject)
        if isinstance(admitted, Problem):
            yield admitted
        elif admitted:
            yield edit


def _clash(record: Record, seen: dict[str, tuple[str, int]], id: str, content: str) -> Problem | None:
    before, line = seen.get(id, (content, 0))
    if before == content:
        return None
    text = f"id `{shorten(id)}` is used in line {line} with other content"
    return record.wrong(text, "give each edit an id of its own, or leave `id` out")
