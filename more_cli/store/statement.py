"""What is signed of a state, or of a folder that merge or export wrote: an in-toto statement, kept beside it.

A statement names files with their SHA-256 (https://in-toto.io/Statement/v1), and of the edits the base, the recipe and
the ledger's head. It has no time and no path, so the same state gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from more_cli.errors import StateError
from more_cli.files import disk_errors, replacing, sync_folder, write_synced
from more_cli.store.entry import Count, Sha256, Strict
from more_cli.text import canonical_json, is_utf8

TYPE: Final = "https://in-toto.io/Statement/v1"
NAME: Final = "more.intoto.json"
SIGNATURE: Final = f"{NAME}.sig"
Kind = Literal["urn:more-vlm:state:1", "urn:more-vlm:model:1"]
STATE: Final = "urn:more-vlm:state:1"
MODEL: Final = "urn:more-vlm:model:1"
"""The `predicateType` of a statement about a state and its ledger, or about a folder that merge or export wrote."""
_LIMIT = 64 << 20
"""Largest statement that is read, bytes."""


class Digest(Strict):
    """How in-toto writes a file's hash."""

    sha256: Sha256


class Subject(Strict):
    """A file that the statement is about."""

    name: str
    digest: Digest


class Edits(Strict):
    """The edits that the files hold: the predicate."""

    base: dict[str, str]
    """fingerprint of the base, as in `more.json`"""
    recipe: dict[str, Any]
    """the recipe in full"""
    edits: Count
    """ledger lines that are in the state"""
    digest: Sha256
    """SHA-256 over the edits in order"""
    ledger_head: Sha256
    """SHA-256 of the ledger's last line"""
    lines: Count | None = None
    """of a state: lines of the ledger"""
    asked: Count
    """edits that were asked for"""
    failed: Count
    """those of them that do not stand"""


class Statement(Strict):
    """An in-toto statement, version 1."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[Subject]
    predicateType: Kind  # noqa: N815 (in-toto's name)
    predicate: Edits

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of the files, by name."""
        return {subject.name: subject.digest.sha256 for subject in self.subject}


class Signed(NamedTuple):
    """The bytes of a statement, and their signature."""

    statement: bytes
    signature: bytes


def statement_bytes(kind: Kind, files: Mapping[str, str], predicate: Mapping[str, Any]) -> bytes:
    """Return the statement that these files, by name with their SHA-256, hold these edits.

    Raises:
        StateError: a name is not UTF-8, or the predicate has not what it needs.
    """
    values = {
        "_type": TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in sorted(files.items())],
        "predicateType": kind,
        "predicate": dict(predicate),
    }
    if odd := next((name for name in files if not is_utf8(name)), ""):
        raise StateError(f"`{odd}` cannot be signed: its name is not UTF-8", "rename it")
    try:
        Statement.model_validate(values)
    except ValidationError as error:
        raise StateError(
            f"what should be signed has no usable `{_place(error)}`", "check it with `more verify`"
        ) from None
    return f"{canonical_json(values)}\n".encode()


def parsed(statement: bytes, kind: Kind) -> Statement:
    """Read a statement about a state or about a model, whichever is wanted.

    Raises:
        StateError: it is something else.
    """
    try:
        found = Statement.model_validate_json(statement)
    except ValidationError as error:
        raise StateError(f"the signed file is no statement of `more` (`{_place(error)}`)", _AGAIN) from None
    if found.predicateType != kind:
        raise StateError(f"the signed file is a statement of the type `{found.predicateType}`, not `{kind}`", _AGAIN)
    return found


def _place(error: ValidationError) -> str:
    return ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])


_AGAIN = "sign again with `more sign MODEL --key KEY`"


def read_signed(folder: Path) -> Signed | None:
    """Return the statement of a folder with its signature; None where it is not signed.

    Raises:
        StateError: one of the two files is missing or too large, or cannot be read.
    """
    paths = folder / NAME, folder / SIGNATURE
    there = [path.is_file() for path in paths]
    if not any(there):
        return None
    if not all(there):
        raise StateError(f"`{paths[there.index(False)]}` is missing", _AGAIN)
    with disk_errors(folder):
        if large := [path for path in paths if path.stat().st_size > _LIMIT]:
            raise StateError(f"`{large[0]}` is larger than {_LIMIT >> 20} MiB", _AGAIN)
        return Signed(*(path.read_bytes() for path in paths))


def remove_signed(folder: Path) -> None:
    """Remove a statement and its signature, which a copy of a signed folder has."""
    for name in (SIGNATURE, NAME):
        (folder / name).unlink(missing_ok=True)


def write_signed(folder: Path, signed: Signed) -> None:
    """Put a statement and its signature into a folder, in place of what is there once both are on disk.

    A crash between the two leaves no signature, never an old one beside a new statement.
    """
    if any((folder / name).is_symlink() for name in (NAME, SIGNATURE)):  # `replacing` would write to what it names
        with disk_errors(folder):
            remove_signed(folder)
    new = partial(replacing, durable=False)  # both are, once they are written
    with new(folder / SIGNATURE) as signature, new(folder / NAME) as statement, disk_errors(folder):
        write_synced(statement, signed.statement)
        write_synced(signature, signed.signature)
        (folder / SIGNATURE).unlink(missing_ok=True)
    with disk_errors(folder):
        sync_folder(folder)
