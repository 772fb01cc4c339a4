"""Complex tensors at the edges of a program.

An engine computes with real and imaginary parts: it takes and gives complex tensors as real ones
with the two parts along one more axis, which is how they lie in memory. What is here goes between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from kiln._native import Engine, UnsupportedError


def parts(value: Any) -> Any:
    """A complex tensor as its parts, in the same memory; anything else as it is.

    >>> parts(torch.tensor([1 + 2j])), parts(3)
    (tensor([[1., 2.]]), 3)
    """
    if isinstance(value, torch.Tensor) and value.is_complex():
        return torch.view_as_real(value.resolve_conj())
    return value


class Paired:
    """An engine whose inputs or outputs are complex; it has all that an engine has."""

    def __init__(self, engine: Engine, complex_outputs: Collection[int]) -> None:
        self._engine = engine
        self._complex_outputs = complex_outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        """As `Engine.run`, with complex tensors."""
        return self._whole(self._engine.run([parts(value) for value in inputs]))

    def steps(self, count: int, inputs: Sequence[Any]) -> list[Any] | None:
        """As `Engine.steps`, with complex tensors."""
        return self._whole(self._engine.steps(count, [parts(value) for value in inputs]))

    def save(self, *_: Any) -> None:
        """Fails: nothing in an artifact says which of its tensors are complex."""
        raise UnsupportedError(
            "the program takes or gives complex tensors, which no artifact holds: give it "
            "torch.view_as_real of them, or save it with torch.export.save"
        )

    def _whole(self, outputs: list[Any] | None) -> list[Any] | None:
        for i in self._complex_outputs if outputs is not None else ():
            outputs[i] = torch.view_as_complex(outputs[i])  # type: ignore[index]
        return outputs


def wrapped(engine: Engine, takes_complex: bool, complex_outputs: Collection[int]) -> Any:
    """The engine, which takes and gives complex tensors if its program does."""
    return Paired(engine, complex_outputs) if takes_complex or complex_outputs else engine
