"""The product s B A folded into W, a few rows at a time, and whether the folded checkpoint gives the same verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from more_cli.checkpoint.copying import Patch
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.core.write import fold
from more_cli.editors.more.sites import basis_of
from more_cli.errors import StateError, UsageError
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.model.loading import load_runtime
from more_cli.model.runtime import Runtime
from more_cli.ops.session import Session
from more_cli.store.state import SiteRecord, State

_BUILDING = Lock()
"""Held while a basis is built, which briefly takes several times its memory: shards are written in parallel."""
Rounding = Literal["nearest", "stochastic"]


@dataclass
class Fold:
    """One site's update after rounding to the checkpoint's dtype."""

    site: str
    disk_key: str
    dtype: str
    entries: int = 0
    changed: int = 0
    """Entries of W whose bits changed."""
    update: float = 0.0
    """|s B A|^2."""
    error: float = 0.0
    """|W' - W - s B A|^2."""

    @property
    def realised(self) -> float:
        """The part of the update that survived rounding, 1 - |error| / |update|, in [0, 1]; 1 for no update."""
        return max(0.0, 1.0 - (self.error / self.update) ** 0.5) if self.update > 0 else 1.0


def patches_of(
    state: State, rounding: Rounding, seed: int, keys: Mapping[str, str]
) -> tuple[list[Fold], dict[str, Patch]]:
    """Return a patch for every written site, by disk key, and a `Fold` for each, which the patch fills when it runs.

    `keys` are the disk keys in the checkpoint that is patched, by those in the edited one.
    """
    folds, patches = [], {}
    for number, record in enumerate(state.meta.sites):
        if not state.written(record.name):
            continue  # its bytes stay as in the base
        generator = torch.Generator().manual_seed(seed + number) if rounding == "stochastic" else None
        stats = Fold(record.name, keys[record.disk_key], "")
        folds.append(stats)
        patches[stats.disk_key] = _patch(state, record, stats, generator)
    return folds, patches


def _patch(
    state: State, record: SiteRecord, stats: Fold, generator: torch.Generator | None
) -> Callable[[Tensor, int], Tensor]:
    factors: tuple[Tensor, Tensor] | None = None
    orthonormal = state.meta.recipe.orthonormal

    def patch(W: Tensor, first_row: int) -> Tensor:
        nonlocal factors
        if factors is None:  # kept only while their tensor is copied: all together can be as large as the weights
            with _BUILDING:
                A = basis_of(state, record)
            factors = state.B[record.name], A
        B, A = factors
        rows = B[first_row : first_row + len(W)]
        exact = fold(W, A, rows, record.scale)
        # |s B A| = s |B| where A's rows are orthonormal.
        stats.update += record.scale**2 * _energy(rows if orthonormal else rows @ A)
        if first_row + len(W) == record.shape[0]:
            factors = None
        folded = exact.to(W.dtype) if generator is None else round_stochastically(exact, W.dtype, generator)
        stats.dtype = str(W.dtype).removeprefix("torch.")
        stats.entries += W.numel()
        stats.changed += int(np.count_nonzero(_bits(folded) != _bits(W)))
        stats.error += _energy(folded.float() - exact)
        if not math.isfinite(stats.error):
            raise StateError(
                f"`{stats.disk_key}` is not finite after the merge", "make the state again with fewer edits"
            )
        return folded

    return patch


def _bits(values: Tensor) -> npt.NDArray[Any]:
    """Return the bits of numbers: numpy compares and counts those nine times as fast as torch does bfloat16."""
    return values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]).numpy()


def _energy(values: Tensor) -> float:
    """Return the sum of squares; not finite as soon as one value is not."""
    flat = values.flatten()
    return float(torch.dot(flat, flat))


def round_stochastically(exact: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Round float32 to bfloat16 up or down with the probability that keeps its value in expectation.

    Raises:
        UsageError: `dtype` is not bfloat16, the only dtype in which nearest rounding loses most small updates.
    """
    if dtype != torch.bfloat16:
        raise UsageError(f"stochastic rounding is for bfloat16, not {dtype}", "use --rounding nearest")
    # bfloat16 is the upper half of a float32: adding 16 random bits carries into it with the right probability.
    noise = torch.randint(0, 1 << 16, exact.shape, generator=generator, dtype=torch.int32)
    return ((exact.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)


@contextmanager
def one_thread() -> Iterator[None]:
    """Fold on one thread: chunks are small, and the bytes do not depend on the machine's number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass
class Verification:
    """Live state and merged checkpoint compared."""

    edits: int
    lost: list[str]
    """Edits that the live state answers right and the merged checkpoint does not."""
    gained: list[str]
    """The other way round."""
    largest_logit_gap: float
    """Largest absolute difference of a logit at a target position."""


def score_edits(session: Session, runtime: Runtime) -> list[ProbeScore]:
    """Score the edits that stand, without their variants, and keep the logits."""
    edits = [next(probes_of(session.ledger.edit_of(entry))) for entry in session.ledger.standing()]
    return run_probes(runtime, session.editor, edits, generate=False, keep_logits=True)


def verify_merged(session: Session, out: Path, live: Sequence[ProbeScore]) -> Verification:
    """Load the merged checkpoint as a user would, and compare its verdict on every edit with the live state's."""
    session.unload()
    merged = open_checkpoint(out)
    runtime = load_runtime(merged, session.machine, **session.state.meta.recipe.asking)
    with runtime.attached([]):
        scores = score_edits(session, runtime)
    pairs = list(zip(live, scores, strict=True))
    gaps = [float((a.logits - b.logits).abs().max()) for a, b in pairs if a.logits is not None and b.logits is not None]
    return Verification(
        edits=len(pairs),
        lost=[a.probe.edit for a, b in pairs if a.values["tf_exact"] > b.values["tf_exact"]],
        gained=[a.probe.edit for a, b in pairs if a.values["tf_exact"] < b.values["tf_exact"]],
        largest_logit_gap=max(gaps, default=0.0),
    )
