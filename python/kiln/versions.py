"""What differs between the versions of torch that the package runs with, 2.8 and later."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from kiln._native import UnsupportedError

if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Context manager in which `torch.compiler.is_exporting()` is true: models skip checks of data
    then.

    >>> with exporting():
    ...     torch.compiler.is_compiling()
    True
    """
    flags = ("_is_compiling_flag", "_is_exporting_flag")
    before = {
        name: getattr(torch.compiler, name) for name in flags if hasattr(torch.compiler, name)
    }
    try:
        for name in before:
            setattr(torch.compiler, name, True)
        yield
    finally:
        for name, value in before.items():
            setattr(torch.compiler, name, value)


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


@contextlib.contextmanager
def shapes_of_states() -> Iterator[None]:
    """Context manager in which torch traces the states of an LSTM with their right shapes.

    Torch's shape function (up to 2.11) squeezes the batch axis if the batch is one, and otherwise
    nothing, where it should squeeze the axis of the step.
    """
    from torch._decomp import decompositions

    traced = getattr(decompositions, "one_layer_lstm", None)
    if traced is None:
        yield
        return

    def one_layer(*args: Any, **kwargs: Any) -> Any:
        out, states = traced(*args, **kwargs)
        return out, tuple(s.squeeze(0) if s.dim() == 3 else s for s in states)

    decompositions.one_layer_lstm = one_layer  # type: ignore[attr-defined]
    try:
        yield
    finally:
        decompositions.one_layer_lstm = traced  # type: ignore[attr-defined]


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
    """Compiles a guard to a function of the inputs, by the names of the placeholders.

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


def must_be_dynamic(hint: Any) -> bool:
    """Whether it is `torch.export.Dim.DYNAMIC`, with or without bounds.

    >>> must_be_dynamic(torch.export.Dim.DYNAMIC), must_be_dynamic(torch.export.Dim.STATIC)
    (True, False)
    """
    return str(getattr(hint, "type", "")).endswith(".DYNAMIC")


def guards(exported: ExportedProgram) -> Sequence[str]:
    """The conditions on sizes that export assumed, as Python text over `L['x'].size()[0]`.

    Programs of torch 2.8 do not hold them; they are read from the shape environment.
    """
    if hasattr(exported, "_guards_code"):
        return list(exported._guards_code)
    import sympy
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
    asserts = [a for deferred in environment.deferred_runtime_asserts.values() for a in deferred]
    for condition in (*environment.guards, *asserts):
        # Not simplified: what tracing assumed is known to be true by then.
        expression = environment.replace(condition.expr)
        # Symbols that depend on data are no sizes of inputs: the operators that make them are
        # refused.
        if expression is sympy.true or free_unbacked_symbols(expression):
            continue
        text = printer.doprint(expression)
        for symbol in sorted(expression.free_symbols, key=lambda s: -len(s.name)):
            text = text.replace(symbol.name, places.get(symbol, symbol.name))
        found.append(text)
    return found


# Transforms of torch.func, of which a thread has a stack


def transform_depth() -> int:
    """How many transforms this thread is in.

    >>> transform_depth()
    0
    """
    return int(torch._C._functorch.get_dynamic_layer_stack_depth())


def leave_transforms(depth: int) -> None:
    """Leaves all but the `depth` outermost transforms. Torch's own function pops each of them
    twice, and fails for nested transforms of different kinds."""
    functorch = torch._C._functorch
    leave = {
        functorch.TransformType.Vmap: functorch._vmap_decrement_nesting,
        functorch.TransformType.Grad: functorch._grad_decrement_nesting,
        functorch.TransformType.Jvp: functorch._jvp_decrement_nesting,
        functorch.TransformType.Functionalize: functorch._func_decrement_nesting,
    }
    while transform_depth() > depth:
        leave[functorch.peek_interpreter_stack().key()]()


def is_forward_mode() -> bool:
    """Whether forward-mode differentiation is in flight, as within `torch.func.jvp`.

    >>> is_forward_mode()
    False
    >>> with torch.autograd.forward_ad.dual_level():
    ...     is_forward_mode()
    True
    """
    # Torch has one level, and tells of it only by refusing a second one.
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        return True
    torch._C._exit_dual_level(level)
    return False


def leave_forward_mode() -> None:
    """Ends forward-mode differentiation."""
    torch._C._exit_dual_level(0)


def autograd_settings() -> tuple[bool, str | None]:
    """Settings of autograd that transforms change: whether `requires_grad_` is allowed within them,
    and why hooks of saved tensors are disabled (None if they are enabled)."""
    allowed = torch._C._functorch.get_inplace_requires_grad_allowed()
    reason = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()
    return bool(allowed), reason


def set_autograd_settings(settings: tuple[bool, str | None]) -> None:
    """Restores the result of `autograd_settings`."""
    allowed, reason = settings
    torch._C._functorch.set_inplace_requires_grad_allowed(allowed)
    if reason is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable(reason)


# What is compiled


def compiled_model() -> Any:
    """The module or function given to torch.compile whose call is running; None if unknown."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == _EVAL_FRAME:
            # The function's name changed between releases. That of what runs uncompiled has no
            # callback.
            known = frame.f_locals
            if "callback" in known and "fn" in known:
                return model_of(known["fn"])
        frame = frame.f_back  # type: ignore[assignment]
    return None


def model_of(function: Any) -> Any:
    """The module of a bound `forward`; other functions as they are.

    >>> relu = torch.nn.ReLU()
    >>> model_of(relu.forward) is relu, model_of(print) is print
    (True, True)
    """
    # Torch wraps calls of modules that it inlines.
    while getattr(getattr(function, "__code__", None), "co_filename", "") == _EXTERNAL:
        function = getattr(function, "__wrapped__", None)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        return owner
    # A method is made anew wherever it is looked up.
    return getattr(function, "__func__", function)


@dataclass(frozen=True)
class Traced:
    """A function that dynamo traces, and the backend that it is for."""

    code: CodeType
    backend: Any


def traced_code() -> Traced | None:
    """The function that dynamo is tracing; None if unknown."""
    frame = sys._getframe()
    while frame is not None:
        known = frame.f_locals
        if frame.f_code.co_filename == _CONVERT_FRAME and {"code", "compiler_fn"} <= known.keys():
            backend = known["compiler_fn"]
            # Torch wraps backends, for its debugging and for the options of the user.
            while (inner := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
                backend = inner
            return Traced(known["code"], getattr(backend, "compiler_fn", backend))
        frame = frame.f_back  # type: ignore[assignment]
    return None


def sharding(module: Any) -> str:
    """The wrapper that shards the weights of a module over processes; empty if there is none.

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
    """Whether a symbolic number depends only on floats that callers pass.

    >>> is_of_floats(1.0)
    False
    """
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    symbols = value.node.expr.free_symbols
    return bool(symbols) and all(symbol_is_type(s, SymT.FLOAT) for s in symbols)


def guarded(value: Any) -> Any:
    """The value of a symbolic number at tracing, with a guard on it."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value)


def keep_floats(symbols: Iterable[Any]) -> None:
    """If one of the symbols is a float that callers pass, restarts the trace with its value as a
    constant."""
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
    """Context manager in which torch leaves symbols of floats in graphs, instead of making tensors
    of some and constants of others."""
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


# Not from its modules, which take seconds to import.
_DYNAMO = Path(torch.__file__).with_name("_dynamo")
_EVAL_FRAME, _EXTERNAL = str(_DYNAMO / "eval_frame.py"), str(_DYNAMO / "external_utils.py")
_CONVERT_FRAME = str(_DYNAMO / "convert_frame.py")
