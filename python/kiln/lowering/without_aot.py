"""Lowers a dynamo graph as one piece, without AOT autograd, which takes half the time of a start.

AOT autograd traces a graph twice, to find its writes and to make it functional. A graph of fixed
sizes that needs no gradients and writes to no input needs neither. Its calls are recorded in one
run, and results that are views are made by PyTorch after a run (`views`). All other graphs go
through AOT autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from kiln import pieces
from kiln._native import KilnError
from kiln.lowering.lower_graph import Lowering
from kiln.lowering.runner import Versions
from kiln.tracing import trace


def compiled(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    names: Sequence[str],
    chosen: Mapping[str, Any],
    piece: pieces.Piece,
) -> Callable[..., Any] | None:
    """The function that runs the graph; None if it needs AOT autograd, or Kiln refuses a call in
    it."""
    owns = any(True for _ in (*gm.parameters(), *gm.buffers()))
    if owns or any(n.op not in _CALLS or _transforms(n) for n in gm.graph.nodes):
        return None
    try:
        run = trace.trace_graph(gm, inputs)
        if run.written or run.params or run.reordered or run.constants:
            return None
        lowered = fx.GraphModule(run.owner, run.graph)
        lowered.meta["kiln_piece"] = piece
        static = _static(gm)
        lowering = Lowering(lowered, names, chosen, torch.is_grad_enabled(), Versions([]), static)
        whole = lowering.whole(piece)
    except (trace.NotTraced, KilnError) as error:
        pieces.log.info("AOT autograd makes a graph functional: %s", error)
        return None
    if whole is None:
        return None
    return lambda *args: whole(list(args))


_CALLS = ("placeholder", "call_function", "call_method", "output")


def _transforms(node: fx.Node) -> bool:
    """Whether a node enters or leaves a transform of torch.func. Such graphs go through AOT
    autograd."""
    where = getattr(node.target, "__module__", None) or ""
    name = getattr(node.target, "__name__", None) or ""
    return "functorch" in where or name.endswith("_nesting")


def _static(gm: fx.GraphModule) -> list[int]:
    """Positions of the inputs that are parameters and buffers, as dynamo marked them."""
    found = []
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if (node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type"):
            found.append(i)
    return found
