"""Launches in functions that dynamo traces.

Dynamo traces `kernel[grid](...)` as it traces user code: the grid, heuristics and configurations
are computed there, and the launch is one call of `launch_by_number` in its graph. Who runs the
graph on tensors without elements, as AOT autograd, gets the operator `kiln::launch` instead.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from kiln._native import KilnError

_NUMBERS = itertools.count()

#: Kernels by their numbers.
_KERNELS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

#: How values that a graph cannot hold begin as text.
_DTYPE, _FUNCTION = "kiln.dtype:", "kiln.function:"


def register(kernel: Any) -> int:
    """The number of a new kernel."""
    number = next(_NUMBERS)
    _KERNELS[number] = kernel
    if "torch._dynamo" in sys.modules:
        install()
    return number


@functools.cache
def install() -> None:
    """Lets dynamo put launches into its graphs."""
    from torch import _dynamo

    _dynamo.allow_in_graph(launch_by_number)


def launcher(kernel: Any, grid: Any) -> Callable[..., None]:
    """What `kernel[grid]` is while dynamo traces."""
    return functools.partial(_launch, kernel, grid)


def _launch(kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> None:
    from kiln.kernels.choices import choices, sizes

    named = dict(zip(kernel.arg_names, args))  # noqa: B905
    named.update(kwargs)
    grids, extras = [], []
    for choice in choices(kernel, named):
        grids.append(sizes(grid, choice))
        extra = {}
        for name, value in choice.named.items():
            if name not in named:
                extra[name] = encoded(value)
        extras.append(extra)
    given = {}
    for name, value in named.items():
        given[name] = encoded(value)
    launch_by_number(kernel.number, given, extras, grids)


def encoded(value: Any) -> Any:
    """A value as a graph can hold it."""
    if value is None or isinstance(value, (bool, int, float, str, torch.Tensor)):
        return value
    from kiln.language.core import constexpr, dtype

    if isinstance(value, constexpr):
        return encoded(value.value)
    if isinstance(value, dtype):
        return _DTYPE + value.name
    if type(value).__name__ == "dtype" and hasattr(value, "primitive_bitwidth"):
        return _DTYPE + value.name
    if type(value).__name__ == "TensorDescriptor":
        shape, strides = list(value.shape), list(value.strides)
        block = list(value.block_shape)
        return {"base": value.base, "shape": shape, "strides": strides, "block": block, "padding": value.padding}
    if type(value).__name__ == "Kernel":
        return f"{_FUNCTION}{value.number}"
    return value


def _decoded(value: Any) -> Any:
    from kiln.language.core import dtype

    if isinstance(value, str) and value.startswith(_DTYPE):
        return dtype(value.removeprefix(_DTYPE))
    if isinstance(value, str) and value.startswith(_FUNCTION):
        return _KERNELS[int(value.removeprefix(_FUNCTION))]
    if isinstance(value, dict):
        return _descriptor(**value)
    return value


def _descriptor(
    base: Any, block: list[int], shape: Any = None, strides: Any = None, padding: str = "zero"
) -> Any:
    from kiln.kernels.descriptor import TensorDescriptor

    shape = base.shape if shape is None else shape
    strides = base.stride() if strides is None else strides
    return TensorDescriptor(base, list(shape), list(strides), block, padding)


def launch_by_number(
    number: int, given: dict[str, Any], extras: list[dict[str, Any]], grids: list[list[Any]]
) -> None:
    """Launches a kernel, or traces its launch.

    `given`: arguments and options by name. For each configuration `extras` has what it and the
    heuristics add, and `grids` its grid.
    """
    from kiln.kernels import traced
    from kiln.kernels.choices import Choice, choices

    kernel = _KERNELS[number]
    named = {name: _decoded(value) for name, value in given.items()}
    if not traced.is_tracing():
        # Configurations are measured here, so that the grid is again a function of them.
        position = {_key(extra): grid for extra, grid in zip(extras, grids, strict=True)}
        only = grids[0] if len(grids) == 1 else None
        kernel[tuple(only) if only is not None else functools.partial(_grid_of, extras, position)](**named)
        return
    found = []
    for extra, choice in zip(extras, choices(kernel, named), strict=True):
        added = {name: _decoded(value) for name, value in extra.items()}
        found.append(Choice(choice.kernel, {**named, **added}, choice.configs))
    places = {id(choice): grid for choice, grid in zip(found, grids, strict=True)}
    try:
        traced.launch_one(kernel, named, found, lambda choice: places[id(choice)])
    except KilnError:
        # Dynamo would wrap the error, and takes no result of a launch. AOT autograd meets it again.
        if not traced.is_run_for_types():
            raise


def refused(number: int, given: dict[str, Any]) -> str:
    """Why Kiln does not compile a launch with these arguments; empty if it does."""
    from kiln.kernels import traced

    return traced.compiles(_KERNELS[number], {name: _decoded(value) for name, value in given.items()})


def _key(extra: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, repr(value)) for name, value in extra.items()))


def _grid_of(extras: list[dict[str, Any]], grids: dict[Any, list[Any]], named: dict[str, Any]) -> tuple[Any, ...]:
    """The grid for the configuration whose values a launch has."""
    for extra in extras:
        known = {name: value for name, value in extra.items() if name in named}
        if all(_decoded(value) == named[name] for name, value in known.items()):
            return tuple(grids[_key(extra)])
    raise KeyError("a launch has values that no configuration has; please report it")
