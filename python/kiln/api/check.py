"""`kiln.check`: runs a module compiled, eagerly and eagerly in float64, and compares."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kiln import options as known_options
from kiln.api.compile import compile
from kiln.reports import accuracy, rounding
from kiln.reports.accuracy import CheckResult
from kiln.tracing import export


def check(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
) -> CheckResult:
    """Runs the module compiled, eagerly and eagerly in float64, on copies, and compares.

    >>> import kiln
    >>> bool(kiln.check(torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),)))
    True
    """
    call_args, call_kwargs = tuple(args), dict(kwargs or {})
    given = dict(options or {})

    def fresh() -> torch.nn.Module:
        return copy.deepcopy(module)

    known = accuracy.references(
        fresh, call_args, call_kwargs, wide=lambda: fresh().double(), tf32=_tf32(module, given)
    )
    with torch.no_grad():
        got = _compiled(fresh(), call_args, call_kwargs, given)
    return accuracy.compare(got, *known)


def _tf32(module: torch.nn.Module, given: Mapping[str, Any]) -> list[str]:
    """Operators whose f32 operands the contract lets Kiln round to TF32."""
    tensors = [*module.parameters(), *module.buffers()]
    device = next((str(t.device) for t in tensors if t.device.type == "cuda"), "cpu")
    chosen = known_options.for_engine(given, device)
    if device == "cpu" or chosen.get("numerics") == "exact":
        return []
    found = [] if chosen.get("no_tf32") else ["convolution"]
    return [*found, *rounding.MATMULS] if chosen.get("numerics") == "fast" else found


def _compiled(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any] | None,
) -> Any:
    example = accuracy.copied((args, kwargs))
    exported = export.export(module, *example)
    call_args, call_kwargs = accuracy.copied((args, kwargs))
    return compile(exported, options=options)(*call_args, **call_kwargs)
