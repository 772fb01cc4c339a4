"""NVIDIA GPUs' own: dependent launch, timers, numbers of threads."""

from __future__ import annotations

from typing import Any

from kiln.language.core import CUDA, Primitive

__all__ = [*CUDA]


def __getattr__(name: str) -> Any:
    if name in CUDA:
        return globals().setdefault(name, Primitive(name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
