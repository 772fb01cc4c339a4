"""Stream-K matmul: the steps along K of all tiles are dealt out evenly, whatever the number of tiles is.

Osama et al., 2023, arXiv:2301.03598. With 133 tiles on 132 multiprocessors, a tile an instance takes the
time of two tiles. Here every instance takes the same number of steps of BK: they begin and end within
tiles. Whole tiles are stored; parts of a tile are added up in f32 by atomics. Which order they are added
in is not fixed, so that two runs may differ in the last bits of f32. A second kernel rounds the sums.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case
from .ladder import multiprocessors
from .matmul import grouped_tile, inputs, empty_product


# ANCHOR: kernel
@kiln.kernel
def stream_k_kernel(
    a, b, sums, M, N, K, instance_steps,
    BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr, GROUP: kl.constexpr,
):  # fmt: skip
    tile_steps = kl.cdiv(K, BK)
    steps = kl.cdiv(M, BM) * kl.cdiv(N, BN) * tile_steps
    step = kl.program_id(0) * instance_steps
    last = min(step + instance_steps, steps)
    while step < last:
        tile_m, tile_n = grouped_tile(step // tile_steps, M, N, BM, BN, GROUP)
        m = tile_m * BM + kl.arange(0, BM)
        n = tile_n * BN + kl.arange(0, BN)
        # The steps of this tile that are this instance's.
        first = step % tile_steps
        end = min(tile_steps, first + last - step)
        acc = kl.zeros((BM, BN), dtype=kl.float32)
        for i in range(first, end):
            k = i * BK + kl.arange(0, BK)
            left_mask = (m[:, None] < M) & (k[None, :] < K)
            right_mask = (k[:, None] < K) & (n[None, :] < N)
            left = kl.load(a + m[:, None] * K + k[None, :], mask=left_mask, other=0.0)
            right = kl.load(b + k[:, None] * N + n[None, :], mask=right_mask, other=0.0)
            acc = kl.dot(left, right, acc)
        out = sums + m[:, None] * N + n[None, :]
        mask = (m[:, None] < M) & (n[None, :] < N)
        if end - first == tile_steps:
            kl.store(out, acc, mask=mask)
        else:
            kl.atomic_add(out, acc, mask=mask, sem="relaxed")
        step += end - first


@kiln.kernel
def round_kernel(sums, out, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(out + i, kl.load(sums + i, mask=i < n).to(out.dtype.element_ty), mask=i < n)
# ANCHOR_END: kernel


# ANCHOR: launch
def stream_k_matmul(a: torch.Tensor, b: torch.Tensor, instances: int | None = None) -> torch.Tensor:
    """The product of contiguous matrices."""
    assert a.is_contiguous() and b.is_contiguous(), "contiguous matrices"
    c = empty_product(a, b)
    (m, k), n = a.shape, b.shape[1]
    bm, bn, bk = 128, 128, 64
    sums = torch.zeros(m, n, device=a.device, dtype=torch.float32)
    steps = cdiv(m, bm) * cdiv(n, bn) * cdiv(k, bk)
    instance_steps = cdiv(steps, instances or multiprocessors(a.device)) or 1
    stream_k_kernel[(cdiv(steps, instance_steps),)](
        a, b, sums, m, n, k, instance_steps, BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=8
    )
    round_kernel[(cdiv(m * n, 1024),)](sums, c, m * n, BLOCK=1024)
    return c
# ANCHOR_END: launch


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


CASES = {
    "stream_k": Case(
        run=stream_k_matmul,
        reference=reference,
        inputs=inputs,
        small=[
            {"m": 300, "n": 270, "k": 200},
            {"m": 1, "n": 64, "k": 500, "dtype": torch.bfloat16},
            {"m": 0, "n": 64, "k": 64},
            {"m": 130, "n": 60, "k": 130},
        ],
        full={"m": 4096, "n": 4096, "k": 4096},
        roundings=64,
        products=True,
    ),
}


@perf_report(
    Benchmark(
        x_names=["shape"],
        # Numbers of tiles that fill multiprocessors badly, and a long sum for few tiles.
        x_vals=["512x512x4096", "1024x1024x8192", "1536x1536x4096", "4096x4096x4096", "512x512x32768"],
        xlabel="M x N x K",
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln", "cuBLAS"],
        ylabel="TFLOP/s",
        plot_name="stream_k_matmul",
        args={"dtype": torch.float16},
    )
)
def benchmark(shape, dtype, provider, device=DEVICE, clock=do_bench):
    m, n, k = map(int, shape.split("x"))
    a, b = inputs(device, m, n, k, dtype)
    calls = {"kiln": lambda: stream_k_matmul(a, b), "torch": lambda: a @ b}
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * m * n * k / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
