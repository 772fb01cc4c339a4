"""Modules by way of `torch.export.export`, without gradients.

For what cannot be recorded in one run (`trace`), and for sizes that change. `functional` makes a
program functional where it has calls that write. Composite operators stay whole. Shapes are static
unless asked otherwise.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from kiln import versions
from kiln._native import InputError, UnsupportedError, UsageError
from kiln.kernels import in_dynamo
from kiln.tracing import composites, export_errors, op_kinds, triton_launches
from kiln.tracing.sources import warn

#: What `dynamic` may be: static shapes, every dimension dynamic, or as torch.export takes it.
Dynamic = bool | Mapping[str, Any] | Sequence[Any] | None


def check(example_inputs: Any) -> None:
    """Raises for tensors that no program takes: nested, quantised and sparse ones.

    >>> check((torch.ones(2), 3))
    """
    for leaf in pytree.tree_leaves(example_inputs):
        if not isinstance(leaf, torch.Tensor):
            continue
        problem = ""
        if leaf.is_nested:
            problem = "a nested tensor: pass a padded one (`torch.nested.to_padded_tensor`)"
        elif leaf.is_quantized:
            problem = f"quantised ({leaf.dtype}): pass `dequantize()` of it"
        elif leaf.layout is not torch.strided:
            problem = f"of layout {leaf.layout}: pass a dense tensor (`to_dense()`)"
        if problem:
            raise InputError(f"an example input is {problem}")


def export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Dynamic = None
) -> ExportedProgram:
    """Exports a module as it is called with these arguments, without gradients."""
    from torch._dynamo.exc import UserError, UserErrorType

    # They say that `dynamic` or the inputs do not fit the module.
    user_errors = (UserErrorType.INVALID_INPUT, UserErrorType.CONSTRAINT_VIOLATION)
    if module.training:
        warn(
            "the module is in training mode; call .eval() first unless dropout and batch "
            "statistics are wanted"
        )
    shapes = _dynamic_shapes(module, args, kwargs, dynamic)
    try:
        return _traced(module, args, kwargs, shapes, strict=False)
    except UserError as error:
        if error.error_type in user_errors:
            text = str(error).partition("For more information")[0].strip()
            raise UsageError(f"torch.export refused the arguments: {text}") from None
        plain_error: Exception = error
    except Exception as error:
        plain_error = error
    try:
        # Tracing by bytecode follows what plain tracing cannot, such as caches that are made in
        # the call.
        return _traced(module, args, kwargs, shapes, strict=True)
    except Exception:
        pass
    raise export_errors.of_export(module, args, kwargs, plain_error) from None


def _traced(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: Any,
    *,
    strict: bool,
) -> ExportedProgram:
    if strict:
        in_dynamo.install()
    states, ported = versions.shapes_of_states(), triton_launches.ported()
    with torch.no_grad(), _hooks_restored(), export_errors.quiet(), states, ported:
        return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict)


def is_on(module: torch.nn.Module, inputs: Any, device: str | torch.device | None) -> bool:
    """Whether a module and inputs are on this device already.

    >>> is_on(torch.nn.ReLU(), (torch.ones(1),), "cpu")
    True
    """
    if device is None:
        return True
    target = torch.device(device)
    found = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return all(t.device == target for t in [*found, *module.parameters(), *module.buffers()])


@contextlib.contextmanager
def _hooks_restored() -> Iterator[None]:
    """Context manager that removes global hooks which a failed torch.export leaves behind. With
    them torch.compile cannot trace assignments of buffers."""
    hooks = getattr(torch.nn.modules.module, "_global_buffer_registration_hooks", {})
    before = set(hooks)
    try:
        yield
    finally:
        for hook in set(hooks) - before:
            del hooks[hook]


def _dynamic_shapes(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Dynamic
) -> Any:
    if dynamic is None or dynamic is False:
        return None
    if dynamic is not True:
        return dynamic
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments

    def every_dimension(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        return dict.fromkeys(range(leaf.dim()), Dim.AUTO) if leaf.dim() else None

    return pytree.tree_map(every_dimension, dict(bound))


def with_hints(dynamic: Dynamic) -> Dynamic:
    """`dynamic` with automatic dimensions in place of bounds that allow 0 or 1, so that
    torch.export may specialise these sizes.

    >>> with_hints({"x": {0: Dim("n")}})
    {'x': {0: DimHint(AUTO)}}
    """
    if dynamic is None or isinstance(dynamic, bool):
        return dynamic

    def hint(leaf: Any) -> Any:
        if isinstance(leaf, Dim):
            return Dim.AUTO if getattr(leaf, "root", leaf).min < 2 else leaf
        return Dim.AUTO if versions.must_be_dynamic(leaf) else leaf

    hinted: Dynamic = pytree.tree_map(hint, dynamic)
    return hinted


@dataclass(frozen=True)
class Interface:
    """What the signature of an exported program says."""

    #: Names of parameters and buffers, and their tensors, by the positions of their placeholders.
    params: dict[int, str] = field(default_factory=dict)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Names of the other inputs.
    input_names: dict[int, str] = field(default_factory=dict)
    #: For outputs that are written to something, and not returned, the name of its placeholder.
    mutations: dict[int, str] = field(default_factory=dict)
    #: Buffers that are written to.
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    #: Outputs that are fixed: position in the flat outputs, and value.
    constants: dict[int, Any] = field(default_factory=dict)


def interface(exported: ExportedProgram) -> Interface:
    """The interface of a program, whose graph must be functional (see `functional`)."""
    specs = exported.graph_signature
    found = Interface()
    for i, spec in enumerate(specs.input_specs):
        if spec.kind is InputKind.USER_INPUT:
            found.input_names[i] = spec.arg.name
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            target = str(spec.target)
            found.params[i], found.tensors[i] = target, _tensor(exported, target)
        else:
            raise UnsupportedError(
                f"the program takes {spec.target or spec.arg.name}, which is no tensor "
                f"({spec.kind.name.lower()}): keep objects out of the compiled part"
            )
    placeholder = {spec.target: spec.arg.name for spec in specs.input_specs if spec.target}
    users = 0
    for i, spec in enumerate(specs.output_specs):
        if spec.kind is OutputKind.USER_OUTPUT:
            if isinstance(spec.arg, ConstantArgument):
                found.constants[users] = spec.arg.value
            elif not isinstance(spec.arg, (TensorArgument, SymIntArgument)):
                raise UnsupportedError(
                    f"the program returns {type(spec.arg).__name__}: return tensors, sizes and "
                    "plain Python values"
                )
            users += 1
        elif spec.kind in versions.WRITTEN:
            target = str(spec.target)
            found.mutations[i] = placeholder[target]
            found.state[target] = _tensor(exported, target)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            found.mutations[i] = str(spec.target)
        else:
            raise UnsupportedError(
                f"the program returns {spec.kind.name.lower()}: export it for inference, under "
                "torch.no_grad()"
            )
    return found


def functional(exported: ExportedProgram, *, forced: bool = False) -> ExportedProgram:
    """The program without in-place operators, composite operators whole.

    A program without writes and random numbers is returned as it is. `forced`: decomposes operators
    to core ATen also then, for programs of which Kiln refuses a part.
    """
    if exported.dialect == "ATEN":
        # Torch has checked that all of its operators are functional. Tracing it again would change
        # nothing, and take about as long as the export.
        return exported
    if not forced and all(map(_is_functional, exported.graph.nodes)):
        return exported
    with warnings.catch_warnings(), versions.shapes_of_states():
        # Of torch's own copying of tree specs.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            program: ExportedProgram = exported.run_decompositions(composites.decomposed())
        except Exception as error:
            why = export_errors.first_line(error)
            raise UnsupportedError(
                f"torch.export cannot make the program functional ({why}): {export_errors.REMEDY}"
            ) from error
        return program


def _is_functional(node: torch.fx.Node) -> bool:
    """Whether a call only computes its results: no writes, no random numbers."""
    target = node.target
    if node.op == "get_attr":
        return isinstance(node.meta.get("val"), torch.Tensor)
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return not isinstance(target, torch._ops.HigherOrderOperator)
    if not target._schema.name.startswith("aten::"):
        # Torch's own operators for sizes, and those of others, which may be composite.
        return not (target._schema.is_mutable or target._can_decompose())
    if target._schema.is_mutable or op_kinds.kind_of(target).refused:
        return False
    return op_kinds.is_deterministic(target, node.args, node.kwargs)


def moved(exported: ExportedProgram, device: str) -> ExportedProgram:
    """The program on another device."""
    from torch.export.passes import move_to_device_pass

    program: ExportedProgram = move_to_device_pass(exported, device)
    return program


def _tensor(exported: ExportedProgram, target: str) -> torch.Tensor:
    found = exported.state_dict.get(target)
    if found is None:
        found = exported.constants.get(target)
    if not isinstance(found, torch.Tensor):
        raise UnsupportedError(
            f"the program holds {target}, which is no tensor: keep objects out of the compiled part"
        )
    return found
