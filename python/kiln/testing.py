"""Checks and times kernels: the names are those of `triton.testing`."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

#: Bytes written between two runs, so that each starts with an L2 cache of other data.
_WASHED = 256 << 20


def assert_close(
    x: Any, y: Any, atol: float | None = None, rtol: float | None = None, err_msg: str = ""
) -> None:
    """Fails unless two tensors, arrays or numbers are close; NaN equals NaN."""
    import numpy as np
    import torch

    def array(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.float() if value.dtype == torch.bfloat16 else value
            return value.detach().cpu().numpy()
        return np.asarray(value)

    atol = 1e-2 if atol is None else atol
    rtol = 0.0 if rtol is None else rtol
    np.testing.assert_allclose(array(x), array(y), atol=atol, rtol=rtol, equal_nan=True, err_msg=err_msg)


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Any = None,
    quantiles: list[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds of a function's work, over `rep` milliseconds after `warmup` ones. On a GPU the
    L2 cache is washed before each run."""
    import torch

    cuda = torch.cuda.is_available()
    fn()
    once = _Timer(cuda)
    first = max(once(fn), 1e-4)
    for _ in range(max(1, int(warmup / first))):
        fn()
    times = []
    for _ in range(max(1, int(rep / first))):
        for x in grad_to_none or ():
            x.grad = None
        times.append(once(fn))
    if quantiles is not None:
        ordered = sorted(times)
        found = [ordered[min(int(q * len(ordered)), len(ordered) - 1)] for q in quantiles]
        return found[0] if len(found) == 1 else found
    if return_mode == "all":
        return times
    modes = {"mean": statistics.mean, "median": statistics.median, "min": min, "max": max}
    return modes[return_mode](times)


class _Timer:
    """Times one run: by events of the stream on a GPU, else by the clock."""

    def __init__(self, cuda: bool) -> None:
        import torch

        self.torch = torch
        self.cuda = cuda
        self.washed = torch.empty(_WASHED // 4, dtype=torch.int32, device="cuda") if cuda else None

    def __call__(self, fn: Callable[[], Any]) -> float:
        if self.washed is None:
            start = time.perf_counter()
            fn()
            return (time.perf_counter() - start) * 1e3
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.washed.zero_()
        events[0].record()
        fn()
        events[1].record()
        self.torch.cuda.synchronize()
        return float(events[0].elapsed_time(events[1]))


class Benchmark:
    """A table of times: a line for each value of `x_vals`, a column for each provider."""

    def __init__(
        self,
        x_names: list[str],
        x_vals: list[Any],
        line_arg: str,
        line_vals: list[Any],
        line_names: list[str],
        plot_name: str,
        args: dict[str, Any],
        xlabel: str = "",
        ylabel: str = "",
        x_log: bool = False,
        y_log: bool = False,
        styles: Any = None,
    ) -> None:
        self.x_names = x_names
        self.x_vals = x_vals
        self.line_arg = line_arg
        self.line_vals = line_vals
        self.line_names = line_names
        self.plot_name = plot_name
        self.args = args
        self.ylabel = ylabel

    def rows(self, fn: Callable[..., Any]) -> list[list[Any]]:
        """The values of `x_names`, then what `fn` gives for each provider."""
        found = []
        for x in self.x_vals:
            values = x if isinstance(x, (list, tuple)) else [x] * len(self.x_names)
            named = dict(zip(self.x_names, values, strict=True))
            row = [fn(**named, **self.args, **{self.line_arg: line}) for line in self.line_vals]
            found.append([*values, *(r[0] if isinstance(r, tuple) else r for r in row)])
        return found


class Mark:
    """A function with benchmarks of it."""

    def __init__(self, fn: Callable[..., Any], benchmarks: list[Benchmark]) -> None:
        self.fn = fn
        self.benchmarks = benchmarks

    def run(
        self, show_plots: bool = False, print_data: bool = False, save_path: str = "", **kwargs: Any
    ) -> list[list[list[Any]]]:
        """The rows of each benchmark; prints them with `print_data`."""
        tables = []
        for bench in self.benchmarks:
            rows = bench.rows(lambda **named: self.fn(**named, **kwargs))
            tables.append(rows)
            if print_data:
                print(f"{bench.plot_name} ({bench.ylabel}):")
                print("  ".join(f"{n:>12}" for n in [*bench.x_names, *bench.line_names]))
                for row in rows:
                    print("  ".join(f"{v:>12.6g}" for v in row))
        return tables


def perf_report(benchmarks: Any) -> Callable[[Callable[..., Any]], Mark]:
    """Gives a function benchmarks that `run` measures."""
    listed = benchmarks if isinstance(benchmarks, list) else [benchmarks]

    def decorate(fn: Callable[..., Any]) -> Mark:
        return Mark(fn, listed)

    return decorate
