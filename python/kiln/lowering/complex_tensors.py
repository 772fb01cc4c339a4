"""Complex inputs and outputs of an engine.

An engine has a real tensor with the real and imaginary part along one more axis, which is the
memory of a complex tensor. The functions here convert between both without copies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from kiln._native import Engine, UnsupportedError


def parts(value: Any) -> Any:
    """A complex tensor as a view of its real and imaginary parts; other values as they are.

    >>> parts(torch.tensor([1 + 2j])), parts(3)
    (tensor([[1., 2.]]), 3)
    """
    if isinstance(value, torch.Tensor) and value.is_complex():
        return torch.view_as_real(value.resolve_conj())
    return value


class Paired:
    """An engine that takes and gives complex tensors, where the native one has pairs of parts."""

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


def wrapped(engine: Engine, has_complex_inputs: bool, complex_outputs: Collection[int]) -> Any:
    """The engine, wrapped if its program has complex inputs or outputs."""
    return Paired(engine, complex_outputs) if has_complex_inputs or complex_outputs else engine
