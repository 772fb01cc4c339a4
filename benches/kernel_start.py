#!/usr/bin/env python3
"""How long kernels written by hand take to start, beside Triton from the same source.

    benches/kernel_start.py [--json OUT.json]

Needs a GPU, torch and triton. For each kernel: milliseconds of the first launch (from source to the
launch, caches off; the driver's assembly is in both), and microseconds of the host for each further
launch. The results of both are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any, Callable

os.environ.setdefault("KILN_CACHE", "off")
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()

import torch
import triton
import triton.language as tl

from kiln.kernels import port


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def softmax(out, x, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    block = tl.load(x + row * x_stride + i, mask=mask, other=-float("inf"))
    e = tl.exp(block - tl.max(block, axis=0))
    tl.store(out + row * out_stride + i, e / tl.sum(e, axis=0), mask=mask)


@triton.jit
def layer_norm(x, out, w, b, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for at in range(0, n, BLOCK):
        i = at + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + i, mask=i < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for at in range(0, n, BLOCK):
        i = at + tl.arange(0, BLOCK)
        value = tl.load(x + row * stride + i, mask=i < n, other=0.0).to(tl.float32)
        value = tl.where(i < n, value - mean, 0.0)
        squares += value * value
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    for at in range(0, n, BLOCK):
        i = at + tl.arange(0, BLOCK)
        mask = i < n
        value = tl.load(x + row * stride + i, mask=mask, other=0.0).to(tl.float32)
        value = (value - mean) * scale * tl.load(w + i, mask=mask) + tl.load(b + i, mask=mask)
        tl.store(out + row * stride + i, value, mask=mask)


@triton.jit
def matmul(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * columns
    first = (pid // in_group) * GROUP
    size = min(rows - first, GROUP)
    m = first + (pid % in_group) % size
    n = (pid % in_group) // size
    am = (m * BM + tl.arange(0, BM)) % M
    bn = (n * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    pa = a + (am[:, None] * sam + k[None, :] * sak)
    pb = b + (k[:, None] * sbk + bn[None, :] * sbn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        left = tl.load(pa, mask=k[None, :] < K - i * BK, other=0.0)
        right = tl.load(pb, mask=k[:, None] < K - i * BK, other=0.0)
        acc = tl.dot(left, right, acc)
        pa += BK * sak
        pb += BK * sbk
    cm = m * BM + tl.arange(0, BM)
    cn = n * BN + tl.arange(0, BN)
    mask = (cm[:, None] < M) & (cn[None, :] < N)
    tl.store(c + scm * cm[:, None] + scn * cn[None, :], acc.to(c.dtype.element_ty), mask=mask)


@triton.jit
def many(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s):
    tl.store(a, tl.load(b))


def cases() -> dict[str, tuple[Any, Any, tuple[Any, ...], dict[str, Any], int]]:
    """The kernel, its grid, its arguments, constants, and which argument is the result."""

    def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    x, out = rand(98432), torch.empty(98432, device="cuda")
    rows, norm = rand(1823, 781), torch.empty(1823, 781, device="cuda")
    wide, wide_out = rand(1151, 8192, dtype=torch.float16), torch.empty(1151, 8192, device="cuda", dtype=torch.float16)
    w, b = rand(8192, dtype=torch.float16), rand(8192, dtype=torch.float16)
    half = torch.float16
    left, right, product = rand(512, 512, dtype=half), rand(512, 512, dtype=half), rand(512, 512, dtype=half)
    strides = (*left.stride(), *right.stride(), *product.stride())
    blocks = {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8}
    return {
        "vector add": (add, (97,), (x, x, out, 98432), {"BLOCK": 1024}, 2),
        "softmax": (softmax, (1823,), (norm, rows, 781, 781, 781), {"BLOCK": 1024}, 0),
        "layer norm": (layer_norm, (1151,), (wide, wide_out, w, b, 8192, 8192, 1e-5), {"BLOCK": 1024}, 1),
        "matmul": (matmul, (16,), (left, right, product, 512, 512, 512, *strides), blocks, 2),
        "19 arguments": (many, (1,), (*(x for _ in range(9)), *range(3, 13)), {}, 0),
    }


def first_ms(launch: Callable[[], Any]) -> float:
    """Milliseconds of one call, with what it enqueues."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def host_us(launch: Callable[[], Any]) -> float:
    """Microseconds of the host for a launch: the median of rounds of 200."""
    rounds = []
    for _ in range(15):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            launch()
        rounds.append((time.perf_counter() - start) / 200 * 1e6)
    return statistics.median(rounds)


def device_us(launch: Callable[[], Any]) -> float:
    """Microseconds on the GPU: a graph of 20 launches, the median of 15 replays."""
    graph = torch.cuda.CUDAGraph()
    launch()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(20):
            launch()
    times = []
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 20 * 1e3)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.zeros(1, device="cuda")
    warm = torch.zeros(16, device="cuda")
    # What is done once a process is not a kernel's: contexts, targets, LLVM's tables.
    add[(1,)](warm, warm, warm, 16, BLOCK=16)
    port(add)[(1,)](warm, warm, warm, 16, BLOCK=16)
    found = []
    print(f"{'kernel':14} {'first ms':>18} {'host us':>16} {'device us':>16}   Kiln, Triton")
    for name, (kernel, grid, arguments, constants, result) in cases().items():
        row: dict[str, Any] = {"kernel": name}
        outputs = []
        for who, launched in (("kiln", port(kernel)), ("triton", kernel)):
            launch = lambda launched=launched: launched[grid](*arguments, **constants)  # noqa: E731
            arguments[result].fill_(-1)
            try:
                row[f"{who}_first_ms"] = first_ms(launch)
                outputs.append(arguments[result].clone())
                row[f"{who}_host_us"] = host_us(launch)
                row[f"{who}_device_us"] = device_us(launch)
            except Exception as e:  # noqa: BLE001
                row[f"{who}_error"] = str(e)
                print(f"{name}: {who}: {e}", file=sys.stderr)
        if len(outputs) == 2:
            row["max_difference"] = float((outputs[0].double() - outputs[1].double()).abs().max())
        found.append(row)
        both = lambda what: " ".join(f"{row.get(f'{who}_{what}', float('nan')):8.2f}" for who in ("kiln", "triton"))  # noqa: B023,E731
        print(f"{name:14} {both('first_ms')} {both('host_us')} {both('device_us')}   {row.get('max_difference')}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(found, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
