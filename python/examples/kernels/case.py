"""What examples declare beside their kernels: cases that tests and benchmarks run."""

from __future__ import annotations

from collections.abc import Iterator
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
    #: Whether its kernels take arrays (`kl.Array`), which Triton does not have.
    arrays: bool = False
    #: Why the interpreter cannot check the case, if it cannot.
    unchecked: str = ""

    def tolerance(self, inputs: Any, device: str) -> float:
        """How far intermediates may be off, relative to the largest result."""
        first = next(tensors(inputs)).dtype
        allowed = self.roundings * torch.finfo(self.working or first).eps
        if self.products and device == "cuda" and first == torch.float32:
            # Both factors of each product have 10 bits; errors of many products cancel.
            allowed = max(allowed, 4 * 2.0**-10)
        return allowed

    def worst_error(self, device: str, size: dict[str, Any]) -> float:
        """The largest error of a run, as a multiple of what is allowed: more than 1 is wrong."""
        torch.manual_seed(3)
        inputs = self.inputs(device, **size)
        results = list(tensors(self.run(*inputs)))
        wanted = list(tensors(self.reference(*exact(inputs))))
        assert results and [r.shape for r in results] == [w.shape for w in wanted], "other shapes"
        tolerance = self.tolerance(inputs, device)
        return max(_error(result, want.double(), tolerance) for result, want in zip(results, wanted, strict=True))


def exact(value: Any) -> Any:
    """The value, with floating tensors in f64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(exact(v) for v in value)
    return value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)


def _error(result: torch.Tensor, want: torch.Tensor, tolerance: float) -> float:
    if want.numel() == 0:
        return 0.0
    rounding = torch.finfo(result.dtype).eps / 2
    allowed = rounding * want.abs() + tolerance * want.abs().max()
    error = (result.double() - want).abs()
    # NaN is no agreement: it compares as more than anything.
    ratio = torch.where(error == 0, 0.0, error / allowed).nan_to_num(nan=torch.inf)
    return ratio.max().item()
