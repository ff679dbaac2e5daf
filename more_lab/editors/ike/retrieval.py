"""Finding a stored fact by a question: keys of questions from the untouched base, and a threshold of similarity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize

from more_cli.evaluation.probes import other_pictures, other_wordings
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Encoded, Query
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers
from more_cli.model.taps import Side

READ = 32
"""Questions that are encoded at a time: their pixels are in memory together."""
OWN = 0.999
"""Highest threshold: a fact's own question has the similarity 1, up to rounding."""


class Reader:
    """Reads what the untouched base makes of a question halfway: mean states of its text and of its images.

    The text is read with the image in view, so its mean says what is asked about this image.
    """

    def __init__(self, runtime: Runtime, depth: float) -> None:
        layers = text_layers(runtime.model, runtime.backbone)
        self.layer, self.layers = max(1, int(depth * len(layers))), len(layers)
        self._place: tuple[str, Side] = layers[self.layer - 1], "output"
        self._image = getattr(runtime.model.config, "image_token_id", -1)
        self._runtime = runtime

    def read(self, queries: Sequence[Query]) -> Tensor:
        """Return (N, 2, d) float32 means over the tokens of the text and of the images, zeros without images.

        Either all questions have images or none has: some families need another model for the latter.
        """
        starts = range(0, len(queries), READ)
        return torch.cat([self._read(queries[start : start + READ]) for start in starts])

    def _read(self, queries: Sequence[Query]) -> Tensor:
        with self._runtime.base():
            encoded = [self._runtime.encode(query) for query in queries]
            found = self._runtime.read(encoded, [self._place])
        return torch.stack([self._means(*pair) for pair in zip(encoded, (row[0] for row in found), strict=True)])

    def _means(self, encoded: Encoded, hidden: Tensor) -> Tensor:
        hidden, image = hidden.cpu(), encoded.answering[0] == self._image
        seen = hidden[image].mean(dim=0) if image.any() else hidden.new_zeros(hidden.shape[1])
        return torch.stack([hidden[~image].mean(dim=0), seen])


def keys(readings: Tensor, centres: Tensor, shown: bool) -> Tensor:
    """Return unit keys (N, 2 d) of readings (N, 2, d); their dot product is the mean cosine of text and image.

    Mean states share a large common part, so each is taken relative to its mean over many questions of its sort,
    `centres` (2, 2, d): those without images, then those with. Without images the key is that of the text alone.
    """
    parts = normalize(readings - centres[int(shown)], dim=-1)
    if not shown:
        parts[:, 1] = 0
    return normalize(parts.flatten(1), dim=-1)


@dataclass
class Asked:
    """The questions of some records that all have images, or all have none."""

    shown: bool
    own: list[Query] = field(default_factory=list)
    """One per record: what its fact is stored under."""
    inside: list[tuple[int, Query]] = field(default_factory=list)
    """The same in other words or with another image, with the record's index."""
    outside: list[tuple[int, Query]] = field(default_factory=list)
    """What a record must not answer."""


def asked_of(edits: Sequence[Edit], shown: bool) -> Asked:
    """Return the questions with images, or without, of the edits that are stored under such a question."""
    asked = Asked(shown)
    for edit in edits:
        if bool(edit.images) == shown:
            place = len(asked.own)
            asked.own.append(Query.of(edit))
            asked.inside += [(place, query) for query in other_wordings(edit)]
            asked.inside += [(place, query) for query in other_pictures(edit) if shown]
            locality = [probe for probe in edit.locality if bool(probe.images) == shown]
            asked.outside += [(place, Query.of(probe)) for probe in locality]
    return asked


def similarities(asked: Asked, reader: Reader, centres: Tensor, facts: int) -> tuple[Tensor, Tensor]:
    """Return the similarity that each inside and each outside question finds among `facts` stored records.

    An inside question that finds another record than its own counts as finding none, -inf.
    """
    if not asked.own:
        return torch.empty(0), torch.empty(0)
    own = keys(reader.read(asked.own), centres, asked.shown)
    inside, outside = list[Tensor](), list[Tensor]()
    for found, kept in ((inside, asked.inside), (outside, asked.outside)):
        if not kept:
            continue
        read = keys(reader.read([query for _, query in kept]), centres, asked.shown)
        for start in range(0, len(own), facts):
            stored = own[start : start + facts]
            rows = [row for row, (place, _) in enumerate(kept) if start <= place < start + facts]
            similar = read[rows] @ stored.T
            best = similar.amax(dim=1)
            if found is inside:
                wanted = torch.tensor([kept[row][0] - start for row in rows])
                best = best.masked_fill(similar.argmax(dim=1) != wanted, -torch.inf)
            found.append(best)
    return torch.cat([torch.empty(0), *inside]), torch.cat([torch.empty(0), *outside])


@dataclass(frozen=True)
class Threshold:
    """Similarity from which a fact is found, and its result on the questions that it was chosen on."""

    value: float
    found: float
    """Share of the inside questions that find their fact."""
    left_alone: float
    """Share of the outside questions that find none."""


def best_threshold(inside: Tensor, outside: Tensor, reach: float) -> Threshold:
    """Return the threshold with the largest `reach * found + (1 - reach) * left_alone`, of equal ones the lowest.

    It lies halfway between the similarity of an inside question and that of the nearest outside one below.
    """

    def rated(value: float) -> Threshold:
        return Threshold(value, _share(inside >= value), _share(outside < value))

    def gain(found: Threshold) -> float:
        return reach * found.found + (1 - reach) * found.left_alone

    values = sorted({value for value in inside.tolist() if -1 <= value < OWN})
    best = max(map(rated, [*values, OWN]), key=gain)
    below = outside[outside < best.value]
    return rated((best.value + float(below.max())) / 2) if len(below) and best.value < OWN else best


def _share(true: Tensor) -> float:
    return float(true.float().mean()) if len(true) else 1.0


def text_alone(edits: Sequence[Edit], most: int) -> Iterator[Query]:
    """Yield at most `most` questions without images, of the edits and of what they must not change."""
    own = [Query.of(edit) for edit in edits if not edit.images]
    other = [Query.of(probe) for edit in edits for probe in edit.locality if not probe.images]
    yield from [*own, *other][:most]
