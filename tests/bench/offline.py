"""The usual alternative: a PEFT LoRA trained on all edits at once, scored like any editor.

Rank 8 on every linear of the text model and the projector, AdamW, batches of 8, a constant rate; L is the editor's:
the mean NLL of the batch and, with anchors, the mean KL(base || adapted) of eight of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from peft import LoraConfig, get_peft_model

from more_cli.editors.anchors import Anchor, drift
from more_cli.editors.base import EditRequest
from more_cli.editors.more.rehearsal import draw_anchors
from more_cli.evaluation.probes import ProbeScore, probes_of, run_probes
from more_cli.inputs.edits import Edit
from more_cli.model.runtime import Runtime
from more_lab.editors.none import NoEditor

RANK, BATCH = 8, 8
LINEARS = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj|.*multi_modal_projector\.linear_\d"


class Adapted(Runtime):
    """A model with a PEFT adapter; the base is the same model with the adapter switched off."""

    @contextmanager
    def base(self) -> Iterator[None]:
        with self.model.disable_adapter():
            yield


class AsTrained(NoEditor):
    """Adds nothing to a model that is no longer the base: the adapter belongs to the runtime."""

    is_base = False


def train(
    loaded: Runtime, edits: Sequence[Edit], epochs: int, anchors: Sequence[Anchor], *, rate: float = 1e-3, seed: int = 0
) -> tuple[list[ProbeScore], float]:
    """Train on all edits, score them and their probes, and return the cost per edit in samples both ways."""
    torch.manual_seed(seed)
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=LINEARS)
    model = get_peft_model(loaded.model, config)
    runtime = Adapted(model, loaded.prompter, None)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=rate)
    encoded = [runtime.encode(EditRequest.of(edit).query, edit.target) for edit in edits]
    shuffle, cost, step = random.Random(seed), 0, 0
    for _ in range(epochs):
        order = shuffle.sample(range(len(edits)), len(edits))
        for start in range(0, len(order), BATCH):
            chosen = [encoded[i] for i in order[start : start + BATCH]]
            held = draw_anchors(anchors, BATCH, seed, step) if anchors else []
            batch = runtime.batch(chosen + [anchor.encoded for anchor in held])
            scored = differentiable(runtime, batch)
            loss = scored[: len(chosen)].nll().mean()
            if held:
                loss = loss + drift(scored[len(chosen) :], held).mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            cost, step = cost + len(batch), step + 1
    probes = [probe for edit in edits for probe in probes_of(edit)]
    scores = run_probes(runtime, AsTrained(), probes)
    loaded.model = model.unload()
    loaded.model.requires_grad_(False)
    return scores, cost / len(edits)


def differentiable(runtime: Runtime, batch):
    """Run a pass whose gradients reach the adapter."""
    from more_cli.model.runtime import Scored

    logits = runtime.model(**batch.inputs, logits_to_keep=batch.keep, use_cache=False).logits
    return Scored(logits, batch.targets, batch.mask)
