"""Edit streams: JSON lines in, checked edits out, every problem reported with its file and line.

`EditLine` is the line as a user writes it; `Edit` is the checked edit, whose images exist, decode and are hashed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from more_cli.errors import DataError, StreamErrors
from more_cli.files import sha256_json
from more_cli.inputs.complaints import explain, shown
from more_cli.inputs.foreign import is_foreign, to_native
from more_cli.inputs.forms import form_of, needs_conversion, refuse_table
from more_cli.inputs.images import ImageCache, ImageSource
from more_cli.inputs.records import ONE_PER_LINE, Problem, Record, Repeats, id_conflict, opened, records
from more_cli.inputs.tables import table_form
from more_cli.inputs.turns import Message, Turn, checked_messages, shown_in, turns_of
from more_cli.inputs.video import FRAMES, MOST, frames_of
from more_cli.text import shorten

HINTS = 4
"""Largest number of hints about one file."""
TARGET_CHARACTERS = 2_000
"""Longest target, characters; the number of tokens is checked later, with the tokenizer."""
ID_CHARACTERS = 200
"""Longest id, characters."""


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
        raise ValueError(f"must be 1 to {ID_CHARACTERS} printable characters, got {shown(value)}")
    return value


def _as_list(value: object) -> object:
    if value is None or isinstance(value, str):
        return [] if value is None else [value]
    if isinstance(value, list):
        return value
    raise ValueError(f"must be a path or a list of paths, got {shown(value)}")


def _as_tags(value: object) -> object:
    if isinstance(value, dict):
        return value
    wanted = "must be an object or a list of strings"
    if not isinstance(value, list):
        raise ValueError(f"{wanted}, got {shown(value)}")
    for tag in value:
        if not isinstance(tag, str) or not tag.strip():
            raise ValueError(f"{wanted}, got {shown(tag)} in the list")
    return dict.fromkeys(value, True)


Text = Annotated[str, AfterValidator(_text)]
Id = Annotated[str, AfterValidator(_id)]
Images = Annotated[list[str], BeforeValidator(_as_list)]
Messages = Annotated[list[Message], AfterValidator(checked_messages)]


class _Asked(BaseModel):
    """A question, what it shows, and what was said before it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    question: Text
    """the question; spaces and line breaks at its ends are dropped"""
    image: Images = []
    """path, `data:` URI or a list of them, relative to the file or `--image-root`; left out for a text-only question.
    URLs are refused: nothing is fetched"""
    video: str | None = None
    """animated GIF, WebP, PNG or TIFF in place of `image`: some of its frames become pictures, in order, for models
    that take several"""
    frames: Annotated[int, Field(ge=1, le=MOST)] = FRAMES
    """how many frames of `video`, at equal distances"""
    messages: Messages = []
    """earlier turns of the conversation, a question and its answer in turn, as chat templates take them: `role` and
    `content`, a text or a list of parts `{"type": "text", "text": ...}` and `{"type": "image", "image": path}`"""


class ProbeLine(_Asked):
    """A line of an anchors or probes file; without `answer`, the base model's answer is used."""

    answer: Text | None = None
    """without it the base's own greedy answer is taken"""
    id: Id | None = None
    """by default the first 16 digits of a hash of its content"""


class LocalityProbe(_Asked):
    """A question whose answer must not change, as written in an edit line."""

    answer: Text | None = None


class PortabilityProbe(_Asked):
    """A question whose answer follows from the edit, as written in an edit line."""

    answer: Text
    hop: Annotated[int, Field(ge=1)] | None = None


class EditLine(_Asked):
    """One line of an edits file, as a user writes it."""

    target: Annotated[str, AfterValidator(_target)]
    """the answer it should get, at most 2,000 characters; spaces and line breaks at its ends are dropped"""
    id: Id | None = None
    """name in the ledger; by default a hash of images, question and target"""
    rephrases: list[Text] = []
    """other wordings that should get the same answer; scored, never trained on"""
    image_rephrases: list[str] = []
    """other images that should get the same answer; scored, never trained on. Each takes the place of all images of the
    question; those of earlier turns stay"""
    locality: list[LocalityProbe] = []
    """questions whose answers must not move: `eval` compares with what the base says. Only presets of published sources
    compare with `answer`, if there is one"""
    portability: list[PortabilityProbe] = []
    """questions that follow from the edit; scored, never trained on. `hop`: steps of reasoning"""
    tags: Annotated[dict[str, Any], BeforeValidator(_as_tags)] = {}
    """kept in the ledger and in reports; a list of strings becomes an object in which each of them is true"""


@dataclass(frozen=True)
class Probe:
    """A question that scores an edit, its locality or the state."""

    question: str
    images: tuple[ImageSource, ...] = ()
    """Those of the earlier turns first."""
    answer: str | None = None
    hop: int | None = None
    """Steps of reasoning from the edit, 1 or more; portability only."""
    id: str = ""
    """Only for lines of a probes file."""
    turns: tuple[Turn, ...] = ()
    """What was said before the question."""
    line: int = field(default=0, compare=False)
    """Of a probes file: line number from 1."""

    @cached_property
    def content(self) -> str:
        """SHA-256 of image hashes, question and answer, and of earlier turns if there are some."""
        hashes = [image.sha256 for image in self.images]
        # A plain hash or null for one or none, as in states from before a probe could have several.
        shown = hashes if len(hashes) > 1 else next(iter(hashes), None)
        return sha256_json([shown, self.question, self.answer, *map(list, self.turns)])


@dataclass(frozen=True)
class Edit:
    """One checked correction: its images exist, decode and have these hashes."""

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
    """Name of the file, as the user gave it."""
    line: int = 0
    """Line number from 1; in a JSON array, the record's number."""
    turns: tuple[Turn, ...] = ()
    """What was said before the question; the first of `images` are theirs."""

    @cached_property
    def content(self) -> str:
        """SHA-256 of image hashes, question, target and earlier turns: identifies what the edit does."""
        return content_hash([image.sha256 for image in self.images], self.question, self.target, self.turns)

    @cached_property
    def subject(self) -> str:
        """SHA-256 of image hashes, question and earlier turns: identifies what the edit is about."""
        return subject_hash([image.sha256 for image in self.images], self.question, self.turns)

    @property
    def before(self) -> tuple[ImageSource, ...]:
        """The images of the earlier turns."""
        return self.images[: shown_in(self.turns)]


@dataclass(frozen=True)
class EditStream:
    """A whole checked edits file."""

    edits: tuple[Edit, ...]
    problems: tuple[Problem, ...] = ()


def content_hash(image_hashes: list[str], question: str, target: str, turns: Sequence[Turn] = ()) -> str:
    """Return the SHA-256 of image hashes, question, target, and earlier turns if there are some, 64 hex digits."""
    return sha256_json([image_hashes, question, target, *map(list, turns)])


def subject_hash(image_hashes: list[str], question: str, turns: Sequence[Turn] = ()) -> str:
    """Return the SHA-256 of image hashes, question, and earlier turns if there are some, 64 hex digits."""
    return sha256_json([image_hashes, question, *map(list, turns)])


def read_edits(
    path: Path,
    image_root: Path | None = None,
    *,
    on_error: Literal["stop", "skip"] = "stop",
    strict_paths: bool = False,
    decoded: Container[str] = (),
) -> EditStream:
    """Read and check a whole edits file; image paths are relative to ``image_root``, by default the file's folder.

    A file that starts with `[` is read as one JSON array of records. Two answers to the same question about the same
    images are a problem, of the later line. For ``decoded`` see `locate_image`.

    Raises:
        StreamErrors: there are problems and ``on_error`` is "stop".
        DataError: the file cannot be read at all.
    """
    refuse_table(path)
    with opened(path) as file:
        read, root = records(file, str(path)), image_root or path.parent
        return check_edits(read, str(path), root, on_error=on_error, strict_paths=strict_paths, decoded=decoded)


def check_edits(
    records: Iterable[Record],
    name: str,
    image_root: Path,
    *,
    on_error: Literal["stop", "skip"] = "stop",
    strict_paths: bool = False,
    decoded: Container[str] = (),
) -> EditStream:
    """Check the records of a whole stream; `name` says where they come from. For ``decoded`` see `locate_image`.

    Raises:
        StreamErrors: there are problems and ``on_error`` is "stop", or one is about the whole stream.
    """
    items = list(iter_edits(records, image_root, strict_paths=strict_paths, whole=True, decoded=decoded))
    edits = tuple(item for item in items if isinstance(item, Edit))
    problems = tuple(item for item in items if isinstance(item, Problem))
    if not items:
        problems = (Problem(name, "holds no edits", ONE_PER_LINE),)
    raise_all(problem for problem in problems if on_error == "stop" or not problem.line)
    return EditStream(edits, problems)


def iter_edits(
    records: Iterable[Record],
    image_root: Path | None = None,
    *,
    strict_paths: bool = False,
    whole: bool = False,
    decoded: Container[str] = (),
) -> Iterator[Edit | Problem]:
    """Check records as they arrive; image paths are relative to ``image_root``, by default the current folder.

    A later answer to the same question corrects the earlier one; of a ``whole`` file it is a problem. Otherwise only
    ids and hashes of earlier records stay in memory. For ``decoded`` see `locate_image`.
    """
    images = ImageCache(image_root or Path(), strict=strict_paths, decoded=decoded)
    repeats = Repeats()
    answered: dict[str, Edit] = {}  # subject -> the edit about it; of a whole file only
    for record in records:
        line = checked_line(record, EditLine)
        if not isinstance(line, EditLine):
            yield from line
            continue
        edit = resolve_edit(record, line, images)
        if not isinstance(edit, Edit):
            yield from edit
            continue
        before = answered.get(edit.subject, edit)
        if before.target != edit.target:
            yield record.wrong(_contradiction(edit, before), "keep one of the two lines")
            continue
        admitted = repeats.admit(record, edit.id, edit.content, edit.subject)
        if isinstance(admitted, Problem):
            yield admitted
        elif admitted:
            if whole:
                answered[edit.subject] = edit
            yield edit


QUESTION_LINES = 'write each as {"image": "FILE", "question": "...", "answer": "..."} on a line of its own'


def read_probes(path: Path, image_root: Path | None = None, *, strict_paths: bool = False) -> tuple[Probe, ...]:
    """Read and check an anchors or probes file: lines of `{"image"?, "question", "answer"?}`.

    A line without an id gets the first 16 digits of its content's hash as id; a repeated line counts once.

    Raises:
        StreamErrors: there are problems; the error lists all of them.
        DataError: the file cannot be read at all, or is a table.
    """
    if form := table_form(path):
        raise DataError(f"{path} is {form}, and questions are read from JSON Lines", QUESTION_LINES)
    images = ImageCache(image_root or path.parent, strict=strict_paths)
    seen: dict[str, tuple[str, int]] = {}
    probes: list[Probe] = []
    problems: list[Problem] = []
    with opened(path) as file:
        for record in records(file, str(path)):
            checked = checked_line(record, ProbeLine)
            if not isinstance(checked, ProbeLine):
                problems += checked
                continue
            resolver = _Resolver(record, images)
            probe = resolver.probe(checked)
            problems += resolver.problems
            if resolver.problems:
                continue
            probe = replace(probe, id=checked.id or probe.content[:16], line=record.line)
            if clash := id_conflict(record, seen, probe.id, probe.content):
                problems.append(clash)
            elif seen.setdefault(probe.id, (probe.content, record.line))[1] == record.line:
                probes.append(probe)
    if not probes and not problems:
        problems = [Problem(str(path), "holds no questions", ONE_PER_LINE)]
    raise_all(problems)
    return tuple(probes)


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise all problems as one error; do nothing when there is none.

    Raises:
        StreamErrors: there are problems.
    """
    listed = list(problems)
    if listed:
        raise StreamErrors([str(item) for item in listed], _hint(listed))


def _hint(problems: list[Problem]) -> str:
    """Return what helps with all problems; where they differ, the first hints, each with the first line it is for."""
    first: dict[str, str] = {}
    for problem in problems:
        first.setdefault(problem.hint, problem.where)
    if len(first) == 1:
        return problems[0].hint
    hints = [f"{where}: {hint}" for hint, where in first.items() if hint]
    return "; ".join(hints[:HINTS])


OTHER_NAMES = (
    "`more convert FILE -o edits.jsonl --column question=COLUMN --column target=COLUMN` reads lines of other names"
)
LineModel = TypeVar("LineModel", bound=BaseModel)
EDITS_INSTEAD = (
    "an edit line, where a question is wanted (`question`, `image`, `answer`); `more eval` without --probes asks what "
    "edit lines ask, and `more init --anchors auto FILE` makes anchors of them"
)


def checked_line(record: Record, model: type[LineModel]) -> LineModel | list[Problem]:
    """Return the record as a line of type ``model``, or all problems with it; no image is opened."""
    if record.problem:
        return [record.problem]
    value = record.value
    if not isinstance(value, dict):
        return [record.wrong(f"must be a JSON object, got {shown(value)}", ONE_PER_LINE)]
    if model is EditLine and (form := form_of(value)):
        raise needs_conversion(record.name, form)
    if model is EditLine and is_foreign(value):
        value = to_native(value)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        known, hint = list(model.model_fields), EDITS_INSTEAD if model is ProbeLine and "target" in value else ""
        if model is EditLine and not value.keys() & {"question", "target"}:
            hint = OTHER_NAMES
        return [record.wrong(explain(detail, known), hint) for detail in error.errors(include_url=False)]


class _Resolver:
    """Locates the images of one line and collects the problems with them."""

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

    def frames(self, line: _Asked) -> tuple[ImageSource, ...]:
        if line.video is None:
            return ()
        if line.image:
            self.problems.append(self.record.wrong("has both `image` and `video`", "leave one of them out"))
            return ()
        try:
            return frames_of(line.video, self.images, line.frames)
        except DataError as error:
            self.problems.append(self.record.wrong(error.message, error.hint))
            return ()

    def shown(self, line: _Asked) -> tuple[ImageSource, ...]:
        """Return the images of a question, those of its earlier turns first."""
        earlier = [spelled for message in line.messages for spelled in message.images]
        return (*map(self.image, (*earlier, *line.image)), *self.frames(line))

    def probe(self, line: ProbeLine | LocalityProbe | PortabilityProbe) -> Probe:
        hop, turns = getattr(line, "hop", None), turns_of(line.messages)
        return Probe(line.question, self.shown(line), line.answer, hop, turns=turns)

    def edit(self, line: EditLine) -> Edit:
        images, turns = self.shown(line), turns_of(line.messages)
        content = content_hash([image.sha256 for image in images], line.question, line.target, turns)
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
            turns=turns,
        )


def resolve_edit(record: Record, line: EditLine, images: ImageCache) -> Edit | list[Problem]:
    """Return the edit of a checked line with its images located and hashed, or all problems with them."""
    resolver = _Resolver(record, images)
    edit = resolver.edit(line)
    return resolver.problems or edit


def _contradiction(edit: Edit, before: Edit) -> str:
    about = ("", "picture and ", "pictures and ")[min(len(edit.images), 2)] + "question"
    targets = f"`{shorten(edit.target, 40)}`, there `{shorten(before.target, 40)}`"
    return f"gives another answer than line {before.line} to the same {about} ({targets})"
