"""What an edit must fit before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from more_cli.checkpoint.reader import open_checkpoint
from more_cli.errors import DataError
from more_cli.inputs.edits import Edit, Problem
from more_cli.model.batches import Query
from more_cli.model.families import Family, family_of
from more_cli.model.prompts import Prompter
from more_cli.model.runtime import load_prompter
from more_cli.ops.anchors import asked, load_anchors, overlap
from more_cli.ops.init import Inputs, plan
from more_cli.ops.session import Target
from more_cli.store.state import load_meta

LONG_TEXT = 256
"""Question and target with fewer bytes than this fit into any context; where not, the editor refuses them."""


class Fit:
    """What an edit must fit: the number of images that the model takes, the state's anchors, and for texts long
    enough to fill it the model's context."""

    def __init__(self, target: Target, recipe: str | None, settings: Sequence[str]) -> None:
        self.target = target
        self.recipe = recipe
        self.settings = settings

    @cached_property
    def prompter(self) -> Prompter:
        """What turns questions into tokens."""
        return load_prompter(open_checkpoint(self.target.model))

    @cached_property
    def family(self) -> Family:
        """What is known about the model's family."""
        return family_of(str(open_checkpoint(self.target.model).config.get("model_type")))

    @cached_property
    def anchors(self) -> frozenset[tuple[str, str]]:
        """What the state's anchors ask or, before there is a state, those that its recipe names."""
        if not self.target.sidecar.exists():
            recipe = plan(self.target, self.recipe, self.settings).recipe
            return asked(Inputs().questions(recipe))
        digest = load_meta(self.target.sidecar).anchors
        return asked(load_anchors(self.target.folder, digest) if digest else ())

    def load(self) -> None:
        """Read all of it now: reading a model's files is nothing to do in a thread beside another model at work."""
        _ = self.prompter, self.family, self.anchors

    def problem(self, edit: Edit) -> Problem | None:
        """Say if an edit does not fit; what a recipe's system prompt takes is left out of account."""
        if refused := self._refused(edit):
            return Problem(f"{edit.source}:{edit.line}", *refused, edit.line)
        if clash := overlap(edit, self.anchors):
            return clash
        if len((edit.question + edit.target).encode()) < LONG_TEXT:
            return None
        try:
            self.prompter.encode(Query(edit.images, edit.question), edit.target)
        except DataError as error:
            return Problem(f"{edit.source}:{edit.line}", error.message, error.hint, edit.line)
        return None

    def _refused(self, edit: Edit) -> tuple[str, str] | None:
        """Say, with a hint, why the model cannot be asked an edit, or what else it moved."""
        if refused := self.family.refuses(len(edit.images)):
            return refused
        for number, probe in enumerate(edit.locality, 1):
            if refused := self.family.refuses(1 if probe.image else 0, alone=True):
                return f"locality {number}: {refused[0]}", refused[1]
        return None
