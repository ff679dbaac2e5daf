"""`more merge`: a standalone checkpoint with s B A folded into the base weights.

Dtype and shape of a tensor do not change, so the base's shards are copied as bytes and only the edited ranges are
overwritten: no model is built, memory stays at one chunk of rows, everything else is the base to the byte.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Literal

import torch
from torch import Tensor

from more_cli.checkpoint import Checkpoint, open_checkpoint
from more_cli.core.write import fold
from more_cli.editors.more import MoreEditor
from more_cli.editors.sites import rebuild_basis
from more_cli.errors import StateError, UsageError
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.files import check_free, replacing_directory
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime, load_runtime
from more_cli.ops.provenance import PROVENANCE, write_provenance
from more_cli.ops.session import Progress, Session, Target, no_progress, open_session
from more_cli.patching import SIDE_BY_SIDE, Patch, copy_patched, link_shards
from more_cli.state import SiteRecord

_BUILDING = Lock()
"""Held while a basis is built, which for a moment takes several times its memory: shards are written side by side."""
COMPARED = 1 << 20
"""Bytes compared at a time."""
Rounding = Literal["nearest", "stochastic"]


@dataclass
class Fold:
    """What became of one site's update when it was rounded to the checkpoint's dtype."""

    site: str
    disk_key: str
    dtype: str
    entries: int = 0
    changed: int = 0
    """Entries of W that are another number now."""
    update: float = 0.0
    """|s B A|^2."""
    error: float = 0.0
    """|W' - W - s B A|^2."""

    @property
    def realised(self) -> float:
        """The part of the update that survived rounding, 1 - |error| / |update|, in [0, 1]; 1 for no update."""
        return max(0.0, 1.0 - (self.error / self.update) ** 0.5) if self.update > 0 else 1.0


@dataclass
class Verification:
    """Live state and merged checkpoint side by side."""

    edits: int
    lost: list[str]
    """Edits that the live state has right and the merged checkpoint does not."""
    gained: list[str]
    largest_logit_gap: float
    """Largest absolute difference of a logit at a target position."""


@dataclass
class MergeReport:
    """What `merge` wrote."""

    target: Target
    out: Path
    folds: list[Fold] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Files of the base that hold other copies of the weights, now stale, and were not copied."""
    edits: int = 0
    replayed: int = 0
    verification: Verification | None = None
    dry_run: bool = False
    size: int = 0
    """Bytes of the shards."""
    shards: int = 0
    linked: list[str] = field(default_factory=list)
    """Shards that are the base's own files under a second name."""
    not_linked: str = ""
    """Why a shard without edits was copied though it was to be linked."""


def merge(
    target: Target,
    out: Path,
    machine: Machine,
    *,
    force: bool = False,
    verify: bool = False,
    rounding: Rounding = "nearest",
    seed: int = 0,
    link: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> MergeReport:
    """Write the edited checkpoint to `out`, which appears whole or not at all; `link` shards that have no edits.

    Raises:
        StateError: the state does not fit its base, or the result is not the base outside the edited ranges.
        UsageError: `out` is the base or is not empty.
        ResourceError: not enough disk.
    """
    if out.resolve() == target.model.resolve() or target.model.resolve() in out.resolve().parents:
        raise UsageError(f"`{out}` is, or lies in, the base checkpoint", "name another folder with -o")
    session = open_session(target, machine, progress)
    report = MergeReport(target, out, dry_run=dry_run, replayed=session.behind)
    report.shards = len(session.checkpoint.shards)
    report.size = sum((session.checkpoint.path / shard).stat().st_size for shard in session.checkpoint.shards)
    if dry_run:
        check_free(out, force, PROVENANCE)
        return _foreseen(session, report)
    with replacing_directory(out, force, marker=PROVENANCE) as scratch:
        live = _bring_up(session, verify)
        report.edits = len(session.ledger.standing())
        report.folds, patches = _patches(session.editor, rounding, seed)
        with _one_thread():
            if link:
                report.linked, report.not_linked = link_shards(session.checkpoint, scratch, patches)
            report.left_out = copy_patched(
                session.checkpoint, scratch, patches, there=report.linked, on_bytes=_copying(progress)
            )
        files = _read_back(session.checkpoint, scratch, set(patches))
        _write_provenance(session, scratch, report, files)
    if verify:
        report.verification = _verify(session, out, live)
    return report


def _copying(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress(done, total, "copying shards")


def _foreseen(session: Session, report: MergeReport) -> MergeReport:
    _bring_up(session, verify=False)
    report.edits = len(session.ledger.standing())
    report.folds, _ = _patches(session.editor, "nearest", 0)
    return report


@contextmanager
def _one_thread() -> Iterator[None]:
    """Fold on one thread: chunks are small, and the bytes do not depend on the machine's number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _bring_up(session: Session, verify: bool) -> list[ProbeScore]:
    """Replay what the sidecar lacks and, to verify later, score every edit on the live model."""
    if not session.behind and not verify:
        return []
    with session.attached():
        return _score_edits(session, session.runtime) if verify else []


def _score_edits(session: Session, runtime: Runtime) -> list[ProbeScore]:
    """Score the edits that stand, without their variants, and keep their logits."""
    edits = [next(probes_of(session.ledger.edit_of(entry))) for entry in session.ledger.standing()]
    return run_probes(runtime, session.editor, edits, generate=False, keep_logits=True)


def _patches(editor: MoreEditor, rounding: Rounding, seed: int) -> tuple[list[Fold], dict[str, Patch]]:
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
        stats.changed += int(torch.count_nonzero(folded != W))
        stats.update += record.scale**2 * _energy(rows)  # |s B A| = s |B|: A's rows are orthonormal
        stats.error += _energy(folded.float() - exact)
        if not math.isfinite(stats.error):
            raise StateError(
                f"`{record.disk_key}` is not finite after the merge", "make the state again with fewer edits"
            )
        return folded

    return patch


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


def _read_back(base: Checkpoint, copy: Path, patched: set[str]) -> dict[str, str]:
    """Read every shard of the copy once: compare what was not edited with the base, and return the hash of each.

    A shard that is the base's own file is not read, and has no hash here.

    Raises:
        StateError: a byte outside the edited ranges is not the base's.
    """
    own = [shard for shard in base.shards if not (base.path / shard).samefile(copy / shard)]

    def read(shard: str) -> str | None:
        edited = sorted((e.start, e.stop) for e in base.tensors.values() if e.shard == shard and e.key in patched)
        return _hash_if_same(base.path / shard, copy / shard, edited)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        found = dict(zip(own, pool.map(read, own), strict=True))
    for shard, sha256 in found.items():
        if sha256 is None:
            raise StateError(f"`{shard}` of the copy differs from its base", "check the disk, then merge again")
    return {shard: sha256 for shard, sha256 in found.items() if sha256}


def _hash_if_same(base: Path, copy: Path, edited: Sequence[tuple[int, int]]) -> str | None:
    """Return the SHA-256 of a copy that is its base outside these ranges; None where it is not."""
    size, digest = base.stat().st_size, hashlib.sha256()
    if copy.stat().st_size != size:
        return None
    bounds = [0, *(bound for span in edited for bound in span), size]
    # Filled again and again: fresh buffers cost page faults.
    old, new, patched = bytearray(COMPARED), bytearray(COMPARED), bytearray(COMPARED)
    with FileIO(base) as ours, FileIO(copy) as theirs:
        for place, (start, stop) in enumerate(pairwise(bounds)):
            same = place % 2 == 0  # every other range is an edited one
            buffer = new if same else patched
            ours.seek(start)
            for first in range(start, stop, COMPARED):
                size = min(COMPARED, stop - first)
                if theirs.readinto(memoryview(buffer)[:size]) != size:
                    return None
                # Whole buffers: behind a short last piece both still hold the piece before, which was equal.
                if same and (ours.readinto(memoryview(old)[:size]) != size or old != new):
                    return None
                digest.update(memoryview(buffer)[:size])
    return digest.hexdigest()


def _write_provenance(session: Session, scratch: Path, report: MergeReport, files: Mapping[str, str]) -> None:
    folds = [{"site": f.site, "disk_key": f.disk_key, "realised": round(f.realised, 6)} for f in report.folds]
    facts = {"tensors changed": str(len(folds))}
    if folds:
        facts["update that rounding kept"] = f"{min(fold.realised for fold in report.folds):.1%} or more of each"
    own = [shard for shard in session.checkpoint.shards if shard not in files]
    write_provenance(session, scratch, "these weights", files, facts=facts, folds=folds, linked=own)


def _verify(session: Session, out: Path, live: Sequence[ProbeScore]) -> Verification:
    """Load the result like anybody would, and compare its verdict on every edit with the live state's."""
    session.unload()
    merged = open_checkpoint(out)
    runtime = load_runtime(merged, session.machine, system=session.state.meta.recipe.system)
    with runtime.attached([]):
        scores = _score_edits(session, runtime)
    pairs = list(zip(live, scores, strict=True))
    gaps = [float((a.logits - b.logits).abs().max()) for a, b in pairs if a.logits is not None and b.logits is not None]
    return Verification(
        edits=len(pairs),
        lost=[a.probe.edit for a, b in pairs if a.values["tf_exact"] > b.values["tf_exact"]],
        gained=[a.probe.edit for a, b in pairs if a.values["tf_exact"] < b.values["tf_exact"]],
        largest_logit_gap=max(gaps, default=0.0),
    )
