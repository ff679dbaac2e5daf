"""The anchors of an editor that runs on a suite, and how it holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from more_cli.editors.base import Editor
from more_cli.errors import UsageError
from more_cli.inputs.edits import Edit, Probe, raise_all, read_probes
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import anchors_digest, ask_anchors, cache_name, identities, overlap


def choose_anchors(editor: Editor, file: Path | None) -> tuple[Probe, ...]:
    """Return the anchors of a file or, without one, those of the editor's recipe.

    Raises:
        UsageError: a file was given, and the editor does not use anchors.
        StreamErrors: the file has problems.
    """
    if "anchors" in editor.capabilities:
        chosen = file or editor.anchors_file
        return read_probes(chosen) if chosen else ()
    if file is not None:
        raise UsageError(f"editor `{editor.name}` does not use anchors with these settings", "drop --anchors")
    return ()


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

    def check(self, edits: Iterable[Edit]) -> None:
        """Refuse edits with a probe that is also an anchor: it would score training data.

        Raises:
            StreamErrors: a locality probe is also an anchor.
        """
        anchors = identities(self.questions)
        raise_all(problem for edit in edits if (problem := overlap(edit, anchors)))

    @contextmanager
    def attached(self, editor: Editor, runtime: Runtime, *, fresh: bool) -> Iterator[None]:
        """Attach an editor that holds these anchors; a `fresh` one, without edits, first settles lambda and P."""
        with editor.attach(runtime):
            if self.questions and "anchors" in editor.capabilities:
                cached = self.cache / cache_name(self.digest, self.facts)
                editor.hold(ask_anchors(runtime, self.questions, cached), fresh=fresh)
            yield
