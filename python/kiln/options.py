"""The options that a user may give, checked before anything is compiled."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import torch

from kiln._native import UsageError

#: Read by the native engine, which checks their values.
ENGINE = (
    "numerics",
    "splits",
    "no_tf32",
    "batch_invariant",
    "fuse",
    "threads",
    "cache",
    "cache_size",
    "cache_bytes",
    "fallback",
    "while_compiling",
    "buckets",
    "machine_code",
)

#: Read by Python: the values allowed, the default first.
PYTHON: dict[str, tuple[Any, ...]] = {
    # Of torch.compile: graphs that need gradients run eagerly, or are an error.
    "training": ("eager", "error"),
    # Whether weights that were changed in place are looked for at every call. Tensors made in
    # inference mode count no changes.
    "weights": ("checked", "frozen"),
}

#: Those of torch.compile alone.
_BACKEND = ("training",)

#: Those of kiln.compile and kiln.load alone: inputs of dynamo's graphs have no names to go by.
_PROGRAM = ("buckets",)


#: Those of torch.compile.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def check_mode(mode: str | None) -> None:
    """Raises `kiln.UsageError` for a mode that torch.compile does not have.

    >>> check_mode("max-autotune")
    """
    if mode is None or mode in MODES:
        return
    close = difflib.get_close_matches(str(mode), MODES, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    listed = ", ".join(MODES)
    raise UsageError(f"unknown mode {mode!r} of torch.compile: {hint}the modes are {listed}")


def is_checked(options: Mapping[str, Any]) -> bool:
    """Whether weights may change between calls.

    >>> is_checked({}), is_checked({"weights": "frozen"})
    (True, False)
    """
    return bool(options.get("weights", PYTHON["weights"][0]) == "checked")


def check(options: Mapping[str, Any] | None, *, backend: bool) -> dict[str, Any]:
    """The options as a dict of its own. Unknown ones raise `kiln.UsageError`.

    >>> check({"numerics": "exact"}, backend=True)
    {'numerics': 'exact'}
    """
    given = dict(options or {})
    known = [*ENGINE, *(name for name in PYTHON if backend or name not in _BACKEND)]
    for name, value in given.items():
        if backend and name in _PROGRAM:
            raise UsageError(f"torch.compile does not take the option {name!r}: use kiln.compile")
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            listed = ", ".join(sorted(known))
            raise UsageError(f"unknown option {name!r}: {hint}the options are {listed}")
        if name in PYTHON and value not in PYTHON[name]:
            allowed = " or ".join(repr(v) for v in PYTHON[name])
            raise UsageError(f"option {name!r} is {value!r}: use {allowed}")
    return given


def for_engine(options: Mapping[str, Any], device: str) -> dict[str, Any]:
    """What the engine is given.

    >>> for_engine({"numerics": "exact", "training": "error"}, "cpu")
    {'numerics': 'exact', 'device': 'cpu'}
    """
    engine_options = {k: v for k, v in options.items() if k in ENGINE}
    if device != "cpu" and "numerics" not in engine_options and _forbids_tf32():
        engine_options.setdefault("no_tf32", True)
    return {**engine_options, "device": device}


def _forbids_tf32() -> bool:
    """Whether the user has set that f32 convolutions on GPUs are full f32."""
    try:
        return not torch.backends.cudnn.allow_tf32
    except RuntimeError:
        # Torch's newer setting, which the older one cannot be read beside.
        return bool(torch.backends.cudnn.conv.fp32_precision == "ieee")
