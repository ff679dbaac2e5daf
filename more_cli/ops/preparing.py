"""What prepares a new state: the anchors that it is to hold, and corrections to calibrate its constants on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from more_cli.errors import DataError, UsageError
from more_cli.inputs.edits import Edit, Probe, read_edits
from more_cli.model.families import family_in
from more_cli.model.runtime import Runtime
from more_cli.ops.anchors import anchors_digest, identities, read_anchors, require_anchors, require_askable
from more_cli.ops.auto_anchors import (
    AUTO,
    Candidates,
    of_edits,
    of_folder,
    of_prompts,
    own_questions,
    with_prompts,
    without_corrected_answers,
)
from more_cli.ops.plan import Plan
from more_cli.options import FileOptions
from more_cli.recipe.schema import Recipe

USE_OF_ANCHORS = "--set anchors.size=8 --set anchors.keys=true"


@dataclass(frozen=True)
class Wanted:
    """The anchors that a new state is to hold."""

    questions: Sequence[Probe]
    """The questions of a file, or the first candidates, which the base has not answered yet."""
    candidates: Candidates | None = None
    prompts: int = 0
    """How many of the questions are prompts of the recipe that join those of a file."""

    def chosen(self, runtime: Runtime, recipe: Recipe) -> Sequence[Probe]:
        """Return the questions, or the candidates that remain once the base has answered them.

        Made ones, and prompts that join those of a file, are followed by questions that the base asks itself.
        """
        if self.candidates:
            questions = without_corrected_answers(runtime, self.candidates).anchors
        else:
            questions = list(self.questions)
        return [*questions, *(own_questions(runtime, recipe, questions) if self.candidates or self.prompts else ())]

    def fits(self, anchors: Sequence[Probe]) -> bool:
        """Return whether a state's anchors are these questions or, if there are candidates, some of them.

        What is text only may differ: the base asks itself some, and an older version added none.
        """
        if self.candidates:
            pictured = [anchor for anchor in anchors if anchor.images]
            return bool(anchors) == bool(self.questions) and identities(pictured) <= identities(self.candidates)
        given = len(self.questions) - self.prompts
        added = anchors[given:]
        same = anchors_digest(anchors[:given]) == anchors_digest(self.questions[:given])
        return same and (not added or bool(self.prompts)) and not pictured_in(added)


@dataclass(frozen=True)
class Inputs:
    """Files that prepare a state, beside its recipe; with any of them the model is loaded."""

    anchors: Path | None = None
    """Questions whose answers must not move; by default the file that the recipe names."""
    auto: Path | None = None
    """File of edits or folder of pictures to make anchors from, in place of `anchors`."""
    arriving: bool = False
    """Start from the recipe's prompts, and let every edit bring anchors of its own picture; see `brings`."""
    calibrate: Path | None = None
    """Corrections that the constants are calibrated on."""
    editing: bool = False
    """Edits follow at once: the model is loaded first, so that one that does not load has no state."""
    files: FileOptions = field(default_factory=FileOptions)
    place: str = ""
    """File and line that name `anchors`; empty for what was typed."""

    def wanted(self, chosen: Plan) -> Wanted:
        """Return the anchors of the file that is given or named by the recipe, or what they are made from.

        Raises:
            UsageError: there are some, and the recipe does not use any.
            StreamErrors: the file has problems, or a question that the model cannot be asked.
            DataError: the file or a picture cannot be read, the folder holds no pictures, or no anchors can be made.
        """
        wanted = self._wanted(chosen)
        if (wanted.questions or self.auto) and not chosen.recipe.uses_anchors:
            what = f"recipe `{chosen.recipe.name}` does not use anchors"
            if self.place:
                raise UsageError(f"{self.place}: {what}", "remove `anchors` there, or add --no-anchors")
            raise UsageError(what, f"drop --anchors, or add {USE_OF_ANCHORS}")
        if self.auto is not None and not wanted.questions:
            raise DataError(
                f"no anchors can be made from `{self.auto}`", f"take other pictures: --anchors {AUTO} FOLDER"
            )
        require_anchors(chosen.recipe, wanted.questions)
        return wanted

    def _wanted(self, chosen: Plan) -> Wanted:
        if candidates := self._candidates(chosen.recipe):
            candidates = candidates.only(partial(_askable, chosen))
            return Wanted(candidates.anchors, candidates)
        given = self.questions(chosen.recipe)
        if file := self.anchors or chosen.recipe.anchors.file:
            require_askable(file, given, family_in(chosen.checkpoint.config))
        questions = [*given, *filter(partial(_askable, chosen), with_prompts(given, chosen.recipe)[len(given) :])]
        return Wanted(questions, prompts=len(questions) - len(given))

    def questions(self, recipe: Recipe) -> Sequence[Probe]:
        """Read the anchors of a file, given or named by the recipe."""
        file = self.anchors or recipe.anchors.file
        root = self.files.image_root if self.anchors else None
        return read_anchors(file, root, strict_paths=self.files.strict_paths) if file else ()

    def _candidates(self, recipe: Recipe) -> Candidates | None:
        if self.auto is None:
            return of_prompts(recipe) if self.brings(recipe) else None
        if self.auto.is_dir():
            return of_folder(self.auto, recipe, strict_paths=self.files.strict_paths)
        return of_edits(self._edits(self.auto), recipe)

    def brings(self, recipe: Recipe) -> bool:
        """Return whether edits bring anchors: if they shall, the recipe takes anchors, and it names no file of them."""
        return self.arriving and recipe.uses_anchors and not recipe.anchors.file

    def corrections(self) -> Sequence[Edit]:
        """Read the calibration stream."""
        return () if self.calibrate is None else self._edits(self.calibrate)

    def _edits(self, file: Path) -> Sequence[Edit]:
        return read_edits(file, self.files.image_root, strict_paths=self.files.strict_paths).edits


def _askable(chosen: Plan, question: Probe) -> bool:
    """Return whether the model can be asked a question that was made for it; some models need a picture."""
    return not family_in(chosen.checkpoint.config).refuses(len(question.images), alone=True)


def pictured_in(questions: Iterable[Probe]) -> int:
    """Return how many questions are about a picture."""
    return sum(bool(question.images) for question in questions)
