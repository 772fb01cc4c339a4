"""Kiln compiles PyTorch programs to fused kernels, and says why it fused what it fused.

    torch.compile(model, backend="kiln")          # anywhere; what Kiln cannot take runs eagerly
    compiled = kiln.compile(model, (x,))          # a whole program, with the least cost a call
    print(kiln.explain(model, x))                 # what was fused and why, graph breaks, fallbacks
    kiln.check(model, (x,)).raise_if_failed()     # compiled against eager against float64

Importing this imports neither torch's compiler nor any model library: they come with the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln._native import (
    DeviceError,
    InputError,
    KilnError,
    ShapeError,
    UnsupportedError,
    UsageError,
    __version__,
)

if TYPE_CHECKING:
    from kiln.api.artifact import load
    from kiln.api.check import check
    from kiln.api.compile import compile
    from kiln.api.compiled import Compiled
    from kiln.api.explain import explain
    from kiln.api.snapshot import snapshot
    from kiln.kernels.kernel import jit as kernel
    from kiln.kernels.operator import op
    from kiln.reports.environment import doctor
    from kiln.reports.report import Report

__all__ = [
    "Compiled",
    "DeviceError",
    "InputError",
    "KilnError",
    "Report",
    "ShapeError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "check",
    "compile",
    "doctor",
    "explain",
    "kernel",
    "load",
    "op",
    "snapshot",
]

#: Where a name comes from that is imported at its first use.
_LAZY = {
    "Compiled": "api.compiled",
    "Report": "reports.report",
    "check": "api.check",
    "compile": "api.compile",
    "doctor": "reports.environment",
    "explain": "api.explain",
    "kernel": "kernels.kernel",
    "load": "api.artifact",
    "op": "kernels.operator",
    "snapshot": "api.snapshot",
}

#: What a name is called where it comes from.
_RENAMED = {"kernel": "jit"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'kiln' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"kiln.{_LAZY[name]}"), _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
