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
        options: Mapping[str, Any],
        gradients: bool,
        versions: Versions,
        static: Collection[int] | None = None,
    ) -> None:
        """`static`: positions of the inputs whose tensors stay the same from call to call; those
        that AOT autograd found if left out."""
        self.gm, self.options = gm, options
        self.gradients, self.versions = gradients, versions
        self.inputs: list[fx.Node] = list(gm.graph.find_nodes(op="placeholder"))
        #: What the graph writes to.
        self.written = {target for node in gm.graph.nodes for target in partition.written(node)}
        # Positions agree unless AOT added or removed inputs, for subclasses and duplicates.
        input_names = names if len(names) == len(self.inputs) else [""] * len(self.inputs)
        #: The user's names of inputs.
        self.names = {n: name for n, name in zip(self.inputs, input_names, strict=True) if name}
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
        """The function that runs the graph: as one piece if Kiln takes all of it, else piece by
        piece, or by PyTorch."""
        try:
            return self.whole(piece) or self.parts(piece)
        except KilnError as error:
            if self.options.get("fallback") == "error":
                raise
            piece.refuse(str(error))
            return boxed(pieces.eagerly(piece, self.gm.forward))

    def whole(self, piece: pieces.Piece) -> Boxed | None:
        """The function that runs the graph as one piece; None if Kiln refuses something in it."""
        whole = partition.Part(self.gm.graph, self.inputs, [], True)
        try:
            head, tail = self.without_views(whole)
            program = self.write(head, self.inputs)
            refused = bool(_native.refusals(program.text))
        except UnsupportedError:
            refused = True
        return None if refused else self.compiled(self.gm, whole, program, tail, piece)

    def parts(self, piece: pieces.Piece) -> Boxed:
        """The function that runs the graph piece by piece."""
        whole = self.gm.graph
        refused = partition.refused(whole, lambda found: self.write(whole, self.inputs, found))
        message = partition.sentence(refused)
        if refused and self.options.get("fallback") == "error":
            raise UnsupportedError(f"{message}; leave out fallback='error' to let PyTorch run that")
        stages, useful = [], False
        piece.parts = []
        for part in partition.partition(whole, refused):
            module = fx.GraphModule(self.gm, part.graph)
            calls = [n for n in part.graph.nodes if n.op == "call_function"]
            part_piece = pieces.Piece(next(filter(None, map(user_line, calls)), ""), len(calls))
            if part.compiled:
                head, tail = self.without_views(part)
                program = self.write(head, part.inputs)
                run = self.compiled(module, part, program, tail, part_piece)
                useful = useful or part_piece.state != "eager"
            else:
                part_piece.state = "eager"
                if part.refused:
                    part_piece.refuse(partition.sentence(part.refused))
                    run = boxed(pieces.eagerly(part_piece, module.forward))
                else:
                    run = views_stage(module, len(part.inputs), self.gradients)
            if part.compiled or part.refused:
                piece.parts.append(part_piece)
            stages.append((part, run))
        if not useful:
            raise UnsupportedError(message or "nothing is left to compile")
        last_piece = piece.parts[-1]
        last_piece.break_reason, last_piece.break_source = piece.break_reason, piece.break_source
        return chained(whole, stages)

    def without_views(self, part: partition.Part) -> tuple[fx.Graph, views.Tail | None]:
        """Splits off the views that end a part; see `views.split`."""
        inputs = part.graph.find_nodes(op="placeholder")
        written = {
            n
            for n, graph_input in zip(inputs, part.inputs, strict=True)
            if graph_input in self.written
        }
        return views.split(part.graph, self.gm, written, gradients=self.gradients)

    def write(
        self,
        written: fx.Graph,
        inputs: Sequence[fx.Node],
        left_out: Collection[fx.Node] | None = None,
    ) -> Program:
        """Writes a graph as a program. `inputs`: the nodes of the whole graph that its placeholders
        stand for."""
        input_names = {i: self.names[n] for i, n in enumerate(inputs) if n in self.names}
        params = {i: input_names.get(i, n.name) for i, n in enumerate(inputs) if n in self.static}
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
        """The function that runs a program by Kiln. `module` computes the same by PyTorch."""
        piece.calls, piece.symbols = program.calls, program.symbols
        if program.calls == 0:
            but = " but views" if tail is not None else ""
            piece.state, piece.reason = "eager", f"it has no operators{but}"
            return boxed(pieces.eagerly(piece, module.forward))
        targets = (t for node in part.graph.nodes for t in partition.written(node))
        writes = any(target.op == "placeholder" for target in targets)
        runner = Runner(module, program, tail, writes, self.options, piece, self.versions)
        self.runners.append((runner, part.inputs))
        return boxed_runner(runner)


def user_line(node: fx.Node) -> str:
    """The line of user code that a node comes from."""
    return sources.line(node.meta.get("stack_trace"))


# Pieces in turn


@dataclass(frozen=True)
class Stage:
    """One piece of a graph in execution order. Values of the graph are kept in numbered slots."""

    run: Boxed
    input_slots: list[int]
    output_slots: list[int]
    #: Values that nothing reads afterwards.
    dead_slots: list[int]


def views_stage(module: fx.GraphModule, count: int, gradients: bool) -> Boxed:
    """The last stage, which makes the results that are views of other values."""
    tail = views.Tail(module, list(range(count)), gradients)
    return lambda args: tail((), args)


def chained(whole: fx.Graph, stages: Sequence[tuple[partition.Part, Boxed]]) -> Boxed:
    """The function that runs the stages in order. A value is freed after its last use."""
    (output,) = whole.find_nodes(op="output")
    inputs = whole.find_nodes(op="placeholder")
    slots: dict[fx.Node, int] = {node: i for i, node in enumerate(inputs)}
    for part, _ in stages:
        for node in part.outputs:
            slots.setdefault(node, len(slots))
    result_slots = {slots[r] for r in output.all_input_nodes}
    ordered_stages: list[Stage] = []
    # From the end, so that the first reader met is the last one.
    read_later = set(result_slots)
    for part, run in reversed(stages):
        input_slots, output_slots = (
            [slots[n] for n in part.inputs],
            [slots[n] for n in part.outputs],
        )
        dead_slots = [
            i for i in dict.fromkeys([*input_slots, *output_slots]) if i not in read_later
        ]
        read_later.update(dead_slots)
        ordered_stages.append(Stage(run, input_slots, output_slots, dead_slots))
    ordered_stages.reverse()
    results = [slots[r] if isinstance(r, fx.Node) else None for r in output.args[0]]
    constants = [None if isinstance(r, fx.Node) else r for r in output.args[0]]
    count = len(slots)

    def call(args: list[Any]) -> Sequence[Any]:
        values = [*args, *([None] * (count - len(args)))]
        args.clear()
        for stage in ordered_stages:
            stage_inputs = [values[i] for i in stage.input_slots]
            for i in stage.dead_slots:
                values[i] = None
            stage_outputs = stage.run(stage_inputs)
            for i, value in zip(stage.output_slots, stage_outputs, strict=True):
                values[i] = value
            del stage_outputs
        pairs = zip(results, constants, strict=True)
        return [constant if i is None else values[i] for i, constant in pairs]

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
