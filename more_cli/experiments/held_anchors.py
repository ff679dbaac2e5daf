"""The anchors of an editor that goes through a suite: which they are, and how they are held while it is at work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from more_cli.editors.base import Editor
from more_cli.editors.more.editor import MoreEditor
from more_cli.errors import UsageError
from more_cli.inputs.edits import Edit, Probe, raise_all, read_probes
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import anchors_digest, ask_anchors, asked, cache_name, overlap


def takes_anchors(editor: Editor) -> bool:
    """Return whether an editor makes anything of anchors."""
    return isinstance(editor, MoreEditor) and editor.recipe.anchors.used


def choose_anchors(editor: Editor, file: Path | None) -> tuple[Probe, ...]:
    """Return the anchors of a file or, without one, those that the editor's recipe names.

    Raises:
        UsageError: a file, and an editor that makes no use of it.
        StreamErrors: the file has problems.
    """
    if takes_anchors(editor):
        assert isinstance(editor, MoreEditor)
        chosen = file or editor.recipe.anchors.file
        return read_probes(Path(chosen)) if chosen else ()
    if file is not None:
        raise UsageError(f"editor `{editor.name}` as it is makes no use of anchors", "leave --anchors out")
    return ()


@dataclass(frozen=True)
class HeldAnchors:
    """What an editor must leave as the base has it; nothing for most."""

    questions: tuple[Probe, ...]
    cache: Path
    """Folder for what the base says to them."""
    facts: str
    """Key of what decides that."""

    @property
    def digest(self) -> str | None:
        """SHA-256 over the anchors; None where there are none."""
        return anchors_digest(self.questions) if self.questions else None

    def check(self, edits: Iterable[Edit]) -> None:
        """Refuse edits that would be measured on what is trained.

        Raises:
            StreamErrors: a locality probe asks what an anchor holds.
        """
        held = asked(self.questions)
        raise_all(problem for edit in edits if (problem := overlap(edit, held)))

    @contextmanager
    def attached(self, editor: Editor, runtime: Runtime, *, fresh: bool) -> Iterator[None]:
        """Lend the model to an editor that holds these; one without edits first settles lambda and P by them."""
        with editor.attach(runtime):
            if self.questions and isinstance(editor, MoreEditor):
                anchors = ask_anchors(runtime, self.questions, self.cache / cache_name(self.digest, self.facts))
                if fresh:
                    editor.settle(anchors)
                editor.hold(anchors)
            yield
