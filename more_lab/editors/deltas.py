"""A change of a Linear's weight, kept beside it, and the inputs and output gradients that such changes are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from more_cli.model.branches import computes_in


class Delta:
    """Delta W (d_out, d_in) beside one Linear, in float32.

    With `recording` on, a forward pass keeps the Linear's inputs and a backward pass the gradients of its outputs. A
    `value` that requires a gradient gets one, so that a network can be trained through it.
    """

    def __init__(self, module: str, shape: tuple[int, int], device: torch.device) -> None:
        self.module = module
        self.enabled = True
        self.recording = False
        self.loss_scale = 1.0
        """Factor on the loss of a backward pass."""
        self._zero = torch.zeros(shape, device=device)
        self.value = self._zero
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []

    @property
    def value(self) -> Tensor:
        """Delta W (d_out, d_in)."""
        return self._value

    @value.setter
    def value(self, value: Tensor) -> None:
        self._value = value
        self._written = value.requires_grad or bool(value.any())

    @property
    def written(self) -> bool:
        """Whether Delta W is not zero."""
        return self._written

    def clear(self) -> None:
        """Go back to zero."""
        self.value = self._zero

    def start_recording(self, *, add: bool = False) -> None:
        """Drop what earlier passes recorded, unless `add`, and record the next one."""
        if not add:
            self._inputs, self._outputs = [], []
        self.recording = True

    @property
    def inputs(self) -> Tensor:
        """The inputs u of the last recorded pass, (N, T, d_in) float32; padding included."""
        return torch.cat(self._inputs)

    @property
    def gradients(self) -> Tensor:
        """The gradients of the loss with respect to the outputs of the last recorded pass, (N, T, d_out) float32."""
        return torch.cat([_gradient(output) for output in self._outputs]) / self.loss_scale

    def insert(self, model: nn.Module) -> Callable[[], None]:
        """Attach to the Linear."""
        handle = model.get_submodule(self.module).register_forward_hook(self._answer)
        return handle.remove

    def _answer(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not self.enabled or not (self._written or self.recording):
            return output
        x = args[0]
        if self._written:
            dtype = computes_in(x.dtype)
            output = (output.to(dtype) + x.to(dtype) @ self._value.to(dtype).T).to(output.dtype)
        if self.recording:
            self._inputs.append(x.detach().float())
            if torch.is_grad_enabled():
                # Added zeros have the gradient of the output, whether or not the weight requires a gradient.
                self._outputs.append(torch.zeros_like(output, requires_grad=True))
                output = output + self._outputs[-1]
        return output


def _gradient(output: Tensor) -> Tensor:
    return (torch.zeros_like(output) if output.grad is None else output.grad).float()
