"""An exported program in several pieces, of which PyTorch runs those that Kiln refuses.

To `Compiled` it is what the native engine is where a program is in one piece.
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
        self, exported: ExportedProgram, known: export.Interface, given: Mapping[str, Any]
    ) -> None:
        gm = _with_writes(exported, known)
        inputs = gm.graph.find_nodes(op="placeholder")
        self.values = [n.meta.get("val") for n in inputs]
        self.names = known.input_names
        self.params = known.tensors
        names = [known.params.get(i) or known.input_names[i] for i in range(len(inputs))]
        tracked = Versions([])
        self._lowering = Lowering(gm, names, given, False, tracked, known.tensors.keys())
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
    def of(cls, exported: ExportedProgram, given: Mapping[str, Any], **about: Any) -> SplitProgram:
        """Splits a program, which must be in functional form."""
        known = export.interface(exported)
        made = cls(exported, known, given)
        devices = {v.device for v in made.values if isinstance(v, torch.Tensor)} or {"cpu"}
        call = exported.call_spec
        made.call_spec = CallSpec(
            about["name"],
            str(next(iter(devices))),
            call.in_spec,
            call.out_spec,
            list(made.symbols),
            [_shape(made.values[i]) for i in made.names],
            known.constants,
            known.state,
            {},
            about["signature"],
            exported.example_inputs,
            about["original"] or exported.module,
            inputs=list(known.input_names.values()),
        )
        return made

    def run(self, args: Sequence[Any]) -> list[Any]:
        """Runs the pieces on flat inputs; gives flat outputs, dense, with memory of their own."""
        self._check(args)
        values = {**self.params, **dict(zip(self.names, args, strict=True))}
        taken = [values[i] for i in range(len(self.values))]
        known = {t.untyped_storage().data_ptr() for t in taken if isinstance(t, torch.Tensor)}
        with torch.no_grad():
            return [_own(result, known) for result in self._run(list(taken))]

    def _check(self, args: Sequence[Any]) -> None:
        """Fails unless the inputs are those of the program: pieces see only their own."""
        if len(args) != len(self.names):
            names = ", ".join(self.names.values())
            raise InputError(f"{len(args)} inputs were given: give ({names})")
        sizes: dict[str, int] = {}
        for (i, name), given in zip(self.names.items(), args, strict=True):
            want = self.values[i]
            if not isinstance(want, torch.Tensor):
                if not isinstance(want, SYMBOLIC) and want != given:
                    raise InputError(
                        f"input `{name}` is {given}, but the program was compiled for {want}; "
                        "compile it again with this value"
                    )
                continue
            if not isinstance(given, torch.Tensor):
                kind = type(given).__name__
                raise InputError(f"input `{name}` is a {kind}: pass a torch.Tensor")
            export.check(given)
            if given.device != want.device:
                text = f"input `{name}` is on {given.device}"
                raise InputError(f"{text}: move it to {want.device}")
            dims = [_dimension(d) for d in want.shape]
            if given.dtype != want.dtype or len(dims) != given.dim():
                got, wanted = _kind(given.dtype, given.shape), _kind(want.dtype, dims)
                raise ShapeError(f"input `{name}` is {got}, and not {wanted}: convert it")
            for axis, (dim, size) in enumerate(zip(dims, given.shape, strict=True)):
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
        for runner, takes in self._lowering.runners:
            args = [self.params.get(self._places.get(node, -1)) for node in takes]
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
        """Each piece looks at its own weights."""
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


def _with_writes(exported: ExportedProgram, known: export.Interface) -> fx.GraphModule:
    """The graph of a program that writes what it changes by itself, and returns the rest."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(exported.graph, copies)
    placeholders = {node.name: copies[node] for node in exported.graph.find_nodes(op="placeholder")}
    (end,) = exported.graph.find_nodes(op="output")
    results = []
    for i, result in enumerate(end.args[0]):
        value = copies[result] if isinstance(result, fx.Node) else result
        target = known.mutations.get(i)
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


def _own(result: Any, known: set[int]) -> Any:
    """A result that is dense, and shares no memory with what is known."""
    if not isinstance(result, torch.Tensor):
        return result
    memory = result.untyped_storage().data_ptr()
    if memory in known or not views.has_no_gaps(result.shape, result.stride()):
        return result.clone()
    known.add(memory)
    return result
