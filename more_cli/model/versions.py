"""What decides the bytes of an edit, beside the edit: versions, device, processor, dtype and threads."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from more_cli import __version__
from more_cli.model.machine import Machine


def versions(machine: Machine) -> dict[str, str]:
    """Return everything that decides the bytes of an edit on a machine, as a ledger line has it."""
    return {
        "more": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version_of("transformers"),
        "numpy": _version_of("numpy"),
        "device": machine.place,
        "cpu": f"{_cpu()}, {torch.backends.cpu.get_cpu_capability()}",
        "dtype": machine.dtype,
        "attention": machine.attention,
        "threads": str(torch.get_num_threads()),
    }


@cache
def _version_of(package: str) -> str:
    """Return the version of an installed package: every ledger line has it, and its metadata lies on the disk."""
    return version(package)


@cache
def _cpu() -> str:
    """Return the processor's maker and model: libraries choose other kernels for another one, which round otherwise."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
