"""Attention: out[m] = sum_n softmax_n(score(q[m] k[n] scale)) v[n], forward, in one pass over keys and values.

q: [batch, heads, length, dim]; k, v: [batch, kv_heads, kv_length, dim] (several heads of q may share one of k and v).
The matrix of scores is never in memory: blocks of keys are visited in turn, with the running maximum and sum of
the online softmax, as in FlashAttention (Dao et al., 2022, arXiv:2205.14135; 2023, arXiv:2307.08691).

Causal rows m see columns n <= m, a window of W the last W of them. A score function changes a block of scores; it
is a kernel of its own: a bias by distance (ALiBi, arXiv:2108.12409) and a soft cap are two of them.
"""

from __future__ import annotations

import math

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case


# ANCHOR: scores
@kiln.kernel
def alibi(scores, m, n, head):
    """Takes off a slope of the head times the distance."""
    slope = kl.exp2(-(head + 1).to(kl.float32))
    return scores - slope * kl.abs(m - n).to(kl.float32)


@kiln.kernel
def soft_cap(scores, m, n, head):
    """30 tanh(score / 30), by tanh(u) = 2 sigmoid(2 u) - 1."""
    return 30.0 * (2.0 * kl.sigmoid(scores * (2.0 / 30.0)) - 1.0)
# ANCHOR_END: scores


# ANCHOR: kernel
@kiln.kernel
def attend(
    queries, maximum, total, acc, k, v, stride_kn, stride_vn, scale, kv_length, m, head, start, end,
    MASKED: kl.constexpr, SCORE: kl.constexpr, CAUSAL: kl.constexpr, WINDOW: kl.constexpr,
    DIM: kl.constexpr, BN: kl.constexpr,
):  # fmt: skip
    """Visits the columns from start to end; only with MASKED some of them are not seen by all rows."""
    d = kl.arange(0, DIM)
    for column in range(start, end, BN):
        n = column + kl.arange(0, BN)
        if MASKED:
            keys = kl.load(k + n[None, :] * stride_kn + d[:, None], mask=n[None, :] < kv_length, other=0.0)
            values = kl.load(v + n[:, None] * stride_vn + d[None, :], mask=n[:, None] < kv_length, other=0.0)
        else:
            keys = kl.load(k + n[None, :] * stride_kn + d[:, None])
            values = kl.load(v + n[:, None] * stride_vn + d[None, :])
        scores = kl.dot(queries, keys) * scale
        if SCORE is not None:
            scores = SCORE(scores, m[:, None], n[None, :], head)
        # Powers of 2 are cheaper than those of e.
        scores = scores * 1.4426950408889634
        if MASKED:
            seen = n[None, :] < kv_length
            if CAUSAL:
                seen = seen & (n[None, :] <= m[:, None])
            if WINDOW > 0:
                seen = seen & (n[None, :] > m[:, None] - WINDOW)
            # A large finite number: a row that sees nothing of its first blocks is wiped by its first column.
            scores = kl.where(seen, scores, -1.0e30)
        larger = kl.maximum(maximum, kl.max(scores, axis=1))
        weights = kl.exp2(scores - larger[:, None])
        shrink = kl.exp2(maximum - larger)
        total = total * shrink + kl.sum(weights, axis=1)
        acc = kl.dot(weights.to(values.dtype), values, acc * shrink[:, None])
        maximum = larger
    return maximum, total, acc


@kiln.kernel
def attention_kernel(
    q, k, v, out, scale, length, kv_length, heads,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_om,
    SCORE: kl.constexpr, CAUSAL: kl.constexpr, WINDOW: kl.constexpr, SHARED: kl.constexpr,
    DIM: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr,
):  # fmt: skip
    first = kl.program_id(0) * BM
    batch = kl.program_id(1) // heads
    head = kl.program_id(1) % heads
    kv_head = head // SHARED
    m = first + kl.arange(0, BM)
    d = kl.arange(0, DIM)
    q += batch * stride_qb + head * stride_qh
    k += batch * stride_kb + kv_head * stride_kh
    v += batch * stride_vb + kv_head * stride_vh
    out += batch * stride_ob + head * stride_oh
    queries = kl.load(q + m[:, None] * stride_qm + d[None, :], mask=m[:, None] < length, other=0.0)
    maximum = kl.full([BM], -float("inf"), dtype=kl.float32)
    total = kl.zeros([BM], dtype=kl.float32)
    acc = kl.zeros([BM, DIM], dtype=kl.float32)
    # Blocks of columns that no row of this instance sees are left out; those that all rows see need no masks.
    start = 0
    end = kv_length
    seen_by_all = kv_length
    if CAUSAL:
        end = min(first + BM, kv_length)
        seen_by_all = min(first, kv_length)
    if WINDOW > 0:
        start = max(first - WINDOW + 1, 0) // BN * BN
    else:
        seen_by_all = seen_by_all // BN * BN
        maximum, total, acc = attend(
            queries, maximum, total, acc, k, v, stride_kn, stride_vn, scale, kv_length, m, head,
            0, seen_by_all, False, SCORE, CAUSAL, WINDOW, DIM, BN,
        )  # fmt: skip
        start = seen_by_all
    maximum, total, acc = attend(
        queries, maximum, total, acc, k, v, stride_kn, stride_vn, scale, kv_length, m, head,
        start, end, True, SCORE, CAUSAL, WINDOW, DIM, BN,
    )  # fmt: skip
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    kl.store(out + m[:, None] * stride_om + d[None, :], result, mask=m[:, None] < length)
# ANCHOR_END: kernel


# ANCHOR: arrays
@kiln.kernel
def array_attention_kernel(
    q: kl.Array, k: kl.Array, v: kl.Array, out: kl.Array, scale,
    CAUSAL: kl.constexpr, SHARED: kl.constexpr, DIM: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr,
):  # fmt: skip
    first = kl.program_id(0) * BM
    head, batch = kl.program_id(1), kl.program_id(2)
    m = first + kl.arange(0, BM)
    # Rows past the end are read as 0 and not written: no masks.
    queries = q[batch, head, first : first + BM, 0:DIM]
    maximum = kl.full([BM], -float("inf"), dtype=kl.float32)
    total = kl.zeros([BM], dtype=kl.float32)
    acc = kl.zeros([BM, DIM], dtype=kl.float32)
    kv_length = k.shape[2]
    end = min(first + BM, kv_length) if CAUSAL else kv_length
    for start in range(0, end, BN):
        n = start + kl.arange(0, BN)
        keys = k[batch, head // SHARED, start : start + BN, 0:DIM]
        scores = kl.dot(queries, keys.T) * (scale * 1.4426950408889634)
        seen = n[None, :] < kv_length
        if CAUSAL:
            seen = seen & (n[None, :] <= m[:, None])
        scores = kl.where(seen, scores, -1.0e30)
        larger = kl.maximum(maximum, kl.max(scores, axis=1))
        weights = kl.exp2(scores - larger[:, None])
        shrink = kl.exp2(maximum - larger)
        total = total * shrink + kl.sum(weights, axis=1)
        values = v[batch, head // SHARED, start : start + BN, 0:DIM]
        acc = kl.dot(weights.to(values.dtype), values, acc * shrink[:, None])
        maximum = larger
    out[batch, head, first : first + BM, 0:DIM] = (acc / total[:, None]).to(out.dtype)
# ANCHOR_END: arrays


# ANCHOR: launch
CONFIGURATIONS = [
    kiln.kernels.Config({"BM": 128, "BN": 64}, num_warps=8, num_stages=3),
    kiln.kernels.Config({"BM": 128, "BN": 64}, num_warps=4, num_stages=3),
    kiln.kernels.Config({"BM": 128, "BN": 128}, num_warps=8, num_stages=3),
]

# What is fastest depends on the features and the mask more than on lengths.
tuned_attention_kernel = kiln.kernels.autotune(CONFIGURATIONS, key=["DIM", "CAUSAL"])(attention_kernel)


def shared_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> int:
    """How many heads of q share one of k and v."""
    assert q.dim() == 4 and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    assert q.shape[1] % k.shape[1] == 0, "heads of q are a multiple of those of k and v"
    assert q.stride(3) == k.stride(3) == v.stride(3) == 1, "features are contiguous"
    return q.shape[1] // k.shape[1]


def attention(q, k, v, causal=False, window=0, score=None) -> torch.Tensor:
    """Attention; `window` counts columns up to the diagonal, 0 is all, and `score` is a kernel of
    (scores, rows, columns, head) that gives scores."""
    shared = shared_heads(q, k, v)
    assert window == 0 or causal, "windows are causal"
    assert q.shape[3] in (16, 32, 64, 128), "heads have 16, 32, 64 or 128 features"
    batch, heads, length, dim = q.shape
    out = torch.empty_like(q)
    tuned_attention_kernel[lambda meta: (cdiv(length, meta["BM"]), batch * heads)](
        q, k, v, out, 1 / math.sqrt(dim), length, k.shape[2], heads,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        SCORE=score, CAUSAL=causal, WINDOW=window, SHARED=shared, DIM=dim,
    )  # fmt: skip
    return out


def array_attention(q, k, v, causal=False) -> torch.Tensor:
    """The same for heads of any number of features: blocks of arrays have any size."""
    shared = shared_heads(q, k, v)
    batch, heads, length, dim = q.shape
    out = torch.empty_like(q)
    array_attention_kernel[(cdiv(length, 128), heads, batch)](
        q, k, v, out, 1 / math.sqrt(dim),
        CAUSAL=causal, SHARED=shared, DIM=dim, BM=128, BN=64, num_warps=8,
    )  # fmt: skip
    return out
# ANCHOR_END: launch


def reference(q, k, v, causal=False, window=0, score=None):
    shared = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(shared, dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    m = torch.arange(q.shape[2], device=q.device)[:, None]
    n = torch.arange(k.shape[2], device=q.device)[None, :]
    if score is alibi:
        slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1, device=q.device, dtype=q.dtype)
        scores = scores - slopes[:, None, None] * (m - n).abs()
    if score is soft_cap:
        scores = 30 * torch.tanh(scores / 30)
    if causal:
        scores = scores.masked_fill(n > m, -math.inf)
    if window:
        scores = scores.masked_fill(n <= m - window, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def array_reference(q, k, v, causal=False):
    return reference(q, k, v, causal)


def inputs(
    device, length, dim, batch=1, heads=2, kv_heads=None, kv_length=None, dtype=torch.float16, **options
):
    def rand(heads: int, length: int) -> torch.Tensor:
        # Heads are next to each other in memory, as a projection leaves them.
        return torch.randn(batch, length, heads, dim, device=device).to(dtype).transpose(1, 2)

    kv_heads, kv_length = kv_heads or heads, kv_length or length
    return rand(heads, length), rand(kv_heads, kv_length), rand(kv_heads, kv_length), *options.values()


FULL = {"length": 4096, "dim": 128, "batch": 2, "heads": 16}

CASES = {
    "attention": Case(
        run=attention,
        reference=reference,
        inputs=inputs,
        small=[
            {"length": 100, "dim": 64},
            {"length": 1, "dim": 32, "kv_length": 300},
            {"length": 150, "dim": 64, "heads": 4, "kv_heads": 2, "causal": True, "dtype": torch.bfloat16},
            {"length": 77, "dim": 16, "dtype": torch.float32, "causal": True},
        ],
        full={**FULL, "causal": True},
        # Weights are rounded to the type of the values.
        roundings=4,
        working=None,
        products=True,
    ),
    "windows and scores": Case(
        run=attention,
        reference=reference,
        inputs=inputs,
        small=[
            {"length": 300, "dim": 64, "causal": True, "window": 70, "score": None},
            {"length": 130, "dim": 32, "causal": True, "window": 1, "score": soft_cap},
            {"length": 140, "dim": 64, "causal": False, "window": 0, "score": alibi},
        ],
        full={**FULL, "causal": True, "window": 1024, "score": soft_cap},
        roundings=4,
        working=None,
    ),
    "arrays": Case(
        run=array_attention,
        reference=array_reference,
        inputs=inputs,
        small=[
            {"length": 100, "dim": 64},
            {"length": 70, "dim": 80},
            {"length": 150, "dim": 64, "heads": 4, "kv_heads": 2, "causal": True, "dtype": torch.bfloat16},
        ],
        full={**FULL, "causal": True},
        roundings=4,
        working=None,
        products=True,
        arrays=True,
    ),
}


@perf_report(
    [
        Benchmark(
            x_names=["length"],
            x_vals=[1024, 2048, 4096, 8192, 16384],
            line_arg="provider",
            line_vals=["kiln", "kiln arrays", "torch"],
            line_names=["Kiln, pointers", "Kiln, arrays", "PyTorch (SDPA)"],
            ylabel="TFLOP/s",
            plot_name=f"attention_{dim}{'_causal' if causal else ''}",
            args={"dim": dim, "causal": causal, "tokens": 16384, "dtype": torch.float16},
        )
        for dim, causal in ((64, False), (64, True), (128, False), (128, True))
    ]
)
def benchmark(length, dim, causal, tokens, dtype, provider, device=DEVICE, clock=do_bench):
    # As many tokens and features at all lengths.
    batch, heads = max(1, tokens // length), 2048 // dim
    q, k, v = inputs(device, length, dim, batch, heads, dtype=dtype)
    calls = {
        "kiln": lambda: attention(q, k, v, causal),
        "kiln arrays": lambda: array_attention(q, k, v, causal),
        "torch": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    flops = 4 * batch * heads * length * length * dim * (0.5 if causal else 1)
    return flops / milliseconds * 1e-9


if __name__ == "__main__":
    benchmark.run(print_data=True)
