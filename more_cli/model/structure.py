"""The parts of a model, found by structure and checked against the table of families.

If a release of transformers moves the modules of a listed family, that is an error: no other site is taken instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from torch import nn

from more_cli.errors import StateError
from more_cli.model.families import Backbone, family_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Leaf names of feed-forward Linears, over all families seen; the gate of a gated MLP reads the same input as `up`.
_FFN_OUT = ("down_proj", "fc2", "linear_fc2", "wo", "w2", "c_proj", "fc_out", "dense_4h_to_h")
_FFN_IN = (
    *("up_proj", "gate_proj", "gate_up_proj", "fc1", "linear_fc1", "wi", "wi_0", "wi_1", "w1", "w3", "c_fc"),
    "dense_h_to_4h",
)
_QFORMER_OUT = ("output_query.dense",)
_NOT_FFN = re.compile(r"attn|attention|router|(^|\.)experts?(\.|$)", re.IGNORECASE)
_PROJECTORS = {
    *("multi_modal_projector", "mm_projector", "language_projection", "connector", "merger", "aligner"),
    *("deepstack_merger_list", "vision_adapter", "embed_vision"),
}


def find_backbone(model: PreTrainedModel) -> Backbone:
    """Find the parts of a model by structure, and check them against the table where its paths exist.

    Raises:
        StateError: No text layers, or the table expects other modules.
    """
    found = _discover(model)
    expected = family_of(model.config.model_type).backbone or found
    for field in fields(Backbone):
        ours, theirs = getattr(expected, field.name), getattr(found, field.name)
        # The table does not apply to a variant (LLaVA with another tower) whose modules it does not name.
        if ours and ours != theirs and _applies(model, expected, field.name):
            raise StateError(
                f"{model.config.model_type}: {field.name} is {theirs}, expected {ours}",
                "install a transformers release that this version of more-vlm was tested with",
            )
    return found


def layers_of(model: PreTrainedModel, stacks: Iterable[str]) -> list[str]:
    """Module paths of the layers in these ModuleLists, in order."""
    return [f"{stack}.{name}" for stack in stacks for name, _ in model.get_submodule(stack).named_children()]


def text_layers(model: PreTrainedModel, backbone: Backbone) -> list[str]:
    """Module paths of the text layers, first to last."""
    return layers_of(model, (backbone.text_layers,))


def used_vision_layers(model: PreTrainedModel, backbone: Backbone) -> list[str]:
    """Module paths of the vision layers that features come from, first to last.

    LLaVA reads the last layer but one (`vision_feature_layer` -2), so the last one gets no gradient.
    """
    paths = layers_of(model, backbone.vision_layers)
    chosen = _feature_layers(model, len(paths))
    return paths[: 1 + max(chosen)] if chosen else paths


def read_vision_layers(model: PreTrainedModel, backbone: Backbone, first: Sequence[str]) -> list[str]:
    """Module paths of those vision layers among `first` whose outputs later modules read.

    All of them in an unlisted family: how its configuration names them is not known.
    """
    paths = layers_of(model, backbone.vision_layers)
    if family_of(model.config.model_type).backbone is None:
        return list(first)
    vision = getattr(model.config, "vision_config", None)
    also = [getattr(vision, name, None) or () for name in ("deepstack_visual_indexes", "intermediate_layers_indices")]
    last = len(paths) - 1
    read = {*(_feature_layers(model, len(paths)) or [last]), *(layer for layers in also for layer in layers)}
    if len(first) < len(paths):
        read.add(len(first) - 1)  # by the layer that follows
    return [path for index, path in enumerate(first) if index in read]


def frozen_vision_layers(model: PreTrainedModel, backbone: Backbone, edited: Sequence[str]) -> list[str]:
    """Module paths of the vision layers, from the first one on, whose outputs edits of these modules cannot change."""
    paths = layers_of(model, backbone.vision_layers)
    after = [path for path in edited if any(path.startswith(f"{root}.") or path == root for root in backbone.projector)]
    inside = [path for path in edited if path.startswith(f"{backbone.vision_tower}.") and path not in after]
    places = [[place for place, layer in enumerate(paths) if path.startswith(f"{layer}.")] for path in inside]
    # An edited module outside the layers, such as an embedding, counts as before all of them.
    return paths[: min((place[0] if place else 0 for place in places), default=len(paths))]


def frozen_text_layers(model: PreTrainedModel, backbone: Backbone, edited: Sequence[str]) -> list[str]:
    """Module paths of the text layers before the first edited one: edits of these modules cannot change their outputs.

    Empty if nothing is edited, or if a module outside the text layers is: it may change what all of them read.
    """
    paths = text_layers(model, backbone)
    places = [next((n for n, layer in enumerate(paths) if f"{path}.".startswith(f"{layer}.")), 0) for path in edited]
    return paths[: min(places, default=0)]


def _feature_layers(model: PreTrainedModel, count: int) -> list[int]:
    """Indices of the layers that `vision_feature_layer` names; empty if the config has no such entry.

    hidden_states[0] is the embedding, so state i is the output of layer i - 1, and -1 that of the last.
    """
    chosen = getattr(model.config, "vision_feature_layer", None)
    states: Sequence[int] = chosen if isinstance(chosen, list | tuple) else [] if chosen is None else [chosen]
    return [state - 1 if state >= 0 else count + state for state in states]


def _discover(model: PreTrainedModel) -> Backbone:
    names = {id(module): name for name, module in model.named_modules()}
    text_root = names.get(id(model.get_decoder()), "")
    tower = names.get(id(model.get_encoder(modality="image")), "")
    decoders = [path for path in _stacks(model, text_root) if "encoder" not in path.split(".")]
    if not decoders:
        raise StateError(f"{type(model).__name__}: no text layers found", "use a checkpoint of another family")
    text = max(decoders, key=lambda path: len(layers_of(model, (path,))))
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


def _leaves(model: PreTrainedModel, stacks: Iterable[str], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Feed-forward modules of those names, relative to their layer, over all layers (which may differ)."""
    found: dict[str, None] = {}
    for layer in layers_of(model, stacks):
        for name, module in model.get_submodule(layer).named_modules():
            if f".{name}".endswith(tuple(f".{leaf}" for leaf in wanted)) and not _NOT_FFN.search(name):
                found.update({name: None} if not list(module.children()) else {})
    return tuple(sorted(found))


def _applies(model: PreTrainedModel, expected: Backbone, field: str) -> bool:
    """Whether the modules that the table names for a field exist in the model."""
    value = getattr(expected, field)
    paths = (value,) if isinstance(value, str) else value
    text = (expected.text_layers,)
    stacks = {"text_ffn_in": text, "text_ffn_out": text, "vision_ffn_out": expected.vision_layers}
    modules = {name for name, _ in model.named_modules()}
    if field in stacks:
        paths = tuple(f"{stack}.0.{path}" for stack in stacks[field] for path in paths)
    return modules.issuperset(paths)
