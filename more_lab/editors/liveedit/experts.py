"""The networks of LiveEdit: they make an expert from a correction, and compare questions with corrections.

LiveEdit (Chen et al., CVPR 2025, "Lifelong Knowledge Editing for Vision Language Models with Low-Rank
Mixture-of-Experts"). All of it runs in float32, on the outputs of one text layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

SCALE = 5.0
"""An expert's matrices are divided by this number and by the square root of its rank."""


@dataclass(frozen=True)
class Reps:
    """Hidden states of some sequences with their images, padded."""

    states: Tensor
    """(N, T, d) float32."""
    vision: Tensor
    """(N, T) bool, true at the positions of an image."""
    prompt: Tensor
    """(N, T) bool, true at the other positions of the prompt."""
    own: Tensor
    """(N, T) bool, true at every position of the sequence: image, prompt and, where there is one, target."""

    @staticmethod
    def of(states: Sequence[Tensor], vision: Sequence[Tensor], lengths: Sequence[int]) -> Reps:
        """Pad hidden states (T, d), whose images are at `vision` (T,), and whose prompts have these lengths."""
        device = states[0].device
        prompts = [
            torch.arange(len(state), device=device) < length for state, length in zip(states, lengths, strict=True)
        ]
        padded = pad_sequence(list(states), batch_first=True).float()
        shown = pad_sequence([mask.to(device) for mask in vision], batch_first=True)
        own = pad_sequence([torch.ones_like(prompt) for prompt in prompts], batch_first=True)
        return Reps(padded, shown, pad_sequence(prompts, batch_first=True) & ~shown, own)


@dataclass(frozen=True)
class Features:
    """What two inputs are compared by."""

    vision: Tensor
    """(N, n, width): what the prompt asks of the image."""
    text: Tensor
    """(N, n, width): the prompt."""


@dataclass(frozen=True)
class Experts:
    """Low-rank experts with the features of the corrections they are made from."""

    features: Features
    keys: Tensor
    """C, (E, rank, d)."""
    values: Tensor
    """R, (E, rank, d)."""


@dataclass(frozen=True)
class Mixture:
    """The experts that act on one input, and how much."""

    weights: Tensor
    """(E,)."""
    keys: Tensor
    """(E, rank, d)."""
    values: Tensor
    """(E, rank, d)."""


class Attention(nn.Module):
    """Multi-head attention without an output projection."""

    def __init__(self, asking: int, asked: int, width: int, out: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(asking, width), nn.Linear(asked, width)
        self.value = nn.Linear(asked, out)

    def forward(self, queries: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Return (N, n, out) for queries (N, n, asking) to the states (N, T, asked) where the mask (N, T) is true."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(queries), self.key(states), self.value(states))
        )
        found: Tensor = nn.functional.scaled_dot_product_attention(query, key, value, mask[:, None, None])
        return found.transpose(1, 2).flatten(2)


class Extractor(nn.Module):
    """Learned queries that read the features of an input."""

    def __init__(self, hidden: int, width: int, heads: int, queries: int) -> None:
        super().__init__()
        self.norm, self.text_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.asks, self.text_asks = _learned(queries, width), _learned(queries, width)
        self.of_prompt = Attention(width, hidden, width, width, heads)
        self.of_image = Attention(width, hidden, width, width, heads)
        self.of_text = Attention(width, hidden, width, width, heads)

    def forward(self, reps: Reps) -> Features:
        """Return the features of inputs that have an image."""
        return Features(self.vision(reps, reps.states, reps.vision), self.text(reps))

    def vision(self, reps: Reps, image: Tensor, mask: Tensor) -> Tensor:
        """Return the features that prompts ask of images (N, T, hidden), which lie where the mask is true."""
        asks = self.of_prompt(self.asks.expand(len(reps.states), -1, -1), self.norm(reps.states), reps.prompt)
        found: Tensor = self.of_image(asks, self.norm(image), mask)
        return found

    def text(self, reps: Reps) -> Tensor:
        """Return the features of the prompts."""
        asks = self.text_asks.expand(len(reps.states), -1, -1)
        found: Tensor = self.of_text(asks, self.text_norm(reps.states), reps.prompt)
        return found


class Generator(nn.Module):
    """Makes one matrix of an expert from image, prompt and target."""

    def __init__(self, hidden: int, width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.norm, self.asks = nn.LayerNorm(hidden), _learned(rank, width)
        self.read = Attention(width, hidden, width, hidden, heads)
        self.scale = 1 / (SCALE * math.sqrt(rank))

    def forward(self, reps: Reps) -> Tensor:
        """Return (N, rank, hidden)."""
        asks = self.asks.expand(len(reps.states), -1, -1)
        found: Tensor = self.scale * self.read(asks, self.norm(reps.states), reps.own)
        return found


class ExpertNet(nn.Module):
    """Everything that is learnt before the first correction."""

    def __init__(self, hidden: int, image: int, *, width: int, heads: int, queries: int, rank: int) -> None:
        super().__init__()
        self.of_edit = Extractor(hidden, width, heads, queries)
        self.of_input = Extractor(hidden, width, heads, queries)
        self.sentinel = _learned(image, hidden)
        """Stands for an image that no correction is about; as many positions as an image has."""
        self.make_keys = Generator(hidden, width, heads, rank)
        self.make_values = Generator(hidden, width, heads, rank)
        self.norm = nn.LayerNorm(hidden)

    def experts(self, reps: Reps) -> Experts:
        """Return the expert of each correction, whose sequences hold the targets."""
        return Experts(self.of_edit(reps), self.make_keys(reps), self.make_values(reps))

    def sentinel_scores(self, reps: Reps, vision: Tensor) -> Tensor:
        """Return the scores (N, 1) of the sentinel for inputs with these vision features: the least to pass."""
        image = self.sentinel.expand(len(reps.states), -1, -1)
        mask = torch.ones(image.shape[:2], dtype=torch.bool, device=image.device)
        found = self.of_input.vision(reps, image, mask)
        return (vision * found).sum((1, 2))[:, None] / _norm(vision)

    def residual(self, states: Tensor, mixture: Mixture) -> Tensor:
        """Return what the experts add to the hidden states (T, d) of one input: sum_e w_e R_e^T relu(C_e LN(h))."""
        active = torch.relu(self.norm(states) @ mixture.keys.flatten(0, 1).T)
        weights = mixture.weights.repeat_interleave(mixture.keys.shape[1])
        added: Tensor = (active * weights) @ mixture.values.flatten(0, 1)
        return added


def similarities(inputs: Tensor, edits: Tensor) -> Tensor:
    """Return the scores (N, E) of features (N, n, width) with those of corrections (E, n, width)."""
    return inputs.flatten(1) @ edits.flatten(1).T / _norm(inputs)


def soft_weights(scores: Tensor) -> Tensor:
    """Return the weights (..., E) of experts by their scores."""
    return torch.softmax(scores, -1) * torch.sigmoid(scores)


def _norm(features: Tensor) -> float:
    """The mean over the queries, and the scale of attention."""
    return features.shape[1] * math.sqrt(features.shape[2])


def _learned(rows: int, width: int) -> nn.Parameter:
    # The published initial values: as small as those of a layer that reads all rows at once.
    return nn.Parameter(torch.randn(rows, width) * math.sqrt(2 / (rows * width)))
