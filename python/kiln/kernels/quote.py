"""What is known of a launch before anything is generated for the device: its price, its program, what it writes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Iterable, TypeVar

from kiln._native import KilnError

#: Most threads that compile at once.
_THREADS = 16

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Quote:
    """The answers about one configuration of a launch."""

    #: Predicted microseconds; infinite where it does not fit the device.
    us: float
    #: The term that decides, and all of them in microseconds.
    bound: str
    terms: dict[str, float]
    #: Numbers that the terms are computed from.
    footprint: dict[str, Any]
    #: Of the program: configurations with the same one are the same.
    code: str
    #: The arguments that a run writes, and those of them that it reads, by their numbers.
    written: list[int]
    changed: list[int]

    @staticmethod
    def parse(text: str) -> Quote:
        found = json.loads(text)
        price = found["price"]
        us = float("inf") if price["us"] is None else price["us"]
        return Quote(
            us,
            price["bound"],
            price["terms"],
            price["footprint"],
            found["code"],
            found["written"],
            found["changed"],
        )


def in_parallel(work: Callable[[T], R], items: Iterable[T], threads: int = _THREADS) -> list[R | KilnError]:
    """What a function gives for each of some items, or the error that Kiln raised. Kiln compiles
    without the interpreter's lock, so that threads compile at once."""

    def guarded(item: T) -> R | KilnError:
        try:
            return work(item)
        except KilnError as e:
            return e

    listed = list(items)
    if threads <= 1 or len(listed) <= 1:
        return [guarded(item) for item in listed]
    with ThreadPoolExecutor(min(threads, len(listed)), "kiln-tuning") as pool:
        return list(pool.map(guarded, listed))
