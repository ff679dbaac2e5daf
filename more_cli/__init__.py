"""Correct vision-language models from a stream of fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from more_cli.api import open_model

__all__ = ["__version__", "open_model"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Torch is imported when the interface is first used: a command that does not need it stays fast.
    if name != "open_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from more_cli.api import open_model

    return open_model
