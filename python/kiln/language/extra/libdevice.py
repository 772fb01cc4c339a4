"""NVIDIA's library of elementary functions."""

from __future__ import annotations

from typing import Any

from kiln.language.core import LIBDEVICE, Primitive

__all__ = [*LIBDEVICE]


def __getattr__(name: str) -> Any:
    if name in LIBDEVICE:
        return globals().setdefault(name, Primitive(f"libdevice.{name}"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
