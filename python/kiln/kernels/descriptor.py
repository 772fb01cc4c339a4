"""Arrays that kernels read and write in blocks."""

from __future__ import annotations

from typing import Any


class TensorDescriptor:
    """An array in a tensor, and the shape of the blocks in which kernels access it. Outside of the
    array blocks are 0, or NaN with `padding="nan"`."""

    def __init__(
        self,
        base: Any,
        shape: list[int],
        strides: list[int],
        block_shape: list[int],
        padding: str = "zero",
    ) -> None:
        ranks = {len(shape), len(strides), len(block_shape)}
        if len(ranks) != 1 or not shape:
            raise ValueError(
                f"a descriptor has as many sizes ({len(shape)}) as strides ({len(strides)}) and as its "
                f"blocks have axes ({len(block_shape)}), at least one"
            )
        if strides[-1] != 1:
            raise ValueError(f"the last stride of a descriptor is 1, not {strides[-1]}; pass a contiguous tensor")
        if padding not in ("zero", "nan"):
            raise ValueError(f'padding is "zero" or "nan", not {padding!r}')
        self.base = base
        self.shape = list(shape)
        self.strides = list(strides)
        self.block_shape = list(block_shape)
        self.padding = padding

    @staticmethod
    def from_tensor(tensor: Any, block_shape: list[int], padding: str = "zero") -> TensorDescriptor:
        """All of a tensor."""
        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block_shape, padding)
