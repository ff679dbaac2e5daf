"""The keys of a recipe, and their defaults: the only ones there are, a recipe file names what it changes.

`init` stores the recipe in the state, so that a later run cannot use other numbers by accident.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from more_cli.recipe.tables import (
    AnchorUse,
    Asking,
    Constants,
    Count,
    Joint,
    Positive,
    Rehearsal,
    Share,
    Statistics,
    Table,
    Unset,
    asking_of,
)
from more_cli.text import counted, reason_of, shorten

SITE_GROUPS = ("text.ffn_out", "text.ffn_in", "projector", "vision.ffn_out", "qformer")
VISUAL_GROUPS = SITE_GROUPS[2:]
"""Those on the image's path: a plain language model has none of them."""
BY_PATH = "re:"
"""Prefix of a regular expression over module paths, in place of a group."""
GROWTH = 4
"""A compaction comes when there are this many times the edits of the one before. Together, those of a stream then cost
at most 4/3 of what the last one costs."""
SWITCHES = (
    *("statistics", "key_mask", "key_taken", "rank_share"),
    *("basis", "basis_rate", "basis_orthonormal", "last_vision", "compact", "labels"),
)
"""Keys that came after the first states, most of them for the paper's ablations. A state stores such a key only if it
is not at its default, so older states keep their bytes."""


class Recipe(Table):
    """Every number of one editing run."""

    name: str = ""
    """Name of the recipe; default: the file's name without `.toml`."""
    description: str = ""
    """One sentence that describes the recipe."""
    backbones: tuple[str, ...] = ()
    """Values of `model_type` in config.json for which `init` chooses this recipe automatically."""
    published: tuple[str, ...] = Field(default=(), exclude=True)
    """Values of `model_type` that these constants were published for: `--editor more:paper`, `more:authors` and
    `more:strict` choose this recipe for them."""
    departures: tuple[str, ...] = Field(default=(), exclude=True)
    """Differences from what was published, one line each; `more recipes show` and every result list them."""
    editor: Literal["more"] = "more"
    """Editing method; only `more`."""

    sites: tuple[str, ...] = ("text.ffn_out", "projector")
    """Groups of editable weights: `text.ffn_out`, `text.ffn_in`, `projector`, `vision.ffn_out`, `qformer`, or `re:`
    followed by a regular expression that matches the whole path of a module (`last` does not apply to it)."""
    optional: tuple[str, ...] = Field(default=(), exclude=True)
    """Groups of `sites` that a model may lack. A model that lacks any other group of `sites` is refused."""
    last: int = Field(default=7, ge=1)
    """Number of layers that are edited, counted from the last layer of a stack, from 1."""
    last_vision: Count | Unset = None
    """The same for vision layers, counted from the last one whose features are used. Default: `last`."""
    exclude: tuple[str, ...] = ()
    """Sites that are not edited: regular expressions that match the whole site name."""
    top_k: Count | Unset = None
    """Number of groups (a layer, or the projector) that a write changes, from 1: those with the largest gradient norm.
    Default: all."""

    rank: int = Field(default=512, ge=1)
    """Rank r: number of rows of the basis A, from 1; at most `rank_share` of a site's inputs."""
    rank_share: float = Field(default=0.25, gt=0.0, le=1.0)
    """Largest part of a site's inputs, above 0 and at most 1, that its rank may be: at 0.25 A and B stay smaller than a
    square W. The paper has no such cap (1)."""
    scale: Positive = 2.0
    """Scale s in y = W x + s B (A x), > 0, dimensionless."""
    seed: int = Field(default=42, ge=0)
    """Seed of the basis, 0 or more; every site has its own random stream."""
    basis: Literal["orthonormal", "gaussian", "xavier", "pca"] = "orthonormal"
    """Rows of A: random and orthonormal as in the paper, random with variance 1 / d_in (`gaussian`) or 2 / (r + d_in)
    (`xavier`), or the principal directions of a site's inputs on the anchors (`pca`), which the state then stores."""
    basis_rate: Positive | Unset = None
    """Learning rate of A, > 0: every write also takes this step down A's gradient, and the state stores A. Default: A
    is frozen, as in the paper."""
    basis_orthonormal: bool = False
    """Whether the rows of a trained A are made orthonormal again after every write."""

    normalisation: Literal["unit", "paper"] = "unit"
    """Place of lambda in P: as in the authors' code (`unit`) or as in the paper's text (`paper`)."""
    precondition: bool = True
    """Whether the gradient is multiplied by P; `false` is plain low-rank fine-tuning, P = I."""
    pooling: Literal["mean", "none"] = "mean"
    """Keys of an edit: one mean key (`mean`), or one key for every relevant token (`none`)."""
    key_mask: bool = True
    """Whether a text site's key comes from the tokens of the answer alone, or (`false`) from those of image, question
    and answer."""
    key_taken: Literal["before", "after"] = "before"
    """When the key that P absorbs is computed: before the first write of an edit, or after the last one. In a batch it
    is always computed before."""
    statistics: Statistics = "site"
    """Which sites share one P: none (`site`, as in the paper), all text sites and all visual sites (`modality`), or all
    sites (`shared`). Sites that share P have one lambda, and keys of a smaller rank are filled up with zeros."""
    absorb: Literal["edit", "write"] = "edit"
    """When P absorbs the key: once per edit (`edit`), or after every write as the authors' code does (`write`)."""

    default: Constants = Constants(step="polyak", ridge_rel=0.02)
    """Constants of every site, unless `text`, `visual` or `site` overrides them."""
    text: Constants = Constants()
    """Constants of text sites; absent values come from `default`."""
    visual: Constants = Constants()
    """Constants of projector and vision sites; absent values come from `default`."""
    site: dict[str, Constants] = Field(default={})
    """Constants by site name (regular expressions that match the whole name); they override all others."""

    damping: Positive | Unset = None
    """Damping of the second moment of a write's own keys, > 0, as a multiple of its mean eigenvalue. At text sites a
    write then uses less of the direction that its tokens share; a smaller value uses less of it. Default: off, as in
    the paper."""

    rho: Positive = 1.0
    """Share of the loss that one Polyak step aims to remove, > 0, dimensionless."""
    max_steps: int = Field(default=10, ge=1, le=1000)
    """Largest number of writes for one edit, 1 to 1000."""
    stop_early: bool = True
    """Whether writing stops once the edit is learnt; an edit that is already right is then not written at all."""
    criterion: Literal["margin", "loss"] = "loss"
    """Test of whether an edit holds: `margin` uses the key `margin`, `loss` uses the key `target_nll`."""
    margin: Positive = 1.0
    """Logits, > 0, by which every target token must lead the best other token, with criterion `margin`. Edits with a
    smaller margin are forgotten first."""
    target_nll: Positive = 0.1
    """Nats per token, > 0, with criterion `loss`: an edit holds if every target token is the most likely one and their
    mean NLL is below this value."""
    rehearsal: Rehearsal = Rehearsal()
    """Rehearsal of past edits with every new edit."""
    anchors: AnchorUse = AnchorUse()
    """Training inputs whose behaviour must not move (`init --anchors`)."""
    joint: Joint = Joint()
    """Joint writing of edits: of a file (`edit --batch`), after a stream (`edit --consolidate`), at a compaction."""
    compact: Count | Unset = None
    """Number of standing edits, from 1, at which all of them are written together again, as if they had come at once,
    and then at four times that number, and so on (compaction). P is made anew too, with `rank` and no cap by
    `rank_share`. Default: never, as in the paper."""
    visual_share: Share | Unset = None
    """Share of the loss, between 0 and 1, that the Polyak step of the visual sites aims to remove. Where the projector
    has more inputs than the text model's layers, the share is smaller in that proportion. Default: all sites have one
    step length."""
    halvings: int = Field(default=5, ge=0, le=20)
    """Largest number of times that the step of a write is halved until it decreases `loss`; 0 accepts every step."""
    conjugate: float = Field(default=0.0, ge=0.0, le=1.0)
    """Largest weight of the previous step in a write, 0 to 1, as a share of Fletcher and Reeves's weight. Two writes in
    a row of the same edits are then conjugate: the second does not undo the first. 0: every write is along G P alone,
    as in the paper."""
    loss: Literal["nll", "margin"] = "nll"
    """What a write decreases: the target's mean negative log-likelihood (`nll`, as in the paper), or the same with the
    logit of every target token lowered by the margin that it must reach (`margin`)."""
    captions: tuple[str, ...] = ()
    """Prompts that ask for a description of a picture. On a state with anchors an edit that asks for a description is
    also trained under one of these prompts in every write, so that the model also answers other wordings with it.
    Default: none, as in the paper."""
    max_write: Positive = 0.05
    """Largest relative size |dW|_F / |W|_F of one write at one site, > 0, dimensionless."""

    system: str = ""
    """System prompt before every question; empty for none."""
    prompts: Literal["own", "mmedit"] = "own"
    """Wording of questions: as the checkpoint does (`own`), or as MMEdit's code does (`mmedit`): a question about a
    picture becomes `Question: ... Short answer:`, unless it asks for a description of it."""
    end_of_sequence: bool = True
    """Whether the token that ends an answer is part of an edit's target: it is then trained, pooled into the key, and
    has to be right for the edit to hold. Scores of `eval` count it in any case."""
    labels: Literal["sequence", "alone"] = "sequence"
    """Tokens of a target: those that it has in the whole sequence (`sequence`), or those that it has by itself, put
    behind the prompt, as MMEdit's code labels them (`alone`). Scores of `eval` use the same."""

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
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"`{shorten(pattern)}` is not a regular expression: {reason_of(error)}") from None
        for modality in ("text", "visual"):
            constants = getattr(self, modality).inheriting(self.default)
            if constants.step is None or (constants.ridge is None and constants.ridge_rel is None):
                raise ValueError(f"{modality} sites have no step or no lambda")
            if constants.ridge is None and self.normalisation == "paper":
                raise ValueError("normalisation `paper` needs an absolute `lambda`: P_0 = I / (1 + lambda)")
        if self.visual_share is not None and not self.uses_polyak:
            raise ValueError("`visual_share` divides the Polyak step: a fixed eta has `visual.step`")
        if len({isinstance(c.step, str) for c in self._all_constants}) > 1:
            raise ValueError("the Polyak step is shared by all sites: do not mix it with a fixed eta")
        self._check_switches()
        return self

    def _check_switches(self) -> None:
        if not self._one_lambda:
            raise ValueError(f"statistics `{self.statistics}` has one `lambda` for sites that share: set them alike")
        if self.last_vision is not None and "vision.ffn_out" not in self.sites:
            raise ValueError("`last_vision` counts layers of `vision.ffn_out`, which is not in `sites`")
        if self.basis_orthonormal and self.basis_rate is None:
            raise ValueError("`basis_orthonormal` is for a trained A: set `basis_rate` too")
        if self.basis_rate is not None and self.basis == "pca":
            raise ValueError("`basis_rate` trains a basis that was drawn: basis `pca` stays frozen")

    @property
    def _one_lambda(self) -> bool:
        """Whether all sites that share a P have the same lambda."""
        if self.statistics == "site":
            return True
        groups = [self._all_constants] if self.statistics == "shared" else self._by_modality.values()
        return all(len({(c.ridge, c.ridge_rel) for c in group}) == 1 for group in groups)

    @cached_property
    def _by_modality(self) -> dict[str, list[Constants]]:
        """The constants that sites of a modality can have, their common ones first."""
        bases = {"text": self.text.inheriting(self.default), "visual": self.visual.inheriting(self.default)}
        return {name: [base, *(own.inheriting(base) for own in self.site.values())] for name, base in bases.items()}

    @property
    def _all_constants(self) -> list[Constants]:
        return [constants for group in self._by_modality.values() for constants in group]

    @property
    def uses_polyak(self) -> bool:
        """Whether the step length is computed from the loss, not a fixed eta."""
        return self._all_constants[0].step == "polyak"

    @property
    def uses_anchors(self) -> bool:
        """Whether anchors have any effect."""
        return self.anchors.used or self.basis == "pca"

    @property
    def stores_basis(self) -> bool:
        """Whether A of a site cannot be drawn again from its seed."""
        return self.basis == "pca" or self.basis_rate is not None

    @property
    def orthonormal(self) -> bool:
        """Whether the rows of every A are orthonormal at any time."""
        drawn = self.basis in ("orthonormal", "pca")
        return drawn and self.basis_rate is None

    @property
    def asking(self) -> Asking:
        """How questions are asked: the arguments of `load_prompter` and `load_runtime`."""
        return asking_of(self.model_dump(include={"system", "prompts", "labels"}))

    def excludes(self, site: str) -> bool:
        """Return whether a site is excluded."""
        return any(re.fullmatch(pattern, site) for pattern in self.exclude)

    def rank_at(self, d_in: int) -> int:
        """Return the rank at a site with `d_in` inputs: `rank`, at most `rank_share` of them."""
        return max(1, min(self.rank, int(self.rank_share * d_in)))

    def capped(self, ranks: Mapping[int, int]) -> str:
        """Return in words which of the ranks, by the number of inputs of their sites, are below `rank`."""
        below = {width: rank for width, rank in sorted(ranks.items()) if rank < self.rank}
        return ", ".join(f"{rank} at sites with {counted(width, 'input')}" for width, rank in below.items())

    def largest_rank(self, d_in: int) -> int:
        """Return the rank that a compaction gives a site with `d_in` inputs; an A that a state stores keeps its own."""
        return self.rank_at(d_in) if self.stores_basis else min(self.rank, d_in)

    def constants_of(self, site: str, modality: str) -> Constants:
        """Return the constants of one site."""
        constants = (self.visual if modality == "visual" else self.text).inheriting(self.default)
        for pattern, own in self.site.items():
            if re.fullmatch(pattern, site):
                constants = own.inheriting(constants)
        return constants

    @model_serializer(mode="wrap")
    def _stored(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = whole(self)
        unused = [key for key in SWITCHES if getattr(self, key) == type(self).model_fields[key].default]
        return {key: value for key, value in values.items() if key not in unused}

    def canonical(self) -> dict[str, Any]:
        """Return the whole recipe as plain JSON values, as the state stores it."""
        return self.model_dump(mode="json", by_alias=True)
