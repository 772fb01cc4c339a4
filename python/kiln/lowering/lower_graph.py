"""From a graph of AOT autograd to what runs it: an engine, PyTorch, or both in turn.

Takes functional ATen with composite operators whole. What Kiln refuses is a piece of its own, which
PyTorch runs in place; with `fallback="error"` it is an error. It never runs anything itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext

from kiln import _native, pieces
from kiln._native import KilnError, UnsupportedError
from kiln.lowering import partition, program_writer, views
from kiln.lowering.program import Program
from kiln.lowering.runner import Runner, Versions, boxed_runner
from kiln.pieces import Boxed, boxed
from kiln.tracing import sources


class Lowering:
    """The lowering of one graph."""

    def __init__(
        self,
        gm: fx.GraphModule,
        names: Sequence[str],
        chosen: Mapping[str, Any],
        gradients: bool,
        versions: Versions,
        static: Collection[int] | None = None,
    ) -> None:
        """`static`: positions of the inputs that stay where they are from call to call; those that
        AOT autograd found if left out."""
        self.gm, self.chosen = gm, chosen
        self.gradients, self.versions = gradients, versions
        self.inputs: list[fx.Node] = list(gm.graph.find_nodes(op="placeholder"))
        #: What the graph writes to.
        self.written = {target for node in gm.graph.nodes for target in partition.written(node)}
        # Positions agree unless AOT added or removed inputs, for subclasses and duplicates.
        known = names if len(names) == len(self.inputs) else [""] * len(self.inputs)
        #: The user's names of inputs.
        self.names = {n: name for n, name in zip(self.inputs, known, strict=True) if name}
        if static is None:
            context = TracingContext.try_get()
            metadata = context.fw_metadata if context is not None else None
            static = set(metadata.static_input_indices) if metadata is not None else set()
        #: What runs the pieces that Kiln compiles, and what each takes.
        self.runners: list[tuple[Runner, Sequence[fx.Node]]] = []
        #: The inputs that are parameters: static ones that the graph does not write to.
        self.static = {
            n
            for i, n in enumerate(self.inputs)
            if i in static and n not in self.written and isinstance(n.meta["val"], torch.Tensor)
        }

    def run(self, piece: pieces.Piece) -> Boxed:
        """What runs the graph."""
        try:
            return self.whole(piece) or self.parts(piece)
        except KilnError as error:
            if self.chosen.get("fallback") == "error":
                raise
            piece.refuse(str(error))
            return boxed(pieces.eagerly(piece, self.gm.forward))

    def whole(self, piece: pieces.Piece) -> Boxed | None:
        """What runs the graph in one piece; None if Kiln refuses something in it."""
        whole = partition.Part(self.gm.graph, self.inputs, [], True)
        try:
            head, tail = self.without_views(whole)
            program = self.write(head, self.inputs)
            refused = bool(_native.refusals(program.text))
        except UnsupportedError:
            refused = True
        return None if refused else self.compiled(self.gm, whole, program, tail, piece)

    def parts(self, piece: pieces.Piece) -> Boxed:
        """What runs the graph piece by piece."""
        whole = self.gm.graph
        refused = partition.refused(whole, lambda found: self.write(whole, self.inputs, found))
        told = partition.sentence(refused)
        if refused and self.chosen.get("fallback") == "error":
            raise UnsupportedError(f"{told}; leave out fallback='error' to let PyTorch run that")
        stages, useful = [], False
        piece.parts = []
        for part in partition.partition(whole, refused):
            module = fx.GraphModule(self.gm, part.graph)
            calls = [n for n in part.graph.nodes if n.op == "call_function"]
            made = pieces.Piece(next(filter(None, map(line_of, calls)), ""), len(calls))
            if part.compiled:
                head, tail = self.without_views(part)
                program = self.write(head, part.takes)
                run = self.compiled(module, part, program, tail, made)
                useful = useful or made.state != "eager"
            else:
                made.state = "eager"
                if part.refused:
                    made.refuse(partition.sentence(part.refused))
                    run = boxed(pieces.eagerly(made, module.forward))
                else:
                    run = last(module, len(part.takes), self.gradients)
            if part.compiled or part.refused:
                piece.parts.append(made)
            stages.append((part, run))
        if not useful:
            raise UnsupportedError(told or "nothing is left to compile")
        end = piece.parts[-1]
        end.break_reason, end.break_source = piece.break_reason, piece.break_source
        return chained(whole, stages)

    def without_views(self, part: partition.Part) -> tuple[fx.Graph, views.Tail | None]:
        """The graph of a part without the views that end it, and what makes them."""
        inputs = part.graph.find_nodes(op="placeholder")
        written = {n for n, taken in zip(inputs, part.takes, strict=True) if taken in self.written}
        return views.split(part.graph, self.gm, written, gradients=self.gradients)

    def write(
        self,
        written: fx.Graph,
        takes: Sequence[fx.Node],
        left_out: Collection[fx.Node] | None = None,
    ) -> Program:
        """A graph, whose placeholders stand for these nodes, as a program."""
        input_names = {i: self.names[n] for i, n in enumerate(takes) if n in self.names}
        params = {i: input_names.get(i, n.name) for i, n in enumerate(takes) if n in self.static}
        return program_writer.write(
            written, self.gm, params=params, input_names=input_names, left_out=left_out
        )

    def compiled(
        self,
        module: fx.GraphModule,
        part: partition.Part,
        program: Program,
        tail: views.Tail | None,
        piece: pieces.Piece,
    ) -> Boxed:
        """What runs a program; `module` does the same by PyTorch."""
        piece.calls, piece.symbols = program.calls, program.symbols
        if program.calls == 0:
            but = " but views" if tail is not None else ""
            piece.state, piece.reason = "eager", f"it has no operators{but}"
            return boxed(pieces.eagerly(piece, module.forward))
        targets = (t for node in part.graph.nodes for t in partition.written(node))
        writes = any(target.op == "placeholder" for target in targets)
        runner = Runner(module, program, tail, writes, self.chosen, piece, self.versions)
        self.runners.append((runner, part.takes))
        return boxed_runner(runner)


def line_of(node: fx.Node) -> str:
    """The user's line of a node."""
    return sources.line(node.meta.get("stack_trace"))


# Pieces in turn


@dataclass(frozen=True)
class Stage:
    """One piece of a graph, and where its values are among those of the graph."""

    run: Boxed
    takes: list[int]
    gives: list[int]
    #: Values that nothing reads afterwards.
    dead: list[int]


def last(module: fx.GraphModule, count: int, gradients: bool) -> Boxed:
    """What makes the results that are views of others."""
    tail = views.Tail(module, list(range(count)), gradients)
    return lambda args: tail((), args)


def chained(whole: fx.Graph, stages: Sequence[tuple[partition.Part, Boxed]]) -> Boxed:
    """What runs pieces one after the other."""
    (end,) = whole.find_nodes(op="output")
    inputs = whole.find_nodes(op="placeholder")
    slots: dict[fx.Node, int] = {node: i for i, node in enumerate(inputs)}
    for part, _ in stages:
        for node in part.gives:
            slots.setdefault(node, len(slots))
    kept = {slots[r] for r in end.all_input_nodes}
    made: list[Stage] = []
    # From the end, so that the first reader met is the last one.
    seen = set(kept)
    for part, run in reversed(stages):
        takes, gives = [slots[n] for n in part.takes], [slots[n] for n in part.gives]
        dead = [i for i in dict.fromkeys([*takes, *gives]) if i not in seen]
        seen.update(dead)
        made.append(Stage(run, takes, gives, dead))
    made.reverse()
    results = [slots[r] if isinstance(r, fx.Node) else None for r in end.args[0]]
    constants = [None if isinstance(r, fx.Node) else r for r in end.args[0]]
    count = len(slots)

    def call(args: list[Any]) -> Sequence[Any]:
        values = [*args, *([None] * (count - len(args)))]
        args.clear()
        for stage in made:
            taken = [values[i] for i in stage.takes]
            for i in stage.dead:
                values[i] = None
            given = stage.run(taken)
            for i, value in zip(stage.gives, given, strict=True):
                values[i] = value
            del given
        found = zip(results, constants, strict=True)
        return [constant if i is None else values[i] for i, constant in found]

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
