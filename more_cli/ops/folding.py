"""What a merge writes: s B A folded into a site's weights, a few rows at a time, and what rounding left of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from more_cli.checkpoint.patching import Patch
from more_cli.core.write import fold
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.more.sites import rebuild_basis
from more_cli.errors import StateError, UsageError
from more_cli.store.state import SiteRecord

_BUILDING = Lock()
"""Held while a basis is built, which for a moment takes several times its memory: shards are written side by side."""
Rounding = Literal["nearest", "stochastic"]


@dataclass
class Fold:
    """What became of one site's update when it was rounded to the checkpoint's dtype."""

    site: str
    disk_key: str
    dtype: str
    entries: int = 0
    changed: int = 0
    """Entries of W whose bits are others now."""
    update: float = 0.0
    """|s B A|^2."""
    error: float = 0.0
    """|W' - W - s B A|^2."""

    @property
    def realised(self) -> float:
        """The part of the update that survived rounding, 1 - |error| / |update|, in [0, 1]; 1 for no update."""
        return max(0.0, 1.0 - (self.error / self.update) ** 0.5) if self.update > 0 else 1.0


def patches_of(editor: MoreEditor, rounding: Rounding, seed: int) -> tuple[list[Fold], dict[str, Patch]]:
    """Return a patch for every site that was written, by disk key, and what each will have done once it has run."""
    tensors = editor.state_dict()
    folds, patches = [], {}
    for number, record in enumerate(editor.records):
        B = tensors[f"{record.name}.B"]
        if not bool(B.any()):
            continue  # never written: its bytes stay the base's
        record_fold = Fold(record.name, record.disk_key, "")
        generator = torch.Generator().manual_seed(seed + number) if rounding == "stochastic" else None
        folds.append(record_fold)
        patches[record.disk_key] = _patch(record, B, record_fold, generator)
    return folds, patches


def _patch(
    record: SiteRecord, B: Tensor, stats: Fold, generator: torch.Generator | None
) -> Callable[[Tensor, int], Tensor]:
    A: Tensor | None = None

    def patch(W: Tensor, first_row: int) -> Tensor:
        nonlocal A
        if A is None:  # only while its tensor is copied: those of all sites together are as large as B
            with _BUILDING:
                A = rebuild_basis(record)
        rows = B[first_row : first_row + len(W)]
        exact = fold(W, A, rows, record.scale)
        if first_row + len(W) == record.shape[0]:
            A = None
        folded = exact.to(W.dtype) if generator is None else round_stochastically(exact, W.dtype, generator)
        stats.dtype = str(W.dtype).removeprefix("torch.")
        stats.entries += W.numel()
        stats.changed += int(np.count_nonzero(_bits(folded) != _bits(W)))
        stats.update += record.scale**2 * _energy(rows)  # |s B A| = s |B|: A's rows are orthonormal
        stats.error += _energy(folded.float() - exact)
        if not math.isfinite(stats.error):
            raise StateError(
                f"`{record.disk_key}` is not finite after the merge", "make the state again with fewer edits"
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
        UsageError: `dtype` is not bfloat16, the only one in which nearest rounding eats most small updates.
    """
    if dtype != torch.bfloat16:
        raise UsageError(f"stochastic rounding is for bfloat16, not {dtype}", "use --rounding nearest")
    # bfloat16 is the upper half of a float32: adding 16 random bits carries into it as often as it should.
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
