"""Where a merged checkpoint or an adapter comes from: `more.json` beside the weights.

Neither it nor the model card holds a path or a date: the same state and base give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from more_cli.checkpoint.folder import ADAPTER
from more_cli.checkpoint.hub import pin_of
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint, fingerprint
from more_cli.errors import DISTRIBUTION, StateError, UsageError
from more_cli.files import disk_errors, names_below, sha256_file, write_new
from more_cli.ops.card import CARD, PROVENANCE, Relation, counts, hub_id, section, titled
from more_cli.progress import Progress
from more_cli.store.statement import NAME, SIGNATURE, STATE, Signed, parsed, read_signed, remove_signed
from more_cli.text import canonical_json, reason_of, shorten, strict_json

if TYPE_CHECKING:
    from more_cli.ops.session import Session  # needs torch
    from more_cli.store.ledger import Ledger

SCHEMA = "more.provenance/1"
_LIMIT = 64 << 20
"""Largest `more.json` that is read, bytes."""
_HOLDS: dict[Relation, str] = {"finetune": "a merged checkpoint", "adapter": "an adapter"}
_AGAIN = "copy it again, or write it again with `more merge` or `more export`"


def provenance(session: Session) -> dict[str, Any]:
    """Return the base, edits, recipe and versions of a state as it is now."""
    from more_cli.model.versions import versions

    meta = session.state.meta
    return {
        "schema": SCHEMA,
        "edits": meta.edits,
        "digest": meta.digest,
        "ledger_head": session.ledger.head,
        "base": meta.base,
        "anchors": session.anchors.digest,
        "recipe": meta.recipe.canonical(),
        "versions": versions(session.machine),
    }


def of_edits(ledger: Ledger) -> dict[str, Any]:
    """Return how many edits were asked for, those of them that do not stand, and who signed them, as JSON values.

    Raises:
        StateError: what was signed is damaged.
    """
    signed = read_signed(ledger.folder)
    if signed is not None:
        parsed(signed.statement, STATE)
    texts = {"signed": {name: part.decode() for name, part in signed._asdict().items()}} if signed else {}
    return {"asked": len(ledger.asked()), "failed": [edit._asdict() for edit in ledger.failed()], **texts}


def write_provenance(
    session: Session,
    folder: Path,
    relation: Relation,
    files: Mapping[str, str],
    *,
    facts: Mapping[str, str],
    model: Path | None = None,
    **more: Any,
) -> None:
    """Write `more.json` about the `files` in a folder (name to SHA-256), and a model card: the base's, with a section.

    The session is brought up to its ledger. `relation` is what the files are to the base, `facts` are further rows of
    the card's table, and `more` are further values of `more.json`. `model` is the checkpoint that they were made from,
    where it is not the state's.
    """
    made_from = model or session.target.model
    before = made_from / PROVENANCE
    with disk_errors(folder):
        remove_signed(folder)  # of the base
        values = provenance(session) | of_edits(session.ledger) | more
        values["statuses"] = counts(session.ledger)
        values["files"] = dict(files)
        values["names"] = sorted(names_below(folder) | {PROVENANCE, CARD})
        if pin := pin_of(session.target.model):
            values["hub"] = pin._asdict()
        values["previous"] = sha256_file(before) if before.is_file() else None
        _write(folder / PROVENANCE, f"{canonical_json(values)}\n".encode())
        card = made_from / CARD
        base = hub_id(made_from, open_checkpoint(made_from).config)
        above = titled(card.read_bytes() if card.is_file() else b"", relation, base).rstrip(b"\n")
        what = {"finetune": "these weights", "adapter": "this adapter"}[relation]
        named = pin_of(made_from) or made_from.resolve().name
        below = section(session.state.meta, session.ledger, what, facts, named)
        _write(folder / CARD, above + b"\n\n" + below.encode())


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # what was copied from the base may be read-only
    write_new(path, data)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read a `more.json`.

    Raises:
        StateError: it is damaged, or from a newer version.
    """
    path = folder / PROVENANCE
    try:
        if path.stat().st_size > _LIMIT:
            raise ValueError(f"larger than {_LIMIT >> 20} MiB")
        values = strict_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StateError(f"`{path}` cannot be read: {reason_of(error)}", _AGAIN) from None
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise StateError(
            f"`{path}` is not of the schema {SCHEMA}",
            f"upgrade {DISTRIBUTION}, or name a folder that merge or export wrote",
        )
    hashes = (values.get("files"), values.get("base"))
    if not all(isinstance(part, dict) and all(isinstance(item, str) for item in part.values()) for part in hashes):
        raise StateError(f"`{path}` does not list files and base", _AGAIN)
    folds = values.get("folds", [])
    if not isinstance(folds, list) or not all(isinstance(fold, dict) and _named(fold) for fold in folds):
        raise StateError(f"`{path}` does not list the edited tensors", _AGAIN)
    counts = (values.get("edits"), values.get("asked", 0))  # older merges recorded neither these nor what failed
    named = isinstance(values.get("ledger_head"), str) and isinstance(values.get("failed", []), list)
    if not named or any(type(count) is not int for count in counts):
        raise StateError(f"`{path}` does not say which edits were written", _AGAIN)
    return values


def own_names(folder: Path, relation: Relation) -> set[str]:
    """Return the files that `merge` ("finetune") or `export` ("adapter") wrote to a folder, and `more sign` after them.

    Raises:
        UsageError: its `more.json` does not say it, or the other command wrote it.
    """
    try:
        names = {*written_names(folder), NAME, SIGNATURE}
    except StateError as error:
        raise UsageError(error.message, f"name a new folder, or remove `{folder}`") from None
    written: Relation = "adapter" if ADAPTER in names else "finetune"
    if written != relation:
        raise UsageError(f"`{folder}` holds {_HOLDS[written]}, not {_HOLDS[relation]}", "name a new folder")
    return names


def written_names(folder: Path) -> list[str]:
    """Return the files that `merge` or `export` wrote to a folder, as its `more.json` names them.

    Raises:
        StateError: there is no `more.json`, or it does not say it.
    """
    names = read_provenance(folder).get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StateError(f"`{folder / PROVENANCE}` does not say what was written", _AGAIN)
    return names


def carried(values: Mapping[str, Any]) -> Signed | None:
    """Return the state's statement and signature that a `more.json` carries."""
    texts = values.get("signed")
    if texts is None:
        return None
    if not isinstance(texts, dict) or not all(isinstance(texts.get(name), str) for name in Signed._fields):
        raise StateError(f"`{PROVENANCE}` does not carry a statement and its signature", _AGAIN)
    return Signed(*(texts[name].encode() for name in Signed._fields))


def _named(fold: Mapping[str, Any]) -> bool:
    return isinstance(fold.get("disk_key"), str) and isinstance(fold.get("sha256", ""), str)


def tensor_hashes(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of every edited tensor of a merged checkpoint, by key; old merges recorded none."""
    return {fold["disk_key"]: fold["sha256"] for fold in values.get("folds", []) if "sha256" in fold}


def hashes_of(folder: Path, names: Sequence[str], progress: Progress) -> dict[str, str]:
    """Return the SHA-256 of files of a folder, by name; they are read side by side."""
    hashes = {}
    with ThreadPoolExecutor() as pool:
        jobs = {name: pool.submit(sha256_file, folder / name) for name in names}
        try:
            for number, (name, job) in enumerate(jobs.items()):
                progress(number, len(names), f"hashing {name}")
                with disk_errors(folder / name):
                    hashes[name] = job.result()
        except BaseException:  # such as Ctrl-C: the rest may be gigabytes
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return hashes


def compare_files(folder: Path, values: Mapping[str, Any], deep: bool) -> list[str]:
    """Return what is wrong with the files that were written there; their bytes are read only if `deep`."""
    flaws = []
    for name, sha256 in values["files"].items():
        path = folder / Path(name).name  # a bare name: nothing outside the folder is opened
        try:
            if not path.is_file():
                flaws.append(f"`{shorten(name)}` is missing")
            elif deep and sha256_file(path) != sha256:
                flaws.append(f"`{shorten(name)}` has changed since it was written")
        except OSError as error:
            flaws.append(f"`{shorten(name)}` cannot be read: {reason_of(error)}")
    return flaws


def compare_tensors(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Return which edited tensors of a merged checkpoint have changed; they are read whole.

    Raises:
        StateError: not a checkpoint.
    """
    checkpoint = _opened(folder)
    actual = fingerprint(checkpoint, hashes.keys() & checkpoint.tensors.keys())
    changed = [key for key, sha256 in hashes.items() if actual.get(f"tensor:{key}") != sha256]
    return [f"`{shorten(key)}` has changed since it was written" for key in changed]


def _opened(folder: Path) -> Checkpoint:
    try:
        return open_checkpoint(folder)
    except StateError as error:
        raise StateError(error.message, _AGAIN) from None


def compare_copies(folder: Path, values: Mapping[str, Any]) -> list[str]:
    """Return which files of a merged checkpoint, and whether its headers, differ from the base's.

    Raises:
        StateError: not a checkpoint.
    """
    recorded = {name: sha256 for name, sha256 in values["base"].items() if not name.startswith("tensor:")}
    actual = fingerprint(_opened(folder), [])
    names = sorted(name for name in recorded.keys() | actual.keys() if recorded.get(name) != actual.get(name))
    return [f"`{shorten(name)}` differs from the base's" for name in names]
