"""A quick check of a model in training: is every token of an answer the most likely one? Many questions per picture."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .speech import LENGTH, PREFIX, Batch, Row, Writer, collate
from .world.facts import facts
from .world.language import ask, kinds_for
from .world.phrases import CAPTION_PROMPT
from .world.pools import Dice, Pool, Purpose
from .world.scenes import scene

ROWS = 32
FACTS = 5  # per row of text


@torch.no_grad()
def marks(
    model: PreTrainedModel, last_of: Callable[[Batch], Tensor], writer: Writer, scenes: int
) -> dict[str, tuple[int, int]]:
    """Right answers and questions per kind, trained wordings, on the first scenes of the scoring pool.

    The greedy answer is right exactly if every token of the true answer is the most likely one after those before it.
    """
    counts: dict[str, tuple[int, int]] = {}
    for first in range(0, scenes, ROWS):
        rows, kinds, shown = [], [], []
        for index in range(first, first + ROWS):
            about, dice = scene(Pool.SCORE, index), Dice(Purpose.QUESTIONS, Pool.SCORE, index)
            row, asked = Row([], [], [], [], []), {}
            start = writer.begin(row, dice)
            for kind in dice.some(kinds_for(about), len(kinds_for(about))):
                question = ask(about, kind, dice)
                if question is not None:
                    text = CAPTION_PROMPT if kind == "caption" else question.trained(index)
                    ids, learnt, _ = writer.turn(writer.prompt.after_image, text, question.answer, dice)
                    asked[len(asked) + 1] = kind
                    row.add(ids, len(asked), writer.places(start, len(ids)), learnt)
            rows.append(row)
            kinds.append(asked)
            shown.append(about)
        for number in range(0 if first else len(facts()) // FACTS):
            row, asked = Row([], [], [], [], []), {}
            dice = Dice(Purpose.QUESTIONS, Pool.SCORE, number)
            for fact in facts()[number * FACTS : (number + 1) * FACTS]:
                ids, learnt, _ = writer.turn(
                    writer.prompt.start + writer.prompt.opening, fact.trained(number), fact.answer, dice
                )
                asked[len(asked) + 1] = "fact"
                row.add(ids, len(asked), writer.places(0, len(ids)), learnt)
            rows.append(row)
            kinds.append(asked)
        data = collate(rows, shown, writer.tokenizer.pad_token_id)
        last = last_of(data.on(model.device))
        said = model.get_output_embeddings()(last).argmax(-1).cpu()
        wrong = (said[:, :-1] != data.labels[:, 1:]) & data.learnt
        for number, (row, asked) in enumerate(zip(rows, kinds, strict=True)):
            segments = torch.tensor(row.segments + [PREFIX] * (LENGTH - len(row.ids)))
            for segment, kind in asked.items():
                at = segments[1:] == segment
                if at.any():
                    right, n = counts.get(kind, (0, 0))
                    counts[kind] = (right + int(not wrong[number][at].any()), n + 1)
    return counts


def marks_line(counts: dict[str, tuple[int, int]]) -> str:
    """The counts in one line, the mean over all questions about pictures first."""
    pictured = [count for kind, count in counts.items() if kind != "fact"]
    mean = 100 * sum(right for right, _ in pictured) / sum(n for _, n in pictured)
    parts = [f"{kind} {100 * right / n:.0f}" for kind, (right, n) in sorted(counts.items())]
    return f"{mean:.1f} overall: " + ", ".join(parts)
