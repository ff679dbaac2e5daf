"""What edits cost on a GPU, in under ten minutes: the page OUT/gpu.md and OUT/gpu.jsonl, its numbers.

python tests/bench/gpu.py OUT                      # 7B and 13B shapes; without CUDA a tiny one on the CPU
python tests/bench/gpu.py OUT --device-map auto    # the same, spread over several GPUs

Random bfloat16 weights are made on the device; nothing but configuration and processor is written to a disk.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlavaForConditionalGeneration

from checkpoints import describe, disk_shapes
from more_cli.checkpoint.headers import TensorEntry
from more_cli.checkpoint.reader import Checkpoint
from more_cli.core.write import fold
from more_cli.editors.anchors import make_anchor
from more_cli.editors.base import EditRequest
from more_cli.editors.memory import Memory
from more_cli.editors.more.editor import MoreEditor
from more_cli.inputs.edits import read_edits
from more_cli.model.backbones import find_sites
from more_cli.model.keymap import key_map, meta_model
from more_cli.model.loading import load_fitting_blueprint
from more_cli.model.machine import GIB, Machine
from more_cli.model.runtime import Runtime
from more_cli.ops.estimate import estimate
from more_cli.recipe.files import load_recipe
from more_cli.runner.costs import PeakMemory
from more_lab.bench.floor import Floor, Peer, _timed
from more_lab.bench.random_edits import write_random_edits

LIMIT = 600.0
"""Seconds of the whole run."""
ROUNDS = 5
ROWS = {
    "make": "weights made on the device, s",
    "floor": "floor: forward and backward to the sites, ms",
    "write": "write, ms",
    "write_over_floor": "write over floor",
    "lora": "PEFT LoRA step, ms",
    "edit": "whole edit, s",
    "edits_per_minute": "edits a minute, with rehearsal and anchors",
    "peak": "peak memory, GiB",
    "estimate": "estimated memory, GiB",
    "eval": "answers scored a second",
    "merge": "fold of all sites into their weights, s",
}
"""The rows of the page, by name in the raw numbers."""


class Budget:
    """The seconds that are left."""

    def __init__(self, limit: float) -> None:
        self._end = time.monotonic() + limit

    def allows(self, seconds: float) -> bool:
        """Return whether so many seconds more end in time."""
        return time.monotonic() + seconds < self._end


def described(name: str, folder: Path) -> Checkpoint:
    """Return a checkpoint of a shape that has names and shapes, and no weights."""
    config = describe(name, folder)
    tensors = {key: TensorEntry(key, "BF16", tuple(size), "none", 0, 0) for key, size in disk_shapes(config).items()}
    return Checkpoint(folder, json.loads((folder / "config.json").read_text()), tensors, ())


def make(checkpoint: Checkpoint, device: str, spread: bool) -> Runtime:
    """Return a runtime with random weights of unit gain, made on the device or, to be spread, in main memory."""
    blueprint = meta_model(checkpoint)
    prompter = load_fitting_blueprint(checkpoint, blueprint).prompter
    with torch.device("cpu" if spread else device), torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = LlavaForConditionalGeneration._from_config(
            blueprint.config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(0.0, weight.shape[1:].numel() ** -0.5)
    if spread:
        from accelerate import dispatch_model, infer_auto_device_map
        from accelerate.utils import get_balanced_memory

        whole = model._no_split_modules
        room = get_balanced_memory(model, no_split_module_classes=whole)
        model = dispatch_model(model, infer_auto_device_map(model, room, no_split_module_classes=whole))
    model.generation_config.eos_token_id = prompter.eos
    return Runtime(model.requires_grad_(False).eval(), prompter)


class Measured:
    """One shape: its rows, and which were left out and why."""

    def __init__(self, name: str, budget: Budget, edits: int) -> None:
        self.name, self.budget, self.edits = name, budget, edits
        self.rows: dict[str, float] = {}
        self.left_out: dict[str, str] = {}

    def row(self, name: str, seconds: float, work: Callable[[], float]) -> None:
        """Measure a row that takes about so many seconds, if there is time."""
        if self.budget.allows(seconds):
            self.rows[name] = work()
        else:
            self.left_out[name] = "no time left"

    def run(self, device: str, spread: bool, folder: Path) -> None:
        """Measure every row."""
        checkpoint, recipe = described(self.name, folder / self.name), load_recipe("llava")
        blueprint = meta_model(checkpoint)
        sites, _ = find_sites(blueprint, key_map(blueprint, checkpoint), checkpoint, recipe.sites, recipe.last)
        needed = estimate(checkpoint, sites, recipe, Machine(device), anchors=recipe.anchors.size)
        self.rows["estimate"] = needed.total / GIB
        if not spread and needed.free is not None and needed.total > needed.free:
            self.left_out |= dict.fromkeys(set(ROWS) - set(self.rows), "too little memory")
            return
        peak = PeakMemory(device)
        peak.restart()
        began = time.perf_counter()
        runtime = make(checkpoint, device, spread)
        self.rows["make"] = time.perf_counter() - began
        source = read_edits(write_random_edits(folder / f"{self.name}-edits", self.edits + recipe.anchors.size, 0))
        requests = [EditRequest.of(edit) for edit in source.edits]
        editor = MoreEditor.fresh(recipe, sites)
        with editor.attach(runtime):
            self._passes(editor, runtime, requests[0])
            self._stream(editor, runtime, requests)
            self.rows["peak"] = (peak.peak() or 0) / GIB
            self.row("merge", 60 * self.rows["write"] / 1000, lambda: _timed(runtime, lambda: folded(editor, runtime)))

    def _passes(self, editor: MoreEditor, runtime: Runtime, request: EditRequest) -> None:
        batch = runtime.batch([runtime.encode(request.query, request.target)])
        floor = Floor(runtime, editor.records)

        def write() -> None:
            loss = runtime.backward(runtime.score(batch, record=True).nll().mean())
            editor.sites.write(editor.sites.snapshot(), editor.sites.steps(loss, editor.recipe))

        start = editor.sites.snapshot()
        pairs = []
        for _ in range(ROUNDS + 1):
            pairs.append((_timed(runtime, write), floor.seconds([batch])))
            editor.sites.restore(start)
        writes, floors = zip(*pairs[1:], strict=True)  # the first allocates what the others reuse
        self.rows["write"], self.rows["floor"] = 1000 * median(writes), 1000 * median(floors)
        self.rows["write_over_floor"] = median(ours / bare for ours, bare in pairs[1:])
        if find_spec("peft") is None:
            self.left_out["lora"] = "PEFT is not installed"
            return
        lora = Peer(runtime, editor.records)
        expected = 5 * ROUNDS * self.rows["write"] / 1000
        self.row("lora", expected, lambda: 1000 * median(lora.seconds([batch] * (ROUNDS + 1))[1:]))

    def _stream(self, editor: MoreEditor, runtime: Runtime, requests: list[EditRequest]) -> None:
        """Edit with anchors and rehearsal, then score what was written."""
        each = self.rows["write"] / 1000 * (1 + editor.recipe.rehearsal.size + editor.recipe.anchors.size)
        if not self.budget.allows(self.edits * editor.recipe.max_steps * each):
            self.left_out |= dict.fromkeys(("edit", "edits_per_minute", "eval"), "no time left")
            return
        anchors = [make_anchor(runtime, request.query, request.target) for request in requests[self.edits :]]
        editor.start_from(anchors)
        editor.hold(anchors)
        requests = requests[: self.edits]
        memory = Memory(lambda number: requests[number - 1])
        seconds = []
        for number, request in enumerate(requests, 1):

            def edit(number: int = number, request: EditRequest = request) -> None:
                outcome = editor.edit(request, memory.context(number, request.id, request.target))
                memory.add(number, request.id, request.target)
                memory.update(number, outcome.margins.items())

            seconds.append(_timed(runtime, edit))
        self.rows["edit"] = median(seconds)
        self.rows["edits_per_minute"] = 60 * len(seconds) / sum(seconds)
        asked = [runtime.encode(request.query, request.target) for request in requests]

        def score() -> None:
            for scored in runtime.score_all(asked):
                scored.margins().tolist()

        self.rows["eval"] = len(asked) / _timed(runtime, score)


def folded(editor: MoreEditor, runtime: Runtime) -> None:
    """Fold every site as `more merge` does, and drop the result."""
    for site in editor.sites:
        weight = runtime.model.get_submodule(site.record.module).weight
        fold(weight, site.branch.A, site.branch.B, site.record.scale).to(weight.dtype)


def page(results: list[dict[str, Any]], device: str) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"# Edits on {device}\n"
    if "CPU" in device:
        yield "No GPU was used: small shapes on a CPU show that the command works, not how fast a GPU is.\n"
    yield f"torch {torch.__version__}, recipe llava, random bfloat16 weights, medians of {ROUNDS} rounds.\n"
    yield "| | " + " | ".join(result["shape"] for result in results) + " |"
    yield "|---" * (1 + len(results)) + "|"
    for name, words in ROWS.items():
        yield f"| {words} | " + " | ".join(cell(result, name) for result in results) + " |"
    for result in results:
        for name, why in result["left_out"].items():
            yield f"\nLeft out of {result['shape']}: {ROWS[name]} ({why})."


def cell(result: dict[str, Any], name: str) -> str:
    """Return a number with three digits, or a dash."""
    return f"{result['rows'][name]:.3g}" if name in result["rows"] else "–"


def refusal(device: str, device_map: str) -> str:
    """Return why this cannot run here, or ""."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        return "no CUDA device here; leave out --device for the CPU form"
    if device_map and torch.cuda.device_count() < 2:
        return f"--device-map needs two CUDA devices or more, and {torch.cuda.device_count()} are here"
    return ""


def main(argv: list[str] | None = None) -> int:
    """Measure, and write the page and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--device-map", default="", choices=["", "auto"])
    parser.add_argument("--shapes", nargs="+", help="default: 7B 13B on a GPU, tiny on a CPU")
    parser.add_argument("--edits", type=int, help="default: 24 on a GPU, 3 on a CPU")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of the whole run")
    options = parser.parse_args(argv)
    if refused := refusal(options.device, options.device_map):
        print(f"error: {refused}", file=sys.stderr)
        return 2
    cuda = options.device.startswith("cuda")
    budget, results = Budget(options.limit), []
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.shapes or (["7B", "13B"] if cuda else ["tiny"]):
            measured = Measured(name, budget, options.edits or (24 if cuda else 3))
            if budget.allows(0.0):
                measured.run(options.device, bool(options.device_map), Path(folder))
            else:
                measured.left_out = dict.fromkeys(ROWS, "no time left")
            results.append({"shape": name, "rows": measured.rows, "left_out": measured.left_out})
            if cuda:
                torch.cuda.empty_cache()
    device = torch.cuda.get_device_name() if cuda else "a CPU"
    (options.out / "gpu.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    (options.out / "gpu.md").write_text("\n".join(page(results, device)) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
