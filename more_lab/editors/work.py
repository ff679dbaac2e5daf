"""What an edit took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Work:
    """What an edit took."""

    writes: int = 0
    passes: int = 0
    """Samples sent forward, with or without a backward pass."""
    cost: float = 0.0
    """Samples sent forward and backward; a sample that is only sent forward counts a third."""

    def forward(self, samples: int = 1) -> None:
        """Count samples that were sent forward only."""
        self.passes += samples
        self.cost += samples / 3

    def both(self, samples: int = 1) -> None:
        """Count samples that were sent forward and backward."""
        self.passes += samples
        self.cost += samples
