"""Grouped GEMM: C_g = A_g B_g for many products of different sizes in one launch.

A_g: [M_g, K_g], B_g: [K_g, N_g], as in mixtures of experts. Addresses and sizes lie in memory: the grid is
fixed, and an instance looks for its tiles by counting those of the products before. Products that
alone would leave most of a GPU idle share it.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case
from .ladder import multiprocessors


# ANCHOR: kernel
@kiln.kernel
def grouped_gemm_kernel(
    addresses, sizes, groups, like, ALIGNED: kl.constexpr,
    BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr,
):  # fmt: skip
    """addresses: [groups, 3] of A, B and C; sizes: [groups, 3] of M, N and K; `like` has the elements' type."""
    tile = kl.program_id(0)
    # Number of the first tile of a product.
    first = 0
    for g in range(groups):
        M = kl.load(sizes + g * 3)
        N = kl.load(sizes + g * 3 + 1)
        K = kl.load(sizes + g * 3 + 2)
        columns = kl.cdiv(N, BN)
        tiles = kl.cdiv(M, BM) * columns
        while tile >= first and tile < first + tiles:
            # Integers in memory are addresses of elements of the type of `like`.
            a = kl.load(addresses + g * 3).to(like.dtype)
            b = kl.load(addresses + g * 3 + 1).to(like.dtype)
            c = kl.load(addresses + g * 3 + 2).to(like.dtype)
            if ALIGNED:
                # Nothing is known of numbers in memory. Where the host has looked, loads may be vectors.
                N, K = kl.multiple_of(N, 16), kl.multiple_of(K, 16)
                a, b, c = kl.multiple_of(a, 16), kl.multiple_of(b, 16), kl.multiple_of(c, 16)
            m = (tile - first) // columns * BM + kl.arange(0, BM)
            n = (tile - first) % columns * BN + kl.arange(0, BN)
            acc = kl.zeros((BM, BN), dtype=kl.float32)
            for start in range(0, K, BK):
                k = start + kl.arange(0, BK)
                left_mask = (m[:, None] < M) & (k[None, :] < K)
                right_mask = (k[:, None] < K) & (n[None, :] < N)
                left = kl.load(a + m[:, None] * K + k[None, :], mask=left_mask, other=0.0)
                right = kl.load(b + k[:, None] * N + n[None, :], mask=right_mask, other=0.0)
                acc = kl.dot(left, right, acc)
            mask = (m[:, None] < M) & (n[None, :] < N)
            kl.store(c + m[:, None] * N + n[None, :], acc.to(like.dtype.element_ty), mask=mask)
            tile += kl.num_programs(0)
        first += tiles
# ANCHOR_END: kernel


# ANCHOR: launch
class Groups:
    """Products, with their addresses and sizes on the device."""

    def __init__(self, a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
        assert len(a) == len(b) > 0, "as many left as right operands"
        assert all(x.is_contiguous() and y.is_contiguous() for x, y in zip(a, b, strict=True))
        assert all(x.shape[1] == y.shape[0] for x, y in zip(a, b, strict=True)), "[M, K] and [K, N]"
        self.a, self.b = a, b
        self.c = [x.new_empty(x.shape[0], y.shape[1]) for x, y in zip(a, b, strict=True)]
        triples = list(zip(a, b, self.c, strict=True))
        addresses = [[t.data_ptr() for t in triple] for triple in triples]
        sizes = [[x.shape[0], y.shape[1], x.shape[1]] for x, y, _ in triples]
        self.addresses = torch.tensor(addresses, dtype=torch.int64, device=a[0].device)
        self.sizes = torch.tensor(sizes, dtype=torch.int32, device=a[0].device)
        self.aligned = all(n % 16 == k % 16 == 0 for _, n, k in sizes)
        self.aligned &= all(address % 16 == 0 for three in addresses for address in three)

    def multiply(self) -> list[torch.Tensor]:
        grid = (multiprocessors(self.addresses.device),)
        like = self.c[0]
        grouped_gemm_kernel[grid](
            self.addresses, self.sizes, len(self.c), like,
            ALIGNED=self.aligned, BM=128, BN=128, BK=64, num_warps=8,
        )  # fmt: skip
        return self.c


def grouped_gemm(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[torch.Tensor]:
    """The products of matrices with the same place in both lists."""
    return Groups(a, b).multiply()
# ANCHOR_END: launch


def reference(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x @ y for x, y in zip(a, b, strict=True)]


def inputs(device, sizes, dtype=torch.float16):
    a = [torch.randn(m, k, device=device).to(dtype) for m, _, k in sizes]
    b = [torch.randn(k, n, device=device).to(dtype) for _, n, k in sizes]
    return a, b


CASES = {
    "grouped_gemm": Case(
        run=grouped_gemm,
        reference=reference,
        inputs=inputs,
        small=[
            {"sizes": [(100, 70, 33), (1, 200, 64), (300, 40, 128)]},
            {"sizes": [(0, 16, 16), (65, 64, 64)], "dtype": torch.bfloat16},
        ],
        full={"sizes": [(1024 >> i % 3, 2048, 1024) for i in range(16)]},
        roundings=64,
        products=True,
        unchecked="checks follow addresses in memory to arguments of the launch, which operands are not",
    ),
}


@perf_report(
    Benchmark(
        x_names=["groups", "rows"],
        x_vals=[(4, 1024), (8, 512), (16, 512), (64, 128), (128, 64)],
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln", "cuBLAS, one by one"],
        ylabel="TFLOP/s",
        plot_name="grouped_gemm",
        args={"n": 2048, "k": 2048, "dtype": torch.float16},
    )
)
def benchmark(groups, rows, n, k, dtype, provider, device=DEVICE, clock=do_bench):
    a, b = inputs(device, [(rows, n, k)] * groups, dtype)
    prepared = Groups(a, b)
    calls = {"kiln": prepared.multiply, "torch": lambda: reference(a, b)}
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * groups * rows * n * k / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
