"""Operators that take numbers, made of operators that take tensors.

`NUMBER_RULES` has the arithmetic of Python's numbers, `RULES` the operators of tensors: for each
what it is made of, and which of its arguments may be numbers. A rule writes into the graph that
`kiln.lowering.scalars` rewrites.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import _prims_common, fx

if TYPE_CHECKING:
    from kiln.lowering.scalars import Rewriting

aten = torch.ops.aten

#: How operands are promoted.
Kind = _prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND


@dataclass(frozen=True)
class Number:
    """A number of a call, as the 0-dimensional tensor that holds it."""

    tensor: fx.Node
    kind: type


# Arithmetic of numbers: the operator of Python, and the same of tensors

_Make = Callable[["Rewriting", list[fx.Node]], fx.Node]


def _plain(target: Any, kind: Any = Kind.DEFAULT) -> _Make:
    return lambda r, operands: r.apply(target, *operands, kind=kind)


NUMBER_RULES: dict[Any, _Make] = {
    operator.add: _plain(aten.add.Tensor),
    operator.sub: _plain(aten.sub.Tensor),
    operator.mul: _plain(aten.mul.Tensor),
    operator.truediv: _plain(aten.div.Tensor, Kind.INT_TO_FLOAT),
    operator.floordiv: _plain(aten.floor_divide.default),
    operator.mod: _plain(aten.remainder.Tensor),
    operator.pow: _plain(aten.pow.Tensor_Tensor),
    operator.neg: _plain(aten.neg.default),
    operator.abs: _plain(aten.abs.default),
    operator.eq: _plain(aten.eq.Tensor),
    operator.ne: _plain(aten.ne.Tensor),
    operator.gt: _plain(aten.gt.Tensor),
    operator.ge: _plain(aten.ge.Tensor),
    operator.lt: _plain(aten.lt.Tensor),
    operator.le: _plain(aten.le.Tensor),
    math.floor: _plain(aten.floor.default),
    math.ceil: _plain(aten.ceil.default),
    math.trunc: _plain(aten.trunc.default),
    torch.sym_float: lambda r, operands: r.cast(operands[0], torch.float64),
    torch.sym_max: _plain(aten.maximum.default),
    torch.sym_min: _plain(aten.minimum.default),
    torch.sym_not: _plain(aten.logical_not.default),
}
for _name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2"):
    if hasattr(torch, f"_sym_{_name}"):
        _function = getattr(aten, _name).default
        NUMBER_RULES[getattr(torch, f"_sym_{_name}")] = _plain(_function, Kind.INT_TO_FLOAT)

# Operators of tensors that take numbers: what they are made of, and which arguments may be numbers

_Arguments = dict[str, Any]
_Rule = Callable[["Rewriting", _Arguments], fx.Node]


def _two(target: Any, kind: Any = Kind.DEFAULT, *, swapped: bool = False) -> tuple[_Rule, set[str]]:
    """An operator of two operands."""

    def rule(r: Rewriting, a: _Arguments) -> fx.Node:
        left_operand, right_operand = list(a.values())[:2]
        if "alpha" in a:
            scaled = left_operand if swapped else right_operand
            times = r.apply(aten.mul.Tensor, scaled, a["alpha"])
            left_operand, right_operand = (
                (times, right_operand) if swapped else (left_operand, times)
            )
        pair = (right_operand, left_operand) if swapped else (left_operand, right_operand)
        mode = a.get("rounding_mode")
        if mode is None:
            return r.apply(target, *pair, kind=kind)
        dtype = r.dtype(*pair)
        left, right = (r.operand(o, dtype) for o in pair)
        return r.emit(aten.div.Tensor_mode, left, right, rounding_mode=mode)

    return rule, {"self", "other", "exponent", "alpha"}


def _clamp(r: Rewriting, a: _Arguments) -> fx.Node:
    low = a.get("min", a.get("min_val"))
    high = a.get("max", a.get("max_val"))
    bounded = a["self"]
    if low is not None:
        bounded = r.apply(aten.maximum.default, bounded, low)
    return bounded if high is None else r.apply(aten.minimum.default, bounded, high)


def _where(r: Rewriting, a: _Arguments) -> fx.Node:
    dtype = r.current_node.meta["val"].dtype  # type: ignore[union-attr]
    operands = (r.operand(a[name], dtype) for name in ("self", "other"))
    return r.emit(aten.where.self, a["condition"], *operands)


def _masked_fill(r: Rewriting, a: _Arguments) -> fx.Node:
    value = r.operand(a["value"], a["self"].meta["val"].dtype)
    return r.emit(aten.where.self, a["mask"], value, a["self"])


def _fill(r: Rewriting, a: _Arguments) -> fx.Node:
    value = r.current_node.meta["val"]  # type: ignore[union-attr]
    like = a["size"] if "size" in a else a.get("self", [])
    number = next(v for name, v in a.items() if name in ("value", "fill_value", "s"))
    return r.filled([] if isinstance(like, Number) else like, number, value.dtype)


def _scaled_product(target: Any) -> tuple[_Rule, set[str]]:
    """`self + value * (tensor1 target tensor2)`."""

    def rule(r: Rewriting, a: _Arguments) -> fx.Node:
        product = r.apply(target, r.apply(aten.mul.Tensor, a["tensor1"], a["value"]), a["tensor2"])
        return r.apply(aten.add.Tensor, a["self"], product)

    return rule, {"value"}


def _matmul(target: Any, left: str, right: str) -> tuple[_Rule, set[str]]:
    """`beta * self + alpha * (left @ right)`."""

    def rule(r: Rewriting, a: _Arguments) -> fx.Node:
        product = r.emit(target, a[left], a[right])
        added = a["self"]
        if "alpha" in a:
            product = r.apply(aten.mul.Tensor, product, a["alpha"])
        if "beta" in a:
            added = r.apply(aten.mul.Tensor, added, a["beta"])
        return r.apply(aten.add.Tensor, added, product)

    return rule, {"alpha", "beta"}


def _lerp(r: Rewriting, a: _Arguments) -> fx.Node:
    return r.apply(aten.lerp.Tensor, a["self"], a["end"], a["weight"])


def _leaky_relu(r: Rewriting, a: _Arguments) -> fx.Node:
    x = a["self"]
    slope = r.apply(aten.mul.Tensor, x, a["negative_slope"])
    dtype = slope.meta["val"].dtype
    return r.emit(aten.where.self, r.emit(aten.gt.Scalar, x, 0), r.operand(x, dtype), slope)


def _elu(r: Rewriting, a: _Arguments) -> fx.Node:
    x, scale = a["self"], a.get("scale", 1)
    inner = r.apply(aten.mul.Tensor, x, a.get("input_scale", 1))
    below = r.apply(aten.mul.Tensor, r.emit(aten.expm1.default, inner), a.get("alpha", 1))
    below = r.apply(aten.mul.Tensor, below, scale)
    above = r.apply(aten.mul.Tensor, x, scale)
    return r.emit(aten.where.self, r.emit(aten.gt.Scalar, x, 0), above, below)


def _celu(r: Rewriting, a: _Arguments) -> fx.Node:
    x, alpha = a["self"], a["alpha"]
    inner = r.apply(aten.div.Tensor, x, alpha, kind=Kind.INT_TO_FLOAT)
    below = r.apply(aten.mul.Tensor, r.emit(aten.expm1.default, inner), alpha)
    dtype = below.meta["val"].dtype
    return r.emit(aten.where.self, r.emit(aten.gt.Scalar, x, 0), r.operand(x, dtype), below)


def _softplus(r: Rewriting, a: _Arguments) -> fx.Node:
    x, beta = a["self"], a.get("beta", 1)
    scaled = r.apply(aten.mul.Tensor, x, beta)
    log = r.emit(aten.log1p.default, r.emit(aten.exp.default, scaled))
    below = r.apply(aten.div.Tensor, log, beta, kind=Kind.INT_TO_FLOAT)
    dtype = below.meta["val"].dtype
    above = r.apply(aten.gt.Tensor, scaled, a.get("threshold", 20))
    return r.emit(aten.where.self, above, r.operand(x, dtype), below)


def _threshold(r: Rewriting, a: _Arguments) -> fx.Node:
    x = a["self"]
    below = r.apply(aten.le.Tensor, x, a["threshold"])
    value = r.operand(a["value"], x.meta["val"].dtype)
    return r.emit(aten.where.self, below, value, x)


_BOOL = Kind.ALWAYS_BOOL
RULES: dict[Any, tuple[_Rule, set[str]]] = {
    aten.addmm.default: _matmul(aten.mm.default, "mat1", "mat2"),
    aten.baddbmm.default: _matmul(aten.bmm.default, "batch1", "batch2"),
    aten.addcmul.default: _scaled_product(aten.mul.Tensor),
    aten.addcdiv.default: _scaled_product(aten.div.Tensor),
    aten.lerp.Scalar: (_lerp, {"weight"}),
    aten.leaky_relu.default: (_leaky_relu, {"negative_slope"}),
    aten.elu.default: (_elu, {"alpha", "scale", "input_scale"}),
    aten.celu.default: (_celu, {"alpha"}),
    aten.softplus.default: (_softplus, {"beta", "threshold"}),
    aten.threshold.default: (_threshold, {"threshold", "value"}),
    aten.hardtanh.default: (_clamp, {"min_val", "max_val"}),
    aten.clamp.default: (_clamp, {"min", "max"}),
    aten.clamp_min.default: (_clamp, {"min"}),
    aten.clamp_max.default: (_clamp, {"max"}),
    aten.masked_fill.Scalar: (_masked_fill, {"value"}),
    aten.where.Scalar: (_where, {"self", "other"}),
    aten.where.ScalarSelf: (_where, {"self"}),
    aten.where.ScalarOther: (_where, {"other"}),
    aten.where.self: (_where, {"self", "other"}),
    aten.fill.Scalar: (_fill, {"value"}),
    aten.full.default: (_fill, {"fill_value"}),
    aten.full_like.default: (_fill, {"fill_value"}),
    aten.new_full.default: (_fill, {"fill_value"}),
    aten.scalar_tensor.default: (_fill, {"s"}),
}


def _add_rules() -> None:
    """The operators of two operands, by all names of their overloads."""
    both = {"Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor", "default"}
    both |= {"Tensor_mode", "Scalar_mode"}
    named: list[tuple[str, Any, Any, bool]] = [
        ("add", aten.add.Tensor, Kind.DEFAULT, False),
        ("sub", aten.sub.Tensor, Kind.DEFAULT, False),
        ("rsub", aten.sub.Tensor, Kind.DEFAULT, True),
        ("mul", aten.mul.Tensor, Kind.DEFAULT, False),
        ("div", aten.div.Tensor, Kind.INT_TO_FLOAT, False),
        ("floor_divide", aten.floor_divide.default, Kind.DEFAULT, False),
        ("remainder", aten.remainder.Tensor, Kind.DEFAULT, False),
        ("fmod", aten.fmod.Tensor, Kind.DEFAULT, False),
        ("pow", aten.pow.Tensor_Tensor, Kind.DEFAULT, False),
        ("maximum", aten.maximum.default, Kind.DEFAULT, False),
        ("minimum", aten.minimum.default, Kind.DEFAULT, False),
        ("atan2", aten.atan2.default, Kind.INT_TO_FLOAT, False),
        ("bitwise_and", aten.bitwise_and.Tensor, Kind.DEFAULT, False),
        ("bitwise_or", aten.bitwise_or.Tensor, Kind.DEFAULT, False),
        ("bitwise_xor", aten.bitwise_xor.Tensor, Kind.DEFAULT, False),
        ("bitwise_left_shift", aten.bitwise_left_shift.Tensor, Kind.DEFAULT, False),
        ("bitwise_right_shift", aten.bitwise_right_shift.Tensor, Kind.DEFAULT, False),
        ("__and__", aten.bitwise_and.Tensor, Kind.DEFAULT, False),
        ("__or__", aten.bitwise_or.Tensor, Kind.DEFAULT, False),
        ("__xor__", aten.bitwise_xor.Tensor, Kind.DEFAULT, False),
        ("__lshift__", aten.bitwise_left_shift.Tensor, Kind.DEFAULT, False),
        ("__rshift__", aten.bitwise_right_shift.Tensor, Kind.DEFAULT, False),
        *((n, getattr(aten, n).Tensor, _BOOL, False) for n in ("eq", "ne", "gt", "ge", "lt", "le")),
    ]
    for name, target, kind, swapped in named:
        packet = getattr(aten, name)
        for overload in both & {*packet.overloads()}:
            RULES[getattr(packet, overload)] = _two(target, kind, swapped=swapped)
    RULES[aten.pow.Scalar] = _two(aten.pow.Tensor_Tensor)


_add_rules()
