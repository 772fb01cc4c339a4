"""Inputs and writes of a dynamo graph that are lost in the graph of AOT autograd.

AOT autograd drops calls that no result depends on. Seldom is that a write or an input: a write to
memory that nothing reads, or a derivative that does not depend on it. Otherwise the trace is wrong,
and its results are too. So `kiln.tracing.aot` traces again with all composite operators decomposed,
as PyTorch does, and compares what both graphs read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

#: Methods that change what a tensor is, and none of its elements.
_NO_WRITES = frozenset({"requires_grad_", "detach_", "share_memory_", "_version"})

#: Functions of `operator` that write to their first argument.
_ASSIGNMENTS = frozenset({"setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod"})
_ASSIGNMENTS |= {"ipow", "iand", "ior", "ixor", "ilshift", "irshift", "imatmul"}


def reads(lowered: fx.GraphModule) -> frozenset[str]:
    """Names of the dynamo calls that a lowered graph has nodes of, and the inputs that it reads."""
    found: set[str] = set()
    for node in lowered.graph.nodes:
        found.update(_origins(node.meta.get("from_node", ())))
    inputs = lowered.graph.find_nodes(op="placeholder")
    return frozenset(found | {_input(i) for i, node in enumerate(inputs) if node.users})


def lost(gm: fx.GraphModule, lowered: fx.GraphModule) -> list[fx.Node]:
    """Inputs and writes of the dynamo graph that the lowered graph has no node of."""
    known = reads(lowered)
    ours, theirs = (g.graph.find_nodes(op="placeholder") for g in (gm, lowered))
    found = []
    # AOT adds and removes inputs, for subclasses and duplicates.
    if len(ours) == len(theirs):
        found = [n for i, n in enumerate(ours) if _is_read(n) and _input(i) not in known]
    # Of a torch that does not say where a call comes from writes are not looked for.
    if any("from_node" in node.meta for node in lowered.graph.nodes):
        found += [node for node in _live_writes(gm) if node.name not in known]
    return found


def writes(node: fx.Node) -> bool:
    """Whether a call of dynamo's graph writes to a tensor.

    >>> traced = fx.symbolic_trace(lambda x: x.add(1).mul_(2))
    >>> [node.name for node in traced.graph.nodes if writes(node)]
    ['mul_']
    """
    if node.op == "call_method":
        name = str(node.target)
        return name.endswith("_") and not name.endswith("__") and name not in _NO_WRITES
    if node.op != "call_function":
        return False
    return getattr(node.target, "__name__", "") in _ASSIGNMENTS or "out" in node.kwargs


def _live_writes(gm: fx.GraphModule) -> list[fx.Node]:
    """The writes whose memory is read later by a call that results depend on."""
    live_writes = []
    live: set[fx.Node] = set()
    #: The memory that live calls read.
    memory_read: set[int] = set()
    for node in reversed(gm.graph.nodes):
        is_write = writes(node) and _memory(node.all_input_nodes[:1]) <= memory_read
        if node.op == "output" or is_write or not live.isdisjoint(node.users):
            live.add(node)
            memory_read |= _memory(node.all_input_nodes)
        if is_write:
            live_writes.append(node)
    return live_writes[::-1]


def _memory(nodes: Iterable[fx.Node]) -> set[int]:
    """The storages of the tensors of nodes. Tensors within transforms have none."""
    found = set()
    for node in nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            with contextlib.suppress(RuntimeError, NotImplementedError):
                found.add(value.untyped_storage()._cdata)
    return found


def _is_read(placeholder: fx.Node) -> bool:
    is_tensor = isinstance(placeholder.meta.get("example_value"), torch.Tensor)
    # A Python number comes as a tensor, and is a number again by its first call.
    return is_tensor and any(user.target != "item" for user in placeholder.users)


def _input(position: int) -> str:
    # No name of a node has a space.
    return f"input {position}"


def _origins(sources: Iterable[Any]) -> Iterator[str]:
    for source in sources:
        yield source.name
        yield from _origins(source.from_node)
