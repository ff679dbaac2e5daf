"""The tables of a recipe: constants of sites, rehearsal, joint writing, anchors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from more_cli.recipe.settings import takes

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Unset = Annotated[None, BeforeValidator(lambda value: None if value == "none" else value)]
"""An optional value that is not set. TOML has no null: `none` unsets what a recipe inherits."""
Step = Literal["polyak"] | Positive
Statistics = Literal["site", "modality", "shared"]


class Asking(TypedDict, total=False):
    """How questions are asked, and which tokens a target has; a `Prompter`'s defaults where a key is absent."""

    system: str
    prompts: str
    labels: str
    """Absent where it is the default, so that what was cached before this key stays."""


def asking_of(constants: Mapping[str, Any]) -> Asking:
    """Return how an editor with these constants asks; one without a recipe asks as the checkpoint does."""
    found = Asking(system=str(constants.get("system", "")), prompts=str(constants.get("prompts", "own")))
    if (labels := str(constants.get("labels", "sequence"))) != "sequence":
        found["labels"] = labels
    return found


class Table(BaseModel):
    """Keys that a user fills in. Other keys are refused, and so are numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse `true` for a number: pydantic would read it as 1."""
        if isinstance(value, bool) and "true or false" not in takes(cls.model_fields[info.field_name or ""]):
            raise ValueError("must not be true or false")
        return value


class Teaching(Table):
    """How an editor without a recipe asks questions and is taught targets: keys that a recipe has as well."""

    prompts: Literal["own", "mmedit"] = "own"
    """Wording of questions: as the checkpoint does (`own`), or as MMEdit's code does (`mmedit`)."""
    labels: Literal["sequence", "alone"] = "sequence"
    """Tokens of a target: those in the whole sequence (`sequence`), or those that it has by itself (`alone`)."""
    end_of_sequence: bool = True
    """Whether the token that ends an answer is part of what an edit trains."""

    @property
    def changed(self) -> dict[str, Any]:
        """What is not as by default, so that without a change the keys of older runs stay."""
        return self.model_dump(exclude_defaults=True)


class Constants(Table):
    """Constants that can differ between sites: step and ridge. An absent value is inherited."""

    step: Step | Unset = None
    """Step length: `"polyak"` (computed from the loss, the same for all sites), or a fixed eta > 0."""
    ridge: Positive | Unset = Field(default=None, alias="lambda")
    """Ridge lambda of the recursion, > 0, in units of |z|^2. A larger value protects past edits less."""
    ridge_rel: Positive | Unset = Field(default=None, alias="lambda_rel")
    """Ridge as a multiple of the site's mean |z|^2 over its first 16 keys, > 0, dimensionless. Excludes `lambda`."""

    @model_validator(mode="after")
    def _one_ridge(self) -> Constants:
        if self.ridge is not None and self.ridge_rel is not None:
            raise ValueError("give `lambda` or `lambda_rel`, not both")
        return self

    def inheriting(self, base: Constants) -> Constants:
        """Return these constants, with absent values taken from `base`."""
        own_ridge = self.ridge is not None or self.ridge_rel is not None
        return Constants(
            step=self.step if self.step is not None else base.step,
            ridge=self.ridge if own_ridge else base.ridge,
            ridge_rel=self.ridge_rel if own_ridge else base.ridge_rel,
        )


class Rehearsal(Table):
    """Rehearsal: every edit also scores some past edits and writes those again that have become wrong or unsure."""

    size: int = Field(default=0, ge=0)
    """Number of past edits in one sample, 0 or more; 0 switches rehearsal off."""
    draws: int = Field(default=3, ge=1)
    """Number of passes of an edit, from 1, that each take a new sample of past edits. During these passes the edit ends
    only if no sampled edit fails; after them it ends as soon as it holds itself."""


class Joint(Table):
    """Joint writing: edits are scored and written together, in rounds, until all of them hold.

    A batch (`edit --batch`), a consolidation (`edit --consolidate`) and a compaction (`compact`) do this. Edits of a
    batch or a compaction that do not hold after the last round are written one by one.
    """

    margin: Positive = 4.0
    """Logits, > 0, with criterion `margin`: an edit holds if every target token leads by this much. It is larger than
    the `margin` of single edits."""
    rounds: int = Field(default=16, ge=1)
    """Largest number of rounds, from 1. A round writes the edits that failed when each was scored last."""


class AnchorUse(Table):
    """Use of a state's anchors; without anchors these keys have no effect."""

    size: int = Field(default=0, ge=0)
    """Number of anchors in every write, 0 or more. Their loss keeps the answer distribution close to the base's."""
    keys: bool = False
    """Whether P of every site absorbs the anchors' keys when the state is created."""
    watched: int = Field(default=0, ge=0)
    """One anchor in this many, drawn at random, is watched: no write trains on it, and an edit that moves it too far is
    written again or refused. 0 watches none."""
    per_edit: int = Field(default=0, ge=0)
    """Number of anchors, 0 or more, whose keys P of the written sites absorbs after every edit: the next ones in order,
    each with its mean key over all tokens. On a suite without anchors they are locality questions of its calibration
    pool."""
    max_drift: Positive = 1.0
    """Nats per token, > 0: the KL divergence from the base up to which an edit may move a watched anchor."""
    file: Path | None = Field(default=None, exclude=True)
    """Anchors file (JSON Lines), relative to the recipe's file; used if `init --anchors` is not given. The state keeps
    the anchors themselves, not this name."""
    questions: tuple[str, ...] = Field(default=(), exclude=True)
    """Neutral questions that made anchors ask pictures. The state keeps the anchors that were made."""
    prompts: tuple[str, ...] = Field(default=(), exclude=True)
    """Questions without a picture that made anchors begin with; questions that the base asks itself follow. Both join
    anchors of a file that has fewer than `size` without a picture. Empty: neither. The state keeps what was made."""

    @property
    def used(self) -> bool:
        """Whether anchors have any effect with this recipe."""
        return self.size > 0 or self.keys or self.per_edit > 0
