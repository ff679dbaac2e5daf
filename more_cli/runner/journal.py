"""The journal of one run on a suite: what it has measured, and where an interrupted run resumes.

`lines.jsonl` has one line per edit, appended before the next edit begins. `state.safetensors` is the editor after one
of these edits, written every few edits; an interrupted run resumes there and repeats the edits after it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import jsonlines
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from more_cli.editors.base import Editor, EditOutcome
from more_cli.evaluation.probes import ProbeScore
from more_cli.files import add_line, disk_errors, write_whole
from more_cli.store.lock import writer_lock
from more_cli.text import canonical_json

LINES, STATE = "lines.jsonl", "state.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """The editor after `steps` steps of its run."""

    steps: int
    tensors: dict[str, Tensor]
    notes: Mapping[str, Any]

    def restore(self, editor: Editor) -> None:
        """Restore the editor, which must not be attached."""
        editor.load_state_dict(self.tensors)
        editor.load_notes(self.notes)


class RunJournal:
    """The folder of one run, for one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[dict[str, Any]] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Lock the folder and read its lines.

        Raises:
            StateError: another process holds the lock, or the folder is not writable.
        """
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with writer_lock(self.folder / "lock"):
            self.lines = read_lines(self.folder)
            yield

    def forget(self) -> None:
        """Remove all lines and the snapshot."""
        with disk_errors(self.folder):
            for name in (LINES, STATE):
                (self.folder / name).unlink(missing_ok=True)
        self.lines = []

    def resume(self) -> Snapshot | None:
        """Return the snapshot to resume from, and drop the lines after it; without a snapshot, all lines."""
        snapshot = self._snapshot()
        self.lines = self.lines[: snapshot.steps] if snapshot else []
        write_whole(self.folder / LINES, _as_lines(*self.lines))
        return snapshot

    def add(self, line: dict[str, Any]) -> None:
        """Append the measurements of one step."""
        add_line(self.folder / LINES, _as_lines(line))
        self.lines.append(line)

    def save(self, editor: Editor) -> None:
        """Save the editor as it is after the last line."""
        header = {"steps": len(self.lines), "notes": editor.notes()}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in editor.state_dict().items()}
        write_whole(self.folder / STATE, save(tensors, metadata={"more": canonical_json(header)}))

    def _snapshot(self) -> Snapshot | None:
        try:
            with safe_open(self.folder / STATE, framework="pt") as file:
                header = json.loads((file.metadata() or {})["more"])
                # Copies: at safetensors' odd addresses a matrix product would round differently after a restart.
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
            steps, notes = header["steps"], header["notes"]
            known = 0 <= steps <= len(self.lines)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError):
            return None
        return Snapshot(steps, tensors, notes) if known else None


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines before the first one that a crash cut short, which was never acknowledged."""
    lines: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, jsonlines.InvalidLineError, RecursionError), open(folder / LINES, "rb") as file:
        whole = takewhile(lambda line: line.endswith(b"\n"), file)
        for line in jsonlines.Reader(whole, loads=json.loads):
            lines.append(line)  # one by one: those before a bad line count
    return lines


def settled(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of a finished run; what wrote edits together last says which of them are learnt."""
    found: dict[int, str] = {}
    for joint in (line[name] for line in lines for name in ("compaction", "joint") if name in line):
        found |= dict.fromkeys(joint["scored"], "learnt") | dict.fromkeys(joint["failing"], "not-learnt")
    return [line | {"outcome": _as_found(line["outcome"], found.get(line["t"], ""))} for line in lines]


def _as_found(outcome: Mapping[str, Any], status: str) -> dict[str, Any]:
    known = not status or (status == "learnt" and outcome["status"] == "already-right")
    return dict(outcome) if known else {**outcome, "status": status}


def outcome_values(outcome: EditOutcome) -> dict[str, Any]:
    """Return an outcome as the journal has it."""
    return {
        "status": outcome.status,
        "reason": outcome.reason,
        "nll_before": outcome.before.nll,
        "nll_after": outcome.after.nll,
        "answer_before": outcome.before.text,
        "answer_after": outcome.after.text,
        "writes": outcome.writes,
        "cost": outcome.cost,
        "looks": {str(number): margin for number, margin in outcome.margins.items()},
    }


def score_values(score: ProbeScore) -> dict[str, Any]:
    """Return the score of a probe as the journal has it."""
    return {
        "kind": score.probe.kind,
        "hop": score.probe.hop,
        "values": score.values,
        "answer": score.answer,
        "base": score.base_answer,
    }


def _as_lines(*lines: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    jsonlines.Writer(buffer).write_all(lines)
    return buffer.getvalue()
