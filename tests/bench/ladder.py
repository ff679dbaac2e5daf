"""Where the time of a write goes, and what the usual LoRA step does beyond it; see speed.py.

On the batch of one edit, in turn: the editor's write, the bare loop of `more bench --floor`, that loop with the extra
work of a LoRA step added part by part, and PEFT's step. And the bare loop by kind of operation, from torch's profiler.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from more_cli.checkpoint.opening import open_checkpoint
from more_cli.editors.base import EditRequest
from more_cli.editors.more.editor import MoreEditor
from more_cli.inputs.edits import read_edits
from more_cli.model.backbones import find_sites
from more_cli.model.batches import Batch
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.loading import load_runtime
from more_cli.model.machine import Machine
from more_cli.model.runtime import Runtime
from more_cli.recipe.files import load_recipe
from more_cli.store.state import SiteRecord
from more_lab.bench.floor import Floor, Peer, _timed
from more_lab.bench.random_edits import write_random_edits

ROUNDS = 7


class Usual(Floor):
    """The bare loop with extra work of a LoRA step."""

    def __init__(self, runtime: Runtime, records: Sequence[SiteRecord], *extras: str) -> None:
        super().__init__(runtime, records)
        self._given = self._given and "tower" not in extras
        self._extras = extras
        if "A" in extras:
            self._branches = {name: (A.requires_grad_(), B) for name, (A, B) in self._branches.items()}

    def gradients(self, batch: Batch) -> tuple[Tensor | None, ...]:
        if "logits" not in self._extras:
            return super().gradients(batch)
        logits = self._model(**batch.inputs, use_cache=False).logits.float()
        targets = torch.full(logits.shape[:2], -100)
        targets[:, batch.keep] = torch.where(batch.mask, batch.targets, -100)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        wanted = [B for _, B in self._branches.values()]
        wanted += [A for A, _ in self._branches.values() if "A" in self._extras]
        return torch.autograd.grad(loss, wanted, allow_unused=True)


def measure(model: Path) -> dict[str, Any]:
    """Return the seconds of every round by way, and the bare loop's time by kind of operation."""
    torch.set_num_threads(1)
    checkpoint, recipe = open_checkpoint(model), load_recipe("llava")
    blueprint = meta_model(checkpoint)
    sites, _ = find_sites(blueprint, key_map(blueprint, checkpoint), checkpoint, recipe.sites, recipe.last)
    editor, runtime = MoreEditor.fresh(recipe, sites), load_runtime(checkpoint, Machine())
    with tempfile.TemporaryDirectory() as folder:
        (edit,) = read_edits(write_random_edits(Path(folder) / "random", 1, 0)).edits
        batch = runtime.batch([runtime.encode(EditRequest.of(edit).query, edit.target)])
    with editor.attach(runtime):
        records = editor.records

        def write() -> None:
            loss = runtime.backward(runtime.score(batch, record=True).nll().mean())
            editor.sites.write(editor.sites.snapshot(), editor.sites.steps(loss, editor.recipe))

        ways: dict[str, Callable[[], float]] = {
            "the editor's write": lambda: _timed(runtime, write),
            "the bare loop": lambda: Floor(runtime, records).seconds([batch]),
            "with the vision tower": lambda: Usual(runtime, records, "tower").seconds([batch]),
            "and the logits of every token": lambda: Usual(runtime, records, "tower", "logits").seconds([batch]),
            "and the gradient of A": lambda: Usual(runtime, records, "tower", "logits", "A").seconds([batch]),
            "PEFT's LoRA with SGD": lambda: Peer(runtime, records).seconds([batch])[0],
        }
        for work in ways.values():
            work()
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, work in ways.items():
                seconds[way].append(round(work(), 4))
        kinds = operations(Floor(runtime, records), batch, {record.rank for record in records})
    return {"seconds": seconds, "kinds": kinds, "tokens": int(batch.inputs["input_ids"].shape[1])}


def operations(floor: Floor, batch: Batch, ranks: set[int]) -> dict[str, float]:
    """Return the share of the bare loop's time by kind of operation."""
    with floor.ready(batch), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as watched:
        floor.gradients(batch)
    spent: Counter[str] = Counter()
    for event in watched.key_averages(group_by_input_shape=True):
        sizes = {size for shape in event.input_shapes for size in shape if isinstance(size, int)}
        if event.key in ("aten::mm", "aten::addmm", "aten::bmm"):
            kind = "branches" if sizes & ranks else "frozen Linears"
        elif "scaled_dot_product" in event.key or "flash" in event.key:
            kind = "attention"
        else:
            kind = "all else: norms, activations, additions, casts, the loss"
        spent[kind] += event.self_cpu_time_total
    return {kind: round(time / spent.total(), 3) for kind, time in spent.most_common()}
