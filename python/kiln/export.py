"""From a module or an `ExportedProgram` to the program that the native engine reads.

A module goes through `torch.export.export` without gradients, then `run_decompositions({})`:
composite operators stay whole, and mutations are in the signature. Shapes are static unless asked
otherwise.
"""

from __future__ import annotations

import inspect
import json
import re
import warnings
from collections.abc import Mapping, Sequence
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

from kiln import graph
from kiln._native import UnsupportedError, UsageError

_SYMBOL = re.compile(r"^Symbol\('([^']*)'")

#: What `dynamic` may be: static shapes, every dimension dynamic, or as torch.export takes it.
Dynamic = bool | Mapping[str, Any] | Sequence[Any] | None


@dataclass(frozen=True)
class Exported:
    """A program and everything that is needed to call it as the module is called."""

    program: graph.Program
    #: Tensors of the program's parameters, in order.
    params: list[torch.Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    #: Outputs that are fixed: position in the flat outputs, and value.
    constants: dict[int, Any]
    #: Buffers that the program writes to.
    state: dict[str, torch.Tensor]
    #: How the module is called; None for a program that came without it.
    signature: inspect.Signature | None = None
    #: The flat example inputs, if there are any.
    examples: list[Any] = field(default_factory=list)

    def sizes_of(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The sizes of the symbols for these flat inputs."""
        program = json.loads(self.program.text)
        sizes = {}
        for entry, leaf in zip(program["inputs"], leaves, strict=True):
            if "value" not in entry or not isinstance(leaf, torch.Tensor):
                continue
            shape = program["values"][entry["value"]]["shape"]
            for dimension, size in zip(shape, leaf.shape, strict=False):
                # Other expressions are computed from these.
                symbol = _SYMBOL.match(str(dimension))
                if symbol is not None:
                    sizes[symbol.group(1)] = int(size)
        return sizes


def arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: of a tuple or list, a dict by name, or one value.

    >>> arguments((1, 2)), arguments({"x": 1}), arguments(3)
    (((1, 2), {}), ((), {'x': 1}), ((3,), {}))
    """
    if example_inputs is None:
        return (), {}
    if isinstance(example_inputs, Mapping) and all(isinstance(k, str) for k in example_inputs):
        return (), dict(example_inputs)
    if type(example_inputs) in (tuple, list):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def export(module: torch.nn.Module, example_inputs: Any, dynamic: Dynamic) -> ExportedProgram:
    """Exports a module in functional form."""
    if example_inputs is None:
        raise UsageError(
            "kiln.compile was given a module without example inputs: pass a tuple of its "
            "arguments, or a dict of them by name"
        )
    if module.training:
        warnings.warn(
            "kiln.compile: the module is in training mode; call .eval() first unless dropout and "
            "batch statistics are wanted",
            stacklevel=3,
        )
    args, kwargs = arguments(example_inputs)
    shapes = _dynamic_shapes(module, args, kwargs, dynamic)
    with torch.no_grad():
        try:
            exported = torch.export.export(
                module, args, kwargs, dynamic_shapes=shapes, strict=False
            )
        except Exception as first:
            # Tracing by bytecode follows what plain tracing cannot, such as caches that are made
            # in the call.
            try:
                exported = torch.export.export(
                    module, args, kwargs, dynamic_shapes=shapes, strict=True
                )
            except Exception:
                raise UnsupportedError(
                    f"torch.export cannot trace the module ({_first_line(first)}): mend it, or use "
                    'torch.compile(model, backend="kiln"), which runs what it cannot trace'
                ) from first
    return exported


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


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


def read(
    exported: ExportedProgram,
    *,
    name: str = "forward",
    signature: inspect.Signature | None = None,
) -> Exported:
    """Writes an exported program, which must be in functional form (see `functional`)."""
    specs = exported.graph_signature
    params: dict[int, str] = {}
    input_names: dict[int, str] = {}
    tensors: dict[int, torch.Tensor] = {}
    for i, spec in enumerate(specs.input_specs):
        if spec.kind is InputKind.USER_INPUT:
            input_names[i] = spec.arg.name
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            target = str(spec.target)
            params[i], tensors[i] = target, _tensor(exported, target)
        else:
            raise UnsupportedError(
                f"the program takes {spec.target or spec.arg.name}, which is no tensor "
                f"({spec.kind.name.lower()}): keep objects out of the compiled part"
            )
    placeholder = {spec.target: spec.arg.name for spec in specs.input_specs if spec.target}
    mutations: dict[int, str] = {}
    state: dict[str, torch.Tensor] = {}
    constants: dict[int, Any] = {}
    users = 0
    for i, spec in enumerate(specs.output_specs):
        if spec.kind is OutputKind.USER_OUTPUT:
            if isinstance(spec.arg, ConstantArgument):
                constants[users] = spec.arg.value
            elif not isinstance(spec.arg, (TensorArgument, SymIntArgument)):
                raise UnsupportedError(
                    f"the program returns {type(spec.arg).__name__}: return tensors, sizes and "
                    "plain Python values"
                )
            users += 1
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
            target = str(spec.target)
            mutations[i] = placeholder[target]
            state[target] = _tensor(exported, target)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            mutations[i] = str(spec.target)
        else:
            raise UnsupportedError(
                f"the program returns {spec.kind.name.lower()}: export it for inference, under "
                "torch.no_grad()"
            )
    program = graph.write(
        exported.graph,
        exported.graph_module,
        name=name,
        params=params,
        input_names=input_names,
        mutations=mutations,
        guards=getattr(exported, "_guards_code", ()),
    )
    examples = []
    if exported.example_inputs is not None:
        examples = pytree.tree_leaves(exported.example_inputs)
    call = exported.call_spec
    if call.in_spec is None or call.out_spec is None:
        raise UnsupportedError("the program does not say how it is called: export it again")
    return Exported(
        program,
        [tensors[p] if isinstance(p, int) else p for p in program.params],
        call.in_spec,
        call.out_spec,
        constants,
        state,
        signature,
        examples,
    )


def functional(exported: ExportedProgram) -> ExportedProgram:
    """The program without in-place operators, composite operators whole."""
    with warnings.catch_warnings():
        # Of torch's own copying of tree specs.
        warnings.simplefilter("ignore", FutureWarning)
        return exported.run_decompositions({})


def moved(exported: ExportedProgram, device: str) -> ExportedProgram:
    """The program on another device."""
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(exported, device)


def _tensor(exported: ExportedProgram, target: str) -> torch.Tensor:
    found = exported.state_dict.get(target)
    if found is None:
        found = exported.constants.get(target)
    if not isinstance(found, torch.Tensor):
        raise UnsupportedError(
            f"the program holds {target}, which is no tensor: keep objects out of the compiled part"
        )
    return found


def caller(spec: pytree.TreeSpec, n: int) -> bool:
    """Whether a call has `n` positional arguments, each of them one leaf, and no others.

    >>> flat, nested = pytree.tree_structure(((1, 2), {})), pytree.tree_structure((([1],), {}))
    >>> caller(flat, 2), caller(nested, 1)
    (True, False)
    """
    positional, keywords = spec.children()
    flat = all(child.is_leaf() for child in positional.children())
    return flat and positional.num_children == n and keywords.num_children == 0
