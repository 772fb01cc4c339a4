"""The options that a user may give, checked before anything is compiled."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from kiln._native import UsageError

#: Read by the native engine, which checks their values.
ENGINE = (
    "numerics",
    "splits",
    "batch_invariant",
    "fuse",
    "threads",
    "cache_size",
    "cache_bytes",
    "fallback",
)

#: Read by the backend of torch.compile: the values allowed, the default first.
BACKEND: dict[str, tuple[Any, ...]] = {
    # Graphs that need gradients run eagerly, or are an error.
    "training": ("eager", "error"),
    # Whether changes of parameters in place are looked for at every call, which costs about 0.2
    # microseconds a parameter.
    "weights": ("frozen", "checked"),
}


def check(options: Mapping[str, Any] | None, *, backend: bool) -> dict[str, Any]:
    """The options as a dict of its own. Unknown ones raise `kiln.UsageError`.

    >>> check({"numerics": "exact"}, backend=True)
    {'numerics': 'exact'}
    """
    given = dict(options or {})
    known = [*ENGINE, *(BACKEND if backend else ())]
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            listed = ", ".join(sorted(known))
            raise UsageError(f"unknown option {name!r}: {hint}the options are {listed}")
        if name in BACKEND and value not in BACKEND[name]:
            allowed = " or ".join(repr(v) for v in BACKEND[name])
            raise UsageError(f"option {name!r} is {value!r}: use {allowed}")
    return given


def for_engine(options: Mapping[str, Any], device: str) -> dict[str, Any]:
    """What the engine is given.

    >>> for_engine({"numerics": "exact", "training": "error"}, "cpu")
    {'numerics': 'exact', 'device': 'cpu'}
    """
    return {**{k: v for k, v in options.items() if k in ENGINE}, "device": device}
