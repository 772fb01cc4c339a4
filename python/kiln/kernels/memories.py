"""The memory of tensors that a traced launch gets, as dense tensors and offsets into them.

A kernel gets an address and strides: through them it may reach all of the memory that a view is
part of. In a graph a tensor is a value by itself, so the launch gets the tensor that was viewed,
and where in it the view starts. Views of one tensor are then one memory, as they are for a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from kiln.kernels.errors import KernelUnsupported


@dataclass(frozen=True)
class Place:
    """Where a tensor is: the number of its memory, and the element of it where it starts."""

    memory: int
    start: Any

    @property
    def is_shifted(self) -> bool:
        """Whether it may start behind the beginning."""
        return not (isinstance(self.start, int) and self.start == 0)


@dataclass
class Memories:
    """The memories of a launch."""

    kernel: str
    #: Dense, in row-major order.
    tensors: list[torch.Tensor] = field(default_factory=list)
    #: What each is the memory of: kept, so that no other object has its identity.
    _owners: list[torch.Tensor] = field(default_factory=list)

    def place(self, tensor: torch.Tensor) -> Place:
        """Where a tensor is; its memory becomes one of the launch if it is none yet."""
        owner = _owner(tensor)
        start = tensor.storage_offset() - owner.storage_offset()
        for memory, known in enumerate(self._owners):
            if known is owner:
                return Place(memory, start)
        self.tensors.append(dense(owner))
        self._owners.append(owner)
        return Place(len(self.tensors) - 1, start)

    def check(self, written: list[int]) -> None:
        """Fails if a memory that is written is another one under a second name."""
        storages = [_storage(owner) for owner in self._owners]
        for i in written:
            if storages[i] is not None and storages.count(storages[i]) > 1:
                raise KernelUnsupported(
                    f"{self.kernel} writes to a tensor that shares memory with another argument, which "
                    "is no view of it that can be followed; pass views of one tensor, or a copy"
                )


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor's memory, from its first one, in row-major order."""
    if tensor.is_contiguous():
        return tensor
    sizes, strides = tensor.shape, tensor.stride()
    # Axes of one element have any stride.
    order = sorted(range(tensor.dim()), key=lambda axis: (sizes[axis] != 1, -strides[axis]))
    permuted = tensor.permute(order)
    if permuted.is_contiguous():
        return permuted
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return tensor.as_strided((span,), (1,), tensor.storage_offset())


def _owner(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor is a view of, if its elements are there; otherwise itself."""
    base = tensor._base
    if base is None or base.dtype != tensor.dtype or not _is_traced(base):
        return tensor
    start = tensor.storage_offset() - base.storage_offset()
    if isinstance(start, int) and all(type(n) is int for n in (*tensor.shape, *base.shape)):
        sizes, strides = tensor.shape, tensor.stride()
        last = start + sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
        if start < 0 or last >= max(base.numel(), 1):
            return tensor
    return base


def _is_traced(base: torch.Tensor) -> bool:
    """Whether a graph that is traced has this tensor. An argument of the graph may be a view of a
    tensor that the graph does not get."""
    if type(base).__name__ != "FakeTensor":
        return True
    from torch.fx.experimental import proxy_tensor

    mode = proxy_tensor.get_proxy_mode()
    return mode is None or proxy_tensor.get_proxy_slot(base, mode.tracer, None) is not None


def _storage(tensor: torch.Tensor) -> int | None:
    """The memory of a tensor, where torch tells."""
    memory = getattr(tensor, "memory", None)
    if memory is not None:
        return id(memory)
    try:
        # Modes of torch refuse functions that reach memory.
        with torch._C.DisableTorchFunction():
            return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return None
