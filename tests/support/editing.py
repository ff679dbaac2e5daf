"""Edits and pictures for editors of a tiny model."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from more_cli.editors.base import EditContext, Editor, EditRequest
from more_cli.inputs.edits import Edit
from more_cli.inputs.edits import Probe as Question
from more_cli.inputs.images import ImageSource, locate_image
from more_cli.model.batches import Query
from more_cli.model.runtime import Runtime
from more_cli.recipe.schema import Recipe
from support.tiny import IMAGE_SIZE


def picture(folder: Path, colour: str = "red") -> ImageSource:
    buffer = io.BytesIO()
    Image.new("RGB", (IMAGE_SIZE + 3, IMAGE_SIZE), colour).save(buffer, "PNG")
    (folder / f"{colour}.png").write_bytes(buffer.getvalue())
    return locate_image(f"{colour}.png", folder)


def recipe(**values) -> Recipe:
    return Recipe.model_validate({"max_write": 1.0, "max_steps": 20} | values)


def requests(folder: Path, count: int = 3) -> list[EditRequest]:
    colours, targets = ("red", "blue", "green", "white"), ("7", "fox", "a dog", "red")
    return [
        EditRequest(str(i), Query((picture(folder, colours[i]),), "what is in the image ?"), targets[i])
        for i in range(count)
    ]


def assert_continues(
    runtime: Runtime, whole: Editor, first: Editor, second: Editor, asked: Sequence[EditRequest]
) -> None:
    """A stream in one run ends with the tensors of one that is cut after two edits; the model is left as it was."""
    batch = runtime.batch([runtime.encode(request.query, request.target) for request in asked])
    base = runtime.score(batch).logits
    numbered = [(request, EditContext(number)) for number, request in enumerate(asked, 1)]
    with whole.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, base), "an editor without edits changes no bit"
        outcomes = [whole.edit(*given) for given in numbered]
    assert {outcome.status for outcome in outcomes} <= {"learnt", "not-learnt"}
    assert torch.equal(runtime.score(batch).logits, base)
    with first.attach(runtime):
        for given in numbered[:2]:
            first.edit(*given)
    second.load_state_dict(first.state_dict())
    with second.attach(runtime):
        for given in numbered[2:]:
            second.edit(*given)
    ended = second.state_dict()
    assert whole.state_dict().keys() == ended.keys()
    assert all(torch.equal(value, ended[name]) for name, value in whole.state_dict().items())
    whole.reset()
    with whole.attach(runtime):
        assert torch.equal(runtime.score(batch).logits, base)


def an_edit(folder: Path) -> Edit:
    return Edit(
        id="e1",
        images=(picture(folder),),
        question="what is in the image ?",
        target="7",
        rephrases=("what is it ?", "what ?"),
        image_rephrases=(picture(folder, "blue"),),
        portability=(Question("who is it ?", (picture(folder),), "x", hop=2), Question("why ?", (), "y")),
        locality=(Question("is it a dog ?"), Question("what colour is it ?", (picture(folder, "green"),))),
    )
