"""Kernels with matmuls: batched, split along K, gated, of quantised weights, convolutions, products with a vector."""

from __future__ import annotations

import kiln.kernels as triton
import kiln.language as tl
import torch
import torch.nn.functional as F  # noqa: N812

from .case import Case, Inputs, ceiling


@triton.jit
def bmm_bias_gelu(
    a, b, bias, c, M, N, K, sab, sam, sbb, sbk, scb, scm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    batch = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    ap = a + batch * sab + m[:, None] * sam + k[None, :]
    bp = b + batch * sbb + k[:, None] * sbk + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        av = tl.load(ap, mask=(m[:, None] < M) & (k[None, :] < K - i * BK), other=0.0)
        bv = tl.load(bp, mask=(k[:, None] < K - i * BK) & (n[None, :] < N), other=0.0)
        acc += tl.dot(av, bv)
        ap += BK
        bp += BK * sbk
    acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
    tl.store(
        c + batch * scb + m[:, None] * scm + n[None, :],
        acc.to(c.dtype.element_ty),
        mask=(m[:, None] < M) & (n[None, :] < N),
    )


def case_bmm_bias_gelu(inputs: Inputs, small: bool) -> Case:
    batch, m, n, k = (2, 70, 90, 64) if small else (16, 1024, 1024, 1024)
    a, b, bias = (inputs.normal(*shape, dtype=torch.bfloat16) for shape in [(batch, m, k), (batch, k, n), (n,)])
    c = inputs.empty(batch, m, n, dtype=torch.bfloat16)
    tiles = {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}
    grid = (ceiling(m, 128), ceiling(n, 128), batch)
    return Case(
        lambda: bmm_bias_gelu[grid](a, b, bias, c, m, n, k, m * k, k, k * n, n, m * n, n, **tiles),
        [c],
        lambda: [F.gelu(a.float() @ b.float() + bias.float())],
        1e-2,
    )


@triton.jit
def splitk_matmul(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    z = tl.program_id(2)
    k = z * BK + tl.arange(0, BK)
    ap = a + m[:, None] * sam + k[None, :] * sak
    bp = b + k[:, None] * sbk + n[None, :] * sbn
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK * SPLIT)):
        left = K - i * BK * SPLIT
        av = tl.load(ap, mask=k[None, :] < left, other=0.0)
        bv = tl.load(bp, mask=k[:, None] < left, other=0.0)
        acc = tl.dot(av, bv, acc)
        ap += BK * SPLIT * sak
        bp += BK * SPLIT * sbk
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.atomic_add(c + m[:, None] * scm + n[None, :], acc, mask=mask)


def case_splitk_matmul(inputs: Inputs, small: bool) -> Case:
    m, n, k = (40, 96, 500) if small else (64, 4096, 16384)
    a, b, c = inputs.normal(m, k, dtype=torch.float16), inputs.normal(k, n, dtype=torch.float16), inputs.zeros(m, n)
    tiles = {"BM": 64, "BN": 64, "BK": 64, "SPLIT": 4, "num_warps": 4, "num_stages": 4}
    grid = (ceiling(m, 64), ceiling(n, 64), 4)
    return Case(
        lambda: splitk_matmul[grid](a, b, c, m, n, k, k, 1, n, 1, n, **tiles),
        [c],
        lambda: [a.float() @ b.float()],
        1e-2,
        reset=c.zero_,
    )


@triton.jit
def gated_mlp(x, w1, w3, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    tm = tl.cdiv(M, BM)
    tn = tl.cdiv(N, BN)
    width = GROUP * tn
    group = pid // width
    size = min(tm - group * GROUP, GROUP)
    m = (group * GROUP + (pid % width) % size) * BM + tl.arange(0, BM)
    n = ((pid % width) // size) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    g = tl.zeros((BM, BN), tl.float32)
    u = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        xv = tl.load(x + m[:, None] * K + (i + k)[None, :], mask=m[:, None] < M, other=0.0)
        w = (i + k)[:, None] * N + n[None, :]
        g = tl.dot(xv, tl.load(w1 + w, mask=n[None, :] < N, other=0.0), g)
        u = tl.dot(xv, tl.load(w3 + w, mask=n[None, :] < N, other=0.0), u)
    out = g * tl.sigmoid(g) * u
    tl.store(y + m[:, None] * N + n[None, :], out.to(y.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def case_gated_mlp(inputs: Inputs, small: bool) -> Case:
    m, n, k = (70, 128, 128) if small else (4096, 11008, 4096)
    x = inputs.normal(m, k, dtype=torch.bfloat16)
    w1, w3 = ((inputs.normal(k, n) / k**0.5).bfloat16() for _ in range(2))
    y = inputs.empty(m, n, dtype=torch.bfloat16)
    tiles = {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3}
    return Case(
        lambda: gated_mlp[(ceiling(m, 128) * ceiling(n, 128),)](x, w1, w3, y, m, n, k, **tiles),
        [y],
        lambda: [F.silu(x.float() @ w1.float()) * (x.float() @ w3.float())],
        1e-2,
    )


@triton.jit
def conv2d(
    x,
    w,
    y,
    N,
    C,
    H,
    W,
    KO,
    P,
    Q,
    R: tl.constexpr,
    S: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    # x: NHWC, w: [K, R, S, C], y: NPQK, padding 1, stride 1
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    n = i // (P * Q)
    p = (i // Q) % P
    q = i % Q
    acc = tl.zeros((BM, BN), tl.float32)
    for rs in range(0, R * S):
        r = rs // S
        s = rs % S
        h = p + r - 1
        ww = q + s - 1
        inside = (h >= 0) & (h < H) & (ww >= 0) & (ww < W) & (n < N)
        for c0 in range(0, C, BK):
            c = c0 + tl.arange(0, BK)
            xv = tl.load(
                x + ((n * H + h) * W + ww)[:, None] * C + c[None, :], mask=inside[:, None] & (c[None, :] < C), other=0.0
            )
            wv = tl.load(
                w + (j[None, :] * R * S + rs) * C + c[:, None], mask=(j[None, :] < KO) & (c[:, None] < C), other=0.0
            )
            acc = tl.dot(xv, wv, acc)
    tl.store(
        y + i[:, None] * KO + j[None, :], acc.to(y.dtype.element_ty), mask=(i[:, None] < N * P * Q) & (j[None, :] < KO)
    )


def case_conv2d(inputs: Inputs, small: bool) -> Case:
    batch, channels, height, width, out = (1, 32, 9, 11, 40) if small else (32, 128, 56, 56, 128)
    x = inputs.normal(batch, height, width, channels, dtype=torch.float16)
    w = inputs.normal(out, 3, 3, channels, dtype=torch.float16)
    y = inputs.empty(batch, height, width, out, dtype=torch.float16)
    grid = (ceiling(batch * height * width, 128), ceiling(out, 128))
    tiles = {"BM": 128, "BN": 128, "BK": min(channels, 64), "num_warps": 8, "num_stages": 3}

    def reference() -> list[torch.Tensor]:
        images, filters = (t.permute(0, 3, 1, 2).float() for t in [x, w])
        return [F.conv2d(images, filters, padding=1).permute(0, 2, 3, 1)]

    return Case(
        lambda: conv2d[grid](x, w, y, batch, channels, height, width, out, height, width, R=3, S=3, **tiles),
        [y],
        reference,
        1e-2,
    )


@triton.jit
def w8a16(a, w, scale, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        av = tl.load(a + m[:, None] * K + (i + k)[None, :], mask=m[:, None] < M, other=0.0)
        wv = tl.load(w + n[None, :] * K + (i + k)[:, None], mask=n[None, :] < N, other=0)
        acc = tl.dot(av, wv.to(av.dtype), acc)
    acc = acc * tl.load(scale + n, mask=n < N, other=0.0)[None, :]
    tl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def weights_of_8_bits(inputs: Inputs, m: int, n: int, k: int, tiles: dict[str, int]) -> Case:
    a, scale = inputs.normal(m, k, dtype=torch.bfloat16), inputs.normal(n).abs() / 100
    w = inputs.integers(-127, 128, n, k, dtype=torch.int8)
    c = inputs.empty(m, n, dtype=torch.bfloat16)
    grid = (ceiling(m, tiles["BM"]), ceiling(n, tiles["BN"]))
    return Case(
        lambda: w8a16[grid](a, w, scale, c, m, n, k, **tiles), [c], lambda: [(a.float() @ w.float().t()) * scale], 1e-2
    )


def case_w8a16(inputs: Inputs, small: bool) -> Case:
    sizes = (20, 96, 128) if small else (32, 11008, 4096)
    return weights_of_8_bits(inputs, *sizes, {"BM": 32, "BN": 64, "BK": 128, "num_warps": 4, "num_stages": 4})


def case_w8a16_wide(inputs: Inputs, small: bool) -> Case:
    sizes = (70, 96, 128) if small else (2048, 4096, 4096)
    return weights_of_8_bits(inputs, *sizes, {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 4})


def case_w8_f16(inputs: Inputs, small: bool) -> Case:
    m, n, k = (70, 96, 128) if small else (4096, 4096, 4096)
    a = inputs.integers(-9, 9, m, k, dtype=torch.int8).half()
    w = inputs.integers(-9, 9, n, k, dtype=torch.int8)
    scale, c = torch.full((n,), 1e-3, device=a.device), inputs.empty(m, n, dtype=torch.float16)
    tiles = {"BM": 64, "BN": 128, "BK": 64, "num_warps": 4, "num_stages": 3}
    return Case(
        lambda: w8a16[(ceiling(m, 64), ceiling(n, 128))](a, w, scale, c, m, n, k, **tiles),
        [c],
        lambda: [1e-3 * (a.double() @ w.double().t())],
        1e-2,
    )


@triton.jit
def gemv(w, x, y, N, K, BN: tl.constexpr, BK: tl.constexpr):
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BN, BK), tl.float32)
    for i in range(0, K, BK):
        k = i + tl.arange(0, BK)
        wv = tl.load(w + n[:, None] * K + k[None, :], mask=(n[:, None] < N) & (k[None, :] < K), other=0.0).to(
            tl.float32
        )
        xv = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        acc += wv * xv[None, :]
    tl.store(y + n, tl.sum(acc, 1).to(y.dtype.element_ty), mask=n < N)


def case_gemv(inputs: Inputs, small: bool) -> Case:
    n, k = (100, 700) if small else (11008, 4096)
    w, x = inputs.normal(n, k, dtype=torch.bfloat16), inputs.normal(k, dtype=torch.bfloat16)
    y = inputs.empty(n, dtype=torch.bfloat16)
    return Case(
        lambda: gemv[(ceiling(n, 16),)](w, x, y, n, k, BN=16, BK=512, num_warps=8),
        [y],
        lambda: [w.float() @ x.float()],
        1e-2,
    )


@triton.jit
def matmul_leaky(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    n = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    ap = a + m[:, None] * sam + k[None, :] * sak
    bp = b + k[:, None] * sbk + n[None, :] * sbn
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        av = tl.load(ap, mask=k[None, :] < K - i * BK, other=0.0)
        bv = tl.load(bp, mask=k[:, None] < K - i * BK, other=0.0)
        acc += tl.dot(av, bv)
        ap += BK * sak
        bp += BK * sbk
    acc = tl.where(acc > 0, acc, 0.1 * acc)
    mm = tl.program_id(0) * BM + tl.arange(0, BM)
    nn = tl.program_id(1) * BN + tl.arange(0, BN)
    tl.store(
        c + mm[:, None] * scm + nn[None, :] * scn,
        acc.to(c.dtype.element_ty),
        mask=(mm[:, None] < M) & (nn[None, :] < N),
    )


def leaky(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, k_tile: int, tolerance: float) -> Case:
    (m, k), n = a.shape, b.shape[1]
    tiles = {"BM": 128, "BN": 128, "BK": k_tile, "num_warps": 8, "num_stages": 3}
    strides = [*a.stride(), *b.stride(), *c.stride()]
    return Case(
        lambda: matmul_leaky[(ceiling(m, 128), ceiling(n, 128))](a, b, c, m, n, k, *strides, **tiles),
        [c],
        lambda: [F.leaky_relu(a.double() @ b.double(), 0.1)],
        tolerance,
    )


def case_matmul_leaky_nt(inputs: Inputs, small: bool) -> Case:
    m, n, k = (70, 90, 100) if small else (4000, 3000, 2048)
    a, b = inputs.normal(m, k, dtype=torch.float16), inputs.normal(n, k, dtype=torch.float16).t()
    return leaky(a, b, inputs.empty(m, n, dtype=torch.float16), 64, 1e-2)


def case_matmul_tf32(inputs: Inputs, small: bool) -> Case:
    m, n, k = (70, 90, 96) if small else (4096, 4096, 2048)
    return leaky(inputs.normal(m, k), inputs.normal(k, n), inputs.empty(m, n), 32, 3e-3)
