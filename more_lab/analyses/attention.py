"""Attention weights of the text layers, which fast attention kernels do not return."""

from __future__ import annotations

import torch
from torch import Tensor

from more_cli.errors import StateError
from more_cli.model.batches import Encoded
from more_cli.model.runtime import Runtime
from more_cli.model.structure import text_layers


def attentions(runtime: Runtime, sample: Encoded) -> list[Tensor]:
    """Return each text layer's attention weights for one sequence, means over heads, (T, T) float32 on the CPU.

    From then on the model computes its attention without a fast kernel.

    Raises:
        StateError: the model gives no weights for each of its text layers.
    """
    runtime.model.set_attn_implementation("eager")
    inputs = runtime.batch([sample]).inputs
    with torch.no_grad():
        output = runtime.model(**inputs, use_cache=False, output_attentions=True)
    found = getattr(output, "attentions", None) or ()
    layers, length = text_layers(runtime.model, runtime.backbone), len(sample.input_ids)
    if len(found) != len(layers) or any(each is None or each.shape[-2:] != (length, length) for each in found):
        raise StateError("this model gives no attention weights for its text layers", "choose another analysis")
    return [each[0].float().mean(dim=0).cpu() for each in found]
