"""What M-ORE's loop asks of a rival: to write several edits at once, and to take that back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from more_cli.editors.anchors import Anchor, drift
from more_cli.editors.base import Editor
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_lab.editors.work import Work


class JointEditor(Editor):
    """An editor that changes weights and can write several edits in one go; attached, as for `edit`."""

    writes_rest: bool = True
    """Whether a write also takes the new edit where it holds already, beside past edits that fail."""

    @abstractmethod
    def most_writes(self) -> int:
        """Return the largest number of writes for one edit."""

    def begin(self) -> None:
        """Prepare for the writes of an edit."""

    @abstractmethod
    def write_together(self, edits: Sequence[Encoded], anchors: Sequence[Anchor], work: Work) -> None:
        """Write once so that the model answers as `edits` say and the anchors' answers stay, and count the work."""

    def protect(self, anchors: Sequence[Anchor]) -> None:
        """Learn from the anchors, before the first edit, what must stay as it is. Called once for a fit."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return everything that a write changes."""

    @abstractmethod
    def restore(self, before: Any) -> None:
        """Take back all writes since a snapshot."""


def joint_loss(runtime: Runtime, edits: Sequence[Encoded], anchors: Sequence[Anchor]) -> Tensor:
    """Return the mean NLL of the edits + the mean KL of the anchors from the base, a scalar in nats with a graph."""
    samples = [*edits, *(anchor.encoded for anchor in anchors)]
    scored = runtime.score(runtime.batch(samples), record=True)
    loss = scored[: len(edits)].nll().mean()
    return loss + drift(scored[len(edits) :], anchors).mean() if anchors else loss
