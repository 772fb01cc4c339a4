"""What a kernel is run on, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

SEED = 5


def nothing() -> None:
    """There is nothing to restore."""


@dataclass(frozen=True)
class Case:
    #: Launches the kernel on the case's tensors.
    launch: Callable[[], object]
    outputs: list[torch.Tensor]
    #: The same in PyTorch, in f32 or f64.
    reference: Callable[[], list[torch.Tensor]]
    #: How far an element may be off, relative to the largest of its output.
    tolerance: float
    #: Restores what a launch updates.
    reset: Callable[[], object] = nothing

    def error(self) -> float:
        """Runs the kernel; the largest difference, relative to the largest element of the output."""
        self.reset()
        wanted = [w.double() for w in self.reference()]
        self.launch()
        found = [(o.double() - w).abs().max() / w.abs().max() for o, w in zip(self.outputs, wanted, strict=True)]
        return torch.stack(found).max().item()

    def right(self, error: float) -> bool:
        # NaN is no agreement.
        return error <= self.tolerance


class Inputs:
    """Makes tensors on a device, the same ones each time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.numbers = torch.Generator(device).manual_seed(SEED)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, generator=self.numbers).to(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """From `low` to `high`, without it."""
        return torch.randint(low, high, shape, device=self.device, dtype=dtype, generator=self.numbers)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*shape, device=self.device, dtype=dtype)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(*shape, device=self.device, dtype=dtype)


def ceiling(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
