"""A second torch device for machines that have none: `elsewhere:0`, whose tensors are held in main memory.

PyTorch's key for private backends, in Python: an operation on tensors of two devices is refused, as on a GPU, and only
copies cross over. It is set up for the whole process, and torch then prefers it to the CPU: use it in one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _device
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_CROSSING = (torch.ops.aten._to_copy, torch.ops.aten.copy_)
_MADE_HERE = ("arange", "as_tensor", "eye", "linspace", "tensor")
"""Functions of torch that make a tensor on no device written in Python."""
_held: list[torch.library.Library] = []


class Elsewhere(torch.Tensor):
    """A tensor that is said to lie on another device."""

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device) -> Elsewhere:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device,
        )

    def __init__(self, held: torch.Tensor, device: torch.device) -> None:
        self.held = held

    def __deepcopy__(self, memo: dict[int, Any]) -> Elsewhere:
        return Elsewhere(self.held.clone(), self.device)

    def __format__(self, spec: str) -> str:
        return format(self.held, spec)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.unbind(0))

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"elsewhere({self.held})"

    def tolist(self) -> Any:
        """Return its numbers."""
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})


def set_up() -> torch.device:
    """Register the device in this process."""
    _setup_privateuseone_for_python_backend("elsewhere")
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda function, *args, **kwargs: _run(function, args, kwargs), "PrivateUse1")
    _held.append(library)
    _device._device_constructors()  # remembers torch's own functions, for `with torch.device("meta")`
    for name in _MADE_HERE:
        setattr(torch, name, _moved(getattr(torch, name)))
    return torch.device("elsewhere:0")


def _moved(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that makes a tensor in main memory and brings it to the device."""

    def made(*args: Any, **named: Any) -> torch.Tensor:
        device = named.get("device")
        if device is None or torch.device(device).type != "elsewhere":
            return make(*args, **named)
        return make(*args, **named | {"device": "cpu"}).to(device)

    return made


def _run(function: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on what the tensors hold, and say that its result lies where they do."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    # A number in a tensor goes anywhere, as in torch.
    places = {tensor.device for tensor in tensors if tensor.dim() > 0}
    crossing = function.overloadpacket in _CROSSING
    if len(places) > 1 and not crossing:
        raise RuntimeError(f"{function}: tensors on {', '.join(sorted(map(str, places)))}")
    place = next((tensor.device for tensor in tensors if isinstance(tensor, Elsewhere)), torch.device("cpu"))
    if function.overloadpacket is torch.ops.aten.copy_:
        place = args[0].device
    place = next((value for value in flat if isinstance(value, torch.device)), place)

    def inside(value: Any) -> Any:
        if isinstance(value, Elsewhere):
            return value.held
        return torch.device("cpu") if isinstance(value, torch.device) else value

    args, kwargs = pytree.tree_unflatten([inside(value) for value in flat], spec)
    found = function(*args, **kwargs)
    if place.type == "cpu":
        return found
    known = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, Elsewhere)}

    def outside(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else Elsewhere(value, place)

    return pytree.tree_map(outside, found)
