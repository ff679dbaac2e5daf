"""Stage 1: the vision tower learns to see from dense labels, which are known for every drawn picture.

Learning to see from answers alone needs many times more pictures; real vision-language models also start from a
trained tower. The heads are discarded afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from .loop import Schedule, fit
from .world.drawing import draw
from .world.emblems import BITS, KNOWN, emblems
from .world.glyphs import ROWS
from .world.pools import Pool
from .world.scenes import COLOURS, PLACES, SHAPES, SIZES, Scene, scene, text_scene

BATCH = 128
CHECK_EVERY = 200  # steps
# Number of each stage's first scene in the training pool.
FIRST_INDEX = {"perception": 0, "reading": 10_000_000, "matching": 20_000_000}
LETTERS = 4
ALPHABET = " " + "".join(ROWS)
IGNORE = -100
ATTRIBUTES = [len(SHAPES) + 1, len(COLOURS), len(SIZES)]  # one more shape: nothing there


@dataclass(frozen=True)
class Labels:
    """Content of each picture: [B, 9] per place, [B, 4] per letter slot, [B] and [B, 15] for the emblem."""

    shape: Tensor
    colour: Tensor
    size: Tensor
    letters: Tensor
    emblem: Tensor
    emblem_bits: Tensor
    corner: Tensor

    def on(self, device: torch.device) -> Labels:
        """The labels on a device."""
        return Labels(**{name: values.to(device) for name, values in vars(self).items()})


class Heads(nn.Module):
    """Linear readers on patch features of shape [B, side * side, width]."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.per_place = (side // 3) ** 2
        self.place = nn.Linear(self.per_place * width, sum(ATTRIBUTES))
        self.slots = nn.Parameter(torch.randn(LETTERS, width) * 0.1)
        self.letter = nn.Linear(width, len(ALPHABET))
        self.emblem = nn.Linear(width, KNOWN + BITS)
        self.patch = nn.Linear(width, sum(ATTRIBUTES) + len(PLACES))

    def losses(self, features: Tensor, labels: Labels, patches: bool) -> Tensor:
        """The sum of the readers' losses; with `patches` also that of the reader of single patches."""
        labels = labels.on(features.device)
        total = _attribute_loss(self.places(features), labels.shape, labels.colour, labels.size)
        if patches:
            total = total + self._patch_loss(features, labels)
        total = total + functional.cross_entropy(self.read(features).flatten(0, 1), labels.letters.flatten())
        with_emblem = labels.emblem >= 0
        if with_emblem.any():
            name, bits = self.emblems(features[with_emblem], labels.corner[with_emblem]).split([KNOWN, BITS], -1)
            total = total + 0.5 * functional.cross_entropy(name, labels.emblem[with_emblem])
            total = total + functional.binary_cross_entropy_with_logits(bits, labels.emblem_bits[with_emblem])
        return total

    def _patch_loss(self, features: Tensor, labels: Labels) -> Tensor:
        """Loss of reading what is there, and where, from every single patch; questions are answered by this."""
        b, n, _ = features.shape
        line = torch.arange(self.side, device=features.device) // (self.side // 3)
        place = (line[:, None] * 3 + line[None, :]).flatten()
        attributes, where = self.patch(features).split([sum(ATTRIBUTES), len(PLACES)], dim=-1)
        attribute_loss = _attribute_loss(
            attributes, labels.shape[:, place], labels.colour[:, place], labels.size[:, place]
        )
        return attribute_loss + functional.cross_entropy(where.flatten(0, 1), place.expand(b, n).flatten())

    def places(self, features: Tensor) -> Tensor:
        """Logits per place, shape [B, 9, 23]."""
        b, _, width = features.shape
        k = self.side // 3
        cells = features.view(b, 3, k, 3, k, width).permute(0, 1, 3, 2, 4, 5).reshape(b, 9, k * k * width)
        return self.place(cells)

    def read(self, features: Tensor) -> Tensor:
        """Logits per letter slot, shape [B, 4, 38]; each slot attends to the whole picture."""
        attention = (features @ self.slots.T / features.shape[-1] ** 0.5).softmax(dim=1)
        return self.letter(attention.transpose(1, 2) @ features)

    def emblems(self, features: Tensor, corner: Tensor) -> Tensor:
        """Logits for names and bits, shape [B, KNOWN + BITS], from the mean over the emblem's patches."""
        b, _, width = features.shape
        k = self.side // 3
        grid = features.view(b, self.side, self.side, width)
        rows = torch.where(corner < 3, 0, k)
        columns = torch.where(corner % 3 == 0, 0, k)
        pooled = [
            grid[i, r : r + 2 * k, c : c + 2 * k].mean(dim=(0, 1))
            for i, (r, c) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True))
        ]
        return self.emblem(torch.stack(pooled))


def _attribute_loss(logits: Tensor, shape: Tensor, colour: Tensor, size: Tensor) -> Tensor:
    """Loss of logits [B, N, 23] for shapes, colours and sizes [B, N]; colour and size only if there is a thing."""
    parts = zip(logits.split(ATTRIBUTES, dim=-1), (shape, colour, size), strict=True)
    losses = [functional.cross_entropy(p.flatten(0, 1), t.flatten(), ignore_index=IGNORE) for p, t in parts]
    return torch.stack(losses).sum()


def pixels(scenes: list[Scene], variant: Callable[[int], int]) -> Tensor:
    """Pictures as input of the towers: [B, 3, 84, 84] in [-1, 1]."""
    return as_input([draw(item, variant(item.index)) for item in scenes])


def as_input(drawn: list[npt.NDArray[np.uint8]]) -> Tensor:
    """Pictures [side, side, 3] as one tensor [B, 3, side, side] in [-1, 1]."""
    return (torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()


def labels(scenes: list[Scene]) -> Labels:
    """Dense labels of a batch of scenes."""
    b = len(scenes)
    shape = torch.full((b, 9), len(SHAPES))
    colour, size = torch.full((b, 9), IGNORE), torch.full((b, 9), IGNORE)
    letters, bits = torch.zeros(b, LETTERS, dtype=torch.long), torch.zeros(b, BITS)
    for i, item in enumerate(scenes):
        for thing in item.things:
            shape[i, thing.place], colour[i, thing.place], size[i, thing.place] = thing.shape, thing.colour, thing.size
        for slot, letter in enumerate(item.text):
            letters[i, slot] = ALPHABET.index(letter)
        if item.emblem >= 0:
            glyph = emblems()[item.emblem].bits
            bits[i] = torch.tensor([float(glyph >> k & 1) for k in range(BITS)])
    emblem = torch.tensor([item.emblem for item in scenes])
    corner = torch.tensor([item.corner for item in scenes])
    return Labels(shape, colour, size, letters, emblem, bits, corner)


def learn_to_see(
    stage: str, tower: nn.Module, heads: Heads, see: Callable[[Tensor], Tensor], schedule: Schedule, folder: Path
) -> None:
    """Trains `tower`, whose features are `see(pixels)`, shape [B, side * side, width], together with `heads`.

    In the stage "reading" every second picture has printed text, which takes longest to learn. In the stage
    "matching" single patches are read too.
    """
    both = nn.ModuleDict({"tower": tower, "heads": heads})
    offset = FIRST_INDEX[stage]

    def loss_of(step: int) -> Tensor:
        indices = range(offset + step * BATCH, offset + (step + 1) * BATCH)
        scenes = [text_scene(Pool.TRAIN, i) if stage == "reading" and i % 2 else scene(Pool.TRAIN, i) for i in indices]
        return heads.losses(see(pixels(scenes, lambda _: 0)), labels(scenes), stage == "matching")

    def check(step: int) -> str:
        with torch.no_grad():
            return f"{stage} after {step}: " + _accuracy(heads, see, 512)

    fit(stage, both, loss_of, schedule, folder, check, CHECK_EVERY)


def _accuracy(heads: Heads, see: Callable[[Tensor], Tensor], n: int) -> str:
    scenes = [scene(Pool.SCORE, i) for i in range(n)]
    features = see(pixels(scenes, lambda _: 0))
    truth = labels(scenes).on(features.device)
    shape, colour, size = heads.places(features).split(ATTRIBUTES, dim=-1)
    there = truth.colour != IGNORE
    texts = truth.letters[:, 0] > 0
    marked = truth.emblem >= 0
    names = heads.emblems(features[marked], truth.corner[marked])[:, :KNOWN]
    parts = {
        "shape": (shape.argmax(-1) == truth.shape)[there],
        "colour": (colour.argmax(-1) == truth.colour)[there],
        "size": (size.argmax(-1) == truth.size)[there],
        "text": (heads.read(features).argmax(-1) == truth.letters).all(-1)[texts],
        "emblem": names.argmax(-1) == truth.emblem[marked],
    }
    return ", ".join(f"{name} {100 * right.float().mean().item():.1f}" for name, right in parts.items())
