"""Numbers as inputs of a program: 0-dimensional tensors in place of Python numbers.

A number that a caller passes, or that is read from a tensor, is a symbol in a traced graph. Where
it is an operand, and no size, the rewritten graph has a tensor of i64, f64 or bool in its place, so
that other values need no other program. Type promotion stays that of numbers: a number promotes
tensors by its kind alone, and half types are computed in f32 within an operator.

Numbers that an operator takes only as numbers keep their value of tracing, with a guard. Symbols
that sizes depend on are not touched.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._prims_common import elementwise_dtypes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from kiln import versions
from kiln._native import InputError
from kiln.lowering import partition
from kiln.lowering.scalar_rules import NUMBER_RULES, RULES, Kind, Number
from kiln.pieces import Boxed
from kiln.tracing.schemas import CHECKS, READS_DATA, SYMBOLIC
from kiln.tracing.schemas import DTYPES as DTYPES_OF_KILN

aten, prims = torch.ops.aten, torch.ops.prims

#: The tensor that stands for a number, by the number's kind.
DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}

#: Types of tensors whose element is a number of Python.
NUMBER_DTYPES = frozenset(DTYPES_OF_KILN) - {torch.float8_e4m3fn, torch.float8_e5m2}


@dataclass
class Numbers:
    """A graph that takes tensors for numbers, and which of its inputs these are."""

    module: fx.GraphModule
    #: Positions of placeholders that take tensors for numbers, and of tensors of the host that have
    #: to be on another device.
    dtypes: dict[int, torch.dtype] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def put_tensors(self, args: list[Any]) -> None:
        """Replaces the numbers among the arguments of a call by tensors."""
        for i, dtype in self.dtypes.items():
            value = args[i]
            if isinstance(value, torch.Tensor):
                value = value.item()
            args[i] = torch.full((), value, dtype=dtype, device=self.device)


def with_numbers_put(run: Boxed, numbers: Numbers) -> Boxed:
    """Wraps the function of a rewritten graph so that it takes the numbers themselves."""
    if not numbers.dtypes:
        return run

    def call(args: list[Any]) -> Sequence[Any]:
        numbers.put_tensors(args)
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def as_tensors(gm: fx.GraphModule, *, inputs: bool = True) -> Numbers:
    """Rewrites a graph so that numbers are 0-dimensional tensors where all their uses allow it.

    These are numbers that are read from tensors, and with `inputs` also those that callers pass.

    >>> Numbers(fx.symbolic_trace(torch.nn.ReLU())).dtypes
    {}
    """
    rewriting = Rewriting(gm, inputs)
    symbolic = any(isinstance(n.meta.get("val"), SYMBOLIC) for n in gm.graph.nodes)
    return rewriting.run() if symbolic or rewriting.on_host else Numbers(gm)


class Rewriting:
    """The rewriting of one graph."""

    def __init__(self, gm: fx.GraphModule, inputs: bool) -> None:
        self.gm, self.inputs = gm, inputs
        self.graph = fx.Graph(gm.graph.owning_module)
        self.copies: dict[fx.Node, fx.Node] = {}
        #: The tensors of numbers.
        self.tensors: dict[fx.Node, fx.Node] = {}
        self.fake = next(
            (
                v.fake_mode
                for n in gm.graph.nodes
                for v in tree_leaves(n.meta.get("val"))
                if isinstance(v, torch._subclasses.FakeTensor)
            ),
            None,
        )
        self.sizes = _size_symbols(gm.graph)
        self.device = _device(gm.graph)
        #: Inputs without dimensions on the host, of a graph whose tensors are elsewhere.
        self.on_host = _on_host(gm.graph) if inputs and self.device.type != "cpu" else set()
        #: The node whose rewriting is in flight.
        self.current_node: fx.Node | None = None

    def run(self) -> Numbers:
        """The rewritten graph."""
        if self.fake is None:
            return Numbers(self.gm)
        if self.inputs:
            versions.keep_floats(self.sizes)
        convertible = self._convertible()
        if not convertible and not self.on_host:
            return Numbers(self.gm)
        found = Numbers(self.gm, device=self.device)
        for position, node in enumerate(self.gm.graph.find_nodes(op="placeholder")):
            copy = self.graph.node_copy(node, self._copy)
            self.copies[node] = copy
            if node in convertible or node in self.on_host:
                dtype = DTYPES[_kind(node)] if node in convertible else node.meta["val"].dtype
                found.dtypes[position] = dtype
                with self.fake:
                    copy.meta["val"] = torch.empty((), dtype=dtype, device=self.device)
            if node in convertible:
                self.tensors[node] = copy
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                continue
            self.current_node = node
            self._rewrite(node, convertible)
        self.graph.eliminate_dead_code()
        found.module = fx.GraphModule(self.gm, self.graph)
        found.module.meta = self.gm.meta
        return found

    # What can be a tensor

    def _convertible(self) -> set[fx.Node]:
        """The numbers all of whose uses can take a tensor."""
        roots = {n for n in self.gm.graph.nodes if self._is_root(n)}
        derived: dict[fx.Node, set[fx.Node]] = {root: {root} for root in roots}
        for node in self.gm.graph.nodes:
            sources = {root for a in node.all_input_nodes for root in derived.get(a, ())}
            if sources and node not in roots and isinstance(node.meta.get("val"), SYMBOLIC):
                derived[node] = sources
        unconvertible: set[fx.Node] = set()
        before = -1
        # What is computed of several numbers needs all of them.
        while before != len(unconvertible):
            before = len(unconvertible)
            for node in self.gm.graph.nodes:
                used = {root for a in node.all_input_nodes for root in derived.get(a, ())}
                if used and (used & unconvertible or not self._takes_tensors(node, derived)):
                    unconvertible |= used
        if self.inputs:
            values = [root.meta["val"] for root in unconvertible]
            versions.keep_floats({s for v in values for s in v.node.expr.free_symbols})
        return {n for n, sources in derived.items() if not sources & unconvertible}

    def _is_root(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        if not isinstance(value, SYMBOLIC):
            return False
        if node.op == "placeholder":
            # The sizes of nested tensors are symbols as well, and no numbers.
            plain = type(value.node.hint) in DTYPES
            return self.inputs and plain and not (value.node.expr.free_symbols & self.sizes)
        if _reads_data(node):
            (read,) = node.all_input_nodes
            tensor = read.meta.get("val")
            plain = isinstance(tensor, torch.Tensor) and tensor.dim() == 0
            return plain and not (value.node.expr.free_symbols & self.sizes)
        return False

    def _takes_tensors(self, node: fx.Node, derived: Mapping[fx.Node, Any]) -> bool:
        if node in derived:
            if node.target in NUMBER_RULES:
                return True
            value = node.meta["val"]
            if not versions.is_of_floats(value):
                return False
            node.replace_all_uses_with(versions.guarded(value))
            return True
        if node.op != "call_function":
            return False
        if _is_check(node):
            return True
        if node.target not in RULES:
            return self._specialise(node, derived)
        _, allowed = RULES[node.target]
        for name, value in _named(node):
            inner = [a for a in tree_leaves(value) if isinstance(a, fx.Node) and a in derived]
            if inner and (name not in allowed or not isinstance(value, fx.Node)):
                return self._specialise(node, derived)
        return True

    def _specialise(self, node: fx.Node, derived: Mapping[fx.Node, Any]) -> bool:
        """Replaces floats that an operator takes by their values at tracing, with a guard. False
        for numbers that have to stay."""
        used = [a for a in node.all_input_nodes if a in derived]
        values = {a: a.meta["val"] for a in used}
        if not all(versions.is_of_floats(value) for value in values.values()):
            return False
        constants = {a: versions.guarded(value) for a, value in values.items()}
        node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), lambda a: constants.get(a, a))
        return True

    # Rewriting

    def _copy(self, node: fx.Node) -> fx.Node:
        return self.copies[node]

    def _rewrite(self, node: fx.Node, convertible: set[fx.Node]) -> None:
        if node in convertible:
            self.tensors[node] = self._number(node)
            return
        if not any(a in convertible for a in node.all_input_nodes):
            self.copies[node] = self.graph.node_copy(node, self._copy)
            return
        if _is_check(node):
            return
        arguments = {
            name: Number(self._tensor(v), _kind(v)) if _is_number(v) else fx.map_arg(v, self._copy)
            for name, v in _named(node)
        }
        result = RULES[node.target][0](self, arguments)
        self.copies[node] = self.cast(result, node.meta["val"].dtype)

    def _number(self, node: fx.Node) -> fx.Node:
        """The tensor of a number that is read from a tensor or computed."""
        if _reads_data(node):
            (read,) = node.all_input_nodes
            return self.cast(self.copies[read], DTYPES[_kind(node)])
        operands = [self._tensor(a) for a in node.args]
        wide = DTYPES[_kind(node)]
        return self.cast(NUMBER_RULES[node.target](self, operands), wide)

    def _tensor(self, number: Any) -> fx.Node:
        """The tensor of a number: an input, a size, or a constant."""
        if not isinstance(number, fx.Node):
            return self.constant(number)
        if number not in self.tensors:
            if _kind(number) is float and number.target in NUMBER_RULES:
                return self._number(number)
            dtype, size = DTYPES[_kind(number)], self.copies[number]
            return self.emit(aten.full.default, [], size, dtype=dtype, device=self.device)
        return self.tensors[number]

    # What rules are made of

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Adds a call to the graph, with the metadata of the node that is rewritten."""
        node = self.graph.call_function(target, args, kwargs)
        if self.current_node is not None:
            kept = ("stack_trace", "nn_module_stack", "original_aten", "seq_nr")
            node.meta = {k: v for k, v in self.current_node.meta.items() if k in kept}
        values = tree_map(lambda a: a.meta["val"] if isinstance(a, fx.Node) else a, (args, kwargs))
        with self.fake:  # type: ignore[union-attr]
            node.meta["val"] = target(*values[0], **values[1])
        return node

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Converts a tensor to this dtype."""
        if node.meta["val"].dtype == dtype:
            return node
        return self.emit(prims.convert_element_type.default, node, dtype)

    def constant(self, value: Any) -> fx.Node:
        """A 0-dimensional tensor of a known number."""
        dtype = DTYPES[type(value)]
        return self.emit(aten.full.default, [], value, dtype=dtype, device=self.device)

    def dtype(self, *operands: Any, kind: Any = Kind.DEFAULT) -> torch.dtype:
        """The dtype that torch computes in for these operands, by type promotion."""
        samples = [
            o.meta["val"] if isinstance(o, fx.Node) else o.kind(1) if isinstance(o, Number) else o
            for o in operands
        ]
        computed: torch.dtype = elementwise_dtypes(*samples, type_promotion_kind=kind)[0]
        return computed

    def operand(self, value: Any, dtype: torch.dtype) -> fx.Node:
        """A tensor or number as a tensor of this dtype."""
        if isinstance(value, Number):
            return self.cast(value.tensor, dtype)
        if isinstance(value, fx.Node):
            return self.cast(value, dtype)
        return self.cast(self.constant(value), dtype)

    def apply(self, target: Any, *operands: Any, kind: Any = Kind.DEFAULT) -> fx.Node:
        """Adds a call on tensors and numbers, converted to the dtype that torch computes it in."""
        dtype = self.dtype(*operands, kind=kind)
        return self.emit(target, *(self.operand(o, dtype) for o in operands))

    def filled(self, like: fx.Node | list[Any], value: Any, dtype: torch.dtype) -> fx.Node:
        """A tensor filled with one number. `like`: its sizes, or a tensor that has them."""
        if isinstance(like, fx.Node):
            zeros = self.emit(aten.zeros_like.default, like, dtype=dtype)
        else:
            zeros = self.emit(aten.full.default, like, 0, dtype=dtype, device=self.device)
        return self.emit(aten.add.Tensor, zeros, self.operand(value, dtype))


def _device(graph: fx.Graph) -> torch.device:
    """The one device of the graph other than the host; the host if there is none, or several."""
    found = {
        value.device
        for node in graph.nodes
        for value in tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor) and value.device.type != "cpu"
    }
    return next(iter(found)) if len(found) == 1 else torch.device("cpu")


def _on_host(graph: fx.Graph) -> set[fx.Node]:
    """0-dimensional inputs on the host that the graph only reads."""
    (end,) = graph.find_nodes(op="output")
    kept = {*end.all_input_nodes, *(t for n in graph.nodes for t in partition.written(n))}
    return {
        node
        for node in graph.find_nodes(op="placeholder")
        if isinstance(value := node.meta.get("val"), torch.Tensor)
        and value.dim() == 0
        and value.device.type == "cpu"
        and value.dtype in NUMBER_DTYPES
        and node not in kept
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), SYMBOLIC)


def _kind(node: fx.Node) -> type:
    value = node.meta["val"]
    return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]


def _reads_data(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in READS_DATA


def _is_check(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name in CHECKS


def _size_symbols(graph: fx.Graph) -> set[Any]:
    """The symbols that sizes of tensors depend on."""
    return {
        symbol
        for node in graph.nodes
        for value in tree_leaves(node.meta.get("val"))
        if isinstance(value, torch.Tensor)
        for size in (*value.shape, *value.stride(), value.storage_offset())
        if isinstance(size, torch.SymInt)
        for symbol in size.node.expr.free_symbols
    }


def _named(node: fx.Node) -> list[tuple[str, Any]]:
    """The arguments of an operator that were given, with their names."""
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    return [*zip(names, node.args, strict=False), *node.kwargs.items()]


# Numbers of programs of torch.export


def reads_number_inputs(graph: fx.Graph) -> bool:
    """Whether a graph reads a number from an input without dimensions."""
    read = [a for node in graph.nodes if _reads_data(node) for a in node.all_input_nodes]
    return any(a.op == "placeholder" and a.meta["val"].dim() == 0 for a in read)


@contextlib.contextmanager
def read_from_tensors(module: torch.nn.Module, positions: Collection[int]) -> Iterator[None]:
    """Context manager in which a module takes tensors for the numbers at these positions of its
    flat arguments."""
    if not positions:
        yield
        return
    before = module.__dict__.get("forward")
    called = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        for i in positions:
            leaves[i] = leaves[i].item()
        args, kwargs = tree_unflatten(leaves, spec)
        return called(*args, **kwargs)

    forward.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


def number_inputs(dynamic: Any, signature: inspect.Signature, args: Any, kwargs: Any) -> set[int]:
    """Positions of the flat arguments that are numbers and inputs of the program.

    With `dynamic=True` all ints and floats, else those that `dynamic` names.

    >>> signature = inspect.signature(lambda x, scale: x)
    >>> number_inputs(True, signature, (3.0,), {"scale": 2})
    {0, 1}
    >>> number_inputs({"scale": True}, signature, (3.0,), {"scale": 2})
    {1}
    """
    if dynamic is None or dynamic is False:
        return set()
    leaves = tree_leaves((args, kwargs))
    numbers = {i for i, leaf in enumerate(leaves) if type(leaf) in DTYPES}
    if dynamic is True:
        return {i for i in numbers if type(leaves[i]) is not bool}
    if not isinstance(dynamic, Mapping):
        return set()
    parameters = [*signature.parameters, *[""] * len(args)]
    named = [*zip(parameters, args, strict=False), *kwargs.items()]
    flat = [name for name, value in named for _ in tree_leaves(value)]
    return {i for i in numbers if dynamic.get(flat[i]) is True}


def without_numbers(dynamic: Any) -> Any:
    """`dynamic` without the numbers that it names, as torch.export takes it."""
    if not isinstance(dynamic, Mapping):
        return dynamic
    return {name: None if value is True else value for name, value in dynamic.items()}


def numbers_to_tensors(
    leaves: list[Any], numbers: Mapping[int, type], names: Sequence[str], device: str
) -> None:
    """Replaces the numbers among the flat arguments of a call by tensors, in place.

    >>> leaves = [2]
    >>> numbers_to_tensors(leaves, {0: float}, ["scale"], "cpu")
    >>> leaves
    [tensor(2., dtype=torch.float64)]
    """
    for i, kind in numbers.items():
        value: Any = leaves[i]
        if isinstance(value, torch.Tensor):
            continue
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise InputError(
                f"input `{names[i]}` is {value!r}, and was a number of type {kind.__name__} among "
                "the example inputs: pass one, or compile it again with this one"
            )
        number: Any = value
        leaves[i] = torch.full((), number, dtype=DTYPES[kind], device=device)
