"""`more merge`: a standalone checkpoint with s B A folded into the base weights.

Dtype and shape of a tensor do not change, so the base's shards are copied as bytes and only the edited ranges are
overwritten: no model is built, memory stays at one chunk of rows, and all other bytes equal the base's. Modules that
need torch are imported while the files are copied: on a large checkpoint this costs no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from more_cli.checkpoint.copying import Patch
from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.patching import Copied, copy_patched
from more_cli.checkpoint.reader import fingerprint
from more_cli.errors import FailedEditsError, ResourceError, StateError, UsageError
from more_cli.files import FULL, check_free, replacing_directory
from more_cli.ops.card import PROVENANCE
from more_cli.ops.merge_source import Source, refuse_misuse, source_of
from more_cli.ops.provenance import hashes_of, own_names, write_provenance
from more_cli.options import MergeOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import FailedEdit, failed_sentence
from more_cli.store.ledger import Ledger
from more_cli.store.names import states_beside
from more_cli.store.state import load_meta
from more_cli.store.target import Target
from more_cli.text import reason_of

if TYPE_CHECKING:
    from more_cli.evaluation.probes import ProbeScore
    from more_cli.model.machine import Machine
    from more_cli.ops.folding import Fold, Verification
    from more_cli.ops.session import Session


@dataclass
class WrittenFiles:
    """The files of a merged checkpoint."""

    shards: int = 0
    size: int = 0
    """Bytes of the shards."""
    linked: list[str] = field(default_factory=list)
    """Shards that are hard links to the base's files."""
    not_linked: str = ""
    """Why a shard was copied instead of linked."""
    left_out: list[str] = field(default_factory=list)
    """Files of the base that were not copied: other copies of the weights, without the edits."""


@dataclass
class MergeReport:
    """What `merge` wrote."""

    target: Target
    out: Path
    into: Path | None = None
    """The full-precision checkpoint that was merged into, where it is not the edited one."""
    folds: list[Fold] = field(default_factory=list)
    files: WrittenFiles = field(default_factory=WrittenFiles)
    edits: int = 0
    """Edits folded in."""
    asked: int = 0
    """Edits that were asked for."""
    failed: list[FailedEdit] = field(default_factory=list)
    """Those of them that do not stand."""
    replayed: int = 0
    verification: Verification | None = None
    not_held: list[str] = field(default_factory=list)
    """Edits that neither the live state nor the verified result answers right."""
    dry_run: bool = False


def merge(
    target: Target,
    out: Path,
    machine: Machine,
    options: MergeOptions | None = None,
    progress: Progress = no_progress,
) -> MergeReport:
    """Write the edited checkpoint to `out`, which appears whole or not at all.

    Raises:
        StateError: the state does not fit its base, or the result is not the base outside the edited ranges.
        UsageError: `out` is the base, or exists and may not be replaced, as where another state has edits on it; `into`
            is missing or not needed; or a seed is given, and nothing is drawn.
        FailedEditsError: an edit does not stand, and all are required.
        ResourceError: not enough disk.
    """
    options = options or MergeOptions()
    if options.seed and options.rounding == "nearest":
        raise UsageError("`--seed` is of stochastic rounding", "add --rounding stochastic, or leave --seed out")
    for base in filter(None, (target.model, options.into)):
        replace(target, model=base).protect_from(out)
    if options.force:
        _keep_bases(target, out)
    edited = open_checkpoint(target.model)
    refuse_misuse(edited, options.into)
    meta = load_meta(target.sidecar)  # raises before anything is copied
    if options.require_all:
        _require_all(Ledger(target.folder))
    source = source_of(edited, meta.sites, options.into, progress)
    checkpoint = source.checkpoint
    size = sum((checkpoint.path / shard).stat().st_size for shard in checkpoint.shards)
    written = WrittenFiles(len(checkpoint.shards), size)
    report = MergeReport(target, out, options.into, files=written, dry_run=options.dry_run)

    @cache
    def ready() -> _Ready:
        made = _prepare(target, source, machine, options, progress)
        report.folds, report.replayed = made.folds, made.replayed
        ledger = made.session.ledger
        if options.require_all:
            _require_all(ledger)  # again: another process may have added a line
        report.edits, report.asked, report.failed = len(ledger.standing()), len(ledger.asked()), ledger.failed()
        return made

    replaced = partial(own_names, relation="finetune")
    if options.dry_run:
        check_free(out, options.force, PROVENANCE, replaced)
        ready()
        return report
    with replacing_directory(out, options.force, marker=PROVENANCE, own=replaced) as scratch:
        with _writing(out):
            copied = _copy(source, scratch, ready, options, progress)
        written.linked, written.not_linked, written.left_out = copied.linked, copied.not_linked, copied.left_out
        own = [shard for shard in checkpoint.shards if shard not in copied.linked]
        files = hashes_of(scratch, own, progress) if options.sha256 else {}
        _write_provenance(ready().session, source, scratch, report, copied, files)
    if options.verifies:
        _verify(ready(), report)
    return report


def _keep_bases(target: Target, out: Path) -> None:
    """Refuse to replace a folder beside which another state has a ledger: its edits would have lost their base."""
    for state in states_beside(out).values() if out.is_dir() else ():
        other = Target(out, state)
        ledger = other.folder / other.ledger_name
        if state.resolve() != target.sidecar.resolve() and ledger.is_file() and ledger.stat().st_size:
            hint = f"name a new folder, or move `{state.name}` and `{other.folder.name}` away"
            raise UsageError(f"`{out}` is the base of `{state.name}`, which has edits", hint)


def _require_all(ledger: Ledger) -> None:
    if failed := ledger.failed():
        hint = "`more edit MODEL --retry` tries them again; without --require-all they do not stop the merge"
        raise FailedEditsError(failed_sentence(failed, len(ledger.asked())), hint)


@dataclass(frozen=True)
class _Ready:
    """A state with its whole ledger applied, and the patches that write it."""

    session: Session
    replayed: int
    live: list[ProbeScore]
    """Scores of the live state, to compare with the result's."""
    folds: list[Fold]
    patches: dict[str, Patch]


def _prepare(target: Target, source: Source, machine: Machine, options: MergeOptions, progress: Progress) -> _Ready:
    from more_cli.ops.folding import patches_of, score_edits
    from more_cli.ops.session import open_session

    session = open_session(target, machine, progress)
    replayed, live = session.behind, []
    state = session.catch_up()
    if options.verifies:
        with session.attached():
            live = score_edits(session, session.runtime)
    folds, patches = patches_of(state, options.rounding, options.seed, source.keys)
    return _Ready(session, replayed, live, folds, patches)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            text = f"cannot write `{out}`: {reason_of(error)}"
            raise ResourceError(text, "free some space, or name a folder on another disk") from error
        text = f"cannot copy to `{out}`: {error}"
        raise StateError(text, "check that both folders can be read and written") from error


def _copy(
    source: Source, scratch: Path, ready: Callable[[], _Ready], options: MergeOptions, progress: Progress
) -> Copied:
    """Copy the checkpoint with the state folded in; the state gets `ready` while files are copied."""
    with ExitStack() as on_one_thread:

        def patches() -> Mapping[str, Patch]:
            from more_cli.ops.folding import one_thread

            made = ready()
            on_one_thread.enter_context(one_thread())
            return made.patches

        return copy_patched(
            source.checkpoint,
            scratch,
            # Every site: which of them were written is not known yet.
            list(source.keys.values()),
            patches,
            link=options.link,
            on_bytes=lambda done, total: progress(done, total, "copying shards"),
        )


def _verify(ready: _Ready, report: MergeReport) -> None:
    """Ask the result the edits, and compare its verdict with the live state's."""
    from more_cli.ops.folding import verify_merged

    found = report.verification = verify_merged(ready.session, report.out, ready.live)
    wrong = [score.probe.edit for score in ready.live if score.values["tf_exact"] < 1]
    report.not_held = [edit for edit in wrong if edit not in found.gained]


def _write_provenance(
    session: Session, source: Source, scratch: Path, report: MergeReport, copied: Copied, files: Mapping[str, str]
) -> None:
    folds = [
        {"site": f.site, "disk_key": f.disk_key, "realised": round(f.realised, 6), "sha256": copied.sha256[f.disk_key]}
        for f in report.folds
    ]
    facts = {"tensors changed": str(len(folds))}
    if folds:
        facts["update that rounding kept"] = f"{min(fold.realised for fold in report.folds):.1%} or more of each"
    more: dict[str, Any] = {"folds": folds, "linked": copied.linked}
    if report.into is not None:
        facts["edited beside"] = (
            f"its {session.checkpoint.scheme} form, headers {session.state.meta.base['headers'][:16]}"
        )
        more["base"] = fingerprint(source.checkpoint, source.keys.values())
    write_provenance(session, scratch, "finetune", files, model=source.checkpoint.path, facts=facts, **more)
