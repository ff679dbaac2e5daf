"""PEFT imports bitsandbytes where it is installed, which would fetch a kernel from the hub."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

SCRIPT = """
import sys, types
from importlib.machinery import ModuleSpec
from torch import nn
asked = []
class Kernels(types.ModuleType):
    def __getattr__(self, name):
        asked.append(name)
        raise AttributeError(name)
sys.modules["kernels"] = Kernels("kernels")
sys.modules["kernels"].__spec__ = ModuleSpec("kernels", None)
from more_lab.editors.trained import Adapter
Adapter("a", nn.ModuleDict({"a": nn.Linear(4, 4)}), 2, 4.0)
assert "bitsandbytes" in sys.modules and "peft" in sys.modules
assert isinstance(sys.modules["kernels"], Kernels), "left as it was"
print([name for name in asked if not name.startswith("__")])
"""


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("peft") and find_spec("bitsandbytes")), reason="PEFT or bitsandbytes is missing")
def test_an_adapter_asks_no_kernel_of_the_hub() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
    assert "kernels" not in done.stderr
