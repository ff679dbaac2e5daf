"""SERAC's two networks: one says which correction a question falls under, one answers it from that correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from more_lab.editors.serac.tuning import SeracTuning

LONGEST = 512
"""Positions of a sequence that the scope encoder reads, the last ones."""
PERIOD = 10_000.0
"""Longest wavelength of the position codes, in tokens, over 2 pi."""


@dataclass(frozen=True)
class Words:
    """The input embeddings of one sequence, (T, d); its last `answer` tokens are those of an answer."""

    embeddings: Tensor
    answer: int = 0

    @property
    def steps(self) -> Tensor:
        """(T,) places in the answer, from 1: of the token itself, 0 before the answer."""
        return (torch.arange(1, len(self.embeddings) + 1) - (len(self.embeddings) - self.answer)).clamp(min=0)

    @property
    def next_steps(self) -> Tensor:
        """(T,) places in the answer of the token that comes next, from 1; 0 where that is one of the prompt."""
        return (torch.arange(2, len(self.embeddings) + 2) - (len(self.embeddings) - self.answer)).clamp(min=0)


class Bottleneck(nn.Module):
    """LayerNorm, a Linear to another width, and a residual MLP of that width (LiveEdit's ResBlock)."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.norm, self.into = nn.LayerNorm(size), nn.Linear(size, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., size) to (..., width)."""
        x = self.into(self.norm(x))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class ScopeEncoder(nn.Module):
    """A transformer encoder on input embeddings of image and text; mean, maximum and minimum over the positions.

    Two or fewer layers from random weights, where the published one is BERT-base. Positions are fixed sinusoids.
    """

    def __init__(self, size: int, tuning: SeracTuning) -> None:
        super().__init__()
        self.width = tuning.width
        self.into = Bottleneck(size, tuning.width)
        self.layers = nn.ModuleList(Layer(tuning.width, sharp=tuning.copier) for _ in range(tuning.scope_layers))
        self.norm = nn.LayerNorm(tuning.width)
        # At first all questions are alike; a similarity near the logit of "none" lets both classes learn at once.
        nn.init.constant_(self.norm.weight, START_GAIN)

    def forward(self, sequences: Sequence[Tensor]) -> Tensor:
        """Return the vectors of N sequences (T, d) of input embeddings, (N, 3 width)."""
        padded, own = _padded([sequence[-LONGEST:] for sequence in sequences])
        hidden = self.into(padded) + codes(torch.arange(padded.shape[1], device=padded.device), self.width)
        seen = own[:, None].expand(-1, own.shape[1], -1)
        for layer in self.layers:
            hidden = layer(hidden, seen)
        hidden, there, infinity = self.norm(hidden), own[..., None], torch.finfo(hidden.dtype).max
        mean = (hidden * there).sum(1) / there.sum(1)
        most = hidden.masked_fill(~there, -infinity).amax(1)
        least = hidden.masked_fill(~there, infinity).amin(1)
        return torch.cat([mean, most, least], dim=-1)


START_GAIN = 0.4
"""Gain of the scope encoder's last norm before training."""


def similarity(queries: Tensor, edits: Tensor) -> Tensor:
    """Return the similarity of N questions to E corrections, (N, E): dot products over the root of the width."""
    return queries @ edits.T / math.sqrt(edits.shape[-1])


class Counterfactual(nn.Module):
    """A causal transformer over a correction with its target, then a question; it puts out the LLM's hidden states.

    Two or so layers from random weights, where the published one is OPT-125M. To learn in minutes what that one knew
    before, to repeat what it has read, it is told which tokens are the target, and every token's place in the answer:
    of the target's token itself, and of the one that a position of the question predicts. Without `copier` it is a
    plain causal transformer that knows places in the sequence.
    """

    def __init__(self, size: int, tuning: SeracTuning) -> None:
        super().__init__()
        self.width, self.copier = tuning.width, tuning.copier
        self.into = Bottleneck(size, tuning.width)
        self.role = nn.Embedding(3, tuning.width)
        nn.init.normal_(self.role.weight, std=PLACE)  # the places in an answer matter more at first
        self.layers = nn.ModuleList(Layer(tuning.width, sharp=tuning.copier) for _ in range(tuning.layers))
        self.norm = nn.LayerNorm(tuning.width)
        self.out = Bottleneck(tuning.width, size)

    def forward(self, edits: Sequence[Words], queries: Sequence[Words], last: int) -> Tensor:
        """Return what the LLM's last layer is to put out at the last positions of each question, (N, last, d).

        Every question is read behind its own correction.
        """
        pairs = list(zip(edits, queries, strict=True))
        read, own = _padded([torch.cat([edit.embeddings, query.embeddings]) for edit, query in pairs], "left")
        labels, _ = _padded([self._labels(edit, query) for edit, query in pairs], "left")
        length = torch.arange(read.shape[1], device=read.device)
        if self.copier:
            # Its residual is all that a token knows of itself: it looks at others, and only the first one at itself.
            first = own & (own.cumsum(1) == 1) | ~own
            seen = own[:, None] & (length < length[:, None]) | torch.diag_embed(first)
        else:
            seen = own[:, None] & (length <= length[:, None]) | torch.diag_embed(~own)
        hidden = self.into(read) + labels
        *earlier, final = self.layers
        for layer in earlier:
            hidden = layer(hidden, seen)
        return self.out(self.norm(final(hidden, seen, last)))  # type: ignore[no-any-return]

    def _labels(self, edit: Words, query: Words) -> Tensor:
        """Return what is added to every token: its role and its place, (T, width); without `copier` its place alone."""
        device = self.role.weight.device
        if not self.copier:
            return codes(torch.arange(len(edit.embeddings) + len(query.embeddings)), self.width).to(device)
        steps = torch.cat([edit.steps, query.next_steps])
        roles = torch.cat([(edit.steps > 0).long(), torch.full((len(query.embeddings),), 2)])
        places = torch.cat([torch.arange(len(words.embeddings)) for words in (edit, query)])
        placed = torch.where((steps > 0)[:, None], step_codes(steps, self.width), PLACE * codes(places, self.width))
        return self.role(roles.to(device)) + placed.to(device)  # type: ignore[no-any-return]


PLACE = 0.1
"""Weight of the places of a prompt's tokens beside the places in an answer."""


class SeracNets(nn.Module):
    """Both networks."""

    def __init__(self, size: int, tuning: SeracTuning) -> None:
        super().__init__()
        self.scope = ScopeEncoder(size, tuning)
        self.counterfactual = Counterfactual(size, tuning)


def width_within(size: int, most: float, tuning: SeracTuning) -> int:
    """Return the largest width of networks that have at most so many parameters together, at least the smallest."""
    least = WIDTHS
    with torch.device("meta"):
        while sum(p.numel() for p in SeracNets(size, _wide(tuning, least + WIDTHS)).parameters()) <= most:
            least += WIDTHS
    return least


WIDTHS = 8
"""Widths are multiples of this number."""


def _wide(tuning: SeracTuning, width: int) -> SeracTuning:
    return tuning.model_copy(update={"width": width})


def make_nets(size: int, tuning: SeracTuning, width: int = 0) -> SeracNets:
    """Return both networks for input embeddings of this size, with initial values drawn by the tuning's seed.

    A `width` goes before the tuning's.
    """
    tuning = _wide(tuning, width) if width else tuning
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tuning.seed)
        return SeracNets(size, tuning)


def codes(places: Tensor, width: int) -> Tensor:
    """Return the sinusoidal codes of places, (..., width): any place has one, also one that training never saw."""
    return _waves(places, PERIOD ** (-torch.arange(0, width, 2, device=places.device) / width))


def step_codes(steps: Tensor, width: int) -> Tensor:
    """Return codes, (..., width), that are orthogonal for different steps of an answer, up to `width` of them."""
    return _waves(steps, (torch.arange(width // 2, device=steps.device) + 0.5) * (2 * torch.pi / width))


def _waves(places: Tensor, frequencies: Tensor) -> Tensor:
    angles = places[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Layer(nn.Module):
    """A transformer layer with norms before its two parts, that may be asked for some positions only."""

    def __init__(self, width: int, *, sharp: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.rest, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        if not sharp:
            return
        # Queries start as keys, sharpened: tokens look at their like from the start, and places at the same places.
        with torch.no_grad():
            self.rest.weight[:width] *= SHARP
            self.query.weight.copy_(self.rest.weight[:width])

    def forward(self, x: Tensor, seen: Tensor, last: int | None = None) -> Tensor:
        """Return the last positions, by default all, of (N, T, width); `seen` (N, T, T) says what each looks at."""
        normed = self.first(x)
        x, seen = (x, seen) if last is None else (x[:, -last:], seen[:, -last:])
        query = _heads(self.query(normed[:, -x.shape[1] :]))
        key, value = map(_heads, self.rest(normed).chunk(2, dim=-1))
        found = scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None])
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))  # type: ignore[no-any-return]


def _heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], HEADS, -1).transpose(1, 2)


HEADS = 4
"""Heads of every attention."""
SHARP = 2.5
"""Factor on the initial weights of queries and keys."""


def _padded(sequences: Sequence[Tensor], side: Literal["left", "right"] = "right") -> tuple[Tensor, Tensor]:
    """Return sequences padded to the longest, (N, T, d), and (N, T) bool, true where they are."""
    own = [sequence.new_ones(len(sequence), dtype=torch.bool) for sequence in sequences]
    padded, there = (pad_sequence(list(rows), batch_first=True, padding_side=side) for rows in (sequences, own))
    return padded, there
