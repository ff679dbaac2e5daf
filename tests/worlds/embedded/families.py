"""The families of embedded models, and where the checkpoint of each is kept."""

from __future__ import annotations

from pathlib import Path

from more_cli.demo.files import demo_model_dir

from .blip2 import BLIP2_OPT
from .family import Family
from .llava import LLAVA
from .qwen import QWEN2_VL, QWEN3_VL

DATA = Path(__file__).parents[2] / "data"
FAMILIES: dict[str, Family] = {
    "llava": LLAVA,
    "blip2_opt": BLIP2_OPT,
    "qwen2_vl": QWEN2_VL,
    "qwen3_vl": QWEN3_VL,
}


def model_folder(family: str) -> Path:
    """The checkpoint directory of a family: LLaVA's is in the package, the others' are in tests/data."""
    return demo_model_dir() if family == "llava" else DATA / family
