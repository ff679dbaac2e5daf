"""The training of SERAC's networks on a pool of corrections.

Mitchell et al. 2022 (SERAC), in the form that LiveEdit (Chen et al. 2025) compares with: per batch of corrections the
NLL of the targets under the counterfactual network, its KL from the base on locality questions, and the scope
encoder's classification of every question, all in one step of Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from more_cli.editors.base import FitData
from more_cli.editors.draws import noise, pick
from more_cli.editors.fitting import train
from more_cli.editors.serac.examples import Question, Record, read_records
from more_cli.editors.serac.nets import SeracNets, Words, similarity
from more_cli.editors.serac.tuning import SeracTuning
from more_cli.model.runtime import Runtime

T = TypeVar("T")
CLIP = 1.0
"""Largest norm of a step's gradient."""
_ORDER, _VARIANT, _QUESTION = range(3)


def learn(runtime: Runtime, nets: SeracNets, data: FitData, tuning: SeracTuning) -> dict[str, Any]:
    """Train both networks, and return how far the training came."""
    records = read_records(runtime, data, tuning)
    optimiser = torch.optim.Adam(nets.parameters(), lr=tuning.rate)

    def loss_of(iteration: int) -> Tensor:
        picked = pick(len(records), min(tuning.batch, len(records)), tuning.seed, _ORDER, iteration)
        draws = noise((tuning.seed, _VARIANT, iteration), len(picked))
        # Every second record is trained with a random target.
        variants = [int(2 * draw * tuning.variants) + 1 if draw < 0.5 and tuning.variants else 0 for draw in draws]
        batch, draws = [records[place] for place in picked], noise((tuning.seed, _QUESTION, iteration), len(picked))
        answering = counterfactual_loss(runtime, nets, batch, variants, draws.tolist(), tuning.locality)
        return answering + scope_loss(nets, batch, variants, tuning.none)

    return train(data, nets, optimiser, tuning.iterations, loss_of, clip=CLIP)


def counterfactual_loss(
    runtime: Runtime,
    nets: SeracNets,
    batch: Sequence[Record],
    variants: Sequence[int],
    draws: Sequence[float],
    locality: float,
) -> Tensor:
    """Return the mean NLL of targets, and the weighted mean KL from the base, in nats per token.

    Each record gives its own question, and by its draw one of its others and one of its locality questions, where the
    published loss has all of them.
    """
    pairs, targets, bases = list[tuple[Words, Words]](), list[Tensor](), list[Tensor]()
    for record, variant, draw in zip(batch, variants, draws, strict=True):
        edit, others = record.questions[0].words(variant), record.questions[1:]
        for question in (record.questions[0], *_one(others, draw)):
            pairs.append((edit, question.words(variant)))
            targets.append(question.targets[variant])
    near = len(pairs)
    for record, variant, draw in zip(batch, variants, draws, strict=True):
        for question, base in _one(record.locality, draw):
            pairs.append((record.questions[0].words(variant), question.words()))
            bases.append(base)
    edits, asked = zip(*pairs, strict=True)
    last = 1 + max(words.answer for words in asked)
    hidden = nets.counterfactual(edits, asked, last)
    predicting = [row[last - 1 - words.answer : -1] for row, words in zip(hidden, asked, strict=True)]
    # One position a row: the model's own norm and head see each position alone.
    logits = runtime.finish(torch.cat(predicting)[:, None])[:, 0].float().split([len(row) for row in predicting])
    nll = torch.stack([cross_entropy(row, ids) for row, ids in zip(logits[:near], targets, strict=True)]).mean()
    if not bases:
        return nll
    # KL(base || edited), the direction in which locality is measured.
    away = [
        kl_div(row.log_softmax(-1), base, log_target=True, reduction="sum") / len(row)
        for row, base in zip(logits[near:], bases, strict=True)
    ]
    return nll + locality * torch.stack(away).mean()


def _one(items: Sequence[T], draw: float) -> Sequence[T]:
    """Return one of some items, picked by a number in [0, 1); none of none."""
    return [items[int(draw * len(items))]] if items else []


def scope_loss(nets: SeracNets, batch: Sequence[Record], variants: Sequence[int], none: float) -> Tensor:
    """Return the cross-entropy of every question's correction among the batch's, or of "none of them".

    A correction is encoded with its target, a question without. "None" competes for the corrections' own questions
    too, which the published loss leaves out: there nothing lifts them above the threshold.
    """
    edits = [record.questions[0].words(variant).embeddings for record, variant in zip(batch, variants, strict=True)]
    asked = list[tuple[Question, int]]()
    for place, record in enumerate(batch):
        asked += [(question, place) for question in record.questions]
        asked += [(question, len(batch)) for question, _ in record.locality]
    # One pass over all: the encoder treats them alike.
    found = nets.scope([*edits, *(question.prompt for question, _ in asked)])
    close = similarity(found[len(edits) :], found[: len(edits)])
    logits = torch.cat([close, close.new_full((len(asked), 1), none)], dim=1)
    classes = torch.tensor([place for _, place in asked], device=logits.device)
    return cross_entropy(logits, classes, reduction="sum") / len(batch)
