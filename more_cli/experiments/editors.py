"""The editors of `--editor` by name, each made for one checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from more_cli.checkpoint.reader import open_checkpoint
from more_cli.editors.base import Editor
from more_cli.editors.finetune import FineTuneText, FineTuneVision
from more_cli.editors.locate.alphaedit import AlphaEditor, AlphaEditTuning
from more_cli.editors.locate.memit import MemitEditor, MemitTuning, RomeEditor, RomeTuning
from more_cli.editors.lora import LoraAllEditor, LoraAllTuning, LoraEditor, LoraTuning
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.none import NoEditor
from more_cli.editors.training import Tuning
from more_cli.errors import UsageError
from more_cli.ops.init import plan
from more_cli.recipe import pick_recipe, shipped_recipes
from more_cli.settings import apply_setting, refusal
from more_cli.store.target import Target, sidecar_path
from more_cli.text import shorten


@dataclass(frozen=True)
class EditorOptions:
    """The checkpoint an editor is made for, and the settings that its user changed."""

    model: Path
    recipe: str | None = None
    """For editors with a recipe; by default the architecture decides."""
    settings: tuple[str, ...] = ()
    """`key=value` on top of the editor's constants."""

    def with_settings(self, *settings: str) -> EditorOptions:
        """Return the options with further settings."""
        return EditorOptions(self.model, self.recipe, (*self.settings, *settings))


@dataclass(frozen=True)
class EditorEntry:
    """An editor with its name on the command line."""

    name: str
    title: str
    make: Callable[[EditorOptions], Editor]
    tries: tuple[tuple[str, ...], ...] = ()
    """Settings that calibration tries after the default ones, in this order."""


def _none(options: EditorOptions) -> NoEditor:
    if options.recipe is not None or options.settings:
        raise UsageError("editor `none` has no settings", "drop --recipe and --set")
    return NoEditor()


def _more(options: EditorOptions) -> MoreEditor:
    target = Target(options.model, sidecar_path(options.model))
    chosen = plan(target, options.recipe, options.settings)
    return MoreEditor.fresh(chosen.recipe, chosen.sites)


def _naive(options: EditorOptions) -> MoreEditor:
    return _more(options.with_settings("precondition=false"))


def _published(form: str) -> Callable[[EditorOptions], MoreEditor]:
    """Return a function that makes M-ORE in a published form, with that form's recipe for the architecture."""

    def make(options: EditorOptions) -> MoreEditor:
        if options.recipe is not None:
            raise UsageError(f"editor `more:{form}` has a fixed recipe", "drop --recipe, or use --editor more")
        picked = pick_recipe(_model_type(options.model))
        name = f"{form}-{picked}"
        if name not in shipped_recipes():
            known = ", ".join(recipe for recipe in shipped_recipes() if recipe.startswith(f"{form}-"))
            raise UsageError(f"no recipe `{name}` for this model", f"use --editor more --recipe with one of {known}")
        return _more(EditorOptions(options.model, name, options.settings))

    return make


def _model_type(model: Path) -> str:
    return str(open_checkpoint(model).config.get("model_type", ""))


def _at_last_prompt(make: Callable[[EditorOptions], Editor]) -> Callable[[EditorOptions], Editor]:
    return lambda options: make(options.with_settings("positions=last_prompt"))


class _Named(Protocol):
    """An editor's class, which takes its numbers."""

    @property
    def name(self) -> str: ...
    def __call__(self, tuning: Any, /) -> Editor: ...


def _tuned(editor: _Named, tuning: type[BaseModel]) -> Callable[[EditorOptions], Editor]:
    """Return a function that makes an editor without a recipe; `--set` changes the numbers of its training."""

    def make(options: EditorOptions) -> Editor:
        if options.recipe is not None:
            raise UsageError(f"editor `{editor.name}` has no recipe", "drop --recipe; --set changes its numbers")
        values: dict[str, Any] = {}
        for setting in options.settings:
            apply_setting(values, setting)
        try:
            return editor(tuning.model_validate(values))
        except ValidationError as error:
            listed = f"its keys are {', '.join(tuning.model_fields)}"
            raise refusal(error, tuning, f"editor `{editor.name}`", listed=listed, typed=options.settings) from None

    return make


def _tries(*pairs: tuple[str, ...], **values: Sequence[float]) -> tuple[tuple[str, ...], ...]:
    """Return settings that change one constant each, then those of several.

    `__` in a name stands for the dot of a recipe's table.
    """
    single = tuple((f"{key.replace('__', '.')}={value}",) for key, listed in values.items() for value in listed)
    return single + pairs


TRIES = 8
"""Settings that calibration tries of every editor beside its own: the same effort for all."""
_MORE_TRIES = _tries(
    ("margin=3.0", "default.lambda_rel=1.0"), margin=(1.0, 3.0, 6.0), default__lambda_rel=(0.2, 1.0, 5.0, 0.002)
)
_NAIVE_TRIES = _tries(margin=(1.0, 3.0, 6.0, 12.0), rho=(0.5, 1.5), max_write=(0.02, 0.1))
_FIXED_TRIES = _tries(
    ("default.step=0.3", "default.lambda=20.0"),
    default__step=(0.03, 0.3, 0.01),
    default__lambda=(200.0, 20.0, 2.0, 20000.0),
)
_TEXT_TRIES = _tries(("rate=0.003", "steps=50"), rate=(0.003, 0.0003, 0.01, 0.03), steps=(10, 50, 100))
_VISION_TRIES = _tries(("rate=0.0003", "steps=50"), rate=(0.003, 0.0003, 0.0001, 0.00003), steps=(10, 50, 100))
_LORA_TRIES = _tries(("rate=0.003", "steps=5"), rate=(0.003, 0.0003, 0.01), steps=(5, 20), rank=(4, 16))
_LORA_ALL_TRIES = _tries(("rate=0.003", "steps=40"), rate=(0.003, 0.0003, 0.01), steps=(10, 40), rank=(4, 16))
_ALPHA_TRIES = _tries(share=(0.9, 0.999), ridge=(0.001, 0.1), rate=(0.1, 0.5), clamp=(0.4, 1.5))
_MEMIT_TRIES = _tries(weight=(0.01, 0.03, 0.3, 1.4), rate=(0.2, 1.0), clamp=(0.4, 1.5))
_ROME_TRIES = _tries(loading=(1e-6, 1e-2), rate=(0.5, 2.0), clamp=(4.0, 32.0), decay=(1e-4, 0.1))

EDITORS: dict[str, EditorEntry] = {
    entry.name: entry
    for entry in (
        EditorEntry("none", "the model as it is", _none),
        EditorEntry("more", "M-ORE with the model's recipe, or --recipe", _more, _MORE_TRIES),
        EditorEntry("more:paper", "M-ORE as in the paper", _published("paper"), _FIXED_TRIES),
        EditorEntry("more:authors", "M-ORE as in the authors' code", _published("authors"), _FIXED_TRIES),
        EditorEntry("naive", "the model's recipe without P: low-rank fine-tuning", _naive, _NAIVE_TRIES),
        EditorEntry("ft-l", "fine-tunes the last text layer's FFN output", _tuned(FineTuneText, Tuning), _TEXT_TRIES),
        EditorEntry("ft-m", "fine-tunes the projector, or the Q-Former", _tuned(FineTuneVision, Tuning), _VISION_TRIES),
        EditorEntry("lora", "a PEFT LoRA, a few steps per edit", _tuned(LoraEditor, LoraTuning), _LORA_TRIES),
        EditorEntry(
            "lora-all",
            "a PEFT LoRA, trained again on all edits so far",
            _tuned(LoraAllEditor, LoraAllTuning),
            _LORA_ALL_TRIES,
        ),
        EditorEntry(
            "alphaedit",
            "AlphaEdit at every token of the answer",
            _tuned(AlphaEditor, AlphaEditTuning),
            _ALPHA_TRIES,
        ),
        EditorEntry(
            "alphaedit:last_prompt",
            "AlphaEdit at the last token of the prompt alone",
            _at_last_prompt(_tuned(AlphaEditor, AlphaEditTuning)),
            _ALPHA_TRIES,
        ),
        EditorEntry("memit", "MEMIT over a band of layers", _tuned(MemitEditor, MemitTuning), _MEMIT_TRIES),
        EditorEntry("rome", "ROME in one layer, with R-ROME's key", _tuned(RomeEditor, RomeTuning), _ROME_TRIES),
    )
}


def entry_of(name: str) -> EditorEntry:
    """Return an editor's entry.

    Raises:
        UsageError: there is no such editor.
    """
    if name in EDITORS:
        return EDITORS[name]
    near: Sequence[str] = difflib.get_close_matches(name, EDITORS, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(EDITORS)}"
    raise UsageError(f"unknown editor `{shorten(name)}`", hint)
