"""One line of the ledger: what is kept of an edit, and how a line is parsed and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from more_cli.errors import StateError
from more_cli.files import sha256_bytes
from more_cli.inputs.turns import Turn
from more_cli.store.status import Status
from more_cli.text import canonical_json, counted, listed, shorten, verb

START = "0" * 64
"""The hash before the first line, and the digest of no edits."""
SHOWN = 5
"""Largest number of failed edits that one sentence names."""


class FailedEdit(NamedTuple):
    """An edit that was asked for and does not stand."""

    id: str
    status: Status
    reason: str
    """Why, and what may help; can be empty in ledgers of older versions."""


def failed_sentence(failed: Sequence[FailedEdit], asked: int) -> str:
    """Return which of the edits that were `asked` for do not stand, on one line."""
    named = listed([f"{edit.id} ({edit.status})" for edit in failed], SHOWN)
    do = verb(len(failed), "does", "do")
    return f"{len(failed)} of {counted(asked, 'edit')} {do} not stand: {named}"


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """An object in a file of ours: no further keys, and values of exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TurnEntry(Strict):
    """An earlier turn of a conversation as the ledger keeps it."""

    role: str
    """`user` or `assistant`"""
    text: str
    """what was said"""
    images: Count = 0
    """how many of the edit's images it shows"""


def _shown(turns: list[TurnEntry], info: ValidationInfo) -> list[TurnEntry]:
    """Check that earlier turns show no more images than there are: their number decides how long a prompt is."""
    images = info.data.get("images", []) or [info.data.get("image")]
    if sum(turn.images for turn in turns) > len(list(filter(None, images))):
        raise ValueError("more images than there are")
    return turns


def _storable(tags: dict[str, Any]) -> dict[str, Any]:
    """Check that tags can be written again, to the ledger of another state: JSON has no infinity and no NaN."""
    canonical_json(tags)
    return tags


Turns = Annotated[list[TurnEntry], AfterValidator(_shown)]
"""Earlier turns, after the images that they show first."""


class ProbeEntry(Strict):
    """A probe of an edit as the ledger keeps it."""

    question: str
    """the question"""
    image: Sha256 | None = None
    """SHA-256 of its image, if it has one"""
    images: list[Sha256] = Field([], exclude_if=lambda images: not images)
    """those of its images in order, if it has several"""
    answer: str | None = None
    """the answer that was given; locality compares with what the base says"""
    hop: int | None = None
    """portability: steps of reasoning"""
    turns: Turns = Field([], exclude_if=lambda turns: not turns)
    """earlier turns; a probe without any lacks the key"""

    @property
    def pictures(self) -> list[str]:
        """SHA-256 of all of its images."""
        return [self.image] if self.image else self.images


def turn_fields(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Return earlier turns as a line has them."""
    return [turn._asdict() for turn in turns]


def turns_in(entries: Iterable[TurnEntry]) -> tuple[Turn, ...]:
    """Return the earlier turns that a line has."""
    return tuple(Turn(entry.role, entry.text, entry.images) for entry in entries)


def shown_as(hashes: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a `ProbeEntry` for a probe with these images."""
    return {"image": None, "images": list(hashes)} if len(hashes) > 1 else {"image": next(iter(hashes), None)}


class Entry(Strict):
    """One line of the ledger.

    Places are positions in the history, counted from 1 (see `Ledger.history`); without reverts a place equals `seq`.
    A "consolidate" line says that the edits from place `since` on were checked again and the wrong ones written
    together, or all of them `anew`. A "compact" line says that all standing edits were written anew by themselves,
    because there were enough of them. A "revert" line undoes the edits `ids`: the history is cut before place `since`,
    and the next `redone` lines repeat the later edits without them. An "anchors" line says that later writes hold
    another set of anchors.
    """

    seq: Annotated[int, Field(ge=1)]
    """number of the line, from 1"""
    prev: Sha256
    """SHA-256 of the line before; zeros in the first"""
    check: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of this line with this value empty; it protects the last line, whose hash no other line holds"""
    kind: Literal["edit", "revert", "consolidate", "compact", "anchors"] = "edit"
    """`edit`, `consolidate`, `compact`, `revert` or `anchors`"""
    id: str
    """name of the edit"""
    status: Status
    """what became of it"""
    reason: str = ""
    """why it was refused or not learnt"""
    content: Sha256 = START
    """SHA-256 over images, question and target, or of the set of anchors"""
    subject: Sha256 = START
    """SHA-256 over images and question"""
    images: list[Sha256] = []
    """SHA-256 of each image; the files are in `images/`"""
    question: str = ""
    """from the edit line"""
    target: str = ""
    """from the edit line"""
    turns: Turns = []
    """earlier turns, whose images come first in `images`; a line without any lacks the key"""
    rephrases: list[str] = []
    """from the edit line"""
    image_rephrases: list[Sha256] = []
    """SHA-256 of each image"""
    locality: list[ProbeEntry] = []
    """probes, with the images' hashes"""
    portability: list[ProbeEntry] = []
    """probes, with the images' hashes"""
    made: list[ProbeEntry] = []
    """anchors made of its picture, which later writes hold, and its own; a line without any lacks the key"""
    tags: Annotated[dict[str, Any], AfterValidator(_storable)] = {}
    """from the edit line"""
    paths: dict[str, str] = {}
    """absolute path by hash, for images that are not in the store"""
    source: str = ""
    """file of the edit line"""
    line: Count = 0
    """its line number"""
    nll_before: float | None = None
    """mean negative log-likelihood of the target's tokens before the edit, in nats"""
    nll_after: float | None = None
    """the same after the edit"""
    greedy_base: str | None = None
    """greedy answer of the base; a line of an older version lacks the key"""
    greedy_before: str | None = None
    """greedy answer before this edit, with all earlier ones; `null` in lines of older versions"""
    greedy_after: str | None = None
    """greedy answer after this edit, before any later one"""
    forced_before: str | None = Field(None, validation_alias=AliasChoices("forced_before", "answer_before"))
    """before the edit, the most likely token at each position of the target, given the target before it;
    `answer_before` in lines of older versions"""
    forced_after: str | None = Field(None, validation_alias=AliasChoices("forced_after", "answer_after"))
    """the same after the edit; `answer_after` in lines of older versions"""
    right_after: bool | None = None
    """whether the greedy answer after it equals the target"""
    retry: bool = False
    """whether it takes the place of earlier tries of the same edit"""
    settings: list[str] = []
    """changes of the recipe for this try alone, as KEY=VALUE"""
    joint: bool = False
    """whether only its key was absorbed here: a consolidation writes it, together with others"""
    writes: Count = 0
    """writes made for it"""
    sites: list[str] = []
    """sites that were written"""
    cost: float | None = None
    """samples sent forward and backward; a sample sent only forward counts a third"""
    looks: list[tuple[int, float]] = []
    """past edits that were checked: place in the history, and margin in logits"""
    drifts: list[tuple[int, float]] = []
    """watched anchors that were looked at afterwards: place in their set, and KL divergence from the base in nats per
    token"""
    since: Count = 0
    """of `consolidate` and `revert`: place in the history that it starts from"""
    anew: bool = False
    """of `consolidate`: whether everything that was written was taken out first"""
    ids: list[str] = []
    """of `revert`: the edits it reverts"""
    redone: Count = 0
    """of `revert`: how many of the next lines make later edits again"""
    anchors: Count = 0
    """of `anchors`: number of anchors that later writes hold"""
    wall_ms: float | None = None
    """time of the edit in milliseconds"""
    time: str
    """UTC, ISO 8601"""
    versions: dict[str, str] = {}
    """versions of `more` and its libraries, device, dtype, attention kernel and threads"""
    note: str = ""
    """what to know, such as another number of threads"""

    @property
    def moment(self) -> datetime | None:
        """When it was written; without a zone, UTC; None if `time` is no time."""
        with suppress(ValueError):
            time = datetime.fromisoformat(self.time)
            return time if time.tzinfo else time.replace(tzinfo=UTC)
        return None

    @property
    def pictures(self) -> list[str]:
        """SHA-256 of all images of the edit and of its probes."""
        probes = (*self.locality, *self.portability)
        return [*self.images, *self.image_rephrases, *(picture for probe in probes for picture in probe.pictures)]

    @property
    def joint_writing(self) -> bool:
        """Whether the line says which edits were scored and written together."""
        return self.kind in ("consolidate", "compact")

    @property
    def drift(self) -> float | None:
        """Largest drift of the watched anchors that were scored afterwards, nats per token; None if none was."""
        if not self.drifts:
            return None
        return max(drift for _, drift in self.drifts) + 0.0  # -0.0 becomes 0.0

    @property
    def said_before(self) -> str | None:
        """The answer before this edit, if it is not the base's: earlier edits had changed it."""
        return None if self.greedy_before == self.greedy_base else self.greedy_before

    @property
    def consolidated(self) -> str:
        """What a "consolidate" or "compact" line did to its edits, in words."""
        undone = f" ({self.reason})" if self.reason else ""
        return ("written anew" if self.anew or self.kind == "compact" else "checked") + undone

    def description(self) -> dict[str, Any]:
        """Return the fields that describe the edit, without measurements: what `Ledger.describe` returns."""
        return self.model_dump(include=_DESCRIPTION)

    def fields(self) -> dict[str, Any]:
        """Return the fields that `Ledger.append` needs to write the same line to another ledger."""
        return self.model_dump(exclude={"seq", "prev"})


_LACKING = ("made", "turns", "greedy_base")
"""Fields that older versions do not know: a line has the key only if there is something to say."""
_DESCRIPTION = {"id", "content", "subject", "images", "question", "target", "rephrases", "image_rephrases"} | {
    "locality", "portability", "tags", "source", "line", "paths", "turns"
}  # fmt: skip


def with_checksum(entry: Entry) -> tuple[Entry, bytes]:
    """Return the entry with its checksum, and its line including the newline."""
    lacking = {name for name in _LACKING if getattr(entry, name) in ([], None)}
    values = entry.model_copy(update={"check": ""}).model_dump(mode="json", exclude=lacking)
    bare = f"{canonical_json(values)}\n".encode()
    check = sha256_bytes(bare)
    return entry.model_copy(update={"check": check}), bare.replace(_NO_CHECK, _CHECK % check.encode(), 1)


_CHECK = b'"check":"%s"'
_NO_CHECK = _CHECK % b""


def parse_entry(line: bytes, path: Path, number: int) -> Entry:
    """Parse one line and compare it with its checksum.

    Raises:
        StateError: as `read_entry` and `check_line`.
    """
    entry = read_entry(line, path, number)
    check_line(entry, line, path, number)
    return entry


def check_line(entry: Entry, line: bytes, path: Path, number: int) -> None:
    """Compare a line with its checksum, if it has one.

    Raises:
        StateError: the line was changed.
    """
    check = entry.check.encode()
    if check and sha256_bytes(line.replace(_CHECK % check, _NO_CHECK, 1)) != entry.check:
        raise damaged(path, number, "was changed: it does not match its checksum")


def read_entry(line: bytes, path: Path, number: int) -> Entry:
    """Parse one line without comparing its checksum; `path` and `number` are for messages.

    Raises:
        StateError: the line is damaged, or from a newer version.
    """
    try:
        return Entry.model_validate_json(line)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    place = shorten(".".join(str(part) for part in detail["loc"][:3]))
    if detail["type"] == "extra_forbidden":
        raise damaged(path, number, f"has a field `{place}` of a newer version")
    raise damaged(path, number, f"is damaged (`{place}`)" if place else "is not JSON")


def damaged(path: Path, number: int, text: str) -> StateError:
    """Return the error for a damaged line."""
    hint = "restore the folder from a backup; the lines before this one are intact"
    return StateError(f"{path}:{number}: line {text}", hint)
