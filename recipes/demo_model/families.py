"""The families of embedded models."""

from __future__ import annotations

from blip2 import BLIP2_OPT
from family import Family
from llava import LLAVA
from qwen import QWEN2_VL, QWEN3_VL

FAMILIES: dict[str, Family] = {
    "llava": LLAVA,
    "blip2_opt": BLIP2_OPT,
    "qwen2_vl": QWEN2_VL,
    "qwen3_vl": QWEN3_VL,
}
