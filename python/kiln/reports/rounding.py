"""How far rounding moves the results of a program: a reference in float64, and perturbed runs.

`exact` runs a program in float64 whatever types it makes inside. `perturbed` runs it in its own
types and moves every rounded result by as much as the contract lets a compiler round it otherwise:

- arithmetic by half a unit `eps` of the result's type, other functions of elements by a unit, which
  the factor below makes the four that the contract `exact` promises; half types, whose functions
  are computed in f32, by half a unit;
- sums and products of matrices by `sqrt(n) * eps / 2` of the sum of the magnitudes of n terms,
  which are added in any order, in f32 or wider (the probabilistic bound of Higham and Mary, "A New
  Approach to Probabilistic Rounding Error Analysis", 2019). Where f32 operands may be rounded to
  TF32, by 2**-10 of that sum as well;
- softmax, norms and other operators that reduce: the operands by `sqrt(n) * eps / 2`, n the longest
  dimension, and the results as functions of elements. Distances add squares that may cancel;
- casts to a narrower type by half a unit of it; copies, selections and comparisons by nothing.

Some runs move each value by a sign of its own, equal values of one operator alike, and others all
values of one operator to the same side, since an approximation may err on one side. All signs are
drawn from a seed. `spread_factor` says how many standard deviations of such runs a result may be
off.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

#: Perturbed runs of a check.
RUNS = 16

#: How seldom a right result may fail.
_FALSE_ALARM = 1e-6

#: What a run in float64 puts in place of other types.
_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}

#: Operators that round nothing: they copy, select or compare.
_SELECTS = frozenset(
    """
    abs alias amax amin argmax argmin argsort as_strided bernoulli cat ceil chunk clamp
    clamp_max clamp_min clone constant_pad_nd contiguous copy copysign cummax cummin detach
    diag_embed diagonal_scatter dropout embedding empty empty_like expand eye fill flip floor
    fmax fmin full full_like gather index index_copy index_fill index_put index_select isfinite
    isinf isnan kthvalue lift_fresh lift_fresh_copy masked_fill masked_scatter masked_select max
    max_pool2d_with_indices max_pool3d_with_indices maximum median min minimum mode nan_to_num
    native_dropout neg new_empty new_full new_ones new_zeros nonzero normal one_hot ones
    ones_like permute pixel_shuffle pixel_unshuffle rand randint randn reflection_pad1d
    reflection_pad2d reflection_pad3d relu repeat replication_pad1d replication_pad2d
    replication_pad3d reshape roll round scalar_tensor scatter select_scatter sign slice_scatter
    sort split stack take topk tril triu trunc unfold uniform unique unsafe_chunk unsafe_split
    upsample_nearest1d upsample_nearest2d upsample_nearest3d where zero zeros zeros_like
    """.split()  # noqa: SIM905
)

#: Operators that are rounded correctly.
_ARITHMETIC = frozenset(
    "add sub rsub mul div sqrt reciprocal addcmul addcdiv lerp square".split()  # noqa: SIM905
)

#: Products of matrices.
MATMULS = ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot")

#: Operators that are linear in the magnitudes of their operands, and add products or terms.
_SUMS = frozenset(MATMULS) | frozenset(
    """
    sum mean cumsum convolution _convolution index_add scatter_add avg_pool2d avg_pool3d
    adaptive_avg_pool2d _adaptive_avg_pool2d _adaptive_avg_pool3d nansum trace
    """.split()  # noqa: SIM905
)


class _Wide(TorchDispatchMode):
    """Dispatch mode that computes in float64: it widens operands, and dtypes that operators are
    asked for."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = tree_map_only(torch.dtype, lambda t: _WIDE.get(t, t), (args, kwargs or {}))
        # By differences, and not by products, which cancel.
        if func is torch.ops.aten._euclidean_dist.default:
            func, args = torch.ops.aten._cdist_forward.default, (*args, 2.0, 2)
        elif func is torch.ops.aten._cdist_forward.default:
            args = (*args[:3], 2)
        if not func._schema.is_mutable:
            args, kwargs = tree_map_only(torch.Tensor, widened, (args, kwargs))
        return func(*args, **kwargs)


def widened(leaf: Any) -> Any:
    """A tensor of floats converted to float64; other values as they are.

    >>> widened(torch.ones(1)).dtype, widened(3)
    (torch.float64, 3)
    """
    return leaf.to(_WIDE[leaf.dtype]) if getattr(leaf, "dtype", None) in _WIDE else leaf


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Context manager in which programs compute in float64, whatever dtypes they ask for.

    >>> with exact():
    ...     torch.ones(1).float().dtype, torch.zeros(1, dtype=torch.bfloat16).dtype
    (torch.float64, torch.float64)
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def perturbed(seed: int, tf32: Collection[str] = ()) -> Iterator[None]:
    """Context manager in which each rounded result is moved at random by as much as rounding may
    move it.

    `tf32`: operators whose f32 operands may be rounded to TF32.
    """
    # Attention as the products and the softmax that it is made of.
    with sdpa_kernel(SDPBackend.MATH), _Perturbed(seed, frozenset(tf32)):
        yield


class _Perturbed(TorchDispatchMode):
    """Dispatch mode that perturbs the results of operators."""

    def __init__(self, seed: int, tf32: frozenset[str]) -> None:
        super().__init__()
        self.seed = seed
        self.tf32 = tf32
        self.calls = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.calls += 1
        name = func._schema.name.partition("::")[2].rstrip("_")
        operands = [t for t in tree_leaves((args, kwargs)) if _rounds(t)]
        if name in _SELECTS or _is_view(func) or not operands:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self.written(func, name, args, kwargs)
        if name == "_to_copy":
            result = func(*args, **kwargs)
            narrower = _eps(result) > _eps(operands[0])
            return self.moved(result, _eps(result) / 2) if narrower else result
        magnitudes = None
        if name in _SUMS and not any(t.is_complex() for t in operands):
            sizes = tree_map_only(torch.Tensor, _magnitude, (args, kwargs))
            magnitudes = func(*sizes[0], **sizes[1])
        elif torch.Tag.pointwise not in func.tags:
            args, kwargs = tree_map_only(torch.Tensor, self.operand, (args, kwargs))
        result = func(*args, **kwargs)
        if magnitudes is not None:
            return self.sum(name, result, magnitudes, _terms(name, args, result))
        if name == "_euclidean_dist" or (name == "_cdist_forward" and args[2] == 2.0):
            result = self.distances(result, args[0], args[1])
        return tree_map_only(torch.Tensor, lambda t: self.moved(t, _step(name, t)), result)

    def written(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An operator that writes: what it has written moves."""
        result = func(*args, **kwargs)
        for value, argument in zip(args, func._schema.arguments, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tree_leaves(value):
                    if _rounds(tensor):
                        tensor.copy_(self.moved(tensor, _step(name, tensor)))
        return result

    def operand(self, tensor: torch.Tensor) -> torch.Tensor:
        """An operand of an operator that reduces, moved before it is read."""
        n = max(tensor.shape, default=1)
        return self.moved(tensor, math.sqrt(n) * _wide_rounding(tensor))

    def sum(self, name: str, result: Any, magnitudes: Any, terms: int) -> Any:
        """A sum of so many terms, whose magnitudes add to these."""

        def moved(value: Any, size: Any) -> Any:
            if not _rounds(value):
                return value
            step = math.sqrt(terms) * _wide_rounding(value)
            if name in self.tf32 and value.dtype == torch.float32:
                step += 2.0**-10
            moved = value.double() + self.signs(value, size.double()) * step
            return self.moved(moved.to(value.dtype), _eps(value) / 2)

        if isinstance(result, torch.Tensor):
            return moved(result, magnitudes)
        return type(result)(map(moved, result, magnitudes))

    def distances(self, result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Distances between rows, by the squares of rows and their products."""
        rows, columns = (t.double().square().sum(-1) for t in (a, b))
        size = rows[..., :, None] + columns[..., None, :]
        # Eager rounds the squares of rows to the type of the result.
        step = math.sqrt(2 + a.shape[-1]) * _eps(result) / 2
        squares = result.double().square() + self.signs(result, size) * step
        return squares.clamp(min=0).sqrt().to(result.dtype)

    def moved(self, tensor: torch.Tensor, step: float) -> torch.Tensor:
        """A tensor moved by so much of its values."""
        if not _rounds(tensor) or tensor.numel() == 0:
            return tensor
        if tensor.is_complex():
            return torch.view_as_complex(self.moved(torch.view_as_real(tensor).contiguous(), step))
        by = self.signs(tensor, tensor.double()) * step
        return (tensor.double() + by).to(tensor.dtype)

    def signs(self, tensor: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        """The sizes with random signs."""
        drawn = _mixed(self.seed * 1_000_003 + self.calls)
        kind = self.seed % 4
        if kind == 0:
            return size.abs() * (1 if drawn & 1 else -1)
        if kind == 1:
            return size * (1 if drawn & 1 else -1)
        bits = tensor.detach().double().contiguous().view(torch.int64)
        mixed = (bits ^ (bits >> 29)) * 0x1F35_9A21_7C3D_5E6B + (drawn >> 2)
        mixed = (mixed ^ (mixed >> 32)) * 0x2545_F491_4F6C_DD1D
        return size * torch.where((mixed >> 40) & 1 == 1, 1.0, -1.0)


def _mixed(value: int) -> int:
    """The finaliser of splitmix64."""
    mask = (1 << 64) - 1
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return (value ^ (value >> 31)) >> 2


def _eps(tensor: torch.Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if _rounds(tensor) else 0.0


def _step(name: str, tensor: torch.Tensor) -> float:
    """How far the results of an operator may move, as a part of their values."""
    is_half = _eps(tensor) > torch.finfo(torch.float32).eps
    return _eps(tensor) / 2 if is_half or name in _ARITHMETIC else _eps(tensor)


def _wide_rounding(tensor: torch.Tensor) -> float:
    """The largest rounding of the type that sums are in."""
    return min(_eps(tensor), torch.finfo(torch.float32).eps) / 2


def _magnitude(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor


def _rounds(value: Any) -> bool:
    """Whether a value is a tensor of numbers that are rounded."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not value.is_nested and (value.is_floating_point() or value.is_complex())


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and not func._schema.is_mutable and returns[0].alias_info is not None


def _terms(name: str, args: tuple[Any, ...], result: Any) -> int:
    """How many terms a result of a sum has."""
    tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
    if "convolution" in name:
        return max(1, tensors[1][0].numel())
    if name in ("mm", "bmm", "mv", "dot", "vdot"):
        return max(1, tensors[0].shape[-1])
    if name in ("addmm", "baddbmm", "addmv"):
        return 1 + tensors[1].shape[-1]
    if name in ("cumsum", "index_add", "scatter_add"):
        return max(1, *(size for t in tensors for size in t.shape), 1)
    size = result.numel() if isinstance(result, torch.Tensor) else 1
    return max(1, tensors[0].numel() // max(1, size))


def spread_factor(elements: int) -> float:
    """How many standard deviations, as `RUNS` runs show them, one of so many elements may be off.

    The sum of many small independent errors is normal, so that its ratio to a deviation estimated
    from so many runs follows Student's distribution; all elements together fail a right result
    once in a million.

    >>> 7 < spread_factor(1) < 8 < spread_factor(1000) < 15
    True
    """
    chance = max(_FALSE_ALARM / max(1, elements), 1e-13)
    low, high = 1.0, 1000.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle) > chance else (low, middle)
    return high


def _tail(t: float) -> float:
    """The chance that a variable of Student's distribution is beyond t, on either side, for the
    even number of degrees of freedom `RUNS` (Abramowitz and Stegun, 26.7.4)."""
    angle = math.atan(t / math.sqrt(RUNS))
    term = total = 1.0
    for k in range(1, RUNS // 2):
        term *= (2 * k - 1) / (2 * k) * math.cos(angle) ** 2
        total += term
    return 1 - math.sin(angle) * total
