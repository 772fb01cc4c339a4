"""Rotary position embedding: pairs of a head's features are turned by an angle that grows with the position.

Su et al., 2021, arXiv:2104.09864, with features i and i + dim/2 as a pair (as in Llama's code):

    out[.., i]         = x[.., i] * cos[t, i] - x[.., i + dim/2] * sin[t, i]
    out[.., i + dim/2] = x[.., i + dim/2] * cos[t, i] + x[.., i] * sin[t, i]

x: [batch, length, heads, dim]; cos and sin: [length, dim/2]. The gradient is the turn by the opposite
angle. An instance takes all heads of one position, so that its sines and cosines are read once.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import next_power_of_2
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case


# ANCHOR: kernel
@kiln.kernel
def rotary_kernel(
    x, cos, sin, out, length, heads, stride,
    HALF: kl.constexpr, HEADS: kl.constexpr, INVERSE: kl.constexpr,
):  # fmt: skip
    position = kl.program_id(0)
    i = kl.arange(0, HALF)
    angle = (position % length) * HALF + i
    c = kl.load(cos + angle).to(kl.float32)[None, :]
    s = kl.load(sin + angle).to(kl.float32)[None, :]
    if INVERSE:
        s = -s
    head = kl.arange(0, HEADS)
    offsets = position * stride + head[:, None] * (2 * HALF) + i[None, :]
    mask = head[:, None] < heads
    left = kl.load(x + offsets, mask=mask).to(kl.float32)
    right = kl.load(x + offsets + HALF, mask=mask).to(kl.float32)
    kl.store(out + offsets, left * c - right * s, mask=mask)
    kl.store(out + offsets + HALF, right * c + left * s, mask=mask)
# ANCHOR_END: kernel


# ANCHOR: launch
def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Turns each head of x by its position's angles; the other way with `inverse`."""
    batch, length, heads, dim = x.shape
    assert x.is_contiguous() and cos.is_contiguous() and sin.is_contiguous(), "contiguous tensors"
    assert cos.shape == sin.shape == (length, dim // 2), "an angle for each position and pair"
    assert dim == next_power_of_2(dim), "heads have a power of two of features"
    out = torch.empty_like(x)
    rotary_kernel[(batch * length,)](
        x, cos, sin, out, length, heads, heads * dim,
        HALF=dim // 2, HEADS=next_power_of_2(heads), INVERSE=inverse,
    )  # fmt: skip
    return out
# ANCHOR_END: launch


def naive(x, cos, sin, inverse=False):
    left, right = x.chunk(2, dim=-1)
    c, s = cos[None, :, None, :], (-sin if inverse else sin)[None, :, None, :]
    return torch.cat([left * c - right * s, right * c + left * s], dim=-1)


reference = naive


def inputs(device, batch, length, heads, dim, dtype=torch.float32, inverse=False):
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, device=device) / dim)
    angles = torch.arange(length, device=device)[:, None] * frequencies
    x = torch.randn(batch, length, heads, dim, device=device).to(dtype)
    return x, angles.cos().to(dtype), angles.sin().to(dtype), inverse


CASES = {
    "rotary": Case(
        run=rotate,
        reference=reference,
        inputs=inputs,
        small=[
            {"batch": 2, "length": 7, "heads": 4, "dim": 64},
            {"batch": 1, "length": 3, "heads": 5, "dim": 16, "inverse": True},
            {"batch": 0, "length": 3, "heads": 5, "dim": 16},
            {"batch": 1, "length": 5, "heads": 3, "dim": 32, "dtype": torch.bfloat16},
        ],
        full={"batch": 4, "length": 4096, "heads": 32, "dim": 128, "dtype": torch.bfloat16},
    ),
}


@perf_report(
    Benchmark(
        x_names=["length"],
        x_vals=[512, 1024, 2048, 4096, 8192],
        line_arg="provider",
        line_vals=["kiln", "torch", "compiled", "inductor"],
        line_names=["Kiln", "PyTorch, by operators", "compiled graph", "Inductor"],
        ylabel="GB/s",
        plot_name="rotary",
        args={"batch": 4, "heads": 32, "dim": 128, "dtype": torch.bfloat16},
    )
)
def benchmark(length, batch, heads, dim, dtype, provider, device=DEVICE, clock=do_bench):
    x, cos, sin, _ = inputs(device, batch, length, heads, dim, dtype)
    compiled = {name: torch.compile(naive, backend=name, dynamic=False) for name in ("kiln", "inductor")}
    calls = {
        "kiln": lambda: rotate(x, cos, sin),
        "torch": lambda: naive(x, cos, sin),
        "compiled": lambda: compiled["kiln"](x, cos, sin),
        "inductor": lambda: compiled["inductor"](x, cos, sin),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * x.nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
