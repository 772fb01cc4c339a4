"""Writes an fx graph of ATen calls as a `Program` for the native engine.

Takes a graph whose nodes have `meta["val"]`: one from AOT autograd, or the graph of an
`ExportedProgram` after `run_decompositions({})`. It never looks at the contents of a tensor, and
decides nothing about fusion.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from kiln.lowering.program import Json, Program
from kiln.tracing.schemas import (
    CHECKS,
    DTYPES,
    READS_DATA,
    Schema,
    foreign,
    literal,
    reads_past,
    schema_of,
)
from kiln.tracing.sources import module_path, place, refusal

if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]

#: The `min` of a number without a lower end, as of an index that may be negative.
_LOWEST = -(2**63)


def write(
    graph: fx.Graph,
    owner: Any,
    *,
    name: str = "forward",
    params: Mapping[int, str] | None = None,
    input_names: Mapping[int, str] | None = None,
    mutations: Mapping[int, str] | None = None,
    guards: Sequence[str] = (),
    ranges: Mapping[sympy.Symbol, Any] | None = None,
    left_out: Collection[fx.Node] | None = None,
    written: Collection[str] = (),
) -> Program:
    """Writes `graph`.

    `owner`: the module that has the graph's attributes. `params`: the names of the parameters by
    the positions of their placeholders; every other placeholder is an input. `mutations`: the
    placeholder's name for each output (by position) that is written to it, and not returned.
    `ranges`: the sizes that symbols may have, where they are others than those of tracing.
    `left_out`: calls that are not written, to see what is left: their results are inputs, and the
    results of all other calls are outputs. `written`: names of placeholders that calls write to
    in place.

    >>> class Double(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x + x
    >>> exported = torch.export.export(Double(), (torch.ones(3),)).run_decompositions({})
    >>> program = write(exported.graph, exported.graph_module)
    >>> [call["name"] for call in json.loads(program.text)["calls"]]
    ['aten::add']
    """
    given = (params or {}, input_names or {}, mutations or {}, ranges or {})
    return _Writer(owner, *given, left_out, written).write(graph, name, guards)


class _Writer:
    """The state of writing one graph."""

    def __init__(
        self,
        owner: Any,
        params: Mapping[int, str],
        input_names: Mapping[int, str],
        mutations: Mapping[int, str],
        ranges: Mapping[sympy.Symbol, Any],
        left_out: Collection[fx.Node] | None = None,
        written: Collection[str] = (),
    ) -> None:
        self.owner = owner
        self.left_out = left_out
        self.results: dict[int, fx.Node] = {}
        self.ranges = ranges
        self.param_names = params
        self.input_names = input_names
        self.mutations = mutations
        self.written = frozenset(mutations.values()) | frozenset(written)
        #: By name the tensors that have to be on the host.
        self.on_host: dict[str, fx.Node] = {}
        #: Calls that torch would have to run on the host.
        self.host_calls: list[Json] = []
        self.values: list[Json] = []
        #: The id of a node's tensor, or nested lists of ids (None where there is no tensor).
        self.ids: dict[fx.Node, Any] = {}
        self.inputs: list[Json] = []
        self.input_positions: list[int] = []
        self.params: list[int] = []
        self.param_tensors: list[int | torch.Tensor] = []
        self.calls: list[Json] = []
        self.devices: dict[torch.device, fx.Node] = {}
        self.scalars_on: torch.device | None = None
        self.symbols: dict[str, Json] = {}
        self.texts: dict[sympy.Expr, int | str] = {}
        self.places: dict[str | None, str] = {}
        self.modules: dict[Any, str] = {}

    def write(self, graph: fx.Graph, name: str, guards: Sequence[str]) -> Program:
        outputs: list[Json] = []
        writes: list[Json] = []
        position = 0
        placeholders: dict[str, fx.Node] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                placeholders[node.name] = node
                self.placeholder(node, position)
                position += 1
            elif node.op == "get_attr":
                self.constant(node)
            elif self.left_out is not None and node in self.left_out:
                self.leave_out(node)
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output" and self.left_out is not None:
                outputs = [{"value": i} for i in self.results]
            elif node.op == "output":
                for i, result in enumerate(node.args[0]):
                    if isinstance(result, fx.Node) and _on_host(result):
                        self.on_host.setdefault(f"result {i}", result)
                    target = self.mutations.get(i)
                    if target is None:
                        outputs.append(self.output(result, node))
                    else:
                        pair = (self.ids[placeholders[target]], self.ids[result])
                        writes.append({"target": pair[0], "value": pair[1]})
            else:
                raise refusal(f"a call of {node.target}", node, "only operators can be compiled")
        device = self.device()
        if device != "cpu":
            for call in self.host_calls:
                call["vouched"] = False
        program = {
            "name": name,
            "symbols": self.symbols,
            "guards": list(guards),
            "values": self.values,
            "inputs": self.inputs,
            "params": self.params,
            "calls": self.calls,
            "outputs": outputs,
            "writes": writes,
        }
        return Program(
            json.dumps(program, separators=(",", ":"), allow_nan=False),
            self.param_tensors,
            self.input_positions,
            device,
            len(self.calls),
            self.symbols,
            self.results,
            any("value" in entry and self.is_complex(entry["value"]) for entry in self.inputs),
            [i for i, o in enumerate(outputs) if "value" in o and self.is_complex(o["value"])],
        )

    def device(self) -> str:
        """The device of the program. Tensors on the host within a program for a GPU, such as a
        table of indices, are computed on the GPU."""
        others = [d for d in self.devices if d.type != "cpu"]
        if len(others) > 1:
            names = " and ".join(str(d) for d in others)
            remedy = "put the module and its inputs on one device"
            raise refusal(f"the program has tensors on {names}", self.devices[others[1]], remedy)
        found = next(iter(others or self.devices), self.scalars_on or torch.device("cpu"))
        if found.type not in ("cpu", "cuda"):
            raise refusal(f"the program's tensors are on {found}", None, "use cpu or cuda")
        if found.type != "cpu" and self.on_host:
            name, node = next(iter(self.on_host.items()))
            text = f"{name} is on cpu, and the program's other tensors on {found}"
            raise refusal(text, node, f"move {name} there")
        return str(found)

    # Values and sizes

    def number(self, expr: sympy.Expr, shape_env: Any) -> int | str:
        """A size as an integer, or as the text of an expression. Registers the symbols of the
        expression."""
        known = self.texts.get(expr)
        if known is not None:
            return known
        if expr.is_Integer:
            text: int | str = int(expr)
        else:
            for symbol in expr.free_symbols:
                self.symbol(symbol, shape_env)
            import sympy

            text = sympy.srepr(expr)
        self.texts[expr] = text
        return text

    def symbol(self, symbol: sympy.Symbol, shape_env: Any) -> None:
        if symbol.name in self.symbols:
            return
        low, high = _LOWEST, None
        bounds = self.ranges.get(symbol, shape_env.var_to_range.get(symbol))
        if bounds is not None:
            low = int(bounds.lower) if bounds.lower.is_Integer else _LOWEST
            high = int(bounds.upper) if bounds.upper.is_Integer else None
        # The name changed between releases of torch.
        hints = getattr(shape_env, "backed_var_to_val", None)
        if hints is None:
            hints = getattr(shape_env, "var_to_val", {})
        hint = hints.get(symbol)
        # A range's end that torch puts in place of "no end".
        if high is not None and high >= 2**62:
            high = None
        try:
            hint = None if hint is None else int(hint)
        except TypeError:
            what = f"the size {symbol} is that of a nested tensor"
            raise refusal(what, None, "pass padded tensors") from None
        self.symbols[symbol.name] = {"min": low, "max": high, "hint": hint}

    def value(self, tensor: torch.Tensor, node: fx.Node, name: str | None = None) -> int:
        if tensor.layout is not torch.strided:
            remedy = "use dense tensors"
            raise refusal(f"a tensor of layout {tensor.layout}", node, remedy)
        device = tensor.device
        if tensor.dim() == 0 and device.type == "cpu":
            self.scalars_on = device
        elif device not in self.devices:
            self.devices[device] = node
        shape = [
            self.number(s.node.expr, s.node.shape_env) if isinstance(s, torch.SymInt) else s
            for s in tensor.shape
        ]
        dtype = DTYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
        info: Json = {"dtype": dtype, "shape": shape}
        if name is not None:
            info["name"] = name
        self.values.append(info)
        return len(self.values) - 1

    def is_complex(self, value: int) -> bool:
        return str(self.values[value]["dtype"]).startswith("complex")

    def ids_of(self, value: Any, node: fx.Node) -> Any:
        """Registers the tensors of a result, and gives their ids, nested as the result is."""
        if isinstance(value, torch.Tensor):
            return self.value(value, node)
        if isinstance(value, (list, tuple)):
            return [self.ids_of(v, node) for v in value]
        return None

    # Nodes

    def placeholder(self, node: fx.Node, position: int) -> None:
        value = node.meta.get("val")
        param = self.param_names.get(position)
        if isinstance(value, torch.Tensor):
            what = param or self.input_names.get(position, node.name)
            if value.dtype not in DTYPES:
                if param is not None and not node.users and node.name not in self.written:
                    return
                if self.left_out is not None and all(u in self.left_out for u in node.users):
                    return
                text = f"{what} is {value.dtype}, a dtype that Kiln does not have"
                raise refusal(text, node, "convert it outside of the compiled part")
            # The engine takes copies of parameters that a run does not write to.
            if value.device.type == "cpu" and (param is None or node.name in self.written):
                self.on_host.setdefault(what, node)
        if param is not None:
            if not isinstance(value, torch.Tensor):
                remedy = "Kiln takes tensors only; keep it out of the compiled part"
                raise refusal(f"the parameter {param} is no tensor", node, remedy)
            self.ids[node] = self.value(value, node, param)
            self.params.append(self.ids[node])
            self.param_tensors.append(position)
            return
        entry: Json = {"name": self.input_names.get(position, node.name)}
        if isinstance(value, torch.Tensor):
            self.ids[node] = entry["value"] = self.value(value, node)
        elif isinstance(value, torch.SymInt):
            size = self.number(value.node.expr, value.node.shape_env)
            entry["size"] = size if isinstance(size, str) else f"Integer({size})"
        elif value is None or isinstance(value, (bool, int, float, str)):
            entry["constant"] = literal(value)
        else:
            remedy = "pass tensors, sizes and plain Python values"
            raise refusal(f"an input of type {type(value).__name__}", node, remedy)
        self.inputs.append(entry)
        self.input_positions.append(position)

    def constant(self, node: fx.Node) -> None:
        tensor = operator.attrgetter(str(node.target))(self.owner)
        if not isinstance(tensor, torch.Tensor):
            return  # A subgraph of a higher-order operator, which is refused where it is called.
        self.ids[node] = self.value(tensor, node, str(node.target))
        self.params.append(self.ids[node])
        self.param_tensors.append(tensor)

    def call(self, node: fx.Node) -> None:
        target, value = node.target, node.meta.get("val")
        if target is operator.getitem:
            source, index = node.args
            if isinstance(source, fx.Node) and source in self.ids:
                self.ids[node] = self.ids[source][index]
            return
        if isinstance(target, torch._ops.HigherOrderOperator):
            remedy = "take it out of the compiled part, or write it with tensor operators"
            raise refusal(f"Kiln does not compile {target}", node, remedy)
        if not isinstance(target, torch._ops.OpOverload):
            return  # Arithmetic on sizes: its result is an expression wherever it is used.
        schema = schema_of(target)
        if schema.name in CHECKS:
            return
        if schema.name in READS_DATA:
            remedy = "keep it a tensor, or do this outside of the compiled part"
            raise refusal("a number is read from a tensor", node, remedy)
        operand = node.args[0] if node.args else None
        if isinstance(operand, fx.Node) and reads_past(schema.name, operand.meta.get("val")):
            what = "a tensor whose elements are not one after the other in memory"
            remedy = "use views by index, or a copy (`contiguous()`)"
            raise refusal(f"`{schema.name}` of {what}", node, remedy)
        if value is not None and not isinstance(value, (torch.Tensor, list, tuple)):
            return  # A size, as of `sym_size`.
        if schema.name == "prims::convert_element_type":
            no = {"bool": False}
            dtype = self.argument(node.args[1], node)
            args = [self.argument(node.args[0], node), dtype, no, no, "none"]
            schema = Schema("aten::to", "dtype", [])
        else:
            args = self.arguments(schema, node)
        ids = self.ids_of(value, node)
        self.ids[node] = ids
        outs = _flat(ids)
        self.results.update(dict.fromkeys(outs, node))
        call: Json = {
            "name": schema.name,
            "overload": schema.overload,
            "args": args,
            "outs": outs,
            "source": self.place(node),
            "module": self.module(node),
        }
        # A result that is no tensor has no place in a program.
        if schema.computes and len(outs) == len(tree_leaves(value)):
            call["vouched"] = not schema.of_strides or _is_row_major(node)
            if any(_on_host(n) for n in (node, *node.all_input_nodes)):
                self.host_calls.append(call)
        self.calls.append(call)

    def leave_out(self, node: fx.Node) -> None:
        """Makes the results of a call inputs of the program, where Kiln has their type."""

        def value_id(value: Any) -> int | None:
            is_known = isinstance(value, torch.Tensor) and not foreign(value)
            return self.value(value, node) if is_known else None

        value = node.meta.get("val")
        if isinstance(value, (list, tuple)):
            self.ids[node] = [value_id(v) for v in value]
        elif isinstance(value, torch.Tensor) and not foreign(value):
            self.ids[node] = self.value(value, node)
        for i in _flat(self.ids.get(node)):
            self.inputs.append({"name": f"{node.name}_{i}", "value": i})

    def arguments(self, schema: Schema, node: fx.Node) -> list[Json]:
        """All arguments in the schema's order, with defaults filled in."""
        given, kwargs, args = node.args, node.kwargs, []
        for i, (name, default) in enumerate(schema.arguments):
            if i < len(given):
                args.append(self.argument(given[i], node))
            elif name in kwargs:
                args.append(self.argument(kwargs[name], node))
            else:
                # An argument without a default that is left out is an optional one.
                args.append("none" if default is None else default)
        return args

    def argument(self, value: Any, node: fx.Node) -> Json:
        if isinstance(value, fx.Node):
            ids = self.ids.get(value)
            if ids is not None:
                return _values(ids)
            return self.size(value.meta.get("val"), value)
        if isinstance(value, (list, tuple)):
            if all(type(v) is int for v in value):
                return {"ints": list(value)}
            return {"list": [self.argument(v, node) for v in value]}
        if value is torch.strided or not isinstance(value, torch.layout):
            return literal(value)
        raise refusal(f"a tensor of layout {value}", node, "use dense tensors")

    def size(self, value: Any, node: fx.Node) -> Json:
        """A number computed from sizes, as an argument."""
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            text = self.number(value.node.expr, value.node.shape_env)
            return {"size": text} if isinstance(text, str) else {"int": text}
        if isinstance(value, (list, tuple)):
            return {"list": [self.size(v, node) for v in value]}
        return literal(value)

    def output(self, result: Any, node: fx.Node) -> Json:
        if result is None:
            return "none"
        if not isinstance(result, fx.Node):
            return {"constant": literal(result)}
        ids = self.ids.get(result)
        if isinstance(ids, int):
            return {"value": ids}
        value = result.meta.get("val")
        if value is None:
            return "none"
        size = self.size(value, result)
        return size if "size" in size else {"constant": size}

    # Where a call comes from

    def place(self, node: fx.Node) -> str:
        trace = node.meta.get("stack_trace")
        known = self.places.get(trace)
        if known is None:
            known = self.places[trace] = place(trace)
        return known

    def module(self, node: fx.Node) -> str:
        stack = node.meta.get("nn_module_stack")
        if not stack:
            return ""
        last = next(reversed(stack.values()))[0]
        known = self.modules.get(last)
        if known is None:
            known = self.modules[last] = module_path(last)
        return known


def _is_row_major(node: fx.Node) -> bool:
    """Whether all operands of a call have the strides that tensors of an engine have."""
    operands = tree_leaves([a.meta.get("val") for a in node.all_input_nodes])
    return all(t.is_contiguous() for t in operands if isinstance(t, torch.Tensor))


def _on_host(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _values(ids: Any) -> Json:
    """Value ids as an argument of a call."""
    if isinstance(ids, int):
        return {"value": ids}
    if ids is None:
        return "none"
    return {"list": [_values(i) for i in ids]}


def _flat(ids: Any) -> list[int]:
    if isinstance(ids, int):
        return [ids]
    if ids is None:
        return []
    return [i for item in ids for i in _flat(item)]
