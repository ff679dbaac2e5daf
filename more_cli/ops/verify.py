"""`more verify`: check that ledger, state, images and base are undamaged and belong together.

The quick checks find files that are missing, exchanged or half written. Only `deep` proves that B and P are the result
of the edits: it applies all of them again.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from more_cli.checkpoint.reader import Checkpoint
from more_cli.core import basis, recursion
from more_cli.editors.more.sites import check_basis
from more_cli.errors import MoreError, ResourceError, StateError
from more_cli.files import disk_errors, sha256_file
from more_cli.inputs.images import MAX_BYTES
from more_cli.model.machine import Machine
from more_cli.model.versions import versions
from more_cli.ops.anchors import load_anchors
from more_cli.ops.base import open_base
from more_cli.ops.card import PROVENANCE
from more_cli.ops.export import ADAPTER
from more_cli.ops.held import held_at
from more_cli.ops.provenance import (
    carried,
    compare_copies,
    compare_files,
    compare_tensors,
    hashes_of,
    read_provenance,
    tensor_hashes,
)
from more_cli.ops.session import Session, update_state
from more_cli.ops.sign import carried_signature, folder_signature, state_signature
from more_cli.progress import Progress, no_progress
from more_cli.recipe.schema import Recipe
from more_cli.store.entry import Entry
from more_cli.store.ledger import Ledger
from more_cli.store.snapshots import replay_start
from more_cli.store.state import RESTORE, SiteRecord, State, load_state, state_bytes, unedited
from more_cli.store.target import Target
from more_cli.system import ssh
from more_cli.text import counted, listed, quoted, reason_of, shorten, verb

SHOWN = 5
"""Largest number of problems that the line of one check lists."""
_HASH = re.compile(r"[0-9a-f]{64}")
_RESTORE = "restore it from a backup"
Value = TypeVar("Value")


class _Unavailable(Exception):
    """What a check needs could not be opened, or was never recorded."""


def _unavailable() -> NoReturn:
    raise _Unavailable("a check that it needs failed above")


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    verdict: Literal["ok", "FAILED", "skipped"]
    detail: str
    hint: str = ""


@dataclass
class VerifyReport:
    """Every check of a state, or of a merged checkpoint or an adapter, in order."""

    target: Target
    deep: bool
    subject: Path
    """The folder that merge or export wrote, until a state of its own is checked; then that state."""
    checks: list[Check] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)
    """The subjects that did not pass a check."""
    short: ResourceError | None = None
    """Why a check could not be made on this machine."""

    @property
    def failed(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if check.verdict == "FAILED"]

    def run(self, name: str, check: Callable[[], tuple[str, Value]]) -> Callable[[], Value]:
        """Run a check and record its result; return a function that returns what the check opened.

        A check is skipped if it calls such a function of a check that opened nothing.
        """
        try:
            detail, value = check()
        except (_Unavailable, ssh.Missing) as reason:
            self.checks.append(Check(name, "skipped", str(reason)))
        except ResourceError as error:  # says nothing about the state
            self.short = error
            self.checks.append(Check(name, "skipped", error.message, error.hint))
        except MoreError as error:
            self.checks.append(Check(name, "FAILED", error.message, error.hint))
            if self.subject not in self.damaged:
                self.damaged.append(self.subject)
        else:
            self.checks.append(Check(name, "ok", detail))
            return lambda: value
        return _unavailable


class Named(NamedTuple):
    """The ledger line or anchor that names an image, and the image's path if it was not stored."""

    line: str
    path: str | None = None


def verify(
    target: Target,
    machine: Machine,
    *,
    deep: bool = False,
    signers: Path | None = None,
    progress: Progress = no_progress,
) -> VerifyReport:
    """Check a state and the files beside it; writes nothing.

    With `deep` every stored image and shard is read whole, and every edit is applied again from an empty state.

    A folder that `merge` or `export` wrote is compared with its `more.json`, also when it has no state of its own.

    With a file of `signers` one of them must have signed all of it.

    Raises:
        StateError: there is neither a state, nor a ledger, nor a `more.json`.
        UsageError: there is no file of signers, or no `ssh-keygen` to compare with it.
    """
    if signers:
        ssh.require(signers)
    report = VerifyReport(target, deep, target.model)
    written = (target.model / PROVENANCE).is_file()
    if written:
        _verify_output(report, signers, progress)
    if target.sidecar.exists() or target.folder.exists():
        _verify_state(report, machine, signers, progress)
    elif not written:
        load_state(target.sidecar)  # raises: there is none
    return report


def _verify_output(report: VerifyReport, signers: Path | None, progress: Progress) -> None:
    """Compare a merged checkpoint or an adapter with its `more.json`."""
    folder = report.target.model
    origin = report.run("origin", lambda: _origin(folder))
    report.run("files", lambda: _files(folder, origin(), report.deep))
    if not (folder / ADAPTER).is_file():
        report.run("copies", lambda: _copies(folder, origin()))
        if report.deep:
            report.run("tensors", lambda: _tensors(folder, origin()))
    report.run("signed", lambda: _signed_folder(folder, origin(), signers, report.deep, progress))


def _verify_state(report: VerifyReport, machine: Machine, signers: Path | None, progress: Progress) -> None:
    """Check a state, its ledger and images, and the base it was made for."""
    target, deep, named = report.target, report.deep, dict[str, Named]()
    report.subject = target.sidecar
    state = report.run("state", lambda: _state(target))
    ledger = report.run("ledger", lambda: _ledger(target, named))
    report.run("digest", lambda: _digest(target, state(), ledger()))
    report.run("signed", lambda: _signed_state(target, state(), ledger(), signers))
    report.run("anchors", lambda: _anchors(target, state(), ledger(), named))
    report.run("images", lambda: _images(target.folder / "images", named, deep or signers is not None, progress))
    base = report.run("base", lambda: _base(target, state()))
    report.run("basis", lambda: _basis(state(), base()))
    report.run("P", lambda: _statistics(state()))
    if deep:
        report.run("shards", lambda: _shards(base(), progress))
        report.run("replay", lambda: retrace(target, state(), ledger(), machine, progress))


def _origin(folder: Path) -> tuple[str, dict[str, Any]]:
    values = read_provenance(folder)
    return f"{counted(values['edits'], 'ledger line')} up to {values['ledger_head'][:16]}", values


def _files(folder: Path, values: Mapping[str, Any], deep: bool) -> tuple[str, None]:
    if not values["files"]:
        raise _Unavailable("no hashes of shards were recorded: `more merge --sha256` records them")
    _raise_all(compare_files(folder, values, deep))
    how = "with the recorded hashes" if deep else "present; --deep compares hashes"
    return f"{counted(len(values['files']), 'file')}, {how}", None


def _copies(folder: Path, values: Mapping[str, Any]) -> tuple[str, None]:
    _raise_all(compare_copies(folder, values))
    return "config, tokenizer, processor files and shard headers equal the base's", None


def _tensors(folder: Path, values: Mapping[str, Any]) -> tuple[str, None]:
    hashes = tensor_hashes(values)
    _raise_all(compare_tensors(folder, hashes))
    return f"{counted(len(hashes), 'edited tensor')}, with the recorded hashes", None


def _state(target: Target) -> tuple[str, State]:
    state = load_state(target.sidecar)
    return f"{counted(len(state.meta.sites), 'site')}, {state.parameters:,} finite numbers", state


def _ledger(target: Target, named: dict[str, Named]) -> tuple[str, Ledger]:
    def note(entry: Entry) -> None:
        for sha256 in entry.pictures:
            named.setdefault(sha256, Named(f"line {entry.seq}", entry.paths.get(sha256)))

    ledger = Ledger(target.folder, note)
    ledger.check_contents()
    torn = f"; {counted(ledger.torn, 'byte')} of an unfinished line, which the next edit removes" if ledger.torn else ""
    lines = counted(len(ledger.entries), "line")
    return f"{lines}, each with the hash of the one before, head {ledger.head[:16]}{torn}", ledger


def _digest(target: Target, state: State, ledger: Ledger) -> tuple[str, None]:
    if replay_start(state, ledger, target.sidecar) is not state:
        return "the state is from before a revert; the next command updates it", None
    behind = len(ledger.history) - state.meta.edits
    more = f"; the next command replays {behind:,} more" if behind else ""
    of = " that are in force" if ledger.has_reverts else ""
    return f"the state holds the first {counted(state.meta.edits, 'line')} of the ledger{of}{more}", None


def _signed_state(target: Target, state: State, ledger: Ledger, signers: Path | None) -> tuple[str, None]:
    found, command = state_signature(target, state.meta, ledger, signers), f"more sign {target.typed} --key KEY"
    if found is None:
        return _not_signed(f"`{target.sidecar}` is not signed", command, demanded=signers is not None)
    if signers and found.rest:
        what = f"`{target.sidecar}` is signed {found}"
        raise StateError(what, f"check these lines with `more log {target.typed}`, then sign again: {command}")
    return str(found), None


def _signed_folder(
    folder: Path, values: Mapping[str, Any], signers: Path | None, deep: bool, progress: Progress
) -> tuple[str, None]:
    state, deep = carried(values), deep or signers is not None
    edits = carried_signature(state, values, signers) if state else ""
    signer = folder_signature(folder, signers, deep=deep, progress=progress)
    if signer is None:
        command = f"more sign {quoted(folder)} --key KEY"
        what = f"the files of `{folder}` are not signed" + (f", only {edits}" if edits else "")
        return _not_signed(what, command, demanded=signers is not None)
    compared = "all files" if deep else "all files (--deep compares their bytes)"
    return "; ".join(filter(None, (f"{compared}, by {signer}", edits))), None


def _not_signed(what: str, command: str, *, demanded: bool) -> NoReturn:
    if demanded:
        raise StateError(what, command)
    raise _Unavailable(f"{what}: `{command}`")


def _anchors(target: Target, state: State, ledger: Ledger, named: dict[str, Named]) -> tuple[str, None]:
    first = [state.meta.anchors] if state.meta.anchors else []
    sets = [load_anchors(target.folder, digest) for digest in (*first, *ledger.anchors)]
    for anchors in sets:  # each holds those of the one before, so the numbers stay
        for number, anchor in enumerate(anchors, 1):
            for image in anchor.images:
                named.setdefault(image.sha256, Named(f"anchor {number}"))
    held = held_at(ledger, state.meta, len(ledger.history))
    made = f"; edits brought {len(held.made)} of them" if held.made else ""
    return f"{len(held.anchors)}, unchanged since they were added{made}" if held.anchors else "none", None


def _images(folder: Path, named: dict[str, Named], deep: bool, progress: Progress) -> tuple[str, None]:
    with disk_errors(folder):
        files = sorted(folder.iterdir()) if folder.exists() else []
    stored = [path for path in files if not path.name.startswith(".")]  # `.part`: left by a killed process
    elsewhere = {sha256: by for sha256, by in named.items() if by.path and not (folder / sha256).exists()}
    files_and_hashes = [(path, path.name) for path in stored]
    files_and_hashes += [(Path(by.path), sha256) for sha256, by in elsewhere.items() if by.path]

    def flaws() -> Iterator[str]:
        for number, (path, sha256) in enumerate(files_and_hashes):
            progress(number, len(files_and_hashes), "images")
            if flaw := _image_flaw(path, sha256, deep):
                yield f"`{shorten(str(path), 200)}` {flaw}"
        for sha256, by in named.items():
            if sha256 not in elsewhere and not (folder / sha256).exists():
                yield f"`{folder / sha256}` of {by.line} is missing"

    _raise_all(flaws())
    how = "all have the hashes in their names" if deep else "names and sizes are right; --deep compares hashes"
    others = f", {len(elsewhere):,} not stored" if elsewhere else ""
    return f"{len(stored):,} stored{others}; {how}", None


def _image_flaw(path: Path, sha256: str, deep: bool) -> str:
    try:
        status = path.stat()
        if not _HASH.fullmatch(sha256) or not stat.S_ISREG(status.st_mode):
            return "is not a stored image"
        if not 0 < status.st_size <= MAX_BYTES:
            return f"has {status.st_size:,} bytes"
        return "has another hash" if deep and sha256_file(path) != sha256 else ""
    except OSError as error:
        return f"cannot be read: {reason_of(error)}"


def _base(target: Target, state: State) -> tuple[str, Checkpoint]:
    base = open_base(target, state)
    return f"`{target.model}`: files, headers and the tensors of all sites have the recorded hashes", base


def _basis(state: State, base: Checkpoint) -> tuple[str, None]:
    _raise_all(f"{site.name}: {flaw}" for site in state.meta.sites if (flaw := _site_flaw(site, state, base)))
    what = "is stored; the draw it began with was" if state.A else "was"
    return f"A of every site {what} rebuilt from its seed", None


def _site_flaw(site: SiteRecord, state: State, base: Checkpoint) -> str:
    recipe: Recipe = state.meta.recipe
    tensor = base.weights.get(site.disk_key)
    if tensor is None or tensor.shape != site.shape:
        return f"the base has no `{shorten(site.disk_key)}` of shape {site.shape[0]} x {site.shape[1]}"
    expected = basis.site_seed(recipe.seed, site.name), recipe.scale
    ranks = recipe.rank_at(site.shape[1]), recipe.largest_rank(site.shape[1])
    if site.rank not in ranks or (site.seed, site.scale) != expected:
        return "rank, seed or scale is not the recipe's"
    try:
        check_basis(site, recipe.basis)
    except StateError as error:
        return error.message
    return ""


def _statistics(state: State) -> tuple[str, None]:
    form = state.meta.recipe.normalisation
    _raise_all(
        f"{site.name}: {flaw}"
        for site in state.meta.sites
        if (flaw := recursion.flaw(state.P[site.name], site.keys, site.ridge or 0.0, form))
    )
    return "symmetric, 0 < P <= P_0, no more directions lowered than keys absorbed", None


def _shards(base: Checkpoint, progress: Progress) -> tuple[str, dict[str, str]]:
    hashes = hashes_of(base.path, base.shards, progress)
    return ", ".join(f"{shard} {sha256}" for shard, sha256 in hashes.items()), hashes


def _raise_all(flaws: Iterable[str]) -> None:
    if every := list(flaws):
        raise StateError(listed(every, SHOWN, "; "), _RESTORE)


TOLERANCE = 0.1
"""Largest difference of a tensor, as a part of its norm, where versions, threads or a GPU round differently."""


def retrace(target: Target, state: State, ledger: Ledger, machine: Machine, progress: Progress) -> tuple[str, None]:
    """Apply the edits of a state again and report how close the result is.

    Raises:
        StateError: the result is another state, or an edit cannot be applied again.
    """
    if not ledger.agrees(state.meta.edits, state.meta.digest):
        return "not done: the state is from before a revert; run a command that edits first", None
    again = _applied_again(target, state, machine, progress)
    gives = verb(state.meta.edits, "gives", "give")
    what = f"{counted(state.meta.edits, 'line')} applied again from an empty state {gives}"
    if state_bytes(again) == state_bytes(state):
        return f"{what} the same bytes", None
    changed = _differences(ledger.history[: state.meta.edits], versions(machine))
    gap, tensor = max(_gaps(again, state), default=(0.0, "the header"))
    off = f"{tensor} is off by {gap:.2g} of its norm"
    if machine.place == "cpu" and not changed:
        raise StateError(f"{what} another state on the same machine: {off}", RESTORE)
    where = f"on another machine ({', '.join(changed)})" if changed else "on a GPU"
    if gap > TOLERANCE or not _same_edits(again, state):
        hint = "compare on a machine with the versions and the number of threads that the ledger records"
        raise StateError(f"{what} another state {where}: {off}", hint)
    return f"{what} the same numbers within {TOLERANCE:.0%}, not the same bytes, {where}: {off}", None


def _applied_again(target: Target, state: State, machine: Machine, progress: Progress) -> State:
    with TemporaryDirectory() as folder:
        session = Session(target, unedited(state.meta), machine, progress, cache=Path(folder))
        with session.attached(replay=False):
            session.replay(until=state.meta.edits)
    update_state(session.state, session.editor)
    return session.state


def _differences(entries: Iterable[Entry], now: dict[str, str]) -> list[str]:
    """Return the versions in which this machine differs from those that made the edits."""
    seen: dict[str, set[str]] = {}
    for entry in entries:
        for name in now:
            if (value := entry.versions.get(name, "unknown")) != now[name]:  # older versions recorded less
                seen.setdefault(name, set()).add(value)
    return [f"{name} {' and '.join(sorted(values))} -> {now[name]}" for name, values in sorted(seen.items())]


def _same_edits(first: State, second: State) -> bool:
    """Return whether two states contain the same edits, with equally many keys at every site."""
    ours, theirs = ((meta.edits, meta.digest, [site.keys for site in meta.sites]) for meta in (first.meta, second.meta))
    return ours == theirs


def _gaps(ours: State, theirs: State) -> Iterable[tuple[float, str]]:
    """Yield |ours - theirs| / |theirs| of every tensor, with its name."""
    for kind in "BPA":
        first, second = getattr(ours, kind), getattr(theirs, kind)
        for name, tensor in second.items():
            difference, norm = float((first[name] - tensor).norm()), float(tensor.norm())
            yield difference / norm if norm else float("inf" if difference else 0.0), f"{kind} of {name}"
