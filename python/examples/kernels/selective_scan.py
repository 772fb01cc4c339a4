"""A selective scan over a state space, the core of Mamba (Gu and Dao, 2023, arXiv:2312.00752):

    h[t, d, s] = exp(dt[t, d] A[d, s]) h[t-1, d, s] + dt[t, d] B[t, s] x[t, d]
    y[t, d] = sum_s C[t, s] h[t, d, s] + D[d] x[t, d]

x, dt: [batch, length, dim]; A: [dim, state]; B, C: [batch, length, state]; D: [dim]. The state is never in memory.

One kernel walks over time with the state in registers. The other takes blocks of steps: a step is the pair (decay,
input) of h -> decay * h + input, two steps are a pair again, (a1 a2, a2 b1 + b2), and so steps are combined by an
associative scan along time, which threads share.
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
def sequential_kernel(
    x, dt, A, B, C, D, y, length, dim, STATE: kl.constexpr, CHANNELS: kl.constexpr
):
    d = kl.program_id(0) * CHANNELS + kl.arange(0, CHANNELS)
    s = kl.arange(0, STATE)
    # Step `length * batch` is the first of this sequence.
    first = kl.program_id(1) * length
    mask = d < dim
    decay = kl.load(A + d[:, None] * STATE + s[None, :], mask=mask[:, None], other=0.0)
    skip = kl.load(D + d, mask=mask, other=0.0)
    h = kl.zeros([CHANNELS, STATE], dtype=kl.float32)
    for t in range(first, first + length):
        step = kl.load(dt + t * dim + d, mask=mask, other=0.0).to(kl.float32)
        value = kl.load(x + t * dim + d, mask=mask, other=0.0).to(kl.float32)
        b = kl.load(B + t * STATE + s).to(kl.float32)
        c = kl.load(C + t * STATE + s).to(kl.float32)
        h = kl.exp(step[:, None] * decay) * h + (step * value)[:, None] * b[None, :]
        result = kl.sum(h * c[None, :], axis=1) + skip * value
        kl.store(y + t * dim + d, result, mask=mask)
# ANCHOR_END: kernel


# ANCHOR: blocks
@kiln.kernel
def combine_steps(decay1, input1, decay2, input2):
    """The step that is step 1, then step 2."""
    return decay1 * decay2, decay2 * input1 + input2


@kiln.kernel
def scan_kernel(
    x, dt, A, B, C, D, y, length, dim,
    STATE: kl.constexpr, CHANNELS: kl.constexpr, STEPS: kl.constexpr,
):  # fmt: skip
    d = kl.program_id(0) * CHANNELS + kl.arange(0, CHANNELS)
    s = kl.arange(0, STATE)
    first = kl.program_id(1) * length
    rate = kl.load(A + d[:, None] * STATE + s[None, :], mask=d[:, None] < dim, other=0.0)
    skip = kl.load(D + d, mask=d < dim, other=0.0)
    h = kl.zeros([CHANNELS, STATE], dtype=kl.float32)
    for start in range(0, length, STEPS):
        t = start + kl.arange(0, STEPS)
        mask = (t[:, None] < length) & (d[None, :] < dim)
        offsets = (first + t[:, None]) * dim + d[None, :]
        # A step of 0 past the end: decay 1, input 0.
        step = kl.load(dt + offsets, mask=mask, other=0.0).to(kl.float32)
        value = kl.load(x + offsets, mask=mask, other=0.0).to(kl.float32)
        state_offsets = (first + t[:, None]) * STATE + s[None, :]
        b = kl.load(B + state_offsets, mask=t[:, None] < length, other=0.0).to(kl.float32)
        c = kl.load(C + state_offsets, mask=t[:, None] < length, other=0.0).to(kl.float32)
        # Blocks of [STEPS, CHANNELS, STATE].
        decay = kl.exp(step[:, :, None] * rate[None, :, :])
        change = (step * value)[:, :, None] * b[:, None, :]
        decay, change = kl.associative_scan((decay, change), 0, combine_steps)
        states = decay * h[None, :, :] + change
        result = kl.sum(states * c[:, None, :], axis=2) + skip[None, :] * value
        kl.store(y + offsets, result, mask=mask)
        # The state after the block is that of its last step.
        is_last = kl.arange(0, STEPS) == STEPS - 1
        h = kl.sum(kl.where(is_last[:, None, None], states, 0.0), axis=0)
# ANCHOR_END: blocks


# ANCHOR: launch
def selective_scan(x, dt, A, B, C, D, blocks: bool = False) -> torch.Tensor:  # noqa: N803
    """y for contiguous tensors; A and D are f32."""
    batch, length, dim = x.shape
    state = A.shape[1]
    assert dt.shape == x.shape and A.shape == (dim, state) and D.shape == (dim,)
    assert B.shape == C.shape == (batch, length, state), "an input and an output row for each step"
    assert all(t.is_contiguous() for t in (x, dt, A, B, C, D)), "contiguous tensors"
    y = torch.empty_like(x)
    if blocks:
        scan_kernel[(cdiv(dim, 4), batch)](
            x, dt, A, B, C, D, y, length, dim, STATE=state, CHANNELS=4, STEPS=32, num_warps=4
        )
    else:
        sequential_kernel[(cdiv(dim, 32), batch)](
            x, dt, A, B, C, D, y, length, dim, STATE=state, CHANNELS=32, num_warps=4
        )
    return y
# ANCHOR_END: launch


def reference(x, dt, A, B, C, D, blocks=False):  # noqa: N803
    h = torch.zeros(x.shape[0], x.shape[2], A.shape[1], device=x.device, dtype=A.dtype)
    outputs = []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None]
        h = torch.exp(step * A) * h + step * B[:, t, None, :] * x[:, t, :, None]
        outputs.append((h * C[:, t, None, :]).sum(-1) + D * x[:, t])
    return torch.stack(outputs, dim=1)


def inputs(device, batch, length, dim, state=16, blocks=False, dtype=torch.float32):
    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    x, dt = rand(batch, length, dim), torch.nn.functional.softplus(rand(batch, length, dim) - 2)
    A = -torch.arange(1, state + 1, device=device).float().expand(dim, state).contiguous()  # noqa: N806
    moved = (x, dt), (rand(batch, length, state), rand(batch, length, state))
    (x, dt), (b, c) = ((t.to(dtype) for t in pair) for pair in moved)
    return x, dt, A, b, c, rand(dim), blocks


def scan_case(blocks: bool) -> Case:
    return Case(
        run=selective_scan,
        reference=reference,
        inputs=inputs,
        small=[
            {"batch": 2, "length": 70, "dim": 35, "blocks": blocks},
            {"batch": 1, "length": 1, "dim": 64, "blocks": blocks},
            {"batch": 1, "length": 33, "dim": 4, "state": 8, "blocks": blocks, "dtype": torch.bfloat16},
        ],
        full={"batch": 4, "length": 1024, "dim": 2048, "blocks": blocks, "dtype": torch.bfloat16},
        # Decays are below 1, so that errors of steps do not grow.
        roundings=64,
    )


CASES = {"sequential": scan_case(False), "blocks": scan_case(True)}


@perf_report(
    Benchmark(
        x_names=["length"],
        x_vals=[512, 1024, 2048, 4096],
        line_arg="provider",
        line_vals=["kiln", "kiln blocks", "torch"],
        line_names=["Kiln, step by step", "Kiln, blocks of steps", "PyTorch, step by step"],
        ylabel="GB/s",
        plot_name="selective_scan",
        args={"batch": 4, "dim": 2048, "dtype": torch.bfloat16},
    )
)
def benchmark(length, batch, dim, dtype, provider, device=DEVICE, clock=do_bench):
    *tensors, _ = inputs(device, batch, length, dim, dtype=dtype)
    calls = {
        "kiln": lambda: selective_scan(*tensors),
        "kiln blocks": lambda: selective_scan(*tensors, blocks=True),
        "torch": lambda: reference(*tensors),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 3 * tensors[0].nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
