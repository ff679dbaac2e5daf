"""`more sign`: signs a state with its ledger, or a folder that merge or export wrote; and who signed one.

The signature is over a statement (`more_cli/store/statement.py`): the state's file and the ledger's head, or every file
of the folder. Lines that were added later are not signed, those before them still are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from more_cli.errors import StateError
from more_cli.files import disk_errors, sha256_file
from more_cli.ops.card import PROVENANCE
from more_cli.ops.provenance import hashes_of, read_provenance
from more_cli.progress import Progress, no_progress
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.snapshots import replay_start
from more_cli.store.state import StateMeta, load_meta, load_state
from more_cli.store.statement import (
    MODEL,
    NAME,
    SIGNATURE,
    STATE,
    Kind,
    Signed,
    Statement,
    parsed,
    read_signed,
    statement_bytes,
    write_signed,
)
from more_cli.store.target import Target
from more_cli.system import ssh
from more_cli.system.ssh import Signer
from more_cli.text import counted, listed, quoted, shorten

SHOWN = 5
"""Most files that one error names."""


@dataclass(frozen=True)
class SignReport:
    """What was signed, and by which key."""

    subject: Path
    """The state, or the folder that merge or export wrote."""
    folder: Path
    """Holds statement and signature."""
    signer: Signer
    files: int
    lines: int | None
    """Lines of the ledger; None for a folder."""

    @property
    def statement(self) -> Path:
        """The statement."""
        return self.folder / NAME

    @property
    def signature(self) -> Path:
        """Its signature."""
        return self.folder / SIGNATURE


@dataclass(frozen=True)
class Signature:
    """A signature that matches what it signs."""

    signer: Signer
    lines: int
    """Lines of the ledger that it covers."""
    total: int
    """Lines that there are."""

    @property
    def rest(self) -> str:
        """The lines that it does not cover, in words."""
        first = self.lines + 1
        if first > self.total:
            return ""
        return f"line {first}" if first == self.total else f"lines {first} to {self.total}"

    def __str__(self) -> str:
        if not self.rest:
            all_lines = {0: "no lines yet", 1: "its only line"}.get(self.lines, f"all {self.lines:,} lines")
            return f"{all_lines}, by {self.signer}"
        verb = "is" if self.total - self.lines == 1 else "are"
        return f"up to line {self.lines} of {self.total}, by {self.signer}; {self.rest} {verb} not"


def sign(target: Target, key: Path, progress: Progress = no_progress) -> list[SignReport]:
    """Sign a state, and the folder of the model where merge or export wrote it: all that `more verify` checks.

    Raises:
        StateError: there is neither, it is damaged, or the state lacks lines of its ledger.
        UsageError: the key cannot be used, or `ssh-keygen` is missing.
    """
    reports = []
    if (target.model / PROVENANCE).is_file():
        reports.append(_sign(target.model, target.model, _of_folder(target.model, progress), key))
    if target.sidecar.exists() or not reports:
        load_meta(target.sidecar)  # raises where there is none, before the lock makes its folder
        with writer_lock(target.lock):
            reports.append(_sign(target.sidecar, target.folder, _of_state(target), key))
    return reports


def _sign(subject: Path, folder: Path, statement: bytes, key: Path) -> SignReport:
    signed = Signed(statement, ssh.sign(statement, key))
    signer = ssh.signer_of(*signed, None)
    write_signed(folder, signed)
    said = Statement.model_validate_json(statement)
    return SignReport(subject, folder, signer, len(said.subject), said.predicate.lines)


def _of_state(target: Target) -> bytes:
    ledger, state = Ledger(target.folder), load_state(target.sidecar)
    ledger.check_contents()
    behind = replay_start(state, ledger, target.sidecar) is not state or state.meta.edits < len(ledger.history)
    if behind:
        what = f"`{target.sidecar}` does not have all lines of its ledger yet"
        raise StateError(what, f"`more edit {target.typed} EDITS`, with its last file, brings it up to date")
    ledger.cut_torn()
    files, meta = {target.sidecar.name: target.sidecar}, state.meta
    if ledger.entries:
        files[f"{target.folder.name}/{ledger.path.name}"] = ledger.path
    predicate = {
        "base": meta.base,
        "recipe": meta.recipe.canonical(),
        "edits": meta.edits,
        "digest": meta.digest,
        "ledger_head": ledger.head,
        "lines": len(ledger.entries),
        "asked": len(ledger.asked()),
        "failed": len(ledger.failed()),
    }
    with disk_errors(target.sidecar):
        hashes = {name: sha256_file(path) for name, path in files.items()}
    return statement_bytes(STATE, hashes, predicate)


def _of_folder(folder: Path, progress: Progress) -> bytes:
    values = read_provenance(folder)
    predicate = {name: values.get(name) for name in ("base", "recipe", "edits", "digest", "ledger_head", "asked")}
    predicate["failed"] = len(values.get("failed", []))
    return statement_bytes(MODEL, hashes_of(folder, _files(folder), progress), predicate)


def _files(folder: Path) -> list[str]:
    """Return the names of the files that a signature of a folder covers: all but hidden ones, and itself."""
    with disk_errors(folder):
        found = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file() or path.is_symlink()]
    shown = (file.as_posix() for file in found if not any(part.startswith(".") for part in file.parts))
    return [name for name in shown if name not in (NAME, SIGNATURE)]


def opened(signed: Signed, kind: Kind, signers: Path | None) -> tuple[Statement, Signer]:
    """Return a statement and who signed it, with `signers` one of them.

    Raises:
        StateError: the signature does not match it, is of somebody else, or it is a statement about something else.
        Missing: there is no `ssh-keygen`.
    """
    signer = ssh.signer_of(*signed, signers)
    return parsed(signed.statement, kind), signer


def state_signature(target: Target, meta: StateMeta, ledger: Ledger, signers: Path | None) -> Signature | None:
    """Return who signed a state, and how much of its ledger; None where nobody did.

    Raises:
        StateError: as `opened`; also what was signed has changed.
        Missing: there is no `ssh-keygen`.
    """
    signed = read_signed(target.folder)
    if signed is None:
        return None
    statement, signer = opened(signed, STATE, signers)
    said, lines = statement.predicate, statement.predicate.lines or 0
    hint = f"restore it from a backup or, if it is sound, sign it again: more sign {target.typed} --key KEY"
    if ledger.head_at(lines) != said.ledger_head:
        what = f"its first {counted(lines, 'line')} {'has' if lines == 1 else 'have'} changed"
        raise StateError(f"`{ledger.path}` is not the ledger that {signer} signed: {what}", hint)
    if said.base != meta.base:
        raise StateError(f"`{target.sidecar}` has another base than the state that {signer} signed", hint)
    if lines == len(ledger.entries):
        with disk_errors(target.sidecar):
            same = sha256_file(target.sidecar) in statement.files.values()
        if not same:
            raise StateError(f"`{target.sidecar}` has changed since {signer} signed it", hint)
    return Signature(signer, lines, len(ledger.entries))


def folder_signature(folder: Path, signers: Path | None, *, deep: bool, progress: Progress) -> Signer | None:
    """Return who signed a folder that merge or export wrote; None where nobody did. Bytes are compared if `deep`.

    Raises:
        StateError: as `opened`; also a file has changed since, is missing or new.
        Missing: there is no `ssh-keygen`.
    """
    signed = read_signed(folder)
    if signed is None:
        return None
    statement, signer = opened(signed, MODEL, signers)
    there, said = _files(folder), statement.files
    flaws = [f"`{shorten(name)}` is missing" for name in said if name not in there]
    flaws += [f"`{shorten(name)}` is not signed" for name in there if name not in said]
    if deep:
        actual = hashes_of(folder, [name for name in said if name in there], progress)
        flaws += [f"`{shorten(name)}` has changed" for name, sha256 in actual.items() if said[name] != sha256]
    if flaws:
        hint = f"copy the folder again or, if it is sound, sign it again: more sign {quoted(folder)} --key KEY"
        raise StateError(f"since {signer} signed: {listed(flaws, SHOWN, '; ')}", hint)
    return signer


def carried_signature(signed: Signed, values: Mapping[str, Any], signers: Path | None) -> str:
    """Return in words which edits of a folder are signed and by whom, as its `more.json` has it in `values`.

    Raises:
        StateError: as `opened`.
        Missing: there is no `ssh-keygen`.
    """
    statement, signer = opened(signed, STATE, signers)
    said = statement.predicate
    part = "" if said.ledger_head == values.get("ledger_head") else f" up to line {said.lines}"
    return f"the edits{part}, by {signer}"
