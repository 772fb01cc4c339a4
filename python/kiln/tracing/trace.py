"""The calls that a module makes, recorded in one run on tensors without data.

Takes a module and example inputs, and gives an fx graph of ATen calls with what is to know of its
placeholders: what `kiln.lowering` reads. Composite operators stay whole, in-place operators stay
what they are, and the native engine makes both functional. It is a fraction of the work of
torch.export: nothing is functionalised, checked or copied, and weights are neither copied nor
read.

What it is not sure of it refuses (`NotTraced`), and the caller takes torch.export: whatever reads
elements of tensors, draws random numbers, computes gradients, writes statistics of a batch, assigns
attributes of a module, mixes devices, or is not known here. So nothing that depends on data or on
state outside of the program is fixed silently.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from kiln.tracing.recorder import Recorder, Trace
from kiln.tracing.shadow import NotTraced

__all__ = ["NotTraced", "Trace", "trace", "trace_graph"]


def trace(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    decomposed: Collection[Any] = (),
) -> Trace:
    """Records a call of the module.

    `decomposed`: composite operators that do not stay whole.

    >>> traced = trace(torch.nn.Linear(2, 3).eval(), (torch.ones(1, 2),), {})
    >>> [str(n.target) for n in traced.graph.nodes if n.op == "call_function"]
    ['aten.linear.default']
    """
    if module.training:
        raise NotTraced("the module is in training mode")
    leaves, in_spec = pytree.tree_flatten((args, kwargs))
    recorder = Recorder(module, decomposed, trace.__code__)
    given = [
        recorder.add_input(leaf, name)
        for leaf, name in zip(leaves, _names(module, args, kwargs), strict=True)
    ]
    given_args, given_kwargs = pytree.tree_unflatten(given, in_spec)
    before = _attributes(module)
    assigned = ""
    try:
        result = recorder.run(lambda: module(*given_args, **given_kwargs))
    finally:
        assigned = _restore(module, before)
    if assigned:
        raise NotTraced(f"{assigned} is assigned")
    results, out_spec = pytree.tree_flatten(result)
    return recorder.finish(results, in_spec, out_spec)


def trace_graph(gm: fx.GraphModule, inputs: Sequence[Any]) -> Trace:
    """Records a run of a dynamo graph on fake or real inputs. Calls keep the source lines of its
    nodes.

    >>> from torch.fx import symbolic_trace
    >>> run = trace_graph(symbolic_trace(torch.nn.ReLU()), (torch.ones(2),))
    >>> [str(n.target) for n in run.graph.nodes if n.op == "call_function"]
    ['aten.relu.default']
    """
    recorder = Recorder(torch.nn.Module(), (), trace_graph.__code__)
    placeholders = gm.graph.find_nodes(op="placeholder")
    pairs = zip(inputs, placeholders, strict=True)
    given = [recorder.add_input(value, node.name) for value, node in pairs]
    results = recorder.run(lambda: _Nodes(gm, recorder).run(*given))
    _, in_spec = pytree.tree_flatten((tuple(inputs), {}))
    leaves, out_spec = pytree.tree_flatten(results)
    return recorder.finish(leaves, in_spec, out_spec)


class _Nodes(fx.Interpreter):
    """Interprets a graph, and gives the recorder the metadata of each node."""

    def __init__(self, gm: fx.GraphModule, recorder: Recorder) -> None:
        super().__init__(gm)
        self.recorder = recorder

    def run_node(self, n: fx.Node) -> Any:
        self.recorder.node_meta = n.meta
        return super().run_node(n)


def _names(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    """Names for the leaves of a call, as torch.export has them: `x`, `pairs_0`, `by_name_key`."""
    try:
        signature = inspect.signature(module.forward)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError) as error:
        raise NotTraced(f"the arguments do not fit: {error}") from error
    by_position: list[tuple[str, Any]] = []
    by_name: dict[str, tuple[str, Any]] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            by_position += [(f"{name}_{i}", item) for i, item in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            by_name.update({key: (key, item) for key, item in value.items()})
        elif len(by_position) < len(args) and name not in kwargs:
            by_position.append((name, value))
        else:
            by_name[name] = (name, value)
    for name, value in [*by_position, *(by_name[key] for key in kwargs)]:
        for path, _ in pytree.tree_flatten_with_path(value)[0]:
            parts = [str(getattr(p, "key", getattr(p, "idx", getattr(p, "name", p)))) for p in path]
            yield "_".join([name, *parts]).lower() if parts else name


# Attributes of the module


def _attributes(module: torch.nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Copies of the attributes, parameters and buffers of all modules."""
    found = []
    for part in module.modules():
        attributes = vars(part)
        for values in (attributes, part._parameters, part._buffers):
            found.append((values, dict(values)))
        for value in attributes.values():
            if type(value) is dict and value is not part._parameters and value is not part._buffers:
                found.append((value, dict(value)))
    return found


def _restore(module: torch.nn.Module, before: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Restores attributes. Gives the name of one that was assigned, or an empty text."""
    assigned = ""
    for values, known in before:
        changed = values.keys() != known.keys() or any(
            values[k] is not v and not _is_equal_number(values[k], v) for k, v in known.items()
        )
        if changed:
            names = [k for k in {**values, **known} if values.get(k) is not known.get(k)]
            assigned = assigned or str(next(iter(names), "an attribute"))
            values.clear()
            values.update(known)
    return assigned


def _is_equal_number(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in (bool, int, float, str) and a == b
