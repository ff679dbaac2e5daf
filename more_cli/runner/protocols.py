"""Protocols: which edits are scored after which edit, and what is reported of these scores.

S[t, i] is the score of edit i on the model after t edits, and a protocol is a set of its cells:

online  i = t: an edit right after it was made.
final   t = T: every edit after the last one, as a deployed model would show it; the headline.
lag g   i = t - g: an edit after g further ones.
single  an edit alone; the model is reset before each.

Online and final are also reported at checkpoints, over the first t edits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Protocol = Literal["final", "online", "lag", "single"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
SINGLE = 0
"""The row of S for models with a single edit."""

Cell = tuple[int, int]
"""(t, i), both from 1; t is SINGLE for protocol `single`."""


@dataclass(frozen=True)
class Scored:
    """Which protocols of a run are reported, and where."""

    protocols: tuple[Protocol, ...] = ()
    """None: the default ones."""
    checkpoints: tuple[int, ...] = (1, 10, 100)
    lags: tuple[int, ...] = (10,)


@dataclass(frozen=True)
class Schedule:
    """What is scored during a stream of `edits` edits."""

    edits: int
    protocols: tuple[Protocol, ...]
    checkpoints: tuple[int, ...] = ()
    lags: tuple[int, ...] = ()

    @property
    def marks(self) -> list[int]:
        """Numbers of edits at which online and final are reported, including the last."""
        return sorted({mark for mark in self.checkpoints if 0 < mark < self.edits} | {self.edits})

    @property
    def measured_lags(self) -> list[int]:
        """Every number of later edits after which an edit is scored; 0 is right after it."""
        lags = {readout.lag for readout in self.readouts() if readout.lag is not None}
        return sorted(lags | ({0} if "online" in self.protocols else set()))

    def due(self, t: int) -> list[int]:
        """Return the edits that are scored after edit `t`, in order."""
        return sorted({i for readout in self.readouts() for after, i in readout.cells if after == t})

    def readouts(self) -> Iterator[Readout]:
        """Yield every readout, the headline first."""
        if "final" in self.protocols:
            for t in reversed(self.marks):
                yield Readout("final", t, tuple((t, i) for i in range(1, t + 1)))
        if "online" in self.protocols:
            for t in reversed(self.marks):
                yield Readout("online", t, tuple((i, i) for i in range(1, t + 1)))
        for lag in self.lags if "lag" in self.protocols else ():
            cells = tuple((i + lag, i) for i in range(1, self.edits - lag + 1))
            if cells:
                yield Readout("lag", self.edits, cells, lag)
        if "single" in self.protocols:
            yield Readout("single", self.edits, tuple((SINGLE, i) for i in range(1, self.edits + 1)))


@dataclass(frozen=True)
class Readout:
    """The cells of one protocol at one checkpoint."""

    protocol: Protocol
    edits: int
    """Number of edits made before."""
    cells: tuple[Cell, ...]
    lag: int | None = None

    @property
    def name(self) -> str:
        """Its name in tables and results, such as `final@100`."""
        return f"lag{self.lag}@{self.edits}" if self.lag is not None else f"{self.protocol}@{self.edits}"


def forgetting(matrix: Mapping[Cell, float], edits: int, lag: int | None = None) -> list[float]:
    """Return S[i, i] - S[T, i] of every edit that has both scores: how much of it was forgotten by the end.

    With `lag` it is S[i, i] - S[i + lag, i]; over all lags these give a curve.
    """
    later = {i: edits if lag is None else i + lag for i in range(1, edits + 1)}
    return [matrix[i, i] - matrix[t, i] for i, t in later.items() if (i, i) in matrix and (t, i) in matrix]


def retained(matrix: Mapping[Cell, float], edits: int, lag: int) -> list[float]:
    """Return S[i + lag, i] of every edit with `lag` edits after it."""
    return [matrix[i + lag, i] for i in range(1, edits - lag + 1)]


def first_failing(matrix: Mapping[Cell, float], readout: Readout) -> int | None:
    """Return the number of the first edit whose score is below 1."""
    return next((i for t, i in readout.cells if matrix[t, i] < 1.0), None)


def checked(protocols: Sequence[str]) -> tuple[Protocol, ...]:
    """Return protocols by name, each once.

    Raises:
        ValueError: no such protocol.
    """
    for name in protocols:
        if name not in PROTOCOLS:
            raise ValueError(name)
    return tuple(protocol for protocol in PROTOCOLS if protocol in protocols)
