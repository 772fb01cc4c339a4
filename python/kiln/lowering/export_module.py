"""The program of a module by torch.export, as `kiln.compile` takes it: numbers among the arguments
may be inputs, and tensors that the module keeps in attributes from call to call are state.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from kiln._native import UnsupportedError
from kiln.lowering import lower_module, scalars
from kiln.pieces import log
from kiln.tracing import export, side_effects
from kiln.tracing.sources import warn


def with_numbers(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: export.Dynamic,
    numbers: set[int],
) -> tuple[ExportedProgram, set[int]]:
    """The exported module, and which of the numbers are its inputs.

    `numbers`: positions of the flat arguments that may be inputs. With `dynamic=True` those by
    which the module branches, or that are sizes, keep their value; numbers that `dynamic` names
    have to be inputs."""
    sizes = scalars.without_numbers(dynamic)
    if dynamic is not True:
        return _export_with_numbers(module, args, kwargs, sizes, numbers), numbers
    leaves = pytree.tree_leaves((args, kwargs))
    floats = {i for i in numbers if type(leaves[i]) is float}
    for chosen in (numbers, floats, numbers - floats):
        try:
            exported = _export_with_numbers(module, args, kwargs, sizes, chosen)
            if not chosen:
                return exported, chosen
            rewritten = lower_module.with_tensors(exported)
            if not scalars.reads_number_inputs(rewritten.graph):
                return exported, chosen
            log.info("numbers keep their values: sizes depend on them")
        except UnsupportedError as error:
            if not numbers:
                raise
            log.info("numbers keep their values: %s", error)
    return export_with_state(module, args, kwargs, sizes), set()


def _export_with_numbers(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sizes: Any,
    numbers: set[int],
) -> ExportedProgram:
    """The exported module with tensors for the numbers at these positions of the flat arguments,
    functional if there are any."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = (t for t in (*leaves, *module.parameters()) if isinstance(t, torch.Tensor))
    device = next((t.device for t in tensors), None)
    for i in numbers:
        dtype = scalars.DTYPES[type(leaves[i])]
        leaves[i] = torch.tensor(leaves[i], dtype=dtype, device=device)
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    with scalars.read_from_tensors(module, numbers):
        exported = export_with_state(module, args, kwargs, sizes)
    return export.functional(exported) if numbers else exported


def export_with_state(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Any
) -> ExportedProgram:
    """The exported module. Tensors that it keeps in attributes from call to call become buffers,
    which are state."""
    with side_effects.watched(module) as assigned, warnings.catch_warnings():
        # Torch says that it drops them.
        warnings.filterwarnings("ignore", "The tensor attribute", UserWarning)
        exported = export.export(module, args, kwargs, sizes)
    state = [a for a in assigned if a.is_state()]
    others = [a for a in assigned if not a.is_state()]
    for attribute in state:
        del attribute.module.__dict__[attribute.name]
        attribute.module.register_buffer(attribute.name, attribute.before, persistent=False)
    if state:
        with side_effects.watched(module):
            exported = export.export(module, args, kwargs, sizes)
    for attribute in others:
        if attribute.was_there and _is_read(module, attribute, args, kwargs, sizes):
            raise UnsupportedError(
                f"the module keeps a tensor in `{attribute.path}`, which is "
                f"{_described(attribute.before)} before the first call: make it a tensor of shape "
                f"{list(attribute.shape)} before it is compiled, or use "
                'torch.compile(model, backend="kiln")'
            )
    if others:
        names = ", ".join(f"`{attribute.path}`" for attribute in others)
        warn(
            f"the module assigns {names}, which calls of the compiled program do not: return "
            "these tensors, or make them buffers of the same shape"
        )
    return exported


def _is_read(
    module: torch.nn.Module, attribute: side_effects.Assigned, args: Any, kwargs: Any, sizes: Any
) -> bool:
    """Whether a module reads a tensor that an earlier call left in an attribute."""
    if -1 in attribute.shape:
        return True
    inputs = (t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
    device = next((t.device for t in inputs), None)
    del attribute.module.__dict__[attribute.name]
    assigned = torch.zeros(attribute.shape, dtype=attribute.dtype, device=device)
    attribute.module.register_buffer(attribute.name, assigned, persistent=False)
    try:
        with side_effects.watched(module):
            second_call = export.functional(export.export(module, args, kwargs, sizes))
        specs = second_call.graph_signature.input_specs
        names = {spec.arg.name for spec in specs if spec.target == attribute.path}
        buffers = [n for n in second_call.graph.find_nodes(op="placeholder") if n.name in names]
        # The target of a copy is written over, and not read.
        copy = torch.ops.aten.copy.default
        return any(
            user.target is not copy or user.args[0] is not buffer
            for buffer in buffers
            for user in buffer.users
            if user.op != "output"
        )
    except UnsupportedError:
        return True
    finally:
        delattr(attribute.module, attribute.name)
        attribute.module.__dict__[attribute.name] = attribute.before


def _described(value: Any) -> str:
    is_tensor = isinstance(value, torch.Tensor)
    return f"a tensor of shape {list(value.shape)}" if is_tensor else repr(value)
