"""Distances between all pairs of rows: out[i, j] = (sum_k |x[i, k] - y[j, k]|^p)^(1/p), p = 1 or 2.

x: [M, K], y: [N, K]. For p = 2 there are two ways: |x|^2 + |y|^2 - 2 x y is a matmul, which tensor cores
compute, and cancels where rows are near each other; differences are exact there, and cost FMAs. The sum of
absolute differences (p = 1) has the second alone. Either way distances are computed in tiles, and no array of
differences is in memory.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case


# ANCHOR: differences
@kiln.kernel
def difference_kernel(
    x, y, out, M, N, K,
    SQUARED: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr,
):  # fmt: skip
    m = kl.program_id(0) * BM + kl.arange(0, BM)
    n = kl.program_id(1) * BN + kl.arange(0, BN)
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    for start in range(0, K, BK):
        k = start + kl.arange(0, BK)
        left_mask = (m[:, None] < M) & (k[None, :] < K)
        right_mask = (n[:, None] < N) & (k[None, :] < K)
        left = kl.load(x + m[:, None] * K + k[None, :], mask=left_mask, other=0.0).to(kl.float32)
        right = kl.load(y + n[:, None] * K + k[None, :], mask=right_mask, other=0.0).to(kl.float32)
        # [BM, BN, BK]: a thread sums its part of the last axis in registers.
        difference = left[:, None, :] - right[None, :, :]
        if SQUARED:
            acc += kl.sum(difference * difference, axis=2)
        else:
            acc += kl.sum(kl.abs(difference), axis=2)
    if SQUARED:
        acc = kl.sqrt(acc)
    mask = (m[:, None] < M) & (n[None, :] < N)
    kl.store(out + m[:, None] * N + n[None, :], acc, mask=mask)
# ANCHOR_END: differences


# ANCHOR: kernel
@kiln.kernel
def product_kernel(x, y, out, M, N, K, BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr):
    m = kl.program_id(0) * BM + kl.arange(0, BM)
    n = kl.program_id(1) * BN + kl.arange(0, BN)
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    x_squares = kl.zeros([BM], dtype=kl.float32)
    y_squares = kl.zeros([BN], dtype=kl.float32)
    for start in range(0, K, BK):
        k = start + kl.arange(0, BK)
        left_mask = (m[:, None] < M) & (k[None, :] < K)
        right_mask = (n[:, None] < N) & (k[None, :] < K)
        left = kl.load(x + m[:, None] * K + k[None, :], mask=left_mask, other=0.0)
        right = kl.load(y + n[:, None] * K + k[None, :], mask=right_mask, other=0.0)
        acc = kl.dot(left, right.T, acc)
        # Rows' squares are summed from the tiles that the product reads anyway.
        x_squares += kl.sum(left.to(kl.float32) * left.to(kl.float32), axis=1)
        y_squares += kl.sum(right.to(kl.float32) * right.to(kl.float32), axis=1)
    squared = x_squares[:, None] + y_squares[None, :] - 2.0 * acc
    # Rounding may leave a little below 0.
    distance = kl.sqrt(kl.maximum(squared, 0.0))
    mask = (m[:, None] < M) & (n[None, :] < N)
    kl.store(out + m[:, None] * N + n[None, :], distance, mask=mask)
# ANCHOR_END: kernel


# ANCHOR: launch
def cdist(x: torch.Tensor, y: torch.Tensor, p: int = 2, differences: bool = False) -> torch.Tensor:
    """Distances between the rows of contiguous matrices; p = 2 by differences if that is asked for."""
    assert x.dim() == y.dim() == 2 and x.shape[1] == y.shape[1] and x.dtype == y.dtype
    assert x.is_contiguous() and y.is_contiguous() and p in (1, 2)
    (m, k), n = x.shape, y.shape[0]
    out = torch.empty(m, n, device=x.device, dtype=torch.float32)
    if p == 1 or differences:
        difference_kernel[(cdiv(m, 64), cdiv(n, 64))](
            x, y, out, m, n, k, SQUARED=p == 2, BM=64, BN=64, BK=8, num_warps=8
        )
    else:
        product_kernel[(cdiv(m, 128), cdiv(n, 128))](
            x, y, out, m, n, k, BM=128, BN=128, BK=32, num_warps=8
        )
    return out
# ANCHOR_END: launch


def reference(x, y, p=2, differences=False):
    return torch.cdist(x, y, p=p, compute_mode="donot_use_mm_for_euclid_dist")


def inputs(device, m, n, k, p=2, differences=False, dtype=torch.float32):
    x, y = (torch.randn(rows, k, device=device).to(dtype) for rows in (m, n))
    return x, y, p, differences


CASES = {
    "by a matmul": Case(
        run=cdist,
        reference=reference,
        inputs=inputs,
        small=[
            {"m": 70, "n": 33, "k": 50},
            {"m": 1, "n": 200, "k": 64, "dtype": torch.float16},
        ],
        full={"m": 8192, "n": 8192, "k": 512},
        # Distances of random rows are as large as the rows, so that cancellation costs a bit.
        roundings=64,
        products=True,
    ),
    "by differences": Case(
        run=cdist,
        reference=reference,
        inputs=inputs,
        small=[
            {"m": 70, "n": 33, "k": 50, "p": 1},
            {"m": 0, "n": 33, "k": 50, "p": 1},
            {"m": 20, "n": 65, "k": 17, "differences": True},
        ],
        full={"m": 8192, "n": 8192, "k": 512, "p": 1},
        roundings=64,
    ),
}


@perf_report(
    [
        Benchmark(
            x_names=["k"],
            x_vals=[64, 128, 256, 512],
            line_arg="provider",
            line_vals=["kiln", "torch"],
            line_names=["Kiln", "torch.cdist"],
            ylabel="TFLOP/s",
            plot_name=f"cdist_p{p}",
            args={"rows": 4096, "p": p},
        )
        for p in (2, 1)
    ]
)
def benchmark(k, rows, p, provider, device=DEVICE, clock=do_bench):
    x, y, *_ = inputs(device, rows, rows, k)
    calls = {"kiln": lambda: cdist(x, y, p), "torch": lambda: torch.cdist(x, y, p=float(p))}
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * rows * rows * k / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
