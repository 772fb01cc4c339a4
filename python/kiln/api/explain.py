"""`kiln.explain`: the report of a function, a module, a compiled program, or of all that
`torch.compile` handed to Kiln.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from kiln import pieces, versions
from kiln._native import UsageError
from kiln.api import backend
from kiln.api.compiled import Compiled
from kiln.reports.report import Report
from kiln.tracing import dynamo_hooks


def explain(
    target: Callable[..., Any] | torch.nn.Module | Compiled | None = None,
    /,
    *args: Any,
    **kwargs: Any,
) -> Report:
    """Says what Kiln makes of a function, a module or a compiled program.

    Without a target it says what became of everything that `torch.compile` handed to Kiln so far,
    and how its calls ran. For the result of `torch.compile` without arguments it says the same of
    that alone.

    A function or module is compiled anew by `torch.compile` and called once with the arguments,
    without gradients. What is compiled already stays as it is, and the report ends with how its
    calls ran so far: compiled or eagerly, since when, and why. For a `Compiled` the arguments
    choose the sizes; without them the last used ones are shown.

    >>> import kiln
    >>> def f(x):
    ...     return (x + x).relu()
    >>> report = kiln.explain(f, torch.ones(3))
    >>> report.eager
    []
    """
    if target is None and not args and not kwargs:
        found = pieces.live()
        called = {
            piece: [m.runs for m in piece.models if m.runs.last != "waiting"] for piece in found
        }
        return Report.of_pieces(found, called=called)
    if isinstance(target, Compiled):
        sizes = target.sizes(*args, **kwargs) if args or kwargs else None
        return target.explain(sizes)
    if not callable(target):
        raise UsageError(
            f"kiln.explain was given {type(target).__name__}: pass a function, a module or the "
            "result of kiln.compile"
        )
    model = _unwrapped(target)
    earlier = pieces.of_model(versions.model_of(model))
    if earlier and not args and not kwargs:
        called = {piece: [runs] for piece, runs in earlier if runs.last != "waiting"}
        return Report.of_pieces([piece for piece, _ in earlier], called=called)
    found = _pieces(model, args, kwargs)
    # Dynamo does not look again at what it has left out.
    known = {piece.source for piece in found}
    found += [p for p, _ in earlier if p.is_left_out and p.source not in known]
    return Report.of_pieces(found, earlier=earlier)


def _unwrapped(target: Callable[..., Any]) -> Callable[..., Any]:
    """The module or function that was given to torch.compile."""
    target = getattr(target, "_orig_mod", target)
    return getattr(target, "_torchdynamo_orig_callable", target)


def _pieces(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[pieces.Piece]:
    dynamo_hooks.install()

    # Dynamo keeps what it compiled by code object and by backend. With an entry and a backend of
    # its own this call neither finds what the user compiled nor takes its place.
    def entry(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    def anew(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return backend.kiln(gm, inputs)

    code = entry.__code__.replace()
    fresh = types.FunctionType(code, entry.__globals__, "entry", None, entry.__closure__)
    with pieces.collecting() as found, torch.no_grad():
        torch.compile(fresh, backend=anew)(*args, **kwargs)
    return found
