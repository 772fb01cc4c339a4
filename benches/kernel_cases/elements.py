"""Kernels of elements: pointwise chains, gathers, windows, and sums by atomics."""

from __future__ import annotations

import kiln.kernels as triton
import kiln.language as tl
import torch
import torch.nn.functional as F  # noqa: N812

from .case import Case, Inputs, ceiling


@triton.jit
def geglu_backward(dy, a, b, da, db, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = o < n
    d = tl.load(dy + o, mask=mask).to(tl.float32)
    x = tl.load(a + o, mask=mask).to(tl.float32)
    w = tl.load(b + o, mask=mask).to(tl.float32)
    cube = 0.044715 * x * x * x
    inner = 0.7978845608028654 * (x + cube)
    t = 2.0 / (1.0 + tl.exp(-2.0 * inner)) - 1.0
    gelu = 0.5 * x * (1.0 + t)
    grad = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x)
    tl.store(db + o, (d * gelu).to(db.dtype.element_ty), mask=mask)
    tl.store(da + o, (d * w * grad).to(da.dtype.element_ty), mask=mask)


def case_geglu_backward(inputs: Inputs, small: bool) -> Case:
    n = 3000 if small else 1 << 25
    d, a, b = (inputs.normal(n, dtype=torch.bfloat16) for _ in range(3))
    da, db = torch.empty_like(a), torch.empty_like(b)

    def reference() -> list[torch.Tensor]:
        x, w = a.float().requires_grad_(), b.float().requires_grad_()
        grads = torch.autograd.grad(F.gelu(x, approximate="tanh") * w, [x, w], d.float())
        return list(grads)

    return Case(lambda: geglu_backward[(ceiling(n, 1024),)](d, a, b, da, db, n, BLOCK=1024), [da, db], reference, 2e-2)


@triton.jit
def adamw(p, g, m, v, n, lr, b1, b2, eps, wd, c1, c2, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = o < n
    x = tl.load(p + o, mask=mask)
    d = tl.load(g + o, mask=mask).to(tl.float32)
    mm = tl.load(m + o, mask=mask)
    vv = tl.load(v + o, mask=mask)
    mm = b1 * mm + (1 - b1) * d
    vv = b2 * vv + (1 - b2) * d * d
    x = x - lr * (wd * x + (mm / c1) / (tl.sqrt(vv / c2) + eps))
    tl.store(p + o, x, mask=mask)
    tl.store(m + o, mm, mask=mask)
    tl.store(v + o, vv, mask=mask)


def case_adamw(inputs: Inputs, small: bool) -> Case:
    n = 3001 if small else 1 << 25
    p, g, m, v = inputs.normal(n), inputs.normal(n, dtype=torch.bfloat16), inputs.normal(n), inputs.normal(n).abs()
    state = [p, m, v]
    before = [t.clone() for t in state]

    def reset() -> None:
        for tensor, old in zip(state, before):
            tensor.copy_(old)

    def reference() -> list[torch.Tensor]:
        x, mm, vv = before
        d = g.float()
        mm, vv = 0.9 * mm + 0.1 * d, 0.95 * vv + 0.05 * d * d
        return [x - 1e-3 * (0.1 * x + (mm / 0.5) / ((vv / 0.4).sqrt() + 1e-8)), mm, vv]

    return Case(
        lambda: adamw[(ceiling(n, 1024),)](p, g, m, v, n, 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.5, 0.4, BLOCK=1024),
        state,
        reference,
        1e-5,
        reset,
    )


@triton.jit
def transpose(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    v = tl.load(x + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N))
    tl.store(y + n[:, None] * M + m[None, :], tl.trans(v), mask=(n[:, None] < N) & (m[None, :] < M))


def case_transpose(inputs: Inputs, small: bool) -> Case:
    rows, columns = (70, 130) if small else (8192, 8192)
    x, y = inputs.normal(rows, columns, dtype=torch.float16), inputs.empty(columns, rows, dtype=torch.float16)
    grid = (ceiling(rows, 64), ceiling(columns, 64))
    return Case(lambda: transpose[grid](x, y, rows, columns, BM=64, BN=64), [y], lambda: [x.t()], 0)


@triton.jit
def causal_conv1d(x, w, y, D, L, K: tl.constexpr, BD: tl.constexpr, BL: tl.constexpr):
    b = tl.program_id(2)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    l = tl.program_id(1) * BL + tl.arange(0, BL)
    acc = tl.zeros((BD, BL), tl.float32)
    for t in tl.static_range(K):
        at = l + t - (K - 1)
        v = tl.load(
            x + (b * D + d[:, None]) * L + at[None, :],
            mask=(d[:, None] < D) & (at[None, :] >= 0) & (at[None, :] < L),
            other=0.0,
        )
        acc += v.to(tl.float32) * tl.load(w + d * K + t, mask=d < D, other=0.0).to(tl.float32)[:, None]
    tl.store(
        y + (b * D + d[:, None]) * L + l[None, :],
        (acc * tl.sigmoid(acc)).to(y.dtype.element_ty),
        mask=(d[:, None] < D) & (l[None, :] < L),
    )


def case_causal_conv1d(inputs: Inputs, small: bool) -> Case:
    batch, channels, length = (2, 20, 70) if small else (8, 2048, 2048)
    x, w = (
        inputs.normal(batch, channels, length, dtype=torch.bfloat16),
        inputs.normal(channels, 4, dtype=torch.bfloat16),
    )
    y = torch.empty_like(x)
    grid = (ceiling(channels, 4), ceiling(length, 512), batch)
    return Case(
        lambda: causal_conv1d[grid](x, w, y, channels, length, K=4, BD=4, BL=512),
        [y],
        lambda: [F.silu(F.conv1d(F.pad(x.float(), (3, 0)), w.float()[:, None], groups=channels))],
        1e-2,
    )


@triton.jit
def maxpool2d(x, y, C, H, W, P, Q, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ch = tl.program_id(1).to(tl.int64)
    p = o // Q
    q = o % Q
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for r in tl.static_range(3):
        for s in tl.static_range(3):
            h = p * 2 + r - 1
            w = q * 2 + s - 1
            inside = (h >= 0) & (h < H) & (w >= 0) & (w < W) & (o < P * Q)
            best = tl.maximum(
                best, tl.load(x + ch * H * W + h * W + w, mask=inside, other=float("-inf")).to(tl.float32)
            )
    tl.store(y + ch * P * Q + o, best.to(y.dtype.element_ty), mask=o < P * Q)


def case_maxpool2d(inputs: Inputs, small: bool) -> Case:
    channels, height, width = (3, 15, 17) if small else (2048, 112, 112)
    down, across = (height + 1) // 2, (width + 1) // 2
    x = inputs.normal(channels, height, width, dtype=torch.float16)
    y = inputs.empty(channels, down, across, dtype=torch.float16)
    grid = (ceiling(down * across, 1024), channels)
    return Case(
        lambda: maxpool2d[grid](x, y, channels, height, width, down, across, BLOCK=1024),
        [y],
        lambda: [F.max_pool2d(x[None].float(), 3, 2, 1)[0]],
        0,
    )


@triton.jit
def rope_interleaved(x, cos, sin, y, L, H, D: tl.constexpr, BH: tl.constexpr):
    t = tl.program_id(0)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    d = tl.arange(0, D)
    v = tl.load(x + (t * H + h[:, None]) * D + d[None, :], mask=h[:, None] < H, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(v, (BH, D // 2, 2)))
    half = tl.arange(0, D // 2)
    c = tl.load(cos + (t % L) * (D // 2) + half)[None, :]
    s = tl.load(sin + (t % L) * (D // 2) + half)[None, :]
    out = tl.reshape(tl.join(a * c - b * s, a * s + b * c), (BH, D))
    tl.store(y + (t * H + h[:, None]) * D + d[None, :], out.to(y.dtype.element_ty), mask=h[:, None] < H)


def case_rope_interleaved(inputs: Inputs, small: bool) -> Case:
    tokens, length, heads, size = (10, 5, 6, 64) if small else (16384, 2048, 32, 128)
    x = inputs.normal(tokens, heads, size, dtype=torch.bfloat16)
    cos, sin = inputs.normal(length, size // 2), inputs.normal(length, size // 2)
    y = torch.empty_like(x)

    def reference() -> list[torch.Tensor]:
        a, b = x.float().unflatten(2, (size // 2, 2)).unbind(-1)
        at = torch.arange(tokens, device=x.device) % length
        c, s = cos[at][:, None], sin[at][:, None]
        return [torch.stack([a * c - b * s, a * s + b * c], -1).flatten(2)]

    return Case(
        lambda: rope_interleaved[(tokens, ceiling(heads, 8))](x, cos, sin, y, length, heads, D=size, BH=8),
        [y],
        reference,
        1e-2,
    )


@triton.jit
def embedding(ids, table, y, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.load(ids + row)
    for start in range(0, D, BLOCK):
        c = start + tl.arange(0, BLOCK)
        tl.store(y + row * D + c, tl.load(table + i * D + c, mask=c < D), mask=c < D)


def case_embedding(inputs: Inputs, small: bool) -> Case:
    tokens, words, size = (9, 50, 300) if small else (16384, 32000, 4096)
    ids, table = inputs.integers(0, words, tokens), inputs.normal(words, size, dtype=torch.bfloat16)
    y = inputs.empty(tokens, size, dtype=torch.bfloat16)
    return Case(lambda: embedding[(tokens,)](ids, table, y, size, BLOCK=1024), [y], lambda: [table[ids]], 0)


@triton.jit
def embedding_backward(ids, dy, dt, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.load(ids + row)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(dt + i * D + c, tl.load(dy + row * D + c, mask=c < D).to(tl.float32), mask=c < D)


def case_embedding_backward(inputs: Inputs, small: bool) -> Case:
    tokens, words, size = (9, 20, 300) if small else (8192, 32000, 2048)
    ids, dy = inputs.integers(0, words, tokens), inputs.normal(tokens, size, dtype=torch.bfloat16)
    dt = inputs.zeros(words, size)
    return Case(
        lambda: embedding_backward[(tokens, ceiling(size, 1024))](ids, dy, dt, size, BLOCK=1024),
        [dt],
        lambda: [torch.zeros_like(dt).index_add_(0, ids, dy.float())],
        1e-4,
        reset=dt.zero_,
    )


@triton.jit
def histogram(x, out, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.histogram(tl.load(x + o, mask=o < n, other=0), BINS)
    extra = tl.sum((o >= n).to(tl.int32))
    b = tl.arange(0, BINS)
    tl.atomic_add(out + b, h - tl.where(b == 0, extra, 0))


def case_histogram(inputs: Inputs, small: bool) -> Case:
    n = 5000 if small else 1 << 24
    x, counts = inputs.integers(0, 256, n, dtype=torch.int32), inputs.zeros(256, dtype=torch.int32)
    return Case(
        lambda: histogram[(ceiling(n, 4096),)](x, counts, n, BINS=256, BLOCK=4096, num_warps=8),
        [counts],
        lambda: [torch.bincount(x, minlength=256)],
        0,
        reset=counts.zero_,
    )


@triton.jit
def moe_align(ids, counts, n, E: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.load(ids + o, mask=o < n, other=0)
    tl.atomic_add(counts + e, 1, mask=o < n)


def case_moe_align(inputs: Inputs, small: bool) -> Case:
    n = 5000 if small else 1 << 22
    ids, counts = inputs.integers(0, 64, n, dtype=torch.int32), inputs.zeros(64, dtype=torch.int32)
    return Case(
        lambda: moe_align[(ceiling(n, 1024),)](ids, counts, n, E=64, BLOCK=1024),
        [counts],
        lambda: [torch.bincount(ids, minlength=64)],
        0,
        reset=counts.zero_,
    )


@triton.jit
def sum_all(x, out, n, BLOCK: tl.constexpr):
    step = tl.num_programs(0) * BLOCK
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, n, step):
        o = start + tl.arange(0, BLOCK)
        acc += tl.load(x + o, mask=o < n, other=0.0)
    tl.atomic_add(out, tl.sum(acc, 0))


def case_sum_all(inputs: Inputs, small: bool) -> Case:
    n = 10001 if small else 1 << 27
    x, total = inputs.normal(n), inputs.zeros(1)
    return Case(
        lambda: sum_all[(528,)](x, total, n, BLOCK=4096, num_warps=8),
        [total],
        lambda: [x.double().sum()[None]],
        5e-3,
        reset=total.zero_,
    )
