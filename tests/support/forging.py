"""What somebody can do who may write to the folder of a ledger, and knows how its lines are chained."""

from pathlib import Path
from typing import Any

from more_cli.files import sha256_bytes
from more_cli.inputs.edits import content_hash, subject_hash
from more_cli.store.entry import START, parse_entry, with_checksum
from more_cli.store.ledger import Ledger, content_digest
from more_cli.store.state import load_state, save_state


def forge(path: Path, number: int, *, hashed: bool = False, **fields: Any) -> None:
    """Change a line of a ledger and make the chain again; with `hashed` its own hashes too."""
    head, lines = START, []
    for place, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        entry = parse_entry(line, path, place)
        if place == number:
            entry = entry.model_copy(update=fields)
            if hashed:
                made = content_hash(entry.images, entry.question, entry.target)
                subject = subject_hash(entry.images, entry.question)
                entry = entry.model_copy(update={"content": made, "subject": subject})
        _, new = with_checksum(entry.model_copy(update={"prev": head}))
        lines.append(new)
        head = sha256_bytes(new)
    path.write_bytes(b"".join(lines))


def forge_digest(sidecar: Path) -> None:
    """Let a state say that it holds the lines that its ledger has now."""
    state, ledger = load_state(sidecar), Ledger(sidecar.with_name(f"{sidecar.name}.d"))
    state.meta.digest = content_digest(ledger.history)
    save_state(sidecar, state)
