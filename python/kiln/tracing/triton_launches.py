"""Launches of Triton's kernels, on machines with a GPU and without one.

Dynamo makes an operator of its own of a launch, if torch believes in Triton; AOT autograd would ask
Triton's compiler what the kernel writes. Here a launch of the kernel as Kiln's takes its place
before that. Where Python calls kernels itself while a module is traced, their launches are Kiln's
for that time.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from kiln import pieces
from kiln.kernels import in_dynamo, traced
from kiln.kernels.porting import port
from kiln.kernels.tuning import Autotuner


def replaced(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with Kiln's launches in place of Triton's."""
    operator = getattr(torch.ops.higher_order, "triton_kernel_wrapper_mutation", None)
    nodes = [n for n in gm.graph.nodes if n.target is operator] if operator is not None else []
    if not nodes:
        return gm
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    for node in nodes:
        call = node.kwargs
        constants = kernel_side_table.get_constant_args(call["constant_args_idx"])
        kernel = port(kernel_side_table.get_kernel(call["kernel_idx"]))
        given = {name: in_dynamo.encoded(value) for name, value in constants.items()}
        given.update(call["kwargs"])
        for name, metadata in call["tma_descriptor_metadata"].items():
            kind, described = metadata
            if kind == "stable":
                given[name] = {"base": given[name], "block": list(described[0])}
        why = torch.cuda.is_available() and in_dynamo.refused(kernel.number, _examples(given))
        if why:
            # Triton runs it, in place.
            pieces.log.warning("a kernel of Triton is not Kiln's: %s", why)
            continue
        configs = kernel.configs if isinstance(kernel, Autotuner) else []
        extras = [_encoded(config.all_kwargs()) for config in configs] or [{}]
        grids = [[*grid, 1, 1][:3] for grid in call["grid"]]
        with gm.graph.inserting_before(node):
            launch = gm.graph.call_function(
                in_dynamo.launch_by_number, (kernel.number, given, extras, grids)
            )
        launch.meta = dict(node.meta)
        node.replace_all_uses_with(launch)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _examples(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments with what dynamo knows of them."""
    found: dict[str, Any] = fx.node.map_arg(given, lambda n: n.meta.get("example_value"))
    return found


def _encoded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: in_dynamo.encoded(value) for name, value in values.items()}


@functools.cache
def believe(is_asked: Callable[[], bool]) -> None:
    """Lets dynamo put launches into its graph without a GPU too, where `is_asked` says so."""
    from torch.utils import _triton

    original = _triton.has_triton

    @functools.wraps(original)
    def has_triton() -> bool:
        return bool(original()) or ("triton.runtime.jit" in sys.modules and is_asked())

    _triton.has_triton = has_triton


@contextlib.contextmanager
def ported() -> Iterator[None]:
    """Context manager in which traced launches of Triton's kernels are Kiln's."""
    jit = sys.modules.get("triton.runtime.jit")
    interface = getattr(jit, "KernelInterface", None)
    if interface is None:
        yield
        return
    original = interface.__getitem__

    def launcher(kernel: Any, grid: Any) -> Any:
        if traced.is_tracing():
            return traced.launcher(port(kernel), grid)
        return original(kernel, grid)

    interface.__getitem__ = launcher
    try:
        yield
    finally:
        interface.__getitem__ = original
