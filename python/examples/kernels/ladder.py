"""From one element a thread to warp specialisation: what each idea buys in a matmul C = A B in 16 bits.

In a language of blocks a step of the ladder is a size of blocks, or an option; threads, shared memory and
copies follow from it:

    one element      8 x 16 elements by 128 threads: each factor comes from memory or a cache
    thread tile      64 x 64 by 128 threads: a factor serves several products of a thread
    shared tile      64 x 64 x 32, a `dot` in f32: operands lie in shared memory, products are FMAs
    tensor cores     128 x 128 x 32, a `dot` in 16 bits
    pipelined        128 x 128 x 64: rows of 128 bytes, which the tensor memory accelerator copies ahead
    warp-specialised 128 x 256 x 64: a producer copies while two groups of warps multiply
    persistent       the same tiles, several for each instance, in a loop that asks for specialisation

On H100 and H200 the compiler splits every loop that it copies ahead by tensor maps into roles, so that the
pipelined step has them too: the next one has larger tiles. `benches/ladder.py` climbs the same steps in
block IR.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case
from .matmul import grouped_tile, inputs, empty_product


# ANCHOR: outer
@kiln.kernel
def outer_kernel(a, b, c, M, N, K, BM: kl.constexpr, BN: kl.constexpr):
    """A sum of outer products: one column of A and one row of B at a time."""
    m = kl.program_id(0) * BM + kl.arange(0, BM)
    n = kl.program_id(1) * BN + kl.arange(0, BN)
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    for k in range(0, K):
        left = kl.load(a + m * K + k, mask=m < M, other=0.0).to(kl.float32)
        right = kl.load(b + k * N + n, mask=n < N, other=0.0).to(kl.float32)
        acc += left[:, None] * right[None, :]
    mask = (m[:, None] < M) & (n[None, :] < N)
    kl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty), mask=mask)
# ANCHOR_END: outer


# ANCHOR: dot
@kiln.kernel
def dot_tile(
    a, b, c, M, N, K, tile_m, tile_n,
    EXACT: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr,
):  # fmt: skip
    """A tile of C by a loop over K; with EXACT products are those of f32."""
    m = tile_m * BM + kl.arange(0, BM)
    n = tile_n * BN + kl.arange(0, BN)
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    for start in range(0, K, BK):
        k = start + kl.arange(0, BK)
        left = kl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = kl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        if EXACT:
            acc += kl.dot(left.to(kl.float32), right.to(kl.float32), input_precision="ieee")
        else:
            acc += kl.dot(left, right)
    mask = (m[:, None] < M) & (n[None, :] < N)
    kl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty), mask=mask)


@kiln.kernel
def tile_kernel(
    a, b, c, M, N, K, EXACT: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr
):
    """An instance for each tile."""
    tile_m, tile_n = grouped_tile(kl.program_id(0), M, N, BM, BN, 8)
    dot_tile(a, b, c, M, N, K, tile_m, tile_n, EXACT, BM, BN, BK)


@kiln.kernel
def persistent_kernel(a, b, c, M, N, K, BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr):
    """As many instances as multiprocessors, each with several tiles."""
    tiles = kl.cdiv(M, BM) * kl.cdiv(N, BN)
    for tile in kl.range(kl.program_id(0), tiles, kl.num_programs(0), flatten=True, warp_specialize=True):
        tile_m, tile_n = grouped_tile(tile, M, N, BM, BN, 8)
        dot_tile(a, b, c, M, N, K, tile_m, tile_n, False, BM, BN, BK)
# ANCHOR_END: dot


# ANCHOR: launch
STEPS = [
    "one element",
    "thread tile",
    "shared tile",
    "tensor cores",
    "pipelined",
    "warp-specialised",
    "persistent",
]


def multiprocessors(device: torch.device) -> int:
    """How many instances a persistent kernel has: 4 where there is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def climb(step: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of contiguous matrices, as a step of the ladder computes it."""
    assert a.is_contiguous() and b.is_contiguous(), "contiguous matrices"
    c = empty_product(a, b)
    sizes = (a.shape[0], b.shape[1], a.shape[1])
    m, n, _ = sizes
    if step in ("one element", "thread tile"):
        bm, bn = (8, 16) if step == "one element" else (64, 64)
        outer_kernel[(cdiv(m, bm), cdiv(n, bn))](a, b, c, *sizes, BM=bm, BN=bn, num_warps=4)
    elif step == "persistent":
        bm, bn = 128, 256
        grid = (min(multiprocessors(a.device), cdiv(m, bm) * cdiv(n, bn)),)
        persistent_kernel[grid](a, b, c, *sizes, BM=bm, BN=bn, BK=64, num_warps=8)
    else:
        bm, bn, bk = {
            "shared tile": (64, 64, 32),
            "tensor cores": (128, 128, 32),
            "pipelined": (128, 128, 64),
            "warp-specialised": (128, 256, 64),
        }[step]
        exact, warps = step == "shared tile", 4 if step == "shared tile" else 8
        grid = (cdiv(m, bm) * cdiv(n, bn),)
        tile_kernel[grid](a, b, c, *sizes, EXACT=exact, BM=bm, BN=bn, BK=bk, num_warps=warps)
    return c
# ANCHOR_END: launch


def step_case(step: str) -> Case:
    return Case(
        run=lambda a, b: climb(step, a, b),
        reference=lambda a, b: a @ b,
        inputs=inputs,
        small=[
            {"m": 64, "n": 64, "k": 64},
            {"m": 70, "n": 40, "k": 33, "dtype": torch.bfloat16},
        ],
        full={"m": 4096, "n": 4096, "k": 4096, "dtype": torch.bfloat16},
        roundings=64,
        products=True,
    )


CASES = {step: step_case(step) for step in STEPS}


@perf_report(
    Benchmark(
        x_names=["step"],
        x_vals=STEPS,
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln", "cuBLAS"],
        ylabel="TFLOP/s",
        plot_name="ladder",
        args={"size": 4096, "dtype": torch.bfloat16},
    )
)
def benchmark(step, size, dtype, provider, device=DEVICE, clock=do_bench):
    a, b = inputs(device, size, size, size, dtype)
    calls = {"kiln": lambda: climb(step, a, b), "torch": lambda: a @ b}
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * size**3 / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
