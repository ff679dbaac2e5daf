"""The editors of `--editor` by name, each made for one checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.base import Editor
from more_cli.editors.finetune import FineTuneText, FineTuneVision
from more_cli.editors.grace.editor import GraceEditor, GraceTuning
from more_cli.editors.ike.editor import IkeEditor, IkeTuning
from more_cli.editors.liveedit.editor import LiveEdit, LiveEditTuning
from more_cli.editors.locate.alphaedit import AlphaEditor, AlphaEditTuning
from more_cli.editors.locate.memit import MemitEditor, MemitTuning, RomeEditor, RomeTuning
from more_cli.editors.lora import LoraAllEditor, LoraAllTuning, LoraEditor, LoraTuning
from more_cli.editors.mend.editor import MendEditor, MendTuning
from more_cli.editors.more.editor import MoreEditor
from more_cli.editors.none import NoEditor
from more_cli.editors.scopeedit import ScopeEditor, ScopeTuning
from more_cli.editors.serac.editor import SeracEditor
from more_cli.editors.serac.tuning import SeracTuning
from more_cli.editors.training import Tuning
from more_cli.editors.ultraedit import UltraEditor, UltraTuning
from more_cli.editors.wise.editor import WiseEditor, WiseTuning
from more_cli.errors import UsageError
from more_cli.experiments import tries
from more_cli.ops.init import plan
from more_cli.recipe.files import published_recipe
from more_cli.recipe.settings import apply_setting, refusal
from more_cli.store.target import Target, sidecar_path
from more_cli.text import counted, shorten


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
    takes_recipe: bool = False
    """Whether a recipe can be chosen for it."""

    def with_recipe(self, recipe: str) -> EditorEntry:
        """Return the editor with this recipe, under the name `EDITOR@RECIPE`.

        Raises:
            UsageError: no recipe can be chosen for this editor.
        """
        name = f"{self.name}@{recipe}"
        if not self.takes_recipe:
            able = " or ".join(f"`{entry.name}@{recipe}`" for entry in EDITORS.values() if entry.takes_recipe)
            raise UsageError(f"editor `{self.name}` takes no recipe", f"name it `{self.name}`, or use {able}")
        if not recipe:
            raise UsageError(f"`{name}` names no recipe", f"for example {self.name}@default; see `more recipes list`")

        def make(options: EditorOptions) -> Editor:
            if options.recipe is not None:
                raise UsageError(f"editor `{shorten(name)}` has its recipe in its name", "drop --recipe")
            return self.make(replace(options, recipe=recipe))

        return replace(self, name=name, make=make)


def _none(options: EditorOptions) -> NoEditor:
    if options.recipe is not None or options.settings:
        raise UsageError("editor `none` has no settings", "drop --recipe and --set")
    return NoEditor()


def _more(options: EditorOptions) -> MoreEditor:
    target = Target(options.model, sidecar_path(options.model))
    chosen = plan(target, options.recipe, options.settings)
    editor = MoreEditor.fresh(chosen.recipe, chosen.sites)
    if points := len(chosen.recipe.departures):
        listed = f"`more recipes show {chosen.recipe.name}` lists them"
        departs = f"departs from what was published in {counted(points, 'point')}; {listed}"
        editor.notices = (departs, *chosen.notices)
    return editor


def _naive(options: EditorOptions) -> MoreEditor:
    return _more(options.with_settings("precondition=false"))


def _published(form: str) -> Callable[[EditorOptions], MoreEditor]:
    """Return a function that makes M-ORE in a published form: with the architecture's own constants, or the general."""

    def make(options: EditorOptions) -> MoreEditor:
        if options.recipe is not None:
            raise UsageError(f"editor `more:{form}` has a fixed recipe", "drop --recipe, or use --editor more")
        model_type = _model_type(options.model)
        name, known = published_recipe(form, model_type)
        editor = _more(replace(options, recipe=name))
        if not known:
            unknown = f"the paper published no constants for {shorten(model_type)}: these are LLaVA-1.5's"
            editor.notices = (unknown, *editor.notices)
        return editor

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
    """Return a function that makes an editor without a recipe; `--set` changes the numbers of its tuning."""

    def make(options: EditorOptions) -> Editor:
        if options.recipe is not None:
            raise UsageError(f"editor `{editor.name}` has no recipe", "drop --recipe; --set changes its numbers")
        if scheme := open_checkpoint(options.model).scheme:
            what = f"`{options.model}` is quantised to {scheme}: editor `{editor.name}` needs full-precision weights"
            raise UsageError(what, "name the checkpoint it was made from, or use --editor more")
        values: dict[str, Any] = {}
        for setting in options.settings:
            apply_setting(values, setting)
        try:
            return editor(tuning.model_validate(values))
        except ValidationError as error:
            listed = f"its keys are {', '.join(tuning.model_fields)}"
            raise refusal(error, tuning, f"editor `{editor.name}`", listed=listed, typed=options.settings) from None

    return make


EDITORS: dict[str, EditorEntry] = {
    entry.name: entry
    for entry in (
        EditorEntry("none", "the model as it is", _none),
        EditorEntry(
            "more", "M-ORE with the model's recipe, `more@RECIPE` or --recipe", _more, tries.MORE, takes_recipe=True
        ),
        EditorEntry("more:paper", "M-ORE as in the paper", _published("paper"), tries.FIXED_STEP),
        EditorEntry("more:authors", "M-ORE as in the authors' code", _published("authors"), tries.FIXED_STEP),
        EditorEntry(
            "more:strict",
            "the authors' code with its prompts, targets without an end, and keys of locality questions",
            _published("strict"),
            tries.FIXED_STEP,
        ),
        EditorEntry(
            "naive", "the model's recipe without P: low-rank fine-tuning", _naive, tries.NAIVE, takes_recipe=True
        ),
        EditorEntry("ft-l", "fine-tunes the last text layer's FFN output", _tuned(FineTuneText, Tuning), tries.FT_L),
        EditorEntry("ft-m", "fine-tunes the projector, or the Q-Former", _tuned(FineTuneVision, Tuning), tries.FT_M),
        EditorEntry("lora", "a PEFT LoRA, a few steps per edit", _tuned(LoraEditor, LoraTuning), tries.LORA),
        EditorEntry(
            "lora-all",
            "a PEFT LoRA, trained again on all edits so far",
            _tuned(LoraAllEditor, LoraAllTuning),
            tries.LORA_ALL,
        ),
        EditorEntry(
            "liveedit",
            "a low-rank expert per edit, chosen by image and question",
            _tuned(LiveEdit, LiveEditTuning),
            tries.LIVEEDIT,
        ),
        EditorEntry(
            "mend", "MEND: fitted networks change an edit's gradient", _tuned(MendEditor, MendTuning), tries.MEND
        ),
        EditorEntry(
            "ultraedit", "UltraEdit: one linear system per edit", _tuned(UltraEditor, UltraTuning), tries.ULTRA
        ),
        EditorEntry(
            "scopeedit", "M-ORE with private and shared branches", _tuned(ScopeEditor, ScopeTuning), tries.SCOPE
        ),
        EditorEntry("ike", "puts stored facts into the prompt", _tuned(IkeEditor, IkeTuning), tries.IKE),
        EditorEntry("grace", "a codebook at one FFN output", _tuned(GraceEditor, GraceTuning), tries.GRACE),
        EditorEntry("wise", "side memories of one FFN output", _tuned(WiseEditor, WiseTuning), tries.WISE),
        EditorEntry(
            "alphaedit",
            "AlphaEdit at every token of the answer",
            _tuned(AlphaEditor, AlphaEditTuning),
            tries.ALPHA,
        ),
        EditorEntry(
            "alphaedit:last_prompt",
            "AlphaEdit at the last token of the prompt alone",
            _at_last_prompt(_tuned(AlphaEditor, AlphaEditTuning)),
            tries.ALPHA,
        ),
        EditorEntry("memit", "MEMIT over a band of layers", _tuned(MemitEditor, MemitTuning), tries.MEMIT),
        EditorEntry("rome", "ROME in one layer, with R-ROME's key", _tuned(RomeEditor, RomeTuning), tries.ROME),
        EditorEntry(
            "serac",
            "keeps corrections; another network answers what falls under one",
            _tuned(SeracEditor, SeracTuning),
            tries.SERAC,
        ),
    )
}


def entry_of(name: str) -> EditorEntry:
    """Return an editor's entry; `EDITOR@RECIPE` is an editor with a shipped recipe, or with the recipe of a file.

    Raises:
        UsageError: there is no such editor, or it takes no recipe.
    """
    editor, at, recipe = name.partition("@")
    if editor in EDITORS:
        return EDITORS[editor].with_recipe(recipe) if at else EDITORS[editor]
    near: Sequence[str] = difflib.get_close_matches(editor, EDITORS, 1)
    hint = f"did you mean `{near[0]}{at}{shorten(recipe)}`?" if near else f"there are {', '.join(EDITORS)}"
    raise UsageError(f"unknown editor `{shorten(name)}`", hint)
