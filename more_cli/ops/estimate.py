"""How much memory editing needs, computed from config, headers and recipe before any weight is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from more_cli.checkpoint import bnb
from more_cli.checkpoint.reader import FLOATS, Checkpoint
from more_cli.core import basis
from more_cli.errors import ResourceError
from more_cli.inputs.images import grey_image
from more_cli.model.activations import Activations
from more_cli.model.backbones import Site
from more_cli.model.batches import Encoded, Query
from more_cli.model.loading import Blueprint, load_blueprint
from more_cli.model.machine import GIB, Machine
from more_cli.recipe import Recipe
from more_cli.store.state import SiteRecord
from more_cli.text import counted

LIBRARIES = 500 << 20
"""Bytes of Python, torch and transformers, as measured."""
ANSWER = 8
"""Tokens of an answer."""
COPIES = 4
"""Tensors of B's size that a write needs beside B: gradient, step, B before the edit, B before the write."""
QUESTION = "What is in the image, and what is it called?"


@dataclass(frozen=True)
class Part:
    """Memory of one part."""

    name: str
    bytes: int
    note: str


@dataclass(frozen=True)
class Estimate:
    """Memory that editing needs where the model runs, part by part."""

    parts: tuple[Part, ...]
    free: int | None
    """Bytes that are free there; None if unknown."""
    tokens: int
    """Of a sequence."""
    samples: int
    """In one write: the edit, past edits and anchors."""
    state: int
    """Bytes of the sidecar."""

    @property
    def total(self) -> int:
        """All parts together, in bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def beside_weights(self) -> int:
        """What is needed beside the weights, in bytes."""
        return sum(part.bytes for part in self.parts if part.name != "weights")


def estimate(
    checkpoint: Checkpoint,
    sites: Sequence[Site | SiteRecord],
    recipe: Recipe,
    machine: Machine,
    *,
    anchors: int = 0,
    tokens: int | None = None,
    blueprint: Blueprint | None = None,
) -> Estimate:
    """Estimate the memory of editing; loads no weights.

    Args:
        checkpoint: What is edited.
        sites: Where.
        recipe: Says rank, rehearsal and anchors of a write.
        machine: Where the model runs, and in which dtype.
        anchors: How many the state has.
        tokens: Length of a sequence; by default that of a question about one image.
        blueprint: The checkpoint without weights, as the recipe asks it, if the caller has it; it takes on the dtype.
    """
    blueprint = blueprint or load_blueprint(checkpoint, **recipe.asking)
    model = blueprint.model.to(_dtype(checkpoint, blueprint.model, machine))
    size = model.dtype.itemsize
    sample = blueprint.prompter.encode(Query((grey_image(),), QUESTION), "a short answer")
    length = tokens or len(sample.input_ids)
    samples = 1 + recipe.rehearsal.size + min(anchors, recipe.anchors.size)
    activations = Activations.of(model, [site.module for site in sites])
    passes = list(activations.parts(range(samples), "backward", lambda _: length))
    most = max(map(len, passes))
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    logits = most * ANSWER * vocabulary * (size + 3 * 4)
    A, B, P = _site_bytes(sites, recipe)
    written, what = (B, "B") if recipe.basis_rate is None else (A + B, "A and B")
    images = samples * (sample.bytes + _features(model, sample))
    of_anchors = anchors * (ANSWER * vocabulary * 4 + sample.bytes)
    held = [counted(samples, "sample"), *([counted(anchors, "anchor")] if anchors else [])]
    parts = (
        _weights(checkpoint, model),
        Part("sites", A + B + P, f"A, B and P of {len(sites)}"),
        Part("writes", COPIES * written, f"gradients, steps, and copies of {what}"),
        Part(
            "passes",
            activations.bytes(most * length, "backward") + logits,
            f"{most} of {counted(samples, 'sample')} at a time",
        ),
        Part("images", images + of_anchors, f"of {' and '.join(held)}"),
        Part("libraries", LIBRARIES, "Python, torch, transformers"),
    )
    return Estimate(parts, machine.free(), length, samples, B + P + A * recipe.stores_basis)


def require(needed: Estimate, checkpoint: Checkpoint) -> None:
    """Refuse to edit if memory does not suffice, before a weight is loaded.

    Raises:
        ResourceError: more memory is needed than is free.
    """
    if needed.free is None or needed.total <= needed.free:
        return
    raise ResourceError(
        f"editing `{checkpoint.path}` needs about {needed.total / GIB:.1f} GiB and "
        f"{needed.free / GIB:.1f} GiB are free (weights {needed.parts[0].bytes / GIB:.1f}, "
        f"sequences of {needed.tokens} tokens)",
        "`more status MODEL --estimate` lists the parts; --dtype bfloat16, another --device, --device-map auto or "
        'fewer sites (--set last=3, --set sites=["text.ffn_out"]) need less; --memory GIB sets what counts as free',
    )


def _weights(checkpoint: Checkpoint, model: Any) -> Part:
    """Return the memory of the weights; those of bitsandbytes stay as they are on disk, others are unpacked."""
    size = model.dtype.itemsize * sum(weight.numel() for weight in model.parameters())
    for packed in checkpoint.packed.values() if checkpoint.scheme in bnb.SCHEMES else ():
        held = sum(entry.stop - entry.start for entry in packed.parts.values())
        size += held - model.dtype.itemsize * math.prod(packed.shape)
    scheme = f"{checkpoint.scheme} and " if checkpoint.scheme in bnb.SCHEMES else ""
    return Part("weights", size, f"in {scheme}{_name(model.dtype)}")


def _dtype(checkpoint: Checkpoint, model: Any, machine: Machine) -> torch.dtype:
    """Return the dtype that weights are loaded in, by the rule of `from_pretrained`."""
    if machine.dtype != "auto":
        return getattr(torch, machine.dtype)  # type: ignore[no-any-return]
    named = model.config.dtype
    if isinstance(named, torch.dtype):
        return named
    stored = (FLOATS[entry.dtype] for entry in checkpoint.tensors.values() if entry.dtype in FLOATS)
    dtype: torch.dtype = getattr(torch, next(stored, "float32"))
    return dtype


def _site_bytes(sites: Sequence[Site | SiteRecord], recipe: Recipe) -> tuple[int, int, int]:
    """Return the bytes of A and B in float32 and of P in float64, over all sites."""
    A = B = P = 0
    for site in sites:
        d_out, d_in = site.shape
        rank = basis.usable_rank(recipe.rank, d_in)
        A, B, P = A + 4 * rank * d_in, B + 4 * d_out * rank, P + 8 * rank * rank
    return A, B, P


def _features(model: Any, sample: Encoded) -> int:
    """Return the bytes of an image's cached vision features: two hidden states."""
    vision = getattr(model.config, "vision_config", None)
    pixels = sample.extras.get("pixel_values")
    if vision is None or pixels is None:
        return 0
    patch = getattr(vision, "patch_size", None) or 14
    area = math.prod(patch) if isinstance(patch, list | tuple) else patch**2
    width = getattr(vision, "hidden_size", None) or getattr(vision, "embed_dim", 0)
    return int(2 * model.dtype.itemsize * width * pixels.numel() // (3 * area))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
