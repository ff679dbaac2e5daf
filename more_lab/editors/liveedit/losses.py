"""How the networks of LiveEdit are trained: six losses on batches of corrections whose hidden states are cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from more_cli.editors.draws import noise
from more_cli.evaluation.probes import other_pictures, other_wordings
from more_cli.inputs.edits import Edit
from more_cli.model.batches import Query
from more_cli.model.scored import Scored
from more_lab.editors.liveedit.experts import ExpertNet, Mixture, Reps, similarities, soft_weights

KINDS = 4
"""Inputs of a record: the request, its text rephrase, its image rephrase and an unrelated question with an image."""
LOCALITY = 3
"""The unrelated question's place among them."""

Score = Callable[[Sequence[int], Sequence[Mixture | None] | None], Scored]
"""Scores samples, by their places, under these mixtures; as the base and without gradients if there are none."""


def inputs_of(edit: Edit) -> list[tuple[Query, str]]:
    """Return a correction's inputs with their answers, in the order of `KINDS`.

    Empty if it lacks an image, a rephrase or an answered question about another image; text alone is not used, as in
    the published code. Of several rephrases or questions the first counts.
    """
    unrelated = [(Query.of(other), other.answer) for other in edit.locality if other.images]
    answered = [(query, answer) for query, answer in unrelated if answer is not None]
    if not (edit.images and edit.rephrases and edit.image_rephrases and answered):
        return []
    return [
        (Query.of(edit), edit.target),
        (other_wordings(edit)[0], edit.target),
        (other_pictures(edit)[0], edit.target),
        answered[0],
    ]


@dataclass(frozen=True)
class Draw:
    """The random choices of one iteration."""

    records: list[int]
    """B records, in random order."""
    prefixes: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    """(3, B): for request, rephrases and unrelated question, how many of the batch's first experts join its own."""
    near: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    """(2, B): pairs of kinds of the same neighbourhood: both about the correction, or both the unrelated question."""
    apart: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    """(2, B): pairs of kinds of which one is about the correction, and one is the unrelated question."""

    @staticmethod
    def of(count: int, batch: int, seed: int, iteration: int) -> Draw:
        """Draw for an iteration; nothing else decides it."""
        size = min(batch, count)
        records = np.argsort(noise((seed, iteration, 0), count), kind="stable")[:size].tolist()
        lengths, kinds, sides = (noise((seed, iteration, n), 5 * size).reshape(5, size) for n in (1, 2, 3))
        about = np.where(kinds[:2] < 1 / 2, 0, np.where(kinds[2:4] < 1 / 2, 1, 2))  # as often the request as a rephrase
        near = np.where(sides[0] < 1 / 3, LOCALITY, about)
        first = sides[1] < 1 / 2
        apart = np.stack([np.where(first, about[0], LOCALITY), np.where(first, LOCALITY, about[1])])
        return Draw(records, (lengths[:3] * (size + 1)).astype(np.int64), near, apart)


def loss_of(net: ExpertNet, draw: Draw, reps: Callable[[Sequence[int]], Reps], score: Score) -> Tensor:
    """Return the sum of LiveEdit's losses, all of weight 1, on one batch.

    `reps` returns the hidden states of samples: sample 4 r + k is input k of record r.
    """
    size = len(draw.records)
    # Ordered by kind: row k B + i is input k of the batch's record i.
    samples = [KINDS * record + kind for kind in range(KINDS) for record in draw.records]
    shown = reps(samples)
    requests = reps(samples[:size])
    experts = net.experts(requests)
    asked, known = net.of_input(shown), net.of_edit(shown)
    scores = similarities(asked.text, experts.features.text)
    rows = [(kind, i) for kind in range(KINDS) for i in range(size)]
    mixtures = list[Mixture | None]()
    for row, (kind, i) in enumerate(rows):
        chosen = set(range(draw.prefixes[(0, 1, 1, 2)[kind], i])) | ({i} if kind != LOCALITY else set())
        picked = torch.tensor(sorted(chosen), dtype=torch.long, device=scores.device)
        weights = soft_weights(scores[row, picked])
        mixtures.append(Mixture(weights, experts.keys[picked], experts.values[picked]) if chosen else None)
    edited = score(samples, mixtures)
    learnt = edited[: LOCALITY * size].nll().view(LOCALITY, size).mean(1).sum()  # L_rel, and L_gen twice
    base = score(samples[LOCALITY * size :], None)
    unmoved = divergence(edited[LOCALITY * size :], base)
    every, sentinel = (asked.vision, asked.text), net.sentinel_scores(shown, asked.vision)

    def of(kinds: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[Tensor]:
        return [torch.as_tensor(row * size + np.arange(size), device=scores.device) for row in kinds]

    (ask, edit), (far, other) = of(draw.near), of(draw.apart)
    soft = soft_routing(similarities(every[1][ask], known.text[edit]))
    near = torch.cat([similarities(every[0][ask], known.vision[edit]), sentinel[ask]], 1)
    apart = torch.cat([similarities(every[0][far], known.vision[other]), sentinel[far]], 1)
    own = torch.arange(size, device=scores.device)
    return learnt + unmoved + soft + cross_entropy(near, own) + cross_entropy(apart, torch.full_like(own, size))


def divergence(edited: Scored, base: Scored, *, from_base: bool = False) -> Tensor:
    """Return KL(edited || base), or KL(base || edited) `from_base`, averaged over the batch, in nats per token.

    The mean over the positions of the base's answers.
    """
    # The edited rows come from a batch whose longest answer may be longer.
    log_p, log_q = edited.log_probabilities()[:, -base.mask.shape[1] :], base.log_probabilities()
    if from_base:
        log_p, log_q = log_q, log_p
    each = (log_p.exp() * (log_p - log_q)).sum(-1) * base.mask
    return (each.sum(1) / base.mask.sum(1)).mean()


def soft_routing(scores: Tensor) -> Tensor:
    """Return the losses of scores (B, B) whose diagonal is right: relative, and by itself against the next column."""
    right = torch.arange(len(scores), device=scores.device)
    wrong = scores.roll(1, 1).diagonal()
    return cross_entropy(scores, right) - (logsigmoid(scores.diagonal()) + logsigmoid(-wrong)).mean()
