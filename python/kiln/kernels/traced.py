"""Launches while a model is traced: calls of the operator `kiln::launch`, and writes of its results.

Which arguments are written follows from the kernel's program, which is compiled for the types of
the arguments, without a device. The configuration of a tuned kernel is the one that was measured
for such arguments, or the first that compiles. Nothing is launched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kiln.kernels.choices import Choice, choices, order, sizes
from kiln.kernels.descriptor import TensorDescriptor
from kiln.kernels.errors import KernelError, KernelUnsupported, OutOfResources
from kiln.kernels.launch_op import launch as launch_op
from kiln.kernels.memories import Memories, Place
from kiln.kernels.mock import TypedTensor
from kiln.language.core import Array


def is_tracing() -> bool:
    """Whether operators are traced, and tensors may be without elements."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_run_for_types() -> bool:
    """Whether operators are called for the types of their results alone, and nobody records them."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    kinds = {type(mode).__name__ for mode in _get_current_dispatch_mode_stack()}
    return kinds == {"FakeTensorMode"} and get_proxy_mode() is None


def compiles(kernel: Any, named: dict[str, Any]) -> str:
    """Why no choice for these arguments compiles; empty if one does."""
    why = ""
    for choice in choices(kernel, named):
        try:
            _program(choice)
        except (KernelUnsupported, KernelError) as error:
            why = why or str(error)
        else:
            return ""
    return why


def launcher(kernel: Any, grid: Any) -> Callable[..., None]:
    """What `kernel[grid]` is while a model is traced."""
    return functools.partial(_launch, kernel, grid)


def _launch(kernel: Any, grid: Any, *args: Any, warmup: bool = False, **kwargs: Any) -> None:
    if warmup:
        return
    if len(args) > len(kernel.arg_names):
        raise TypeError(f"{kernel.__name__}() takes {len(kernel.arg_names)} arguments, but {len(args)} were given")
    named = dict(zip(kernel.arg_names, args, strict=False))
    twice = named.keys() & kwargs.keys()
    if twice:
        raise TypeError(f"{kernel.__name__}() has two values for {', '.join(sorted(twice))}")
    named.update(kwargs)
    found = choices(kernel, named)
    launch_one(kernel, named, found, lambda choice: sizes(grid, choice))


def launch_one(
    kernel: Any, named: dict[str, Any], found: list[Choice], grid: Callable[[Choice], list[Any]]
) -> None:
    """Traces the first choice that compiles."""
    failed: list[Exception] = []
    for position in order(kernel, named, found):
        choice = found[position]
        try:
            program = _program(choice)
        except (KernelUnsupported, KernelError, OutOfResources) as error:
            failed.append(error)
            continue
        for config in choice.configs:
            if config.pre_hook is not None:
                config.pre_hook({**choice.named})
        _call(choice, program, grid(choice))
        return
    raise failed[0]


def written(kernel: Any, named: dict[str, Any]) -> list[str]:
    """Names of the parameters that a launch with these arguments writes."""
    choice = choices(kernel, named)[0]
    found = [first for (first, *_), kind in _program(choice).parameters if kind in ("written", "updated")]
    return [choice.kernel.arg_names[i] for i in found]


def _values(choice: Choice) -> list[Any]:
    """The arguments in the order of the kernel's parameters."""
    known = {**choice.kernel.defaults, **choice.named}
    missing = [name for name in choice.kernel.arg_names if name not in known]
    if missing:
        raise TypeError(f"{choice.kernel.__name__}() lacks the argument `{missing[0]}`")
    return [known[name] for name in choice.kernel.arg_names]


def _program(choice: Choice) -> Any:
    """The kernel's program for arguments of these types."""
    kernel, values = choice.kernel, _values(choice)
    types = tuple(_typed(value) for value in values)
    names = {*kernel.arg_names}
    options = {name: value for name, value in choice.named.items() if name not in names}
    return kernel._compiler().node_program(types, options, _device(values))


def _device(values: list[Any]) -> str:
    found = {t.device.type for t in torch.utils._pytree.tree_leaves(values) if isinstance(t, torch.Tensor)}
    return "cuda" if "cuda" in found else "cpu"


def _typed(value: Any) -> Any:
    """What stands for an argument where only its type matters."""
    if isinstance(value, torch.Tensor):
        return TypedTensor(value.dtype, _hints(value.shape), _hints(value.stride()))
    if isinstance(value, Array):
        return Array(_typed(value.tensor))
    if type(value).__name__ == "TensorDescriptor":
        shape, strides = _hints(value.shape), _hints(value.strides)
        return TensorDescriptor(_typed(value.base), shape, strides, value.block_shape, value.padding)
    if isinstance(value, tuple):
        parts = [_typed(v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return _hint(value)


def _hints(numbers: Any) -> list[int]:
    return [_hint(n) for n in numbers]


def _hint(number: Any) -> Any:
    """A number of the type of one that follows from sizes."""
    if isinstance(number, torch.SymInt):
        return int(number.node.hint) if number.node.has_hint() else 2
    if isinstance(number, torch.SymFloat):
        return float(number)
    return bool(number) if isinstance(number, torch.SymBool) else number


def _at(value: Any, path: list[int]) -> Any:
    """The part of an argument that a parameter of the program is."""
    if not path:
        return value
    first, *rest = path
    if isinstance(value, tuple):
        return _at(value[first], rest)
    if type(value).__name__ == "TensorDescriptor":
        return (value.base, value.shape, value.strides)[first] if not rest else (
            (value.base, value.shape, value.strides)[first][rest[0]]
        )
    tensor = value.tensor if isinstance(value, Array) else value
    return tensor if first == 0 else (tensor.shape if first == 1 else tensor.stride())[rest[0]]


def _call(choice: Choice, program: Any, grid: list[Any]) -> None:
    """Calls the operator, and writes its results."""
    values = _values(choice)
    memories = Memories(choice.kernel.__name__)
    places: list[Place] = []
    written: set[int] = set()
    updated: set[int] = set()
    integers: list[Any] = []
    floats: list[float] = []
    for (first, *rest), kind in program.parameters:
        value = _at(values[first], rest)
        if kind == "integer":
            integers.append(value if isinstance(value, torch.SymInt) else int(value))
        elif kind == "float":
            floats.append(float(value))
        else:
            places.append(memories.place(value))
            if kind != "read":
                written.add(places[-1].memory)
            if kind == "updated":
                updated.add(places[-1].memory)
    if not written:
        return
    memories.check(sorted(written))
    name, text, pointers, integer_names, float_names = program.placed(
        [(place.memory, place.is_shifted) for place in places]
    )
    starts = [place.start for place in places if place.is_shifted]
    names = ",".join([*pointers, *integer_names, *float_names])
    with torch.no_grad():
        results = launch_op(
            name, text, names, memories.tensors, sorted(written), sorted(updated), [*integers, *starts], floats, grid
        )
        for memory, result in zip(sorted(written), results, strict=True):
            memories.tensors[memory].copy_(result)
