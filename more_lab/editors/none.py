"""No editor: the row that all others are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor

from more_cli.editors.base import EditContext, Editor, EditOutcome, EditRequest
from more_cli.editors.outcome import outcome, score_edit
from more_cli.editors.registry import editor
from more_cli.model.runtime import Runtime


@editor("none")
class NoEditor(Editor):
    """Scores every edit and never changes the model."""

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
        """Score the edit."""
        assert self._runtime is not None, "attach the editor first"
        first = score_edit(self._runtime, self._runtime.encode(request.query, request.target))
        return outcome(self._runtime, first, first)

    def reset(self) -> None:
        """Do nothing: there is no edit to forget."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Do nothing."""
