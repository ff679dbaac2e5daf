"""`more push`: publishes a merged checkpoint, an adapter or a state on the hub, in one commit.

This, `--fetch` and the tracker of `--track` are all that opens a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from more_cli.checkpoint.hub import HUB_ID
from more_cli.errors import StateError, UsageError
from more_cli.files import disk_errors
from more_cli.ops.card import CARD, PROVENANCE, state_card
from more_cli.ops.hub import hub_errors
from more_cli.ops.provenance import written_names
from more_cli.options import PushOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.pin import PIN, read_pin
from more_cli.store.snapshots import replay_start
from more_cli.store.state import load_state
from more_cli.store.statement import NAME, SIGNATURE
from more_cli.store.target import Target, locate
from more_cli.text import is_utf8

OF_A_STATE = (PIN, "anchors.jsonl", "anchors-*.jsonl", NAME, SIGNATURE)
"""Files of a state's folder that are published beside its ledger; no snapshots, no caches."""
_NAME = "name a folder that `more merge` or `more export` wrote"


@dataclass
class PushReport:
    """What was published, or would be."""

    path: Path
    repo: str
    private: bool
    revision: str
    files: dict[str, Path | bytes] = field(default_factory=dict)
    """By name in the repository: a file, or the content of the card that is made for a state."""
    dry_run: bool = False
    url: str | None = None
    """Of the commit; None until it is made."""
    commit: str | None = None

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(len(each) if isinstance(each, bytes) else each.stat().st_size for each in self.files.values())


def plan(path: Path, repo: str, options: PushOptions) -> PushReport:
    """Return what would be published.

    Raises:
        UsageError: not an id, or neither a state nor a folder that merge or export wrote, or not there.
        StateError: the state or the `more.json` is damaged, or a file is missing.
    """
    if not HUB_ID.fullmatch(repo):
        raise UsageError(f"`{repo}` is no id on the hub", "write it as OWNER/NAME")
    report = PushReport(path, repo, options.private, options.revision or "main", dry_run=options.dry_run)
    with disk_errors(path):
        if path.is_file() and path.suffix == ".more":
            report.files = _of_state(locate(None, path), images=options.images)
            _require_names(report.files)
            return report
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder", f"{_NAME}, or a .more file")
        if options.images:
            raise UsageError("`--images` is about a state", "leave it out, or name a .more file")
        if not path.is_dir():
            hint = f"{_NAME}; instead of deltas, export an adapter: more export MODEL -o FOLDER"
            raise UsageError(f"{path}: is a file, and `push` takes a folder or a state", hint)
        if not (path / PROVENANCE).is_file():
            raise UsageError(f"{path}: no {PROVENANCE}, so this is not the work of `more`", f"{_NAME}, or a .more file")
        if lost := [name for name in written_names(path) if not (path / name).is_file()]:
            raise StateError(f"`{path / lost[0]}` is missing", f"write `{path}` again")
        report.files = {file.relative_to(path).as_posix(): file for file in _of_folder(path)}
        _require_names(report.files)
    return report


def push(path: Path, repo: str, options: PushOptions, progress: Progress = no_progress) -> PushReport:
    """Publish what `plan` returns, all of it or nothing; the repository is created if there is none.

    Raises:
        UsageError: as `plan`, or a private repository was asked for and there is a public one.
        StateError: as `plan`, or another process writes to the state.
        HubError: the hub refuses it, or is not reached.
    """
    with ExitStack() as stack:
        if path.is_file() and path.suffix == ".more":
            stack.enter_context(writer_lock(locate(None, path).lock))  # an edit meanwhile would tear it apart
        report = plan(path, repo, options)
        from huggingface_hub import CommitOperationAdd, HfApi

        api = HfApi()
        progress(0, None, f"uploading to {repo}")
        with hub_errors(repo, options.revision):
            api.create_repo(repo, private=options.private or None, exist_ok=True)
            if options.private and not api.repo_info(repo).private:  # it was there before
                raise UsageError(f"`{repo}` exists and is public", "name another one, or leave --private out")
            if options.revision:
                api.create_branch(repo, branch=options.revision, exist_ok=True)
            adds = [CommitOperationAdd(name, content) for name, content in report.files.items()]
            done = api.create_commit(repo, adds, commit_message="Upload with more", revision=options.revision)
        report.url, report.commit = done.commit_url, done.oid
    return report


def _of_folder(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, without hidden ones and without links, which can lead anywhere."""
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.is_file() and not file.is_symlink() and not hidden:
            yield file


def _require_names(names: Iterable[str]) -> None:
    """Check that the hub can have these names."""
    for name in names:
        if not is_utf8(name):
            raise StateError(f"{name}: its name is not UTF-8", "rename it")


def _of_state(target: Target, *, images: bool) -> dict[str, Path | bytes]:
    """Return a state, its ledger and what they name, and a card."""
    state = load_state(target.sidecar)  # before the ledger: an edit that comes in between makes only the ledger longer
    ledger = Ledger(target.folder)
    replay_start(state, ledger, target.sidecar)  # raises where they do not belong together
    found = [target.folder / target.ledger_name] if ledger.entries else []
    found += [file for pattern in OF_A_STATE for file in sorted(target.folder.glob(pattern))]
    found += sorted((target.folder / "images").glob("*")) if images else []
    found = [file for file in found if file.is_file() and not file.is_symlink()]
    inside = target.sidecar.with_name(f"{target.sidecar.name}.d").name
    files: dict[str, Path | bytes] = {target.sidecar.name: target.sidecar}
    files |= {f"{inside}/{file.relative_to(target.folder).as_posix()}": file for file in found}
    card = state_card(state.meta, ledger, target, read_pin(target.folder))
    return {**files, CARD: card}
