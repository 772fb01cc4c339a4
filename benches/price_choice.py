#!/usr/bin/env python3
"""What the price's first choice of a configuration reaches of the best one, on launches it was not fitted to.

    benches/price_choice.py [--seed N] [--draws N] [--only NAME …] [--out FILE]

For kernels of `benches/kernel_cases`, at sizes drawn at random from a seed, all configurations are compiled, priced
and timed: medians of launches between events with an L2 cache of other data. A row of the table is a launch: the best
time over the first choice's, its place among all, and both configurations. `--out` also stores times, prices and what
prices are computed from as JSON. Needs a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from kernels import SETTLED_S, geometric_mean, load, machine
from kiln.kernels import Config
from kiln.kernels.quote import Quote, in_parallel
from kiln.testing import timed
from timing import first_line
from untuned_kernels import CASES

Grid = Callable[[dict[str, Any]], tuple[int, ...]]
#: Milliseconds of launches before a time and of those in it.
WARM_MS, TIMED_MS = 1, 8
BF16, F16 = torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Launch:
    """A kernel on arguments of one size, and its configurations."""

    title: str
    kernel: Any
    arguments: tuple[Any, ...]
    grid: Grid
    configs: list[Config]


def ceiling(a: int, b: int) -> int:
    return -(-a // b)


def power(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << (n - 1).bit_length()


def configurations(warps: list[int], stages: list[int] | None = None, **choices: list[int]) -> list[Config]:
    """All combinations with at most 256 elements of a block for each thread, and at least one."""
    found = []
    for values in itertools.product(*choices.values()):
        named = dict(zip(choices, values, strict=True))
        block = math.prod(n for name, n in named.items() if name.startswith("B"))
        for w, s in itertools.product(warps, stages or [3]):
            if 32 * w <= block <= 256 * 32 * w:
                found.append(Config(named, num_warps=w, num_stages=s))
    return found


def tiles() -> list[Config]:
    """Of matmuls, as tutorials list them."""
    sizes = [(128, 256, 64, 8), (256, 128, 64, 8), (128, 128, 64, 8), (128, 128, 64, 4), (128, 128, 32, 4)]
    sizes += [(64, 256, 32, 4), (128, 64, 64, 4), (64, 128, 64, 4), (128, 64, 32, 4), (64, 64, 64, 4), (64, 32, 32, 2)]
    sizes += [(32, 64, 64, 2), (128, 32, 64, 4)]
    return [
        Config({"BM": m, "BN": n, "BK": k}, num_warps=w, num_stages=s)
        for m, n, k, w in sizes
        for s in ([3, 4] if k > 32 else [4])
    ]


class Draw:
    """Launches with sizes drawn from a seed."""

    def __init__(self, modules: dict[str, ModuleType], numbers: random.Random) -> None:
        self.of = modules
        self.numbers = numbers

    def size(self, low: int, high: int, multiple: int = 1) -> int:
        """Evenly on a logarithmic scale."""
        n = math.exp(self.numbers.uniform(math.log(low), math.log(high)))
        return max(multiple, round(n / multiple) * multiple)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device="cuda").to(dtype)

    def matmul(self) -> Launch:
        m, n, k = self.size(64, 8192, 8), self.size(256, 8192, 8), self.size(256, 8192, 8)
        a, b = self.normal(m, k, dtype=F16), self.normal(k, n, dtype=F16)
        c = torch.empty(m, n, device="cuda", dtype=F16)
        arguments = (a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
        kernel = self.of["matmuls"].matmul_leaky
        grid: Grid = lambda meta: (ceiling(m, meta["BM"]), ceiling(n, meta["BN"]))
        return Launch(f"matmul {m}x{n}x{k}", kernel, arguments, grid, tiles())

    def bmm(self) -> Launch:
        batch, m, n, k = self.size(2, 64), self.size(64, 1024, 8), self.size(64, 1024, 8), self.size(64, 1024, 8)
        a, b = self.normal(batch, m, k, dtype=BF16), self.normal(batch, k, n, dtype=BF16)
        c, bias = torch.empty(batch, m, n, device="cuda", dtype=BF16), self.normal(n, dtype=BF16)
        arguments = (a, b, bias, c, m, n, k, m * k, k, k * n, n, m * n, n)
        grid: Grid = lambda meta: (ceiling(m, meta["BM"]), ceiling(n, meta["BN"]), batch)
        return Launch(f"bmm {batch}x{m}x{n}x{k}", self.of["matmuls"].bmm_bias_gelu, arguments, grid, tiles())

    def weights_of_8_bits(self) -> Launch:
        m, n, k = self.size(1, 512), self.size(1024, 16384, 64), self.size(1024, 8192, 128)
        a, scale = self.normal(m, k, dtype=BF16), self.normal(n)
        w = torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8)
        c = torch.empty(m, n, device="cuda", dtype=BF16)
        rows = [size for size in [16, 32, 64, 128] if size < 2 * power(max(m, 16))]
        configs = [
            Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=w, num_stages=s)
            for bm, bn, bk, w, s in itertools.product(rows, [32, 64, 128], [64, 128], [4], [3, 4])
        ]
        grid: Grid = lambda meta: (ceiling(m, meta["BM"]), ceiling(n, meta["BN"]))
        return Launch(f"w8a16 {m}x{n}x{k}", self.of["matmuls"].w8a16, (a, w, scale, c, m, n, k), grid, configs)

    def gemv(self) -> Launch:
        n, k = self.size(1024, 65536), self.size(512, 16384, 8)
        w, x, y = self.normal(n, k, dtype=BF16), self.normal(k, dtype=BF16), torch.empty(n, device="cuda", dtype=BF16)
        configs = configurations([2, 4, 8], BN=[1, 2, 4, 8, 16, 32], BK=[256, 512, 1024])
        grid: Grid = lambda meta: (ceiling(n, meta["BN"]),)
        return Launch(f"gemv {n}x{k}", self.of["matmuls"].gemv, (w, x, y, n, k), grid, configs)

    def softmax(self) -> Launch:
        rows, n = self.size(128, 16384), self.size(512, 65536)
        x = self.normal(rows, n, dtype=BF16)
        configs = configurations([1, 2, 4, 8, 16], BLOCK=[512, 1024, 2048, 4096, 8192])
        grid: Grid = lambda meta: (rows,)
        return Launch(
            f"softmax {rows}x{n}", self.of["rows"].softmax_online, (x, torch.empty_like(x), n, n), grid, configs
        )

    def quantised_rows(self) -> Launch:
        rows, n = self.size(256, 32768), self.size(256, 16384)
        x = self.normal(rows, n, dtype=BF16)
        q, scale = torch.empty(rows, n, device="cuda", dtype=torch.int8), torch.empty(rows, device="cuda")
        configs = configurations([1, 2, 4, 8, 16], BLOCK=[power(n)])
        grid: Grid = lambda meta: (rows,)
        return Launch(f"quantised {rows}x{n}", self.of["rows"].quantize_rows, (x, q, scale, n), grid, configs)

    def cosine(self) -> Launch:
        rows, n = self.size(1024, 131072), self.size(64, 2048)
        a, b, y = self.normal(rows, n), self.normal(rows, n), torch.empty(rows, device="cuda")
        configs = configurations([1, 2, 4, 8], BR=[1, 2, 4, 8, 16], BLOCK=[power(n)])
        grid: Grid = lambda meta: (ceiling(rows, meta["BR"]),)
        return Launch(
            f"cosine {rows}x{n}", self.of["rows"].cosine, (a, b, y, n), grid, [with_rows(c, rows) for c in configs]
        )

    def sums(self) -> Launch:
        rows, n = self.size(128, 8192), self.size(1024, 65536)
        x = self.normal(rows, n)
        configs = configurations([1, 2, 4, 8], BLOCK=[256, 512, 1024, 2048, 4096])
        grid: Grid = lambda meta: (rows,)
        return Launch(f"cumsum {rows}x{n}", self.of["rows"].cumsum_rows, (x, torch.empty_like(x), n), grid, configs)

    def divergence(self) -> Launch:
        rows, n = self.size(256, 8192), self.size(1000, 65536)
        p, t, loss = (
            self.normal(rows, n, dtype=BF16),
            self.normal(rows, n, dtype=BF16),
            torch.empty(rows, device="cuda"),
        )
        configs = configurations([2, 4, 8, 16], BLOCK=[512, 1024, 2048, 4096, 8192])
        grid: Grid = lambda meta: (rows,)
        return Launch(f"divergence {rows}x{n}", self.of["rows"].kl_div, (p, t, loss, n), grid, configs)

    def geglu(self) -> Launch:
        n = self.size(1 << 18, 1 << 26)
        tensors = [self.normal(n, dtype=BF16) for _ in range(5)]
        configs = configurations([1, 2, 4, 8], BLOCK=[128, 256, 512, 1024, 2048, 4096])
        grid: Grid = lambda meta: (ceiling(n, meta["BLOCK"]),)
        return Launch(f"geglu {n}", self.of["elements"].geglu_backward, (*tensors, n), grid, configs)

    def transpose(self) -> Launch:
        rows, columns = self.size(256, 16384), self.size(256, 16384)
        x, y = self.normal(rows, columns, dtype=F16), torch.empty(columns, rows, device="cuda", dtype=F16)
        configs = configurations([2, 4, 8], BM=[16, 32, 64, 128], BN=[16, 32, 64, 128])
        grid: Grid = lambda meta: (ceiling(rows, meta["BM"]), ceiling(columns, meta["BN"]))
        return Launch(
            f"transpose {rows}x{columns}", self.of["elements"].transpose, (x, y, rows, columns), grid, configs
        )

    def convolution(self) -> Launch:
        batch, channels, length = self.size(1, 16), self.size(256, 4096), self.size(256, 8192)
        x, w = self.normal(batch, channels, length, dtype=BF16), self.normal(channels, 4, dtype=BF16)
        configs = configurations([1, 2, 4, 8], K=[4], BD=[1, 2, 4, 8, 16], BL=[64, 128, 256, 512])
        grid: Grid = lambda meta: (ceiling(channels, meta["BD"]), ceiling(length, meta["BL"]), batch)
        arguments = (x, w, torch.empty_like(x), channels, length)
        title = f"convolution {batch}x{channels}x{length}"
        return Launch(title, self.of["elements"].causal_conv1d, arguments, grid, configs)

    def attention_gradient(self) -> Launch:
        heads, length = self.size(4, 128), self.size(256, 4096, 128)
        q, k, v, do, dk, dv = (self.normal(heads, length, 64, dtype=F16) for _ in range(6))
        lse, delta = self.normal(heads, length), self.normal(heads, length)
        configs = [
            Config({"D": 64, "BM": m, "BN": n}, num_warps=w, num_stages=s)
            for m, n, w, s in itertools.product([32, 64, 128], [64, 128], [4, 8], [2, 3])
        ]
        grid: Grid = lambda meta: (length // meta["BN"], heads)
        arguments = (q, k, v, do, lse, delta, dk, dv, length, 0.125)
        return Launch(
            f"attention's gradient {heads}x{length}", self.of["attention"].attn_bwd_kv, arguments, grid, configs
        )


DRAWN = [name for name in vars(Draw) if not name.startswith("_") and name not in ("size", "normal")]


def with_rows(config: Config, rows: int) -> Config:
    return Config({**config.kwargs, "R": rows}, num_warps=config.num_warps, num_stages=config.num_stages)


def call(launch: Launch, config: Config) -> None:
    launch.kernel[launch.grid](*launch.arguments, **config.all_kwargs())


def measured(launch: Launch) -> list[dict[str, Any]]:
    """A row for each configuration with its price and its time, or why it has none."""

    def quote(config: Config) -> Quote:
        return launch.kernel.quote(*launch.arguments, grid=launch.grid, **config.all_kwargs())

    def compiled(config: Config) -> Any:
        return launch.kernel.run(*launch.arguments, grid=launch.grid, warmup=True, **config.all_kwargs())

    quotes, codes = in_parallel(quote, launch.configs), in_parallel(compiled, launch.configs)
    for config in launch.configs:
        # Variants for the facts of these launches compile in the background.
        with contextlib.suppress(Exception):
            call(launch, config)
    time.sleep(SETTLED_S / 2)
    rows = []
    for config, priced, code in zip(launch.configs, quotes, codes, strict=True):
        row: dict[str, Any] = {"config": str(config)}
        failed = next((found for found in (priced, code) if isinstance(found, Exception)), None)
        if failed is None:
            try:
                times = timed(functools.partial(call, launch, config), WARM_MS, TIMED_MS, device="cuda")
                row["us"] = 1e3 * statistics.median(times)
                row |= {"price": priced.us, "terms": priced.terms, "footprint": priced.footprint}
                row |= {"registers": code.n_regs, "spills": code.n_spills}
            except Exception as e:  # The device refuses what does not fit it.
                failed = e
        if failed is not None:
            row["failed"] = first_line(failed)
        rows.append(row)
    return rows


def told(launch: Launch, rows: list[dict[str, Any]]) -> tuple[float, str]:
    """What the first choice reaches, and a row of the table."""
    timed_rows = [row for row in rows if "us" in row]
    by_time = sorted(timed_rows, key=lambda row: row["us"])
    first, best = min(timed_rows, key=lambda row: row["price"]), by_time[0]
    reached = best["us"] / first["us"]
    place = f"{by_time.index(first) + 1} of {len(by_time)}"
    cells = [launch.title, f"{reached:.2f}", place]
    cells += [f"{row['us']:.1f} us (priced {row['price']:.1f}): {row['config']}" for row in (first, best)]
    return reached, f"| {' | '.join(cells)} |"


def launches(args: argparse.Namespace) -> Iterator[Launch]:
    package = load("kernel_cases_kiln", CASES)
    modules = {family: importlib.import_module(f"{package.__name__}.{family}") for family in package.FAMILIES}
    for name in DRAWN:
        if args.only and name not in args.only:
            continue
        for i in range(args.draws):
            yield getattr(Draw(modules, random.Random(f"{args.seed} {name} {i}")), name)()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=DRAWN, default=[])
    parser.add_argument("--out")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU to time configurations on")
    print("| launch | of the best | place | first choice | best |\n|---|---|---|---|---|")
    found, reached = [], []
    for launch in launches(args):
        rows = measured(launch)
        found.append({"case": launch.title, "rows": rows})
        if any("us" in row for row in rows):
            share, row = told(launch, rows)
            reached.append(share)
            print(row, flush=True)
        else:
            print(f"| {launch.title} | none runs: {rows[0].get('failed')} |", flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps({"machine": machine("cuda"), "cases": found}), encoding="utf-8")
        torch.cuda.empty_cache()
    middle, mean = statistics.median(reached), geometric_mean(reached)
    print(f"\nThe first choice reaches {middle:.2f} of the best in the median of {len(reached)} launches,")
    print(f"{mean:.2f} in the geometric mean, {min(reached):.2f} at least: {machine('cuda')}.")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("KILN_CACHE", "off")
    sys.exit(main())
