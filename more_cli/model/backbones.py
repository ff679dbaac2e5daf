"""Where a vision-language model can be edited: its sites, found by structure and checked against a table.

Structure alone finds the sites of a family nobody has listed. The table says, for families somebody has, what must be
found: a release of transformers that moves their modules is an error, never another site.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from torch import nn

from more_cli.checkpoint import FLOATS, Checkpoint, quantisation
from more_cli.errors import StateError, UsageError
from more_cli.model.keymap import KeyMap
from more_cli.recipe import SITE_GROUPS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Leaf names of feed-forward Linears, over all families seen; the gate of a gated MLP reads the same input as `up`.
_FFN_OUT = ("down_proj", "fc2", "linear_fc2", "wo", "w2", "c_proj", "fc_out", "dense_4h_to_h")
_FFN_IN = ("up_proj", "gate_proj", "fc1", "linear_fc1", "wi", "wi_0", "wi_1", "w1", "w3", "c_fc", "dense_h_to_4h")
_QFORMER_OUT = ("output_query.dense",)
_NOT_FFN = re.compile(r"attn|attention|router|(^|\.)experts?(\.|$)", re.IGNORECASE)
_EXPERTS = re.compile(r"(^|\.)experts?$")
_PROJECTORS = {
    *("multi_modal_projector", "mm_projector", "language_projection", "connector", "merger", "aligner"),
    *("deepstack_merger_list", "vision_adapter", "embed_vision"),
}


@dataclass(frozen=True)
class Site:
    """One editable weight: a Linear that exists unchanged on disk."""

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
    """On disk, as a header names it (`BF16`)."""


@dataclass(frozen=True)
class Refusal:
    """A module that belongs to a group but cannot be edited, and why."""

    module: str
    reason: str


@dataclass(frozen=True)
class Backbone:
    """Module paths of the parts of one model; empty where it has no such part."""

    text_layers: str
    """The ModuleList of text layers."""
    text_ffn_in: tuple[str, ...]
    """Relative to a text layer. Both branches of a gated MLP."""
    text_ffn_out: tuple[str, ...]
    projector: tuple[str, ...]
    """All that lies between vision features and text embeddings, in module order."""
    vision_tower: str
    vision_layers: tuple[str, ...]
    """The ModuleLists of vision layers, in the order they run."""
    vision_ffn_out: tuple[str, ...]
    qformer_layers: str = ""
    qformer_out: tuple[str, ...] = ()


_LLAVA = Backbone(
    text_layers="model.language_model.layers",
    text_ffn_in=("mlp.gate_proj", "mlp.up_proj"),
    text_ffn_out=("mlp.down_proj",),
    projector=("model.multi_modal_projector",),
    vision_tower="model.vision_tower",
    vision_layers=("model.vision_tower.encoder.layers",),
    vision_ffn_out=("mlp.fc2",),
)

FAMILIES = {"llava": _LLAVA, "llava_next": _LLAVA, "llava_onevision": _LLAVA}
"""What structural discovery must find, by `model_type`."""


def find_backbone(model: PreTrainedModel) -> Backbone:
    """Find the parts of a model by structure, and check them against the table where its paths exist.

    Raises:
        StateError: No text layers, or the table expects other modules.
    """
    found = _discover(model)
    expected = FAMILIES.get(model.config.model_type, found)
    for field in fields(Backbone):
        ours, theirs = getattr(expected, field.name), getattr(found, field.name)
        # The table is silent about a variant (LLaVA around another tower) whose modules it does not describe.
        if ours and ours != theirs and _speaks(model, expected, field.name):
            raise StateError(
                f"{model.config.model_type}: {field.name} is {theirs}, expected {ours}",
                "install a transformers release that this version of more-cli was tested with",
            )
    return found


def text_layers(model: PreTrainedModel) -> list[str]:
    """Module paths of the text layers, first to last."""
    return _layer_paths(model, (find_backbone(model).text_layers,))


def used_vision_layers(model: PreTrainedModel) -> list[str]:
    """Module paths of the vision layers that features come from, first to last.

    LLaVA reads the last layer but one (`vision_feature_layer` -2), so the last one gets no gradient.
    """
    return _used(model, find_backbone(model))


def find_sites(
    model: PreTrainedModel, keys: KeyMap, checkpoint: Checkpoint, groups: Sequence[str], last: int | None
) -> tuple[list[Site], list[Refusal]]:
    """List the editable weights of the groups, and the modules that belong to them but cannot be edited.

    Args:
        model: On the meta device or loaded.
        keys: The model's own map.
        checkpoint: Whose headers say what is on disk.
        groups: Of `SITE_GROUPS`.
        last: Only the last so many text layers, used vision layers and Q-Former layers; None for all.

    Raises:
        UsageError: An unknown group, or `last` below 1.
        StateError: A group without a single site.
    """
    unknown = [group for group in groups if group not in SITE_GROUPS]
    if unknown:
        raise UsageError(f"unknown site group {unknown[0]!r}", f"one of: {', '.join(SITE_GROUPS)}")
    if last is not None and last < 1:
        raise UsageError(f"last {last} layers", "give a number of at least 1, or none for all layers")
    backbone = find_backbone(model)
    shared = _aliases(model)
    sites: list[Site] = []
    refusals: list[Refusal] = []
    for group in dict.fromkeys(groups):
        before = len(sites), len(refusals)
        for name, module in _candidates(model, backbone, group, last):
            reason = _why_not(model, keys, checkpoint, shared, module)
            if reason:
                refusals.append(Refusal(module, reason))
            else:
                sites.append(_site(keys, checkpoint, group, name, module))
        if len(sites) == before[0]:
            raise _no_site(model, group, refusals[before[1] :])
    return sites, refusals


# ----------------------------------------------------------------------------------------- structure


def _discover(model: PreTrainedModel) -> Backbone:
    names = {id(module): name for name, module in model.named_modules()}
    text_root = names.get(id(model.get_decoder()), "")
    tower = names.get(id(model.get_encoder(modality="image")), "")
    decoders = [path for path in _stacks(model, text_root) if "encoder" not in path.split(".")]
    if not decoders:
        raise StateError(f"{type(model).__name__}: no text layers found", "use a checkpoint of another family")
    text = max(decoders, key=lambda path: len(_layer_paths(model, (path,))))
    vision = tuple(_stacks(model, tower)) if tower else ()
    qformer = tuple(path for path in _stacks(model, "") if "qformer" in path.split("."))[:1]
    return Backbone(
        text_layers=text,
        text_ffn_in=_leaves(model, (text,), _FFN_IN),
        text_ffn_out=_leaves(model, (text,), _FFN_OUT),
        projector=_outermost(name for name in names.values() if _PROJECTORS & {name.rpartition(".")[2]}),
        vision_tower=tower,
        vision_layers=vision,
        vision_ffn_out=_leaves(model, vision, _FFN_OUT),
        qformer_layers="".join(qformer),
        qformer_out=_leaves(model, qformer, _QFORMER_OUT),
    )


def _stacks(model: PreTrainedModel, root: str) -> list[str]:
    """Paths of the outermost ModuleLists under a module, projectors left out."""
    lists = (name for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    outer = _outermost(name for name in lists if name.startswith(f"{root}." if root else ""))
    return [name for name in outer if not _PROJECTORS & set(name.split("."))]


def _outermost(names: Iterable[str]) -> tuple[str, ...]:
    """Those names that lie under no other; modules come before what is inside them."""
    kept: list[str] = []
    for name in names:
        if not any(name.startswith(f"{outer}.") for outer in kept):
            kept.append(name)
    return tuple(kept)


def _layer_paths(model: PreTrainedModel, stacks: Iterable[str]) -> list[str]:
    return [f"{stack}.{name}" for stack in stacks for name, _ in model.get_submodule(stack).named_children()]


def _leaves(model: PreTrainedModel, stacks: Iterable[str], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Feed-forward modules of those names, relative to their layer, over all layers (which may differ)."""
    found: dict[str, None] = {}
    for layer in _layer_paths(model, stacks):
        for name, module in model.get_submodule(layer).named_modules():
            if f".{name}".endswith(tuple(f".{leaf}" for leaf in wanted)) and not _NOT_FFN.search(name):
                found.update({name: None} if not list(module.children()) else {})
    return tuple(sorted(found))


def _speaks(model: PreTrainedModel, expected: Backbone, field: str) -> bool:
    """Whether the modules that the table names for a field exist in the model."""
    value = getattr(expected, field)
    paths = (value,) if isinstance(value, str) else value
    text = (expected.text_layers,)
    stacks = {"text_ffn_in": text, "text_ffn_out": text, "vision_ffn_out": expected.vision_layers}
    modules = {name for name, _ in model.named_modules()}
    if field in stacks:
        paths = tuple(f"{stack}.0.{path}" for stack in stacks[field] for path in paths)
    return modules.issuperset(paths)


# ----------------------------------------------------------------------------------------- candidates


def _candidates(model: PreTrainedModel, backbone: Backbone, group: str, last: int | None) -> Iterator[tuple[str, str]]:
    """Name and module path of everything that belongs to a group, editable or not."""
    if group == "projector":
        yield from _projector_candidates(model, backbone.projector)
        return
    kind = group.partition(".")[0]
    layers, wanted = {
        "text.ffn_in": (_layer_paths(model, (backbone.text_layers,)), backbone.text_ffn_in),
        "text.ffn_out": (_layer_paths(model, (backbone.text_layers,)), backbone.text_ffn_out),
        "vision.ffn_out": (_used(model, backbone), backbone.vision_ffn_out),
        "qformer": (_layer_paths(model, filter(None, [backbone.qformer_layers])), backbone.qformer_out),
    }[group]
    first = 0 if last is None else max(0, len(layers) - last)
    for index, layer in enumerate(layers[first:], first):
        inside = [name for name, _ in model.get_submodule(layer).named_modules()]
        here = [name for name in inside if name in wanted or _EXPERTS.search(name)]
        leaves = [name.rpartition(".")[2] for name in here]
        for name, leaf in zip(here, leaves, strict=True):
            short = leaf if leaves.count(leaf) == 1 and kind != "qformer" else name
            yield f"{kind}.{index}.{short}", f"{layer}.{name}"


def _projector_candidates(model: PreTrainedModel, roots: Sequence[str]) -> Iterator[tuple[str, str]]:
    for root in roots:
        for inside, module in model.get_submodule(root).named_modules():
            # A matrix held directly: a Linear, or something used like one.
            if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
                prefix = root.rpartition(".")[2] if len(roots) > 1 or not inside else ""
                yield ".".join(filter(None, ("projector", prefix, inside))), f"{root}.{inside}".rstrip(".")


def _why_not(
    model: PreTrainedModel,
    keys: KeyMap,
    checkpoint: Checkpoint,
    shared: Mapping[str, Sequence[str]],
    path: str,
) -> str:
    """Why a module cannot be edited, in words; empty if it can."""
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
    entry = checkpoint.tensors[keys.disk[name]]
    stem = entry.key.removesuffix("weight")
    others = [key for key in checkpoint.tensors if key.startswith(stem) and key not in (entry.key, f"{stem}bias")]
    if entry.dtype not in FLOATS or others:
        beside = f" beside {', '.join(key.removeprefix(stem) for key in sorted(others)[:3])}" if others else ""
        return f"quantised: {entry.dtype}{beside}"
    if entry.shape != tuple(module.weight.shape):
        return f"shape {entry.shape} on disk, {tuple(module.weight.shape)} in the model"
    return ""


def _site(keys: KeyMap, checkpoint: Checkpoint, group: str, name: str, path: str) -> Site:
    entry = checkpoint.tensors[keys.disk[f"{path}.weight"]]
    modality = "text" if group.startswith("text.") else "visual"
    return Site(name, group, modality, path, entry.key, (entry.shape[0], entry.shape[1]), entry.dtype)


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


def _used(model: PreTrainedModel, backbone: Backbone) -> list[str]:
    paths = _layer_paths(model, backbone.vision_layers)
    chosen = getattr(model.config, "vision_feature_layer", None)
    if chosen is None or not paths:
        return paths
    # hidden_states[0] is the embedding, so state i is the output of layer i - 1, and -1 that of the last.
    states = chosen if isinstance(chosen, list | tuple) else [chosen]
    return paths[: max(0, *(state if state >= 0 else len(paths) + 1 + state for state in states))]
