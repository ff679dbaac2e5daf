"""Stage 2: the whole model learns to answer, many questions a picture at the price of one.

A row holds one picture and several questions about it. Every question sees the picture and itself but no
other question, and its positions go on from the picture's: exactly what it sees when it is asked alone.
Text-only prompts are packed the same way, without a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from families import SYSTEM_PROMPTS, Family
from llama import llama_hidden
from loop import Schedule, fit
from perception import Heads, labels, pixels
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from more_cli.demo.emblems import KNOWN
from more_cli.demo.episodes import KINDS, Episode, episode
from more_cli.demo.facts import facts
from more_cli.demo.language import ask, kinds_for
from more_cli.demo.pools import Dice, Pool, Purpose
from more_cli.demo.world import Scene, emblem_scene, scene, text_scene

PICTURES = 24  # a batch
TEXTS = 8  # text-only rows a batch
LENGTH = 192  # tokens of a row; what no longer fits is left out
QUESTIONS = 9  # a picture
READERS_SHARE = 0.2  # of the dense losses, beside the answers'
CHECK_EVERY = 500  # steps
IGNORE = -100
NOBODY = -1  # segment of padding
PREFIX = 0  # segment everyone in the row may see


@dataclass(frozen=True)
class Lesson:
    """What differs between the rounds of this stage."""

    stage: str
    first_step: int
    """Batches are numbered from here, so that no round repeats another's pictures."""
    episodes: int
    """In a text-only row, before the facts; once the facts are known there is room for more."""
    equal: bool
    """Whether every answer has the same weight; else every token has, which captions profit from."""
    always: tuple[str, ...] = ("caption", "read", "add", "emblem")
    """Kinds asked about every picture that allows them, before random ones."""
    rich: bool = False
    """Whether seven in ten pictures show a text or an emblem; else four in ten do."""
    patches: bool = False
    """Whether single patches are read too, which makes things easy to look up by shape."""


SPEECH = Lesson("speech", 0, 2, equal=False)
PRACTICE = Lesson("practice", 100_000, 4, equal=True)
DRILL = Lesson("drill", 200_000, 4, equal=True, always=("caption", "count", "is_count", "read", "add", "emblem"))
# Whether a text, a sum or a name is the one in the picture takes longest to learn.
COMPARISONS = ("place", "exist", *("is_text",) * 2, *("is_sum",) * 3, *("is_emblem",) * 3)
COMPARE = Lesson("compare", 300_000, 3, equal=True, always=COMPARISONS, rich=True)
FINISH = Lesson("finish", 400_000, 3, equal=True, always=("count", *COMPARISONS), rich=True, patches=True)
# What was still below the others: numbers held against what is seen, and colors.
WEAKEST = ("is_sum",) * 3 + ("add",) + ("is_count",) * 3 + ("count", "color", "is_emblem", "caption")
POLISH = Lesson("polish", 500_000, 3, equal=True, always=WEAKEST, rich=True, patches=True)


@dataclass
class Row:
    """Tokens of one row with their segment, position and label (the token itself where it is an answer)."""

    ids: list[int]
    segments: list[int]
    positions: list[int]
    labels: list[int]
    weights: list[float]
    """Of each token in the loss: by `equal` an answer counts as much as any other, else a token does."""
    equal: bool = False

    def add(self, ids: list[int], segment: int, start: int, answer: int) -> None:
        """Appends a piece whose last `answer` tokens are to be learnt, if it still fits."""
        if len(self.ids) + len(ids) > LENGTH:
            return
        self.ids += ids
        self.segments += [segment] * len(ids)
        self.positions += range(start, start + len(ids))
        self.labels += [IGNORE] * (len(ids) - answer) + ids[len(ids) - answer :]
        self.weights += [1 / answer if self.equal and answer else 1.0] * len(ids)


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right: ids, positions, labels, weights [B, L]; mask [B, 1, L, L], 0 or a large negative.

    The first rows show the scenes, drawn as `pixels`; the others are text alone.
    """

    ids: Tensor
    positions: Tensor
    labels: Tensor
    weights: Tensor
    mask: Tensor
    pixels: Tensor
    scenes: list[Scene]


class Writer:
    """Turns scenes and texts into rows of tokens in a family's prompt."""

    def __init__(self, family: Family, tokenizer: PreTrainedTokenizerFast, image_tokens: int, image_token: int) -> None:
        self.family = family
        self.tokenizer = tokenizer
        self.image = [image_token] * image_tokens
        self.encode = lru_cache(maxsize=200_000)(self._encode)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def opening(self, dice: Dice) -> list[int]:
        """The prompt before the picture or the question, one in ten behind a system prompt."""
        system = self.family.system(dice.pick(SYSTEM_PROMPTS)) if dice.chance(10) else ""
        return [self.tokenizer.bos_token_id, *self.encode(system + self.family.opening)]

    def turn(self, before: str, prompt: str, answer: str, dice: Dice) -> tuple[list[int], int]:
        """Question and answer as tokens, and how many of them are the answer with its end."""
        if dice.chance(6):
            prompt = f"Question: {prompt} Short answer:"
        said = [*self.encode(" " + answer), self.tokenizer.eos_token_id]
        return [*self.encode(before + prompt + self.family.asking), *said], len(said)

    def picture_row(self, about: Scene, dice: Dice, lesson: Lesson) -> Row:
        """One picture, QUESTIONS questions and in every second row an episode."""
        row = Row([], [], [], [], [], lesson.equal)
        row.add(self.opening(dice) + self.image, PREFIX, 0, 0)
        start = len(row.ids)
        for number, (prompt, answer) in enumerate(_turns(about, dice, lesson)):
            ids, learnt = self.turn("\n", prompt, answer, dice)
            row.add(ids, number + 1, start, learnt)
        return row

    def text_row(self, dice: Dice, lesson: Lesson) -> Row:
        """Episodes, the first now and then with worked examples, and facts, as many as fit."""
        row = Row([], [], [], [], [], lesson.equal)
        examples = [dice.pick((0, 0, 0, 0, 1, 1, 2, 3))] + [0] * (lesson.episodes - 1)
        turns = [_prompt(episode(dice, Pool.TRAIN, dice.pick(KINDS), None, n)) for n in examples]
        for fact in dice.some(facts(), 6):
            turns.append((fact.wording(dice), fact.answer))
        for number, (prompt, answer) in enumerate(turns):
            opening = self.opening(dice)
            ids, learnt = self.turn("", prompt, answer, dice)
            row.add(opening + ids, number + 1, 0, learnt)
        return row


def _prompt(item: Episode) -> tuple[str, str]:
    return item.prompt, item.answer


def _turns(about: Scene, dice: Dice, lesson: Lesson) -> list[tuple[str, str]]:
    """The lesson's questions, random ones, and in every second row an episode."""
    kinds = kinds_for(about)
    wanted = [kind for kind in lesson.always if kind in kinds]
    wanted += [dice.pick(kinds) for _ in range(QUESTIONS - len(wanted))]
    turns = []
    for kind in wanted:
        question = ask(about, kind, dice)
        if question is not None:
            turns.append((question.wording(dice), question.answer))
    if dice.chance(50):
        turns.insert(1, _prompt(episode(dice, Pool.TRAIN, dice.pick(KINDS), about)))
    return turns


def _shown(index: int, rich: bool) -> Scene:
    if rich and index % 4 == 0:
        return text_scene(Pool.TRAIN, index)
    if rich and index % 4 == 1:
        return emblem_scene(Pool.TRAIN, index, index // 4 % KNOWN)
    return scene(Pool.TRAIN, index)


def collate(rows: list[Row], scenes: list[Scene], pad: int) -> Batch:
    """Pads rows and builds the mask that keeps questions apart."""

    def padded(values: list[list[int]] | list[list[float]], fill: float) -> Tensor:
        return torch.tensor([value + [fill] * (LENGTH - len(value)) for value in values])

    segments = padded([row.segments for row in rows], NOBODY)
    same = (segments[:, :, None] == segments[:, None, :]) | (segments[:, None, :] == PREFIX)
    allowed = same & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return Batch(
        ids=padded([row.ids for row in rows], pad),
        positions=padded([row.positions for row in rows], 0),
        labels=padded([row.labels for row in rows], IGNORE),
        weights=padded([row.weights for row in rows], 0.0),
        mask=torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)[:, None],
        pixels=pixels(scenes, lambda index: 1 + index % 3),
        scenes=scenes,
    )


def batch(writer: Writer, step: int, lesson: Lesson) -> Batch:
    """The rows of a training step, counted over all rounds."""
    rows, scenes = [], [_shown(step * PICTURES + i, lesson.rich) for i in range(PICTURES)]
    for about in scenes:
        rows.append(writer.picture_row(about, Dice(Purpose.QUESTIONS, Pool.TRAIN, about.index), lesson))
    for i in range(TEXTS):
        rows.append(writer.text_row(Dice(Purpose.EPISODE, Pool.TRAIN, step * TEXTS + i), lesson))
    return collate(rows, scenes, writer.tokenizer.pad_token_id)


class Learner(nn.Module):
    """The whole model with the readers of stage 1, which go on teaching the tower."""

    def __init__(self, model: LlavaForConditionalGeneration, family: Family, heads: Heads) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.heads = heads

    def loss(self, data: Batch, patches: bool) -> Tensor:
        """Weighted mean negative log-likelihood of the answers' tokens, plus a share of the readers' losses."""
        model = self.model
        ids, positions, labelled, mask, drawn = (
            tensor.to(model.device) for tensor in (data.ids, data.positions, data.labels, data.mask, data.pixels)
        )
        embeddings = model.get_input_embeddings()(ids)
        seen = self.family.see(model, drawn)
        at_image = ids == model.config.image_token_id
        embeddings = embeddings.masked_scatter(at_image[:, :, None], model.model.multi_modal_projector(seen))
        hidden = llama_hidden(model.model.language_model, embeddings, mask, positions)
        targets = labelled[:, 1:]
        learnt = targets != IGNORE
        said = functional.cross_entropy(model.lm_head(hidden[:, :-1][learnt]), targets[learnt], reduction="none")
        weights = data.weights[:, 1:].to(model.device)[learnt]
        read = self.heads.losses(seen, labels(data.scenes), patches)
        return (said * weights).sum() / weights.sum() + READERS_SHARE * read


def learn_to_answer(
    lesson: Lesson, learner: Learner, writer: Writer, schedule: Schedule, folder: Path, check: Callable[[int], str]
) -> None:
    """Trains all of the model; the tower moves too, so that it serves the questions."""

    def loss_of(step: int) -> Tensor:
        return learner.loss(batch(writer, lesson.first_step + step, lesson), lesson.patches)

    fit(lesson.stage, learner, loss_of, schedule, folder, check, CHECK_EVERY)
