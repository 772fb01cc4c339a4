"""GELU: out[i] = x[i] / 2 * (1 + erf(x[i] / sqrt(2))), Hendrycks and Gimpel, 2016, arXiv:1606.08415.

By PyTorch's operators one by one it takes four passes over memory, in one kernel one. The tanh form
replaces the error function by tanh(sqrt(2/pi) * (x + 0.044715 x^3)).
"""

from __future__ import annotations

import math

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case


# ANCHOR: kernel
@kiln.kernel
def gelu(x):
    return 0.5 * x * (1.0 + kl.erf(x * 0.7071067811865476))


@kiln.kernel
def gelu_tanh(x):
    # tanh(u) = 2 sigmoid(2 u) - 1, so that x / 2 * (1 + tanh(u)) = x * sigmoid(2 u).
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x * kl.sigmoid(2.0 * u)


@kiln.kernel
def gelu_kernel(x, out, n, TANH: kl.constexpr, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    mask = i < n
    # Halves are computed in f32 and rounded once, by the store.
    values = kl.load(x + i, mask=mask).to(kl.float32)
    # The form is chosen when the kernel is compiled.
    kl.store(out + i, gelu_tanh(values) if TANH else gelu(values), mask=mask)
# ANCHOR_END: kernel


# ANCHOR: launch
def apply(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """GELU of a contiguous tensor; `approximate` is "none" or "tanh", as in PyTorch."""
    assert x.is_contiguous(), "a contiguous tensor"
    out = torch.empty_like(x)
    n = x.numel()
    gelu_kernel[(cdiv(n, 1024),)](x, out, n, TANH=approximate == "tanh", BLOCK=1024)
    return out
# ANCHOR_END: launch


def naive(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """PyTorch's operators one by one."""
    if approximate == "tanh":
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2)))


def reference(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def inputs(
    device: str, n: int, dtype: torch.dtype = torch.float32, approximate: str = "none"
) -> tuple[torch.Tensor, str]:
    return 3 * torch.randn(n, device=device).to(dtype), approximate


CASES = {
    "gelu": Case(
        run=apply,
        reference=reference,
        inputs=inputs,
        small=[
            {"n": 0},
            {"n": 5000},
            {"n": 1025, "dtype": torch.bfloat16},
            {"n": 5000, "approximate": "tanh"},
            {"n": 77, "dtype": torch.float16, "approximate": "tanh"},
        ],
        full={"n": 1 << 26, "dtype": torch.bfloat16},
        # Of the function and of the products around it: most results are a hundredth of the largest.
        roundings=1,
        checked={"n": 1500},
    ),
}


@perf_report(
    Benchmark(
        x_names=["n"],
        x_vals=[2**i for i in range(16, 29, 2)],
        x_log=True,
        line_arg="provider",
        line_vals=["kiln", "torch", "naive", "compiled"],
        line_names=["Kiln", "PyTorch", "PyTorch, by operators", "compiled graph"],
        ylabel="GB/s",
        plot_name="gelu",
        args={"dtype": torch.bfloat16},
    )
)
def benchmark(n, dtype, provider, device=DEVICE, clock=do_bench):
    x, _ = inputs(device, n, dtype)
    compiled = torch.compile(naive, backend="kiln", dynamic=False)
    calls = {
        "kiln": lambda: apply(x),
        "torch": lambda: torch.nn.functional.gelu(x),
        "naive": lambda: naive(x),
        "compiled": lambda: compiled(x),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * x.nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
