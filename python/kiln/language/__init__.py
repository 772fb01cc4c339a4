"""The language of kernels: programs over blocks of values.

    import kiln
    import kiln.language as kl

    @kiln.kernel
    def add(x, y, out, n, BLOCK: kl.constexpr):
        i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
        kl.store(out + i, kl.load(x + i, mask=i < n) + kl.load(y + i, mask=i < n), mask=i < n)

    add[(kiln.kernels.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)

Names and meaning are Triton's, so that its kernels are ported by changing imports.
"""

from __future__ import annotations

from typing import Any

from kiln.language import core, extra
from kiln.language.core import (
    MAX_NUMEL,
    PRIMITIVES,
    Array,
    PropagateNan,
    bfloat16,
    block_type,
    const,
    constexpr,
    constexpr_type,
    dtype,
    float8e4b8,
    float8e4b15,
    float8e4nv,
    float8e5,
    float8e5b16,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    pointer_type,
    tensor,
    tensor_descriptor,
    tuple_type,
    uint8,
    uint16,
    uint32,
    uint64,
    void,
)

TRITON_MAX_TENSOR_NUMEL = constexpr(MAX_NUMEL)

__all__ = [
    "Array",
    "PropagateNan",
    "TRITON_MAX_TENSOR_NUMEL",
    "bfloat16",
    "block_type",
    "const",
    "constexpr",
    "constexpr_type",
    "core",
    "dtype",
    "extra",
    "float16",
    "float32",
    "float64",
    "float8e4b15",
    "float8e4b8",
    "float8e4nv",
    "float8e5",
    "float8e5b16",
    "int1",
    "int16",
    "int32",
    "int64",
    "int8",
    "pointer_type",
    "tensor",
    "tensor_descriptor",
    "tuple_type",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "void",
    *PRIMITIVES,
]


def __getattr__(name: str) -> Any:
    return getattr(core, name)


def __dir__() -> list[str]:
    return sorted(__all__)
