"""Shapes and dtypes of the results of frequent operators.

Torch's own functions for the device `meta` are Python for most operators: they import sympy, which
takes longer than the rest of a trace, and take 0.1 to 1 ms a call. The rules here take a call whose
tensors are dense and row-major, and give the result's shape and dtype, or None for whatever is not
plain: another layout, mixed dtypes, an operand that does not fit. Torch is asked then, and tells
what is wrong. A test compares every rule with torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln.tracing.shape_rules import POINTWISE, RULES, Shape


def result(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a call on meta tensors, a tuple for several results; None if there is no rule
    for the call.

    >>> x = torch.empty(2, 3, device="meta")
    >>> result(torch.ops.aten.add.Tensor, (x, x), {}).shape
    torch.Size([2, 3])
    """
    name = func._schema.name
    in_place = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if in_place else name
    rule = RULES.get(name)
    plain = rule is not None and _is_plain(args)
    if rule is None or not (plain or name in POINTWISE or name in _ROW_MAJOR):
        return None
    try:
        found = rule(*args, **kwargs)
    except TypeError:  # Of an overload with other arguments.
        return None
    if found is None:
        return None
    if isinstance(found, list):
        return tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in found)
    shape, dtype = found
    if in_place:
        target = args[0]
        return target if target.dtype is dtype and tuple(target.shape) == shape else None
    if plain or name not in POINTWISE:
        return torch.empty(shape, dtype=dtype, device="meta")
    operands = [t for t in args if isinstance(t, torch.Tensor)]
    return torch.empty_strided(shape, _strides(shape, operands), dtype=dtype, device="meta")


def _strides(shape: Shape, operands: Sequence[torch.Tensor]) -> Shape:
    """The strides of the result of a pointwise operator, whose dimensions have the order in memory
    that those of its operands have (TensorIterator::reorder_dimensions)."""
    n = len(shape)
    every = []
    for t in operands:
        strides = [0] * (n - t.dim()) + [
            0 if size == 1 and whole != 1 else stride
            for size, stride, whole in zip(t.shape, t.stride(), shape[n - t.dim() :], strict=True)
        ]
        every.append(strides)

    def swaps(a: int, b: int) -> int:
        for strides in every:
            if strides[a] == 0 or strides[b] == 0:
                continue
            if strides[a] != strides[b]:
                return -1 if strides[a] < strides[b] else 1
            if shape[a] > shape[b]:
                return 1
        return 0

    order = list(reversed(range(n)))
    for i in range(1, n):
        at = i
        for j in reversed(range(i)):
            found = swaps(order[j], order[at])
            if found > 0:
                order[at], order[j] = order[j], order[at]
                at = j
            elif found < 0:
                break
    strides, step = [0] * n, 1
    for axis in order:
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def _is_plain(args: Sequence[Any]) -> bool:
    for value in args:
        if isinstance(value, torch.Tensor):
            if not value.is_contiguous():
                return False
        elif type(value) in (list, tuple) and not _is_plain(value):
            return False
    return True


#: Results are row-major whatever the operands are.
_ROW_MAJOR = frozenset(
    {
        "aten::linear",
        "aten::matmul",
        "aten::bmm",
        "aten::mm",
        "aten::addmm",
        "aten::scaled_dot_product_attention",
        "aten::cat",
        "aten::stack",
    }
)
#: These have results of other strides on some devices than here, row-major.
ORDER_BY_DEVICE = frozenset({"aten::scaled_dot_product_attention"})
