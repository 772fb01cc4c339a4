"""Measures a configuration on the tensors of a launch, which are then as they were."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable

from kiln.testing.clock import Spread, timed


@dataclass(frozen=True)
class Effort:
    """Milliseconds of runs before the clock starts, and of those that count."""

    warmup: float
    rep: float


@dataclass(frozen=True)
class Hooks:
    """What is called around a run, with the arguments by name; `after` also with what was raised."""

    before: Callable[[dict[str, Any]], None]
    after: Callable[..., None]


class Saved:
    """Contents of tensors that runs change, to start each run from the same state."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors
        self.copies = {name: tensor.clone() for name, tensor in tensors.items()}

    def restore(self) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(self.copies[name])


def tensor_of(value: Any) -> Any | None:
    """The tensor of an argument: itself, or what a descriptor describes."""
    base = getattr(value, "base", value)
    return base if hasattr(base, "clone") and hasattr(base, "copy_") else None


def measured(
    run: Callable[[], Any], named: dict[str, Any], saved: Saved, hooks: Hooks, effort: Effort, device: Any
) -> list[float]:
    """Median, fifth and four fifths of a run's milliseconds. Tensors are restored and hooks called
    outside of what is measured."""
    in_flight = False

    def before() -> None:
        nonlocal in_flight
        if in_flight:
            hooks.after(named, exception=None)
        saved.restore()
        hooks.before(named)
        in_flight = True

    try:
        spread = Spread.of(timed(run, effort.warmup, effort.rep, before, device))
    except Exception as e:
        if in_flight:
            hooks.after(named, exception=e)
        raise
    hooks.after(named, exception=None)
    return [spread.median, spread.low, spread.high]


def on_gpu(named: dict[str, Any]) -> bool:
    """Whether the tensors of a launch are on a GPU."""
    return device_of(named) is not None


def device_of(named: dict[str, Any]) -> int | None:
    """The number of the GPU that a launch's tensors are on; None for the host."""
    for value in named.values():
        device: Any = getattr(getattr(value, "base", value), "device", None)
        if getattr(device, "type", "") == "cuda":
            return int(device.index or 0)
    return None


def is_capturing(named: dict[str, Any]) -> bool:
    """Whether launches are being recorded instead of run, so that nothing can be measured."""
    if not on_gpu(named):
        return False
    import torch

    with suppress(RuntimeError):
        return bool(torch.cuda.is_current_stream_capturing())
    return False
