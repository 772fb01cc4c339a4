"""Records the operators of one run as an fx graph. Tensors of the run are `Shadow`s without data.

A dispatch mode below autograd hands each operator to the recorder. Composite operators come whole;
vmap and autocast are applied already. The recorder adds a call to the graph, and computes shapes,
dtypes and strides of the results. It refuses calls that it does not know (`NotTraced`), also where
the module catches the error.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from kiln import versions
from kiln.tracing import layouts, op_kinds, shapes, sources, triton_launches
from kiln.tracing.record_modes import FunctionGuard, OperatorMode, without_collection
from kiln.tracing.shadow import Memory, NotTraced, Shadow, shadow_of

#: Held while a run is recorded: torch's flags, and what tells which module runs, are the process's.
_RECORDING_LOCK = threading.RLock()


@dataclass(frozen=True)
class Trace:
    """A recorded run: its graph, parameters, inputs and nesting."""

    graph: fx.Graph
    #: What has the graph's constants as attributes.
    owner: Any
    #: Names of parameters, buffers and constants, and their tensors, by position of placeholder.
    params: dict[int, str]
    tensors: dict[int, torch.Tensor]
    #: Names of the other inputs.
    input_names: dict[int, str]
    #: Names of placeholders that calls write to.
    written: frozenset[str]
    #: The parameters among them by name.
    state: dict[str, torch.Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    #: Results that are fixed: position in the flat results, and value.
    constants: dict[int, Any]
    #: Whether the order in memory of a result is not known.
    reordered: bool = False


class Recorder:
    """Records one run as an fx graph."""

    def __init__(
        self, module: torch.nn.Module, decomposed: Collection[Any], caller: CodeType
    ) -> None:
        """`decomposed`: composite operators that are decomposed. `caller`: the code of the function
        below which frames are user code."""
        self.decomposed, self.caller = decomposed, caller
        self.graph = fx.Graph()
        self.owner = torch.nn.Module()
        #: Why the run is not recorded after all.
        self.refused = ""
        self.paths: dict[int, str] = {}
        #: Tensors of the module by identity: name and tensor.
        self.module_tensors: dict[int, tuple[str, torch.Tensor]] = {}
        for path, part in module.named_modules():
            self.paths[id(part)] = path
            for tensors in (part._parameters, part._buffers, vars(part)):
                for name, tensor in tensors.items():
                    if isinstance(tensor, torch.Tensor):
                        full = f"{path}.{name}" if path else name
                        self.module_tensors.setdefault(id(tensor), (full, tensor))
        self.shadows: dict[int, Shadow] = {}
        self.inputs: list[tuple[str, fx.Node]] = []
        self.params: dict[fx.Node, tuple[str, torch.Tensor]] = {}
        self.written: dict[fx.Node, None] = {}
        #: The module that runs, as a node's `nn_module_stack`.
        self.module_stack: list[dict[str, Any]] = [{}]
        self.thread = threading.get_ident()
        #: What is known of the node that runs, of a graph.
        self.node_meta: dict[str, Any] | None = None
        #: The place before which the next placeholder goes.
        self.insertion_point = self.graph._root

    # Values

    def add_input(self, leaf: Any, name: str) -> Any:
        """Adds an input, and gives what stands for the argument in the run."""
        if leaf is not None and not isinstance(leaf, (torch.Tensor, bool, int, float, str)):
            raise NotTraced(f"the input {name} is of type {type(leaf).__name__}")
        node = self.graph.placeholder(name)
        self.inputs.append((name, node))
        if not isinstance(leaf, torch.Tensor):
            node.meta["val"] = leaf
            return leaf
        return self.placeholder_shadow(leaf, node)

    def placeholder_shadow(self, tensor: torch.Tensor, node: fx.Node) -> Shadow:
        """The shadow of a tensor that exists before the run."""
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)
        if not all(type(size) is int for size in (*tensor.shape, *tensor.stride())):
            raise NotTraced("a tensor has a size that changes")
        if not plain or tensor.layout is not torch.strided or tensor.is_quantized:
            raise NotTraced(f"a tensor of type {type(tensor).__name__}")
        if tensor.is_conj() or tensor.is_neg() or tensor.device.type == "meta":
            raise NotTraced("a tensor that is conjugated lazily, or without data")
        size, stride = tensor.shape, tensor.stride()
        meta = torch.empty_strided(size, stride, dtype=tensor.dtype, device="meta")
        offset = tensor.storage_offset()
        if offset:
            before = meta.new_empty(offset + meta.untyped_storage().size() // meta.itemsize)
            meta = before.as_strided(size, stride, offset)
        shadow = shadow_of(meta, tensor.device, node, Memory(node))
        node.meta["val"] = shadow
        return shadow

    def operand_shadow(self, tensor: torch.Tensor) -> Shadow:
        """The shadow of an operand. Parameters become placeholders at their first use."""
        if type(tensor) is Shadow:
            return tensor
        found = self.shadows.get(id(tensor))
        if found is not None:
            return found
        name, module_tensor = self.module_tensors.get(id(tensor), ("", None))
        if module_tensor is None:
            raise NotTraced("a tensor that is neither an input nor the module's")
        with self.graph.inserting_before(self.first_call()):
            node = self.graph.placeholder("p_" + name.replace(".", "_"))
        self.params[node] = (name, module_tensor)
        shadow = self.shadows[id(tensor)] = self.placeholder_shadow(module_tensor, node)
        return shadow

    def first_call(self) -> fx.Node:
        if self.insertion_point is self.graph._root:
            found = [n for n in self.graph.nodes if n.op not in ("placeholder",)]
            if not found:
                return self.graph._root
            self.insertion_point = found[0]
        return self.insertion_point

    def constant(self, tensor: torch.Tensor) -> Shadow:
        """The shadow of a tensor that was made of Python numbers within the run."""
        name = f"_constant{len(self.shadows)}_{len(self.graph.nodes)}"
        self.owner.register_buffer(name, tensor)
        node = self.graph.create_node("get_attr", name)
        shadow = self.shadows[id(tensor)] = self.placeholder_shadow(tensor, node)
        return shadow

    # Calls

    def run(self, function: Callable[[], Any]) -> Any:
        """Calls the function, and records the operators that it calls."""
        try:
            with (
                _RECORDING_LOCK,
                without_collection(),
                torch.no_grad(),
                versions.exporting(),
                triton_launches.ported(),
                self.modules(),
                FunctionGuard(self),
                OperatorMode(self),
                torch._C._AutoDispatchBelowAutograd(),
            ):
                result = function()
        except NotTraced:
            raise
        except Exception as error:
            reason = self.refused or f"{type(error).__name__}: {error}"
            raise NotTraced(reason) from error
        if self.refused:
            raise NotTraced(self.refused)
        return result

    @contextlib.contextmanager
    def modules(self) -> Iterator[None]:
        """Context manager in which `module_stack` follows the modules that run."""
        original = torch.nn.Module.__call__
        recorder = self

        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = recorder.paths.get(id(module))
            if path is None or threading.get_ident() != recorder.thread:
                return original(module, *args, **kwargs)
            recorder.module_stack.append({path: (path, type(module))})
            try:
                return original(module, *args, **kwargs)
            finally:
                recorder.module_stack.pop()

        torch.nn.Module.__call__ = called  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], mode: Any) -> Any:
        kind = op_kinds.kind_of(func)
        if kind.refused:
            raise NotTraced(f"{func} {kind.refused}")
        if kind.lifts and type(args[0]) is torch.Tensor and id(args[0]) not in self.module_tensors:
            args = (self.constant(args[0]), *args[1:])
            func = torch.ops.aten.lift_fresh_copy.default
            kind = op_kinds.kind_of(func)
        if kind.identity:
            return args[0]
        if kind.dropout and op_kinds.is_deterministic(func, args, kwargs):
            return args[0]
        if not op_kinds.is_deterministic(func, args, kwargs):
            raise NotTraced(f"{func} draws random numbers, or changes statistics of a batch")
        if kind.writes and not func._schema.name.startswith("aten::"):
            raise NotTraced(f"{func} writes, and is an operator of a library")
        if kind.masks and any(
            isinstance(t, torch.Tensor) and t.dtype in (torch.bool, torch.uint8)
            for t in pytree.tree_leaves(args[1])
        ):
            raise NotTraced(f"{func} has a result whose size depends on data")
        if kind.composite and (kind.aliases or not self.keeps_whole(func, args)):
            with mode:
                result = func.decompose(*args, **kwargs)
            if kind.view_or_copy and type(args[0]) is Shadow and not args[0].is_contiguous():
                for tensor in (args[0], result):
                    if type(tensor) is Shadow:
                        tensor.memory.view_or_copy = True
            return result
        return self.record(func, kind, args, kwargs)

    def keeps_whole(self, func: Any, args: Sequence[Any]) -> bool:
        name = func._schema.name
        if name in op_kinds.ALIASING or not name.startswith("aten::"):
            return False
        if name in op_kinds.ALIASING_ONE:
            tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
            return len(tensors) != 1 and func not in self.decomposed
        return func not in self.decomposed

    def record(
        self, func: Any, kind: op_kinds.Kind, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        operands: list[Shadow] = []

        def node_of(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                found = self.operand_shadow(value)
                operands.append(found)
                return found.node
            if type(value) in (list, tuple):
                return [node_of(v) for v in value]
            return value

        node_args = tuple(node_of(a) for a in args)
        node_kwargs = {k: node_of(v) for k, v in kwargs.items()}
        device, meta_kwargs = self.device(func, kind, operands, args, kwargs)
        metas = _metas(self, args)
        meta_kwargs = {k: _metas(self, v) for k, v in meta_kwargs.items()}
        result = shapes.result(func, metas, meta_kwargs)
        if result is None:
            result = func(*metas, **meta_kwargs)
        in_order = result
        if kind.order_by_library:
            in_order = layouts.result(func._schema.name, result, metas, device)
            result = result if in_order is None else in_order
        if kind.numbers:
            return result
        node = self.graph.create_node("call_function", func, node_args, node_kwargs)
        if self.node_meta is None:
            node.meta["stack_trace"] = sources.frames(self.caller)
            node.meta["nn_module_stack"] = self.module_stack[-1]
        else:
            node.meta["stack_trace"] = self.node_meta.get("stack_trace")
            node.meta["nn_module_stack"] = self.node_meta.get("nn_module_stack")
        for target in kind.writes:
            self.write(func, op_kinds.argument(func, args, kwargs, target))
        shadows = self.results(result, node, device, operands, kind)
        if in_order is None:
            for shadow in pytree.tree_leaves(shadows):
                shadow.memory.view_or_copy = shadow.memory.order_by_device = True
        node.meta["val"] = shadows
        return shadows

    def results(
        self,
        result: Any,
        node: fx.Node,
        device: torch.device,
        operands: Sequence[Shadow],
        kind: op_kinds.Kind,
    ) -> Any:
        if isinstance(result, torch.Tensor):
            for operand in operands:
                if operand.meta is result:
                    return operand
            memory = Memory(view_or_copy=kind.order_by_device, order_by_device=kind.order_by_device)
            if kind.aliases and operands:
                memory = operands[0].memory
            return shadow_of(result, device, node, memory)
        if isinstance(result, (list, tuple)):
            shadows: list[Any] = []
            for i, item in enumerate(result):
                if not isinstance(item, torch.Tensor):
                    shadows.append(item)
                    continue
                item_node = self.graph.create_node("call_function", operator.getitem, (node, i))
                found = self.results(item, item_node, device, operands, kind)
                item_node.meta["val"] = found
                shadows.append(found)
            return type(result)(shadows) if type(result) in (list, tuple) else tuple(shadows)
        if result is None:
            return None
        raise NotTraced(f"{node.target} gives a {type(result).__name__}")

    def write(self, func: Any, targets: Any) -> None:
        for target in pytree.tree_leaves(targets):
            if not isinstance(target, torch.Tensor):
                continue
            memory = self.operand_shadow(target).memory
            if memory.view_or_copy:
                raise NotTraced(f"{func} writes to what may be a view or a copy")
            if memory.placeholder is not None:
                if memory.placeholder.op != "placeholder":
                    raise NotTraced(f"{func} writes to a constant")
                self.written[memory.placeholder] = None

    def device(
        self,
        func: Any,
        kind: op_kinds.Kind,
        operands: Sequence[Shadow],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> tuple[torch.device, dict[str, Any]]:
        """The device of the results of a call, and its keyword arguments on the device `meta`."""
        requested = kwargs.get("device")
        if requested is None and kind.device is not None and kind.device < len(args):
            raise NotTraced(f"{func} has its device by position")
        found = {t.device for t in operands if t.dim()}
        if len(found) > 1:
            raise NotTraced(f"{func} has operands on several devices")
        if not found:
            found = {t.device for t in operands}
            if len(found) > 1:
                found = {d for d in found if d.type != "cpu"}
        if not operands and kind.device is None:
            raise NotTraced(f"{func} has no operands")
        if requested is None and operands:
            (device,) = found or (torch.device("cpu"),)
            return device, kwargs
        device = torch.get_default_device() if requested is None else torch.device(requested)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device.type not in ("cpu", "cuda"):
            raise NotTraced(f"{func} makes a tensor on {device}")
        pinned = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        return device, {**pinned, "device": torch.device("meta")}

    # The end

    def finish(
        self, results: Sequence[Any], in_spec: pytree.TreeSpec, out_spec: pytree.TreeSpec
    ) -> Trace:
        values: list[Any] = []
        constants: dict[int, Any] = {}
        reordered = False
        for i, result in enumerate(results):
            if isinstance(result, torch.Tensor):
                if type(result) is not Shadow and id(result) not in self.module_tensors:
                    raise NotTraced("a result is not of the run")
                found = self.operand_shadow(result)
                reordered = reordered or found.memory.order_by_device
                values.append(found.node)
            elif result is None or isinstance(result, (bool, int, float, str)):
                values.append(result)
                constants[i] = result
            else:
                raise NotTraced(f"a result is of type {type(result).__name__}")
        self.graph.create_node("output", "output", (tuple(values),))
        positions = {n: i for i, n in enumerate(self.graph.find_nodes(op="placeholder"))}
        params = {positions[n]: name for n, (name, _) in self.params.items()}
        tensors = {positions[n]: tensor for n, (_, tensor) in self.params.items()}
        state = {self.params[n][0]: self.params[n][1] for n in self.written if n in self.params}
        self.refuse_shared_memory(state)
        return Trace(
            self.graph,
            self.owner,
            params,
            tensors,
            {positions[n]: name for name, n in self.inputs},
            frozenset(n.name for n in self.written),
            state,
            in_spec,
            out_spec,
            constants,
            reordered,
        )

    def refuse_shared_memory(self, state: dict[str, torch.Tensor]) -> None:
        """Refuses writes to parameters that share memory with another tensor of the program."""
        if not state:
            return
        seen: dict[int, int] = {}
        for _, tensor in self.params.values():
            memory = tensor.untyped_storage()._cdata
            seen[memory] = seen.get(memory, 0) + 1
        if any(seen.get(t.untyped_storage()._cdata, 0) > 1 for t in state.values()):
            raise NotTraced("a tensor of the module is written that shares memory with another")


def _metas(recorder: Recorder, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return recorder.operand_shadow(value).meta
    if type(value) in (list, tuple):
        return [_metas(recorder, v) for v in value]
    return value
