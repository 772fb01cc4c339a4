"""Names of `kiln.language`, where ports look for them."""

from __future__ import annotations

from typing import Any

from kiln.language import core


def __getattr__(name: str) -> Any:
    return getattr(core, name)
