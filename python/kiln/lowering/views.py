"""Outputs that are views of inputs or of each other, or have another order of dimensions in memory.

The graph of AOT autograd is functional, but its outputs may be views of inputs or of other outputs.
A write to one shows in the others, so a compiled program has to give views as well. An engine gives
dense tensors of their own. `split` moves such views from the end of a graph to a tail: the engine
gives their bases, and PyTorch makes the views after a run. Outputs in another order of memory, such
as `channels_last`, come from the engine permuted to that order, and are permuted back.

Only views are moved. A graph without such outputs is returned as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from kiln.tracing.sources import refusal

#: Operators that a base of other strides could not take, or would take for another view.
_OF_STRIDES = frozenset({"aten::view", "aten::as_strided", "aten::_reshape_alias"})


@dataclass(frozen=True)
class Tail:
    """Makes the outputs of a graph that are views, from the outputs of its head and from inputs."""

    module: fx.GraphModule
    #: Positions of the inputs that it takes.
    inputs: list[int]
    #: Whether gradients are on where the outputs go: views that are made while they are off may
    #: not be written to later where gradients are on.
    gradients: bool

    def __call__(self, outputs: Sequence[Any], args: Sequence[Any]) -> Sequence[Any]:
        results: Sequence[Any]
        before = torch.is_grad_enabled()
        if before is self.gradients:
            results = self.module.forward(*outputs, *[args[i] for i in self.inputs])
            return results
        torch._C._set_grad_enabled(self.gradients)
        try:
            results = self.module.forward(*outputs, *[args[i] for i in self.inputs])
        finally:
            torch._C._set_grad_enabled(before)
        return results


def split(
    graph: fx.Graph, owner: Any, written: Collection[fx.Node], *, gradients: bool = False
) -> tuple[fx.Graph, Tail | None]:
    """The graph without the views that end it, and what makes them; the graph itself and None if
    there are none.

    `owner`: the module that has the graph's attributes. `written`: placeholders that the graph
    writes to. `gradients`: whether they are on around the call.

    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> traced = make_fx(lambda x: [x.t()], tracing_mode="fake")(torch.ones(2, 3))
    >>> _, tail = split(traced.graph, traced, ())
    >>> x = torch.ones(2, 3)
    >>> tail((), (x,))[0].data_ptr() == x.data_ptr()
    True
    """
    (end,) = graph.find_nodes(op="output")
    results = list(end.args[0])
    bases_and_views = _moved(results, written)
    if bases_and_views is None:
        return graph, None
    bases, views = bases_and_views
    placeholders = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    # What the tail needs, in order and without duplicates.
    needed = {r for r in results if isinstance(r, fx.Node)}
    needed |= {a for view in views for a in view.all_input_nodes}
    needed -= views
    needed_in_order = [node for node in graph.nodes if node in needed]
    tail_inputs = [n for n in needed_in_order if n in placeholders and n not in written]
    head_outputs = [n for n in needed_in_order if n not in tail_inputs]

    orders = {base: _order(base, bases[base]) for base in head_outputs if base in bases}

    head = fx.Graph(graph.owning_module)
    copies: dict[fx.Node, fx.Node] = {}
    head.graph_copy(graph, copies)
    outputs = []
    for node in head_outputs:
        order = orders.get(node)
        outputs.append(copies[node] if order is None else _permuted(head, copies[node], order))
    head.output(tuple(outputs))
    for node in reversed(graph.nodes):
        if node in views and not copies[node].users:
            head.erase_node(copies[node])

    tail = fx.Graph()
    tail_nodes = {node: tail.placeholder(node.name) for node in [*head_outputs, *tail_inputs]}
    for base, order in orders.items():
        if order is not None:
            back = [order.index(i) for i in range(len(order))]
            tail_nodes[base] = tail.call_function(
                torch.ops.aten.permute.default, (tail_nodes[base], back)
            )
    for node in graph.nodes:
        if node in views:
            tail_nodes[node] = tail.node_copy(node, lambda n: tail_nodes[n])
    tail.output(tuple(tail_nodes[r] if isinstance(r, fx.Node) else r for r in results))
    module = fx.GraphModule(owner, tail)
    return head, Tail(module, [placeholders[n] for n in tail_inputs], gradients)


def _moved(
    results: Sequence[Any], written: Collection[fx.Node]
) -> tuple[dict[fx.Node, list[fx.Node]], set[fx.Node]] | None:
    """The base tensors with the views of each that move to the tail, and all these views. None if
    no output is such a view."""
    paths: dict[fx.Node, list[fx.Node]] = {}
    sharing: dict[fx.Node, list[fx.Node]] = {}
    for result in results:
        is_tensor = isinstance(result, fx.Node) and isinstance(result.meta["val"], torch.Tensor)
        if is_tensor and result not in paths:
            base, paths[result] = _path(result)
            sharing.setdefault(base, []).append(result)
    bases: dict[fx.Node, list[fx.Node]] = {}
    for base, outputs in sharing.items():
        if base.op == "placeholder":
            # What the graph writes to is read before that.
            chosen = outputs if base not in written else []
        elif len(outputs) > 1 or written:
            chosen = [o for o in outputs if paths[o]]
        else:
            chosen = [o for o in outputs if paths[o] and _keeps_strides(o, base)]
        reordered = base in outputs and base not in written and _is_reordered(base)
        if chosen or (reordered and base.op != "placeholder"):
            bases[base] = [node for o in chosen for node in paths[o]]
    if not bases:
        return None
    return bases, {node for nodes in bases.values() for node in nodes}


def _path(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The base tensor of a view, and the chain of views from the base to it."""
    nodes = []
    base = source(node)
    while base is not None:
        nodes.append(node)
        node, base = base, source(base)
    return node, nodes[::-1]


def source(node: fx.Node) -> fx.Node | None:
    """The operand that a node is a view of; None if it is no view."""
    if node.op != "call_function" or not node.args:
        return None
    base = node.args[0]
    if not isinstance(base, fx.Node):
        return None
    if node.target is operator.getitem:
        return base if source(base) is not None else None
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or not schema.returns or not schema.arguments:
        return None
    aliases = schema.returns[0].alias_info and schema.arguments[0].alias_info
    return base if aliases else None


Layout = tuple[list[int], list[int]]


def _layout(node: fx.Node) -> Layout | None:
    """Sizes and strides at tracing; None if a size depends on data."""

    def traced(size: Any) -> Any:
        return size.node.hint if isinstance(size, torch.SymInt) else size

    value = node.meta["val"]
    sizes, strides = [traced(s) for s in value.shape], [traced(s) for s in value.stride()]
    if None in sizes or None in strides:
        return None
    return [int(s or 0) for s in sizes], [int(s or 0) for s in strides]


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor is contiguous and row-major."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= max(size, 1)
    return True


def _is_reordered(node: fx.Node) -> bool:
    """Whether a tensor is dense with another order of dimensions in memory (channels_last)."""
    layout = _layout(node)
    return layout is not None and not _is_dense(*layout) and has_no_gaps(*layout)


def has_no_gaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill their memory without gaps or overlap, in any order of dimensions.

    >>> has_no_gaps((2, 3), (1, 2)), has_no_gaps((2, 3), (0, 1))
    (True, False)
    """
    order = _slowest_first(sizes, strides)
    return _is_dense([sizes[i] for i in order], [strides[i] for i in order])


def _slowest_first(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    return sorted(range(len(sizes)), key=lambda i: (-strides[i], -sizes[i]))


def _keeps_strides(view: fx.Node, base: fx.Node) -> bool:
    """Whether PyTorch should make a view that shares memory with no other output. It does for views
    of a whole tensor, such as a transpose, which saves a copy. Views of a part would keep the whole
    tensor alive."""
    layout, base_layout = _layout(view), _layout(base)
    if layout is None or base_layout is None or _is_dense(*layout):
        return False
    whole = torch.Size(base_layout[0]).numel() <= torch.Size(layout[0]).numel()
    return whole and _is_dense(*base_layout)


def _order(base: fx.Node, views: Sequence[fx.Node]) -> list[int] | None:
    """The dimensions of a base from the outermost one in memory to the innermost; None for
    row-major tensors."""
    names = [v.target._schema.name for v in views if isinstance(v.target, torch._ops.OpOverload)]
    layout, reason = _layout(base), "whose sizes depend on data"
    if layout is not None:
        sizes, strides = layout
        if _is_dense(sizes, strides):
            return None
        order = _slowest_first(sizes, strides)
        if _is_dense([sizes[i] for i in order], [strides[i] for i in order]):
            return order
        reason = "with gaps in memory"
    if _OF_STRIDES.isdisjoint(names):
        return None
    raise refusal(f"results are views of a tensor {reason}", base, "return copies")


def _permuted(head: fx.Graph, base: fx.Node, order: Sequence[int]) -> fx.Node:
    """The base permuted to its order in memory: an engine gives row-major tensors."""
    node = head.call_function(torch.ops.aten.permute.default, (base, list(order)))
    node.meta = {**base.meta, "val": base.meta["val"].permute(order)}
    return node


def in_memory_order(
    graph: fx.Graph, left_out: Collection[int]
) -> tuple[fx.Graph, dict[int, list[int]]]:
    """The graph with outputs permuted to the order that their dimensions have in memory, and for
    each of those, by its number among the outputs that are not left out, the way back.

    `left_out`: positions of outputs that stay as they are.

    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> x = torch.ones(1, 2, 3, 4)
    >>> last = torch.channels_last
    >>> traced = make_fx(lambda x: [x.contiguous(memory_format=last)], tracing_mode="fake")(x)
    >>> in_memory_order(traced.graph, ())[1]
    {0: [0, 3, 1, 2]}
    """
    (end,) = graph.find_nodes(op="output")
    results = [r for i, r in enumerate(end.args[0]) if i not in left_out]
    orders: dict[int, list[int]] = {}
    for i, result in enumerate(results):
        is_tensor = isinstance(result, fx.Node) and isinstance(result.meta.get("val"), torch.Tensor)
        if is_tensor and _is_reordered(result):
            sizes, strides = _layout(result) or ([], [])
            orders[i] = _slowest_first(sizes, strides)
    if not orders:
        return graph, {}
    head = fx.Graph(graph.owning_module)
    copies: dict[fx.Node, fx.Node] = {}
    head.graph_copy(graph, copies)
    outputs, number = [], 0
    for i, result in enumerate(end.args[0]):
        value = copies[result] if isinstance(result, fx.Node) else result
        if i not in left_out:
            if number in orders:
                value = _permuted(head, value, orders[number])
            number += 1
        outputs.append(value)
    head.output(tuple(outputs))
    back = {i: [order.index(j) for j in range(len(order))] for i, order in orders.items()}
    return head, back
