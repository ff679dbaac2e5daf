"""Loading a checkpoint's processor: tokenizer, image processor and chat template, from local files only."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from more_cli.errors import StateError

# How transformers names what is missing: "Package `x` is required", "requires the X library".
_PACKAGE = re.compile(r"package `([\w-]+)`|requires the ([\w-]+) library")
_NAMED_IN = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def load_processor(path: Path) -> Any:
    """Load the processor of a checkpoint folder with Pillow's resizer.

    The same folder gives other pixels where torchvision is installed, so the backend is pinned: a state made on
    one machine must see the same images on the next. Videos are never read, so no video processor is loaded.

    Raises:
        StateError: processor files are missing or do not load.
    """
    try:
        kind = _processor_class(path)
        return kind.from_pretrained(path, local_files_only=True, trust_remote_code=False, backend="pil")
    except (OSError, ValueError, ImportError, TypeError, KeyError, AttributeError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = re.split(r"(?<=\.)\s", line)[0]  # the rest is transformers' advice on what to install
        hint = "tokenizer, processor and chat template files of the model must lie beside its config.json"
        if isinstance(error, ImportError):
            package = _PACKAGE.search(reason.lower())
            hint = f"pip install {package[1] or package[2]}" if package else "install the package that it names"
        raise StateError(f"`{path}`: the processor does not load: {reason}", hint) from None


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
    """Find the class that the folder's files name or, where they name none, the one for its `model_type`.

    Raises:
        ValueError: there is none, or transformers has no processor of that name.
    """
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES, processor_class_from_name

    model_type = _read(path / "config.json").get("model_type")
    named = (_read(path / file).get("processor_class") for file in _NAMED_IN)
    name = next(filter(None, named), PROCESSOR_MAPPING_NAMES.get(model_type))
    if name not in PROCESSOR_MAPPING_NAMES.values():  # the name comes from an untrusted file: only a processor will do
        raise ValueError(
            f"transformers has no processor {name!r}" if name else f"no processor for model_type {model_type!r}"
        )
    return without_video(processor_class_from_name(name))


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    values = json.loads(file.read_text(encoding="utf-8"))
    return values if isinstance(values, dict) else {}
