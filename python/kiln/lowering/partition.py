"""Splits a graph around what Kiln refuses.

A part of the graph is compiled by Kiln, or run by PyTorch in place. Calls keep their order where it
matters: behind what they read, behind earlier calls with an effect, and a write behind the readers
of what it writes to. Else they go as early as they can, so that a graph has few parts.

Views and numbers that follow from sizes belong to no part: every part that needs one makes its own,
so that a view shares memory with its base wherever it is read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from kiln import _native
from kiln.lowering.program import Program
from kiln.lowering.views import source
from kiln.tracing.schemas import READS_DATA, SYMBOLIC, exchanges, foreign, is_check, reads_past
from kiln.tracing.sources import line, of_live, refusal

Write = Callable[[Mapping[fx.Node, str]], Program]


@dataclass(frozen=True)
class Part:
    """Consecutive calls of a graph that Kiln compiles, or that PyTorch runs."""

    #: Takes the values of `inputs`, and gives those of `outputs`.
    graph: fx.Graph
    #: Nodes of the whole graph.
    inputs: list[fx.Node]
    outputs: list[fx.Node]
    #: Whether it is for Kiln.
    compiled: bool
    #: The calls that Kiln refuses, and why.
    refused: dict[fx.Node, str] = field(default_factory=dict)


# What is refused


def refused(whole: fx.Graph, write: Write) -> dict[fx.Node, str]:
    """The calls that Kiln refuses, and why.

    `write`: writes the graph without the calls that it is given, whose results are then inputs."""
    found = {}
    for node in whole.nodes:
        why = unsupported(node)
        if why:
            found[node] = why
    program = write(found)
    for outs, message, _ in _native.refusals(program.text):
        nodes = [program.results[i] for i in outs if i in program.results]
        if not nodes:
            # Of a call that the writer has not written: it cannot be left out.
            raise refusal(message, None, "leave it out of the compiled part")
        found[nodes[0]] = of_live(message)
    return found


def unsupported(node: fx.Node) -> str:
    """Why a call cannot be written as part of a program; empty if it can."""
    if node.op != "call_function" or node.target is operator.getitem:
        return ""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        if str(node.target).startswith("auto_functionalized"):
            called = node.args[0]
            name = called._schema.name if isinstance(called, torch._ops.OpOverload) else called
            return f"Kiln does not compile `{name}`, which writes to its operands"
        return f"Kiln does not compile {node.target}"
    name = str(node.target)
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name
        if name in READS_DATA:
            return "a number is read from a tensor"
        operand = node.args[0] if node.args else None
        if isinstance(operand, fx.Node) and reads_past(name, operand.meta.get("val")):
            return f"`{name}` reads a tensor whose elements are not one after the other in memory"
    for verb, values in (
        ("gives", [node.meta.get("val")]),
        ("takes", [a.meta.get("val") for a in node.all_input_nodes]),
    ):
        for value in tree_leaves(values):
            why = foreign(value)
            if why:
                return f"`{name}` {verb} {why}"
    return ""


#: How many problems a sentence tells.
_TOLD = 4


def sentence(refused: Mapping[fx.Node, str]) -> str:
    """The refused calls as a sentence, with lines of user code.

    >>> sentence({})
    ''
    """
    messages = []
    for node, reason in refused.items():
        # What follows from another refusal says nothing new.
        if refused.keys().isdisjoint(node.all_input_nodes):
            where = line(node.meta.get("stack_trace"))
            messages.append(f"{reason} at {where}" if where else reason)
    messages = list(dict.fromkeys(messages))
    more = f"; and {len(messages) - _TOLD} more" if len(messages) > _TOLD else ""
    return "; ".join(messages[:_TOLD]) + more


# Parts


def partition(whole: fx.Graph, refused: Mapping[fx.Node, str]) -> list[Part]:
    """The parts of a graph in execution order.

    If results are views or sizes, the last part makes them.

    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> traced = make_fx(lambda x: [(x + 1).sinc() + 1], tracing_mode="fake")(torch.ones(2))
    >>> nodes = {node.name: node for node in traced.graph.nodes}
    >>> [part.compiled for part in partition(traced.graph, {nodes["sinc"]: "for example"})]
    [True, False, True]
    """
    levels = _Levels(refused)
    for node in whole.nodes:
        levels.add(node)
    (end,) = whole.find_nodes(op="output")
    members: dict[int, list[fx.Node]] = {}
    for node, level in levels.level_of.items():
        if node not in levels.free:
            members.setdefault(level, []).append(node)
    results = {r for r in end.all_input_nodes if r.op != "placeholder"}
    needs = {level: _needs(nodes, levels) for level, nodes in members.items()}
    view_needs = _needs([r for r in results if r in levels.free or r.op == "get_attr"], levels)
    read_nodes = {n for needed in (*needs.values(), view_needs) for n in needed.inputs} | results
    parts = []
    for level in sorted(members):
        nodes = members[level]
        outputs = [n for n in nodes if n in read_nodes]
        reasons = {n: refused[n] for n in nodes if n in refused}
        parts.append(_part(whole, needs[level], outputs, level % 2 == 0, reasons))
    if view_needs.copied:
        outputs = [n for n in whole.nodes if n in results and n in view_needs.copied]
        parts.append(_part(whole, view_needs, outputs, False, {}))
    return parts


class _Levels:
    """Assigns a level to each call. Calls of one level form a part: even levels are compiled by
    Kiln, odd ones run by PyTorch."""

    def __init__(self, refused: Mapping[fx.Node, str]) -> None:
        self.refused = refused
        self.level_of: dict[fx.Node, int] = {}
        #: Views and numbers that follow from sizes, which every part makes for itself.
        self.free: set[fx.Node] = set()
        #: What a view is a view of in the end.
        self.root: dict[fx.Node, fx.Node] = {}
        #: By root, the last level of what reads or writes it.
        self.used: dict[fx.Node, int] = {}
        #: By root, the level of the last write.
        self.written: dict[fx.Node, int] = {}
        self.last_effect = 0

    def add(self, node: fx.Node) -> None:
        if node.op in ("placeholder", "get_attr"):
            self.root[node] = node
            return
        if node.op != "call_function" or self.is_dropped(node):
            return
        before = max((self.level_of.get(a, -1) for a in node.all_input_nodes), default=-1)
        if self.is_free(node):
            self.free.add(node)
            base = source(node)
            self.root[node] = self.root.get(base, base) if base is not None else node
            self.level_of[node] = before
            return
        self.root[node] = node
        level = self.level(node, before)
        self.level_of[node] = level
        for a in node.all_input_nodes:
            root = self.root.get(a, a)
            self.used[root] = max(self.used.get(root, -1), level)

    def level(self, node: fx.Node, before: int) -> int:
        if node.target is operator.getitem:
            return self.level_of[node.args[0]]  # type: ignore[index]
        targets = [self.root.get(t, t) for t in written(node)]
        for a in node.all_input_nodes:
            before = max(before, self.written.get(self.root.get(a, a), -1))
        before = max(before, *(self.used.get(t, -1) for t in targets), -1)
        effect = has_effect(node)
        if effect:
            before = max(before, self.last_effect)
        if targets and node not in self.refused:
            # With the last reader, by whatever runs that.
            level = max(before, 0)
        else:
            parity = 1 if node in self.refused else 0
            level = max(before, parity)
            level += (level - parity) % 2
        if effect:
            self.last_effect = level
        for t in targets:
            self.written[t] = level
        return level

    def is_free(self, node: fx.Node) -> bool:
        if node in self.refused:
            return False
        if node.target is operator.getitem:
            return node.args[0] in self.free
        return _is_number(node.meta.get("val")) or _is_view(node)

    def is_dropped(self, node: fx.Node) -> bool:
        """Whether a call only checks what is known before a run. Compiled programs leave such calls
        out."""
        return node not in self.refused and is_check(node.target)


def _is_number(value: Any) -> bool:
    leaves = tree_leaves(value)
    return bool(leaves) and all(isinstance(v, (*SYMBOLIC, int, float, bool)) for v in leaves)


def _is_view(node: fx.Node) -> bool:
    """Whether a call gives views of its operand. Operators such as `to` give a view or a copy."""
    base = source(node)
    if base is None or not isinstance(base.meta.get("val"), torch.Tensor):
        return False
    memory = base.meta["val"].untyped_storage()._cdata
    tensors = tree_leaves(node.meta.get("val"))
    return all(
        isinstance(t, torch.Tensor) and t.untyped_storage()._cdata == memory for t in tensors
    )


def written(node: fx.Node) -> list[fx.Node]:
    """The operands that a call writes to."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return []
    found = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            found += [v for v in tree_leaves(value) if isinstance(v, fx.Node)]
    return found


def has_effect(node: fx.Node) -> bool:
    """Whether calls must keep their order because of an effect beside their results: random
    numbers, communication with other processes, or an effect that no schema describes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator)
    draws = torch.Tag.nondeterministic_seeded in target.tags
    return draws or not target._schema.returns or exchanges(target)


@dataclass(frozen=True)
class _Needs:
    """The nodes that a part reads from others, and those that it computes itself."""

    #: Values of other parts, and inputs of the graph.
    inputs: set[fx.Node]
    #: Its own calls, and what it makes for itself.
    copied: set[fx.Node]


def _needs(nodes: Iterable[fx.Node], levels: _Levels) -> _Needs:
    found = _Needs(set(), set(nodes))
    waiting = list(found.copied)
    while waiting:
        for a in waiting.pop().all_input_nodes:
            if a in found.copied or a in found.inputs:
                continue
            if a in levels.free or a.op == "get_attr":
                found.copied.add(a)
                waiting.append(a)
            else:
                found.inputs.add(a)
    return found


def _part(
    whole: fx.Graph,
    needs: _Needs,
    outputs: list[fx.Node],
    compiled: bool,
    reasons: dict[fx.Node, str],
) -> Part:
    missing = _missing_symbols(whole, needs) if compiled else set()
    inputs = [n for n in whole.nodes if n in needs.inputs or n in missing]
    part_graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        env[node] = part_graph.placeholder(node.name)
        env[node].meta = dict(node.meta)
    for node in whole.nodes:
        if node in needs.copied:
            env[node] = part_graph.node_copy(node, lambda n: env[n])
    part_graph.output(tuple(env[n] for n in outputs))
    return Part(part_graph, inputs, outputs, compiled, reasons)


def _missing_symbols(whole: fx.Graph, needs: _Needs) -> set[fx.Node]:
    """Inputs of the graph that define the size symbols which a part uses, and none of its own
    inputs defines."""
    needed_symbols, input_symbols = set(), set()
    for node in needs.copied | needs.inputs:
        for value in tree_leaves(node.meta.get("val")):
            sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
            for size in sizes:
                if isinstance(size, SYMBOLIC):
                    needed_symbols |= size.node.expr.free_symbols
                    if node in needs.inputs and size.node.expr.is_Symbol:
                        input_symbols.add(size.node.expr)
    found = set()
    placeholders = whole.find_nodes(op="placeholder")
    # Numbers first: a tensor would be kept longer than it is read.
    placeholders.sort(key=lambda n: isinstance(n.meta.get("val"), torch.Tensor))
    for symbol in sorted(needed_symbols - input_symbols, key=str):
        for node in placeholders:
            value = node.meta.get("val")
            is_tensor = isinstance(value, torch.Tensor)
            if is_tensor and foreign(value):
                continue
            sizes = value.shape if is_tensor else (value,)
            if any(isinstance(s, SYMBOLIC) and s.node.expr == symbol for s in sizes):
                found.add(node)
                break
    return found
