"""Times of several callables beside each other: samples are taken in turn, so that what slows the machine down slows them all."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Call = Callable[[], object]

#: Milliseconds that a sample takes at least: of launches in a CUDA graph, and of calls on the host.
SAMPLE_MS = {"cuda": 0.1, "cpu": 2.0}
#: Seconds after which three samples of each side do.
LIMIT_S = 8.0
#: Seconds until OpenMP's threads sleep.
REST_S = 0.02


@dataclass(frozen=True)
class Side:
    """A callable and how it is launched on a GPU."""

    call: Call
    #: Launches are recorded in a CUDA graph and replayed; otherwise calls are enqueued behind each other.
    recorded: bool = True


def on_device(call: Call, times: int) -> float:
    """Milliseconds a call between two events. The device is busy with the same before, so that launches are enqueued ahead."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times


def on_host(call: Call, times: int) -> float:
    """Milliseconds a call, after a pause in which another library's threads, which spin for work, go to sleep."""
    time.sleep(REST_S)
    call()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e3


def recorded(call: Call) -> tuple[Call, int]:
    """The call as launches of a CUDA graph, and how many of it: as many as take a tenth of a millisecond, at most 50."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = int(max(1, min(50, SAMPLE_MS["cuda"] / on_device(call, 1))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay, times


def fastest_tenth(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=10, method="inclusive")[0]


def first_line(error: BaseException, width: int = 300) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:width].replace("|", "/")


def measure(sides: Mapping[str, Side], device: str, rounds: int) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds of a call of each side, and why a side was not timed.

    The median of the samples; on the host the fastest tenth, as other work there stops a team of threads that wait for each other.
    """
    samplers: dict[str, Callable[[], float]] = {}
    problems: dict[str, str] = {}
    for name, side in sides.items():
        try:
            if device == "cuda" and side.recorded:
                play, count = recorded(side.call)
                samplers[name] = lambda play=play, count=count: on_device(play, 1) / count
            else:
                sample = on_device if device == "cuda" else on_host
                for _ in range(3):
                    side.call()
                times = int(max(1, min(50, SAMPLE_MS[device] / sample(side.call, 1))))
                samplers[name] = lambda call=side.call, times=times, sample=sample: sample(call, times)
        except Exception as e:  # What PyTorch refuses is told in the table.
            problems[name] = first_line(e)
            if device == "cuda":
                torch.cuda.empty_cache()
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    begin = time.perf_counter()
    for taken in range(rounds):
        if taken >= 3 and time.perf_counter() - begin > LIMIT_S:
            break
        for name, sampler in samplers.items():
            samples[name].append(sampler())
    middle = statistics.median if device == "cuda" else fastest_tenth
    return {name: middle(found) for name, found in samples.items()}, problems


def processor() -> str:
    """The name of the host's processor."""
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())


def host() -> str:
    """The host, its threads and its load: what else ran while something was timed."""
    return f"{processor()}, {os.cpu_count()} threads, load {os.getloadavg()[0]:.1f}"
