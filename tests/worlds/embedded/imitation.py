"""A model learns from a teacher of another family: its tower from the image tokens, its text model from the states.

There is a target for every image token, and for every token after every layer. So training takes minutes; from
answers alone it takes hours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from .exam import marks, marks_line
from .family import Family
from .loop import Schedule, fit
from .perception import pixels
from .speech import PREFIX, Batch, Learner, Lesson, Writer, answer_loss, batch, embedded
from .world.pools import Pool
from .world.scenes import scene, text_scene

PICTURES = 96  # per batch
FIRST_SCENE = 30_000_000
LAYERS_SHARE = 1.0  # weight of the text layers' losses; the answers' loss has weight 1
CHECK_EVERY = 150  # steps
CHECKED = 128  # scenes


def learn_to_see_alike(
    student: PreTrainedModel, family: Family, teacher: PreTrainedModel, parent: Family, schedule: Schedule, folder: Path
) -> None:
    """Trains the student's image tokens to equal the teacher's; each dimension is divided by its standard deviation."""
    towers = nn.ModuleList(tower_of(student))

    def shown(first: int, n: int) -> Tensor:
        indices = range(FIRST_SCENE + first, FIRST_SCENE + first + n)
        return pixels([text_scene(Pool.TRAIN, i) if i % 3 == 0 else scene(Pool.TRAIN, i) for i in indices], _variant)

    with torch.no_grad():
        spread = parent.see(teacher, shown(0, PICTURES)).tokens.flatten(0, 1).std(0)

    def loss_of(step: int) -> Tensor:
        drawn = shown(step * PICTURES, PICTURES)
        with torch.no_grad():
            wanted = parent.see(teacher, drawn).tokens
        return functional.mse_loss(family.see(student, drawn).tokens / spread, wanted / spread)

    fit("seeing", towers, loss_of, schedule, folder)


def _variant(index: int) -> int:
    return index % 4


def tower_of(model: PreTrainedModel) -> list[nn.Module]:
    """All modules between the picture and the text model."""
    if hasattr(model, "qformer"):
        return [model.vision_model, _Queries(model), model.qformer, model.language_projection]
    return [model.model.visual]


class _Queries(nn.Module):
    """The query tokens, a bare parameter, as a module."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.tokens = model.query_tokens


def maps_to(teacher: PreTrainedModel) -> nn.ModuleList:
    """For every text layer a linear map from the student's hidden states to the teacher's; starts as the identity."""
    text = teacher.config.text_config
    maps = nn.ModuleList([nn.Linear(text.hidden_size, text.hidden_size) for _ in range(text.num_hidden_layers)])
    for each in maps:
        nn.init.eye_(each.weight)
        nn.init.zeros_(each.bias)
    return maps


def learn_to_think_alike(
    student: PreTrainedModel,
    family: Family,
    teacher: PreTrainedModel,
    parent: Family,
    writer: Writer,
    lesson: Lesson,
    schedule: Schedule,
    folder: Path,
) -> None:
    """Trains the text model on the teacher's rows: on states after every layer, answers and true answers."""
    maps = maps_to(teacher)

    def loss_of(step: int) -> Tensor:
        data = batch(writer, lesson.first_step + step, lesson)
        with torch.no_grad():
            shown = parent.see(teacher, data.pixels)
            led = parent.speak(teacher, *embedded(teacher, data, shown.tokens), [])
        followed = family.speak(student, *embedded(student, data, shown.tokens), [])
        there = data.there
        apart = []
        for each, ours, theirs in zip(maps, followed.layers, led.layers, strict=True):
            wanted = theirs[there]
            apart.append(functional.mse_loss(each(ours[there]), wanted) / wanted.var(0).mean())
        said = answer_loss(student, followed.last, data)
        led_to = _divergence(student, teacher, followed.last, led.last, data)
        return said + led_to + LAYERS_SHARE * torch.stack(apart).mean()

    def last(data: Batch) -> Tensor:
        tokens = parent.see(teacher, data.pixels).tokens
        return family.speak(student, *embedded(student, data, tokens), []).last

    def check(step: int) -> str:
        return f"after {step} steps, with the teacher's tower: " + marks_line(marks(student, last, writer, CHECKED))

    fit("thinking", nn.ModuleList([student.language_model, maps]), loss_of, schedule, folder, check, CHECK_EVERY)


def _divergence(
    student: PreTrainedModel, teacher: PreTrainedModel, ours: Tensor, theirs: Tensor, data: Batch
) -> Tensor:
    """Kullback-Leibler divergence from the teacher over the answers' tokens."""
    learnt = data.learnt
    own = student.get_output_embeddings()(ours[:, :-1][learnt]).log_softmax(-1)
    with torch.no_grad():
        wanted = teacher.lm_head(theirs[:, :-1][learnt]).log_softmax(-1)
    return functional.kl_div(own, wanted, reduction="batchmean", log_target=True)


def learn_to_answer_alike(
    lesson: Lesson,
    learner: Learner,
    writer: Writer,
    teacher: Learner,
    like_teacher: Writer,
    schedule: Schedule,
    folder: Path,
    check: Callable[[int], str],
) -> None:
    """Trains the whole model in its own prompt; on images and questions its states stay near the teacher's.

    Both get the same pictures and questions, each in its own rows. Tokens that both have at the same place of a
    question are compared after every layer. This keeps abilities that training on answers alone would overwrite
    while the student learns another prompt and other positions.
    """
    maps = maps_to(teacher.model)

    def loss_of(step: int) -> Tensor:
        data = batch(writer, lesson.first_step + step, lesson)
        theirs = batch(like_teacher, lesson.first_step + step, lesson)
        with torch.no_grad():
            led, shown = teacher.spoken(theirs)
        followed, seen = learner.spoken(data)
        rows, ours, wanted = matched(data, theirs)
        apart = [functional.mse_loss(seen.tokens, shown.tokens) / shown.tokens.flatten(0, 1).var(0).mean()]
        for each, own, lead in zip(maps, followed.layers, led.layers, strict=True):
            target = lead[rows, wanted]
            apart.append(functional.mse_loss(each(own[rows, ours]), target) / target.var(0).mean())
        return answer_loss(learner.model, followed.last, data) + LAYERS_SHARE * torch.stack(apart).mean()

    fit(lesson.stage, nn.ModuleList([learner.model, maps]), loss_of, schedule, folder, check, CHECK_EVERY)


def matched(ours: Batch, theirs: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Row, position in `ours` and position in `theirs` of every token that both have at the same place."""
    found = []
    for number, (own, other) in enumerate(zip(ours.rows, theirs.rows, strict=True)):
        for mark, at in own.marks.items():
            there = other.marks.get(mark)
            if there is not None and (mark[0] == PREFIX or own.ids[at] == other.ids[there]):
                found.append((number, at, there))
    rows, left, right = torch.tensor(found).T
    return rows, left, right
