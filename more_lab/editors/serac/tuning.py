"""The numbers of SERAC."""

from __future__ import annotations

from pydantic import Field

from more_cli.recipe.tables import Table


class SeracTuning(Table):
    """The numbers of SERAC's networks and their training."""

    none: float = Field(default=10.0)
    """Logit of the class "none of the corrections": in training, and the least similarity to answer from one."""
    rate: float = Field(default=3e-3, gt=0)
    """Learning rate of Adam."""
    iterations: int = Field(default=50_000, ge=1)
    """Steps of Adam at most; training ends where watched edits gain nothing, see `fitting.Watch`."""
    batch: int = Field(default=8, ge=2)
    """Corrections per step."""
    width: int = Field(default=128, ge=8, multiple_of=8)
    """Width of both networks."""
    share: float = Field(default=0.0, ge=0, lt=1)
    """Greatest share of the base's parameters that both have together, in place of `width`; 0 for none. BERT-base and
    OPT-125M are 3 % of seven billion; with 128 wide networks ours are a quarter of the embedded model."""
    copier: bool = True
    """Whether the counterfactual network begins with what lets it repeat a target: it is told every token's place in
    the answer, looks at tokens other than itself, and its queries start as keys."""
    layers: int = Field(default=2, ge=1)
    """Layers of the counterfactual network."""
    scope_layers: int = Field(default=1, ge=1)
    """Layers of the scope encoder."""
    locality: float = Field(default=0.1, ge=0)
    """Weight of the KL from the base on locality questions; 1 as published, where the network is pretrained."""
    variants: int = Field(default=4, ge=0)
    """Random targets that each record is also trained with."""
    seed: int = Field(default=0, ge=0)
    """Seed of the initial values, the random targets and the order of training."""
