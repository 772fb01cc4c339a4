"""The pieces of a program that dynamo handed to Kiln, and what became of each.

`torch.compile` splits a function where it cannot trace on; every piece is a call of the backend.
The backend makes a `Piece` for each and keeps it up to date; `kiln.explain` reads them. Pieces are
held weakly here: they live as long as the compiled code does.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

log = logging.getLogger("kiln")

#: What runs a piece: nothing yet (it was not called), Kiln, or PyTorch.
State = Literal["waiting", "compiled", "eager"]


@dataclass(eq=False)
class Piece:
    """One graph of `torch.compile`."""

    #: The user's line where it starts, as `file:line`; empty if unknown.
    source: str
    #: Number of operator calls.
    calls: int = 0
    state: State = "waiting"
    #: Why PyTorch runs it.
    reason: str = ""
    #: Why dynamo ended the piece, if that was not the end of the function.
    break_reason: str = ""
    #: The user's line that ended it.
    break_source: str = ""
    #: Symbols of its sizes with their ranges.
    symbols: dict[str, Any] = field(default_factory=dict)
    #: The engines that run it, one for each set of parameters.
    engines: list[Any] = field(default_factory=list)
    #: What it was split into, in order, where Kiln refuses a part of it: pieces that Kiln compiles,
    #: and pieces that PyTorch runs.
    parts: list[Piece] = field(default_factory=list)
    #: Counts up with every piece.
    number: int = field(default_factory=itertools.count().__next__, init=False)

    def refuse(self, reason: str) -> None:
        """From now on PyTorch runs the piece."""
        self.state, self.reason = "eager", reason
        at = f" at {self.source}" if self.source else ""
        log.warning("a piece%s runs eagerly: %s", at, reason)


_LIVE: weakref.WeakSet[Piece] = weakref.WeakSet()
_COLLECTORS: list[list[Piece]] = []


def register(piece: Piece) -> Piece:
    """Makes a piece, or the parts of one that was split, known to `live` and to every `collecting`
    in progress."""
    for part in piece.parts or [piece]:
        _LIVE.add(part)
        for found in _COLLECTORS:
            found.append(part)
    return piece


def live() -> list[Piece]:
    """All pieces whose compiled code is alive, in the order of their making.

    >>> all(piece.state in ("waiting", "compiled", "eager") for piece in live())
    True
    """
    return sorted(_LIVE, key=lambda piece: piece.number)


@contextlib.contextmanager
def collecting() -> Iterator[list[Piece]]:
    """Collects the pieces that are made meanwhile.

    >>> with collecting() as found:
    ...     pass
    >>> found
    []
    """
    found: list[Piece] = []
    _COLLECTORS.append(found)
    try:
        yield found
    finally:
        _COLLECTORS[:] = [c for c in _COLLECTORS if c is not found]
