"""Kernels of attention: gradients, split decoding, states of linear attention."""

from __future__ import annotations

import kiln.kernels as triton
import kiln.language as tl
import torch
import torch.nn.functional as F  # noqa: N812

from .case import Case, Inputs, ceiling


@triton.jit
def attn_bwd_kv(q, k, v, do, lse, delta, dk, dv, L, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * L * D
    row = tl.program_id(1) * L
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    kk = tl.load(k + head + n[:, None] * D + d[None, :])
    vv = tl.load(v + head + n[:, None] * D + d[None, :])
    gk = tl.zeros((BN, D), tl.float32)
    gv = tl.zeros((BN, D), tl.float32)
    for start in range(0, L, BM):
        m = start + tl.arange(0, BM)
        qq = tl.load(q + head + m[:, None] * D + d[None, :])
        dd = tl.load(do + head + m[:, None] * D + d[None, :])
        st = tl.dot(kk, tl.trans(qq)) * scale
        p = tl.exp(st - tl.load(lse + row + m)[None, :])
        gv += tl.dot(p.to(dd.dtype), dd)
        dp = tl.dot(vv, tl.trans(dd))
        ds = p * (dp - tl.load(delta + row + m)[None, :]) * scale
        gk += tl.dot(ds.to(qq.dtype), qq)
    tl.store(dk + head + n[:, None] * D + d[None, :], gk.to(dk.dtype.element_ty))
    tl.store(dv + head + n[:, None] * D + d[None, :], gv.to(dv.dtype.element_ty))


@triton.jit
def attn_bwd_q(q, k, v, do, lse, delta, dq, L, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * L * D
    row = tl.program_id(1) * L
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    qq = tl.load(q + head + m[:, None] * D + d[None, :])
    dd = tl.load(do + head + m[:, None] * D + d[None, :])
    ls = tl.load(lse + row + m)
    de = tl.load(delta + row + m)
    gq = tl.zeros((BM, D), tl.float32)
    for start in range(0, L, BN):
        n = start + tl.arange(0, BN)
        kk = tl.load(k + head + n[:, None] * D + d[None, :])
        vv = tl.load(v + head + n[:, None] * D + d[None, :])
        p = tl.exp(tl.dot(qq, tl.trans(kk)) * scale - ls[:, None])
        ds = p * (tl.dot(dd, tl.trans(vv)) - de[:, None])
        gq += tl.dot(ds.to(kk.dtype), kk)
    tl.store(dq + head + m[:, None] * D + d[None, :], (gq * scale).to(dq.dtype.element_ty))


class Gradients:
    """Inputs of backward attention with heads of 64, and what it gives."""

    def __init__(self, inputs: Inputs, small: bool) -> None:
        self.heads, self.length = (2, 128) if small else (64, 2048)
        self.q, self.k, self.v, self.do = (
            inputs.normal(self.heads, self.length, 64, dtype=torch.float16) for _ in range(4)
        )
        self.scale = 64**-0.5
        q, k, v, do = (t.float() for t in [self.q, self.k, self.v, self.do])
        scores = q @ k.transpose(1, 2) * self.scale
        p = torch.softmax(scores, -1)
        self.lse = torch.logsumexp(scores, -1)
        self.delta = (p @ v * do).sum(-1)
        ds = p * (do @ v.transpose(1, 2) - self.delta[..., None]) * self.scale
        self.dq, self.dk, self.dv = ds @ k, ds.transpose(1, 2) @ q, p.transpose(1, 2) @ do

    def arguments(self, *results: torch.Tensor) -> tuple[object, ...]:
        g = self
        return (g.q, g.k, g.v, g.do, g.lse, g.delta, *results, g.length, g.scale)


def case_attn_bwd_kv(inputs: Inputs, small: bool) -> Case:
    g = Gradients(inputs, small)
    dk, dv = torch.empty_like(g.k), torch.empty_like(g.v)
    tiles = {"D": 64, "BM": 64, "BN": 128, "num_warps": 8, "num_stages": 2}
    return Case(
        lambda: attn_bwd_kv[(g.length // 128, g.heads)](*g.arguments(dk, dv), **tiles),
        [dk, dv],
        lambda: [g.dk, g.dv],
        1e-2,
    )


def case_attn_bwd_q(inputs: Inputs, small: bool) -> Case:
    g = Gradients(inputs, small)
    dq = torch.empty_like(g.q)
    tiles = {"D": 64, "BM": 128, "BN": 64, "num_warps": 8, "num_stages": 2}
    return Case(lambda: attn_bwd_q[(g.length // 128, g.heads)](*g.arguments(dq), **tiles), [dq], lambda: [g.dq], 1e-2)


@triton.jit
def decode_split(
    q, k, v, o, m, s, L, scale, H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, PER: tl.constexpr
):
    b = tl.program_id(0)
    hk = tl.program_id(1)
    part = tl.program_id(2)
    G: tl.constexpr = 16
    g = tl.arange(0, G)
    d = tl.arange(0, D)
    heads = hk * (H // HK) + g
    qq = tl.load(q + (b * H + heads[:, None]) * D + d[None, :], mask=g[:, None] < H // HK, other=0.0)
    top = tl.full([G], float("-inf"), tl.float32)
    total = tl.zeros([G], tl.float32)
    acc = tl.zeros((G, D), tl.float32)
    lo = part * PER
    for start in range(lo, min(lo + PER, L), BN):
        n = start + tl.arange(0, BN)
        base = (b * L + n[:, None]).to(tl.int64) * HK * D + hk * D + d[None, :]
        kk = tl.load(k + base, mask=n[:, None] < L, other=0.0)
        p = tl.dot(qq, tl.trans(kk)) * scale
        p = tl.where(n[None, :] < L, p, float("-inf"))
        new = tl.maximum(top, tl.max(p, 1))
        p = tl.exp(p - new[:, None])
        r = tl.exp(top - new)
        total = total * r + tl.sum(p, 1)
        vv = tl.load(v + base, mask=n[:, None] < L, other=0.0)
        acc = acc * r[:, None] + tl.dot(p.to(vv.dtype), vv)
        top = new
    parts = tl.num_programs(2)
    at = (b * H + heads) * parts + part
    tl.store(o + at[:, None] * D + d[None, :], acc / total[:, None], mask=g[:, None] < H // HK)
    tl.store(m + at, top, mask=g < H // HK)
    tl.store(s + at, total, mask=g < H // HK)


def case_decode_split(inputs: Inputs, small: bool) -> Case:
    batch, heads, of_keys, size, length, parts = (2, 8, 2, 64, 300, 2) if small else (16, 32, 8, 128, 8192, 8)
    q = inputs.normal(batch, heads, size, dtype=torch.bfloat16)
    k, v = (inputs.normal(batch, length, of_keys, size, dtype=torch.bfloat16) for _ in range(2))
    out, top, total = inputs.empty(batch, heads, parts, size), *(inputs.empty(batch, heads, parts) for _ in range(2))
    part = ceiling(ceiling(length, parts), 64) * 64
    scale = size**-0.5

    def reference() -> list[torch.Tensor]:
        keys, values = (t.float().repeat_interleave(heads // of_keys, 2).transpose(1, 2) for t in [k, v])
        scores = (q.float()[:, :, None] @ keys.transpose(2, 3)) * scale
        cuts = [slice(i * part, (i + 1) * part) for i in range(parts)]
        return [torch.cat([torch.softmax(scores[..., cut], -1) @ values[:, :, cut] for cut in cuts], 2)]

    tiles = {"H": heads, "HK": of_keys, "D": size, "BN": 64, "PER": part, "num_warps": 4, "num_stages": 3}
    return Case(
        lambda: decode_split[(batch, of_keys, parts)](q, k, v, out, top, total, length, scale, **tiles),
        [out],
        reference,
        1e-2,
    )


@triton.jit
def chunk_state(k, v, s, L, D: tl.constexpr, C: tl.constexpr):
    # running sum of k^T v before each chunk, one head an instance
    h = tl.program_id(0)
    d = tl.arange(0, D)
    t = tl.arange(0, C)
    acc = tl.zeros((D, D), tl.float32)
    base = h * L * D
    chunks = L // C
    for i in range(0, chunks):
        tl.store(s + (h * chunks + i) * D * D + d[:, None] * D + d[None, :], acc.to(s.dtype.element_ty))
        kk = tl.load(k + base + (i * C + t)[None, :] * D + d[:, None])
        vv = tl.load(v + base + (i * C + t)[:, None] * D + d[None, :])
        acc += tl.dot(kk, vv)


def case_chunk_state(inputs: Inputs, small: bool) -> Case:
    heads, length, size, chunk = (2, 128, 64, 32) if small else (256, 4096, 64, 64)
    k, v = (inputs.normal(heads, length, size, dtype=torch.bfloat16) for _ in range(2))
    states = inputs.empty(heads, length // chunk, size, size, dtype=torch.bfloat16)

    def reference() -> list[torch.Tensor]:
        keys, values = (t.float().unflatten(1, (-1, chunk)) for t in [k, v])
        sums = keys.transpose(2, 3) @ values
        return [sums.cumsum(1) - sums]

    return Case(
        lambda: chunk_state[(heads,)](k, v, states, length, D=size, C=chunk, num_warps=4, num_stages=3),
        [states],
        reference,
        1e-2,
    )
