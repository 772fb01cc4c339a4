"""Persistent matmul: as many instances as the GPU has multiprocessors, each of which computes several tiles.

Where every tile has an instance, a tile's first loads wait until the last one's stores are done. A persistent
instance goes on to its next tile, so that the compiler may load it while the last one is stored.
Operands are tensor descriptors made on the device: matrices with contiguous rows, whose tiles the tensor
memory accelerator of sm_90 copies, and whose edges it fills with zeros.
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
def persistent_matmul_kernel(
    a, b, c, M, N, K,
    BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr, GROUP: kl.constexpr,
):  # fmt: skip
    a_tiles = kl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_tiles = kl.make_tensor_descriptor(b, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    c_tiles = kl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    tiles = kl.cdiv(M, BM) * kl.cdiv(N, BN)
    for tile in kl.range(kl.program_id(0), tiles, kl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_tile(tile, M, N, BM, BN, GROUP)
        acc = kl.zeros((BM, BN), dtype=kl.float32)
        for k in range(0, K, BK):
            left = a_tiles.load([tile_m * BM, k])
            right = b_tiles.load([k, tile_n * BN])
            acc = kl.dot(left, right, acc)
        c_tiles.store([tile_m * BM, tile_n * BN], acc.to(c.dtype.element_ty))
# ANCHOR_END: kernel


# ANCHOR: launch
def persistent_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of contiguous matrices whose rows have a multiple of 16 bytes."""
    c = empty_product(a, b)
    (m, k), n = a.shape, b.shape[1]
    assert a.is_contiguous() and b.is_contiguous(), "contiguous matrices"
    assert k * a.element_size() % 16 == n * b.element_size() % 16 == 0, "rows of a multiple of 16 bytes"
    # Descriptors that a kernel makes may need memory, which the caller gives.
    kiln.kernels.set_allocator(lambda size, *_: torch.empty(size, device=a.device, dtype=torch.int8))
    bm, bn = (128, 256) if min(m, n) >= 2048 else (128, 128)
    grid = (min(multiprocessors(a.device), cdiv(m, bm) * cdiv(n, bn)),)
    persistent_matmul_kernel[grid](a, b, c, m, n, k, BM=bm, BN=bn, BK=64, GROUP=8, num_warps=8)
    return c
# ANCHOR_END: launch


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


CASES = {
    "persistent": Case(
        run=persistent_matmul,
        reference=reference,
        inputs=inputs,
        small=[
            {"m": 300, "n": 264, "k": 72},
            {"m": 1, "n": 8, "k": 200, "dtype": torch.bfloat16},
            {"m": 65, "n": 136, "k": 40},
        ],
        full={"m": 8192, "n": 8192, "k": 4096},
        roundings=64,
        products=True,
    ),
}


@perf_report(
    Benchmark(
        x_names=["size"],
        x_vals=[1024, 2048, 4096, 8192],
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln", "cuBLAS"],
        ylabel="TFLOP/s",
        plot_name="persistent_matmul",
        args={"dtype": torch.float16},
    )
)
def benchmark(size, dtype, provider, device=DEVICE, clock=do_bench):
    a, b = inputs(device, size, size, size, dtype)
    calls = {"kiln": lambda: persistent_matmul(a, b), "torch": lambda: a @ b}
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * size**3 / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
