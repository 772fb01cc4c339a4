"""Kernels written by hand, in the language of `kiln.language`: launched on torch's tensors, on GPUs
and on the CPU.

    @kiln.kernel
    def scale(x, n, by, BLOCK: kl.constexpr): ...

    scale[(kiln.kernels.cdiv(n, 256),)](x, n, 2.0, BLOCK=256)

The names are those of the `triton` module, so that a port changes imports alone.
"""

from __future__ import annotations

import importlib
from typing import Any

from kiln.kernels import launch_op  # noqa: F401
from kiln.kernels.descriptor import TensorDescriptor
from kiln.kernels.errors import (
    CheckFailed,
    Finding,
    KernelError,
    KernelUnsupported,
    KernelWarning,
    OutOfResources,
)
from kiln.kernels.kernel import Kernel, constexpr_function, jit
from kiln.kernels.mock import MockTensor
from kiln.kernels.porting import port
from kiln.kernels.tuning import Autotuner, Config, Heuristics, autotune, heuristics

JITFunction = Kernel

__all__ = [
    "Autotuner",
    "CheckFailed",
    "Config",
    "Finding",
    "Heuristics",
    "JITFunction",
    "Kernel",
    "KernelError",
    "KernelUnsupported",
    "KernelWarning",
    "MockTensor",
    "OutOfResources",
    "TensorDescriptor",
    "autotune",
    "cdiv",
    "constexpr_function",
    "heuristics",
    "jit",
    "next_power_of_2",
    "port",
    "reinterpret",
    "set_allocator",
]


def cdiv(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(n - 1, 0).bit_length()


class _Reinterpreted:
    """A tensor whose elements are read as another type of the same size."""

    def __init__(self, base: Any, dtype: Any) -> None:
        self.base = base
        self.dtype = dtype
        self.shape = base.shape
        self.device = base.device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def cpu(self) -> _Reinterpreted:
        return _Reinterpreted(self.base.cpu(), self.dtype)

    def __str__(self) -> str:
        return f"reinterpreted[{self.dtype}]({self.base})"


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """The tensor with its elements read as `dtype`, a type of `kiln.language` of the same size."""
    base = tensor.base if isinstance(tensor, _Reinterpreted) else tensor
    return base if base.dtype == dtype else _Reinterpreted(base, dtype)


def set_allocator(allocator: Any) -> None:
    """For ports: descriptors made in kernels need no memory of the caller."""


def __getattr__(name: str) -> Any:
    """Modules that ports reach through `triton`, imported when they are asked for."""
    if name == "testing":
        return importlib.import_module("kiln.testing")
    if name == "runtime":
        return importlib.import_module("kiln.kernels.runtime")
    if name == "tools":
        importlib.import_module("kiln.kernels.tools.tensor_descriptor")
        return importlib.import_module("kiln.kernels.tools")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
