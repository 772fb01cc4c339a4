"""The calls that a module makes, recorded in one run on tensors without data.

Takes a module and example inputs, and gives an fx graph of ATen calls with what is to know of its
placeholders: what `graph.write` reads. Composite operators stay whole, in-place operators stay what
they are, and the native engine makes both functional. It is a fraction of the work of
torch.export: nothing is functionalised, checked or copied, and weights are neither copied nor read.

What it is not sure of it refuses (`NotTraced`), and the caller takes torch.export: whatever reads
elements of tensors, draws random numbers, computes gradients, writes statistics of a batch, assigns
attributes of a module, mixes devices, or is not known here. So nothing that depends on data or on
state outside of the program is fixed silently.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kiln import kinds, shapes, sources, versions

#: What is asked of a tensor or its memory beyond operators.
_OUTSIDE = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.data_ptr,
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
        torch.Tensor.__deepcopy__,
        torch.Tensor.__reduce_ex__,
        torch.Tensor.apply_,
        torch.Tensor.map_,
        torch.Tensor.share_memory_,
        torch.Tensor.backward,
        torch.Tensor.requires_grad_,
        torch.Tensor.register_hook,
        torch.Tensor.data.__set__,  # type: ignore[attr-defined]
        torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
        torch.autograd.grad,
        torch.autograd.backward,
    }
)


class NotTraced(Exception):  # noqa: N818
    """Why a module is left to torch.export."""


@dataclass(frozen=True)
class Trace:
    """A recorded run."""

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


class Shadow(torch.Tensor):
    """A tensor of a run that is recorded: a type, strides and a device, but no elements."""

    #: The same on the device `meta`.
    meta: torch.Tensor
    #: What gives it.
    node: fx.Node
    #: The memory that it is in.
    memory: Memory

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotTraced(f"{func} was called outside of the trace")


@dataclass
class Memory:
    """What a tensor and its views share."""

    #: The placeholder that it is the memory of.
    placeholder: fx.Node | None = None
    #: Whether some tensor is a view of it, or a copy, as strides ask for.
    by_strides: bool = False


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
    recorder = _Recorder(module, decomposed)
    given = [
        recorder.take(leaf, name)
        for leaf, name in zip(leaves, _names(module, args, kwargs), strict=True)
    ]
    given_args, given_kwargs = pytree.tree_unflatten(given, in_spec)
    before = _attributes(module)
    try:
        with recorder.running():
            result = module(*given_args, **given_kwargs)
    except NotTraced:
        raise
    except Exception as error:
        if recorder.refused:
            raise NotTraced(recorder.refused) from error
        raise NotTraced(f"{type(error).__name__}: {error}") from error
    finally:
        assigned = _restore(module, before)
    if recorder.refused or assigned:
        raise NotTraced(recorder.refused or f"{assigned} is assigned")
    results, out_spec = pytree.tree_flatten(result)
    return recorder.end(results, in_spec, out_spec)


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


class _Recorder:
    """The state of recording one run."""

    def __init__(self, module: torch.nn.Module, decomposed: Collection[Any]) -> None:
        self.decomposed = decomposed
        self.graph = fx.Graph()
        self.owner = torch.nn.Module()
        #: Why the run is not recorded after all.
        self.refused = ""
        self.paths: dict[int, str] = {}
        #: Tensors of the module by identity: name and tensor.
        self.named: dict[int, tuple[str, torch.Tensor]] = {}
        for path, part in module.named_modules():
            self.paths[id(part)] = path
            for tensors in (part._parameters, part._buffers, vars(part)):
                for name, tensor in tensors.items():
                    if isinstance(tensor, torch.Tensor):
                        full = f"{path}.{name}" if path else name
                        self.named.setdefault(id(tensor), (full, tensor))
        self.shadows: dict[int, Shadow] = {}
        self.inputs: list[tuple[str, fx.Node]] = []
        self.params: dict[fx.Node, tuple[str, torch.Tensor]] = {}
        self.written: dict[fx.Node, None] = {}
        #: The module that runs, as a node's `nn_module_stack`.
        self.stack: list[dict[str, Any]] = [{}]
        self.thread = threading.get_ident()
        #: The place before which the next placeholder goes.
        self.first = self.graph._root

    # Values

    def shadow(
        self, meta: torch.Tensor, device: torch.device, node: fx.Node, memory: Memory
    ) -> Shadow:
        made: Shadow = torch.Tensor._make_wrapper_subclass(  # type: ignore[assignment]
            Shadow,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=device,
        )
        made.meta, made.node, made.memory = meta, node, memory
        return made

    def take(self, leaf: Any, name: str) -> Any:
        """An input of the program in place of an argument."""
        if leaf is not None and not isinstance(leaf, (torch.Tensor, bool, int, float, str)):
            raise NotTraced(f"the input {name} is of type {type(leaf).__name__}")
        node = self.graph.placeholder(name)
        self.inputs.append((name, node))
        if not isinstance(leaf, torch.Tensor):
            node.meta["val"] = leaf
            return leaf
        return self.placed(leaf, node)

    def placed(self, tensor: torch.Tensor, node: fx.Node) -> Shadow:
        """The shadow of a tensor that is there before the run."""
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        if not plain or tensor.layout is not torch.strided or tensor.is_quantized:
            raise NotTraced(f"a tensor of type {type(tensor).__name__}")
        if tensor.is_conj() or tensor.is_neg() or tensor.device.type == "meta":
            raise NotTraced("a tensor that is conjugated lazily, or without data")
        size, stride = tensor.shape, tensor.stride()
        meta = torch.empty_strided(size, stride, dtype=tensor.dtype, device="meta")
        made = self.shadow(meta, tensor.device, node, Memory(node))
        node.meta["val"] = made
        return made

    def known(self, tensor: torch.Tensor) -> Shadow:
        """The shadow of an operand."""
        if type(tensor) is Shadow:
            return tensor
        found = self.shadows.get(id(tensor))
        if found is not None:
            return found
        name, own = self.named.get(id(tensor), ("", None))
        if own is None:
            raise NotTraced("a tensor that is neither an input nor the module's")
        with self.graph.inserting_before(self.first_call()):
            node = self.graph.placeholder("p_" + name.replace(".", "_"))
        self.params[node] = (name, own)
        made = self.shadows[id(tensor)] = self.placed(own, node)
        return made

    def first_call(self) -> fx.Node:
        if self.first is self.graph._root:
            found = [n for n in self.graph.nodes if n.op not in ("placeholder",)]
            if not found:
                return self.graph._root
            self.first = found[0]
        return self.first

    def constant(self, tensor: torch.Tensor) -> Shadow:
        """A tensor that the run has made of Python's numbers."""
        name = f"_constant{len(self.shadows)}_{len(self.graph.nodes)}"
        self.owner.register_buffer(name, tensor)
        node = self.graph.create_node("get_attr", name)
        made = self.shadows[id(tensor)] = self.placed(tensor, node)
        return made

    # Calls

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with (
            torch.no_grad(),
            versions.exporting(),
            self.modules(),
            _Guard(self),
            _Calls(self),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            yield

    @contextlib.contextmanager
    def modules(self) -> Iterator[None]:
        """Meanwhile it is known which module runs."""
        original = torch.nn.Module.__call__
        recorder = self

        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = recorder.paths.get(id(module))
            if path is None or threading.get_ident() != recorder.thread:
                return original(module, *args, **kwargs)
            recorder.stack.append({path: (path, type(module))})
            try:
                return original(module, *args, **kwargs)
            finally:
                recorder.stack.pop()

        torch.nn.Module.__call__ = called  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], mode: Any) -> Any:
        kind = kinds.kind_of(func)
        if kind.refused:
            raise NotTraced(f"{func} {kind.refused}")
        if kind.lifts and type(args[0]) is torch.Tensor and id(args[0]) not in self.named:
            args = (self.constant(args[0]), *args[1:])
            func = torch.ops.aten.lift_fresh_copy.default
            kind = kinds.kind_of(func)
        if kind.identity:
            return args[0]
        if kind.dropout and kinds.is_deterministic(func, args, kwargs):
            return args[0]
        if not kinds.is_deterministic(func, args, kwargs):
            raise NotTraced(f"{func} draws random numbers, or changes statistics of a batch")
        if kind.masks and any(
            isinstance(t, torch.Tensor) and t.dtype in (torch.bool, torch.uint8)
            for t in pytree.tree_leaves(args[1])
        ):
            raise NotTraced(f"{func} has a result whose size depends on data")
        if kind.composite and (kind.aliases or not self.keeps(func, args)):
            with mode:
                result = func.decompose(*args, **kwargs)
            if kind.by_strides and type(args[0]) is Shadow and not args[0].is_contiguous():
                for tensor in (args[0], result):
                    if type(tensor) is Shadow:
                        tensor.memory.by_strides = True
            return result
        return self.record(func, kind, args, kwargs)

    def keeps(self, func: Any, args: Sequence[Any]) -> bool:
        name = func._schema.name
        if name in kinds.ALIASING or not name.startswith("aten::"):
            return False
        if name in kinds.ALIASING_ONE:
            tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
            return len(tensors) != 1 and func not in self.decomposed
        return func not in self.decomposed

    def record(
        self, func: Any, kind: kinds.Kind, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        operands: list[Shadow] = []

        def node_of(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                found = self.known(value)
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
        if kind.numbers:
            return result
        node = self.graph.create_node("call_function", func, node_args, node_kwargs)
        node.meta["stack_trace"] = sources.frames(trace.__code__)
        node.meta["nn_module_stack"] = self.stack[-1]
        for target in kind.writes:
            self.write(func, kinds.argument(func, args, kwargs, target))
        made = self.results(result, node, device, operands, kind)
        node.meta["val"] = made
        return made

    def results(
        self,
        result: Any,
        node: fx.Node,
        device: torch.device,
        operands: Sequence[Shadow],
        kind: kinds.Kind,
    ) -> Any:
        if isinstance(result, torch.Tensor):
            for operand in operands:
                if operand.meta is result:
                    return operand
            memory = Memory(by_strides=kind.of_device)
            if kind.aliases and operands:
                memory = operands[0].memory
            return self.shadow(result, device, node, memory)
        if isinstance(result, (list, tuple)):
            made: list[Any] = []
            for i, item in enumerate(result):
                if not isinstance(item, torch.Tensor):
                    made.append(item)
                    continue
                part = self.graph.create_node("call_function", operator.getitem, (node, i))
                found = self.results(item, part, device, operands, kind)
                part.meta["val"] = found
                made.append(found)
            return type(result)(made) if type(result) in (list, tuple) else tuple(made)
        if result is None:
            return None
        raise NotTraced(f"{node.target} gives a {type(result).__name__}")

    def write(self, func: Any, targets: Any) -> None:
        for target in pytree.tree_leaves(targets):
            if not isinstance(target, torch.Tensor):
                continue
            memory = self.known(target).memory
            if memory.by_strides:
                raise NotTraced(f"{func} writes to what may be a view or a copy")
            if memory.placeholder is not None:
                if memory.placeholder.op != "placeholder":
                    raise NotTraced(f"{func} writes to a constant")
                self.written[memory.placeholder] = None

    def device(
        self,
        func: Any,
        kind: kinds.Kind,
        operands: Sequence[Shadow],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> tuple[torch.device, dict[str, Any]]:
        """The device of a call's results, and its keywords on the device `meta`."""
        asked = kwargs.get("device")
        if asked is None and kind.device is not None and kind.device < len(args):
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
        if asked is None and operands:
            (device,) = found or (torch.device("cpu"),)
            return device, kwargs
        device = torch.get_default_device() if asked is None else torch.device(asked)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device.type not in ("cpu", "cuda"):
            raise NotTraced(f"{func} makes a tensor on {device}")
        pinned = {k: v for k, v in kwargs.items() if k != "pin_memory"}
        return device, {**pinned, "device": torch.device("meta")}

    # The end

    def end(
        self, results: Sequence[Any], in_spec: pytree.TreeSpec, out_spec: pytree.TreeSpec
    ) -> Trace:
        values: list[Any] = []
        constants: dict[int, Any] = {}
        for i, result in enumerate(results):
            if isinstance(result, torch.Tensor):
                if type(result) is not Shadow and id(result) not in self.named:
                    raise NotTraced("a result is not of the run")
                values.append(self.known(result).node)
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
        self.shared(state)
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
        )

    def shared(self, state: dict[str, torch.Tensor]) -> None:
        """Refuses writes to tensors whose memory another tensor of the program has."""
        if not state:
            return
        seen: dict[int, int] = {}
        for _, tensor in self.params.values():
            memory = tensor.untyped_storage()._cdata
            seen[memory] = seen.get(memory, 0) + 1
        if any(seen.get(t.untyped_storage()._cdata, 0) > 1 for t in state.values()):
            raise NotTraced("a tensor of the module is written that shares memory with another")


def _metas(recorder: _Recorder, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return recorder.known(value).meta
    if type(value) in (list, tuple):
        return [_metas(recorder, v) for v in value]
    return value


class _Calls(TorchDispatchMode):
    """Hands every operator that is called to the recorder."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else dynamo is imported, which takes seconds.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self.recorder.call(func, args, kwargs or {}, self)
        except NotTraced as error:
            # The module may catch what it takes for an error of its own.
            self.recorder.refused = self.recorder.refused or str(error)
            raise


class _Guard(TorchFunctionMode):
    """Refuses what reaches tensors past operators, and transforms of torch.func but vmap."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OUTSIDE or _is_transformed():
            name = getattr(func, "__name__", func)
            self.recorder.refused = self.recorder.refused or f"{name} is not recorded"
            raise NotTraced(self.recorder.refused)
        return func(*args, **(kwargs or {}))


def _is_transformed() -> bool:
    functorch = torch._C._functorch
    if functorch.maybe_current_level() is None:
        return False
    top = functorch.peek_interpreter_stack()
    return top is not None and top.key() != functorch.TransformType.Vmap


# Attributes of the module


def _attributes(module: torch.nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The attributes, parameters and buffers of all its modules, with copies of what they hold."""
    found = []
    for part in module.modules():
        own = vars(part)
        for values in (own, part._parameters, part._buffers):
            found.append((values, dict(values)))
        for value in own.values():
            if type(value) is dict and value is not part._parameters and value is not part._buffers:
                found.append((value, dict(value)))
    return found


def _restore(module: torch.nn.Module, before: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Puts attributes back; gives the name of one that was another."""
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
