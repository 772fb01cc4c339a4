"""Cross entropy of logits, and its gradient in the same two passes over them.

    loss[r] = log(sum_c exp(x[r, c])) - x[r, target[r]]
    dx[r, c] = (softmax(x)[r, c] - [c == target[r]]) * g / counted

x: [rows, vocabulary], target: [rows] of integers; rows whose target is IGNORED count for nothing. The loss is
the mean over the rows that count. By PyTorch's operators log-softmax and its gradient are arrays of the
logits' size in memory; here the gradient takes the place of the logits, as in Liger's and Apple's fused
losses (arXiv:2411.09009).
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import next_power_of_2
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case

IGNORED = -100


# ANCHOR: kernel
@kiln.kernel
def cross_entropy_kernel(
    x, targets, losses, dx, stride, columns, counted,
    IGNORED: kl.constexpr, BLOCK: kl.constexpr,
):  # fmt: skip
    # Offsets of a row may be beyond 2^31 elements.
    row = kl.program_id(0).to(kl.int64)
    x += row * stride
    dx += row * stride
    target = kl.load(targets + row)
    if target == IGNORED:
        kl.store(losses + row, 0.0)
        for start in range(0, columns, BLOCK):
            i = start + kl.arange(0, BLOCK)
            kl.store(dx + i, kl.zeros([BLOCK], dtype=kl.float32), mask=i < columns)
        return
    # First pass: maximum and sum of the online softmax, a pair for each place of the block.
    maximum = kl.full([BLOCK], -float("inf"), dtype=kl.float32)
    total = kl.zeros([BLOCK], dtype=kl.float32)
    for start in range(0, columns, BLOCK):
        i = start + kl.arange(0, BLOCK)
        values = kl.load(x + i, mask=i < columns, other=-float("inf")).to(kl.float32)
        larger = kl.maximum(maximum, values)
        finite = kl.where(larger == -float("inf"), 0.0, larger)
        total = total * kl.exp(maximum - finite) + kl.exp(values - finite)
        maximum = larger
    row_maximum = kl.max(maximum, axis=0)
    row_total = kl.sum(total * kl.exp(maximum - row_maximum), axis=0)
    wanted = kl.load(x + target).to(kl.float32)
    scale = 1.0 / kl.load(counted)
    kl.store(losses + row, (kl.log(row_total) + row_maximum - wanted) * scale)
    # Second pass: the gradient, which may be written over the logits.
    for start in range(0, columns, BLOCK):
        i = start + kl.arange(0, BLOCK)
        values = kl.load(x + i, mask=i < columns, other=0.0).to(kl.float32)
        gradient = kl.exp(values - row_maximum) / row_total - kl.where(i == target, 1.0, 0.0)
        kl.store(dx + i, gradient * scale, mask=i < columns)
# ANCHOR_END: kernel


# ANCHOR: launch
def cross_entropy(
    x: torch.Tensor, targets: torch.Tensor, in_place: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean loss and the gradient of the logits; with `in_place` the gradient is written over them."""
    rows, columns = x.shape
    assert x.stride(1) == 1 and targets.shape == (rows,), "contiguous rows, and a target for each"
    dx = x if in_place else torch.empty_like(x)
    losses = torch.empty(rows, device=x.device, dtype=torch.float32)
    # A number in memory, so that the host does not wait for it.
    counted = (targets != IGNORED).sum().to(torch.float32)
    block = min(next_power_of_2(columns), 4096)
    cross_entropy_kernel[(rows,)](
        x, targets, losses, dx, x.stride(0), columns, counted,
        IGNORED=IGNORED, BLOCK=block, num_warps=max(1, block // 512),
    )  # fmt: skip
    return losses.sum(), dx
# ANCHOR_END: launch


def eager(x, targets):
    x = x.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x, targets, ignore_index=IGNORED)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


reference = eager


def inputs(device, rows, columns, dtype=torch.float32, ignored=0):
    x = 2 * torch.randn(rows, columns, device=device).to(dtype)
    targets = torch.randint(0, columns, (rows,), device=device)
    targets[:ignored] = IGNORED
    return x, targets


CASES = {
    "cross_entropy": Case(
        run=cross_entropy,
        reference=reference,
        inputs=inputs,
        small=[
            {"rows": 7, "columns": 5003},
            {"rows": 4, "columns": 100, "ignored": 2},
            {"rows": 9, "columns": 1001, "dtype": torch.bfloat16, "ignored": 1},
        ],
        full={"rows": 4096, "columns": 128256, "dtype": torch.bfloat16},
        # exp of a difference whose operands are up to 10.
        roundings=32,
    ),
}


@perf_report(
    Benchmark(
        x_names=["columns"],
        x_vals=[4096, 16384, 32768, 65536, 131072],
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln", "PyTorch"],
        ylabel="GB/s",
        plot_name="cross_entropy",
        args={"rows": 2048, "dtype": torch.bfloat16},
    )
)
def benchmark(columns, rows, dtype, provider, device=DEVICE, clock=do_bench):
    x, targets = inputs(device, rows, columns, dtype)
    calls = {"kiln": lambda: cross_entropy(x, targets), "torch": lambda: eager(x, targets)}
    milliseconds = clock(calls[provider], return_mode="median")
    return 3 * x.nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
