"""Editors by name, each made for one checkpoint from its constants: what `--editor` takes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from more_cli.checkpoint.reader import open_checkpoint
from more_cli.editors.base import Editor
from more_cli.editors.finetune import FineTuneText, FineTuneVision
from more_cli.editors.lora import LoraAllEditor, LoraAllTuning, LoraEditor, LoraTuning
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.none import NoEditor
from more_cli.editors.training import TrainedEditor, Tuning
from more_cli.errors import UsageError
from more_cli.files import shorten
from more_cli.ops.init import plan
from more_cli.ops.session import Target
from more_cli.recipe import apply_setting, pick_recipe, shipped_recipes
from more_cli.store.state import sidecar_path


@dataclass(frozen=True)
class Wish:
    """What an editor is made for, and what its user changed."""

    model: Path
    recipe: str | None = None
    """For editors that have one; absent, the one picked by the architecture."""
    settings: tuple[str, ...] = ()
    """`key=value` on top of the editor's constants."""

    def with_settings(self, *settings: str) -> Wish:
        """Return the wish with further settings."""
        return Wish(self.model, self.recipe, (*self.settings, *settings))


@dataclass(frozen=True)
class Entry:
    """An editor that can be asked for by name."""

    name: str
    title: str
    make: Callable[[Wish], Editor]
    tries: tuple[tuple[str, ...], ...] = ()
    """Settings that calibration tries after the editor's own, in this order."""


def _none(wish: Wish) -> NoEditor:
    if wish.recipe is not None or wish.settings:
        raise UsageError("editor `none` has nothing to set", "leave --recipe and --set out")
    return NoEditor()


def _more(wish: Wish) -> MoreEditor:
    target = Target(wish.model, sidecar_path(wish.model))
    chosen = plan(target, wish.recipe, wish.settings)
    return MoreEditor.fresh(chosen.recipe, chosen.sites)


def _naive(wish: Wish) -> MoreEditor:
    return _more(wish.with_settings("precondition=false"))


def _published(form: str) -> Callable[[Wish], MoreEditor]:
    """Return how to make M-ORE in a published form, by the recipe of that form for the architecture."""

    def make(wish: Wish) -> MoreEditor:
        if wish.recipe is not None:
            raise UsageError(f"editor `more:{form}` names its recipe", "leave --recipe out, or use --editor more")
        picked = pick_recipe(_model_type(wish.model))
        name = f"{form}-{picked}"
        if name not in shipped_recipes():
            known = ", ".join(recipe for recipe in shipped_recipes() if recipe.startswith(f"{form}-"))
            raise UsageError(f"no recipe `{name}` for this model", f"take --editor more --recipe one of {known}")
        return _more(Wish(wish.model, name, wish.settings))

    return make


def _model_type(model: Path) -> str:
    return str(open_checkpoint(model).config.get("model_type", ""))


def _tuned(editor: type[TrainedEditor], tuning: type[Tuning]) -> Callable[[Wish], Editor]:
    """Return how to make an editor that has no recipe but the numbers of its training."""

    def make(wish: Wish) -> Editor:
        if wish.recipe is not None:
            raise UsageError(f"editor `{editor.name}` has no recipe", "leave --recipe out; --set changes its numbers")
        values: dict[str, Any] = {}
        for setting in wish.settings:
            apply_setting(values, setting)
        try:
            return editor(tuning.model_validate(values))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in problem["loc"])
            known = ", ".join(tuning.model_fields)
            raise UsageError(f"editor `{editor.name}`: {key}: {problem['msg']}", f"it has {known}") from None

    return make


_RATES = (("rate=0.003",), ("rate=0.0003",), ("rate=0.0001",), ("rate=0.01",))
_MORE_TRIES = (("margin=1.0",), ("margin=3.0",), ("default.lambda_rel=0.2",), ("default.lambda_rel=1.0",))
_FIXED_TRIES = (("default.step=0.03",), ("default.step=0.3",), ("default.lambda=200.0",), ("default.lambda=20.0",))

EDITORS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("none", "the model as it is", _none),
        Entry("more", "M-ORE with the model's recipe, or --recipe", _more, _MORE_TRIES),
        Entry("more:paper", "M-ORE as the paper prints it", _published("paper"), _FIXED_TRIES),
        Entry("more:authors", "M-ORE as the authors' code has it", _published("authors"), _FIXED_TRIES),
        Entry(
            "naive", "the model's recipe without P: low-rank fine-tuning", _naive, (("margin=1.0",), ("margin=3.0",))
        ),
        Entry("ft-l", "fine-tunes the last text layer's FFN output", _tuned(FineTuneText, Tuning), _RATES),
        Entry("ft-m", "fine-tunes the projector, or the Q-Former", _tuned(FineTuneVision, Tuning), _RATES),
        Entry("lora", "a PEFT LoRA, a few steps an edit", _tuned(LoraEditor, LoraTuning), _RATES),
        Entry(
            "lora-all", "a PEFT LoRA, trained anew on all edits so far", _tuned(LoraAllEditor, LoraAllTuning), _RATES
        ),
    )
}


def entry_of(name: str) -> Entry:
    """Return an editor's entry.

    Raises:
        UsageError: there is no such editor.
    """
    if name in EDITORS:
        return EDITORS[name]
    near: Sequence[str] = difflib.get_close_matches(name, EDITORS, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(EDITORS)}"
    raise UsageError(f"unknown editor `{shorten(name)}`", hint)
