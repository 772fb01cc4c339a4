"""RMS norm over the last axis: out[r, c] = x[r, c] * w[c] / sqrt(mean_c(x[r, c]^2) + eps).

Zhang and Sennrich, 2019, arXiv:1910.07467. With a residual the sum h = x + residual is normalised, and
given back too, since the next layer adds to it: both are one pass over memory.
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
def rms_norm_kernel(x, residual, w, out, h, stride, columns, eps, BLOCK: kl.constexpr):
    row = kl.program_id(0)
    i = kl.arange(0, BLOCK)
    mask = i < columns
    values = kl.load(x + row * stride + i, mask=mask, other=0.0).to(kl.float32)
    # Whether there is a residual is known when the kernel is compiled.
    if residual is not None:
        values += kl.load(residual + row * stride + i, mask=mask, other=0.0).to(kl.float32)
        # The norm is that of the sum as it is stored.
        rounded = values.to(h.dtype.element_ty)
        kl.store(h + row * stride + i, rounded, mask=mask)
        values = rounded.to(kl.float32)
    scale = kl.rsqrt(kl.sum(values * values, axis=0) / columns + eps)
    weights = kl.load(w + i, mask=mask, other=0.0).to(kl.float32)
    kl.store(out + row * stride + i, values * scale * weights, mask=mask)
# ANCHOR_END: kernel


# ANCHOR: launch
def rms_norm(
    x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor | None = None, eps: float = 1e-6
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The norm of the rows of x, of shape [..., columns]; with a residual of its shape the sum as well."""
    assert x.is_contiguous() and w.shape == x.shape[-1:], "contiguous rows, a weight for each column"
    assert residual is None or (residual.shape == x.shape and residual.is_contiguous())
    columns = x.shape[-1]
    out = torch.empty_like(x)
    h = None if residual is None else torch.empty_like(x)
    block = next_power_of_2(columns)
    warps = max(1, min(16, block // 512))
    grid = (x.numel() // columns,)
    rms_norm_kernel[grid](x, residual, w, out, h, columns, columns, eps, BLOCK=block, num_warps=warps)
    return out if h is None else (out, h)
# ANCHOR_END: launch


def reference(x, w, residual=None, eps=1e-6):
    h = x if residual is None else x + residual
    out = torch.nn.functional.rms_norm(h, w.shape, w, eps)
    return out if residual is None else (out, h)


def inputs(device, rows, columns, dtype=torch.float32, residual=False, scale=1.0):
    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    return scale * rand(rows, columns), rand(columns), rand(rows, columns) if residual else None


CASES = {
    "rms_norm": Case(
        run=rms_norm,
        reference=reference,
        inputs=inputs,
        small=[
            {"rows": 5, "columns": 781},
            {"rows": 0, "columns": 64},
            # Rows whose mean square is near eps.
            {"rows": 4, "columns": 100, "scale": 1e-3},
            {"rows": 37, "columns": 1024, "dtype": torch.bfloat16},
        ],
        full={"rows": 8192, "columns": 4096, "dtype": torch.bfloat16},
        roundings=16,
    ),
    "with a residual": Case(
        run=rms_norm,
        reference=reference,
        inputs=inputs,
        small=[
            {"rows": 5, "columns": 781, "residual": True},
            {"rows": 3, "columns": 64, "residual": True, "dtype": torch.float16},
        ],
        full={"rows": 8192, "columns": 4096, "residual": True, "dtype": torch.bfloat16},
        # The sum is rounded to its type before it is normalised.
        roundings=4,
        working=None,
    ),
}


@perf_report(
    Benchmark(
        x_names=["columns"],
        x_vals=[1024, 2048, 4096, 8192, 16384],
        line_arg="provider",
        line_vals=["kiln", "torch", "inductor"],
        line_names=["Kiln", "PyTorch", "Inductor"],
        ylabel="GB/s",
        plot_name="rms_norm",
        args={"rows": 8192, "dtype": torch.bfloat16},
    )
)
def benchmark(columns, rows, dtype, provider, device=DEVICE, clock=do_bench):
    x, w, _ = inputs(device, rows, columns, dtype)
    calls = {
        "kiln": lambda: rms_norm(x, w),
        "torch": lambda: torch.nn.functional.rms_norm(x, w.shape, w, 1e-6),
        "inductor": lambda: torch.compile(reference, dynamic=False)(x, w),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * x.nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
