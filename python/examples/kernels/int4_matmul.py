"""Matmul with weights of 4 bits: y = x w, w[k, n] = (q[k, n] - zero[g, n]) * scale[g, n], g = k // SIZE.

x: [M, K] in 16 bits, packed: [K / 2, N] in uint8, scales and zeros: [K / SIZE, N] in 16 bits, as group-wise quantised
language models have them (GPTQ, arXiv:2210.17323; AWQ, arXiv:2306.00978). Weights become 16 bits in registers, on
their way to tensor cores: with few rows of x the time is that of reading them, a quarter of that of 16 bits.

Which two weights share a byte is free. Here rows k and k + K / 2 do, so that low and high halves of a tile of bytes
are two tiles of weights, for two tiles of x, and nothing is interleaved.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case


# ANCHOR: kernel
@kiln.kernel
def dequantise(bits, scales, zeros, group, n, N):
    """Weights of a tile within one group, in the type of the scales."""
    scale = kl.load(scales + group * N + n, mask=n < N, other=0.0)
    zero = kl.load(zeros + group * N + n, mask=n < N, other=0.0)
    weights = (bits.to(kl.float32) - zero[None, :].to(kl.float32)) * scale[None, :].to(kl.float32)
    return weights.to(scale.dtype)


@kiln.kernel
def int4_matmul_kernel(
    x, packed, scales, zeros, y, M, N, K,
    SIZE: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr,
):  # fmt: skip
    m = kl.program_id(0) * BM + kl.arange(0, BM)
    n = kl.program_id(1) * BN + kl.arange(0, BN)
    half = K // 2
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    for start in range(0, half, BK):
        k = start + kl.arange(0, BK)
        bits = kl.load(packed + k[:, None] * N + n[None, :], mask=n[None, :] < N, other=0)
        x_tile = x + m[:, None] * K + k[None, :]
        left = kl.load(x_tile, mask=m[:, None] < M, other=0.0)
        acc = kl.dot(left, dequantise(bits & 15, scales, zeros, start // SIZE, n, N), acc)
        left = kl.load(x_tile + half, mask=m[:, None] < M, other=0.0)
        acc = kl.dot(left, dequantise(bits >> 4, scales, zeros, (start + half) // SIZE, n, N), acc)
    mask = (m[:, None] < M) & (n[None, :] < N)
    kl.store(y + m[:, None] * N + n[None, :], acc.to(y.dtype.element_ty), mask=mask)
# ANCHOR_END: kernel


# ANCHOR: launch
def pack(q: torch.Tensor) -> torch.Tensor:
    """Numbers from 0 to 15 of shape [K, N], two in a byte."""
    half = q.shape[0] // 2
    return (q[:half] | q[half:] << 4).to(torch.uint8)


def int4_matmul(
    x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The product of x and dequantised weights, in the type of x."""
    (m, k), n = x.shape, packed.shape[1]
    size = k // scales.shape[0]
    assert x.is_contiguous() and packed.is_contiguous() and packed.shape[0] * 2 == k, "two weights a byte"
    assert scales.shape == zeros.shape == (k // size, n) and scales.dtype == x.dtype, "groups of weights"
    bk = min(size, 64)
    assert size % bk == 0 and k // 2 % size == 0, "groups are a multiple of 64, and end at K / 2"
    y = torch.empty(m, n, device=x.device, dtype=x.dtype)
    bm = 16 if m <= 16 else 64
    bn = 64 if m <= 16 else 128
    int4_matmul_kernel[(cdiv(m, bm), cdiv(n, bn))](
        x, packed, scales, zeros, y, m, n, k, SIZE=size, BM=bm, BN=bn, BK=bk, num_warps=4
    )
    return y
# ANCHOR_END: launch


def weights(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """The matrix [K, N] in the type of the scales."""
    q = torch.cat([packed & 15, packed >> 4]).to(scales.dtype)
    size = q.shape[0] // scales.shape[0]
    return (q - zeros.repeat_interleave(size, dim=0)) * scales.repeat_interleave(size, dim=0)


def reference(x, packed, scales, zeros):
    return x @ weights(packed, scales, zeros)


def inputs(device, m, n, k, group=64, dtype=torch.float16):
    packed = pack(torch.randint(0, 16, (k, n), device=device))
    scales = (torch.rand(k // group, n, device=device) + 0.5).to(dtype) / 16
    zeros = torch.randint(6, 10, (k // group, n), device=device).to(dtype)
    return torch.randn(m, k, device=device).to(dtype), packed, scales, zeros


CASES = {
    "int4": Case(
        run=int4_matmul,
        reference=reference,
        inputs=inputs,
        small=[
            {"m": 1, "n": 100, "k": 256},
            {"m": 70, "n": 200, "k": 128, "dtype": torch.bfloat16},
            {"m": 0, "n": 64, "k": 128},
            {"m": 20, "n": 64, "k": 256, "group": 32},
        ],
        full={"m": 16, "n": 11008, "k": 4096, "group": 128},
        # A dequantised weight is rounded to the type of x.
        roundings=1,
        working=None,
    ),
}


@perf_report(
    Benchmark(
        x_names=["m"],
        x_vals=[1, 4, 16, 64, 256, 1024],
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln, 4 bits", "cuBLAS, 16 bits"],
        xlabel="rows of x",
        ylabel="TFLOP/s",
        plot_name="int4_matmul",
        args={"n": 11008, "k": 4096, "group": 128, "dtype": torch.float16},
    )
)
def benchmark(m, n, k, group, dtype, provider, device=DEVICE, clock=do_bench):
    x, packed, scales, zeros = inputs(device, m, n, k, group, dtype)
    w = weights(packed, scales, zeros)
    calls = {"kiln": lambda: int4_matmul(x, packed, scales, zeros), "torch": lambda: x @ w}
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * m * n * k / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
