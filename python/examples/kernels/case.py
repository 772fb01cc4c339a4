"""What examples declare beside their kernels: cases that tests and benchmarks run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

#: Where benchmarks run if they are not told.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Case:
    """A function of an example, with what it is compared with.

    A result may differ from the reference by half a unit in the last place of its type, and by
    `roundings` units of the type of intermediates, relative to the largest result.
    """

    #: Launches the kernels.
    run: Callable[..., Any]
    #: The same in PyTorch. It gets the inputs with floating tensors in f64.
    reference: Callable[..., Any]
    #: Arguments for both on a device, for sizes by name.
    inputs: Callable[..., tuple[Any, ...]]
    #: Sizes that take milliseconds on a CPU: odd ones, masked edges, empty tensors.
    small: list[dict[str, Any]]
    #: A size that is worth a GPU.
    full: dict[str, Any]
    #: How many roundings of intermediates an element of the result sees: sums count by their length's
    #: square root or worse, elementary functions as two.
    roundings: float = 8
    #: The type of intermediates; None: the type of the first tensor.
    working: torch.dtype | None = torch.float32
    #: Whether f32 operands go through tensor cores, which take 10 bits of them.
    products: bool = False
    #: A size for the interpreter's checks; None: the last of the small ones.
    checked: dict[str, Any] | None = None
    #: Why the interpreter cannot check the case, if it cannot.
    unchecked: str = ""
