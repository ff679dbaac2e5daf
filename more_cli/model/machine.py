"""Where a model runs, and how much memory there is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from more_cli.errors import UsageError, install_hint
from more_cli.options import MACHINE, option
from more_cli.system.cgroup import groups
from more_cli.text import first_line

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTIONS = {"auto": "", "sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}
"""Kernels of attention by option: their names in transformers."""
GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """Where the model runs."""

    device: str = option("cpu", "cpu, cuda, cuda:1, mps.", metavar="NAME", environment="MORE_DEVICE", panel=MACHINE)
    dtype: str = option(
        "auto", "float32, bfloat16, float16, or auto for the checkpoint's.", metavar="NAME", panel=MACHINE
    )
    attention: str = option(
        "auto", "sdpa, eager, or flash, which needs flash-attn; auto is sdpa.", metavar="NAME", panel=MACHINE
    )
    """`auto` is sdpa where the model has it, else eager."""
    device_map: str = option("", "Spread the model over devices, memory and disk.", metavar="auto", panel=MACHINE)
    """`auto` goes through accelerate."""
    memory: float | None = option(
        None, "Memory that may be used. [default: what is free]", metavar="GIB", least=0, panel=MACHINE
    )
    """GiB of main memory, or of `device`."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"`--dtype {self.dtype}` is not one of {', '.join(DTYPES)}")
        if self.attention not in ATTENTIONS:
            raise UsageError(
                f"`--attention {self.attention}` is not one of {', '.join(ATTENTIONS)}", "leave it out for auto"
            )
        if self.attention == "flash" and find_spec("flash_attn") is None:
            raise UsageError("`--attention flash` needs flash-attn", "pip install flash-attn, or use --attention sdpa")
        if self.device_map not in ("", "auto"):
            raise UsageError(f"`--device-map {self.device_map}` is not `auto`", "leave it out to use one --device")
        if self.device_map and self.device != "cpu":
            raise UsageError(f"`--device-map` and `{self._device_given}` were both given", "leave one of them out")
        if self.device_map and find_spec("accelerate") is None:
            raise UsageError("`--device-map` needs accelerate", install_hint("large"))
        if self.device == "cpu":  # there without asking torch, which takes a while to import
            return
        import torch

        try:
            torch.zeros(1, device=self.device).item()  # read back: tensors of the device `meta` have no values
        except (RuntimeError, AssertionError, ImportError) as error:
            what = f"`{self._device_given}` cannot be used: {first_line(error)}"
            raise UsageError(what, "cpu always works") from None

    @property
    def _device_given(self) -> str:
        """How the device was given: typed, or by the environment."""
        name = "MORE_DEVICE"
        return f"{name}={self.device}" if os.environ.get(name) == self.device else f"--device {self.device}"

    def kernel(self, has_sdpa: bool) -> str:
        """Return the attention of a model in transformers' words.

        Raises:
            UsageError: sdpa is asked for and the model has none.
        """
        if self.attention == "sdpa" and not has_sdpa:
            raise UsageError("`--attention sdpa`: this model has no sdpa", "use --attention auto or eager")
        return ATTENTIONS[self.attention] or ("sdpa" if has_sdpa else "eager")

    @property
    def place(self) -> str:
        """Its name in a ledger."""
        return f"map {self.device_map}" if self.device_map else self.device

    def placement(self, reserve: int) -> dict[str, Any]:
        """Return the arguments of `from_pretrained` that place a model here and leave `reserve` bytes a device free."""
        if not self.device_map:
            return {}
        from accelerate.utils import get_max_memory

        room = {place: max(0, free - (0 if place == "cpu" else reserve)) for place, free in get_max_memory().items()}
        room["cpu"] = max(0, self.main_memory() - (reserve if len(room) == 1 else 0))
        return {"device_map": self.device_map, "max_memory": room}

    def main_memory(self) -> int:
        """Return the bytes of main memory that may be used."""
        return int(self.memory * GIB) if self.memory is not None and self.device == "cpu" else free_memory()

    def free(self) -> int | None:
        """Return the bytes that may be used where the model runs; None if unknown, or if a map may use the disk."""
        if self.device_map:
            return None
        if self.memory is not None:
            return int(self.memory * GIB)
        import torch

        kind = torch.device(self.device).type
        if kind == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return free_memory() if kind == "cpu" else None


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes of main memory that are free, by the system and by the control groups: the least of them.

    `root` is where `proc` and `sys` are mounted. Where neither reports anything, all memory counts as free.
    """
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    fields = _fields(root / "proc/meminfo")
    if "MemAvailable:" in fields:
        found.append(1024 * fields["MemAvailable:"])
    for group in groups("memory", root):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),  # version 2
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
        ):
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                found.append(max(0, most - now + _fields(group / "memory.stat").get(cache, 0)))
    return min(found)


def _number(path: Path) -> int | None:
    """Return the number in a file; None where it is absent or says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _fields(path: Path) -> dict[str, int]:
    """Return the first number of every line, by its first word."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
