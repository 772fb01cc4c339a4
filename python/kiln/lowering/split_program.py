"""An exported program in several pieces: Kiln compiles some, and PyTorch runs the others.

`Compiled` uses it in place of a native engine, with the same methods.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._sympy.symbol import SymT, symbol_is_type

from kiln import pieces, versions
from kiln._native import InputError, ShapeError, UnsupportedError, UsageError
from kiln.lowering import views
from kiln.lowering.call_spec import CallSpec
from kiln.lowering.lower_graph import Lowering
from kiln.lowering.runner import Versions
from kiln.tracing import export
from kiln.tracing.schemas import SYMBOLIC


class SplitProgram:
    """A program, its parameters, and the pieces that it was split into."""

    def __init__(
        self, exported: ExportedProgram, interface: export.Interface, options: Mapping[str, Any]
    ) -> None:
        gm = _with_writes(exported, interface)
        inputs = gm.graph.find_nodes(op="placeholder")
        self.values = [n.meta.get("val") for n in inputs]
        self.names = interface.input_names
        self.params = interface.tensors
        names = [interface.params.get(i) or interface.input_names[i] for i in range(len(inputs))]
        subclass_versions = Versions([])
        self._lowering = Lowering(
            gm, names, options, False, subclass_versions, interface.tensors.keys()
        )
        piece = pieces.Piece("")
        self._run = self._lowering.parts(piece)
        self.parts = piece.parts
        self._places = {node: i for i, node in enumerate(inputs)}
        sizes = [n for v in self.values for n in getattr(v, "shape", (v,))]
        used = {s for n in sizes if isinstance(n, SYMBOLIC) for s in n.node.expr.free_symbols}
        #: The symbols of the inputs' sizes: the least and the largest. Numbers read from data, such
        #: as a float, have no range and are none of them; ranges of sizes that are fixed are left.
        self.symbols = {
            str(s): (int(r.lower), int(r.upper) if r.upper.is_Integer else None)
            for s, r in exported.range_constraints.items()
            if s in used and not symbol_is_type(s, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))
        }
        #: Conditions on sizes, and the sizes that were traced, at which they hold.
        self.guards = [(text, versions.condition(text)) for text in versions.guards(exported)]
        self.call_spec: CallSpec

    @classmethod
    def split(
        cls, exported: ExportedProgram, options: Mapping[str, Any], **about: Any
    ) -> SplitProgram:
        """Splits a program, which must be in functional form."""
        interface = export.interface(exported)
        program = cls(exported, interface, options)
        devices = [str(v.device) for v in program.values if isinstance(v, torch.Tensor)]
        spec = exported.call_spec
        program.call_spec = CallSpec(
            about["name"],
            next((device for device in devices if device != "cpu"), "cpu"),
            spec.in_spec,
            spec.out_spec,
            list(program.symbols),
            [_shape(program.values[i]) for i in program.names],
            interface.constants,
            interface.state,
            {},
            about["signature"],
            exported.example_inputs,
            about["original"] or exported.module,
            inputs=list(interface.input_names.values()),
        )
        return program

    def run(self, args: Sequence[Any]) -> list[Any]:
        """Runs the pieces on flat inputs. Flat outputs are dense and share no memory."""
        self._check(args)
        values = {**self.params, **dict(zip(self.names, args, strict=True))}
        inputs = [values[i] for i in range(len(self.values))]
        memories = {t.untyped_storage().data_ptr() for t in inputs if isinstance(t, torch.Tensor)}
        with torch.no_grad():
            return [_dense_copy(result, memories) for result in self._run(list(inputs))]

    def _check(self, args: Sequence[Any]) -> None:
        """Raises unless the inputs have the sizes and types of the program. Pieces check only their
        own inputs."""
        if len(args) != len(self.names):
            names = ", ".join(self.names.values())
            raise InputError(f"{len(args)} inputs were given: give ({names})")
        sizes: dict[str, int] = {}
        for (i, name), value in zip(self.names.items(), args, strict=True):
            traced_value = self.values[i]
            if not isinstance(traced_value, torch.Tensor):
                if not isinstance(traced_value, SYMBOLIC) and traced_value != value:
                    raise InputError(
                        f"input `{name}` is {value}, but the program was compiled for "
                        f"{traced_value}; compile it again with this value"
                    )
                continue
            if not isinstance(value, torch.Tensor):
                kind = type(value).__name__
                raise InputError(f"input `{name}` is a {kind}: pass a torch.Tensor")
            export.check(value)
            if value.device != traced_value.device:
                text = f"input `{name}` is on {value.device}"
                raise InputError(f"{text}: move it to {traced_value.device}")
            dims = [_dimension(d) for d in traced_value.shape]
            if value.dtype != traced_value.dtype or len(dims) != value.dim():
                got, wanted = _kind(value.dtype, value.shape), _kind(traced_value.dtype, dims)
                raise ShapeError(f"input `{name}` is {got}, and not {wanted}: convert it")
            for axis, (dim, size) in enumerate(zip(dims, value.shape, strict=True)):
                if isinstance(dim, sympy.Symbol):
                    wanted_size: Any = sizes.setdefault(dim.name, size)
                    low, high = self.symbols.get(dim.name, (0, None))
                    if size < low or (high is not None and size > high):
                        raise ShapeError(
                            f"input `{name}` has {size} in dimension {axis}, and the program is "
                            f"for {low} to {high}: export again with a wider torch.export.Dim"
                        )
                else:
                    wanted_size = dim.subs(sizes) if isinstance(dim, sympy.Expr) else dim
                if wanted_size != size:
                    raise ShapeError(
                        f"input `{name}` has {size} in dimension {axis}, and not {wanted_size}: "
                        "compile it again with such example inputs"
                    )

        tensors = dict(zip(self.names.values(), args, strict=True))
        for text, holds in self.guards:
            if not holds(tensors):
                raise ShapeError(
                    f"the program was traced for sizes with {text}, which does not hold for these "
                    "inputs: compile it again with such example inputs"
                )

    def warm(self, sizes: Mapping[str, int]) -> None:
        """Compiles all pieces for these sizes."""
        missing = [s for s in self.symbols if s not in sizes]
        if missing:
            raise InputError(f"no size for {', '.join(missing)}: give one")
        for runner, nodes in self._lowering.runners:
            args = [self.params.get(self._places.get(node, -1)) for node in nodes]
            runner.warm(args, sizes)

    @property
    def engines(self) -> list[Any]:
        """The engines of the pieces that Kiln compiles."""
        return [engine for part in self.parts for engine in part.engines]

    def steps(self, count: int, args: Sequence[Any]) -> list[Any]:
        """Runs the program so often; gives the results of the last run."""
        if count < 1:
            raise UsageError("0 steps have no outputs: run at least one step")
        for _ in range(count):
            results = self.run(args)
        return results

    def bytes(self) -> int:
        """Bytes that the pieces hold."""
        return sum(engine.bytes() for engine in self.engines)

    def changed(self) -> bool:
        """False: the engine of each piece checks its own weights."""
        return False

    def refresh(self) -> None:
        """Folds and packs weights again."""
        for engine in self.engines:
            engine.refresh()

    def bindings(self) -> list[dict[str, Any]]:
        """The sizes that were compiled, piece by piece."""
        return [binding for engine in self.engines for binding in engine.bindings()]

    def fallbacks(self, sizes: dict[str, int] | None = None) -> list[str]:
        """Operators that PyTorch runs within compiled pieces."""
        return [op for engine in self.engines for op in engine.fallbacks()]

    def plan(self, sizes: dict[str, int] | None = None) -> str:
        """The plans of the pieces as text."""
        return "\n".join(engine.plan() for engine in self.engines)

    def save(self, path: str | os.PathLike[str], sizes: dict[str, int] | None = None) -> None:
        """Fails: an artifact has no part that PyTorch runs."""
        reason = next((part.reason for part in self.parts if part.reason), "")
        raise UnsupportedError(
            f"the program has a part that PyTorch runs, which an artifact cannot hold ({reason}): "
            "compute this part outside of the module"
        )


def _with_writes(exported: ExportedProgram, interface: export.Interface) -> fx.GraphModule:
    """The graph with `copy_` in place of the outputs that are written to buffers or inputs."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(exported.graph, copies)
    placeholders = {node.name: copies[node] for node in exported.graph.find_nodes(op="placeholder")}
    (end,) = exported.graph.find_nodes(op="output")
    results = []
    for i, result in enumerate(end.args[0]):
        value = copies[result] if isinstance(result, fx.Node) else result
        target = interface.mutations.get(i)
        if target is None:
            results.append(value)
            continue
        node = graph.call_function(torch.ops.aten.copy_.default, (placeholders[target], value))
        node.meta = dict(placeholders[target].meta)
    graph.output(tuple(results))
    return fx.GraphModule(exported.graph_module, graph)


def _dimension(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _shape(value: Any) -> list[int | str] | None:
    """The dimensions of an input as `CallSpec` has them."""
    if not isinstance(value, torch.Tensor):
        return None
    dims = map(_dimension, value.shape)
    return [sympy.srepr(d) if isinstance(d, sympy.Expr) else d for d in dims]


def _kind(dtype: torch.dtype, shape: Sequence[Any]) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"


def _dense_copy(result: Any, memories: set[int]) -> Any:
    """The result, copied if it is not dense or shares memory with one of `memories`."""
    if not isinstance(result, torch.Tensor):
        return result
    memory = result.untyped_storage().data_ptr()
    if memory in memories or not views.has_no_gaps(result.shape, result.stride()):
        return result.clone()
    memories.add(memory)
    return result
