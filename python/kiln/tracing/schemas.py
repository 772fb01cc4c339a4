"""What torch says of operators and dtypes, in the words of a program: schemas, constants, and which
values Kiln has a form for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Json = Any

#: Kiln's names of dtypes. Others go by torch's name, and are refused or run by torch.
DTYPES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    # Within a program; at its edges they are pairs (`kiln.lowering.complex_tensors`).
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}

#: ATen's numbers of dtypes (c10/core/ScalarType.h).
ATEN_DTYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
}

#: Operators without a result that only check their arguments. A compiled program has checked sizes
#: before it runs, and values of tensors cannot be checked without waiting for the device.
CHECKS = frozenset(
    {
        "aten::_assert_async",
        "aten::_assert_scalar",
        "aten::_assert_tensor_metadata",
        "aten::_functional_assert_async",
        "aten::_functional_assert_scalar",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
    }
)

#: Operators that give a number which depends on the elements of a tensor.
READS_DATA = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"})

#: Numbers that may be sizes.
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass
class Schema:
    """The part of an operator schema that a call needs."""

    name: str
    overload: str
    #: Each argument's name and its default as it is written.
    arguments: list[tuple[str, Json]]
    #: Whether it does nothing but compute tensors from its operands.
    computes: bool = False
    #: Whether it asks for operands with the strides of tracing.
    of_strides: bool = False


_SCHEMAS: dict[Any, Schema] = {}


def schema_of(target: Any) -> Schema:
    """The schema of an operator."""
    known = _SCHEMAS.get(target)
    if known is None:
        schema = target._schema
        arguments = [
            (a.name, literal(a.default_value) if a.has_default_value() else None)
            for a in schema.arguments
        ]
        known = _SCHEMAS[target] = Schema(
            schema.name,
            schema.overload_name,
            arguments,
            computes(target),
            any(tag in target.tags for tag in _STRIDES),
        )
    return known


#: What a schema does not say: an operator's results depend on more than its operands, or their
#: sizes on data.
_MORE = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.inplace_view,
)


#: Tags of operators that ask for operands with the strides of tracing.
_STRIDES = tuple(
    getattr(torch.Tag, name)
    for name in ("needs_exact_strides", "needs_fixed_stride_order")
    if hasattr(torch.Tag, name)
)

#: Functional operators that read memory in an order of their own, whatever strides the operand has:
#: Kiln's buffers are in row-major order.
_OF_MEMORY = frozenset({"aten::as_strided_copy", "aten::as_strided_scatter", "aten::resize"})


def computes(target: torch._ops.OpOverload) -> bool:
    """Whether an operator only computes new tensors from its operands. By its schema it writes to
    nothing, and its results share no memory.

    >>> computes(torch.ops.aten.sinc.default), computes(torch.ops.aten.add_.Tensor)
    (True, False)
    >>> computes(torch.ops.aten.t.default), computes(torch.ops.aten.nonzero.default)
    (False, False)
    """
    schema = target._schema
    if schema.is_mutable or schema.name in _OF_MEMORY or exchanges(target):
        return False
    if any(tag in target.tags for tag in _MORE):
        return False
    if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
        return False
    given = [str(r.type) for r in schema.returns]
    return given == ["List[Tensor]"] or (bool(given) and set(given) == {"Tensor"})


def reads_past(name: str, operand: Any) -> bool:
    """Whether an operator reads memory beyond the elements of its operand. Copies of Kiln are
    row-major, so that they do not have what lies between.

    >>> x = torch.ones(6)
    >>> [reads_past("aten::as_strided", t) for t in (x, x[2:], x[::2])]
    [False, True, True]
    """
    if name != "aten::as_strided" or not isinstance(operand, torch.Tensor):
        return False
    offset = operand.storage_offset()
    return not operand.is_contiguous() or not (type(offset) is int and offset == 0)


def exchanges(target: torch._ops.OpOverload) -> bool:
    """Whether an operator exchanges tensors with other processes.

    >>> exchanges(torch.ops.aten.add.Tensor)
    False
    """
    named = any(a.name in ("group", "group_name") for a in target._schema.arguments)
    return named or target.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def is_check(target: Any) -> bool:
    """Whether a call only checks its arguments."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in CHECKS


def foreign(value: Any) -> str:
    """Why a tensor or number cannot be in a program; empty if it can.

    >>> foreign(torch.ones(1)), foreign(torch.ones(1, dtype=torch.complex32))
    ('', 'complex32 values, a dtype that Kiln does not have')
    """
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return "a nested tensor"
        if value.layout is not torch.strided:
            return f"a tensor of layout {value.layout}"
        if value.dtype not in DTYPES:
            return f"{str(value.dtype)[6:]} values, a dtype that Kiln does not have"
        return "a tensor whose sizes depend on data" if any(map(_of_data, value.shape)) else ""
    return "a number that depends on data" if _of_data(value) else ""


def _of_data(size: Any) -> bool:
    if not isinstance(size, SYMBOLIC):
        return False
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(size))


def _float(value: float) -> Json:
    return {"float": value if math.isfinite(value) else str(value)}


def _dtype(value: torch.dtype) -> Json:
    number = ATEN_DTYPES.get(value)
    return {"opaque": str(value)} if number is None else {"int": number}


#: How a plain value is written, by its exact type.
_LITERALS: dict[type, Callable[[Any], Json]] = {
    type(None): lambda _: "none",
    bool: lambda v: {"bool": v},
    int: lambda v: {"int": v},
    float: _float,
    complex: lambda v: {"complex": [v.real, v.imag]},
    str: lambda v: {"str": v},
    torch.dtype: _dtype,
    torch.device: lambda v: {"device": str(v)},
    torch.memory_format: lambda _: "none",
    torch.layout: lambda _: "none",
}


def literal(value: Any) -> Json:
    """A constant as an argument of a program."""
    known = _LITERALS.get(type(value))
    if known is not None:
        return known(value)
    if isinstance(value, (list, tuple)):
        if all(type(v) is int for v in value):
            return {"ints": list(value)}
        return {"list": [literal(v) for v in value]}
    return {"opaque": str(value)}
