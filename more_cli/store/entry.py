"""One line of the ledger: what is kept of an edit, and how a line is checked when it is read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from more_cli.errors import StateError
from more_cli.files import canonical_json, sha256_bytes, shorten

START = "0" * 64
"""The hash before the first line, and the digest of no edits."""


class Status(StrEnum):
    """What became of an edit."""

    LEARNT = "learnt"
    NOT_LEARNT = "not-learnt"
    """Written, still wrong after the last step."""
    REFUSED = "refused"
    """Rolled back."""
    ALREADY_RIGHT = "already-right"
    """Nothing written, its key absorbed."""
    SUPERSEDED = "superseded"
    """A later edit has the same images and question and another target."""
    REVERTED = "reverted"


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProbeEntry(_Strict):
    """A probe of an edit as the ledger keeps it."""

    question: str
    image: Sha256 | None = None
    answer: str | None = None
    hop: int | None = None


class Entry(_Strict):
    """One line of the ledger.

    Lines count by their place in the history (see `Ledger.history`), which is `seq` where nothing was reverted. A
    "consolidate" line says that the edits from place `since` on were written together where they did not hold. A
    "revert" line takes the edits `ids` back: the history ends before place `since`, and the next `redone` lines tell
    what came after anew, without them.
    """

    seq: Annotated[int, Field(ge=1)]
    prev: Sha256
    check: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the line with nothing in this place; empty in lines of older versions. The chain says nothing of the
    last line."""
    kind: Literal["edit", "revert", "consolidate"] = "edit"
    id: str
    status: Status
    reason: str = ""
    content: Sha256 = START
    """Of images, question and target; likewise `subject`, of images and question."""
    subject: Sha256 = START
    images: list[Sha256] = []
    question: str = ""
    target: str = ""
    rephrases: list[str] = []
    image_rephrases: list[Sha256] = []
    locality: list[ProbeEntry] = []
    portability: list[ProbeEntry] = []
    tags: dict[str, Any] = {}
    paths: dict[str, str] = {}
    """Image hash -> absolute path, for images that are not in the store."""
    source: str = ""
    line: Count = 0
    nll_before: float | None = None
    """Nats per token; None where it was not measured or not finite. Likewise `nll_after`."""
    nll_after: float | None = None
    answer_before: str | None = None
    answer_after: str | None = None
    right_after: bool | None = None
    joint: bool = False
    """Only its key was absorbed here: the next consolidation writes it, together with others."""
    writes: Count = 0
    sites: list[str] = []
    """Where they went."""
    cost: float | None = None
    """Samples sent forward and backward; only forward counts a third."""
    looks: list[tuple[int, float]] = []
    """Edits looked at, by place, with the margin last seen."""
    since: Count = 0
    ids: list[str] = []
    redone: Count = 0
    wall_ms: float | None = None
    time: str
    """UTC, ISO 8601."""
    versions: dict[str, str] = {}
    note: str = ""

    def about(self) -> dict[str, Any]:
        """Return what describes the edit, without what was measured: the part that `Ledger.keep` makes."""
        return self.model_dump(include=_ABOUT)

    def fields(self) -> dict[str, Any]:
        """Return what `Ledger.append` takes to write the same line elsewhere."""
        return self.model_dump(exclude={"seq", "prev"})


_ABOUT = {"id", "content", "subject", "images", "question", "target", "rephrases", "image_rephrases"} | {
    "locality", "portability", "tags", "source", "line", "paths"
}  # fmt: skip


def sealed(entry: Entry) -> tuple[Entry, bytes]:
    """Return an entry with its checksum, and its line, newline included."""
    bare = f"{canonical_json(entry.model_copy(update={'check': ''}).model_dump(mode='json'))}\n".encode()
    check = sha256_bytes(bare)
    return entry.model_copy(update={"check": check}), bare.replace(_NO_CHECK, _CHECK % check.encode(), 1)


_CHECK = b'"check":"%s"'
_NO_CHECK = _CHECK % b""


def parse_entry(line: bytes, path: Path, number: int) -> Entry:
    """Return the entry of one line, once its checksum was seen to be right; see `read_entry`."""
    entry = read_entry(line, path, number)
    vouch(entry, line, path, number)
    return entry


def vouch(entry: Entry, line: bytes, path: Path, number: int) -> None:
    """Compare a line with its checksum, if it has one.

    Raises:
        StateError: it was changed.
    """
    check = entry.check.encode()
    if check and sha256_bytes(line.replace(_CHECK % check, _NO_CHECK, 1)) != entry.check:
        raise damaged(path, number, "was changed: it does not have its checksum")


def read_entry(line: bytes, path: Path, number: int) -> Entry:
    """Return the entry of one line, its checksum unseen; `path` and `number` say where it stood.

    Raises:
        StateError: it is damaged, or from a newer version.
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
    """Return the error for a bad line."""
    hint = "restore the folder from a backup; what the lines before it hold is intact"
    return StateError(f"{path}:{number}: line {text}", hint)
