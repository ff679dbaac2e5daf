"""One compiled forward pass for every tower and decoder here, with the library's weights and bfloat16 products.

On a CPU this takes two thirds of the time of the library's forward passes; the weights stay float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

PRECISION = torch.bfloat16
"""Precision of matrix products: three times as fast as float32 on some CPUs; the shipped weights are bfloat16 too."""
Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of each position's angles, broadcastable to [B, heads, L, head width]."""


class Affine(NamedTuple):
    """A linear map's or a norm's weight, and its bias if it has one."""

    weight: Tensor
    bias: Tensor | None


class Block(NamedTuple):
    """One pre-norm block; query, key and value are joined, and gate and up if there is a gate."""

    attention_norm: Affine
    query_key_value: Affine
    output: Affine
    ffn_norm: Affine
    up: Affine
    down: Affine
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None


@dataclass(frozen=True)
class Style:
    """Settings that the blocks of a stack share; a norm without bias is an RMS norm."""

    heads: int
    eps: float
    activation: str
    """"swiglu", "relu", "quick_gelu" or "gelu_pytorch_tanh"."""


def affine(module: nn.Module) -> Affine:
    """The parameters of a linear map or a norm."""
    return Affine(module.weight, getattr(module, "bias", None))


def joined(modules: Iterable[nn.Module]) -> Affine:
    """Several linear maps of the same input as one."""
    maps = [affine(module) for module in modules]
    biases = [part.bias for part in maps if part.bias is not None]
    return Affine(torch.cat([part.weight for part in maps]), torch.cat(biases) if biases else None)


def query_key_value(attention: nn.Module) -> Affine:
    """The three input maps of an attention as one."""
    return joined([attention.q_proj, attention.k_proj, attention.v_proj])


def normed(x: Tensor, norm: Affine, eps: float) -> Tensor:
    """Layer norm, or RMS norm if there is no bias, over the last axis."""
    if norm.bias is not None:
        return functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, eps)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm.weight


def product(x: Tensor, part: Affine) -> Tensor:
    """`part` applied to `x` [..., in]."""
    found = functional.linear(x.to(PRECISION), part.weight.to(PRECISION)).float()
    return found if part.bias is None else found + part.bias


def _rotated(x: Tensor, rotation: Rotation) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * rotation[0] + torch.cat((-right, left), -1) * rotation[1]


def _activated(x: Tensor, activation: str) -> Tensor:
    if activation == "swiglu":
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up
    if activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return functional.relu(x) if activation == "relu" else functional.gelu(x, approximate="tanh")


@torch.compile(dynamic=False)
def run_blocks(
    x: Tensor,
    mask: Tensor | None,
    rotation: Rotation | None,
    blocks: list[Block],
    style: Style,
    added: list[Tensor],
) -> list[Tensor]:
    """The output of every block for `x` [B, L, width], with an additive mask [B, 1, L, L].

    `added[i]` [B, L, width] is added to the output of block i before the next one.
    """
    b, length, width = x.shape
    outputs = []
    for number, block in enumerate(blocks):
        three = product(normed(x, block.attention_norm, style.eps), block.query_key_value)
        query, key, value = three.view(b, length, 3, style.heads, width // style.heads).permute(2, 0, 3, 1, 4)
        if block.query_norm is not None and block.key_norm is not None:
            query = normed(query, Affine(block.query_norm, None), style.eps)
            key = normed(key, Affine(block.key_norm, None), style.eps)
        if rotation is not None:
            query, key = _rotated(query, rotation), _rotated(key, rotation)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + product(seen.transpose(1, 2).reshape(b, length, width), block.output)
        inner = _activated(product(normed(x, block.ffn_norm, style.eps), block.up), style.activation)
        x = x + product(inner, block.down)
        if number < len(added):
            x = x + added[number]
        outputs.append(x)
    return outputs
