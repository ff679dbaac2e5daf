"""No editor: the row that every other is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor

from more_cli.editors.base import EditContext, Editor, EditOutcome, EditRequest, Family
from more_cli.editors.outcome import look, outcome
from more_cli.model.runtime import Runtime


class NoEditor(Editor):
    """Looks at every edit and leaves the model as it is."""

    name: ClassVar[str] = "none"
    family: ClassVar[Family] = "none"
    is_base: ClassVar[bool] = True

    def __init__(self) -> None:
        self._runtime: Runtime | None = None

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Change nothing; image features are kept across passes as for every editor."""
        self._runtime = runtime
        try:
            with runtime.attached([]):
                yield
        finally:
            self._runtime = None

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Say whether the model is right already."""
        assert self._runtime is not None, "attach the editor first"
        first = look(self._runtime, self._runtime.encode(request.query, request.target))
        return outcome(self._runtime, first, first)

    def reset(self) -> None:
        """Nothing was learnt."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take nothing."""

    def footprint(self) -> dict[str, int]:
        """Return zeros."""
        return {"fixed": 0, "per_edit": 0}
