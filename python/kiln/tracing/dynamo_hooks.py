"""Hooks of dynamo: functions that it leaves out, and settings for functions that look up positions.

Dynamo compiles nothing of a function with a loop that it cannot trace, and calls no backend. A hook
registers such a function as a piece that PyTorch runs, with dynamo's reason, for `kiln.explain`.

A function that looks up positions in a loop, such as a mixture of experts by `torch.where`, is
traced with results whose sizes depend on data in the graph, as torch.export does; Kiln splits the
graph there. In other functions such an operator breaks the graph, and what follows has known sizes.
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
from kiln.kernels import in_dynamo
from kiln.tracing import triton_launches

#: Functions whose results' sizes depend on data.
_POSITIONS = frozenset({"where", "nonzero", "argwhere", "masked_select"})

#: The pieces of functions that were left out, by their code.
_LEFT_OUT: weakref.WeakKeyDictionary[CodeType, pieces.Piece] = weakref.WeakKeyDictionary()

#: What dynamo writes between two reasons.
_ANOTHER = "*** While handling this graph break, another graph break occurred: ***"

#: What undoes the settings of the function that is traced.
_settings: list[Any] = []


def install() -> None:
    """Registers the hooks, until `torch._dynamo.reset`. May be called any number of times."""
    in_dynamo.install()
    triton_launches.believe(_traces_for_us)
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


def _traces_for_us() -> bool:
    traced = versions.traced_code()
    return traced is not None and _is_ours(traced.backend)


def _is_ours(backend: Any) -> bool:
    return str(getattr(backend, "__module__", "")).partition(".")[0] == "kiln"


def looks_up_in_loop(code: CodeType) -> bool:
    """Whether a function has a loop, and calls an operator such as `torch.where` that gives
    positions.

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
    """Registers a piece for a function of which dynamo compiles nothing."""
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
    """The reasons of a graph break in one line, each with its explanation.

    >>> reason("Data-dependent jump\\n  Explanation: It depends.\\n  Hint: Other.\\n")
    'Data-dependent jump (It depends.)'
    """
    reasons = []
    for part in text.split(
        "*** While handling this graph break, another graph break occurred: ***"
    ):
        lines = [line.strip() for line in part.strip().splitlines()]
        if not lines:
            continue
        why = (s.removeprefix("Explanation: ") for s in lines if s.startswith("Explanation: "))
        explained = next(why, "")
        reasons.append(f"{lines[0]} ({explained})" if explained else lines[0])
    return "; then ".join(reasons)
