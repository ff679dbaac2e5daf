"""`more merge`: a standalone checkpoint with s B A folded into the base weights.

Dtype and shape of a tensor do not change, so the base's shards are copied as bytes and only the edited ranges are
overwritten: no model is built, memory stays at one chunk of rows, everything else is the base to the byte.
What needs torch is imported here only once the files are being copied: on a large checkpoint that takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from more_cli.checkpoint.patching import Copied, Patch, copy_patched
from more_cli.checkpoint.reader import open_checkpoint
from more_cli.errors import UsageError
from more_cli.files import check_free, disk_errors, replacing_directory, sha256_file
from more_cli.ops.provenance import PROVENANCE, write_provenance
from more_cli.progress import Progress, no_progress
from more_cli.store.state import load_meta
from more_cli.store.target import Target

if TYPE_CHECKING:
    from more_cli.evaluation.probes import ProbeScore
    from more_cli.model.machine import Machine
    from more_cli.ops.folding import Fold, Rounding
    from more_cli.ops.merged import Verification
    from more_cli.ops.session import Session


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
    """Why a shard was copied though it was to be linked."""


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
    sha256: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> MergeReport:
    """Write the edited checkpoint to `out`, which appears whole or not at all.

    Args:
        target: The base and its state.
        out: A folder that is not there yet, or with `force` one that an earlier merge wrote.
        machine: What `verify` runs on.
        force: Replace `out`.
        verify: Load the result and compare its verdict on every edit with the live state's.
        rounding: From float32 to the dtype of the weights.
        seed: Of stochastic rounding.
        link: Give shards that hold no site a second name instead of a copy.
        sha256: Note in `more.json` what every shard that was written hashes to, beside the edited tensors.
        dry_run: Write nothing.
        progress: Told the bytes copied, then the shards hashed.

    Raises:
        StateError: the state does not fit its base, or the result is not the base outside the edited ranges.
        UsageError: `out` is the base or is not empty.
        ResourceError: not enough disk.
    """
    if out.resolve() == target.model.resolve() or target.model.resolve() in out.resolve().parents:
        raise UsageError(f"`{out}` is, or lies in, the base checkpoint", "name another folder with -o")
    checkpoint = open_checkpoint(target.model)
    meta = load_meta(target.sidecar)  # no state, no copy
    report = MergeReport(target, out, dry_run=dry_run, shards=len(checkpoint.shards))
    report.size = sum((checkpoint.path / shard).stat().st_size for shard in checkpoint.shards)

    @cache
    def ready() -> _Ready:
        made = _prepare(target, machine, verify and not dry_run, rounding, seed, progress)
        report.folds, report.replayed = made.folds, made.replayed
        report.edits = len(made.session.ledger.standing())
        return made

    if dry_run:
        check_free(out, force, PROVENANCE)
        ready()
        return report
    with replacing_directory(out, force, marker=PROVENANCE) as scratch:
        with ExitStack() as on_one_thread:

            def patches() -> Mapping[str, Patch]:
                from more_cli.ops.folding import one_thread

                found = ready().patches
                on_one_thread.enter_context(one_thread())
                return found

            copied = copy_patched(
                checkpoint,
                scratch,
                # By the sites, not by what was written, which is not known yet.
                [site.disk_key for site in meta.sites],
                patches,
                link=link,
                on_bytes=lambda done, total: progress(done, total, "copying shards"),
            )
        report.linked, report.not_linked = copied.linked, copied.not_linked
        report.left_out = copied.left_out
        own = [shard for shard in checkpoint.shards if shard not in copied.linked]
        files = _hashes(scratch, own, progress) if sha256 else {}
        _write_provenance(ready().session, scratch, report, copied, files)
    if verify:
        from more_cli.ops.merged import verify_merged

        report.verification = verify_merged(ready().session, out, ready().live)
    return report


@dataclass(frozen=True)
class _Ready:
    """A state brought up to its ledger, and what is to be written of it."""

    session: Session
    replayed: int
    live: list[ProbeScore]
    """Of every edit, to verify later."""
    folds: list[Fold]
    patches: dict[str, Patch]


def _prepare(
    target: Target, machine: Machine, verify: bool, rounding: Rounding, seed: int, progress: Progress
) -> _Ready:
    from more_cli.ops.folding import patches_of
    from more_cli.ops.session import open_session

    session = open_session(target, machine, progress)
    replayed, live = session.behind, []
    if replayed or verify:
        with session.attached():
            if verify:
                from more_cli.ops.merged import score_edits

                live = score_edits(session, session.runtime)
    folds, patches = patches_of(session.editor, rounding, seed)
    return _Ready(session, replayed, live, folds, patches)


def _hashes(folder: Path, shards: Sequence[str], progress: Progress) -> dict[str, str]:
    found = {}
    with disk_errors(folder), ThreadPoolExecutor() as pool:
        jobs = {shard: pool.submit(sha256_file, folder / shard) for shard in shards}
        try:
            for number, (shard, job) in enumerate(jobs.items()):
                progress(number, len(shards), "hashing shards")
                found[shard] = job.result()
        except BaseException:  # such as Ctrl-C: the rest may be gigabytes
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _write_provenance(
    session: Session, scratch: Path, report: MergeReport, copied: Copied, files: Mapping[str, str]
) -> None:
    folds = [
        {"site": f.site, "disk_key": f.disk_key, "realised": round(f.realised, 6), "sha256": copied.sha256[f.disk_key]}
        for f in report.folds
    ]
    facts = {"tensors changed": str(len(folds))}
    if folds:
        facts["update that rounding kept"] = f"{min(fold.realised for fold in report.folds):.1%} or more of each"
    write_provenance(session, scratch, "these weights", files, facts=facts, folds=folds, linked=copied.linked)
