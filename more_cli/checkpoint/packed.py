"""One weight that is stored quantised, and what a config declares about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from more_cli.checkpoint.headers import TensorEntry

DECLARED = ("quantization_config", "compression_config")
"""Entries of a config that name a scheme."""
UNSHOWN = "beside which edits were not shown to work"
"""Why most schemes are refused."""


@dataclass(frozen=True)
class Packed:
    """One weight that is stored quantised: tensors that together are a matrix."""

    key: str
    """Key that its weight would have if it were not quantised; most schemes store the codes under it."""
    scheme: str
    shape: tuple[int, int]
    """(d_out, d_in) of the matrix."""
    parts: Mapping[str, TensorEntry]
    """All its tensors, by what follows the module's path and a dot, such as `weight.absmax`; the codes come first."""
    facts: Mapping[str, Any]
    """What else its scheme needs to know to read it."""

    @property
    def entry(self) -> TensorEntry:
        """Its codes, as the tensor that a model sees."""
        return replace(next(iter(self.parts.values())), key=self.key, shape=self.shape)


class Bounded(NamedTuple):
    """A matrix (d_out, d_in) float32, and how far below and above each entry the weight before rounding may lie."""

    matrix: Tensor
    below: Tensor
    above: Tensor


def declared(config: Mapping[str, Any]) -> Any:
    """Return what a config says about its scheme; None for plain weights."""
    return next((config[name] for name in DECLARED if config.get(name) is not None), None)
