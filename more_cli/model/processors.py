"""Loading a checkpoint's processor: tokenizer, image processor and chat template, from local files only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from more_cli.errors import StateError


def load_processor(path: Path) -> Any:
    """Load the processor of a checkpoint folder with Pillow's resizer.

    The same folder gives other pixels where torchvision is installed, so the backend is pinned: a state made on
    one machine must see the same images on the next.

    Raises:
        StateError: processor files are missing or do not load.
    """
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(path, local_files_only=True, trust_remote_code=False, backend="pil")
    except (OSError, ValueError, ImportError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise StateError(
            f"`{path}`: the processor does not load: {reason}",
            "tokenizer, processor and chat template files of the model must lie beside its config.json",
        ) from None
