"""A recipe: every number of an editing run, in one TOML file, checked before anything is read or written.

The defaults below are the only ones; a recipe names what it changes. `init` stores the recipe in the state, so
a later run cannot pick up other numbers by accident.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from more_cli.errors import UsageError

SITE_GROUPS = ("text.ffn_out", "text.ffn_in", "projector", "vision.ffn_out", "qformer")
BY_PATH = "re:"
"""Before a regular expression over module paths, in place of a group."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Step = Literal["polyak"] | Positive


class Constants(BaseModel):
    """What may differ between sites: the step and the ridge of the recursion. An absent value inherits."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=False)

    step: Step | None = None
    """`"polyak"`, or a fixed eta > 0."""
    ridge: Positive | None = Field(default=None, alias="lambda")
    """lambda of the recursion, in units of |z|^2; larger protects past edits less."""
    ridge_rel: Positive | None = Field(default=None, alias="lambda_rel")
    """lambda as a multiple of the site's mean |z|^2, dimensionless; excludes `lambda`."""

    @model_validator(mode="after")
    def _one_ridge(self) -> Constants:
        if self.ridge is not None and self.ridge_rel is not None:
            raise ValueError("give `lambda` or `lambda_rel`, not both")
        return self

    def over(self, base: Constants) -> Constants:
        """Return these constants with what they leave open taken from `base`."""
        own_ridge = self.ridge is not None or self.ridge_rel is not None
        return Constants(
            step=self.step if self.step is not None else base.step,
            ridge=self.ridge if own_ridge else base.ridge,
            ridge_rel=self.ridge_rel if own_ridge else base.ridge_rel,
        )


class Rehearsal(BaseModel):
    """Past edits that every edit looks at again, and writes again where they have become unsure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(default=0, ge=0)
    """Past edits K in a draw; 0 for no rehearsal."""
    draws: int = Field(default=3, ge=1)
    """Passes of an edit that draw anew. After these it ends once it holds itself, before only if nothing fails."""
    cap: Positive = 6.0
    """Margin, in logits, above which an edit counts as no surer."""
    bonus: float = Field(default=1.0, ge=0)
    """Logits by which an edit seems less sure for every round of draws it was not looked at."""
    seed: int = Field(default=0, ge=0)
    """Seed of the draws."""


class Joint(BaseModel):
    """Edits looked at and written together, in rounds, until all of them hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    margin: Positive = 4.0
    """Logits, with the criterion `margin`: more than while editing, since edits written together carry over better."""
    rounds: int = Field(default=6, ge=1)
    """Looks at all edits, at most."""
    size: int = Field(default=16, ge=1)
    """Edits in one write."""


class AnchorUse(BaseModel):
    """How a state's anchors take part; without anchors nothing here matters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(default=0, ge=0)
    """Anchors k_a in every write, held to the base's answer distribution."""
    keys: bool = False
    """P of every site absorbs the anchors' keys when the state is made."""
    file: Path | None = Field(default=None, exclude=True)
    """JSON Lines of anchors, relative to the recipe's file, where `init --anchors` names none. The state keeps the
    anchors themselves, not this name."""

    @property
    def used(self) -> bool:
        """Whether a state with this recipe makes anything of anchors."""
        return self.size > 0 or self.keys


class Recipe(BaseModel):
    """Every number of one editing run."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str = ""
    """Name of the recipe; the file's name unless given."""
    description: str = ""
    """One sentence for people."""
    backbones: tuple[str, ...] = ()
    """`model_type`s for which `init` picks this recipe by itself."""
    editor: Literal["more"] = "more"
    """The editing method."""

    sites: tuple[str, ...] = ("text.ffn_out", "projector")
    """Groups of editable weights: text.ffn_out, text.ffn_in, projector, vision.ffn_out, qformer, or `re:` and a
    regular expression that matches whole module paths (`last` does not apply to it)."""
    last: int = Field(default=7, ge=1)
    """How many of the last layers of a stack are edited."""
    exclude: tuple[str, ...] = ()
    """Sites left out, by name (regular expressions that match the whole name)."""
    top_k: int | None = Field(default=None, ge=1)
    """Write only the k groups (a layer, or the projector) with the largest gradient norm; all when absent."""

    rank: int = Field(default=512, ge=1)
    """Rows r of the basis A; capped at d_in / 4 per site."""
    scale: Positive = 2.0
    """s in y = W x + s B (A x), dimensionless."""
    seed: int = Field(default=42, ge=0)
    """Seed of the basis; each site draws from a stream of its own."""

    normalisation: Literal["unit", "paper"] = "unit"
    """Where lambda enters P: the authors' code (`unit`) or the paper's text (`paper`)."""
    precondition: bool = True
    """Multiply the gradient by P; false is naive low-rank fine-tuning, P = I."""
    pooling: Literal["mean", "none"] = "mean"
    """One pooled key per edit (`mean`), or one key per relevant token (`none`)."""
    absorb: Literal["edit", "write"] = "edit"
    """P takes the key once per edit, or after every write as the authors' code does."""

    default: Constants = Constants(step="polyak", ridge_rel=0.02)
    """Constants of every site that nothing below overrides."""
    text: Constants = Constants()
    """Overrides for text sites."""
    visual: Constants = Constants()
    """Overrides for projector and vision sites."""
    site: dict[str, Constants] = {}
    """Overrides by site name (a regular expression that matches the whole name)."""

    rho: Positive = 1.0
    """Part of the loss that one Polyak step aims to remove, dimensionless."""
    max_steps: int = Field(default=10, ge=1, le=1000)
    """Most writes for one edit."""
    stop_early: bool = True
    """Stop writing once the edit is learnt, and write nothing for an edit that already is."""
    criterion: Literal["margin", "loss"] = "loss"
    """What makes an edit hold: `margin` or `target_nll` below."""
    margin: Positive = 1.0
    """Logits by which every target token must lead the best other token; what holds by less is forgotten first."""
    target_nll: Positive = 0.1
    """Nats: an edit holds once every target token is the most likely one and their mean NLL is below this."""
    rehearsal: Rehearsal = Rehearsal()
    """Past edits looked at with every new one."""
    anchors: AnchorUse = AnchorUse()
    """Inputs whose behaviour must not move (`init --anchors`)."""
    consolidation: Joint = Joint()
    """How edits are written once more after a stream (`edit --consolidate`)."""
    batch: Joint = Joint(margin=12.0, rounds=16)
    """How edits are written that were not written one by one (`edit --batch`)."""
    visual_share: float | None = Field(default=None, gt=0, lt=1)
    """Part of the loss that the visual sites' Polyak step is for; absent, all sites share one step length."""
    guard: bool = True
    """Take back a write that raises the loss and try half of it; refuse the edit when that raises it too."""
    max_write: Positive = 0.05
    """Largest relative size |dW|_F / |W|_F of one write at one site."""

    system: str = ""
    """System prompt put before every question; empty for none."""

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        paths = [group.removeprefix(BY_PATH) for group in self.sites if group.startswith(BY_PATH)]
        for group in self.sites:
            if group not in SITE_GROUPS and not group.startswith(BY_PATH):
                raise ValueError(f"unknown site group `{group}` (known: {', '.join(SITE_GROUPS)}, or {BY_PATH}<regex>)")
        if not self.sites:
            raise ValueError("`sites` is empty")
        for pattern in (*self.site, *self.exclude, *paths):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"`{pattern}` is not a regular expression: {error}") from None
        for modality in ("text", "visual"):
            constants = getattr(self, modality).over(self.default)
            if constants.step is None or (constants.ridge is None and constants.ridge_rel is None):
                raise ValueError(f"{modality} sites have no step or no lambda")
            if constants.ridge is None and self.normalisation == "paper":
                raise ValueError("normalisation `paper` needs an absolute `lambda`: P_0 = I / (1 + lambda)")
        if self.visual_share is not None and not self.uses_polyak:
            raise ValueError("`visual_share` divides the Polyak step: a fixed eta has `visual.step`")
        if len({isinstance(c.step, str) for c in self._all_constants}) > 1:
            raise ValueError("the Polyak step is shared by all sites: do not mix it with a fixed eta")
        return self

    @cached_property
    def _all_constants(self) -> list[Constants]:
        modalities = [self.text.over(self.default), self.visual.over(self.default)]
        return modalities + [own.over(base) for own in self.site.values() for base in modalities]

    @property
    def uses_polyak(self) -> bool:
        """Whether the step length follows from the loss rather than from a fixed eta."""
        return self._all_constants[0].step == "polyak"

    def excludes(self, site: str) -> bool:
        """Tell whether a site is left out."""
        return any(re.fullmatch(pattern, site) for pattern in self.exclude)

    def constants_of(self, site: str, modality: str) -> Constants:
        """Return the constants in force at one site."""
        constants = (self.visual if modality == "visual" else self.text).over(self.default)
        for pattern, own in self.site.items():
            if re.fullmatch(pattern, site):
                constants = own.over(constants)
        return constants

    def canonical(self) -> dict[str, Any]:
        """Return the recipe in full as plain JSON values, the form in which the state keeps it."""
        return self.model_dump(mode="json", by_alias=True)


def data_folder(name: str) -> Path:
    """Return the folder `recipes` or `sample_edits`: packed into the wheel, or beside the package in a checkout."""
    here = Path(__file__).resolve().parent
    packed = here / "_data" / name
    return packed if packed.is_dir() else here.parent / name


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with `more`, by name."""
    return {path.stem: path for path in sorted(data_folder("recipes").glob("*.toml"))}


def load_recipe(name_or_path: str, settings: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by name or a TOML file by path, with `key=value` settings on top.

    A file whose `extends` names another recipe has that one's values where it has none itself.

    Raises:
        UsageError: unknown name, unreadable file, or values that do not pass, all of them listed.
    """
    path = _recipe_file(name_or_path, Path())
    values = _values(path)
    for setting in settings:
        apply_setting(values, setting)
    return parse_recipe(values, str(path))


def _recipe_file(name_or_path: str, folder: Path) -> Path:
    shipped = shipped_recipes()
    path = shipped.get(name_or_path, folder / name_or_path)
    if not path.is_file():
        raise UsageError(
            f"no recipe `{name_or_path}`",
            f"shipped recipes: {', '.join(shipped)}; or give the path of a .toml file",
        )
    return path


def _values(path: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    """Return what a recipe file says, over what the recipe says that it extends."""
    if path in above:
        raise UsageError(f"{path}: extends itself", "a chain of `extends` must end")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}", "a recipe is a TOML file") from None
    values = {"name": path.stem} | values
    anchors = values.get("anchors")
    if isinstance(anchors, dict) and "file" in anchors:
        anchors["file"] = str(path.parent / str(anchors["file"]))
    if (base := values.pop("extends", None)) is None:
        return values
    return _over(_values(_recipe_file(str(base), path.parent), (*above, path)), values)


def _over(below: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return both, tables merged, `values` where both have a key."""
    tables = [key for key in below.keys() & values if isinstance(below[key], dict) and isinstance(values[key], dict)]
    return below | values | {key: _over(below[key], values[key]) for key in tables}


def parse_recipe(values: dict[str, Any], where: str) -> Recipe:
    """Check plain values and return the recipe; `where` names the file in messages."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False):
            key = ".".join(str(part) for part in problem["loc"])
            problems.append(f"{where}: {key + ': ' if key else ''}{problem['msg'].removeprefix('Value error, ')}")
        raise UsageError("\nerror: ".join(problems), "the fields and their meaning are in more_cli/recipe.py") from None


def pick_recipe(model_type: str) -> str:
    """Return the name of the shipped recipe for an architecture, or the general one."""
    for name, path in shipped_recipes().items():
        if model_type in tomllib.loads(path.read_text(encoding="utf-8")).get("backbones", ()):
            return name
    return "default"


def apply_setting(values: dict[str, Any], setting: str) -> None:
    """Put a `key=value` as it is typed into a table of values.

    Raises:
        UsageError: it has no `=`.
    """
    key, equals, text = setting.partition("=")
    if not equals:
        raise UsageError(f"`--set {setting}` has no `=`", "write --set key=value, for instance --set max_steps=20")
    *parents, leaf = key.strip().split(".")
    table = values
    for parent in parents:
        table = table.setdefault(parent, {})
    try:
        table[leaf] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[leaf] = text
