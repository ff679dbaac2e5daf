"""`more anchors add`: add anchors to a state, with a line in the ledger; later writes hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from more_cli.errors import UsageError
from more_cli.inputs.edits import Probe
from more_cli.model.families import family_in
from more_cli.model.machine import Machine
from more_cli.ops.anchors import (
    contradictions,
    identities,
    identity,
    line_of,
    read_anchors,
    require_agreement,
    require_askable,
)
from more_cli.ops.commit import commit_anchors
from more_cli.ops.held import corrected, held_at
from more_cli.ops.preparing import USE_OF_ANCHORS
from more_cli.ops.session import Session, open_session
from more_cli.options import FileOptions
from more_cli.progress import Progress, no_progress
from more_cli.store.entry import ProbeEntry
from more_cli.store.ledger import Ledger
from more_cli.store.lock import writer_lock
from more_cli.store.state import load_meta
from more_cli.store.target import Target


@dataclass(frozen=True)
class AnchorsReport:
    """What was added."""

    target: Target
    added: int
    repeated: int
    """Questions of the file that are anchors already."""
    total: int
    """Anchors that the state holds now: none that an edit corrects."""
    replayed: int = 0


def add_anchors(
    target: Target, file: Path, images: FileOptions, machine: Machine, progress: Progress = no_progress
) -> AnchorsReport:
    """Add the questions of a file to a state's anchors; P absorbs their keys if the recipe says so.

    Raises:
        StreamErrors: the file has problems.
        UsageError: the recipe does not use anchors.
        StateError: model, state or ledger do not fit, or the lock is held.
    """
    questions = read_anchors(file, images.image_root, strict_paths=images.strict_paths)
    opened = open_session(target, machine)
    recipe = opened.state.meta.recipe
    require_askable(file, questions, family_in(opened.checkpoint.config))
    if not recipe.uses_anchors:
        raise UsageError(f"recipe `{recipe.name}` does not use anchors", f"start a new state with {USE_OF_ANCHORS}")
    with writer_lock(target.lock):
        session = open_session(target, machine, progress)
        new, replayed = _new(session, file, questions), 0
        if new or session.behind or session.outdated:
            with session.ledger, session.attached(writing=True) as replayed:
                new = _new(session, file, questions)  # edits that were replayed may have brought some
                if new:
                    commit_anchors(session, new)
                session.save()
        repeated = len(questions) - len(new)
        total = len(session.anchors.questions) - len(_corrected(session))
        return AnchorsReport(target, len(new), repeated, total, replayed)


def _new(session: Session, file: Path, questions: Sequence[Probe]) -> list[Probe]:
    """Return the questions that are no anchors yet.

    Raises:
        StreamErrors: one that is has another answer.
    """
    _require_agreement(session, file, questions)
    held = identities(session.anchors.questions)
    return [question for question in questions if identity(question) not in held]


def _require_agreement(session: Session, file: Path, questions: Sequence[Probe]) -> None:
    """Check that no anchor in force has another answer."""
    if any(contradictions(session.anchors.questions, questions)):  # else the edits need not be read
        gone = _corrected(session)
        held = (anchor for place, anchor in enumerate(session.anchors.questions) if place not in gone)
        require_agreement(file, held, questions)


def _corrected(session: Session) -> Mapping[int, str]:
    """Return the edits that correct an anchor of a state, by the anchor's place."""
    ledger = session.ledger
    return corrected(held_at(ledger, session.state.meta, len(ledger.history)), ledger)


def list_anchors(target: Target) -> tuple[list[ProbeEntry], Mapping[int, str]]:
    """Return a state's anchors and, by place, the edits that correct some of them; loads no model.

    Raises:
        StateError: no state, or a damaged one.
    """
    meta, ledger = load_meta(target.sidecar), Ledger(target.folder)
    held = held_at(ledger, meta, len(ledger.history))
    lines = (line_of(anchor) | {"answer": anchor.answer} for anchor in held.anchors)
    return list(map(ProbeEntry.model_validate, lines)), corrected(held, ledger)
