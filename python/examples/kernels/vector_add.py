"""Vector addition: out[i] = x[i] + y[i] for i < n.

The least kernel there is: a program instance adds one block, and a mask keeps the last block within
the vectors. It moves 3 elements for one addition, so that memory alone decides its time.
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
def add_kernel(x, y, out, n, BLOCK: kl.constexpr):
    # The elements of this instance: BLOCK of them, from BLOCK times its number on.
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    mask = i < n
    kl.store(out + i, kl.load(x + i, mask=mask) + kl.load(y + i, mask=mask), mask=mask)
# ANCHOR_END: kernel


# ANCHOR: launch
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of two contiguous tensors of one shape and type."""
    assert x.shape == y.shape and x.dtype == y.dtype, "operands have one shape and type"
    assert x.is_contiguous() and y.is_contiguous(), "operands are contiguous"
    out = torch.empty_like(x)
    n = out.numel()
    add_kernel[(cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out
# ANCHOR_END: launch


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def inputs(device: str, n: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(n, device=device).to(dtype) for _ in range(2))


CASES = {
    "add": Case(
        run=add,
        reference=reference,
        inputs=inputs,
        small=[
            {"n": 0},
            {"n": 1},
            {"n": 98432},
            {"n": 1025, "dtype": torch.bfloat16},
            {"n": 4096, "dtype": torch.float64},
        ],
        full={"n": 1 << 27},
        roundings=0,
        checked={"n": 1500},
    ),
}


@perf_report(
    Benchmark(
        x_names=["n"],
        x_vals=[2**i for i in range(16, 29, 2)],
        x_log=True,
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln", "PyTorch"],
        ylabel="GB/s",
        plot_name="vector_add",
        args={},
    )
)
def benchmark(n, provider, device=DEVICE, clock=do_bench):
    x, y = inputs(device, n)
    calls = {"kiln": lambda: add(x, y), "torch": lambda: x + y}
    milliseconds = clock(calls[provider], return_mode="median")
    return 3 * x.nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
