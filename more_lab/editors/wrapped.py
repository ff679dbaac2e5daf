"""What editors share that decide when a rival writes, and leave to it how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from more_cli.editors.base import FitData, Footprint
from more_cli.editors.registry import EditorOptions, editor, entry_of
from more_cli.model.changes import Change
from more_lab.editors.attached import AttachedEditor, Place
from more_lab.editors.joint import JointEditor


class Wrapped(AttachedEditor[Place]):
    """A rival in other hands: its fit, its state and its effect are its own."""

    def __init__(self, inner: JointEditor) -> None:
        self.inner = inner
        self.name = inner.name  # type: ignore[misc]  # its fit is the rival's own
        self.capabilities = inner.capabilities
        self.teaching = inner.teaching

    def fit(self, data: FitData) -> dict[str, Any]:
        return self.inner.fit(data)

    def fitted(self) -> dict[str, Tensor]:
        return self.inner.fitted()

    def load_fitted(self, tensors: dict[str, Tensor]) -> None:
        self.inner.load_fitted(tensors)

    def fit_constants(self) -> dict[str, Any]:
        return self.inner.fit_constants()

    def footprint(self) -> Footprint:
        return self.inner.footprint()

    def changes(self) -> dict[str, Change]:
        return self.inner.changes()

    def constants(self) -> dict[str, Any]:
        return self.inner.constants()

    def reset(self) -> None:
        self.inner.reset()

    def state_dict(self) -> dict[str, Tensor]:
        return self.inner.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        self.inner.load_state_dict(tensors)


Made = TypeVar("Made", bound=Wrapped[Any])


def register(rival: str, hands: str, wrap: Callable[[JointEditor], Made]) -> Callable[[EditorOptions], Made]:
    """Register the editor `RIVAL:HANDS`, with the rival's own settings to try, and return what makes it."""

    @editor(f"{rival}:{hands}", tries=entry_of(rival).tries)
    def make(options: EditorOptions) -> Made:
        inner = entry_of(rival).make(options)
        assert isinstance(inner, JointEditor)
        return wrap(inner)

    return make
