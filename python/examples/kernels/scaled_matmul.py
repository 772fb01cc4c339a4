"""Matmul of 8-bit operands with scales: C[m, n] = scale_a[m] * scale_b[n] * sum_k A[m, k] B[n, k].

A: [M, K] and B: [N, K] in int8 or float8_e4m3fn, scales in f32 for each row of either (a token of activations, an
output feature of weights). int8 is summed exactly in int32, f8 in f32. Scales are constant along K, so that they
are applied once, to the sums. Both operands are contiguous along K, as tensor cores want 8-bit operands.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case
from .matmul import grouped_tile


# ANCHOR: kernel
@kiln.kernel
def scaled_matmul_kernel(
    a, b, scale_a, scale_b, c, M, N, K,
    SUM: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr, GROUP: kl.constexpr,
):  # fmt: skip
    tile_m, tile_n = grouped_tile(kl.program_id(0), M, N, BM, BN, GROUP)
    m = tile_m * BM + kl.arange(0, BM)
    n = tile_n * BN + kl.arange(0, BN)
    # int32 for int8, float32 for f8.
    acc = kl.zeros((BM, BN), dtype=SUM)
    for start in range(0, K, BK):
        k = start + kl.arange(0, BK)
        left = kl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        right = kl.load(b + n[None, :] * K + k[:, None], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0)
        acc = kl.dot(left, right, acc, out_dtype=SUM)
    row_scale = kl.load(scale_a + m, mask=m < M, other=0.0)
    column_scale = kl.load(scale_b + n, mask=n < N, other=0.0)
    result = acc.to(kl.float32) * row_scale[:, None] * column_scale[None, :]
    mask = (m[:, None] < M) & (n[None, :] < N)
    kl.store(c + m[:, None] * N + n[None, :], result.to(c.dtype.element_ty), mask=mask)
# ANCHOR_END: kernel


# ANCHOR: launch
def quantise(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a matrix in 8 bits, and their scales: the largest element becomes the type's largest."""
    limit = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    scale = x.abs().amax(dim=1).clamp(min=1e-12).float() / limit
    scaled = x.float() / scale[:, None]
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scale


def scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """The product of [M, K] and [N, K] transposed, with a scale for each row of both."""
    assert a.dtype == b.dtype and a.dtype in (torch.int8, torch.float8_e4m3fn), "int8 or float8_e4m3fn"
    assert a.is_contiguous() and b.is_contiguous() and a.shape[1] == b.shape[1], "[M, K] and [N, K]"
    (m, k), n = a.shape, b.shape[0]
    assert scale_a.shape == (m,) and scale_b.shape == (n,), "a scale for each row"
    c = torch.empty(m, n, device=a.device, dtype=dtype)
    bm, bn, bk = 128, 128, 128
    scaled_matmul_kernel[(cdiv(m, bm) * cdiv(n, bn),)](
        a, b, scale_a, scale_b, c, m, n, k,
        SUM=kl.int32 if a.dtype == torch.int8 else kl.float32,
        BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=8,
    )  # fmt: skip
    return c
# ANCHOR_END: launch


def reference(a, b, scale_a, scale_b, dtype=torch.bfloat16):
    return (a.double() @ b.double().t()) * scale_a[:, None] * scale_b[None, :]


def inputs(device, m, n, k, dtype=torch.int8, result=torch.bfloat16):
    a, scale_a = quantise(torch.randn(m, k, device=device), dtype)
    b, scale_b = quantise(torch.randn(n, k, device=device), dtype)
    return a, b, scale_a, scale_b, result


def scaled_case(dtype: torch.dtype) -> Case:
    return Case(
        run=scaled_matmul,
        reference=reference,
        inputs=inputs,
        small=[
            {"m": 100, "n": 70, "k": 160, "dtype": dtype},
            {"m": 1, "n": 130, "k": 64, "dtype": dtype, "result": torch.float32},
        ],
        full={"m": 4096, "n": 4096, "k": 4096, "dtype": dtype},
        # Sums of int8 are exact. Tensor cores of Hopper add f8 products, 32 at a time, and truncate the sum to 13
        # bits behind the point: half a unit in the mean, 128 times for K = 4096.
        roundings=4 if dtype == torch.int8 else 8,
        working=torch.float32 if dtype == torch.int8 else torch.float16,
    )


CASES = {"int8": scaled_case(torch.int8), "f8": scaled_case(torch.float8_e4m3fn)}


def library(a, b, scale_a, scale_b):
    """What PyTorch has for it: cuBLASLt."""
    if a.dtype == torch.int8:
        return torch._int_mm(a, b.t()) * scale_a[:, None] * scale_b[None, :]
    scales = {"scale_a": scale_a[:, None], "scale_b": scale_b[None, :]}
    return torch._scaled_mm(a, b.t(), out_dtype=torch.bfloat16, **scales)


@perf_report(
    [
        Benchmark(
            x_names=["size"],
            x_vals=[1024, 2048, 4096, 8192],
            line_arg="provider",
            line_vals=["kiln", "torch"],
            line_names=["Kiln", "cuBLASLt"],
            ylabel="TFLOP/s",
            plot_name=f"scaled_matmul_{name}",
            args={"dtype": dtype},
        )
        for name, dtype in (("int8", torch.int8), ("f8", torch.float8_e4m3fn))
    ]
)
def benchmark(size, dtype, provider, device=DEVICE, clock=do_bench):
    a, b, scale_a, scale_b, _ = inputs(device, size, size, size, dtype)
    calls = {
        "kiln": lambda: scaled_matmul(a, b, scale_a, scale_b),
        "torch": lambda: library(a, b, scale_a, scale_b),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * size**3 / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
