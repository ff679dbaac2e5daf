"""No editor: the row that all others are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor

from more_cli.editors.base import EditContext, EditOutcome, EditRequest
from more_cli.editors.outcome import outcome, score_edit
from more_cli.editors.registry import editor
from more_cli.model.runtime import Runtime
from more_lab.editors.attached import AttachedEditor


@editor("none")
class NoEditor(AttachedEditor[None]):
    """Scores every edit and never changes the model."""

    is_base: ClassVar[bool] = True

    @contextmanager
    def attach(self, runtime: Runtime) -> Iterator[None]:
        """Change nothing; image features are kept across passes as for every editor."""
        with self.working_on(runtime, None), runtime.attached([]):
            yield

    def edit(self, request: EditRequest, context: EditContext) -> EditOutcome:
        """Score the edit."""
        first = score_edit(self.runtime, self.runtime.encode(request.query, request.target))
        return outcome(self.runtime, first, first)

    def reset(self) -> None:
        """Do nothing: there is no edit to forget."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Do nothing."""
