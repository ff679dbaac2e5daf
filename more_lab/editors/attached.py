"""What editors share that work on the model they are attached to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from torch import Tensor

from more_cli.editors.base import Editor
from more_cli.model.runtime import Runtime

Place = TypeVar("Place")
"""What an editor works on in the attached model, such as the path of a layer."""


class AttachedEditor(Editor, Generic[Place]):
    """An editor that knows the attached model, and the place in it where it works."""

    _attached: tuple[Runtime, Place] | None = None

    @contextmanager
    def working_on(self, runtime: Runtime, place: Place) -> Iterator[None]:
        """Know this model and this place for as long as the context lasts."""
        self._attached = runtime, place
        try:
            yield
        finally:
            self._attached = None

    @property
    def working(self) -> tuple[Runtime, Place]:
        """The attached model, and the place."""
        assert self._attached is not None, "attach the editor first"
        return self._attached

    @property
    def runtime(self) -> Runtime:
        """The attached model."""
        return self.working[0]


class WritingEditor(AttachedEditor[Place]):
    """An editor whose state is what it wrote into the attached model; `attach` writes `_values` again."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}

    @abstractmethod
    def written(self, place: Place) -> dict[str, Tensor]:
        """Return every tensor that was written at the place."""

    @contextmanager
    def working_on(self, runtime: Runtime, place: Place) -> Iterator[None]:
        """Know this model and this place for as long as the context lasts; then keep what was written."""
        with super().working_on(runtime, place):
            try:
                yield
            finally:
                self._values = self.state_dict()

    def reset(self) -> None:
        """Forget everything that was written."""
        assert self._attached is None, "detach the editor first"
        self._values = {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return every tensor that was written."""
        return dict(self._values) if self._attached is None else self.written(self._attached[1])

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        assert self._attached is None, "detach the editor first"
        self._values = dict(tensors)
