"""A pool of corrections for editors that are fitted on the keys of a tiny model."""

from __future__ import annotations

from pathlib import Path

from more_cli.editors.base import FitData
from more_cli.inputs.edits import Edit, Probe
from more_cli.model.runtime import Runtime
from more_lab.editors.locate.base import LocateEditor
from support.editing import picture


def pool(folder: Path) -> list[Edit]:
    shown = [
        Edit(
            id=colour,
            images=(picture(folder, colour),),
            question=question,
            target=target,
            locality=(Probe("is it a dog ?"), Probe("what colour is it ?", (picture(folder, "white"),))),
        )
        for colour, question, target in (
            ("red", "what is on the table ?", "a lazy dog"),
            ("blue", "a photo of", "a red square"),
            ("green", "who is over the table ?", "brown fox"),
        )
    ]
    return [*shown, Edit(id="text", images=(), question="what is a dog ?", target="a fox", locality=(Probe("why ?"),))]


def fitted(editor: LocateEditor, runtime: Runtime, folder: Path, edits: list[Edit] | None = None) -> dict:
    with editor.attach(runtime):
        return editor.fit(FitData(pool(folder) if edits is None else edits))
