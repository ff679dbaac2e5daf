"""Which disk tensor becomes which parameter, found without loading a weight.

transformers renames parameters between releases and keeps the published names on disk. Two independent methods say
what becomes what: transformers' own conversion tables, and the structure of the names. Where they disagree, nothing
may be edited: a write to the wrong tensor would silently damage a checkpoint.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from more_cli.checkpoint.folder import SAVED
from more_cli.checkpoint.headers import TensorEntry
from more_cli.checkpoint.reader import Checkpoint
from more_cli.errors import StateError
from more_cli.model.families import is_language_model
from more_cli.text import first_line, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_VISION = re.compile(r"vision|visual|image_newline")
_TEXT = re.compile(r"language_model|text_model|lm_head")
_NATIVE = "only image-text and causal language models built into transformers can be edited; remote code is never run"


@dataclass(frozen=True)
class KeyMap:
    """Parameter names in memory and the disk keys they are read from."""

    disk: Mapping[str, str]
    """Parameter -> the one disk key it is read from."""
    how: str
    """`transformers and structure`, or the reason why only one method was used."""
    converted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameter -> the disk keys it is built from at load (fused, transposed)."""
    disputed: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> how the two methods disagree."""


def auto_class(checkpoint: Checkpoint) -> Any:
    """Return the class of transformers that builds and loads a checkpoint's model, by its `model_type`."""
    # transformers takes seconds to import, and a command with nothing left to do does not need it.
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    alone = is_language_model(str(checkpoint.config.get("model_type", "")))
    return AutoModelForCausalLM if alone else AutoModelForImageTextToText


def meta_model(checkpoint: Checkpoint) -> PreTrainedModel:
    """Build the checkpoint's model without weights (on the meta device), from config.json alone.

    Raises:
        StateError: transformers has no such model, or cannot build it from this config.
    """
    from transformers import AutoConfig

    path = checkpoint.path
    with quiet():
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
            with torch.device("meta"):
                # Eager attention: a config may name a kernel that would have to be installed or downloaded.
                build = auto_class(checkpoint).from_config
                model: PreTrainedModel = build(config, attn_implementation="eager", trust_remote_code=False)
            model.tie_weights()
        except Exception as error:  # a config we did not write can make transformers fail in any way
            what, hint = _why_not(checkpoint.config, error)
            raise StateError(f"{path}: {what}", hint) from error
    named = checkpoint.config.get("architectures")
    if named and named != [type(model).__name__]:
        what = f"config.json names architectures {named!r}, transformers' own is {type(model).__name__}"
        raise StateError(f"{path}: {what}", _NATIVE)
    return model


def key_map(model: PreTrainedModel, checkpoint: Checkpoint) -> KeyMap:
    """Map the model's parameters to disk keys by both methods; where these disagree, a parameter is `disputed`.

    Raises:
        StateError: transformers would load no tensor of the checkpoint.
    """
    structure = _by_structure(model, checkpoint.weights)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    try:
        tables, converted = _by_tables(model, checkpoint.weights)
    except (ImportError, AttributeError, TypeError) as error:  # not a documented interface: it may move
        return KeyMap(structure, f"structure alone ({type(error).__name__}: {error})")
    if not tables and not converted:
        key = min(checkpoint.weights, default="none")
        what = f"no tensor has a name that {type(model).__name__} loads (`{shorten(key)}`)"
        raise StateError(f"{checkpoint.path}: {what}", SAVED)
    disputed = {}
    for name in sorted((set(tables) | set(structure)) - set(converted)):
        by_tables, by_structure = tables.get(name), structure.get(name)
        # Structure matches equal shapes only. A tensor with another shape on disk is quantised: a separate refusal.
        odd = by_tables and checkpoint.weights[by_tables].shape != shapes[name]
        if by_tables != by_structure and not (odd and by_structure is None):
            disputed[name] = f"{by_tables} by transformers' tables, {by_structure} by structure"
    disk = {name: key for name, key in tables.items() if name not in disputed}
    return KeyMap(disk, "transformers and structure", converted, disputed)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers, accelerate and the warnings module; restore them on exit."""
    loggers = [logging.getLogger(name) for name in ("transformers", "accelerate")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _why_not(config: Mapping[str, Any], error: Exception) -> tuple[str, str]:
    """Return why transformers builds no model from a config, and a hint."""
    model_type = config.get("model_type")
    if "auto_map" in config:
        return f"model_type {model_type!r} needs code from its repository (auto_map)", _NATIVE
    import transformers
    from transformers.models.auto import modeling_auto as names

    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        return f"model_type {model_type!r} is unknown to transformers {transformers.__version__}", _NATIVE
    if not is_language_model(model_type) and model_type not in names.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return f"model_type {model_type!r} is neither an image-text nor a causal language model", _NATIVE
    return f"transformers cannot build a model from config.json ({first_line(error)[:200]})", _NATIVE


# ------------------------------------------------------------------------------- transformers' own tables


def _by_tables(
    model: PreTrainedModel, tensors: Mapping[str, TensorEntry]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Rename every disk key as `from_pretrained` would: parameter -> key, and those that pass a converter."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    steps = get_model_conversion_mapping(model)
    renamings = [step for step in steps if isinstance(step, WeightRenaming)]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    parameters = model.state_dict()
    found: dict[str, str] = {}
    converted: dict[str, tuple[str, ...]] = {}
    for key in sorted(tensors, key=dot_natural_key):  # in from_pretrained's order: some renamings keep a count
        # Positional: the fourth parameter has had two names.
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, parameters)
        if name not in parameters and key in parameters:
            name, pattern = rename_source_key(key, [], [], model.base_model_prefix, parameters)
        if name not in parameters:
            continue
        if pattern is not None or name in found or name in converted:
            # Two keys for one parameter are not a plain copy either.
            before = (found.pop(name),) if name in found else converted.get(name, ())
            converted[name] = (*before, key)
        else:
            found[name] = key
    return found, converted


# ------------------------------------------------------------------------------- the structure of the names


def _by_structure(model: PreTrainedModel, tensors: Mapping[str, TensorEntry]) -> dict[str, str]:
    """Match names by their longest common dotted suffix with equal shape, whole prefixes at a time.

    Each such match votes for one exchange of prefixes (`model.language_model.` for `language_model.model.`). The
    exchanges that explain most parameters are applied first, each disk key is used once, and text never becomes
    vision.
    """
    found: dict[str, str] = {}
    used: set[str] = set()
    votes = _votes(model, tensors).items()
    for (mine, theirs), pairs in sorted(votes, key=lambda vote: (-len(vote[1]), -len(vote[0][0]), vote)):
        if {_modality(mine), _modality(theirs)} == {"text", "visual"}:
            continue
        for name, key in pairs:
            if name not in found and key not in used:
                found[name] = key
                used.add(key)
    return found


def _votes(model: PreTrainedModel, tensors: Mapping[str, TensorEntry]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return, for each exchange of prefixes, the pairs of a parameter and a disk key that it explains."""
    by_suffix: dict[str, list[str]] = defaultdict(list)
    for key in tensors:
        for suffix in _suffixes(key):
            by_suffix[suffix].append(key)
    votes: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for name, parameter in model.state_dict().items():
        shape = tuple(parameter.shape)
        for suffix in _suffixes(name):
            keys = [key for key in by_suffix.get(suffix, ()) if tensors[key].shape == shape]
            for key in keys:
                votes[name.removesuffix(suffix), key.removesuffix(suffix)].append((name, key))
            if keys:
                break
    return votes


def _suffixes(name: str) -> Iterator[str]:
    """The name, then what is left of it after each dot: longest first."""
    yield name
    while "." in name:
        name = name.split(".", 1)[1]
        yield name


def _modality(prefix: str) -> str:
    if _VISION.search(prefix):
        return "visual"
    return "text" if _TEXT.search(prefix) else ""
