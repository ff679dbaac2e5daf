"""The training of SERAC's networks on a pool of corrections.

Mitchell et al. 2022 (SERAC), in the form that LiveEdit (Chen et al. 2025) compares with: per batch of corrections the
NLL of the targets under the counterfactual network, its KL from the base on locality questions, and the scope
encoder's classification of every question, all in one step of Adam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from more_cli.editors.base import FitData
from more_cli.editors.draws import noise, pick
from more_cli.model.runtime import Runtime
from more_lab.editors.fitting import Watch, train
from more_lab.editors.serac.examples import Question, Record, read_records
from more_lab.editors.serac.nets import Counterfactual, ScopeEncoder, SeracNets, Words, similarity
from more_lab.editors.serac.tuning import SeracTuning

T = TypeVar("T")
CLIP = 1.0
"""Largest norm of a step's gradient."""
_ORDER, _DRAWS = range(2)


@dataclass(frozen=True)
class Drawn:
    """What one record gives to a step: its own question, one of its others, and one of its locality questions.

    The published loss has all of them in every step.
    """

    edit: Words
    near: Sequence[Question]
    far: Sequence[tuple[Question, Tensor]]
    variant: int
    """Which of the record's targets: 0 its own, from 1 the random ones."""

    @classmethod
    def of(cls, record: Record, which: float, target: float, variants: int) -> Self:
        """Draw by two numbers in [0, 1); every second record gets a random target."""
        own, *others = record.questions
        variant = 1 + int(2 * target * variants) if target < 0.5 and variants else 0
        return cls(own.words(variant), [own, *_one(others, which)], _one(record.locality, which), variant)


def _one(items: Sequence[T], draw: float) -> Sequence[T]:
    return [items[int(draw * len(items))]] if items else []


def learn(runtime: Runtime, nets: SeracNets, data: FitData, tuning: SeracTuning) -> dict[str, Any]:
    """Train both networks, and return how far the training came."""
    records = read_records(runtime, data, data.edits, tuning)
    watched = read_records(runtime, data, data.watched, tuning)
    optimiser = torch.optim.Adam(nets.parameters(), lr=tuning.rate)

    def batch_of(records: Sequence[Record], seed: int, number: int, variants: int) -> list[Drawn]:
        places = pick(len(records), min(tuning.batch, len(records)), seed, _ORDER, number)
        draws = noise((seed, _DRAWS, number), 2 * len(places)).reshape(2, -1).tolist()
        drawn = zip([records[place] for place in places], *draws, strict=True)
        return [Drawn.of(record, which, target, variants) for record, which, target in drawn]

    def loss_of(batch: Sequence[Drawn]) -> Tensor:
        answered = counterfactual_loss(runtime, nets.counterfactual, batch, tuning.locality)
        return answered + scope_loss(nets.scope, batch, tuning.none)

    def trained_on(iteration: int) -> Tensor:
        return loss_of(batch_of(records, tuning.seed, iteration, tuning.variants))

    def held_out(number: int) -> Tensor:
        # Their own targets, since those are what an edit asks for.
        return loss_of(batch_of(watched, tuning.seed + 1, number, 0))

    watch = Watch.of_batches(held_out) if watched else None
    return train(data, nets, optimiser, tuning.iterations, trained_on, clip=CLIP, watch=watch)


def counterfactual_loss(runtime: Runtime, net: Counterfactual, batch: Sequence[Drawn], locality: float) -> Tensor:
    """Return the mean NLL of the targets, and the weighted mean KL from the base, in nats per token."""
    near = [(drawn.edit, question.words(drawn.variant)) for drawn in batch for question in drawn.near]
    far = [(drawn.edit, question.words()) for drawn in batch for question, _ in drawn.far]
    targets = [question.targets[drawn.variant] for drawn in batch for question in drawn.near]
    bases = [base for drawn in batch for _, base in drawn.far]
    edits, asked = zip(*near, *far, strict=True)
    last = 1 + max(words.answer for words in asked)
    hidden = net(edits, asked, last)
    predicting = [row[last - 1 - words.answer : -1] for row, words in zip(hidden, asked, strict=True)]
    # One position a row: the model's own norm and head see each position alone.
    logits = runtime.finish(torch.cat(predicting)[:, None])[:, 0].float()
    answers = torch.split(logits, [len(row) for row in predicting])
    nll = [cross_entropy(row, ids) for row, ids in zip(answers[: len(near)], targets, strict=True)]
    if not far:
        return torch.stack(nll).mean()
    # KL(base || edited), the direction in which locality is measured.
    away = [
        kl_div(row.log_softmax(-1), base, log_target=True, reduction="sum") / len(row)
        for row, base in zip(answers[len(near) :], bases, strict=True)
    ]
    return torch.stack(nll).mean() + locality * torch.stack(away).mean()


def scope_loss(net: ScopeEncoder, batch: Sequence[Drawn], none: float) -> Tensor:
    """Return the mean cross-entropy of every question's correction among the batch's, or of "none of them".

    A correction is encoded with its target, a question without. "None" competes for the corrections' own questions
    too, which the published loss leaves out: there nothing lifts them above the threshold.
    """
    near = [(question.prompt, place) for place, drawn in enumerate(batch) for question in drawn.near]
    far = [(question.prompt, len(batch)) for drawn in batch for question, _ in drawn.far]
    asked, classes = zip(*near, *far, strict=True)
    # One pass over all: the encoder treats them alike.
    found = net([*(drawn.edit.embeddings for drawn in batch), *asked])
    close = similarity(found[len(batch) :], found[: len(batch)])
    logits = torch.cat([close, close.new_full((len(asked), 1), none)], dim=1)
    return cross_entropy(logits, torch.tensor(classes, device=logits.device))
