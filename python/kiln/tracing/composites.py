"""Composite operators of torch, such as linear and attention: Kiln takes them whole.

Some have to be decomposed all the same: their results may be views of operands, though their
schemas say nothing of that. Kept whole, what is written to such a result would not reach the
operand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from kiln import pieces, versions

#: Operators whose results may be views, and those whose results may be views of a single operand.
VIEWS = {"meshgrid", "broadcast_tensors", "type_as", "sum_to_size"}
VIEWS |= {"atleast_1d", "atleast_2d", "atleast_3d"}
VIEWS_OF_ONE = {"einsum", "chain_matmul", "linalg_multi_dot"}
#: Numbers of tensors. Torch makes tensors of floats that a graph computes with again, if it finds
#: the operator that these stand for.
NUMBERS = {"item", "is_nonzero"}
#: Never in a graph of inference; to restore an operator takes torch 0.2 ms.
RARE = ("backward", "sparse", "fbgemm", "quantize", "_test_", "_cufft", "dimname", "names")
#: Torch cannot trace these whole with dynamic sizes; they become one operator each.
BROKEN = ("std_mean", "var_mean")


def kept(*, differentiated: bool) -> AbstractContextManager[Any]:
    """Context manager in which AOT autograd keeps composite operators.

    `differentiated`: whether the graph takes derivatives. Torch's function gives kept operators
    none: a gradient through one would be zero, and a tangent missing. So composite operators are
    decomposed where autograd records them.

    The function is private to torch. Without it they are decomposed, and Kiln's patterns find some
    of them again.
    """
    try:
        from torch.export.exported_program import _override_composite_implicit_decomp

        override = _override_composite_implicit_decomp(_rules())
        return _recorded(override) if differentiated else override
    except (ImportError, AttributeError) as error:
        pieces.log.info("composite operators are decomposed: %s", error)
        return contextlib.nullcontext()


@contextlib.contextmanager
def _recorded(override: AbstractContextManager[Any]) -> Iterator[None]:
    """The override, with decompositions where autograd records operators."""
    decompositions = {op: _decomposition(op) for op in _rules()}
    with override:
        for op, decomposition in decompositions.items():
            for key, kernel in op.py_kernels.items():
                if key.name.startswith("Autograd"):
                    op.py_kernels[key] = _recording(kernel, decomposition)
            op._dispatch_cache.clear()
        yield


def _recording(kernel: Callable[..., Any], decomposition: Callable[..., Any]) -> Any:
    """The autograd kernel of an operator: `kernel` where nothing is recorded, else the
    decomposition."""

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = (t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        backward = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        chosen = decomposition if backward or versions.is_forward_mode() else kernel
        return chosen(*args, **kwargs)

    return call


def _decomposition(op: Any) -> Callable[..., Any]:
    """The decomposition of an operator, without the override."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    known = op.py_kernels.get(key)
    return known if callable(known) else partial(op._op_dk, key)


def decomposed() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions`, which keeps what is not in it."""
    try:
        return {op: rule for op, rule in _rules().items() if _name(op) in VIEWS | VIEWS_OF_ONE}
    except ImportError:
        return {}


@cache
def _rules() -> dict[Any, Callable[..., Any]]:
    """A rule for each composite operator that torch.export keeps."""
    from torch._export.utils import _collect_all_valid_cia_ops_for_aten_namespace

    found = _collect_all_valid_cia_ops_for_aten_namespace()
    return {op: _rule(op) for op in found if not any(r in str(op).lower() for r in RARE + BROKEN)}


def _rule(op: Any) -> Callable[..., Any]:
    """A rule for torch: it keeps the operator, or decomposes it if its result may be a view."""
    views, views_of_one = _name(op) in VIEWS, _name(op) in VIEWS_OF_ONE
    numbers = _name(op) in NUMBERS

    def rule(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        # Wrapper subclasses, as DTensor, decompose what they have no rule for, such as linear.
        wrapped = any(is_traceable_wrapper_subclass(t) for t in tensors)
        if views or numbers or (views_of_one and len(tensors) == 1) or wrapped:
            return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        return NotImplemented

    return rule


def _name(op: Any) -> str:
    """The operator's name without namespace and overload."""
    name: str = op._schema.name
    return name.rpartition("::")[2]
