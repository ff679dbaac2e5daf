"""Stage 2: the whole model learns to answer, many questions per picture for little more than the cost of one.

A row holds one picture and several questions about it. A question attends to the picture and to itself but not to
other questions, and its positions follow the picture's: its input is exactly that of a question asked alone.
Text-only prompts are packed in the same way, without a picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from .family import Family, Place, Seen, Spoken
from .llava import SYSTEM_PROMPTS
from .loop import Schedule, fit
from .perception import Heads, labels, pixels
from .world.emblems import KNOWN
from .world.episodes import KINDS, Episode, episode
from .world.facts import facts
from .world.language import ask, kinds_for
from .world.pools import Dice, Pool, Purpose
from .world.scenes import Scene, emblem_scene, scene, text_scene

LENGTH = 192  # tokens per row; questions that do not fit are left out
QUESTIONS = 9  # per picture
READERS_SHARE = 0.2  # weight of the dense losses; the answers' loss has weight 1
CHECK_EVERY = 300  # steps
T = TypeVar("T")
IGNORE = -100
PADDING = -1  # segment of padding
PREFIX = 0  # segment that all tokens of the row attend to


@dataclass(frozen=True)
class Lesson:
    """Settings of one round of this stage."""

    stage: str
    first_step: int
    """Number of the round's first batch; rounds share no picture."""
    episodes: int
    """Per text-only row, before the facts; rounds after the facts are learnt have more."""
    equal: bool
    """Whether every answer has the same weight; otherwise every token has, which helps captions."""
    always: tuple[str, ...] = ("caption", "read", "add", "emblem")
    """Kinds asked about every suitable picture, before random kinds."""
    rich: bool = False
    """Whether seven in ten pictures show a text or an emblem; otherwise four in ten do."""
    patches: bool = False
    """Whether single patches are read too, which makes it easier to find things by shape."""
    pictures: int = 24
    """Per batch."""
    texts: int = 8
    """Text-only rows per batch."""
    led: bool = False
    """Whether a teacher is used, whose states the model's are compared with."""
    mixed: bool = False
    """Whether questions, with facts, come in random order, so that it is not always the same ones that do not fit."""


SPEECH = Lesson("speech", 0, 2, equal=False)
PRACTICE = Lesson("practice", 100_000, 4, equal=True)
DRILL = Lesson("drill", 200_000, 4, equal=True, always=("caption", "count", "is_count", "read", "add", "emblem"))
# Comparing a text, a sum or a name with the one in the picture takes longest to learn.
COMPARISONS = ("place", "exist", *("is_text",) * 2, *("is_sum",) * 3, *("is_emblem",) * 3)
COMPARE = Lesson("compare", 300_000, 3, equal=True, always=COMPARISONS, rich=True)
FINISH = Lesson("finish", 400_000, 3, equal=True, always=("count", *COMPARISONS), rich=True, patches=True)
# Kinds that were still weaker than the others: numbers compared with the picture, and colors.
WEAKEST = ("is_sum",) * 3 + ("add",) + ("is_count",) * 3 + ("count", "color", "is_emblem", "caption")
POLISH = Lesson("polish", 500_000, 3, equal=True, always=WEAKEST, rich=True, patches=True)
# Kinds that a model with another's weights must learn again in its own prompt.
ALL = ("caption", "read", "add", "emblem", "count", "is_text", "is_sum", "is_emblem")
LED = Lesson("led", 600_000, 3, True, always=ALL, rich=True, pictures=12, texts=4, mixed=True, led=True)
# Kinds that recovered last: what a thing is, and where.
SLOW = ("place", "shape", "caption", "is_place", "color", "emblem")
SETTLE = Lesson("settle", 700_000, 3, True, always=SLOW, rich=True, pictures=12, texts=4, mixed=True, led=True)
# Then all kinds, for as long as needed.
EVERY = (*SLOW, "read", "add", "count", "is_count", "exist", "is_sum", "is_text", "is_emblem")
STEADY = Lesson("steady", 800_000, 3, True, always=EVERY, rich=True, pictures=14, texts=4, mixed=True, led=True)
# Kinds that BLIP-2 still answered below 90 %: captions, and sums compared with the picture.
LAST = ("caption",) * 3 + ("is_sum",) * 5 + ("size", "is_count", "is_text", "place", "shape")
CLOSING = Lesson("closing", 900_000, 3, True, always=LAST, rich=True, pictures=14, texts=4, mixed=True, led=True)


@dataclass
class Row:
    """Tokens of one row with their segment, position and label (the token itself if it is part of an answer)."""

    ids: list[int]
    segments: list[int]
    positions: list[Place]
    labels: list[int]
    weights: list[float]
    """Weight of each token in the loss; with `equal` all answers have the same weight, otherwise all tokens have."""
    equal: bool = False
    marks: dict[tuple[int, int], int] = field(default_factory=dict)
    """Position in the row of each token of the image or of a question, by segment and distance from the question's end.
    This key is the same in the rows of all families with the same content."""

    def add(self, ids: list[int], segment: int, places: list[Place], answer: int = 0, asked: range = range(0)) -> None:
        """Appends a piece if it fits; its last `answer` tokens are to be learnt, the tokens in `asked` get marks."""
        if len(self.ids) + len(ids) > LENGTH:
            return
        self.marks |= {(segment, asked.stop - i): len(self.ids) + i for i in asked}
        self.ids += ids
        self.segments += [segment] * len(ids)
        self.positions += places
        self.labels += [IGNORE] * (len(ids) - answer) + ids[len(ids) - answer :]
        self.weights += [1 / answer if self.equal and answer else 1.0] * len(ids)


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right: ids, labels, weights [B, L]; positions [axes, B, L]; mask [B, 1, L, L], 0 or -1e9.

    The first rows show the scenes, drawn as `pixels`; the others are text alone.
    """

    ids: Tensor
    positions: Tensor
    labels: Tensor
    weights: Tensor
    mask: Tensor
    pixels: Tensor
    scenes: list[Scene]
    rows: list[Row]

    @property
    def there(self) -> Tensor:
        """True for tokens, False for padding, [B, L] bool."""
        return self.weights > 0

    @property
    def learnt(self) -> Tensor:
        """Positions that predict a token of an answer, [B, L - 1] bool."""
        return self.labels[:, 1:] != IGNORE

    def on(self, device: torch.device) -> Batch:
        """The batch on a device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **tensors)


class Writer:
    """Turns scenes and texts into rows of tokens in a family's prompt."""

    def __init__(self, family: Family, tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> None:
        self.prompt = family.prompt
        self.tokenizer = tokenizer
        self.image_token: int = model.config.image_token_id
        self.encode = lru_cache(maxsize=200_000)(self._encode)
        self.image_places = lru_cache(lambda start: family.image_places(model, start))
        self.axes = len(self.image_places(0)[0][0])

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def places(self, start: int, n: int) -> list[Place]:
        """Positions of `n` tokens of text."""
        return [(place,) * self.axes for place in range(start, start + n)]

    def start(self, dice: Dice) -> str:
        """The prompt before the opening; one in ten has a system prompt."""
        return self.prompt.start + (self.prompt.system(dice.pick(SYSTEM_PROMPTS)) if dice.chance(10) else "")

    def begin(self, row: Row, dice: Dice) -> int:
        """Adds the part that all questions about a picture share; returns the position at which they start."""
        prompt, start = self.prompt, self.start(dice)
        text = self.encode(start if prompt.image_first else start + prompt.opening + prompt.before_image)
        image, after = self.image_places(0 if prompt.image_first else len(text))
        ids = [self.image_token] * len(image)
        if prompt.image_first:
            row.add(ids + text, PREFIX, image + self.places(after, len(text)), asked=range(len(ids)))
            return after + len(text)
        whole = range(len(text), len(text) + len(ids))
        row.add(text + ids, PREFIX, self.places(0, len(text)) + image, asked=whole)
        return after

    def turn(self, before: str, prompt: str, answer: str, dice: Dice) -> tuple[list[int], int, range]:
        """Tokens of question and answer, the number of the answer's with its end, and the range of the question's."""
        if dice.chance(6):
            prompt = f"Question: {prompt} Short answer:"
        asked = self.encode(before + prompt + self.prompt.asking)
        said = [*self.encode(" " + answer), self.tokenizer.eos_token_id]
        return [*asked, *said], len(said), range(len(asked) - len(self.encode(self.prompt.asking)))

    def picture_row(self, about: Scene, dice: Dice, lesson: Lesson) -> Row:
        """One picture, QUESTIONS questions and, in every second row, an episode."""
        row = Row([], [], [], [], [], lesson.equal)
        start = self.begin(row, dice)
        for number, (prompt, answer) in enumerate(_turns(about, dice, lesson)):
            ids, learnt, asked = self.turn(self.prompt.after_image, prompt, answer, dice)
            row.add(ids, number + 1, self.places(start, len(ids)), learnt, asked)
        return row

    def text_row(self, dice: Dice, lesson: Lesson) -> Row:
        """As many episodes and facts as fit; the first episode sometimes has worked examples."""
        row = Row([], [], [], [], [], lesson.equal)
        examples = [dice.pick((0, 0, 0, 0, 1, 1, 2, 3))] + [0] * (lesson.episodes - 1)
        turns = [_prompt(episode(dice, Pool.TRAIN, dice.pick(KINDS), None, n)) for n in examples]
        for fact in dice.some(facts(), 6):
            turns.append((fact.wording(dice), fact.answer))
        for number, (prompt, answer) in enumerate(turns):
            before = self.start(dice) + self.prompt.opening
            ids, learnt, asked = self.turn(before, prompt, answer, dice)
            row.add(ids, number + 1, self.places(0, len(ids)), learnt, asked)
        return row


def _prompt(item: Episode) -> tuple[str, str]:
    return item.prompt, item.answer


def _turns(about: Scene, dice: Dice, lesson: Lesson) -> list[tuple[str, str]]:
    """The lesson's questions, random ones and, in every second row, an episode."""
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
    if lesson.mixed:
        fact = dice.pick(facts())
        turns = dice.some([*turns, (fact.wording(dice), fact.answer)], len(turns) + 1)
    return turns


def _shown(index: int, rich: bool) -> Scene:
    if rich and index % 4 == 0:
        return text_scene(Pool.TRAIN, index)
    if rich and index % 4 == 1:
        return emblem_scene(Pool.TRAIN, index, index // 4 % KNOWN)
    return scene(Pool.TRAIN, index)


def collate(rows: list[Row], scenes: list[Scene], pad: int) -> Batch:
    """Pads rows and builds the mask that separates questions."""

    def padded(values: list[list[T]], fill: T) -> Tensor:
        return torch.tensor([value + [fill] * (LENGTH - len(value)) for value in values])

    segments = padded([row.segments for row in rows], PADDING)
    same = (segments[:, :, None] == segments[:, None, :]) | (segments[:, None, :] == PREFIX)
    allowed = same & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return Batch(
        ids=padded([row.ids for row in rows], pad),
        positions=padded([row.positions for row in rows], (0,) * len(rows[0].positions[0])).permute(2, 0, 1),
        labels=padded([row.labels for row in rows], IGNORE),
        weights=padded([row.weights for row in rows], 0.0),
        mask=torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)[:, None],
        pixels=pixels(scenes, lambda index: 1 + index % 3),
        scenes=scenes,
        rows=rows,
    )


def batch(writer: Writer, step: int, lesson: Lesson) -> Batch:
    """The rows of a training step; steps are counted over all rounds."""
    rows, scenes = [], [_shown(step * lesson.pictures + i, lesson.rich) for i in range(lesson.pictures)]
    for about in scenes:
        rows.append(writer.picture_row(about, Dice(Purpose.QUESTIONS, Pool.TRAIN, about.index), lesson))
    for i in range(lesson.texts):
        rows.append(writer.text_row(Dice(Purpose.EPISODE, Pool.TRAIN, step * lesson.texts + i), lesson))
    return collate(rows, scenes, writer.tokenizer.pad_token_id)


def embedded(model: PreTrainedModel, data: Batch, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings with the image tokens [B, n, width] at the placeholders, mask and positions."""
    embeddings = model.get_input_embeddings()(data.ids)
    at_image = data.ids == model.config.image_token_id
    return embeddings.masked_scatter(at_image[:, :, None], tokens), data.mask, data.positions


def answer_loss(model: PreTrainedModel, last: Tensor, data: Batch) -> Tensor:
    """Weighted mean negative log-likelihood of the answers' tokens, given the last hidden states [B, L, width]."""
    learnt = data.learnt
    logits = model.get_output_embeddings()(last[:, :-1][learnt])
    said = functional.cross_entropy(logits, data.labels[:, 1:][learnt], reduction="none")
    weights = data.weights[:, 1:][learnt]
    return (said * weights).sum() / weights.sum()


class Learner(nn.Module):
    """The whole model and, if there are any, the readers of stage 1, which continue to train the tower."""

    def __init__(self, model: PreTrainedModel, family: Family, heads: Heads | None) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.heads = heads

    def spoken(self, data: Batch) -> tuple[Spoken, Seen]:
        """Output of the text model and of the tower for a batch."""
        model = self.model
        seen = self.family.see(model, data.pixels)
        embeddings, mask, positions = embedded(model, data, seen.tokens)
        at_image = (data.ids == model.config.image_token_id)[:, :, None]
        deep = [torch.zeros_like(embeddings).masked_scatter(at_image, each) for each in seen.deep]
        return self.family.speak(model, embeddings, mask, positions, deep), seen

    def loss(self, data: Batch, patches: bool) -> Tensor:
        """The answers' loss plus the weighted loss of the readers."""
        data = data.on(self.model.device)
        spoken, seen = self.spoken(data)
        loss = answer_loss(self.model, spoken.last, data)
        if self.heads is None:
            return loss
        return loss + READERS_SHARE * self.heads.losses(seen.features, labels(data.scenes), patches)


def learn_to_answer(
    lesson: Lesson, learner: Learner, writer: Writer, schedule: Schedule, folder: Path, check: Callable[[int], str]
) -> None:
    """Trains the whole model, with the tower, so that its features serve the questions."""

    def loss_of(step: int) -> Tensor:
        return learner.loss(batch(writer, lesson.first_step + step, lesson), lesson.patches)

    fit(lesson.stage, learner, loss_of, schedule, folder, check, CHECK_EVERY)
