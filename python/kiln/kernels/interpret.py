"""Kernels by the interpreter: values to look at, and checks of every access to memory.

A launch runs all instances one after the other, and raises `CheckFailed` if a check found
something. What kernels print is printed, and `breakpoint()` in a kernel stops in the debugger with
the kernel's variables as tensors.
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any, Callable

import torch
import torch.utils._device

from kiln.kernels.descriptor import TensorDescriptor
from kiln.kernels.errors import CheckFailed, Finding
from kiln.language.core import Array

#: What new memory is filled with, as 16-bit integers, so that reads of it are found.
UNWRITTEN = 0x7FF5

_DTYPES = {
    "bool": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}


def launcher(kernel: Any, grid: Any) -> Callable[..., None]:
    """What runs a kernel over a grid by the interpreter."""

    def launch(*args: Any, warmup: bool = False, **kwargs: Any) -> None:
        if warmup:
            return
        copies = _HostCopies()
        args = tuple(copies.of(a) for a in args)
        kwargs = {name: copies.of(value) for name, value in kwargs.items()}
        show = functools.partial(_show, kernel.fn)
        found = kernel._compiler().interpret(grid, args, kwargs, show)
        copies.copy_back()
        if found:
            raise CheckFailed(kernel.__name__, [Finding(**f) for f in found])

    return launch


class _HostCopies:
    """Tensors in the CPU's memory for those of a GPU: views of one storage stay views of one."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self.of(v) for v in value)
        for holder, name in ((TensorDescriptor, "base"), (Array, "tensor")):
            if isinstance(value, holder):
                host = copy.copy(value)
                setattr(host, name, self.of(getattr(value, name)))
                return host
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return value
        storage = value.untyped_storage()
        if storage.data_ptr() not in self._storages:
            self._storages[storage.data_ptr()] = (storage, storage.cpu())
        host = self._storages[storage.data_ptr()][1]
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(host, value.storage_offset(), value.shape, value.stride())

    def copy_back(self) -> None:
        for storage, host in self._storages.values():
            storage.copy_(host)


def _tensor(value: tuple[str, list[int], bytes]) -> Any:
    """A value of a kernel: a number, or a tensor."""
    name, shape, data = value
    tensor = torch.frombuffer(bytearray(data), dtype=_DTYPES[name]).reshape(shape)
    return tensor if shape else tensor.item()


def _show(
    fn: Any,
    instance: tuple[int, int, int],
    place: tuple[str, int] | None,
    text: str,
    names: list[str] | None,
    values: list[tuple[str, list[int], bytes]],
) -> None:
    tensors = [_tensor(v) for v in values]
    if names is None:
        print(instance, text, *tensors)
        return
    file, line = place or ("<kernel>", 0)
    variables = dict(zip(names, tensors, strict=True))
    variables.update(instance=instance)
    # The debugger stops in a frame whose variables are the kernel's, at the kernel's line.
    stop = compile("\n" * (line - 1) + "hook()", file, "exec")
    exec(stop, {"__name__": fn.__module__, "hook": sys.breakpointhook}, variables)


#: What makes memory that nothing has written, by the object that has it.
_MAKERS = (
    (torch, ("empty", "empty_like", "empty_strided")),
    (torch.Tensor, ("new_empty", "new_empty_strided")),
)
_ORIGINALS: dict[tuple[Any, str], Any] = {}


def fill_new_memory() -> None:
    """From now on `torch.empty` and its like give memory in which reads before a write are found.

    Functions of torch are replaced, which what traces programs may notice: for debugging alone.
    """
    # torch keeps a set of the functions that a device context applies to: before they are others.
    torch.utils._device._device_constructors()
    for holder, names in _MAKERS:
        for name in names:
            if (holder, name) not in _ORIGINALS:
                make = _ORIGINALS[holder, name] = getattr(holder, name)
                setattr(holder, name, _filling(make))


def leave_new_memory() -> None:
    """Ends what `fill_new_memory` began."""
    for (holder, name), make in _ORIGINALS.items():
        setattr(holder, name, make)
    _ORIGINALS.clear()


def _is_plain(made: Any) -> bool:
    """Whether it is a tensor with memory of its own, and nobody records what is done with it."""
    if torch.compiler.is_compiling() or type(made) is not torch.Tensor:
        return False
    recorded = torch._C._len_torch_dispatch_stack() > 0
    return not recorded and made.layout is torch.strided and made.device.type in ("cpu", "cuda")


def _filling(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def filled(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        if _is_plain(made) and made.untyped_storage().nbytes() >= 2:
            storage = made.untyped_storage()
            words = torch.tensor([], dtype=torch.int16, device=made.device)
            words.set_(storage, 0, (storage.nbytes() // 2,)).fill_(UNWRITTEN)
        return made

    return filled
