"""Kernels with a row an instance: normalisation, quantisation, sums and maxima of rows."""

from __future__ import annotations

import kiln.kernels as triton
import kiln.language as tl
import torch
import torch.nn.functional as F  # noqa: N812

from .case import Case, Inputs, ceiling


@triton.jit
def softmax_online(x, y, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    m = tl.full([BLOCK], float("-inf"), tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + c, mask=c < n, other=float("-inf")).to(tl.float32)
        new = tl.maximum(m, v)
        s = s * tl.where(m == float("-inf"), 0.0, tl.exp(m - new)) + tl.where(v == float("-inf"), 0.0, tl.exp(v - new))
        m = new
    top = tl.max(m, 0)
    total = tl.sum(s * tl.where(m == float("-inf"), 0.0, tl.exp(m - top)), 0)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + c, mask=c < n, other=float("-inf")).to(tl.float32)
        tl.store(y + row * stride + c, (tl.exp(v - top) / total).to(y.dtype.element_ty), mask=c < n)


def case_softmax_online(inputs: Inputs, small: bool) -> Case:
    rows, n = (5, 1000) if small else (4096, 50257)
    x = inputs.normal(rows, n, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    block = 1024 if small else 4096
    return Case(
        lambda: softmax_online[(rows,)](x, y, n, n, BLOCK=block, num_warps=8),
        [y],
        lambda: [torch.softmax(x.float(), 1)],
        1e-2,
    )


@triton.jit
def _welford(m1, v1, w1, m2, v2, w2):
    d = m2 - m1
    w = w1 + w2
    r = tl.where(w == 0.0, 0.0, w2 / w)
    return m1 + d * r, v1 + v2 + d * d * w1 * r, w


@triton.jit
def layernorm_welford(x, g, b, y, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < n
    v = tl.load(x + row * n + c, mask=mask, other=0.0).to(tl.float32)
    mean, m2, w = tl.reduce((tl.where(mask, v, 0.0), tl.zeros_like(v), mask.to(tl.float32)), 0, _welford)
    rstd = 1.0 / tl.sqrt(m2 / n + eps)
    out = (v - mean) * rstd * tl.load(g + c, mask=mask).to(tl.float32) + tl.load(b + c, mask=mask).to(tl.float32)
    tl.store(y + row * n + c, out.to(y.dtype.element_ty), mask=mask)


def case_layernorm_welford(inputs: Inputs, small: bool) -> Case:
    rows, n = (7, 700) if small else (16384, 4096)
    x, g, b = (inputs.normal(*shape, dtype=torch.float16) for shape in [(rows, n), (n,), (n,)])
    y = torch.empty_like(x)
    block = 1024 if small else 4096
    return Case(
        lambda: layernorm_welford[(rows,)](x, g, b, y, n, 1e-5, BLOCK=block, num_warps=8),
        [y],
        lambda: [F.layer_norm(x.float(), (n,), g.float(), b.float(), 1e-5)],
        1e-2,
    )


@triton.jit
def groupnorm_silu(x, g, b, y, C, HW, G, eps, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    per = C // G
    base = pid.to(tl.int64) * per * HW
    size = per * HW
    s = tl.zeros([BLOCK], tl.float32)
    q = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        o = start + tl.arange(0, BLOCK)
        v = tl.load(x + base + o, mask=o < size, other=0.0).to(tl.float32)
        s += v
        q += v * v
    mean = tl.sum(s) / size
    var = tl.sum(q) / size - mean * mean
    rstd = tl.rsqrt(var + eps)
    group = pid % G
    for start in range(0, size, BLOCK):
        o = start + tl.arange(0, BLOCK)
        ch = group * per + o // HW
        v = tl.load(x + base + o, mask=o < size, other=0.0).to(tl.float32)
        v = (v - mean) * rstd * tl.load(g + ch, mask=o < size, other=0.0) + tl.load(b + ch, mask=o < size, other=0.0)
        tl.store(y + base + o, (v * tl.sigmoid(v)).to(y.dtype.element_ty), mask=o < size)


def case_groupnorm_silu(inputs: Inputs, small: bool) -> Case:
    batch, channels, size, groups = (2, 8, 50, 4) if small else (16, 320, 4096, 32)
    x, g, b = (
        inputs.normal(batch, channels, size, dtype=torch.float16),
        inputs.normal(channels),
        inputs.normal(channels),
    )
    y = torch.empty_like(x)
    return Case(
        lambda: groupnorm_silu[(batch * groups,)](x, g, b, y, channels, size, groups, 1e-5, BLOCK=2048, num_warps=8),
        [y],
        lambda: [F.silu(F.group_norm(x.float(), groups, g, b, 1e-5))],
        1e-2,
    )


@triton.jit
def quantize_rows(x, q, s, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + c, mask=c < n, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(v), 0), 1e-6) / 127.0
    r = v / scale
    r = tl.where(r >= 0, tl.floor(r + 0.5), tl.ceil(r - 0.5))
    tl.store(q + row * n + c, r.to(tl.int8), mask=c < n)
    tl.store(s + row, scale)


def case_quantize_rows(inputs: Inputs, small: bool) -> Case:
    rows, n = (6, 500) if small else (8192, 8192)
    x = inputs.normal(rows, n, dtype=torch.bfloat16)
    q, scale = inputs.empty(rows, n, dtype=torch.int8), inputs.empty(rows)

    def reference() -> list[torch.Tensor]:
        wanted = x.float().abs().amax(1).clamp(min=1e-6) / 127
        ratio = x.float() / wanted[:, None]
        return [torch.where(ratio >= 0, (ratio + 0.5).floor(), (ratio - 0.5).ceil()), wanted]

    block = 512 if small else 8192
    return Case(
        lambda: quantize_rows[(rows,)](x, q, scale, n, BLOCK=block, num_warps=8), [q, scale], reference, 1.01 / 127
    )


@triton.jit
def quantize_blocks_f8(x, q, s, M, N, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    j = tl.program_id(1)
    r = i * BLOCK + tl.arange(0, BLOCK)
    c = j * BLOCK + tl.arange(0, BLOCK)
    off = r[:, None] * N + c[None, :]
    mask = (r[:, None] < M) & (c[None, :] < N)
    v = tl.load(x + off, mask=mask, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(v)) / 448.0
    tl.store(q + off, (v / scale).to(q.dtype.element_ty), mask=mask)
    tl.store(s + i * tl.cdiv(N, BLOCK) + j, scale)


def case_quantize_blocks_f8(inputs: Inputs, small: bool) -> Case:
    rows, columns = (200, 300) if small else (8192, 8192)
    x = inputs.normal(rows, columns, dtype=torch.bfloat16)
    down, across = ceiling(rows, 128), ceiling(columns, 128)
    q, scale = inputs.empty(rows, columns, dtype=torch.float8_e4m3fn), inputs.empty(down, across)

    def reference() -> list[torch.Tensor]:
        padded = F.pad(x.float(), (0, -columns % 128, 0, -rows % 128)).view(down, 128, across, 128)
        wanted = padded.abs().amax((1, 3)) / 448
        blocks = (padded / wanted[:, None, :, None]).reshape(down * 128, -1)
        return [blocks[:rows, :columns], wanted]

    return Case(
        lambda: quantize_blocks_f8[(down, across)](x, q, scale, rows, columns, BLOCK=128, num_warps=8),
        [q, scale],
        reference,
        0.04,
    )


@triton.jit
def cumsum_rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    carry = tl.zeros([1], tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + c, mask=c < n, other=0.0).to(tl.float32)
        tl.store(y + row * n + c, tl.cumsum(v, 0) + carry, mask=c < n)
        carry += tl.sum(v, 0)


def case_cumsum_rows(inputs: Inputs, small: bool) -> Case:
    rows, n = (5, 1500) if small else (4096, 8192)
    x = inputs.normal(rows, n)
    y = torch.empty_like(x)
    return Case(lambda: cumsum_rows[(rows,)](x, y, n, BLOCK=1024), [y], lambda: [x.double().cumsum(1)], 1e-4)


@triton.jit
def argmax_rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    at = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * n + c, mask=c < n, other=float("-inf")).to(tl.float32)
        more = v > best
        best = tl.where(more, v, best)
        at = tl.where(more, c, at)
    top = tl.max(best, 0)
    tl.store(y + row, tl.min(tl.where(best == top, at, 2147483647), 0).to(tl.int64))


def case_argmax_rows(inputs: Inputs, small: bool) -> Case:
    rows, n = (5, 1500) if small else (2048, 128256)
    x = inputs.normal(rows, n, dtype=torch.bfloat16)
    y = inputs.empty(rows, dtype=torch.int64)
    return Case(
        lambda: argmax_rows[(rows,)](x, y, n, BLOCK=2048, num_warps=8),
        [y],
        lambda: [(x == x.amax(1, keepdim=True)).int().argmax(1)],
        0,
    )


@triton.jit
def cosine(a, b, y, n, BR: tl.constexpr, BLOCK: tl.constexpr, R):
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.arange(0, BLOCK)
    mask = (r[:, None] < R) & (c[None, :] < n)
    u = tl.load(a + r[:, None] * n + c[None, :], mask=mask, other=0.0).to(tl.float32)
    v = tl.load(b + r[:, None] * n + c[None, :], mask=mask, other=0.0).to(tl.float32)
    dot = tl.sum(u * v, 1)
    norm = tl.sqrt(tl.sum(u * u, 1)) * tl.sqrt(tl.sum(v * v, 1))
    tl.store(y + r, dot / tl.maximum(norm, 1e-8), mask=r < R)


def case_cosine(inputs: Inputs, small: bool) -> Case:
    rows, n = (30, 100) if small else (65536, 768)
    a, b, y = inputs.normal(rows, n), inputs.normal(rows, n), inputs.empty(rows)
    block = 128 if small else 1024
    return Case(
        lambda: cosine[(ceiling(rows, 4),)](a, b, y, n, BR=4, BLOCK=block, R=rows),
        [y],
        lambda: [F.cosine_similarity(a, b, dim=1)],
        1e-4,
    )


@triton.jit
def add_rms_quant(x, r, g, y, s, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < n
    v = tl.load(x + row * n + c, mask=mask, other=0.0).to(tl.float32) + tl.load(
        r + row * n + c, mask=mask, other=0.0
    ).to(tl.float32)
    tl.store(r + row * n + c, v.to(r.dtype.element_ty), mask=mask)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / n + eps) * tl.load(g + c, mask=mask, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(v), 0) / 448.0
    tl.store(y + row * n + c, (v / scale).to(y.dtype.element_ty), mask=mask)
    tl.store(s + row, scale)


def case_add_rms_quant(inputs: Inputs, small: bool) -> Case:
    rows, n = (6, 500) if small else (8192, 4096)
    x, residual, g = (inputs.normal(*shape, dtype=torch.bfloat16) for shape in [(rows, n), (rows, n), (n,)])
    before = residual.clone()
    y, scale = inputs.empty(rows, n, dtype=torch.float8_e4m3fn), inputs.empty(rows)

    def reference() -> list[torch.Tensor]:
        v = x.float() + before.float()
        w = v * torch.rsqrt((v * v).mean(1, keepdim=True) + 1e-6) * g.float()
        wanted = w.abs().amax(1) / 448
        return [w / wanted[:, None], wanted]

    block = 512 if small else 4096
    return Case(
        lambda: add_rms_quant[(rows,)](x, residual, g, y, scale, n, 1e-6, BLOCK=block, num_warps=8),
        [y, scale],
        reference,
        0.04,
        reset=lambda: residual.copy_(before),
    )


@triton.jit
def kl_div(p, t, loss, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = 0.0
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        a = tl.load(p + row * n + c, mask=c < n, other=0.0).to(tl.float32)
        b = tl.load(t + row * n + c, mask=c < n, other=0.0).to(tl.float32)
        acc += tl.sum(tl.where(b > 0, b * (tl.log(tl.maximum(b, 1e-20)) - a), 0.0), 0)
    tl.store(loss + row, acc)


def case_kl_div(inputs: Inputs, small: bool) -> Case:
    rows, n = (5, 700) if small else (4096, 32000)
    p = torch.log_softmax(inputs.normal(rows, n), 1).bfloat16()
    t = torch.softmax(inputs.normal(rows, n), 1).bfloat16()
    loss = inputs.empty(rows)

    def reference() -> list[torch.Tensor]:
        terms = t.double() * (t.double().clamp(min=1e-20).log() - p.double())
        return [torch.where(t > 0, terms, 0.0).sum(1)]

    return Case(lambda: kl_div[(rows,)](p, t, loss, n, BLOCK=4096, num_warps=8), [loss], reference, 1e-3)


@triton.jit
def top4(x, vals, n: tl.constexpr, BR: tl.constexpr, R):
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.arange(0, n)
    v = tl.load(x + r[:, None] * n + c[None, :], mask=r[:, None] < R, other=0.0)
    best = tl.topk(v, 4, 1)
    four = tl.arange(0, 4)
    tl.store(vals + r[:, None] * 4 + four[None, :], best, mask=r[:, None] < R)


def case_top4(inputs: Inputs, small: bool) -> Case:
    rows, n = (10, 64) if small else (65536, 128)
    x, best = inputs.normal(rows, n), inputs.empty(rows, 4)
    return Case(lambda: top4[(ceiling(rows, 8),)](x, best, n=n, BR=8, R=rows), [best], lambda: [x.topk(4, 1).values], 0)


@triton.jit
def sort_rows(x, y, n: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, n)
    tl.store(y + row * n + c, tl.sort(tl.load(x + row * n + c)))


def case_sort_rows(inputs: Inputs, small: bool) -> Case:
    rows, n = (4, 128) if small else (16384, 1024)
    x = inputs.normal(rows, n)
    y = torch.empty_like(x)
    return Case(lambda: sort_rows[(rows,)](x, y, n=n), [y], lambda: [x.sort(1).values], 0)
