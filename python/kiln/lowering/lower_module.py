"""A module as a program: from its recorded calls, or from its `ExportedProgram`, to the text that
the native engine reads, the tensors of its parameters, and how it is called.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from kiln import versions
from kiln._native import UnsupportedError, refusals
from kiln.lowering import program_writer, scalars, views
from kiln.lowering.call_spec import CallSpec
from kiln.lowering.program import Program
from kiln.pieces import log
from kiln.tracing import export, op_kinds, trace

if TYPE_CHECKING:
    from kiln.lowering.split_program import SplitProgram


@dataclass(frozen=True)
class LoweredModule:
    """A program, the tensors of its parameters in order, and how it is called."""

    program: Program
    params: list[torch.Tensor]
    call_spec: CallSpec


def record(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    name: str,
    signature: inspect.Signature | None = None,
    original: Callable[[], Callable[..., Any]] | None = None,
) -> tuple[LoweredModule, Callable[[], LoweredModule]] | None:
    """Records a call of the module, and lowers it.

    The second result lowers it again, with all outputs row-major, for artifacts. None if the module
    has to go through torch.export, or Kiln refuses a call as it is recorded.
    """
    decomposed: set[Any] = set()
    # Composite operators that Kiln refuses whole are decomposed in a second run.
    for _ in range(2):
        try:
            run = trace.trace(module, args, kwargs, decomposed)
            if run.reordered:
                raise trace.NotTraced("the order in memory of a result is not known")
            in_order, orders = views.in_memory_order(run.graph, ())
            program = _recorded(run, in_order, name)
        except (trace.NotTraced, UnsupportedError) as error:
            log.info("%s goes through torch.export: %s", name, error)
            return None
        refused = refusals(program.text)
        if not refused:
            break
        nodes = [program.results[i] for outs, _, _ in refused for i in outs if i in program.results]
        refused_composites = {
            n.target for n in nodes if op_kinds.kind_of(n.target).composite
        } - decomposed
        if not refused_composites:
            log.info("%s goes through torch.export: %s", name, refused[0][1])
            return None
        decomposed |= refused_composites
    else:
        return None
    values = [n.meta.get("val") for n in run.graph.find_nodes(op="placeholder")]
    tensors = [
        v if isinstance(v, torch.Tensor) else None for v in (values[i] for i in program.inputs)
    ]
    call_spec = CallSpec(
        name,
        program.device,
        run.in_spec,
        run.out_spec,
        shapes=[None if t is None else list(t.shape) for t in tensors],
        constants=run.constants,
        state=run.state,
        orders=orders,
        signature=signature,
        examples=(args, kwargs),
        original=original,
        inputs=[run.input_names[i] for i in program.inputs],
    )
    params_in_order = [run.tensors[p] if isinstance(p, int) else p for p in program.params]
    lowered = LoweredModule(program, params_in_order, call_spec)
    return lowered, lambda: replace(lowered, program=_recorded(run, run.graph, name))


def _recorded(run: trace.Trace, calls: torch.fx.Graph, name: str) -> Program:
    return program_writer.write(
        calls,
        run.owner,
        name=name,
        params=run.params,
        input_names=run.input_names,
        written=run.written,
    )


def read(
    exported: ExportedProgram,
    *,
    name: str = "forward",
    signature: inspect.Signature | None = None,
    original: Callable[[], Callable[..., Any]] | None = None,
    ordered: bool = True,
) -> LoweredModule:
    """Lowers an exported program, which must be functional (see `export.functional`).

    `ordered`: outputs whose dimensions have another order in memory, such as channels_last, are
    written in that order.
    """
    interface = export.interface(exported)
    in_order, orders = exported.graph, dict[int, list[int]]()
    if ordered:
        in_order, orders = views.in_memory_order(in_order, interface.mutations)
    program = program_writer.write(
        in_order,
        exported.graph_module,
        name=name,
        params=interface.params,
        input_names=interface.input_names,
        mutations=interface.mutations,
        guards=versions.guards(exported),
        # Tracing takes 0 and 1 for special; the user's torch.export.Dim has the last word.
        ranges=exported.range_constraints,
    )
    call = exported.call_spec
    written = json.loads(program.text)
    values = written["values"]
    shapes = [values[e["value"]]["shape"] if "value" in e else None for e in written["inputs"]]
    call_spec = CallSpec(
        name,
        program.device,
        call.in_spec,
        call.out_spec,
        list(program.symbols),
        shapes,
        interface.constants,
        interface.state,
        orders,
        signature,
        exported.example_inputs,
        original or exported.module,
        inputs=[entry["name"] for entry in written["inputs"]],
    )
    params_in_order = [interface.tensors[p] if isinstance(p, int) else p for p in program.params]
    return LoweredModule(program, params_in_order, call_spec)


def with_tensors(exported: ExportedProgram) -> ExportedProgram:
    """The program with 0-dimensional tensors in place of the numbers that it reads from tensors."""
    numbers = scalars.as_tensors(exported.graph_module, inputs=False)
    if numbers.module is exported.graph_module:
        return exported
    changed = copy.copy(exported)
    changed._graph_module = numbers.module
    return changed


def read_or_split(
    exported: ExportedProgram, options: Mapping[str, Any], **about: Any
) -> tuple[LoweredModule | SplitProgram, ExportedProgram]:
    """The program in one piece, or in several if Kiln refuses a part of it.

    `exported`: in functional form. `options`: those of `kiln.compile`. `about`: what `read` takes
    beside the program. The second result is the program that was read: where Kiln refuses a part
    of the given one, that is the program in operators of core ATen."""
    program = with_tensors(exported)
    lowered, refusal = None, None
    try:
        lowered = read(program, **about)
        if not refusals(lowered.program.text):
            return lowered, program
    except UnsupportedError as error:
        refusal = error
    core = export.functional(exported, forced=True)
    if core is not exported:
        return read_or_split(core, options, **about)
    if options.get("fallback") == "error":
        if lowered is None:
            assert refusal is not None
            raise refusal
        # The engine refuses it with the same reasons.
        return lowered, program
    from kiln.lowering.split_program import SplitProgram

    try:
        return SplitProgram.split(program, options, **about), program
    except UnsupportedError as error:
        raise refusal or error from None
