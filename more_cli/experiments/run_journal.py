"""The journal of one run of an editor through a suite: what it has measured, and where it can go on.

`lines.jsonl` has a line an edit, appended before the next edit begins. `state.safetensors` is the editor after one of
these edits, written every few of them; a run that was interrupted goes on there, and what came later is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from more_cli.editors.base import Editor
from more_cli.files import append_line, canonical_json, disk_errors, replacing
from more_cli.store.lock import writer_lock

LINES, STATE = "lines.jsonl", "state.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """An editor after so many steps of its run."""

    steps: int
    tensors: dict[str, Tensor]
    notes: Mapping[str, Any]

    def give(self, editor: Editor) -> None:
        """Put the editor, which must not be attached, where it was."""
        editor.load_state_dict(dict(self.tensors))
        editor.load_notes(self.notes)


class RunJournal:
    """One run's folder; one process at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lines: list[dict[str, Any]] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder and read what it has.

        Raises:
            StateError: another process runs this, or the folder is not writable.
        """
        with disk_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        with writer_lock(self._folder / "lock"):
            self.lines = list(self._read())
            yield

    def forget(self) -> None:
        """Start from nothing."""
        with disk_errors(self._folder):
            for name in (LINES, STATE):
                (self._folder / name).unlink(missing_ok=True)
        self.lines = []

    def resume(self) -> Snapshot | None:
        """Return where to go on, and drop the lines after it; without a snapshot, all of them."""
        snapshot = self._snapshot()
        self.lines = self.lines[: snapshot.steps] if snapshot else []
        with disk_errors(self._folder), replacing(self._folder / LINES) as scratch:
            scratch.write_text("".join(map(_spelled, self.lines)), encoding="utf-8")
        return snapshot

    def add(self, line: dict[str, Any]) -> None:
        """Keep what one step measured."""
        path = self._folder / LINES
        with disk_errors(path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                append_line(fd, _spelled(line).encode())
            finally:
                os.close(fd)
        self.lines.append(line)

    def save(self, editor: Editor) -> None:
        """Keep the editor as it is after the last line."""
        told = {"steps": len(self.lines), "notes": editor.notes()}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in editor.state_dict().items()}
        with disk_errors(self._folder), replacing(self._folder / STATE) as scratch:
            scratch.write_bytes(save(tensors, metadata={"more": canonical_json(told)}))

    def _read(self) -> Iterator[dict[str, Any]]:
        """Yield whole lines; one that a crash cut short, and what would follow it, was never acknowledged."""
        with suppress(FileNotFoundError, ValueError), open(self._folder / LINES, encoding="utf-8") as file:
            for text in file:
                if text.endswith("\n"):
                    yield json.loads(text)

    def _snapshot(self) -> Snapshot | None:
        try:
            with safe_open(self._folder / STATE, framework="pt") as file:
                told = json.loads((file.metadata() or {})["more"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError, KeyError, ValueError):
            return None
        return Snapshot(told["steps"], tensors, told["notes"]) if told["steps"] <= len(self.lines) else None


def _spelled(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"
