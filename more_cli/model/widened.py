"""A half-precision model's weights in float32 for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

HALF = (torch.bfloat16, torch.float16)


def halves(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters in bfloat16 or float16."""
    return [parameter for parameter in model.parameters() if parameter.dtype in HALF]


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """Hold them in float32, which has every value of both formats; afterwards restore them bit for bit."""
    narrow = halves(model)
    kept = [parameter.data for parameter in narrow]
    for parameter in narrow:
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for parameter, data in zip(narrow, kept, strict=True):
            parameter.data = data
