"""Trains a model of the panel and writes a complete checkpoint.

    python -m tests.worlds.panel.train NAME --out DIR --work DIR [--resume] [--steps N]

The tower first learns to see from the known contents of drawn pictures ("seeing"). Then the whole model learns to
answer ("speaking"), while the readers of the tower go on. A row holds one picture and several questions about it; a
question attends to the picture and to itself only, at the positions it would have alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..embedded.family import Place
from ..embedded.loop import Schedule, fit
from ..embedded.train import save
from ..embedded.world.pools import Dice
from .answers import Answerer
from .members import MEMBERS, Member, pixels
from .shapes import family_of
from .worlds import Pool, Question, Scene

IGNORE = -100
SEEING_STEPS, SEEING_BATCH = 350, 96
TEXT_ROWS = 2  # of a batch: facts alone
READERS_SHARE = 0.3  # weight of the readers' loss while speaking
QUESTIONS = 18  # per picture, as far as they fit
DROPPED = 25  # per cent of the wordings that lack a word
EASY, EASY_SHARE = ("count", "ground"), 30  # kinds that are learnt at once: per cent of their questions that are kept


class Readers(nn.Module):
    """Reads what a picture shows from single image tokens; what has a word is read by that word's embedding."""

    def __init__(self, member: Member, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        world = member.of_world
        self.look = nn.Linear(member.width, 7 + 5 + 4)
        self.scale = nn.Parameter(torch.tensor(3.0))
        values = tuple(str(value) for value in world.values)
        words = (world.kinds, tuple(world.colours), world.sizes, world.places, tuple(world.grounds), values)
        self.words = [[tokenizer.encode(" " + word, add_special_tokens=False) for word in group] for group in words]

    def loss(self, tokens: Tensor, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """Sum of the cross-entropies for tokens [B, n, width] and labels [B, n, 9], over the tables of embeddings."""
        losses = []
        for number, part in enumerate(self.look(tokens).split([7, 5, 4], -1)):
            losses.append(
                functional.cross_entropy(part.flatten(0, 1), labels[:, :, number].flatten(), ignore_index=IGNORE)
            )
        for table, (number, group) in product(embeddings, enumerate(self.words)):
            if group:
                words = torch.stack([table[ids].mean(0) for ids in group])
                part = self.scale.exp() * (tokens @ words.T) / tokens.shape[-1] ** 0.5
                truth = labels[:, :, 3 + number].flatten()
                losses.append(functional.cross_entropy(part.flatten(0, 1), truth, ignore_index=IGNORE))
        return torch.stack(losses).sum()


def labels(member: Member, scenes: list[Scene]) -> Tensor:
    """What each image token shows, [B, tokens, 9]: look (3), kind, colour, size, place, ground and value."""
    world, k = member.of_world, member.side // member.token_side
    found = np.full((len(scenes), k * k, 9), IGNORE)
    centres = (np.arange(k) + 0.5) * member.token_side
    y, x = (grid.ravel() for grid in np.meshgrid(centres, centres, indexing="ij"))
    for row, scene in zip(found, scenes, strict=True):
        row[:, 0], row[:, 7] = 6, scene.ground
        for thing in scene.things:
            at_x, at_y, radius = world.spot(thing, member.side)
            far = np.maximum(abs(x - at_x), abs(y - at_y))
            inside = (far < radius) | (far == far.min())
            kind = thing.kind if thing.kind < len(world.kinds) else IGNORE
            row[inside, :7] = [*world.looks[thing.kind], kind, thing.colour, thing.size, thing.place]
            row[inside, 8] = thing.value if world.values else IGNORE
    return torch.from_numpy(found)


@dataclass(frozen=True)
class Rows:
    """Packed rows, [B, L] but `positions` [axes, B, L] and `mask` [B, 1, L, L]; `kinds` names the kind of question of
    each learnt answer."""

    ids: Tensor
    positions: Tensor
    labels: Tensor
    weights: Tensor
    mask: Tensor
    kinds: list[list[tuple[str, int, int]]]


class Writer:
    """Turns scenes and facts into rows."""

    def __init__(self, member: Member, tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> None:
        self.member, self.end = member, tokenizer.eos_token_id
        family = family_of(member)
        self.prompt = family.prompt
        self.encode = lru_cache(100_000)(lambda text: list(tokenizer.encode(text, add_special_tokens=False)))
        self.image = [model.config.image_token_id] * member.tokens
        self.image_places = lru_cache(lambda start: family.image_places(model, start))
        self.axes = len(self.image_places(0)[0][0])
        self.length = member.tokens + member.room

    def places(self, start: int, n: int) -> list[Place]:
        """Positions of `n` tokens of text."""
        return [(place,) * self.axes for place in range(start, start + n)]

    def picture(self) -> tuple[list[int], list[Place], int]:
        """What all questions about a picture share: its tokens, their positions, and the position of the next."""
        prompt = self.prompt
        text = self.encode(prompt.start + ("" if prompt.image_first else prompt.opening + prompt.before_image))
        image, after = self.image_places(0 if prompt.image_first else len(text))
        if prompt.image_first:
            return [*self.image, *text], [*image, *self.places(after, len(text))], after + len(text)
        return [*text, *self.image], [*self.places(0, len(text)), *image], after

    def rows(self, asked: list[list[Question]], pictured: int, dice: Dice) -> Rows:
        """One row per list of questions; the first `pictured` ones are about a picture."""
        n, length = len(asked), self.length
        ids, segments = np.zeros((n, length), np.int64), np.full((n, length), -1)
        positions = np.zeros((n, length, self.axes), np.int64)
        truth, weights = np.full((n, length), IGNORE), np.zeros((n, length), np.float32)
        kinds: list[list[tuple[str, int, int]]] = [[] for _ in asked]
        alone: tuple[list[int], list[Place], int] = ([], [], 0)
        for row, questions in enumerate(asked):
            prefix, places, begin = self.picture() if row < pictured else alone
            before = self.prompt.after_image if row < pictured else self.prompt.start + self.prompt.opening
            at = len(prefix)
            ids[row, :at], segments[row, :at] = prefix, 0
            positions[row, :at] = np.reshape(places, (at, self.axes))
            for segment, question in enumerate(questions, 1):
                prompt = self.encode(before + self.wording(question, dice) + self.prompt.asking)
                answer = [*self.encode(" " + question.answer), self.end]
                both, stop = [*prompt, *answer], at + len(prompt) + len(answer)
                if stop > length:
                    continue
                ids[row, at:stop], segments[row, at:stop] = both, segment
                positions[row, at:stop] = self.places(begin, len(both))
                start = at + len(prompt)
                truth[row, start:stop], weights[row, start:stop] = answer, len(answer) ** -0.5
                kinds[row].append((question.kind, start, stop))
                at = stop
        parts = torch.from_numpy(segments)
        same = (parts[:, :, None] == parts[:, None, :]) | (parts[:, None, :] == 0)
        allowed = same & torch.ones(length, length, dtype=torch.bool).tril()
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)[:, None]
        tensor = torch.from_numpy
        return Rows(tensor(ids), tensor(positions).permute(2, 0, 1), tensor(truth), tensor(weights), mask, kinds)

    def wording(self, question: Question, dice: Dice) -> str:
        """A wording of training; some lack a word, so that other wordings are understood too."""
        words = question.trained(dice.below(60)).split(" ")
        left_out = dice.below(len(words))
        needed = " ".join(question.slots.values())
        if dice.chance(DROPPED) and len(words) > 3 and words[left_out].strip("?.,:") not in needed:
            del words[left_out]
        return " ".join(words)

    def batch(self, pool: Pool, step: int) -> tuple[Rows, list[Scene], list[int]]:
        """The rows, scenes and variants of a training step."""
        world, member = self.member.of_world, self.member
        indices = range(step * member.pictures, (step + 1) * member.pictures)
        scenes = [world.scene(pool, index) for index in indices]
        dice = Dice(world.number, 7, pool, step)
        asked = []
        for scene in scenes:
            different = {(q.kind, *q.slots.values()): q for q in world.turns(scene, dice, QUESTIONS)}
            asked.append([q for q in different.values() if q.kind not in EASY or dice.chance(EASY_SHARE)])
        asked += [dice.some(world.known_facts, 10) for _ in range(TEXT_ROWS)]
        return self.rows(asked, len(scenes), dice), scenes, [index % 4 for index in indices]


class Learner(nn.Module):
    """The model and its readers."""

    def __init__(self, member: Member, model: PreTrainedModel, readers: Readers, writer: Writer) -> None:
        super().__init__()
        self.member, self.model, self.readers, self.writer = member, model, readers, writer
        self.family = family_of(member)

    def seen(self, scenes: list[Scene], variants: list[int]) -> tuple[Tensor, Tensor]:
        """Image tokens and the readers' loss."""
        tokens = self.family.see(self.model, pixels(self.member, scenes, variants)).tokens
        tables = [self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight]
        return tokens, self.readers.loss(tokens, tables[: 2 - self.member.tied], labels(self.member, scenes))

    def logits(self, rows: Rows, tokens: Tensor) -> Tensor:
        """Logits at the positions that predict a token of an answer."""
        embeddings = self.model.get_input_embeddings()(rows.ids)
        embeddings = embeddings.masked_scatter((rows.ids == self.model.config.image_token_id)[:, :, None], tokens)
        last = self.family.speak(self.model, embeddings, rows.mask, rows.positions, []).last
        logits: Tensor = self.model.get_output_embeddings()(last[:, :-1][rows.labels[:, 1:] != IGNORE])
        return logits

    def seeing(self, step: int) -> Tensor:
        """Loss of the first stage."""
        world = self.member.of_world
        indices = range(10_000_000 + step * SEEING_BATCH, 10_000_000 + (step + 1) * SEEING_BATCH)
        return self.seen([world.scene(Pool.SEEING, index) for index in indices], [i % 4 for i in indices])[1]

    def speaking(self, step: int) -> Tensor:
        """Loss of the second stage."""
        rows, scenes, variants = self.writer.batch(Pool.TRAINING, step)
        n, world = len(scenes), self.member.of_world
        also = [world.scene(Pool.SEEING, step * n + i) for i in range(n)]
        tokens, reading = self.seen([*scenes, *also], [*variants, *variants])
        learnt = rows.labels[:, 1:] != IGNORE
        losses = functional.cross_entropy(self.logits(rows, tokens[:n]), rows.labels[:, 1:][learnt], reduction="none")
        weights = rows.weights[:, 1:][learnt]
        return (losses * weights).sum() / weights.sum() + READERS_SHARE * reading

    @torch.no_grad()
    def check(self, step: int) -> str:
        """Share of answers of which every token is predicted right, by kind."""
        right: dict[str, list[bool]] = defaultdict(list)
        for number in range(8):
            rows, scenes, variants = self.writer.batch(Pool.SCORE, number)
            tokens = self.seen(scenes * 2, variants * 2)[0][: len(scenes)]
            learnt = rows.labels != IGNORE
            best = torch.full(rows.labels.shape, IGNORE)
            best[learnt] = self.logits(rows, tokens).argmax(-1)
            for row, spans in enumerate(rows.kinds):
                for kind, start, stop in spans:
                    right[kind].append(bool((best[row, start:stop] == rows.labels[row, start:stop]).all()))
        parts = [f"{kind} {100 * sum(each) / len(each):.0f}" for kind, each in sorted(right.items())]
        return f"{self.member.name} after {step}: " + ", ".join(parts)


def score(folder: Path, member: Member, scenes: int = 250) -> dict[str, float]:
    """Exact greedy answers in per cent by kind of question, in trained and in unseen wordings, and overall."""
    world, answerer = member.of_world, Answerer(folder, member)
    shown, asked = [], []
    for index in range(scenes):
        scene, dice = world.scene(Pool.SCORE, 10_000 + index), Dice(world.number, 8, index)
        for kind in world.asks:
            question = world.ask(scene, kind, dice)
            if question is not None:
                shown.append(scene)
                asked.append(question)
    drawn = pixels(member, shown, [0] * len(shown))
    result: dict[str, float] = {}
    for label, texts in (
        ("", [question.trained(i) for i, question in enumerate(asked)]),
        (", unseen wording", [question.unseen(i) for i, question in enumerate(asked)]),
    ):
        said = answerer.answers(texts, drawn)
        right = [answer == question.answer for answer, question in zip(said, asked, strict=True)]
        result["overall" + label] = 100 * float(np.mean(right))
        for kind in world.asks:
            each = [good for good, question in zip(right, asked, strict=True) if question.kind == kind]
            result[kind + label] = 100 * float(np.mean(each))
    facts = world.known_facts
    said = answerer.answers([fact.trained(i) for i, fact in enumerate(facts)], None)
    result["fact"] = 100 * float(np.mean([answer == fact.answer for answer, fact in zip(said, facts, strict=True)]))
    return {kind: round(value, 1) for kind, value in result.items()}


def main() -> None:
    """Train, write the checkpoint and its accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(MEMBERS))
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--work", type=Path, required=True, help="folder for the state that --resume needs")
    parser.add_argument("--resume", action="store_true", help="continue from the state in --work")
    parser.add_argument("--steps", type=int, default=0, help="of the second stage; default: as in the table")
    arguments = parser.parse_args()
    member, work = MEMBERS[arguments.name], arguments.work / arguments.name
    if work.exists() and not arguments.resume:
        shutil.rmtree(work)
    began = time.process_time()
    family = family_of(member)
    tokenizer = family.tokenizer()
    model = family.model(tokenizer)
    readers = Readers(member, tokenizer)
    print(
        f"{member.name}: {sum(p.numel() for p in model.parameters()):,} parameters, {member.tokens} image tokens",
        flush=True,
    )
    learner = Learner(member, model, readers, Writer(member, tokenizer, model))
    steps = arguments.steps or member.steps
    fit("seeing", learner, learner.seeing, Schedule(SEEING_STEPS, 2e-3, 60), work)
    schedule = Schedule(steps, member.rate, 100, member.horizon)
    fit("speaking", learner, learner.speaking, schedule, work, learner.check, 200)
    save(model, family.processor(tokenizer), arguments.out, getattr(torch, member.precision))
    accuracy = score(arguments.out, member)
    minutes = (time.process_time() - began) / 60
    print(json.dumps({"name": member.name, "core_minutes": round(minutes, 1), "accuracy": accuracy}), flush=True)


if __name__ == "__main__":
    main()
