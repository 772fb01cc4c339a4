"""Softmax over the last axis of a matrix: out[r, c] = exp(x[r, c] - max_r) / sum_c exp(x[r, c] - max_r).

PyTorch's operators one by one (`naive`) move a row five times. A row that fits a block is read once;
longer rows are read twice, with the running maximum and sum of the online softmax (Milakov and
Gimelshein, 2018, arXiv:1805.02867): when the maximum grows by d, the sum so far shrinks by exp(-d).

With arrays (`kl.Array`) and blocks of any size a row is a slice: no strides, no mask, no pads.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import next_power_of_2
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case

#: The longest row that is computed as one block.
LONGEST_BLOCK = 16384


# ANCHOR: kernel
@kiln.kernel
def softmax_kernel(x, out, x_stride, out_stride, columns, BLOCK: kl.constexpr):
    row = kl.program_id(0)
    i = kl.arange(0, BLOCK)
    mask = i < columns
    # Pads are -inf, so that they neither are the maximum nor add to the sum.
    values = kl.load(x + row * x_stride + i, mask=mask, other=-float("inf")).to(kl.float32)
    exponentials = kl.exp(values - kl.max(values, axis=0))
    kl.store(out + row * out_stride + i, exponentials / kl.sum(exponentials, axis=0), mask=mask)
# ANCHOR_END: kernel


# ANCHOR: arrays
@kiln.kernel
def array_softmax_kernel(x: kl.Array, out: kl.Array, COLUMNS: kl.constexpr):
    row = kl.program_id(0)
    values = x[row, 0:COLUMNS].to(kl.float32)
    exponentials = kl.exp(values - kl.max(values, axis=0))
    out[row, 0:COLUMNS] = exponentials / kl.sum(exponentials, axis=0)
# ANCHOR_END: arrays


# ANCHOR: online
@kiln.kernel
def online_softmax_kernel(x, out, x_stride, out_stride, columns, BLOCK: kl.constexpr):
    row = kl.program_id(0)
    # A maximum and a sum for each place of the block: they are combined once, after the loop.
    maximum = kl.full([BLOCK], -float("inf"), dtype=kl.float32)
    total = kl.zeros([BLOCK], dtype=kl.float32)
    for start in range(0, columns, BLOCK):
        i = start + kl.arange(0, BLOCK)
        values = kl.load(x + row * x_stride + i, mask=i < columns, other=-float("inf")).to(kl.float32)
        larger = kl.maximum(maximum, values)
        # Places that have seen -inf alone keep a sum of 0.
        finite = kl.where(larger == -float("inf"), 0.0, larger)
        total = total * kl.exp(maximum - finite) + kl.exp(values - finite)
        maximum = larger
    row_maximum = kl.max(maximum, axis=0)
    row_total = kl.sum(total * kl.exp(maximum - row_maximum), axis=0)
    for start in range(0, columns, BLOCK):
        i = start + kl.arange(0, BLOCK)
        values = kl.load(x + row * x_stride + i, mask=i < columns, other=0.0).to(kl.float32)
        kl.store(out + row * out_stride + i, kl.exp(values - row_maximum) / row_total, mask=i < columns)
# ANCHOR_END: online


# ANCHOR: launch
def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis of a matrix whose rows are contiguous."""
    assert x.dim() == 2 and x.stride(1) == 1, "a matrix with contiguous rows"
    rows, columns = x.shape
    if columns > LONGEST_BLOCK:
        return online_softmax(x)
    out = torch.empty(rows, columns, device=x.device, dtype=x.dtype)
    block = next_power_of_2(columns)
    warps = max(1, min(16, block // 512))
    softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), columns, BLOCK=block, num_warps=warps)
    return out


def array_softmax(x: torch.Tensor) -> torch.Tensor:
    """The same for any strides, compiled for the number of columns."""
    out = torch.empty_like(x)
    array_softmax_kernel[(x.shape[0],)](x, out, COLUMNS=x.shape[1])
    return out


def online_softmax(x: torch.Tensor) -> torch.Tensor:
    """The same in blocks of 4096, for rows of any length."""
    rows, columns = x.shape
    out = torch.empty(rows, columns, device=x.device, dtype=x.dtype)
    online_softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), columns, BLOCK=4096, num_warps=8)
    return out
# ANCHOR_END: launch


def naive_softmax(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's operators one by one."""
    exponentials = torch.exp(x - x.max(dim=1, keepdim=True).values)
    return exponentials / exponentials.sum(dim=1, keepdim=True)


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=1)


def inputs(
    device: str, rows: int, columns: int, dtype: torch.dtype = torch.float32, transposed: bool = False
) -> tuple[torch.Tensor]:
    x = torch.randn(columns, rows, device=device).t() if transposed else torch.randn(rows, columns, device=device)
    return (x.to(dtype),)


CASES = {
    "softmax": Case(
        run=softmax,
        reference=reference,
        inputs=inputs,
        small=[
            {"rows": 583, "columns": 931},
            {"rows": 3, "columns": 1},
            {"rows": 0, "columns": 5},
            {"rows": 17, "columns": 300, "dtype": torch.bfloat16},
            {"rows": 2, "columns": 20000},
        ],
        full={"rows": 4096, "columns": 8192},
    ),
    "arrays": Case(
        run=array_softmax,
        reference=reference,
        inputs=inputs,
        small=[
            {"rows": 30, "columns": 931},
            {"rows": 17, "columns": 300, "dtype": torch.bfloat16},
            {"rows": 5, "columns": 37, "transposed": True},
        ],
        full={"rows": 4096, "columns": 8192},
        arrays=True,
    ),
    "online": Case(
        run=online_softmax,
        reference=reference,
        inputs=inputs,
        small=[
            {"rows": 3, "columns": 9001},
            {"rows": 2, "columns": 100, "dtype": torch.float16},
        ],
        full={"rows": 1024, "columns": 131072},
    ),
}


@perf_report(
    Benchmark(
        x_names=["columns", "rows"],
        x_vals=[
            (128, 65536), (512, 32768), (931, 583), (2048, 16384), (8192, 4096), (32768, 1024), (131072, 256)
        ],
        x_log=True,
        line_arg="provider",
        line_vals=["kiln", "torch", "naive", "compiled"],
        line_names=["Kiln", "PyTorch", "PyTorch, by operators", "compiled graph"],
        ylabel="GB/s",
        plot_name="softmax",
        args={},
    )
)
def benchmark(columns, rows, provider, device=DEVICE, clock=do_bench):
    (x,) = inputs(device, rows, columns)
    compiled = torch.compile(naive_softmax, backend="kiln", dynamic=False)
    calls = {
        "kiln": lambda: softmax(x),
        "torch": lambda: torch.softmax(x, dim=1),
        "naive": lambda: naive_softmax(x),
        "compiled": lambda: compiled(x),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * x.nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
