"""Parts that gradient descent trains: a float32 copy of a module, or a LoRA that PEFT puts around a Linear."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from more_cli.errors import StateError, UsageError, install_hint
from more_cli.model.changes import Change
from more_cli.model.quantised import import_bitsandbytes


class Trained(ABC):
    """Weights of one module, in float32, that are trained while the model's own stay as they are."""

    def __init__(self, module: str) -> None:
        self.module = module
        """Path of the module."""
        self.enabled = True
        self.recording = False
        self.loss_scale = 1.0
        self.written = False
        """Whether anything was trained or loaded."""

    def start_recording(self, *, add: bool = False) -> None:
        """Switch recording on; gradients live in the parameters, and the optimiser resets them."""
        self.recording = True

    @abstractmethod
    def insert(self, model: nn.Module) -> Callable[[], None]:
        """Attach to a model, and return a function that removes it again."""

    @abstractmethod
    def parameters(self) -> dict[str, nn.Parameter]:
        """Return what is trained, by name."""

    @abstractmethod
    def changes(self) -> dict[str, Change]:
        """Return how each matrix differs from the model's own, by the path of its module."""

    @abstractmethod
    def restart(self) -> None:
        """Undo all training."""

    def values(self) -> dict[str, Tensor]:
        """Return copies of what is trained, on the CPU."""
        return {name: parameter.detach().cpu().clone() for name, parameter in self.parameters().items()}

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Load values, by name."""
        for name, parameter in self.parameters().items():
            parameter.copy_(values[name])
        self.written = True


class Copy(Trained):
    """A float32 copy of a module; once it was trained, or while recording, its output replaces the module's."""

    def __init__(self, module: str, original: nn.Module, only: Collection[str] = ()) -> None:
        super().__init__(module)
        if any(parameter.is_meta for parameter in original.parameters()):
            raise StateError(f"`{module}` is not in memory: it cannot be trained", "leave --device-map out")
        self._original = original
        self._copy = copy.deepcopy(original).float()
        for name, parameter in self._copy.named_parameters():
            parameter.requires_grad_(not only or name in only)

    def insert(self, model: nn.Module) -> Callable[[], None]:
        """Replace the module's output."""
        return model.get_submodule(self.module).register_forward_hook(self._answer, with_kwargs=True).remove

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the copy's parameters that are trained."""
        return {name: value for name, value in self._copy.named_parameters() if value.requires_grad}

    def changes(self) -> dict[str, Change]:
        """Return the trained matrices minus the module's own."""
        own = dict(self._original.named_parameters())
        return {
            f"{self.module}.{name}".removesuffix(".weight"): Change(trained.detach() - own[name].detach().float())
            for name, trained in self.parameters().items()
            if trained.dim() == 2
        }

    def restart(self) -> None:
        """Reset the copy to the module's weights."""
        self.load(dict(self._original.named_parameters()))
        self.written = False

    def _answer(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self.enabled or not (self.recording or self.written):
            return output
        found: Tensor = self._copy(*map(_single, args), **{name: _single(value) for name, value in kwargs.items()})
        return found.to(output.dtype)


class Adapter(Trained):
    """A LoRA around one Linear, as PEFT makes it; B is zero until something is trained."""

    def __init__(self, module: str, parent: nn.Module, rank: int, alpha: float) -> None:
        super().__init__(module)
        if find_spec("peft") is None:
            raise UsageError("the `lora` editors need PEFT", install_hint("lora"))
        import_bitsandbytes()
        from peft import LoraConfig, inject_adapter_in_model

        self._leaf = module.rpartition(".")[2]
        self._base = getattr(parent, self._leaf)
        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=[self._leaf], lora_dropout=0.0)
        # In a parent of its own: what PEFT changes beside the Linear does not reach the model.
        alone = nn.ModuleDict({self._leaf: self._base})
        flags = [(parameter, parameter.requires_grad) for parameter in self._base.parameters()]
        inject_adapter_in_model(config, alone)
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        self._layer: Any = alone[self._leaf]
        for parameter in self.parameters().values():
            parameter.data = parameter.data.float()
        self._first = self.values()

    @property
    def enabled(self) -> bool:
        """Whether the LoRA adds anything."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._enabled = value
        if hasattr(self, "_layer"):
            self._layer.enable_adapters(value)

    def insert(self, model: nn.Module) -> Callable[[], None]:
        """Replace the Linear."""
        parent = model.get_submodule(self.module.rpartition(".")[0])
        setattr(parent, self._leaf, self._layer)
        for parameter in self.parameters().values():
            parameter.requires_grad_(True)
        return lambda: setattr(parent, self._leaf, self._base)

    def changes(self) -> dict[str, Change]:
        """Return the scaled B and A."""
        A, B = (self.parameters()[f"{half}.weight"].detach() for half in ("lora_A", "lora_B"))
        return {self.module: Change(self._layer.scaling["default"] * B, A)}

    def restart(self) -> None:
        """Reset to the first A and B = 0."""
        self.load(self._first)
        self.written = False

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return A and B."""
        return {f"{half}.weight": getattr(self._layer, half)["default"].weight for half in ("lora_A", "lora_B")}


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
