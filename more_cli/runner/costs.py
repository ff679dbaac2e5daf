"""What an editor costs beside the model's own passes: memory while it edits, time to decide on a question."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from more_cli.editors.base import Editor
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime

_CLEAR = Path("/proc/self/clear_refs")
ROUTED = 16
"""Questions that the time of a decision is measured on."""


class PeakMemory:
    """Peak memory since `restart`: of the GPU, or on Linux of this process; unknown elsewhere."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"

    def held(self) -> int | None:
        """Return the bytes held now."""
        return torch.cuda.memory_allocated(self._device) if self._cuda else _status("VmRSS")

    def restart(self) -> None:
        """Reset the peak."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with suppress(OSError):
                _CLEAR.write_text("5")  # proc(5): resets VmHWM

    def peak(self) -> int | None:
        """Return the most bytes held since `restart`."""
        return torch.cuda.max_memory_allocated(self._device) if self._cuda else _status("VmHWM")


def routing_seconds(editor: Editor, runtime: Runtime, edits: Sequence[Edit]) -> float:
    """Return the seconds in which the editor decides what to do with a question, a mean over the first edits' own.

    That is what editors with a memory do before the model answers: find the fact, rewrite the prompt, choose a route.
    """
    queries = [Query.of(edit) for edit in edits[:ROUTED]]
    editor.routes([runtime.encode(editor.rewrite(query)) for query in queries[:1]])  # what is done once only
    encoded, seconds = [], 0.0
    for query in queries:
        started = time.perf_counter()
        asked = editor.rewrite(query)
        seconds += time.perf_counter() - started
        encoded.append(runtime.encode(asked))
    started = time.perf_counter()
    editor.routes(encoded)
    return (seconds + time.perf_counter() - started) / len(queries)


def _status(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
