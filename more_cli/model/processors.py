"""A checkpoint's processor: loaded from local files only, and compared with its model before a weight is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from more_cli.errors import DataError, StateError
from more_cli.inputs.images import grey_image
from more_cli.model.batches import Encoded, Query, collate
from more_cli.model.families import is_language_model
from more_cli.model.keymap import quiet
from more_cli.model.prompts import FAILURES, Prompter, UnfitImage
from more_cli.model.structure import find_backbone, text_layers
from more_cli.model.vision import stopped_before
from more_cli.text import counted, reason_of

# How transformers names what is missing: "Package `x` is required", "requires the X library".
_PACKAGE = re.compile(r"package `([\w-]+)`|requires the ([\w-]+) library")
_PROCESSOR, _IMAGES = "processor_config.json", "preprocessor_config.json"
_NAMED_IN = (_PROCESSOR, _IMAGES, "tokenizer_config.json")
_READ = ("image_sizes", "batch_num_images")
"""Inputs whose values a model reads before its vision tower runs: they keep their values."""
_COUNTING = (
    *("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens", "num_image_tokens"),
    *("image_seq_length", "num_query_tokens", "image_token"),
)
"""What decides how many image tokens a processor puts into a prompt."""
_PIXELS = "pixel_values"
_FILE_BYTES = 128 << 20
"""Largest file of a processor; the largest tokenizers known have 35 MB."""
_READ_BY_PROCESSORS = "*token*.json", "*processor*.json", "vocab*", "merges*", "*.model", "*.jinja", "chat_template*"
_OWN_FILES = "put the processor files that the model was trained with beside its config.json"


def load_processor(path: Path) -> Any:
    """Load the processor of a checkpoint folder with Pillow's resizer.

    The same folder gives other pixels where torchvision is installed, so the backend is pinned: a state made on
    one machine must see the same images on the next. Videos are never read, so no video processor is loaded.

    A plain language model has a tokenizer alone.

    Raises:
        StateError: processor files are missing or do not load.
    """
    _check_sizes(path)
    try:
        if is_language_model(str(_read(path / "config.json").get("model_type"))):
            return TextProcessor.of(path)
        kind = _processor_class(path)
        return kind.from_pretrained(path, local_files_only=True, trust_remote_code=False, backend="pil")
    except FAILURES as error:
        reason = _reason(error)
        hint = "tokenizer, processor and chat template files of the model must lie beside its config.json"
        if isinstance(error, ImportError):
            package = _PACKAGE.search(reason.lower())
            hint = f"pip install {package[1] or package[2]}" if package else "install the package that it names"
        elif _lacks_sentencepiece(path):
            # transformers then takes the file for one of tiktoken, and asks for that.
            reason = "its tokenizer is a SentencePiece file alone, which needs two more packages"
            hint = "pip install sentencepiece protobuf"
        raise StateError(f"`{path}`: the processor does not load: {reason}", hint) from None


@dataclass(frozen=True)
class TextProcessor:
    """A tokenizer in the place of a processor: what a plain language model has."""

    tokenizer: Any

    @classmethod
    def of(cls, path: Path) -> TextProcessor:
        """Load the tokenizer of a checkpoint folder.

        Raises:
            ValueError: it has no token that ends an answer.
        """
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        if tokenizer.eos_token_id is None:
            raise ValueError("its tokenizer has no end-of-sequence token")
        return cls(tokenizer)

    def __call__(self, text: Sequence[str], images: None = None, **options: Any) -> Any:
        """Tokenise texts; language models take no token types, which some tokenizers make."""
        return self.tokenizer(text, return_token_type_ids=False, **options)


def _lacks_sentencepiece(path: Path) -> bool:
    """Whether the tokenizer is only there as a SentencePiece file, and what reads such files is not installed."""
    from transformers.utils import is_protobuf_available, is_sentencepiece_available

    installed = is_sentencepiece_available() and is_protobuf_available()
    return not (installed or (path / "tokenizer.json").is_file()) and any(map(_is_sentencepiece, path.glob("*.model")))


def _is_sentencepiece(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(1) == b"\n"  # the first field of its protocol buffer; a file of tiktoken is text


def _check_sizes(path: Path) -> None:
    """Refuse files that are too large to be a processor's: they are parsed as a whole, before anything is known."""
    for pattern in _READ_BY_PROCESSORS:
        for file in path.glob(pattern):
            if file.stat().st_size > _FILE_BYTES:
                what = f"has {file.stat().st_size:,} bytes, more than {_FILE_BYTES:,}"
                raise StateError(f"`{file}` {what}", _OWN_FILES)


def require_fit(path: Path, model: Any, prompter: Prompter) -> None:
    """Check on a grey image that a model on the meta device can take what its processor makes of it.

    The model runs without values, so one whose shapes depend on values is not checked. `path` is for messages.

    Raises:
        StateError: the processor fails, makes images of another size, or puts in another number of image tokens; or
            config.json does not name the image token.
    """
    if not prompter.family.sees:
        return
    try:
        sample = prompter.encode(Query((grey_image(),), "What is it?"))
    except UnfitImage as unfit:
        lacks = ", ".join(f"`{key}`" for key in _COUNTING if getattr(prompter.processor, key, key) is None)
        hint = f"{_OWN_FILES}; {_PROCESSOR} lacks {lacks}" if lacks else _OWN_FILES
        raise StateError(f"`{path}`: the processor fails on an image: {_reason(unfit.error)}", hint) from None
    except DataError:  # longer than the context, for example: a matter of each question
        return
    tried = _tried(model, sample, prompter.eos)
    size = _tower_size(model)
    if tried.misfit and size and _tried(model, _resized(sample, size), prompter.eos).seen:
        made = _spelled(sample.extras[_PIXELS].shape[-2:])
        what = f"makes images of {made} pixels, the vision tower in config.json takes {_spelled(size)}"
        raise StateError(f"`{path / _image_file(path)}` {what}", _OWN_FILES)
    token = getattr(model.config, "image_token_id", -1)
    if token is None:
        hint = f"set `image_token_index` there and `num_query_tokens` in {_PROCESSOR}, as in newer revisions"
        raise StateError(f"`{path / 'config.json'}` does not say which token stands for an image", hint)
    tokens = int((sample.input_ids == token).sum())
    # A Q-Former's model takes a prompt without image tokens, and then does not see the image.
    if tried.features is not None or (token >= 0 and not tokens):
        what = f"the processor puts {counted(tokens, 'image token')} into a prompt, the model in config.json"
        has = "needs them" if tried.features is None else f"has {tried.features}"
        keys = ", ".join(f"`{key}`" for key in _COUNTING if hasattr(prompter.processor, key))
        raise StateError(f"`{path}`: {what} {has}", f"compare {keys} in {_PROCESSOR} with config.json")


@dataclass
class _Tried:
    """How far a prompt came through a model without values."""

    seen: bool = False
    """The vision tower took the image."""
    misfit: bool = False
    """The vision tower did not take the image's shape."""
    features: int | None = None
    """Number of image features, if the prompt has another number of places for them."""


def _tried(model: Any, sample: Encoded, pad: int) -> _Tried:
    """Run a prompt through a model without values: to the first text layer, or to the first value that is read."""
    found, backbone = _Tried(), find_backbone(model)
    inputs = collate([sample], pad).inputs
    inputs |= {name: value.to("meta") for name, value in inputs.items() if name not in _READ}

    def saw(*_: object) -> None:
        found.seen = True

    def compare(places: Callable[..., Any], *given: Any, **named: Any) -> Any:
        features = named.get("image_features")
        if isinstance(features, Tensor):
            try:  # the model's own comparison, with the real tokens
                places(sample.input_ids[None], **{name: _blank(value) for name, value in named.items()})
            except ValueError:
                found.features = features.numel() // features.shape[-1]
        return places(*given, **named)

    with ExitStack() as undo:
        undo.enter_context(quiet())
        undo.enter_context(stopped_before(model.get_submodule(text_layers(model, backbone)[0])))
        undo.callback(model.get_submodule(backbone.vision_tower).register_forward_hook(saw).remove)
        for module in model.modules():
            if places := getattr(module, "get_placeholder_mask", None):
                module.get_placeholder_mask = partial(compare, places)
                undo.callback(delattr, module, "get_placeholder_mask")
        try:
            model.eval()(**inputs, use_cache=False)
        except Exception as error:  # a model without values can fail in any way
            shapes = isinstance(error, ValueError | RuntimeError) and not isinstance(error, NotImplementedError)
            found.misfit = shapes and not found.seen and _PIXELS in inputs and "meta" not in str(error)
    return found


def _blank(value: Any) -> Any:
    return torch.zeros(()).expand(value.shape) if isinstance(value, Tensor) else value


def _tower_size(model: Any) -> tuple[int, int] | None:
    """Return height and width of the images that config.json describes; None if it does not."""
    size = getattr(getattr(model.config, "vision_config", None), "image_size", None)
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, list | tuple) and len(size) == 2 else None


def _resized(sample: Encoded, size: tuple[int, int]) -> Encoded:
    pixels = sample.extras[_PIXELS]
    return replace(sample, extras={**sample.extras, _PIXELS: pixels.new_empty(*pixels.shape[:-2], *size)})


def _spelled(size: Sequence[int]) -> str:
    return f"{size[0]} x {size[1]}"


def _image_file(path: Path) -> str:
    """Return the file that says how images are prepared, as transformers chooses it."""
    return _PROCESSOR if "image_processor" in _read(path / _PROCESSOR) else _IMAGES


@cache
def without_video(kind: type[Any]) -> type[Any]:
    """Return a processor class whose objects have no video processor; `kind` itself if it has none.

    Video processors need torchvision, even to be constructed. Saved files name the original class.
    """
    parts: list[str] = kind.get_attributes()
    if "video_processor" not in parts:
        return kind
    from transformers import ProcessorMixin

    place = parts.index("video_processor")

    class Mixin(ProcessorMixin):  # type: ignore[misc]
        """Comes after `kind` in the method resolution order, so its `super().__init__` is this one, without video."""

        def __init__(self, *given: Any, **named: Any) -> None:
            rest = dict(zip(parts, given, strict=False)) | named
            rest.pop("video_processor", None)
            super().__init__(**rest)

        @classmethod
        def get_attributes(cls) -> list[str]:
            return [part for part in parts if part != "video_processor"]

        @classmethod
        def _get_arguments_from_pretrained(cls, *given: Any, **named: Any) -> list[Any]:
            # Its place among the arguments stays: some constructors give it no default.
            loaded = super()._get_arguments_from_pretrained(*given, **named)
            return [*loaded[:place], None, *loaded[place:]]

    # No constructor of its own: transformers reads from its code which options of processor_config.json to pass.
    return type(kind.__name__, (kind, Mixin), {"__module__": kind.__module__})


def _processor_class(path: Path) -> type[Any]:
    """Find the class that the folder's files name or, where they name none, the one for its `model_type`."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES, processor_class_from_name

    model_type = _read(path / "config.json").get("model_type")
    named = (_read(path / file).get("processor_class") for file in _NAMED_IN)
    name = next(filter(None, named), PROCESSOR_MAPPING_NAMES.get(model_type))
    if name not in PROCESSOR_MAPPING_NAMES.values():  # the name comes from an untrusted file: only a processor will do
        raise ValueError(
            f"transformers has no processor {name!r}" if name else f"no processor for model_type {model_type!r}"
        )
    return without_video(processor_class_from_name(name))


def _reason(error: Exception) -> str:
    line = (reason_of(error).strip().splitlines() or [type(error).__name__])[0]
    return re.split(r"(?<=\.)\s", line)[0]  # the rest is transformers' advice on what to install


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    values = json.loads(file.read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}
