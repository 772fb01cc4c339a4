"""Tensors of a run that is recorded: types, strides and devices, but no elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


class NotTraced(Exception):  # noqa: N818
    """Why a module is left to torch.export."""


@dataclass
class Memory:
    """The memory that a tensor and its views share."""

    #: The placeholder that it is the memory of.
    placeholder: fx.Node | None = None
    #: Whether some tensor is a view of it, or a copy, as strides ask for.
    view_or_copy: bool = False
    #: Whether the device decides in which order it has the dimensions.
    order_by_device: bool = False
    #: The tensor that all others are views of.
    root: Shadow | None = None


class Shadow(torch.Tensor):
    """A tensor of a run that is recorded: a type, strides and a device, but no elements."""

    #: The same on the device `meta`.
    meta: torch.Tensor
    #: What gives it.
    node: fx.Node
    #: The memory that it is in.
    memory: Memory

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def _base(self) -> Shadow | None:  # type: ignore[override]
        """What it is a view of, as autograd would tell."""
        root = self.memory.root
        return None if root is self else root

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.permute.default:
            # Of a result, whose dimensions are written in the order that they have in memory.
            shadow, order = args
            return shadow_of(shadow.meta.permute(order), shadow.device, shadow.node, shadow.memory)
        raise NotTraced(f"{func} was called outside of the trace")


def shadow_of(meta: torch.Tensor, device: torch.device, node: fx.Node, memory: Memory) -> Shadow:
    shadow: Shadow = torch.Tensor._make_wrapper_subclass(
        Shadow,
        meta.shape,
        strides=meta.stride(),
        storage_offset=meta.storage_offset(),
        dtype=meta.dtype,
        device=device,
    )
    shadow.meta, shadow.node, shadow.memory = meta, node, memory
    if memory.root is None:
        memory.root = shadow
    return shadow
