"""Load a checkpoint's model, processor and prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch

from more_cli.checkpoint.folder import GENERATION
from more_cli.checkpoint.headers import AGAIN, read_object
from more_cli.checkpoint.reader import Checkpoint, fingerprint
from more_cli.errors import ResourceError, StateError
from more_cli.model.families import family_of
from more_cli.model.keymap import auto_class, meta_model, quiet
from more_cli.model.machine import Machine
from more_cli.model.processors import load_processor, require_fit
from more_cli.model.prompts import Prompter
from more_cli.model.quantised import import_library, keep_differentiable, placed, require_right, unpacked
from more_cli.model.runtime import Runtime
from more_cli.model.widened import widen_products
from more_cli.recipe.tables import Asking
from more_cli.text import first_line, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_FITTING = set[tuple[tuple[str, str], ...]]()
"""The files of checkpoints whose processor fits the model: each by name and SHA-256."""


class Blueprint(NamedTuple):
    """A checkpoint before its weights are loaded."""

    model: PreTrainedModel
    """On the meta device."""
    prompter: Prompter


def load_blueprint(checkpoint: Checkpoint, model: PreTrainedModel | None = None, **asking: Unpack[Asking]) -> Blueprint:
    """Load all of a checkpoint but its weights; `model` is the one without weights, if the caller has it.

    Raises:
        StateError: processor or chat template are missing or do not load.
    """
    model = model or meta_model(checkpoint)
    return Blueprint(model, load_prompter(checkpoint, model, **asking))


def load_runtime(
    checkpoint: Checkpoint,
    machine: Machine | None = None,
    *,
    blueprint: Blueprint | None = None,
    reserve: int = 0,
    **asking: Unpack[Asking],
) -> Runtime:
    """Load a checkpoint's weights and processor; a device map leaves `reserve` bytes of each device free.

    `asking` is that of a recipe; `blueprint` is what `load_blueprint` gave for the same, if the caller has it.

    Raises:
        StateError: the files do not make a model, the processor does not fit it, or a library is missing.
        ResourceError: it does not fit into memory.
    """
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # commands show their own
    machine = machine or Machine()
    import_library(checkpoint)
    require_right(checkpoint, machine)
    blueprint = blueprint or load_blueprint(checkpoint, **asking)
    _require_fit_once(checkpoint, blueprint)
    # Set here, so that a config cannot ask for a kernel that would have to be downloaded.
    attention = machine.kernel(getattr(blueprint.model, "_supports_sdpa", False))
    load = partial(
        auto_class(checkpoint).from_pretrained,
        checkpoint.path,
        dtype=machine.dtype,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        attn_implementation=attention,
        **placed(checkpoint, machine, reserve),
        **unpacked(checkpoint),
    )
    try:
        with quiet():
            model: Any
            model, info = load(output_loading_info=True)
            if checkpoint.scheme is None and not machine.device_map:
                model.to(machine.device)
    except (MemoryError, torch.OutOfMemoryError):
        hint = "use --dtype bfloat16, another --device or --device-map auto"
        raise ResourceError(f"`{checkpoint.path}` does not fit into memory", hint) from None
    except Exception as error:  # files that we did not write can make transformers fail in any way
        misfit = isinstance(error, RuntimeError) and "ignore_mismatched_sizes" in str(error)
        reason = _misfit(load) if misfit else first_line(error)
        hint = "restore the `config.json` of these weights" if misfit else "check it with `more status`"
        raise StateError(f"`{checkpoint.path}` does not load: {reason}", hint) from error
    _require_whole(checkpoint, info["missing_keys"])
    keep_differentiable(model)
    widen_products(model)
    model.requires_grad_(False).eval()
    return Runtime(model, blueprint.prompter, checkpoint)


def _require_whole(checkpoint: Checkpoint, missing: Collection[str]) -> None:
    """Refuse weights that no file has: transformers fills them with random values, others each time."""
    if missing:
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        what = f"`{checkpoint.path}`: no tensor for `{shorten(min(missing))}`{others}, which would be random values"
        hint = f"{AGAIN}; or, if it answers right with any values there, save it once with save_pretrained"
        raise StateError(what, hint)


def _misfit(load: Callable[..., Any]) -> str:
    """Return which weight has another shape than the config says: transformers only logs that."""
    with quiet():
        _, info = load(ignore_mismatched_sizes=True, output_loading_info=True)
    name, found, wanted = min(info["mismatched_keys"])
    return f"`{name}` has shape {tuple(found)}, by `config.json` it is {tuple(wanted)}"


def load_fitting_blueprint(
    checkpoint: Checkpoint, model: PreTrainedModel | None = None, **asking: Unpack[Asking]
) -> Blueprint:
    """Load all of a checkpoint but its weights, and check that the model can take what its processor makes of an image.

    `model` is the one without weights, if the caller has it.

    Raises:
        StateError: processor or chat template are missing, do not load, or do not fit the model.
    """
    blueprint = load_blueprint(checkpoint, model, **asking)
    _require_fit_once(checkpoint, blueprint)
    return blueprint


def _require_fit_once(checkpoint: Checkpoint, blueprint: Blueprint) -> None:
    """Check that a processor fits its model, unless this process has found it so with the same files."""
    files = tuple(fingerprint(checkpoint, ()).items())
    if files not in _FITTING:
        require_fit(checkpoint.path, *blueprint)
        _FITTING.add(files)


def load_prompter(checkpoint: Checkpoint, model: PreTrainedModel | None = None, **asking: Unpack[Asking]) -> Prompter:
    """Load what turns questions into tokens, without weights.

    Raises:
        StateError: processor or chat template are missing or do not load.
    """
    with quiet():
        processor = load_processor(checkpoint.path)
    config = (model or meta_model(checkpoint)).config
    text = config.get_text_config(decoder=True)
    return Prompter(
        processor,
        family_of(config.model_type),
        max_length=getattr(text, "max_position_embeddings", None),
        decoder_start=decoder_start(text),
        stops=_stops(checkpoint.path, text),
        **asking,
    )


def _stops(path: Path, text: Any) -> list[int]:
    """Return the tokens at which a checkpoint's own settings of generation end an answer."""
    file = path / GENERATION
    found = (read_object(file) if file.is_file() else {}).get("eos_token_id", getattr(text, "eos_token_id", None))
    return [token for token in (found if isinstance(found, list) else [found]) if type(token) is int]


def decoder_start(text: Any) -> int | None:
    """Return the token that an encoder-decoder's decoder starts with, from its text config; None for other models."""
    if not text.is_encoder_decoder:
        return None
    start: int = text.pad_token_id if text.decoder_start_token_id is None else text.decoder_start_token_id
    return start
