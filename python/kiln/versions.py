"""What differs between the versions of torch that the package runs with, 2.8 and later."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from kiln._native import UnsupportedError

#: Kinds of outputs that are written to parameters or buffers; 2.8 has none for parameters.
WRITTEN = frozenset(
    kind
    for name in ("BUFFER_MUTATION", "PARAMETER_MUTATION")
    if (kind := getattr(OutputKind, name, None)) is not None
)

#: Whether autocast is on for any kind of device; private to torch.
any_autocast: Callable[[], bool] = getattr(
    torch._C,
    "_is_any_autocast_enabled",
    lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
)


def children(spec: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    """The specs of a node's items; a method since 2.11.

    >>> [item.is_leaf() for item in children(pytree.tree_structure((1, [2])))]
    [True, False]
    """
    if hasattr(spec, "children"):
        found: list[pytree.TreeSpec] = spec.children()
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return list(spec.children_specs)


#: A size in a guard: the argument's name, and items of it.
_SIZE = re.compile(r"L\['(\w+)'\]((?:\['?\w+'?\])*)\.size\(\)\[(\d+)\]")


def condition(guard: str) -> Callable[[Mapping[str, Any]], bool]:
    """What tells whether inputs, by the names of the program's placeholders, meet a guard.

    >>> even = condition("(L['x'].size()[0] % 2) == 0")
    >>> even({"x": torch.ones(4)}), even({"x": torch.ones(3)})
    (True, False)
    """

    def name(found: re.Match[str]) -> str:
        argument, items, axis = found.groups()
        placeholder = "_".join([argument, *re.findall(r"\w+", items)])
        return f"_of({placeholder!r}, {axis})"

    code = compile(_SIZE.sub(name, guard), "<guard>", "eval")

    def holds(tensors: Mapping[str, Any]) -> bool:
        known = {"_of": lambda name, axis: tensors[name].shape[axis], "max": max, "min": min}
        try:
            return bool(eval(code, {"__builtins__": {}}, known))
        except (NameError, KeyError):
            raise UnsupportedError(
                f"Kiln does not read the condition {guard} of the program: compile it without "
                "`dynamic`"
            ) from None

    return holds


def guards(exported: ExportedProgram) -> Sequence[str]:
    """The conditions on sizes that export assumed, as Python text over `L['x'].size()[0]`.

    Programs of 2.8 do not hold them, but the record of tracing does.
    """
    if hasattr(exported, "_guards_code"):
        return list(exported._guards_code)
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
    from torch.utils._sympy.printers import PythonPrinter

    places: dict[sympy.Symbol, str] = {}
    environment = None
    named = {s.arg.name: s for s in exported.graph_signature.input_specs}
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        if named[node.name].kind is not InputKind.USER_INPUT:
            continue
        for axis, size in enumerate(value.shape):
            if not isinstance(size, torch.SymInt):
                continue
            environment = size.node.shape_env
            if isinstance(size.node.expr, sympy.Symbol):
                places.setdefault(size.node.expr, f"L['{node.name}'].size()[{axis}]")
    if environment is None:
        return []
    printer = PythonPrinter()
    found = []
    asserts = [a for of in environment.deferred_runtime_asserts.values() for a in of]
    for condition in (*environment.guards, *asserts):
        # Not simplified: what tracing assumed is known to be true by then.
        expression = environment.replace(condition.expr)
        # Symbols that depend on data are no sizes of inputs; the operators that make them are refused.
        if expression is sympy.true or free_unbacked_symbols(expression):
            continue
        text = printer.doprint(expression)
        for symbol in sorted(expression.free_symbols, key=lambda s: -len(s.name)):
            text = text.replace(symbol.name, places.get(symbol, symbol.name))
        found.append(text)
    return found


def sharding(module: Any) -> str:
    """What spreads the weights of a module over processes; empty if nothing does.

    >>> sharding(torch.nn.Linear(1, 1))
    ''
    """
    # Only what is imported already can have wrapped the module.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    for name in ("FSDPModule", "FullyShardedDataParallel"):
        kind = getattr(fsdp, name, None)
        if isinstance(kind, type) and isinstance(module, kind):
            return "FSDP2 (fully_shard)" if name == "FSDPModule" else "FSDP"
    return ""


def is_of_floats(value: Any) -> bool:
    """Whether a symbolic number depends on floats that callers pass, and on nothing else.

    >>> is_of_floats(1.0)
    False
    """
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    symbols = value.node.expr.free_symbols
    return bool(symbols) and all(symbol_is_type(s, SymT.FLOAT) for s in symbols)


def guarded(value: Any) -> Any:
    """The value that a symbolic number had at tracing, with a guard on it."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value)


def keep_floats(symbols: Iterable[Any]) -> None:
    """Has dynamo trace again, with the values of these floats that callers pass, if there are
    any among the symbols."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    names = [str(s) for s in symbols if symbol_is_type(s, SymT.FLOAT)]
    if not names:
        return
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._dynamo.symbolic_convert import TensorifyState

    for name in names:
        TensorifyState.specialize(name)
    raise TensorifyScalarRestartAnalysis


@contextlib.contextmanager
def numbers_left() -> Iterator[None]:
    """Meanwhile torch leaves the symbols of floats in graphs, where it would make tensors of some
    and constants of the others."""
    name = "TENSORIFY_PYTHON_SCALARS"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
