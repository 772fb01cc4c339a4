"""Timing of callables beside each other, in the same run.

Rounds go over all callables in turn, so that what slows the machine down slows them all. On the
host a sample is of at least a millisecond, by `time.perf_counter`; on a CUDA device it is one call,
between two events of the current stream. Sampling ends after a number of seconds, and a terminal
shows what is being compiled or timed.
"""

from __future__ import annotations

import functools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

import torch

from kiln._native import UsageError

#: Seconds that a sample on the host takes at least.
SAMPLE_S = 1e-3
#: Seconds that the samples of all callables take together at most, unless they are fewer than
#: `FEWEST` each.
SECONDS = 5.0
FEWEST = 5


@dataclass(frozen=True)
class Row:
    """Times of one callable."""

    name: str
    median_ms: float
    #: A tenth of the samples took less, and a tenth more.
    p10_ms: float
    p90_ms: float
    #: Its median over that of the first row.
    ratio: float
    #: Seconds of its first call, compilation included.
    first_s: float
    #: Why it was not timed.
    error: str = ""


@dataclass(frozen=True)
class Table:
    """Times of several callables; prints as a table.

    >>> print(Table("cpu", [Row("kiln", 1.0, 0.9, 1.2, 1.0, 0.5)]))
    cpu           median ms       p10       p90   ratio  first call s
    kiln              1.000     0.900     1.200    1.00          0.50
    """

    device: str
    rows: list[Row]

    def __str__(self) -> str:
        head = f"{self.device:<12}{'median ms':>11}{'p10':>10}{'p90':>10}{'ratio':>8}"
        lines = [f"{head}{'first call s':>14}"]
        for row in self.rows:
            if row.error:
                lines.append(f"{row.name:<12}  {row.error}")
                continue
            times = f"{row.median_ms:>11.3f}{row.p10_ms:>10.3f}{row.p90_ms:>10.3f}"
            lines.append(f"{row.name:<12}{times}{row.ratio:>8.2f}{row.first_s:>14.2f}")
        return "\n".join(lines)

    __repr__ = __str__

    def __getitem__(self, name: str) -> Row:
        """The row of this name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)


def peers(
    original: Callable[[], Callable[..., Any]] | None,
    against: Sequence[str | Callable[..., Any]],
) -> dict[str, Callable[..., Any]]:
    """What to compare with: "eager", a backend of torch.compile by name, or any callable."""
    found: dict[str, Callable[..., Any]] = {}
    for peer in against:
        if callable(peer):
            found[getattr(peer, "__name__", type(peer).__name__)] = peer
        elif original is None:
            raise UsageError(
                f"bench against {peer!r} needs the module, and an artifact has none: pass "
                "callables, or use kiln.compile"
            )
        else:
            found[peer] = original() if peer == "eager" else _backend(original(), peer)
    return found


def _backend(module: Callable[..., Any], name: str) -> Callable[..., Any]:
    from torch._dynamo import list_backends

    if name not in list_backends(exclude_tags=None):
        known = ", ".join(["eager", *list_backends()])
        raise UsageError(f"bench against {name!r}: use one of {known}, or a callable")
    return torch.compile(module, backend=name)


def refuse_processes(operators: Sequence[str]) -> None:
    """Fails if other processes would have to make the same number of calls.

    `operators`: what PyTorch runs in each call.

    >>> refuse_processes(["aten::sort"])
    """
    exchanges = ("_c10d", "_dtensor::")
    collective = next((name for name in operators if name.startswith(exchanges)), None)
    distributed = torch.distributed
    if collective is None or not (distributed.is_available() and distributed.is_initialized()):
        return
    count = distributed.get_world_size()
    if count > 1:
        raise UsageError(
            f"bench was called in one of {count} processes, and the program waits for the others "
            f"in {collective}: each process would make another number of calls; time a fixed "
            "number of calls in all of them"
        )


def measure(
    functions: Mapping[str, Callable[..., Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: str,
    repetitions: int = 50,
    seconds: float = SECONDS,
) -> Table:
    """Times the functions on the same inputs; the first one is what ratios are to.

    `repetitions`: samples of each, fewer where they would take more than `seconds` in all.

    >>> table = measure({"a": lambda x: x + x}, (torch.ones(3),), {}, "cpu", repetitions=3)
    >>> table["a"].ratio
    1.0
    """
    sample = _on_cuda if device.startswith("cuda") else _on_host
    samples: dict[str, list[float]] = {}
    first_s: dict[str, float] = {}
    errors: dict[str, str] = {}
    counts: dict[str, int] = {}
    with torch.no_grad(), _Progress() as progress:
        for name, function in functions.items():
            progress.tell(f"first call of {name}")
            started = time.perf_counter()
            try:
                function(*args, **kwargs)
            except Exception as error:
                if name == next(iter(functions)):
                    raise
                lines = str(error).strip().splitlines()
                errors[name] = f"{type(error).__name__}: {lines[0] if lines else ''}"
                continue
            _synchronize(device)
            first_s[name] = time.perf_counter() - started
            call = functools.partial(function, *args, **kwargs)
            once = min(sample(call, 1) for _ in range(4 if first_s[name] < SECONDS / 10 else 2))
            counts[name] = max(1, round(SAMPLE_S / max(once, 1e-7)))
            samples[name] = []
        until = time.perf_counter() + seconds
        for done in range(max(repetitions, 2)):
            if done >= FEWEST and time.perf_counter() > until:
                break
            progress.tell(f"sample {done + 1} of {repetitions}")
            for name, times in samples.items():
                call = functools.partial(functions[name], *args, **kwargs)
                times.append(sample(call, counts[name]))
    base = statistics.median(next(iter(samples.values())))
    rows = []
    for name in functions:
        if name in errors:
            nan = float("nan")
            rows.append(Row(name, nan, nan, nan, nan, nan, errors[name]))
            continue
        median = statistics.median(samples[name])
        tenths = statistics.quantiles(samples[name], n=10, method="inclusive")
        low, high = tenths[0], tenths[-1]
        ratio = median / base
        rows.append(Row(name, 1e3 * median, 1e3 * low, 1e3 * high, ratio, first_s[name]))
    return Table(device, rows)


class _Progress:
    """A progress line on a terminal; prints nothing elsewhere."""

    def __init__(self, to: TextIO | None = None) -> None:
        self._to = sys.stderr if to is None else to
        self._shown = bool(getattr(self._to, "isatty", lambda: False)())
        self._text = ""
        self._since = time.perf_counter()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _Progress:
        if self._shown:
            self._thread = threading.Thread(target=self._repeat, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._to.write("\r\x1b[K")
            self._to.flush()

    def tell(self, text: str) -> None:
        """Sets the text of the line."""
        self._text, self._since = text, time.perf_counter()

    def _repeat(self) -> None:
        # Seldom, so that it does not disturb what is timed.
        while not self._ended.wait(1.0):
            past = time.perf_counter() - self._since
            self._to.write(f"\r\x1b[Kbench: {self._text} ({past:.0f} s)")
            self._to.flush()


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _on_host(call: Callable[[], Any], count: int) -> float:
    """Seconds a call on the host."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


def _on_cuda(call: Callable[[], Any], count: int) -> float:
    """Seconds a call, on the device. What came before is waited for, so that the calls of one
    sample are enqueued behind each other."""
    event = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / count
