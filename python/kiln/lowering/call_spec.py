"""How a compiled program is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kiln import versions

_SYMBOL = re.compile(r"^Symbol\('([^']*)'")


@dataclass(frozen=True)
class CallSpec:
    """How a program is called: nesting, names and sizes of its inputs and outputs."""

    name: str
    device: str
    #: Nesting of `(args, kwargs)` and of the result; None where only flat inputs are known.
    in_spec: pytree.TreeSpec | None = None
    out_spec: pytree.TreeSpec | None = None
    #: Names of the symbols that sizes depend on.
    symbols: list[str] = field(default_factory=list)
    #: For each input the expressions of its dimensions; None for what is no tensor.
    shapes: list[list[int | str] | None] = field(default_factory=list)
    #: Outputs that are fixed: position in the flat outputs, and value.
    constants: dict[int, Any] = field(default_factory=dict)
    #: Buffers that the program writes to; None where only the engine knows.
    state: dict[str, torch.Tensor] | None = field(default_factory=dict)
    #: For outputs whose dimensions have another order in memory: position in the flat outputs, and
    #: the order that makes the module's result of the engine's.
    orders: dict[int, list[int]] = field(default_factory=dict)
    #: How the module is called; None for a program that came without it.
    signature: inspect.Signature | None = None
    #: The example inputs, `(args, kwargs)`, if there are any.
    examples: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    #: Gives what it was compiled from, as a callable of PyTorch.
    original: Callable[[], Callable[..., Any]] | None = None
    #: Kinds of the flat inputs for whose numbers the program takes tensors, by their positions.
    numbers: dict[int, type] = field(default_factory=dict)
    #: The names of the flat inputs.
    inputs: list[str] = field(default_factory=list)

    def sizes_of(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The value of each symbol, from the sizes of these flat inputs."""
        sizes = {}
        for shape, leaf in zip(self.shapes, leaves, strict=False):
            if shape is None or not isinstance(leaf, torch.Tensor):
                continue
            for dimension, size in zip(shape, leaf.shape, strict=False):
                # Other expressions are computed from these.
                symbol = _SYMBOL.match(str(dimension))
                if symbol is not None:
                    sizes[symbol.group(1)] = int(size)
        return sizes


def has_flat_arguments(spec: pytree.TreeSpec, n: int) -> bool:
    """Whether a call has `n` positional arguments, each of them one leaf, and no others.

    >>> flat, nested = pytree.tree_structure(((1, 2), {})), pytree.tree_structure((([1],), {}))
    >>> has_flat_arguments(flat, 2), has_flat_arguments(nested, 1)
    (True, False)
    """
    positional, keywords = versions.children(spec)
    flat = all(child.is_leaf() for child in versions.children(positional))
    return flat and positional.num_children == n and keywords.num_children == 0
