"""Layer norm over the last axis, forward and backward: y = (x - mean) * scale * w + b, scale = 1 / sqrt(var + eps).

Ba, Kiros and Hinton, 2016, arXiv:1607.06450. With n = (x - mean) * scale and g = w * dy the gradients are

    dx = scale * (g - mean_c(g) - n * mean_c(g * n))      dw = sum_rows(dy * n)      db = sum_rows(dy)

The backward pass reads x and dy once: an instance takes every PROGRAMS-th row, keeps its part of dw and db
in registers, and stores the parts; a second kernel adds them up. No locks, and two runs give equal bits.
"""

from __future__ import annotations

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv, next_power_of_2
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case

#: Instances of the backward pass: two for each multiprocessor of a large GPU.
PROGRAMS = 256


# ANCHOR: kernel
@kiln.kernel
def forward_kernel(x, w, b, y, means, scales, columns, eps, BLOCK: kl.constexpr):
    row = kl.program_id(0)
    i = kl.arange(0, BLOCK)
    mask = i < columns
    values = kl.load(x + row * columns + i, mask=mask, other=0.0).to(kl.float32)
    mean = kl.sum(values, axis=0) / columns
    # Pads count as the mean, so that they add nothing to the variance.
    centred = kl.where(mask, values - mean, 0.0)
    scale = kl.rsqrt(kl.sum(centred * centred, axis=0) / columns + eps)
    kl.store(means + row, mean)
    kl.store(scales + row, scale)
    weights = kl.load(w + i, mask=mask, other=0.0).to(kl.float32)
    biases = kl.load(b + i, mask=mask, other=0.0).to(kl.float32)
    kl.store(y + row * columns + i, centred * scale * weights + biases, mask=mask)
# ANCHOR_END: kernel


# ANCHOR: backward
@kiln.kernel
def backward_kernel(dy, x, w, means, scales, dx, dw_parts, db_parts, rows, columns, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    mask = i < columns
    weights = kl.load(w + i, mask=mask, other=0.0).to(kl.float32)
    dw = kl.zeros([BLOCK], dtype=kl.float32)
    db = kl.zeros([BLOCK], dtype=kl.float32)
    for row in range(kl.program_id(0), rows, kl.num_programs(0)):
        values = kl.load(x + row * columns + i, mask=mask, other=0.0).to(kl.float32)
        gradient = kl.load(dy + row * columns + i, mask=mask, other=0.0).to(kl.float32)
        scale = kl.load(scales + row)
        normal = kl.where(mask, (values - kl.load(means + row)) * scale, 0.0)
        dw += gradient * normal
        db += gradient
        weighted = gradient * weights
        mean_weighted = kl.sum(weighted, axis=0) / columns
        mean_product = kl.sum(weighted * normal, axis=0) / columns
        result = (weighted - mean_weighted - normal * mean_product) * scale
        kl.store(dx + row * columns + i, result, mask=mask)
    part = kl.program_id(0) * columns + i
    kl.store(dw_parts + part, dw, mask=mask)
    kl.store(db_parts + part, db, mask=mask)


@kiln.kernel
def sum_parts_kernel(dw_parts, db_parts, dw, db, parts, columns, ROWS: kl.constexpr, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    dw_sum = kl.zeros([ROWS, BLOCK], dtype=kl.float32)
    db_sum = kl.zeros([ROWS, BLOCK], dtype=kl.float32)
    for start in range(0, parts, ROWS):
        part = start + kl.arange(0, ROWS)
        offsets = part[:, None] * columns + i[None, :]
        mask = (part[:, None] < parts) & (i[None, :] < columns)
        dw_sum += kl.load(dw_parts + offsets, mask=mask, other=0.0)
        db_sum += kl.load(db_parts + offsets, mask=mask, other=0.0)
    kl.store(dw + i, kl.sum(dw_sum, axis=0), mask=i < columns)
    kl.store(db + i, kl.sum(db_sum, axis=0), mask=i < columns)
# ANCHOR_END: backward


# ANCHOR: launch
def forward(x, w, b, eps=1e-5):
    """y, and the mean and scale of each row in f32, for x of shape [rows, columns]."""
    assert x.dim() == 2 and x.is_contiguous(), "a contiguous matrix"
    assert w.shape == b.shape == x.shape[1:], "a weight and a bias for each column"
    rows, columns = x.shape
    y = torch.empty_like(x)
    means, scales = (torch.empty(rows, device=x.device, dtype=torch.float32) for _ in range(2))
    block = next_power_of_2(columns)
    warps = max(1, min(16, block // 512))
    forward_kernel[(rows,)](x, w, b, y, means, scales, columns, eps, BLOCK=block, num_warps=warps)
    return y, means, scales


def backward(dy, x, w, means, scales):
    """The gradients of x, w and b."""
    rows, columns = x.shape
    programs = max(1, min(PROGRAMS, rows))
    dx = torch.empty_like(x)
    dw_parts, db_parts = torch.empty(2, programs, columns, device=x.device, dtype=torch.float32)
    block = next_power_of_2(columns)
    warps = max(1, min(16, block // 512))
    backward_kernel[(programs,)](
        dy, x, w, means, scales, dx, dw_parts, db_parts, rows, columns, BLOCK=block, num_warps=warps
    )
    dw, db = torch.empty_like(w), torch.empty_like(w)
    sum_parts_kernel[(cdiv(columns, 64),)](
        dw_parts, db_parts, dw, db, programs, columns, ROWS=32, BLOCK=64
    )
    return dx, dw, db


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, eps):
        y, means, scales = forward(x, w, b, eps)
        ctx.save_for_backward(x, w, means, scales)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, means, scales = ctx.saved_tensors
        return *backward(dy.contiguous(), x, w, means, scales), None
# ANCHOR_END: launch


def layer_norm(x, w, b, eps=1e-5):
    return LayerNorm.apply(x, w, b, eps)


def with_gradients(function, x, w, b, dy):
    """y, dx, dw, db of a function of x, w and b."""
    x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
    y = function(x, w, b)
    return y.detach(), *torch.autograd.grad(y, (x, w, b), dy)


def reference(x, w, b, dy):
    return with_gradients(lambda x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b), x, w, b, dy)


def inputs(device, rows, columns, dtype=torch.float32, scale=1.0):
    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    return scale * (rand(rows, columns) + 1), rand(columns), rand(columns), rand(rows, columns)


CASES = {
    "forward and backward": Case(
        run=lambda *args: with_gradients(layer_norm, *args),
        reference=reference,
        inputs=inputs,
        small=[
            {"rows": 37, "columns": 781},
            {"rows": 1, "columns": 1000},
            # Rows whose variance is near eps.
            {"rows": 5, "columns": 90, "scale": 3e-3},
            {"rows": 300, "columns": 64, "dtype": torch.bfloat16},
            {"rows": 9, "columns": 200, "dtype": torch.float16},
        ],
        full={"rows": 4096, "columns": 8192, "dtype": torch.float16},
        roundings=32,
    ),
}


def rate(kind, columns, rows, dtype, provider, device, clock):
    x, w, b, dy = inputs(device, rows, columns, dtype)
    xg, wg, bg = (t.requires_grad_() for t in (x.clone(), w.clone(), b.clone()))
    plain = torch.nn.functional.layer_norm
    if kind == "forward":
        compiled = torch.compile(plain, backend="inductor", dynamic=False)
        calls = {
            "kiln": lambda: forward(x, w, b),
            "torch": lambda: plain(x, w.shape, w, b),
            "inductor": lambda: compiled(x, w.shape, w, b),
        }
        passes = 2
    else:
        _, means, scales = forward(x, w, b)
        y = plain(xg, w.shape, wg, bg)
        calls = {
            "kiln": lambda: backward(dy, x, w, means, scales),
            "torch": lambda: torch.autograd.grad(y, (xg, wg, bg), dy, retain_graph=True),
        }
        passes = 3
    milliseconds = clock(calls[provider], return_mode="median")
    return passes * x.nbytes / milliseconds * 1e-6


COLUMNS = [1024, 2048, 4096, 8192, 16384]


@perf_report(
    Benchmark(
        x_names=["columns"],
        x_vals=COLUMNS,
        line_arg="provider",
        line_vals=["kiln", "torch", "inductor"],
        line_names=["Kiln", "PyTorch", "Inductor"],
        ylabel="GB/s",
        plot_name="layer_norm_forward",
        args={"rows": 4096, "dtype": torch.float16},
    )
)
def benchmark(columns, rows, dtype, provider, device=DEVICE, clock=do_bench):
    return rate("forward", columns, rows, dtype, provider, device, clock)


@perf_report(
    Benchmark(
        x_names=["columns"],
        x_vals=COLUMNS,
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln", "PyTorch"],
        ylabel="GB/s",
        plot_name="layer_norm_backward",
        args={"rows": 4096, "dtype": torch.float16},
    )
)
def backward_benchmark(columns, rows, dtype, provider, device=DEVICE, clock=do_bench):
    return rate("backward", columns, rows, dtype, provider, device, clock)


if __name__ == "__main__":
    benchmark.run(print_data=True)
    backward_benchmark.run(print_data=True)
