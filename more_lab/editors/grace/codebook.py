"""GRACE's codebook: keys with radii, in which different labels keep clear of each other's centres.

Hartvigsen et al., "Aging with GRACE: Lifelong Model Editing with Discrete Key-Value Adaptors" (2023), section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

SAME = 1e-3
"""Keys nearer than this share of the first radius count as one key: a key of another batch differs by rounding."""
CLEAR = 1 - 1e-5
"""Distance between the edge of a shrunken ball and the middle of both centres."""

Label = tuple[int, ...]


@dataclass
class Codebook:
    """Entries with a key (d_in,), a value (d_out,), a radius and a label, in the order they came.

    Keys and values are float32, on the CPU. Labels are the target's token ids themselves; the published code compares
    their means, which different targets can share.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    radii: list[float] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def distances(self, key: Tensor) -> list[float]:
        """Return the Euclidean distance of every key from this one."""
        if not self.keys:
            return []
        found: list[float] = (torch.stack(self.keys) - key).norm(dim=1).tolist()
        return found

    def find(self, key: Tensor) -> int | None:
        """Return the nearest entry if its ball holds the key; as published, no other entry is considered."""
        distances = self.distances(key)
        if not distances:
            return None
        nearest = min(range(len(distances)), key=distances.__getitem__)
        return nearest if distances[nearest] <= self.radii[nearest] else None

    def place(self, key: Tensor, value: Tensor, label: Label, radius: float) -> int:
        """Return the entry that is to answer for a key: one whose ball holds it or may grow to it, or a new one.

        `radius` is that of a ball with room around it. The published rule looks at the nearest entry only, so that a
        ball that grew earlier can hold a new centre of another label; here every entry of another label is looked at.
        And two labels with one key get two balls of no size there; here the later label replaces the earlier.
        """
        distances = self.distances(key)
        if distances:
            nearest = min(range(len(distances)), key=distances.__getitem__)
            if distances[nearest] <= SAME * radius and self.labels[nearest] != label:
                self.keys[nearest], self.labels[nearest], self.values[nearest] = key, label, value
                self._part(nearest, radius)
                return nearest
            near = distances[nearest] <= radius + self.radii[nearest]
            if near and self.labels[nearest] == label and distances[nearest] < self._reach(nearest):
                self.radii[nearest] = max(self.radii[nearest], distances[nearest])
                return nearest
        self.keys.append(key)
        self.values.append(value)
        self.radii.append(radius)
        self.labels.append(label)
        self._part(len(self) - 1, radius)
        return len(self) - 1

    def _reach(self, entry: int) -> float:
        """Return the distance from an entry's centre to the nearest ball of another label."""
        distances = self.distances(self.keys[entry])
        others = (distances[n] - self.radii[n] for n in range(len(self)) if self.labels[n] != self.labels[entry])
        return min(others, default=torch.inf)

    def _part(self, entry: int, radius: float) -> None:
        """Split the room between an entry and those of other labels whose balls it would meet, half and half."""
        distances = self.distances(self.keys[entry])
        others = [n for n in range(len(self)) if self.labels[n] != self.labels[entry]]
        own = max(radius, self.radii[entry])  # an entry whose label was replaced has a ball that may have grown
        met = [n for n in others if distances[n] <= own + self.radii[n]]
        self.radii[entry] = min([own, *(CLEAR * distances[n] / 2 for n in met)])
        for other in met:
            self.radii[other] = min(self.radii[other], CLEAR * distances[other] / 2)

    def state(self) -> dict[str, Tensor]:
        """Return the entries as tensors: labels are padded with -1, radii are float64."""
        if not self.keys:
            return {}
        longest = max(map(len, self.labels))
        labels = [[*label, *[-1] * (longest - len(label))] for label in self.labels]
        values = torch.stack([value.detach() for value in self.values])
        radii = torch.tensor(self.radii, dtype=torch.float64)
        return {"keys": torch.stack(self.keys), "values": values, "radii": radii, "labels": torch.tensor(labels)}

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Codebook:
        """Return the codebook of `state`'s tensors."""
        if not state:
            return cls()
        labels = [tuple(token for token in row if token >= 0) for row in state["labels"].tolist()]
        return cls(list(state["keys"]), list(state["values"]), state["radii"].tolist(), labels)
