"""Graphs of dynamo that hold transforms of `torch.func`, and the state that these set as they run.

Dynamo writes `grad`, `vmap`, `jvp` and nests of them as calls that enter a transform and leave it.
A graph that takes derivatives computes them by autograd while AOT traces it, so each of its
operators needs a derivative then. And a graph that fails half-way has entered what it does not
leave: modes of autograd, of forward-mode differentiation, of autocast, and transforms, with which
nothing runs afterwards in that process. `undone` leaves them in its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from kiln import versions

#: What the names of calls that take derivatives hold.
_DERIVATIVES = ("grad", "dual", "jvp", "backward")
#: Settings of autograd that have such a name.
_SETTINGS = ("grad_enabled", "zero_grad")
#: What the names of calls hold that enter a mode or a transform, and leave it later.
_ENTERED = ("nesting", "dual_level", "_enter_autocast", "grad_enabled")

#: Devices whose autocast mode is looked at.
_AUTOCAST = ("cpu", "cuda")


def differentiates(gm: fx.GraphModule) -> bool:
    """Whether a graph takes derivatives itself.

    >>> from torch.fx import symbolic_trace
    >>> differentiates(symbolic_trace(torch.nn.ReLU()))
    False
    """
    return any(
        any(part in name for part in _DERIVATIVES) and not any(s in name for s in _SETTINGS)
        for name in _called(gm)
    )


def eager(gm: fx.GraphModule) -> Callable[..., Any]:
    """Runs a graph by PyTorch. If it fails, modes and transforms that it entered are left."""
    if not any(any(part in name for part in _ENTERED) for name in _called(gm)):
        return gm.forward

    def run(*args: Any) -> Any:
        with undone():
            return gm.forward(*args)

    return run


def _called(gm: fx.GraphModule) -> Iterator[str]:
    """The names of the functions that a graph and its subgraphs call."""
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function":
                    yield getattr(node.target, "__name__", str(node.target))
                elif node.op == "call_method":
                    yield str(node.target)


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Context manager that restores modes and leaves transforms if its body fails.

    >>> with contextlib.suppress(ValueError), undone():
    ...     _ = torch._C._set_grad_enabled(False)
    ...     raise ValueError
    >>> torch.is_grad_enabled()
    True
    """
    depth, forward_mode = versions.transform_depth(), versions.is_forward_mode()
    modes = _Modes()
    try:
        yield
    except BaseException:
        # A level of forward mode before the transform that entered it: its end looks at tangents.
        if versions.is_forward_mode() and not forward_mode:
            versions.leave_forward_mode()
        versions.leave_transforms(depth)
        modes.restore()
        raise


class _Modes:
    """The modes of this thread that a graph may set, to restore them."""

    def __init__(self) -> None:
        self.gradients = torch.is_grad_enabled()
        self.forward_gradients = torch._C._is_fwd_grad_enabled()
        self.settings = versions.autograd_settings()
        self.autocast = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in _AUTOCAST
        ]
        self.autocast_cache = torch.is_autocast_cache_enabled()
        self.autocast_depth = _autocast_depth()

    def restore(self) -> None:
        torch._C._set_grad_enabled(self.gradients)
        torch._C._set_fwd_grad_enabled(self.forward_gradients)
        versions.set_autograd_settings(self.settings)
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.autocast_cache)
        while _autocast_depth() > self.autocast_depth:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()


def _autocast_depth() -> int:
    """How many autocast contexts this thread is in."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())
