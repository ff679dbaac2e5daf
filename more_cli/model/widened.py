"""Half precision on processors that cannot multiply in it: products, or all weights for a while, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HALF = (torch.bfloat16, torch.float16)
ROWS = 32
"""From so many rows of input on it takes less time to convert the weights than to multiply in half precision."""


@cache
def multiplies_in(dtype: torch.dtype) -> bool:
    """Tell whether this processor multiplies in a dtype; AVX2 does not, and a product takes ten times as long there."""
    if dtype not in HALF or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return True
    onednn = torch.ops.mkldnn
    return bool(onednn._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else onednn._is_mkldnn_fp16_supported())


def widen_products(model: nn.Module) -> None:
    """Let Linears in main memory multiply in float32 where the processor does not multiply in their dtype.

    Weights, inputs and outputs keep their dtype. A product in half precision is summed in float32 too, so only the
    order of a sum differs: in bfloat16 one output in 20,000 was rounded the other way.
    """
    # Not those of a quantisation library, nor those whose weights accelerate brings when they are used.
    plain = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    for linear in plain:
        if linear.weight.device.type == "cpu" and not multiplies_in(linear.weight.dtype):
            linear.forward = partial(_forward, linear)  # type: ignore[method-assign]


def product(x: Tensor, W: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + bias in their dtype, as a Linear does, computed in float32 where that takes less time."""
    as_it_is = x.device.type != "cpu" or x.dtype != W.dtype or multiplies_in(x.dtype)
    if as_it_is or x.numel() < ROWS * x.shape[-1]:
        return functional.linear(x, W, bias)
    widely: Tensor = _Product.apply(x, W, bias)  # type: ignore[no-untyped-call]
    return widely


def _forward(linear: nn.Linear, x: Tensor) -> Tensor:
    return product(x, linear.weight, linear.bias)


class _Product(torch.autograd.Function):
    """A product in float32 that keeps W for the backward pass in half precision, as a plain one does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else x.new_empty(0), W)
        return functional.linear(x.float(), W.float(), None if bias is None else bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, W = ctx.saved_tensors
        D, (to_x, to_W, to_bias) = D.float(), ctx.needs_input_grad
        rows = D.flatten(0, -2)
        dx = (D @ W.float()).to(W.dtype) if to_x else None
        dW = (rows.T @ x.flatten(0, -2).float()).to(W.dtype) if to_W else None
        return dx, dW, rows.sum(0).to(W.dtype) if to_bias else None


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
