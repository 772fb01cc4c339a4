"""Dropout without a mask in memory: out[i] = x[i] / (1 - p) where rand(seed, i) > p, else 0.

PyTorch keeps a byte an element to know in the backward pass what it dropped. A counter-based
generator (Philox, Salmon et al., 2011, doi:10.1145/2063384.2063405) makes the number of an element
from a seed and its position, so that the backward pass draws the same numbers again from one integer.
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
def dropout_kernel(x, out, n, p, seed, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    mask = i < n
    values = kl.load(x + i, mask=mask)
    # The same seed and position give the same number in every launch, on every device.
    kept = kl.rand(seed, i) > p
    kl.store(out + i, kl.where(kept, values / (1 - p), 0.0), mask=mask)
# ANCHOR_END: kernel


# ANCHOR: launch
def drop(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """Drops elements of a contiguous tensor with probability p."""
    assert x.is_contiguous() and 0 <= p < 1, "a contiguous tensor, and a probability below 1"
    out = torch.empty_like(x)
    n = x.numel()
    dropout_kernel[(cdiv(n, 1024),)](x, out, n, p, seed, BLOCK=1024)
    return out


class Dropout(torch.autograd.Function):
    """Keeps the seed for the backward pass, which is the same kernel on the gradient."""

    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.p, ctx.seed = p, seed
        return drop(x, p, seed)

    @staticmethod
    def backward(ctx, gradient):
        return drop(gradient.contiguous(), ctx.p, ctx.seed), None, None
# ANCHOR_END: launch


def forward_and_backward(x: torch.Tensor, p: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the gradient of the sum of its squares."""
    x = x.detach().requires_grad_()
    out = Dropout.apply(x, p, seed)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    return out.detach(), gradient


def philox(seed: int, counters: torch.Tensor) -> torch.Tensor:
    """The first word of Philox 4x32 in 10 rounds, in 64-bit integers."""
    low = 0xFFFFFFFF
    c = [counters.to(torch.int64) & low, *(torch.zeros_like(counters, dtype=torch.int64) for _ in range(3))]
    k = [seed & low, seed >> 32 & low]

    def product(a: torch.Tensor, m: int) -> tuple[torch.Tensor, torch.Tensor]:
        # 64 bits of a product, by halves of 16 bits, since torch's integers have a sign.
        middle = (a >> 16) * m + (((a & 0xFFFF) * m) >> 16)
        return middle >> 16 & low, (a * m) & low

    for _ in range(10):
        high_0, low_0 = product(c[0], 0xD2511F53)
        high_2, low_2 = product(c[2], 0xCD9E8D57)
        c = [high_2 ^ c[1] ^ k[0], low_2, high_0 ^ c[3] ^ k[1], low_0]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c[0]


def reference(x: torch.Tensor, p: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    words = philox(seed, torch.arange(x.numel(), device=x.device))
    # 32 bits as a signed integer, its absolute value (of -1 - w where negative) by 2^-31, in f32 as the kernel has it.
    signed = torch.where(words >= 2**31, 2**32 - 1 - words, words)
    uniform = signed.float() * 4.6566127342e-10
    scale = torch.where(uniform > p, 1 / (1 - p), 0.0).reshape(x.shape).to(x.dtype)
    return x * scale, 2 * x * scale * scale


def inputs(
    device: str, n: int, p: float = 0.5, seed: int = 123, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, float, int]:
    return torch.randn(n, device=device).to(dtype), p, seed


CASES = {
    "dropout": Case(
        run=forward_and_backward,
        reference=reference,
        inputs=inputs,
        small=[
            {"n": 0},
            {"n": 1000},
            {"n": 4096, "p": 0.1, "seed": 7},
            {"n": 1025, "p": 0.25, "dtype": torch.float16},
        ],
        full={"n": 1 << 26},
        # The backward pass starts from a result that was rounded to its type.
        roundings=4,
        working=None,
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
        plot_name="dropout",
        args={"dtype": torch.float32},
    )
)
def benchmark(n, dtype, provider, device=DEVICE, clock=do_bench):
    x, p, seed = inputs(device, n, dtype=dtype)
    calls = {"kiln": lambda: drop(x, p, seed), "torch": lambda: torch.nn.functional.dropout(x, p)}
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * x.nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
