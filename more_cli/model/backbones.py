"""The sites (editable weights) of a vision-language model by name, and why other modules cannot be edited."""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from more_cli.checkpoint.headers import FLOATS
from more_cli.checkpoint.quantised import quantisation
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError, UsageError
from more_cli.model.families import Backbone
from more_cli.model.keymap import KeyMap
from more_cli.model.structure import find_backbone, layers_of, used_vision_layers
from more_cli.recipe.schema import BY_PATH, SITE_GROUPS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_EXPERTS = re.compile(r"(^|\.)experts?$")
_READS_IMAGES = re.compile(r"\.cross_attn\.[kv]_(proj|norm)$")


@dataclass(frozen=True)
class Site:
    """One editable weight: a Linear that exists unchanged on disk, or quantised by a known scheme."""

    name: str
    """Short and unique in the model, such as `text.31.down_proj`."""
    group: str
    modality: str
    """`text` or `visual`: whose positions its keys are pooled over."""
    module: str
    """Path of the Linear in memory; its parameter is `module.weight`."""
    disk_key: str
    shape: tuple[int, int]
    """(d_out, d_in)"""
    dtype: str
    """On disk, as a header names it (`BF16`), or the scheme it is quantised by (`nf4`)."""


@dataclass(frozen=True)
class Refusal:
    """A module that belongs to a group but cannot be edited, and why."""

    module: str
    reason: str


def find_sites(
    model: PreTrainedModel,
    keys: KeyMap,
    checkpoint: Checkpoint,
    groups: Sequence[str],
    last: int | None,
    *,
    last_vision: int | None = None,
    optional: Sequence[str] = (),
) -> tuple[list[Site], list[Refusal]]:
    """List the editable weights of the groups, and the modules that belong to them but cannot be edited.

    A group is one of `SITE_GROUPS`, or `re:` and a regular expression that matches whole module paths. Of a named one
    only the `last` text layers, used vision layers and Q-Former layers count, or all; `last_vision` says otherwise for
    vision layers. `optional` groups may have no site.

    Raises:
        UsageError: An unknown group, or `last` below 1.
        StateError: A group without a single site, and not optional.
    """
    unknown = [group for group in groups if group not in SITE_GROUPS and not group.startswith(BY_PATH)]
    if unknown:
        raise UsageError(f"unknown site group {unknown[0]!r}", f"one of: {', '.join(SITE_GROUPS)}, or {BY_PATH}<regex>")
    if last is not None and last < 1:
        raise UsageError(f"last {last} layers: must be at least 1", "leave it out for all layers")
    backbone = find_backbone(model)
    names, shared = _names(model, backbone), _aliases(model)
    sites: dict[str, Site] = {}
    refusals: dict[str, Refusal] = {}
    for group in dict.fromkeys(groups):
        layers = last_vision if last_vision and group == "vision.ffn_out" else last
        candidates = list(_candidates(model, backbone, group, layers))
        for module in candidates:
            reason = _why_not(model, keys, checkpoint, shared, module) or _misplaced(backbone, module)
            if reason:
                refusals[module] = Refusal(module, reason)
            elif module not in sites:  # a regular expression may match modules of another group
                sites[module] = _site(keys, checkpoint, group, names.get(module, module), module, backbone)
        if group not in optional and not sites.keys() & set(candidates):
            raise _no_site(model, group, [refusals[module] for module in candidates])
    return list(sites.values()), list(refusals.values())


# ----------------------------------------------------------------------------------------- candidates


def _candidates(model: PreTrainedModel, backbone: Backbone, group: str, last: int | None) -> Iterator[str]:
    """Paths of everything that belongs to a group, editable or not."""
    if group.startswith(BY_PATH):
        pattern = re.compile(group.removeprefix(BY_PATH))
        for path, module in model.named_modules():
            if pattern.fullmatch(path) and any(True for _ in module.parameters(recurse=False)):
                yield path
        return
    if group == "projector":
        yield from (path for root in backbone.projector for path in _matrices(model, root))
        return
    layers, wanted = {
        "text.ffn_in": (layers_of(model, (backbone.text_layers,)), backbone.text_ffn_in),
        "text.ffn_out": (layers_of(model, (backbone.text_layers,)), backbone.text_ffn_out),
        "vision.ffn_out": (used_vision_layers(model, backbone), backbone.vision_ffn_out),
        "qformer": (layers_of(model, filter(None, [backbone.qformer_layers])), backbone.qformer_out),
    }[group]
    for layer in layers[0 if last is None else -last :]:
        for name, _ in model.get_submodule(layer).named_modules():
            if name in wanted or _EXPERTS.search(name):
                yield f"{layer}.{name}"


def _matrices(model: PreTrainedModel, root: str) -> Iterator[str]:
    """Paths of the modules that hold a matrix directly: Linears, and what is used like one."""
    for inside, module in model.get_submodule(root).named_modules():
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
            yield f"{root}.{inside}".rstrip(".")


def _names(model: PreTrainedModel, backbone: Backbone) -> dict[str, str]:
    """Short names of the modules of the layers and of the projector, by path."""
    names = {}
    stacks = {
        "text": (backbone.text_layers,),
        "vision": backbone.vision_layers,
        "qformer": tuple(filter(None, [backbone.qformer_layers])),
    }
    for kind, lists in stacks.items():
        for index, layer in enumerate(layers_of(model, lists)):
            inside = [name for name, _ in model.get_submodule(layer).named_modules() if name]
            leaves = Counter(name.rpartition(".")[2] for name in inside)
            for name in inside:
                leaf = name.rpartition(".")[2]
                names[f"{layer}.{name}"] = f"{kind}.{index}.{leaf if leaves[leaf] == 1 else name}"
    for root in backbone.projector:
        for path in _matrices(model, root):
            below = path.removeprefix(root).lstrip(".")
            prefix = root.rpartition(".")[2] if len(backbone.projector) > 1 or not below else ""
            names[path] = ".".join(filter(None, ("projector", prefix, below)))
    return names


def _modality(backbone: Backbone, path: str) -> str:
    """Which positions a module reads: `text`, `visual`, or empty if it reads neither alone."""
    if path.startswith(f"{backbone.text_layers}."):
        return "" if _READS_IMAGES.search(path) else "text"
    visual = (backbone.vision_tower, backbone.qformer_layers, *backbone.projector)
    return "visual" if any(f"{path}.".startswith(f"{root}.") for root in visual if root) else ""


def _misplaced(backbone: Backbone, path: str) -> str:
    """Why a module matched by a regular expression has no positions to pool keys over; empty if it has some."""
    if _modality(backbone, path):
        return ""
    inside = path.startswith(f"{backbone.text_layers}.")
    return "reads image features inside a text layer" if inside else "neither in a text layer nor on the image's path"


def _why_not(
    model: PreTrainedModel,
    keys: KeyMap,
    checkpoint: Checkpoint,
    shared: Mapping[str, Sequence[str]],
    path: str,
) -> str:
    """Why a module cannot be edited; empty if it can."""
    module = model.get_submodule(path)
    if type(module) is not nn.Linear:  # exactly: quantised classes and routers inherit from it
        held = [name for name, parameter in module.named_parameters(recurse=False) if parameter.dim() > 1]
        what = f"{type(module).__name__} with raw parameters {', '.join(held)}" if held else type(module).__name__
        return f"{what}, not a plain Linear"
    name = f"{path}.weight"
    if shared[name]:
        return f"tied to {', '.join(shared[name])}"
    if name in keys.converted:
        return f"built at load from {', '.join(keys.converted[name][:2])}"
    if name in keys.disputed:
        return f"its disk key is not certain: {keys.disputed[name]}"
    if name not in keys.disk:
        methods = ", ".join(f"{method} in {place}" for place, method in quantisation(checkpoint.config).items())
        return "no tensor on disk" + (f" (quantised: {methods})" if methods else "")
    entry = checkpoint.weights[keys.disk[name]]
    packed = entry.key in checkpoint.packed
    stem = entry.key.removesuffix("weight")
    others = [key for key in checkpoint.tensors if key.startswith(stem) and key not in (entry.key, f"{stem}bias")]
    if not packed and (entry.dtype not in FLOATS or others):
        beside = f" beside {', '.join(key.removeprefix(stem) for key in sorted(others)[:3])}" if others else ""
        return f"quantised: {entry.dtype}{beside}"
    if entry.shape != (shape := (module.out_features, module.in_features)):
        return f"shape {entry.shape} on disk, {shape} in the model"
    return ""


def _site(keys: KeyMap, checkpoint: Checkpoint, group: str, name: str, path: str, backbone: Backbone) -> Site:
    entry = checkpoint.weights[keys.disk[f"{path}.weight"]]
    shape = entry.shape[0], entry.shape[1]
    dtype = checkpoint.packed[entry.key].scheme if entry.key in checkpoint.packed else entry.dtype
    return Site(name, group, _modality(backbone, path), path, entry.key, shape, dtype)


def _aliases(model: PreTrainedModel) -> dict[str, list[str]]:
    """For each parameter name, the other names of the same parameter."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return {name: [other for other in group if other != name] for group in names.values() for name in group}


def _no_site(model: PreTrainedModel, group: str, refusals: Sequence[Refusal]) -> StateError:
    if refusals:
        why = f"{refusals[0].module}: {refusals[0].reason}"
        more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        return StateError(f"nothing to edit in {group}: {why}{more}", "choose other sites in the recipe")
    linears = {re.sub(r"\.\d+\.", ".N.", name) for name, module in model.named_modules() if type(module) is nn.Linear}
    near = difflib.get_close_matches(group, sorted(linears), n=3, cutoff=0.0)
    what = f"nothing to edit in {group}: {type(model).__name__} has no such part"
    return StateError(what, f"choose other sites in the recipe; nearest Linears: {', '.join(near)}")
