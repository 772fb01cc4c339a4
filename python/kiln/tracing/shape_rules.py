"""A rule for each frequent operator: the shape and dtype of its result from its operands.

A rule takes the arguments of a call on dense, row-major tensors, and gives None for whatever is not
plain: mixed dtypes, or an operand that does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Shape = tuple[int, ...]
#: A result, dense and row-major.
Result = tuple[Shape, torch.dtype]
#: None for what it does not know, a list for several results.
Rule = Callable[..., "Result | list[Result] | None"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_INTEGERS = (torch.int64, torch.int32)


def _broadcast(*shapes: Sequence[int]) -> Shape | None:
    length = max(map(len, shapes))
    found = [1] * length
    for shape in shapes:
        for axis, size in enumerate(shape, length - len(shape)):
            if size != 1:
                if found[axis] not in (1, size):
                    return None
                found[axis] = size
    return tuple(found)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)


def _joined(*operands: Any) -> Result | None:
    """Shape and dtype of an operator on operands of one dtype, numbers among them; None for mixed
    dtypes."""
    tensors = [t for t in operands if isinstance(t, torch.Tensor)]
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    numbers = [v for v in operands if not isinstance(v, torch.Tensor) and v is not None]
    if dtype in _INTEGERS:
        if not all(type(v) is int for v in numbers):
            return None
    elif dtype not in _FLOATS or not all(map(_is_number, numbers)):
        return None
    shape = _broadcast(*(t.shape for t in tensors))
    return None if shape is None else (shape, dtype)


def _of_floats(*operands: Any, **_: Any) -> Result | None:
    found = _joined(*(v for v in operands if not isinstance(v, str)))
    return found if found is not None and found[1] in _FLOATS else None


def _arithmetic(a: Any, b: Any, *, alpha: Any = 1) -> Result | None:
    return _joined(a, b) if type(alpha) is int else None


def _divided(a: Any, b: Any, *, rounding_mode: Any = None) -> Result | None:
    found = _joined(a, b)
    return found if found is not None and found[1] in _FLOATS else None


def _power(a: Any, b: Any) -> Result | None:
    return _of_floats(a, b) if isinstance(a, torch.Tensor) else None


def _same(x: Any, *_: Any, **__: Any) -> Result | None:
    return (tuple(x.shape), x.dtype) if x.dtype in _FLOATS or x.dtype in _INTEGERS else None


def _float_like(x: Any, *_: Any, **__: Any) -> Result | None:
    return (tuple(x.shape), x.dtype) if x.dtype in _FLOATS else None


def _compared(a: Any, b: Any) -> Result | None:
    shapes = [v.shape for v in (a, b) if isinstance(v, torch.Tensor)]
    if any(v.dtype.is_complex for v in (a, b) if isinstance(v, torch.Tensor)):
        return None
    shape = _broadcast(*shapes)
    return None if shape is None else (shape, torch.bool)


def _bits(a: Any, b: Any = None) -> Result | None:
    tensors = [v for v in (a, b) if isinstance(v, torch.Tensor)]
    if (b is not None and len(tensors) == 1) or len({t.dtype for t in tensors}) != 1:
        return None
    if tensors[0].dtype not in (torch.bool, *_INTEGERS):
        return None
    shape = _broadcast(*(t.shape for t in tensors))
    return None if shape is None else (shape, tensors[0].dtype)


def _where(condition: Any, a: Any = None, b: Any = None) -> Result | None:
    if condition.dtype is not torch.bool or a is None or b is None:
        return None
    found = _joined(a, b) if any(isinstance(v, torch.Tensor) for v in (a, b)) else None
    if found is None:
        return None
    shape = _broadcast(condition.shape, found[0])
    return None if shape is None else (shape, found[1])


def _linear(x: Any, weight: Any, bias: Any = None) -> Result | None:
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        return None
    if x.dtype not in _FLOATS or weight.dtype is not x.dtype:
        return None
    if bias is not None and (bias.dtype is not x.dtype or tuple(bias.shape) != (weight.shape[0],)):
        return None
    return (*x.shape[:-1], weight.shape[0]), x.dtype


def _product(a: Any, b: Any) -> Result | None:
    if a.dim() < 2 or a.dim() != b.dim() or a.shape[-1] != b.shape[-2]:
        return None
    if a.dtype not in _FLOATS or a.dtype is not b.dtype or a.shape[:-2] != b.shape[:-2]:
        return None
    return (*a.shape[:-1], b.shape[-1]), a.dtype


def _addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Result | None:
    found = _product(a, b)
    if found is None or a.dim() != 2 or c.dtype is not found[1]:
        return None
    return found if _broadcast(c.shape, found[0]) == found[0] else None


def _convolution(spatial: int) -> Rule:
    def rule(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Result | None:
        if x.dim() != spatial + 2 or weight.dim() != spatial + 2 or isinstance(padding, str):
            return None
        if x.dtype not in _FLOATS or weight.dtype is not x.dtype or groups < 1:
            return None
        if bias is not None and (bias.dtype is not x.dtype or bias.shape[0] != weight.shape[0]):
            return None
        if weight.shape[1] * groups != x.shape[1] or weight.shape[0] % groups:
            return None
        sizes = _windows(x.shape[2:], weight.shape[2:], stride, padding, dilation)
        return None if sizes is None else ((x.shape[0], weight.shape[0], *sizes), x.dtype)

    return rule


def _per_dimension(value: Any, n: int) -> list[int] | None:
    values = [value] * n if type(value) is int else list(value)
    values = values * n if len(values) == 1 else values
    return values if len(values) == n and all(type(v) is int for v in values) else None


def _windows(
    sizes: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any
) -> list[int] | None:
    n = len(sizes)
    widths, steps, margins, gaps = (
        _per_dimension(v, n) for v in (kernel, stride, padding, dilation)
    )
    if widths is None or steps is None or margins is None or gaps is None:
        return None
    output_sizes = []
    for axis, size in enumerate(sizes):
        span = size + 2 * margins[axis] - gaps[axis] * (widths[axis] - 1) - 1
        if span < 0 or steps[axis] < 1 or margins[axis] < 0:
            return None
        output_sizes.append(span // steps[axis] + 1)
    return output_sizes


def _pooled(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: Any = False
) -> Result | None:
    if x.dim() != 4 or x.dtype not in _FLOATS or ceil is not False:
        return None
    widths, margins = _per_dimension(kernel, 2), _per_dimension(padding, 2)
    if (
        widths is None
        or margins is None
        or any(2 * m > w for m, w in zip(margins, widths, strict=True))
    ):
        return None
    steps = widths if type(stride) in (list, tuple) and not stride else stride
    sizes = _windows(x.shape[2:], widths, steps, padding, dilation)
    return None if sizes is None or not all(sizes) else ((*x.shape[:2], *sizes), x.dtype)


def _averaged(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: Any = False, *_: Any
) -> Result | None:
    return _pooled(x, kernel, stride, padding, 1, ceil)


def _adaptive(x: Any, size: Any) -> Result | None:
    if x.dim() != 4 or x.dtype not in _FLOATS or not all(type(s) is int and s > 0 for s in size):
        return None
    return ((*x.shape[:2], *size), x.dtype) if len(size) == 2 and x.numel() else None


def _batch_norm(x: Any, *_: Any) -> Result | None:
    return (tuple(x.shape), x.dtype) if x.dim() >= 2 and x.dtype in _FLOATS else None


def _layer_norm(x: Any, sizes: Any, weight: Any = None, bias: Any = None, *_: Any) -> Result | None:
    sizes = tuple(sizes)
    if x.dtype not in _FLOATS or tuple(x.shape[-len(sizes) :]) != sizes:
        return None
    parts = [t for t in (weight, bias) if t is not None]
    if any(t.dtype is not x.dtype or tuple(t.shape) != sizes for t in parts):
        return None
    return tuple(x.shape), x.dtype


def _softmax(x: Any, dim: int, dtype: Any = None) -> Result | None:
    if x.dtype not in _FLOATS or (dtype is not None and dtype not in _FLOATS):
        return None
    return (tuple(x.shape), dtype or x.dtype) if -x.dim() <= dim < x.dim() else None


def _attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Result | None:
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or q.dtype not in _FLOATS:
        return None
    if not q.dtype == k.dtype == v.dtype or q.shape[-1] != k.shape[-1]:
        return None
    if k.shape[:-1] != v.shape[:-1] or q.shape[0] != k.shape[0]:
        return None
    if q.shape[1] != k.shape[1] and not (enable_gqa and q.shape[1] % k.shape[1] == 0):
        return None
    if mask is not None:
        if mask.dtype not in (torch.bool, q.dtype) or is_causal:
            return None
        scores = (*q.shape[:-1], k.shape[-2])
        if _broadcast(mask.shape, scores) != scores:
            return None
    return (*q.shape[:-1], v.shape[-1]), q.dtype


def _reduced(x: Any, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Result | None:
    if x.dtype not in _FLOATS or dtype is not None or x.dim() == 0 or dims is None:
        return None
    axes = [dims] if type(dims) is int else list(dims)
    if not axes or any(not -x.dim() <= a < x.dim() for a in axes):
        return None
    axes = [a % x.dim() for a in axes]
    if len(set(axes)) != len(axes) or not x.numel():
        return None
    if keep:
        return tuple(1 if i in axes else s for i, s in enumerate(x.shape)), x.dtype
    return tuple(s for i, s in enumerate(x.shape) if i not in axes), x.dtype


def _cat(tensors: Any, dim: int = 0) -> Result | None:
    one = tensors[0]
    # Else the result may be in another order.
    if any(t.dim() > 3 and t.stride(1) == 1 and not t.is_contiguous() for t in tensors):
        return None
    if one.dim() == 0 or not -one.dim() <= dim < one.dim():
        return None
    axis = dim % one.dim()
    for t in tensors:
        if t.dtype is not one.dtype or t.dim() != one.dim():
            return None
        pairs = enumerate(zip(t.shape, one.shape, strict=True))
        if any(a != b for i, (a, b) in pairs if i != axis):
            return None
    size = sum(t.shape[axis] for t in tensors)
    return (*one.shape[:axis], size, *one.shape[axis + 1 :]), one.dtype


def _stack(tensors: Any, dim: int = 0) -> Result | None:
    one = tensors[0]
    if any(t.dtype is not one.dtype or t.shape != one.shape for t in tensors):
        return None
    if not -one.dim() - 1 <= dim <= one.dim():
        return None
    axis = dim % (one.dim() + 1)
    return (*one.shape[:axis], len(tensors), *one.shape[axis:]), one.dtype


def _recurrent(
    x: Any,
    state: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Result] | None:
    states = list(state) if type(state) in (list, tuple) else [state]
    if x.dim() != 3 or any(t.dim() != 3 or t.dtype is not x.dtype for t in states):
        return None
    directions = 2 if bidirectional else 1
    batch = x.shape[0 if batch_first else 1]
    if any(tuple(t.shape[:2]) != (num_layers * directions, batch) for t in states):
        return None
    hidden = directions * states[0].shape[-1]
    results: list[Result] = [((*x.shape[:2], hidden), x.dtype)]
    return results + [(tuple(t.shape), t.dtype) for t in states]


def _index(x: Any, indices: Any) -> Result | None:
    if not indices or not all(isinstance(t, torch.Tensor) for t in indices):
        return None
    if any(t.dtype not in _INTEGERS for t in indices) or len(indices) > x.dim():
        return None
    shape = _broadcast(*(t.shape for t in indices))
    return None if shape is None else ((*shape, *x.shape[len(indices) :]), x.dtype)


def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Result | None:
    if index.dtype is not torch.int64 or index.dim() != x.dim() or x.dim() == 0:
        return None
    if not -x.dim() <= dim < x.dim():
        return None
    pairs = enumerate(zip(index.shape, x.shape, strict=True))
    fits = (a <= b for i, (a, b) in pairs if i != dim % x.dim())
    return (tuple(index.shape), x.dtype) if all(fits) else None


def _summed(x: Any, dim: int, *, dtype: Any = None) -> Result | None:
    if dtype is not None or x.dim() == 0 or not -x.dim() <= dim < x.dim():
        return None
    if x.dtype in _FLOATS:
        return tuple(x.shape), x.dtype
    return (tuple(x.shape), torch.int64) if x.dtype in (torch.bool, *_INTEGERS) else None


def _arange(*bounds: Any, dtype: Any = None, **_: Any) -> Result | None:
    if not all(type(b) is int for b in bounds) or dtype not in (None, *_INTEGERS, *_FLOATS):
        return None
    start, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if step == 0 or (end - start) * step < 0:
        return None
    return (math.ceil((end - start) / step),), dtype or torch.int64


def _filled_like(x: Any, *_: Any, dtype: Any = None, memory_format: Any = None, **__: Any) -> Any:
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return None
    return tuple(x.shape), dtype or x.dtype


#: The rules by the names of operators.
RULES: dict[str, Rule] = {
    **dict.fromkeys(("aten::add", "aten::sub"), _arithmetic),
    **dict.fromkeys(("aten::mul", "aten::maximum", "aten::minimum"), _arithmetic),
    "aten::div": _divided,
    "aten::pow": _power,
    **dict.fromkeys(("aten::neg", "aten::abs", "aten::relu"), _same),
    **dict.fromkeys(
        (
            "aten::sigmoid",
            "aten::tanh",
            "aten::silu",
            "aten::gelu",
            "aten::hardswish",
            "aten::hardsigmoid",
            "aten::hardtanh",
            "aten::relu6",
            "aten::leaky_relu",
            "aten::elu",
            "aten::softplus",
            "aten::mish",
            "aten::rsqrt",
            "aten::sqrt",
            "aten::exp",
            "aten::log",
            "aten::sin",
            "aten::cos",
            "aten::erf",
            "aten::square",
        ),
        _float_like,
    ),
    **dict.fromkeys(
        ("aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge"), _compared
    ),
    **dict.fromkeys(
        ("aten::__and__", "aten::__or__", "aten::bitwise_and", "aten::bitwise_or"), _bits
    ),
    "aten::bitwise_not": _bits,
    "aten::where": _where,
    "aten::linear": _linear,
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::matmul"), _product),
    "aten::addmm": _addmm,
    "aten::conv1d": _convolution(1),
    "aten::conv2d": _convolution(2),
    "aten::conv3d": _convolution(3),
    "aten::max_pool2d": _pooled,
    "aten::avg_pool2d": _averaged,
    "aten::adaptive_avg_pool2d": _adaptive,
    "aten::batch_norm": _batch_norm,
    "aten::layer_norm": _layer_norm,
    "aten::group_norm": _batch_norm,
    "aten::softmax": _softmax,
    "aten::scaled_dot_product_attention": _attention,
    **dict.fromkeys(("aten::mean", "aten::sum", "aten::amax", "aten::amin"), _reduced),
    "aten::cat": _cat,
    "aten::stack": _stack,
    **dict.fromkeys(("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"), _recurrent),
    "aten::index": _index,
    "aten::gather": _gather,
    "aten::cumsum": _summed,
    "aten::arange": _arange,
    **dict.fromkeys(
        ("aten::full_like", "aten::zeros_like", "aten::ones_like", "aten::empty_like"), _filled_like
    ),
}

#: Operators on elements, whose results are in the order in memory that their operands have.
POINTWISE = frozenset(
    name
    for name, rule in RULES.items()
    if rule in (_arithmetic, _divided, _power, _same, _float_like, _compared, _bits, _where)
)
