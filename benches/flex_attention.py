"""FlexAttention by Kiln and by TorchInductor, and attention with its log-sum-exp beside SDPA's kernels.

    python benches/flex_attention.py [--runs N]

Times are medians of calls between CUDA events, the two compilers' calls in turn. bf16.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import kiln  # noqa: F401

SIZES = [(4, 32, 32, 4096, 128), (2, 16, 16, 8192, 64), (4, 32, 8, 2048, 128)]
WITH_SUMS = [
    (4, 32, 4096, 128, False),
    (4, 32, 4096, 128, True),
    (16, 16, 1024, 64, False),
    (2, 16, 8192, 64, True),
    (1, 32, 16384, 128, True),
]
OPS = torch.ops.aten


def timed(functions, runs):
    """Medians in ms of functions that are called in turn."""
    times = [[] for _ in functions]
    for f in functions * 5:
        f()
    for _ in range(runs):
        for f, found in zip(functions, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            f()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end))
    return [statistics.median(found) for found in times]


def first(f, *args):
    """The result of the first call, which compiles, and its seconds."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = f(*args)
    torch.cuda.synchronize()
    return result, time.perf_counter() - begin


def cases(heads, keys, batch):
    slopes = torch.rand(heads, device="cuda") * 0.1
    documents = torch.arange(keys, device="cuda") // (keys // 5)
    lengths = torch.tensor([keys - 100 * i for i in range(batch)], device="cuda")

    def causal(b, h, i, j):
        return i >= j

    yield "plain", None, None
    yield "causal", None, causal
    yield "window of 1024", None, lambda b, h, i, j: (i >= j) & (i - j < 1024)
    yield "documents", None, lambda b, h, i, j: (documents[i] == documents[j]) & (i >= j)
    yield "padding", None, lambda b, h, i, j: j < lengths[b]
    yield "prefix", None, lambda b, h, i, j: (j < keys // 4) | (i >= j)
    yield "ALiBi", lambda s, b, h, i, j: s + slopes[h] * (j - i), causal
    yield "soft-cap", lambda s, b, h, i, j: 20 * torch.tanh(s / 20), causal
    if keys <= 4096:
        bias = torch.randn(heads, keys, keys, device="cuda", dtype=torch.bfloat16)
        yield "bias [H,S,S]", lambda s, b, h, i, j: s + bias[h, i, j], None


def functions(runs):
    print("| B x H x S x D | function | kiln ms | Inductor ms | Inductor / kiln | first call s | differ |")
    print("|---|---|---|---|---|---|---|")
    for batch, heads, own, keys, width in SIZES:
        q, k, v = (
            torch.randn(batch, n, keys, width, device="cuda", dtype=torch.bfloat16)
            for n in (heads, own, own)
        )
        for name, score, mask in cases(heads, keys, batch):
            of_batch = batch if name == "padding" else None
            blocks = mask and create_block_mask(mask, of_batch, None, keys, keys, device="cuda")

            def of(q, k, v, score=score, blocks=blocks, gqa=own != heads):
                return flex_attention(q, k, v, score, blocks, enable_gqa=gqa, return_lse=True)

            torch._dynamo.reset()
            ours = torch.compile(of, backend="kiln", dynamic=False)
            theirs = torch.compile(of, dynamic=False)
            (a, sums), ca = first(ours, q, k, v)
            (b, expected), cb = first(theirs, q, k, v)
            apart = [(x - y).abs().max().item() for x, y in ((a, b), (sums, expected))]
            x, y = timed([lambda: ours(q, k, v), lambda: theirs(q, k, v)], runs)
            size = f"{batch}x{heads}{f'/{own}' if own != heads else ''}x{keys}x{width}"
            row = f"| {size} | {name} | {x:.3f} | {y:.3f} | {y / x:.2f} | {ca:.1f}, {cb:.1f} |"
            print(f"{row} {apart[0]:.1e}, {apart[1]:.1e} |", flush=True)


def with_sums(q, k, v, causal):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    scores = scores.float()
    return scores.softmax(-1).to(q.dtype) @ v, torch.logsumexp(scores, -1)


def sums(runs):
    print("\n| B x H x S x D | kiln, both | without | cuDNN, both | flash, both | best / kiln | differ |")
    print("|---|---|---|---|---|---|---|")
    for batch, heads, keys, width, causal in WITH_SUMS:
        q, k, v = (
            torch.randn(batch, heads, keys, width, device="cuda", dtype=torch.bfloat16)
            for _ in range(3)
        )
        torch._dynamo.reset()
        ours = torch.compile(with_sums, backend="kiln", dynamic=False)
        alone = torch.compile(
            lambda q, k, v, causal: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal
            ),
            backend="kiln",
            dynamic=False,
        )

        def cudnn(q=q, k=k, v=v, causal=causal):
            return OPS._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)

        def flash(q=q, k=k, v=v, causal=causal):
            return OPS._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)

        apart = (ours(q, k, v, causal)[1] - flash()[1]).abs().max().item()
        calls = [lambda: ours(q, k, v, causal), lambda: alone(q, k, v, causal), cudnn, flash]
        a, b, c, d = timed(calls, runs)
        size = f"{batch}x{heads}x{keys}x{width}{' causal' if causal else ''}"
        best = min(c, d) / a
        print(f"| {size} | {a:.3f} | {b:.3f} | {c:.3f} | {d:.3f} | {best:.2f} | {apart:.1e} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    with torch.no_grad():
        functions(chosen.runs)
        sums(chosen.runs)
