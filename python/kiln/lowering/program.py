"""The program that the native engine reads: JSON text, and where the tensors of its parameters are.

The text is one object with these keys:

`name`      of the program.
`symbols`   by name `{"min", "max", "hint"}`: the range of a size, and its value at tracing. `max`
            and `hint` may be null; a number without a lower end has the least i64 as `min`.
`guards`    conditions on sizes as Python text; empty where the caller checks its own.
`values`    `{"dtype", "shape"}`, and `"name"` for parameters. A value's id is its position. A
            dimension is a number, or an expression over the symbols as `sympy.srepr` writes it.
`inputs`    `{"name", "value": id}` for a tensor, `{"name", "size": expression}` for a size, and
            `{"name", "constant": argument}` for what was fixed at tracing.
`params`    ids of the values whose tensors are handed over beside the text, in this order.
`calls`     in order: `{"name", "overload", "args", "outs", "source", "module"}`. `args` has every
            argument by its position in the operator's schema. `source` has the frames of the user's
            source as `file:line`, the innermost first, one a line. `"vouched": true` says that the
            operator only computes its results from its operands, and that this process runs it
            where it is not compiled, whatever operator it is.
`outputs`   `{"value": id}`, `{"size": expression}`, `{"constant": argument}` or `"none"`.
`writes`    `{"target", "value"}`: after a run the input or parameter `target` holds `value`.

An argument is `"none"` or an object with one key: `value`, `int`, `float` (a number, or "inf",
"-inf", "nan"), `complex` (two parts), `bool`, `str`, `device`, `ints`, `list`, `size` (an
expression over symbols) or `opaque` (what cannot be written down). A dtype is the number that ATen
gives it. Complex inputs, parameters and outputs are handed over as `complex_tensors` has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

Json = Any


@dataclass(frozen=True)
class Program:
    """A graph as text, and where its parameters' tensors are."""

    text: str
    #: For each parameter, in order: the position of its placeholder, or a constant of the graph.
    params: list[int | torch.Tensor]
    #: Positions of the placeholders that are inputs of the program, in order.
    inputs: list[int]
    #: Where its tensors are, as `cpu` or `cuda:0`.
    device: str
    #: Number of operator calls.
    calls: int
    #: The symbols that sizes depend on: `min`, `max` and `hint` of each.
    symbols: dict[str, Json] = field(default_factory=dict)
    #: The call that gives each value, by the value's id.
    results: dict[int, fx.Node] = field(default_factory=dict)
    #: Whether an input is complex, and the positions of the outputs that are.
    has_complex_inputs: bool = False
    complex_outputs: list[int] = field(default_factory=list)
