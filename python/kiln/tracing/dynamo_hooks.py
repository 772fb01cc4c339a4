"""What dynamo traces of a function before it hands graphs to Kiln, and what it leaves out.

Dynamo compiles nothing of a function whose loop it cannot trace through, and calls no backend, so
nobody says why. `install` looks on: a function that is left out becomes a piece that PyTorch runs,
with dynamo's reason. And while dynamo traces a function that looks up positions in a loop, as a
mixture of experts does by `torch.where`, results whose sizes depend on data are a part of the
graph, as in torch.export: Kiln splits the graph there. Elsewhere the graph breaks, so that what
follows has sizes that are known.
"""

from __future__ import annotations

import dis
import sys
import weakref
from types import CodeType
from typing import Any

import torch
import torch._dynamo.callback
from torch._dynamo.exc import Unsupported

from kiln import pieces, versions

#: Functions whose results' sizes depend on data.
_POSITIONS = frozenset({"where", "nonzero", "argwhere", "masked_select"})

#: The pieces of functions that were left out, by their code.
_LEFT_OUT: weakref.WeakKeyDictionary[CodeType, pieces.Piece] = weakref.WeakKeyDictionary()

#: What dynamo writes between two reasons.
_ANOTHER = "*** While handling this graph break, another graph break occurred: ***"

#: What undoes the settings of the function that is traced.
_settings: list[Any] = []


def install() -> None:
    """Looks on from now on, until `torch._dynamo.reset`; any number of times."""
    handler = torch._dynamo.callback.callback_handler
    if _started not in handler.start_callbacks:
        handler.register_start_callback(_started)
    if _ended not in handler.end_callbacks:
        handler.register_end_callback(_ended)


def _started(_: Any = None) -> None:
    traced = versions.traced_code()
    if traced is not None and _is_ours(traced.backend) and looks_up_in_loop(traced.code):
        patch = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
        patch.__enter__()
        _settings.append(patch)


def _ended(_: Any = None) -> None:
    while _settings:
        _settings.pop().__exit__(None, None, None)
    error = sys.exc_info()[1]
    traced = versions.traced_code()
    if isinstance(error, Unsupported) and traced is not None and _is_ours(traced.backend):
        _leave_out(traced.code, error)


def _is_ours(backend: Any) -> bool:
    return str(getattr(backend, "__module__", "")).partition(".")[0] == "kiln"


def looks_up_in_loop(code: CodeType) -> bool:
    """Whether a function has a loop, and calls what gives positions.

    >>> def experts(x):
    ...     for i in range(3):
    ...         x = x + torch.where(x > i)[0].sum()
    ...     return x
    >>> looks_up_in_loop(experts.__code__), looks_up_in_loop(looks_up_in_loop.__code__)
    (True, False)
    """
    if _POSITIONS.isdisjoint(code.co_names):
        return False
    return any(
        step.opname.startswith("FOR_ITER") or step.opname.startswith("JUMP_BACKWARD")
        for step in dis.get_instructions(code)
    )


def _leave_out(code: CodeType, error: Unsupported) -> None:
    """Makes a piece of a function of which nothing is compiled."""
    stack = getattr(error, "real_stack", None) or []
    place = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else ""
    name = getattr(code, "co_qualname", code.co_name)
    piece = _LEFT_OUT[code] = pieces.Piece(place or f"{code.co_filename}:{code.co_firstlineno}")
    piece.called_with(None)
    piece.state, piece.is_left_out = "eager", True
    piece.reason = f"dynamo compiles nothing of `{name}`: {reason(str(error))}"
    pieces.log.warning("a piece at %s runs eagerly: %s", piece.source, piece.reason)
    pieces.register(piece)


def reason(text: str) -> str:
    """What dynamo says of graph breaks in a line: of each what it is, why, and what helps.

    >>> reason("Data-dependent jump\\n  Explanation: It depends.\\n  Hint: Other.\\n")
    'Data-dependent jump (It depends.)'
    """
    told = []
    for part in text.split(
        "*** While handling this graph break, another graph break occurred: ***"
    ):
        lines = [line.strip() for line in part.strip().splitlines()]
        if not lines:
            continue
        why = (s.removeprefix("Explanation: ") for s in lines if s.startswith("Explanation: "))
        explained = next(why, "")
        told.append(f"{lines[0]} ({explained})" if explained else lines[0])
    return "; then ".join(told)
