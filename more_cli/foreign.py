"""Records as they come from outside: lines of JSON or one JSON array, in our spelling or another project's.

MMEdit (E-VQA, E-IC), VLKEB and MMKE-Bench records are rewritten as edit lines. Nothing is dropped: what an edit
line has no field for goes into `tags` under its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from more_cli.errors import DataError
from more_cli.files import strict_json

LINE_BYTES = 16 * 2**20
"""Longest line of a stream, bytes."""
ARRAY_BYTES = 256 * 2**20
"""Largest JSON array that is read as a whole, bytes."""
ONE_PER_LINE = "an edits file holds one JSON object per line"

_CONVERTED = {
    "src",
    "alt",
    "rephrase",
    "image",
    "image_rephrase",
    "loc",
    "loc_ans",
    "m_loc",
    "m_loc_q",
    "m_loc_a",
    "port_new",
    "one_hop_img",
    "id",
    "tags",
}
# `pred` is the old answer; the others are MMKE-Bench's, whose questions are spelled `rel_ans_1` or `rel_1_ans`.
_KEPT_AS_TAGS = re.compile(r"pred|instance_id|knowledge_type|image_rephrase_question|(m_)?rel(_ans)?(_\d+)?(_ans)?")
_HOP = re.compile(r"(\d{1,3})-hop")


@dataclass(frozen=True)
class Problem:
    """What is wrong with one line of a file."""

    where: str
    """`edits.jsonl:17`"""
    text: str
    hint: str = ""
    line: int = 0
    """0 when it is the whole file."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True)
class Record:
    """One JSON value of a file, or why there is none."""

    name: str
    line: int
    """Counted from 1; in an array the record's number."""
    value: object = None
    problem: Problem | None = None

    @property
    def where(self) -> str:
        """Name and line, as messages start."""
        return f"{self.name}:{self.line}"

    def wrong(self, text: str, hint: str = "") -> Problem:
        """Return a problem with this record."""
        return Problem(self.where, text, hint, self.line)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a user's file for reading.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"file not found: `{path}`") from None
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from None


def records(file: BinaryIO, name: str) -> Iterator[Record]:
    """Yield the records of a file of JSON lines, or of one JSON array if it starts with `[`."""
    head = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        hint = "save it as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"
        return iter([Record(name, 0, problem=Problem(name, "is UTF-16, not UTF-8", hint))])
    return _array(file, name) if head.startswith(b"[") else lines(file, name)


def _array(file: BinaryIO, name: str) -> Iterator[Record]:
    raw = file.read(ARRAY_BYTES + 1)
    try:
        if len(raw) > ARRAY_BYTES:
            raise ValueError(f"is a JSON array of more than {ARRAY_BYTES >> 20} MiB")
        values = strict_json(_decoded(raw))
    except ValueError as error:
        yield Record(name, 0, problem=Problem(name, str(error), ONE_PER_LINE))
        return
    assert isinstance(values, list)
    for number, value in enumerate(values, 1):
        yield Record(name, number, value)


def lines(stream: IO[bytes] | IO[str], name: str) -> Iterator[Record]:
    """Yield the records of a stream of JSON lines as they come; blank lines are passed over."""
    stream = getattr(stream, "buffer", stream)  # the bytes below a text stream
    number = 0
    while piece := stream.readline(LINE_BYTES + 1):
        number += 1
        where = f"{name}:{number}"
        raw = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
        if len(raw) > LINE_BYTES:
            while piece and piece[-1:] not in (b"\n", "\n"):
                piece = stream.readline(LINE_BYTES)
            text = f"line is longer than {LINE_BYTES >> 20} MiB"
            yield Record(name, number, problem=Problem(where, text, ONE_PER_LINE, number))
            continue
        try:
            if text := _decoded(raw).strip(" \t\r\n"):
                yield Record(name, number, strict_json(text))
        except ValueError as error:
            hint = ONE_PER_LINE if str(error).startswith("not JSON") else ""
            yield Record(name, number, problem=Problem(where, str(error), hint, number))


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1}") from None


def is_foreign(record: Mapping[str, object]) -> bool:
    """Tell whether a record is spelled in MMEdit's way (`src`, `alt`) and not as an edit line."""
    return "src" in record and "alt" in record and "question" not in record and "target" not in record


def to_native(record: Mapping[str, object]) -> dict[str, object]:
    """Return a foreign record as the fields of an edit line; values are passed on for the reader to check.

    The text is the data's own, also the prefix `nq question: ` of MMEdit's locality questions.
    """
    native: dict[str, object] = {"question": record["src"], "target": record["alt"]}
    for name in ("id", "image"):
        if name in record:
            native[name] = record[name]
    for name, theirs in (("rephrases", "rephrase"), ("image_rephrases", "image_rephrase")):
        if theirs in record:
            native[name] = _listed(record[theirs])
    if locality := _locality(record):
        native["locality"] = locality
    if "port_new" in record:
        native["portability"] = _portability(record)
    tags = {name: value for name, value in record.items() if _KEPT_AS_TAGS.fullmatch(name)}
    own_tags = record.get("tags", {})
    native["tags"] = {**own_tags, **tags} if isinstance(own_tags, Mapping) else own_tags
    # The rest is misspelt or unknown: the reader refuses it by name.
    return native | {name: record[name] for name in record if name not in _CONVERTED and name not in tags}


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _locality(record: Mapping[str, object]) -> list[dict[str, object]]:
    probes: list[dict[str, object]] = []
    if "loc" in record:
        probes.append(_given(question=record["loc"], answer=record.get("loc_ans")))
    if "m_loc" in record:
        fields = _given(image=record["m_loc"], answer=record.get("m_loc_a"))
        probes.append({**fields, "question": record.get("m_loc_q")})
    return probes


def _portability(record: Mapping[str, object]) -> object:
    """Turn `port_new` into probes; VLKEB asks them about the edit's image, MMKE-Bench may name another."""
    entries = record["port_new"]
    if not isinstance(entries, list):
        return entries
    return [_port_probe(entry, record) for entry in entries]


def _port_probe(entry: object, record: Mapping[str, object]) -> object:
    if not isinstance(entry, Mapping):
        return entry
    image = record.get("image")
    if isinstance(image, list):
        image = image[0] if image else None
    if "port_q" in entry:  # VLKEB's eval_edit_onehop.json
        return _given(image=image, question=entry["port_q"], answer=entry.get("port_a"), hop=1)
    asked = entry.get("Q&A")
    kind = entry.get("port_type")
    if not isinstance(asked, Mapping) or not isinstance(kind, str):
        return dict(entry)
    found = _HOP.fullmatch(kind)
    hop = int(found[1]) if found else None
    if hop == 1:
        image = record.get("one_hop_img", image)
    return _given(image=image, question=asked.get("Question"), answer=asked.get("Answer"), hop=hop)


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
