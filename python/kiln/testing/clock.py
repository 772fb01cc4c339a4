"""The time of a function's work: many runs, each from an L2 cache of other data, and their spread."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Literal

#: Bytes written between two runs on a GPU: more than any L2 cache holds.
_WASHED_BYTES = 256 << 20
#: Runs from which a median means something.
_FEWEST_RUNS = 3
#: Runs that are recorded before the host waits for the GPU.
_BATCH = 64

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class Spread:
    """Milliseconds of some runs: the median, the fastest fifth ends at `low`, the slowest begins at `high`."""

    median: float
    low: float
    high: float
    runs: int

    @staticmethod
    def of(times: Sequence[float]) -> Spread:
        middle, low, high = (quantile(times, q) for q in (0.5, 0.2, 0.8))
        return Spread(middle, low, high, len(times))

    @property
    def relative(self) -> float:
        """The width of the middle three fifths, as a part of the median."""
        return (self.high - self.low) / self.median if self.median > 0 else 0.0

    def __str__(self) -> str:
        return f"{self.median:.4g} ms ({self.low:.4g} to {self.high:.4g}, {self.runs} runs)"


def quantile(times: Iterable[float], q: float) -> float:
    """The value below which a part `q` of the times lies, between two of them by a straight line."""
    ordered = sorted(times)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Any = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds of a function's work, over `rep` milliseconds after `warmup` ones. On a GPU the
    L2 cache is washed before each run, and events of the stream are the clock.

    `return_mode` is `mean`, `median`, `min`, `max`, `all` (a list) or `spread` (a `Spread`); with
    `quantiles` it is these instead, one as a number and several as a list."""
    reduce = _MODES.get(return_mode)
    if reduce is None:
        raise ValueError(f"do_bench has no return_mode {return_mode!r}; pass one of {', '.join(_MODES)}")

    def before() -> None:
        for x in grad_to_none or ():
            x.grad = None

    times = timed(fn, warmup=warmup, rep=rep, before=before)
    if quantiles is None:
        return reduce(times)
    found = [quantile(times, q) for q in quantiles]
    return found[0] if len(found) == 1 else found


def _mean(times: Sequence[float]) -> float:
    return math.fsum(times) / len(times)


_MODES: dict[str, Callable[[list[float]], Any]] = {
    "mean": _mean,
    "median": lambda times: quantile(times, 0.5),
    "min": min,
    "max": max,
    "all": lambda times: times,
    "spread": Spread.of,
}


def timed(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    before: Callable[[], None] | None = None,
    device: Device | None = None,
) -> list[float]:
    """Milliseconds of each run of a function, in order, for about `rep` milliseconds after `warmup`.
    `before` runs before each, and is not counted. `device` is where the function works: by default a
    GPU if there is one."""
    on_gpu = _has_gpu() if device is None else device == "cuda"
    clock = _Events() if on_gpu else _Clock()
    prepare = before if before is not None else _nothing
    # The first run may compile.
    clock.times(fn, prepare, 1)
    # What a run takes with all that is not counted, so that `rep` bounds the time of measuring.
    start = time.perf_counter()
    clock.times(fn, prepare, _FEWEST_RUNS)
    pace = max((time.perf_counter() - start) * 1e3 / _FEWEST_RUNS, 1e-4)
    clock.times(fn, prepare, max(1, int(warmup / pace)))
    return clock.times(fn, prepare, max(_FEWEST_RUNS, int(rep / pace)))


def _nothing() -> None:
    pass


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


class _Clock:
    """The host's clock."""

    def times(self, fn: Callable[[], Any], prepare: Callable[[], None], runs: int) -> list[float]:
        found = []
        for _ in range(runs):
            prepare()
            start = time.perf_counter()
            fn()
            found.append((time.perf_counter() - start) * 1e3)
        return found


class _Events:
    """Events of the current stream, around runs that each start after the L2 cache was washed."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.washed = torch.empty(_WASHED_BYTES // 4, dtype=torch.int32, device="cuda")

    def times(self, fn: Callable[[], Any], prepare: Callable[[], None], runs: int) -> list[float]:
        found: list[float] = []
        while len(found) < runs:
            found += self._batch(fn, prepare, min(_BATCH, runs - len(found)))
        return found

    def _batch(self, fn: Callable[[], Any], prepare: Callable[[], None], runs: int) -> list[float]:
        event: Any = self.torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(runs)]
        for start, end in pairs:
            prepare()
            self.washed.zero_()
            start.record()
            fn()
            end.record()
        self.torch.cuda.synchronize()
        return [float(start.elapsed_time(end)) for start, end in pairs]
