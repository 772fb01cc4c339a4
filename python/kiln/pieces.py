"""The pieces of a program that dynamo handed to Kiln, and what became of each.

`torch.compile` splits a function where it cannot trace on, and calls the backend for each piece.
The backend makes a `Piece` for each and keeps it up to date; `kiln.explain` reads them. Only weak
references are kept here: a piece lives as long as its compiled code.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kiln import versions

log = logging.getLogger("kiln")

#: What AOT autograd calls: with a list, which is emptied so that inputs can be freed.
Boxed = Callable[[list[Any]], Sequence[Any]]

#: What runs a piece: nothing yet (it was not called), Kiln, or PyTorch.
State = Literal["waiting", "compiled", "eager"]


@dataclass
class Calls:
    """How the calls of a piece ran."""

    compiled: int = 0
    eager: int = 0
    #: How the last call ran, and why PyTorch ran it.
    last: State = "waiting"
    reason: str = ""
    #: The number of the first call that ran as the last one did, with none between them that did
    #: not, and when it was, in seconds since 1970.
    since: int = 0
    at: float = 0.0

    def ran_compiled(self) -> None:
        """Counts a call that Kiln ran."""
        self.compiled += 1
        if self.last != "compiled":
            self._turn("compiled", "")

    def ran_eagerly(self, reason: str) -> None:
        """Counts a call that PyTorch ran."""
        self.eager += 1
        if self.last != "eager" or self.reason != reason:
            self._turn("eager", reason)

    def _turn(self, state: State, reason: str) -> None:
        self.last, self.reason = state, reason
        self.since, self.at = self.compiled + self.eager, time.time()

    def __str__(self) -> str:
        if self.last == "waiting":
            return "none"
        mode = "compiled" if self.last == "compiled" else "run eagerly"
        clock = time.strftime("%H:%M:%S", time.localtime(self.at))
        if self.compiled and self.eager:
            text = f"{self.compiled} compiled, {self.eager} run eagerly; "
            text += f"{mode} since call {self.since} ({clock})"
        else:
            text = f"{self.compiled + self.eager} {mode} since {clock}"
        return f"{text}: {self.reason}" if self.reason else text

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return vars(self).copy()


@dataclass
class Model:
    """A module or function that was given to torch.compile, and how its calls of a piece ran."""

    #: The module or function; None if it is not known.
    model: weakref.ref[Any] | None
    runs: Calls


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
    #: Whether dynamo compiles nothing of it, and hands no graph over: its calls are not counted.
    is_left_out: bool = False
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
    #: How the calls of the model ran that called last.
    runs: Calls = field(default_factory=Calls)
    #: How the calls of each model ran: two of one class may share a graph.
    models: list[Model] = field(default_factory=list)
    #: The tensor that tells models apart, as of the last call.
    owner: weakref.ref[Any] | None = None
    #: Counts up with every piece.
    number: int = field(default_factory=itertools.count().__next__, init=False)

    def called_with(self, owner: Any) -> None:
        """Counts calls from now on for the model that has this parameter. Another parameter than
        before costs a look at the stack. None for models without parameters."""
        if self.owner is not None and self.owner() is owner:
            return
        self.owner = _reference(owner)
        model = versions.compiled_model()
        for piece in self.parts or [self]:
            piece.runs = piece.runs_of(model)

    def runs_of(self, model: Any) -> Calls:
        """How the calls of a model ran."""
        self.models[:] = [m for m in self.models if m.model is None or m.model() is not None]
        for known in self.models:
            if (None if known.model is None else known.model()) is model:
                return known.runs
        self.models.append(Model(_reference(model), Calls()))
        return self.models[-1].runs

    def refuse(self, reason: str) -> None:
        """Makes PyTorch run the piece from now on."""
        self.state, self.reason = "eager", reason
        where = f" at {self.source}" if self.source else ""
        log.warning("a piece%s runs eagerly: %s", where, reason)


def eagerly(piece: Piece, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `run`, which runs a piece by PyTorch, so that its calls are counted."""

    def counted(*args: Any) -> Any:
        piece.runs.ran_eagerly(piece.reason)
        return run(*args)

    return counted


def boxed(run: Callable[..., Any]) -> Boxed:
    """The function in AOT autograd's calling convention: it takes a list, and empties it so that
    inputs can be freed."""

    def call(args: list[Any]) -> Sequence[Any]:
        inputs = list(args)
        args.clear()
        outputs: Sequence[Any] = run(*inputs)
        return outputs

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


_LIVE: weakref.WeakSet[Piece] = weakref.WeakSet()
_COLLECTORS: list[list[Piece]] = []


def register(piece: Piece) -> Piece:
    """Makes a piece, or the parts of a split one, known to `live` and to each `collecting` in
    progress."""
    for part in piece.parts or [piece]:
        _LIVE.add(part)
        for found in _COLLECTORS:
            found.append(part)
    return piece


def live() -> list[Piece]:
    """All pieces whose compiled code is alive, the oldest first.

    >>> all(piece.state in ("waiting", "compiled", "eager") for piece in live())
    True
    """
    return sorted(_LIVE, key=lambda piece: piece.number)


def of_model(model: Any) -> list[tuple[Piece, Calls]]:
    """The live pieces of a module or function that was given to torch.compile, and how its calls of
    them ran.

    >>> of_model(print)
    []
    """
    found = ((p, m) for p in live() for m in p.models)
    return [(p, m.runs) for p, m in found if m.model is not None and m.model() is model]


def _reference(value: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:
        # None, and what has no weak references.
        return None


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
