"""Matmul: C = A B in f32 accumulators, A of shape [M, K], B of shape [K, N], any strides.

An instance computes a tile of C. Instances with neighbouring numbers run at the same time, so their order
decides what the L2 cache holds: `grouped_tile` numbers tiles down GROUP rows before it goes one column to
the right, so that instances in flight share rows of A and columns of B.

There are two forms: by pointers and strides, as in Triton, and by arrays (`kl.Array`), whose slices are
masked and bounded by construction.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case


# ANCHOR: order
@kiln.kernel
def grouped_tile(tile, M, N, BM: kl.constexpr, BN: kl.constexpr, GROUP: kl.constexpr):
    """The row and column of a tile, in tiles."""
    rows, columns = kl.cdiv(M, BM), kl.cdiv(N, BN)
    tiles_in_group = GROUP * columns
    first_row = tile // tiles_in_group * GROUP
    # The last group may have fewer rows.
    group_rows = min(rows - first_row, GROUP)
    row = first_row + (tile % tiles_in_group) % group_rows
    return row, (tile % tiles_in_group) // group_rows
# ANCHOR_END: order


# ANCHOR: kernel
@kiln.kernel
def matmul_kernel(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    EPILOGUE: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr, GROUP: kl.constexpr,
):  # fmt: skip
    tile_m, tile_n = grouped_tile(kl.program_id(0), M, N, BM, BN, GROUP)
    # Rows past the end are taken modulo M: they are loaded from somewhere, and never stored.
    m = (tile_m * BM + kl.arange(0, BM)) % M
    n = (tile_n * BN + kl.arange(0, BN)) % N
    k = kl.arange(0, BK)
    a_tile = a + m[:, None] * stride_am + k[None, :] * stride_ak
    b_tile = b + k[:, None] * stride_bk + n[None, :] * stride_bn
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    for i in range(0, kl.cdiv(K, BK)):
        left = kl.load(a_tile, mask=k[None, :] < K - i * BK, other=0.0)
        right = kl.load(b_tile, mask=k[:, None] < K - i * BK, other=0.0)
        acc = kl.dot(left, right, acc)
        a_tile += BK * stride_ak
        b_tile += BK * stride_bk
    # What follows the matmul works on the accumulators, before they are rounded.
    if EPILOGUE is not None:
        acc = EPILOGUE(acc)
    m = tile_m * BM + kl.arange(0, BM)
    n = tile_n * BN + kl.arange(0, BN)
    c_tile = c + m[:, None] * stride_cm + n[None, :] * stride_cn
    kl.store(c_tile, acc.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))
# ANCHOR_END: kernel


# ANCHOR: arrays
@kiln.kernel
def array_matmul_kernel(
    a: kl.Array, b: kl.Array, c: kl.Array,
    BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr, GROUP: kl.constexpr,
):  # fmt: skip
    tile_m, tile_n = grouped_tile(kl.program_id(0), a.shape[0], b.shape[1], BM, BN, GROUP)
    m, n = tile_m * BM, tile_n * BN
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    for k in range(0, a.shape[1], BK):
        # Elements past the end are read as 0.
        acc = kl.dot(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], acc)
    c[m : m + BM, n : n + BN] = acc.to(c.dtype)
# ANCHOR_END: arrays


# ANCHOR: launch
def config(bm: int, bn: int, bk: int, warps: int, stages: int) -> kiln.kernels.Config:
    blocks = {"BM": bm, "BN": bn, "BK": bk, "GROUP": 8}
    return kiln.kernels.Config(blocks, num_warps=warps, num_stages=stages)


CONFIGURATIONS = [
    config(128, 256, 64, 8, 3),
    config(128, 128, 64, 8, 3),
    config(64, 256, 64, 4, 4),
    config(128, 64, 64, 4, 4),
    config(64, 128, 64, 4, 4),
    config(64, 64, 64, 4, 4),
    config(64, 32, 64, 4, 4),
]

# The fastest configuration is measured once for each size.
tuned_matmul_kernel = kiln.kernels.autotune(CONFIGURATIONS, key=["M", "N", "K"])(matmul_kernel)


def empty_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Memory for the product of two matrices."""
    assert a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0], "matrices [M, K] and [K, N]"
    assert a.dtype == b.dtype, "operands have one type"
    return torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)


def matmul(a: torch.Tensor, b: torch.Tensor, epilogue=None) -> torch.Tensor:
    """The product of two matrices; `epilogue` is a kernel that is applied to its elements."""
    c = empty_product(a, b)
    (m, k), n = a.shape, b.shape[1]
    tuned_matmul_kernel[lambda meta: (cdiv(m, meta["BM"]) * cdiv(n, meta["BN"]),)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), EPILOGUE=epilogue
    )
    return c


def array_matmul(a: torch.Tensor, b: torch.Tensor, bm=128, bn=128, bk=64) -> torch.Tensor:
    c = empty_product(a, b)
    grid = (cdiv(a.shape[0], bm) * cdiv(b.shape[1], bn),)
    array_matmul_kernel[grid](a, b, c, BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=8)
    return c
# ANCHOR_END: launch


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def inputs(device, m, n, k, dtype=torch.float16, transposed=False):
    a = torch.randn(m, k, device=device).to(dtype)
    b = torch.randn(n, k, device=device).t() if transposed else torch.randn(k, n, device=device)
    return a, b.to(dtype)


SMALL = [
    {"m": 100, "n": 70, "k": 33},
    {"m": 130, "n": 257, "k": 300, "transposed": True},
    {"m": 1, "n": 64, "k": 64, "dtype": torch.bfloat16},
    {"m": 0, "n": 64, "k": 64},
    {"m": 33, "n": 40, "k": 50, "dtype": torch.float32},
]

CASES = {
    "pointers": Case(
        run=matmul,
        reference=reference,
        inputs=inputs,
        small=SMALL,
        full={"m": 4096, "n": 4096, "k": 4096},
        # A sum of K products, whose magnitude is that of the largest results.
        roundings=64,
        products=True,
    ),
    "arrays": Case(
        run=array_matmul,
        reference=reference,
        inputs=inputs,
        small=SMALL,
        full={"m": 4096, "n": 4096, "k": 4096},
        roundings=64,
        products=True,
        arrays=True,
    ),
}


@perf_report(
    Benchmark(
        x_names=["size"],
        x_vals=[512, 1024, 2048, 4096, 8192],
        line_arg="provider",
        line_vals=["kiln", "kiln arrays", "torch"],
        line_names=["Kiln, pointers", "Kiln, arrays", "cuBLAS"],
        ylabel="TFLOP/s",
        plot_name="matmul",
        args={"dtype": torch.float16},
    )
)
def benchmark(size, dtype, provider, device=DEVICE, clock=do_bench):
    a, b = inputs(device, size, size, size, dtype)
    calls = {
        "kiln": lambda: matmul(a, b),
        "kiln arrays": lambda: array_matmul(a, b),
        "torch": lambda: a @ b,
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * size**3 / milliseconds * 1e-9


@perf_report(
    Benchmark(
        x_names=["configuration"],
        x_vals=["128x256x64x8", "128x128x64x8", "64x256x64x4", "128x64x64x4", "64x128x64x4", "64x64x64x4"],
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln", "cuBLAS"],
        ylabel="TFLOP/s",
        xlabel="BM x BN x BK x warps",
        plot_name="matmul_configurations",
        args={"size": 4096, "dtype": torch.float16},
    )
)
def configurations(configuration, size, dtype, provider, device=DEVICE, clock=do_bench):
    bm, bn, bk, warps = map(int, configuration.split("x"))
    a, b = inputs(device, size, size, size, dtype)
    c = empty_product(a, b)
    grid = (cdiv(size, bm) * cdiv(size, bn),)

    def launch() -> None:
        matmul_kernel[grid](
            a, b, c, size, size, size, *a.stride(), *b.stride(), *c.stride(),
            EPILOGUE=None, BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=warps,
        )  # fmt: skip

    milliseconds = clock({"kiln": launch, "torch": lambda: a @ b}[provider], return_mode="median")
    return 2 * size**3 / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
    configurations.run(print_data=True)
