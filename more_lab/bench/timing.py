"""The clock of `more bench`: seconds by part of an edit, and the batches of its writes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from more_cli.editors.more.passes import Passes
from more_cli.model.batches import Batch
from more_cli.model.runtime import Runtime

PARTS = (
    *("decode", "preprocess", "vision", "forward", "backward", "write", "absorb"),
    *("answer", "rehearsal", "anchors", "ledger", "sidecar", "other"),
)
"""Parts of an edit's time, each without the parts that ran inside it.

`forward` and `backward` are the new edit's share of a pass, `rehearsal` and `anchors` those of past edits and anchors,
forward and backward, by their number of samples. `answer` is what the model says before and, where it is not known,
after the edit, for the ledger. `other` is the rest.
"""


@dataclass
class Lap:
    """Measurements of one edit."""

    seconds: float = 0.0
    """From the moment its turn came until its ledger line was on disk."""
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    """Seconds by part."""
    steps: list[float] = field(default_factory=list)
    """Seconds of each of its writes: forward and backward pass, and the update of B."""
    batches: list[Batch] = field(default_factory=list)
    """The batches sent forward and backward for its writes."""
    peak: int | None = None
    """Peak memory in bytes, above what was held before the first edit."""


class Stopwatch:
    """Times the parts of the current lap, on the thread that created it, synchronised with a GPU.

    `clock` returns seconds: wall time or, where all work is on this thread, `time.thread_time`.
    """

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.lap = Lap()
        self.runtime: Runtime | None = None
        """The model, known after its first pass."""
        self.saving = 0.0
        """Seconds of writing the sidecar, which happens between edits."""
        self._cuda = torch.device(device).type == "cuda"
        self._clock = clock
        self._thread = threading.get_ident()
        self._inner: list[float] = []
        self._mix: Counter[str] = Counter({"": 1})
        self._pass: tuple[Batch, float]
        self._began = 0.0

    def start(self) -> None:
        """Begin a lap."""
        self.lap = Lap()
        self._began = self._now()

    def stop(self) -> Lap:
        """End the lap."""
        self.lap.seconds = self._now() - self._began
        self.lap.parts["other"] = self.lap.seconds - sum(self.lap.parts.values())
        return self.lap

    @contextmanager
    def part(self, name: str, arguments: tuple[Any, ...]) -> Iterator[None]:
        """Measure a part; work on other threads costs the edit nothing and is not counted."""
        if threading.get_ident() != self._thread:
            yield
            return
        mix = self._mix
        if name in ("look", "gradient"):
            self._mix = _mix(name, *arguments)
        self._inner.append(0.0)
        began = self._now()
        try:
            yield
        finally:
            whole = self._now() - began
            own = whole - self._inner.pop()
            if self._inner:
                self._inner[-1] += whole
            self._count(name, own)
            self._follow(name, arguments, whole)
            self._mix = mix

    def _count(self, name: str, seconds: float) -> None:
        if name == "sidecar":
            self.saving += seconds
        elif name in ("forward", "backward", "look", "gradient"):
            for whose, samples in self._mix.items():
                part = whose or ("backward" if name == "backward" else "forward")
                self.lap.parts[part] += seconds * samples / self._mix.total()
        else:
            self.lap.parts[name] += seconds

    def _follow(self, name: str, arguments: tuple[Any, ...], whole: float) -> None:
        """Record what makes up a write: forward pass, backward pass, the steps from it, and their addition to B."""
        if name == "forward":
            self.runtime, batch = arguments[:2]
            self._pass = batch, whole
        elif name == "backward":
            self.lap.batches.append(self._pass[0])
        elif name == "gradient":
            passes: Passes = arguments[0]
            self.lap.steps.append(whole + (self._pass[1] if passes.one_pass else 0.0))
        elif name == "write" and self.lap.steps:
            self.lap.steps[-1] += whole

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return self._clock()


def _mix(name: str, passes: Passes, numbers: Sequence[int], *_: object) -> Counter[str]:
    """Return the samples of a pass by owner: "" for the new edit, `rehearsal` and `anchors`."""
    new = sum(number == passes.context.number for number in numbers)
    held = 0 if name == "look" or passes.one_pass else min(len(passes.anchors), passes.recipe.anchors.size)
    return Counter({"": new, "rehearsal": len(numbers) - new, "anchors": held} if numbers else {"": 1})
