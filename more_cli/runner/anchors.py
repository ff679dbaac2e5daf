"""The anchors of an editor that runs on a suite, and how it holds them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from more_cli.editors.base import Editor
from more_cli.errors import UsageError
from more_cli.inputs.edits import Edit, Probe
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import anchors_digest, ask_anchors, cache_name, identity, read_anchors, require_anchors
from more_cli.ops.auto_anchors import of_edits, with_prompts
from more_cli.suites.load import EditSuite

RECORDS = 200
"""Edits of a suite's calibration pool, the first ones, that `--anchors auto` makes anchors from."""

LOCALITY = 80
"""Most locality questions of a kind, with or without a picture, whose keys P absorbs."""


def choose_anchors(
    editor: Editor, chosen: Path | Literal["auto"] | None, suite: EditSuite, limit: int | None = None
) -> tuple[Probe, ...]:
    """Return the anchors of a file, those made from the suite's calibration pool, or those of the editor's recipe.

    A recipe whose P absorbs anchors' keys after every edit has locality questions of the calibration pool by default,
    none of which scores the first `limit` edits.

    Raises:
        UsageError: anchors were asked for, and the editor uses none or the suite has no calibration pool; or there are
            none, and its basis is computed from them.
        StreamErrors: the file has problems, or an image of the pool is missing or unreadable.
    """
    questions = _chosen(editor, chosen, suite, limit)
    if editor.recipe is not None:
        require_anchors(editor.recipe, questions)
    return questions


def _chosen(
    editor: Editor, chosen: Path | Literal["auto"] | None, suite: EditSuite, limit: int | None
) -> tuple[Probe, ...]:
    if editor.recipe is None or "anchors" not in editor.capabilities:
        if chosen is not None:
            raise UsageError(f"editor `{editor.name}` does not use anchors with these settings", "drop --anchors")
        return ()
    if isinstance(chosen, str):
        if "calibration" not in suite.pools:
            hint = "give a file of anchors: --anchors FILE"
            raise UsageError(f"suite `{suite.name}` has no calibration pool here to make anchors from", hint)
        return tuple(of_edits(list(suite.pools["calibration"][:RECORDS]), editor.recipe).anchors)
    file = chosen or editor.recipe.anchors.file
    if file or not editor.recipe.anchors.per_edit:
        return with_prompts(read_anchors(file), editor.recipe) if file else ()
    scored = (probe for edit in suite.pools["evaluation"][:limit] for probe in edit.locality)
    return locality_questions(suite.pools.get("calibration", ()), frozenset(map(identity, scored)))


def without_keys(editor: Editor, questions: Sequence[Probe]) -> list[str]:
    """Return what to know of an editor whose P is to absorb the keys of questions after every edit, if it has none."""
    if questions or not (editor.recipe and editor.recipe.anchors.per_edit):
        return []
    return ["no calibration pool here has locality questions: P absorbs no key of one"]


def locality_questions(edits: Iterable[Edit], scored: Collection[tuple[str, str]]) -> tuple[Probe, ...]:
    """Return locality questions of edits, with and without a picture in turn, but none that is `scored`."""
    kinds = dict[tuple[str, str], Probe](), dict[tuple[str, str], Probe]()
    for probe in (probe for edit in edits for probe in edit.locality):
        kind = kinds[bool(probe.images)]
        if len(kind) < LOCALITY and (key := identity(probe)) not in scored:
            kind[key] = probe
        if min(map(len, kinds)) == LOCALITY:
            break
    pairs = zip_longest(*(kind.values() for kind in kinds))
    return tuple(probe for pair in pairs for probe in pair if probe is not None)


@dataclass(frozen=True)
class HeldAnchors:
    """The inputs whose behaviour an editor must not move; none for most editors."""

    questions: tuple[Probe, ...]
    cache: Path
    """Folder that caches the base's answers to them."""
    facts: str
    """Key of everything that decides these answers."""

    @property
    def digest(self) -> str | None:
        """SHA-256 of the anchors; None without anchors."""
        return anchors_digest(self.questions) if self.questions else None

    @contextmanager
    def attached(self, editor: Editor, runtime: Runtime, *, fresh: bool) -> Iterator[None]:
        """Attach an editor that holds these anchors; a `fresh` one, without edits, first fixes lambda and P."""
        with editor.taught(runtime):
            if self.questions and "anchors" in editor.capabilities:
                cached = self.cache / cache_name(self.digest, self.facts)
                editor.hold(ask_anchors(runtime, self.questions, cached), fresh=fresh)
            yield
