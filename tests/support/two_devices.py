"""Edits a tiny LLaVA on one device and on two, in a process of its own, and prints both states' difference and places.

python tests/support/two_devices.py FOLDER      # for `test_devices`
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils import _pytree as pytree

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.checkpoint.reader import Checkpoint
from more_cli.editors.anchors import make_anchor
from more_cli.editors.base import EditRequest
from more_cli.editors.memory import Memory
from more_cli.editors.more.editor import MoreEditor
from more_cli.inputs.images import locate_image
from more_cli.model.backbones import find_sites
from more_cli.model.batches import Query
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.loading import load_runtime
from more_cli.model.runtime import Runtime
from more_cli.recipe.schema import Recipe
from support.elsewhere import set_up
from support.tiny import tiny_llava

LAYER = "model.language_model.layers."
RECIPE = {"criterion": "margin", "max_steps": 3, "rehearsal": {"size": 4}, "anchors": {"size": 2, "keys": True}}


def place(runtime: Runtime, path: str, device: torch.device) -> None:
    """Put a module on a device and bring there what it is called with."""

    def move(module: Any, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, (args, kwargs))

    runtime.model.get_submodule(path).to(device).register_forward_pre_hook(move, with_kwargs=True, prepend=True)


def edited(runtime: Runtime, checkpoint: Checkpoint, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Apply two edits with rehearsal and an anchor: the state, and where each site was."""
    model = meta_model(checkpoint)
    groups = ("text.ffn_in", "text.ffn_out", "projector")
    sites, _ = find_sites(model, key_map(model, checkpoint), checkpoint, groups, 3)
    editor = MoreEditor.fresh(Recipe.model_validate(RECIPE), sites)

    def query(colour: str) -> Query:
        return Query((locate_image(f"{colour}.png", folder),), "what colour is it ?")

    requests = [EditRequest("1", query("red"), "7"), EditRequest("2", query("blue"), "fox")]
    memory = Memory(lambda number: requests[number - 1])
    with editor.attach(runtime):
        anchors = [make_anchor(runtime, query("green"), "a red")]
        editor.start_from(anchors)
        editor.hold(anchors)
        for number, request in enumerate(requests, 1):
            outcome = editor.edit(request, memory.context(number, request.id, request.target))
            memory.add(number, request.id, request.target)
            memory.update(number, outcome.margins.items())
        places = {site.record.name: f"{site.branch.B.device} {site.P.device}" for site in editor.sites}
    return editor.state_dict(), places


def main(folder: Path) -> None:
    there, here = set_up(), torch.device("cpu")
    checkpoint = open_checkpoint(tiny_llava(folder / "model"))
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (28, 28), colour).save(folder / f"{colour}.png")
    alone, _ = edited(load_runtime(checkpoint), checkpoint, folder)
    runtime = load_runtime(checkpoint)
    runtime.model.set_attn_implementation("eager")  # torch has no fused attention for a device it does not know
    for path, device in {
        "model.vision_tower": there,
        "model.multi_modal_projector": here,
        f"{LAYER}0": here,
        f"{LAYER}1": there,
        f"{LAYER}2": there,
        f"{LAYER}3": here,
        "model.language_model.norm": here,
        "lm_head": there,
    }.items():
        place(runtime, path, device)
    spread, places = edited(runtime, checkpoint, folder)
    gaps = {name: float((spread[name] - alone[name]).abs().max()) for name in alone}
    written = {name: bool(alone[name].any()) for name in alone}
    on = sorted({str(tensor.device) for tensor in spread.values()})
    print(json.dumps({"places": places, "gaps": gaps, "written": written, "on": on}))  # noqa: T201


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
