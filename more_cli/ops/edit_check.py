"""Check that edits fit the model and the state, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.errors import DataError
from more_cli.inputs.edits import Edit
from more_cli.inputs.records import Problem
from more_cli.model.batches import Query
from more_cli.model.families import Family, family_of
from more_cli.model.loading import load_prompter
from more_cli.model.prompts import Prompter
from more_cli.ops.anchors import anchors_of, anchors_too, identities, identity
from more_cli.ops.init import Inputs, plan
from more_cli.store.state import load_meta
from more_cli.store.target import Target

LONG_TEXT = 256
"""Bytes of question and target below which no context is too short; if one is, the editor refuses the edit."""


class EditCheck:
    """Checks edits against the number of images that the model takes and its context; counts probes to leave out."""

    def __init__(self, target: Target, recipe: str | None, settings: Sequence[str]) -> None:
        self.target = target
        self.recipe = recipe
        self.settings = settings
        self._probes = 0
        """Locality probes so far."""
        self._anchors_too = 0
        """Of these, those that are anchors too."""

    @cached_property
    def prompter(self) -> Prompter:
        """The tokenizer with the chat template."""
        return load_prompter(open_checkpoint(self.target.model))

    @cached_property
    def family(self) -> Family:
        """The entry of the model's family."""
        return family_of(str(open_checkpoint(self.target.model).config.get("model_type")))

    @cached_property
    def anchors(self) -> frozenset[tuple[str, str]]:
        """Questions of the state's anchors or, before there is a state, of the anchors that its recipe names."""
        if not self.target.sidecar.exists():
            recipe = plan(self.target, self.recipe, self.settings).recipe
            return identities(Inputs().questions(recipe))
        return identities(anchors_of(self.target.folder, load_meta(self.target.sidecar)))

    def load(self) -> None:
        """Read everything now: model files must not be read in a thread while a model runs in another."""
        _ = self.prompter, self.family, self.anchors

    def problem(self, edit: Edit) -> Problem | None:
        """Return why an edit does not fit, or None; the length of a system prompt is not counted."""
        if refused := self._refused(edit):
            return Problem(f"{edit.source}:{edit.line}", *refused, edit.line)
        self._probes += len(edit.locality)
        self._anchors_too += sum(identity(probe) in self.anchors for probe in edit.locality)
        if len((edit.question + edit.target).encode()) < LONG_TEXT:
            return None
        try:
            self.prompter.encode(Query(edit.images, edit.question), edit.target)
        except DataError as error:
            return Problem(f"{edit.source}:{edit.line}", error.message, error.hint, edit.line)
        return None

    def notes(self) -> list[str]:
        """Return how many locality probes of the checked edits will not be scored, if any."""
        if not self._anchors_too:
            return []
        return [f"{anchors_too(self._anchors_too, self._probes)}, which `more eval` leaves out"]

    def _refused(self, edit: Edit) -> tuple[str, str] | None:
        """Return why the model cannot be asked this edit or one of its locality probes, with a hint."""
        if refused := self.family.refuses(len(edit.images)):
            return refused
        for number, probe in enumerate(edit.locality, 1):
            if refused := self.family.refuses(1 if probe.image else 0, alone=True):
                return f"locality {number}: {refused[0]}", refused[1]
        return None
