"""What the writes of an edit are compared with: their unavoidable work in plain PyTorch (the floor), and PEFT's LoRA.

Neither learns anything. Each is timed alone, on the editor's model, right after the edit whose batches it repeats, with
the editor's branches switched off.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from more_cli.core.basis import draw_basis
from more_cli.errors import UsageError, install_hint
from more_cli.model.batches import Batch
from more_cli.model.branches import computes_beside
from more_cli.model.keymap import quiet
from more_cli.model.quantised import import_bitsandbytes
from more_cli.model.runtime import Runtime
from more_cli.model.scored import Scored
from more_cli.model.structure import find_backbone, text_layers
from more_cli.model.vision import replaced_forward, stopped_before
from more_cli.store.state import SiteRecord

RATE = 1e-3
"""Learning rate of the LoRA; it does not change what a step costs."""


class Floor:
    """One forward and one backward pass to B of the same sites; vision features given, logits at the answers only."""

    def __init__(self, runtime: Runtime, records: Sequence[SiteRecord]) -> None:
        self._runtime, self._model = runtime, runtime.model
        self._backbone = find_backbone(self._model)
        tower = self._backbone.vision_tower
        # The tower's features cannot be given if it is edited itself, or contains the projector.
        self._given = not any(f"{record.module}.".startswith(f"{tower}.") for record in records)
        self._branches = {record.module: self._branch(record) for record in records}
        self._scale = {record.module: record.scale for record in records}

    def _branch(self, record: SiteRecord) -> tuple[Tensor, Tensor]:
        device = self._runtime.device_of(record.module)
        dtype = computes_beside(self._model, record.module)
        B = torch.zeros(record.shape[0], record.rank, device=device, dtype=dtype, requires_grad=True)
        # Any A costs the same, so it need not be the one that the recipe chooses.
        return draw_basis(record.rank, record.shape[1], record.seed).to(device, dtype), B

    def seconds(self, batches: Sequence[Batch]) -> float:
        """Return the seconds that these batches take."""
        return sum(self._seconds(batch) for batch in batches)

    def gradients(self, batch: Batch) -> tuple[Tensor | None, ...]:
        """Return dL/dB of every site, (d_out, r), for B = 0; None for a site that the batch does not reach."""
        apart = "decoder_input_ids" in batch.inputs
        kept = {} if apart else {"logits_to_keep": batch.keep}
        logits = self._model(**batch.inputs, **kept, use_cache=False).logits
        logits = logits[:, batch.keep] if apart else logits
        loss = Scored(logits.to(batch.mask.device), batch.targets, batch.mask).nll().mean()
        return torch.autograd.grad(loss, [B for _, B in self._branches.values()], allow_unused=True)

    @contextmanager
    def ready(self, batch: Batch) -> Iterator[None]:
        """Attach plain branches in place of the editor's, with the batch's vision features ready."""
        with ExitStack() as stack:
            stack.enter_context(self._runtime.base())
            if self._given:
                stack.enter_context(self._features(batch))
            for module, (A, B) in self._branches.items():
                branch = partial(_add_branch, A, B, self._scale[module])
                stack.callback(self._model.get_submodule(module).register_forward_hook(branch).remove)
            yield

    def _seconds(self, batch: Batch) -> float:
        with self.ready(batch):
            return _timed(self._runtime, lambda: self.gradients(batch))

    @contextmanager
    def _features(self, batch: Batch) -> Iterator[None]:
        """Replace the vision tower by its output for this batch."""
        tower = self._model.get_submodule(self._backbone.vision_tower)
        outputs: list[Any] = []
        hook = tower.register_forward_hook(lambda *ran: outputs.append(ran[2]))
        first = self._model.get_submodule(text_layers(self._model, self._backbone)[0])
        try:
            with stopped_before(first):
                self._model(**batch.inputs, use_cache=False)
        finally:
            hook.remove()
        if len(outputs) != 1:  # no image, or a tower that is called more than once
            yield
            return
        with replaced_forward(tower, lambda *_, **__: outputs[0]):
            yield


def _add_branch(
    A: Tensor, B: Tensor, scale: float, module: nn.Module, args: tuple[Tensor, ...], output: Tensor
) -> Tensor:
    """Add s B (A x), in the same dtype as the editor."""
    return (output.to(B.dtype) + scale * (args[0].to(B.dtype) @ A.T @ B.T)).to(output.dtype)


class Peer:
    """PEFT's LoRA with SGD as it is usually written: A and B of the same sites and ranks, the vision tower in every
    step, the model's own loss over all logits."""

    def __init__(self, runtime: Runtime, records: Sequence[SiteRecord]) -> None:
        self._runtime = runtime
        self._ranks = {record.module: record.rank for record in records}

    @staticmethod
    def require() -> None:
        """Check that PEFT is installed.

        Raises:
            UsageError: it is not.
        """
        if find_spec("peft") is None:
            raise UsageError("`--peers` needs PEFT", install_hint("lora"))

    def seconds(self, batches: Sequence[Batch]) -> list[float]:
        """Return the seconds of one step on each of these batches."""
        import_bitsandbytes()
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=max(self._ranks.values()),
            lora_alpha=2 * max(self._ranks.values()),
            target_modules="|".join(map(re.escape, self._ranks)),
            rank_pattern={re.escape(module): rank for module, rank in self._ranks.items()},
        )
        with self._runtime.base(), torch.random.fork_rng(), quiet():
            adapted = get_peft_model(self._runtime.model, config)
            try:
                weights = [value for value in adapted.parameters() if value.requires_grad]
                optimiser = torch.optim.SGD(weights, lr=RATE)
                return [_timed(self._runtime, partial(_step, adapted, optimiser, batch)) for batch in batches]
            finally:
                adapted.unload()
                self._runtime.model.requires_grad_(False)


def _step(model: Any, optimiser: torch.optim.SGD, batch: Batch) -> None:
    ids = batch.inputs.get("decoder_input_ids", batch.inputs["input_ids"])
    labels = torch.full_like(ids, -100)
    labels[:, batch.keep + 1] = torch.where(batch.mask, batch.targets, -100)
    optimiser.zero_grad(set_to_none=True)
    model(**batch.inputs, labels=labels, use_cache=False).loss.backward()
    optimiser.step()


def _timed(runtime: Runtime, work: Callable[[], object]) -> float:
    _synchronise(runtime)
    began = time.perf_counter()
    work()
    _synchronise(runtime)
    return time.perf_counter() - began


def _synchronise(runtime: Runtime) -> None:
    if runtime.device.type == "cuda":
        torch.cuda.synchronize(runtime.device)
