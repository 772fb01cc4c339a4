"""The operator `kiln::launch`: a kernel's launch in a graph of PyTorch.

It has the kernel's program as text, so that whoever reads the graph needs neither Python nor the
kernel. It takes memories as dense tensors, and gives those that the program writes as new ones.
PyTorch runs it where Kiln does not compile the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kiln import _native

#: `parameters`: names of the program's parameters, separated by commas: tensors, integers, floats.
#: `written`: positions of the tensors that the program writes; `updated`: of those whose elements
#: it combines with what is there.
SCHEMA = (
    "launch(str name, str program, str parameters, Tensor[] tensors, int[] written, int[] updated, "
    "SymInt[] integers, float[] floats, SymInt[] grid) -> Tensor[]"
)

_LIBRARY = torch.library.Library("kiln", "DEF")  # noqa: TOR901
_LIBRARY.define(SCHEMA)


def _run(
    name: str,
    program: str,
    parameters: str,
    tensors: Sequence[torch.Tensor],
    written: Sequence[int],
    updated: Sequence[int],
    integers: Sequence[int],
    floats: Sequence[float],
    grid: Sequence[int],
) -> list[torch.Tensor]:
    """Launches the program on copies of what it writes."""
    memories = [
        t.clone(memory_format=torch.contiguous_format) if i in written else t.contiguous()
        for i, t in enumerate(tensors)
    ]
    arguments = [*memories, *integers, *floats]
    named = dict(zip(parameters.split(","), arguments, strict=True))
    _native.launch_program(program, tuple(grid), named)
    return [memories[i] for i in written]


def _types(
    name: str,
    program: str,
    parameters: str,
    tensors: Sequence[torch.Tensor],
    written: Sequence[int],
    *numbers: Any,
) -> list[torch.Tensor]:
    return [tensors[i].new_empty(tensors[i].shape) for i in written]


_LIBRARY.impl("launch", _run, "CompositeExplicitAutograd")
torch.library.register_fake("kiln::launch", _types, lib=_LIBRARY)

launch: Any = torch.ops.kiln.launch.default
