"""Matmul with an epilogue: C = leaky_relu(A B), leaky_relu(x) = x where x >= 0, else 0.01 x.

The matmul is that of `matmul`: its EPILOGUE is a kernel of its own, which works on the accumulators in
registers, so that the activation costs no pass over memory. Any function of elements fits there.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case
from .matmul import inputs, matmul


# ANCHOR: kernel
@kiln.kernel
def leaky_relu(x):
    return kl.where(x >= 0, x, 0.01 * x)
# ANCHOR_END: kernel


# ANCHOR: launch
def matmul_leaky_relu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """leaky_relu(a b) for matrices a and b."""
    return matmul(a, b, epilogue=leaky_relu)
# ANCHOR_END: launch


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.leaky_relu(a @ b)


CASES = {
    "leaky_relu": Case(
        run=matmul_leaky_relu,
        reference=reference,
        inputs=inputs,
        small=[
            {"m": 100, "n": 70, "k": 33},
            {"m": 65, "n": 129, "k": 64, "dtype": torch.bfloat16},
        ],
        full={"m": 4096, "n": 4096, "k": 4096},
        roundings=64,
        products=True,
    ),
}


@perf_report(
    Benchmark(
        x_names=["size"],
        x_vals=[512, 1024, 2048, 4096, 8192],
        line_arg="provider",
        line_vals=["kiln", "torch", "compiled"],
        line_names=["Kiln", "PyTorch", "compiled graph"],
        ylabel="TFLOP/s",
        plot_name="matmul_leaky_relu",
        args={"dtype": torch.float16},
    )
)
def benchmark(size, dtype, provider, device=DEVICE, clock=do_bench):
    a, b = inputs(device, size, size, size, dtype)
    compiled = torch.compile(reference, backend="kiln", dynamic=False)
    calls = {
        "kiln": lambda: matmul_leaky_relu(a, b),
        "torch": lambda: reference(a, b),
        "compiled": lambda: compiled(a, b),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * size**3 / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
