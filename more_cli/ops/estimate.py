"""How much memory editing needs, computed from config, headers and recipe before any weight is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from more_cli.checkpoint import bnb
from more_cli.checkpoint.headers import FLOATS
from more_cli.checkpoint.reader import Checkpoint
from more_cli.editors.draws import watched_places
from more_cli.errors import ResourceError
from more_cli.inputs.images import grey_image
from more_cli.model.activations import Activations, Pass
from more_cli.model.backbones import Site
from more_cli.model.batches import Encoded, Query
from more_cli.model.branches import computes_in
from more_cli.model.loading import Blueprint, load_blueprint
from more_cli.model.machine import GIB, Machine
from more_cli.model.widened import multiplies_in
from more_cli.recipe.schema import Recipe
from more_cli.store.state import SiteRecord
from more_cli.system.environment import KERNELS
from more_cli.text import counted

LIBRARIES = 410 << 20
"""Bytes of Python, torch and transformers once a pass has used them, as measured."""
KERNEL = 950 << 10
"""Bytes of one compiled product in half precision, in both caches that keep it, as measured."""
ANSWER = 8
"""Tokens of an answer."""
HOLES = 0.36
"""Holes that glibc's heap has after a pass, as a part of what the pass holds, as measured on passes of 4 to 16 samples.

A block that is freed can be too small for the next one of its own size, which has to be aligned.
"""
STATES = 3
"""Copies of B and P beside the present ones: from the start of the run, the last save, and before the edit."""
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
    """Estimate the memory of editing a checkpoint at these sites, with so many anchors; loads no weights.

    A sequence has as many `tokens` as a question about one image unless said otherwise. `blueprint` is the checkpoint
    without weights, as the recipe asks it, if the caller has it; it takes on the dtype.
    """
    blueprint = blueprint or load_blueprint(checkpoint, **recipe.asking)
    model = blueprint.model.to(_dtype(checkpoint, blueprint.model, machine))
    images = (grey_image(),) if blueprint.prompter.family.sees else ()
    sample = blueprint.prompter.encode(Query(images, QUESTION), "a short answer")
    length = tokens or len(sample.input_ids)
    edits = 1 + recipe.rehearsal.size
    watched = watched_places(anchors, recipe.anchors.watched)  # writes do not train on these
    samples = edits + min(anchors - len(watched), recipe.anchors.size)
    activations = Activations.of(model, [site.module for site in sites])
    scored, most = _together(activations, edits, "forward", length), _together(activations, samples, "backward", length)
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    logits = most * ANSWER * vocabulary * (model.dtype.itemsize + 3 * 4)
    held = _site_bytes(sites, recipe, computes_in(model.dtype).itemsize)
    passed = activations.bytes(most * length, "backward") + logits
    of_passes = f"{most} of {counted(samples, 'sample')} at a time"
    # A write starts after the pass has ended, so only the larger of the two counts.
    if 2 * held.written > passed:
        passed, of_passes = 2 * held.written, "gradients and steps, larger than a pass"
    of_samples = samples * (sample.bytes + _features(model, sample))
    of_anchors = anchors * (ANSWER * vocabulary * 4 + sample.bytes)
    seen = [counted(samples, "sample"), *([counted(anchors, "anchor")] if anchors else [])]
    parts = (
        _weights(checkpoint, model),
        Part("sites", held.branches + held.P, f"A, B and P of {len(sites)}"),
        Part("undo", STATES * (held.written + held.P), f"{held.what} and P as they were, {STATES} times"),
        Part("steps", held.written, "the last write's steps"),
        Part("passes", passed + _converted(model, machine), of_passes),
        Part("holes", round(HOLES * passed) if machine.device == "cpu" else 0, "in the heap, after passes"),
        Part("images", of_samples + of_anchors, f"of {' and '.join(seen)}"),
        _kernels(model, sites, recipe, machine, scored, most),
        Part("libraries", LIBRARIES, "Python, torch, transformers"),
    )
    return Estimate(parts, machine.free(), length, samples, held.stored)


def require(needed: Estimate, checkpoint: Checkpoint, *, new: bool = False) -> None:
    """Refuse to edit if memory does not suffice, before a weight is loaded; of a `new` state sites can be left out.

    Raises:
        ResourceError: more memory is needed than is free.
    """
    if needed.free is None or needed.total <= needed.free:
        return
    fewer = ", or for a new state fewer sites (--set last=3, --set 'sites=[\"text.ffn_out\"]')" if new else ""
    raise ResourceError(
        f"editing `{checkpoint.path}` needs about {needed.total / GIB:.1f} GiB and "
        f"{needed.free / GIB:.1f} GiB are free (weights {needed.parts[0].bytes / GIB:.1f}, "
        f"sequences of {needed.tokens} tokens)",
        "`more status MODEL --estimate` lists the parts; --dtype bfloat16, another --device or --device-map auto"
        f"{fewer} need less; --memory GIB sets what counts as free",
    )


def _together(activations: Activations, samples: int, kind: Pass, length: int) -> int:
    """Return how many of these samples, of this length, go through the model at a time."""
    return max(map(len, activations.parts(range(samples), kind, lambda _: length)))


def _weights(checkpoint: Checkpoint, model: Any) -> Part:
    """Return the memory of the weights; those of bitsandbytes stay as they are on disk, others are unpacked."""
    size = model.dtype.itemsize * sum(weight.numel() for weight in model.parameters())
    for packed in checkpoint.packed.values() if checkpoint.scheme in bnb.SCHEMES else ():
        held = sum(entry.stop - entry.start for entry in packed.parts.values())
        size += held - model.dtype.itemsize * math.prod(packed.shape)
    scheme = f"{checkpoint.scheme} and " if checkpoint.scheme in bnb.SCHEMES else ""
    return Part("weights", size, f"in {scheme}{str(model.dtype).removeprefix('torch.')}")


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


@dataclass(frozen=True)
class _Held:
    """Bytes of the tensors of all sites."""

    A: int
    B: int
    P: int
    branches: int
    """A and B as the branches hold them."""
    trains_basis: bool
    stores_basis: bool

    @property
    def written(self) -> int:
        """What a write changes."""
        return self.B + self.A * self.trains_basis

    @property
    def what(self) -> str:
        """The same by its name."""
        return "A, B" if self.trains_basis else "B"

    @property
    def stored(self) -> int:
        """The tensors of the sidecar."""
        return self.B + self.P + self.A * self.stores_basis


def _rank(site: Site | SiteRecord, recipe: Recipe) -> int:
    """Return the rank of a site; a compaction has raised that of a state."""
    return site.rank if isinstance(site, SiteRecord) else recipe.rank_at(site.shape[1])


def _site_bytes(sites: Sequence[Site | SiteRecord], recipe: Recipe, size: int) -> _Held:
    """Return the bytes of A and B in float32 and of P in float64; branches compute in numbers of `size` bytes."""
    A = B = P = 0
    for site in sites:
        d_out, d_in = site.shape
        rank = _rank(site, recipe)
        A, B, P = A + 4 * rank * d_in, B + 4 * d_out * rank, P + 8 * rank * rank
    trained = recipe.basis_rate is not None
    # B stays in float32 beside what it is rounded to; an A that is trained does too, and its first values are kept.
    branches = A * size // 4 + B + (B * size // 4 if size < 4 else 0) + 2 * A * trained
    return _Held(A, B, P, branches, trained, recipe.stores_basis)


def _kernels(
    model: Any, sites: Sequence[Site | SiteRecord], recipe: Recipe, machine: Machine, scored: int, written: int
) -> Part:
    """Return what oneDNN compiles on a CPU for half precision: a kernel for each shape of each matrix product.

    Every number of samples has its own shapes: up to `scored` of them go forward, up to `written` backward too.
    """
    if machine.device != "cpu" or model.dtype.itemsize != 2:
        return Part("kernels", 0, "none")
    linears = {(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)}
    branches = {(*site.shape, _rank(site, recipe)) for site in sites}
    # A branch is two products forward; backward it is two more, and one for the gradient of B.
    count = scored * (len(linears) + 2 * len(branches)) + written * (len(linears) + 3 * len(branches))
    kept = min(count, KERNELS)
    return Part("kernels", kept * KERNEL, f"of {kept} shapes of matrix products")


def _converted(model: Any, machine: Machine) -> int:
    """Return the bytes of the largest matrix in float32, where products convert one matrix at a time."""
    if machine.device != "cpu" or multiplies_in(model.dtype):
        return 0
    return 4 * max(m.in_features * m.out_features for m in model.modules() if isinstance(m, nn.Linear))


def _features(model: Any, sample: Encoded) -> int:
    """Return the bytes of an image's cached vision features: two hidden states."""
    vision = getattr(model.config, "vision_config", None)
    pixels = sample.extras.get("pixel_values")
    if vision is None or pixels is None:
        return 0
    patch = getattr(vision, "patch_size", None) or 14
    area = math.prod(patch) if isinstance(patch, list | tuple) else patch**2
    # Qwen2-VL names its vision tower's width `embed_dim`, and the text model's `hidden_size`.
    width = getattr(vision, "embed_dim", None) or getattr(vision, "hidden_size", 0)
    return int(2 * model.dtype.itemsize * width * pixels.numel() // (3 * area))
