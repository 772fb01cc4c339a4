"""Attention of one query a sequence over keys and values in pages, as servers of language models decode.

q: [batch, heads, dim]; k_pages, v_pages: [pages, page, kv_heads, dim]; table: [batch, most pages] of page numbers;
lengths: [batch]. Pages of a sequence lie anywhere in memory (Kwon et al., 2023, arXiv:2309.06180). All heads that share
one of k and v are rows of a block, so that a page is read once for them. A sequence is split over several instances,
since a batch of few sequences would leave a GPU idle; a second kernel combines their results by the
logarithms of their sums (Flash-Decoding).
"""

from __future__ import annotations

import math

import kiln
import kiln.language as kl
import torch
from kiln.kernels import cdiv, next_power_of_2
from kiln.testing import Benchmark, do_bench, perf_report

from .case import DEVICE, Case


# ANCHOR: kernel
@kiln.kernel
def page_kernel(
    q, k_pages, v_pages, table, lengths, parts, part_logs, scale, heads, table_stride, splits,
    SHARED: kl.constexpr, ROWS: kl.constexpr, DIM: kl.constexpr, PAGE: kl.constexpr, BN: kl.constexpr,
):  # fmt: skip
    batch, kv_head, split = kl.program_id(0), kl.program_id(1), kl.program_id(2)
    kv_heads = heads // SHARED
    length = kl.load(lengths + batch)
    # Blocks of BN columns, dealt out to splits in one piece.
    columns = kl.cdiv(kl.cdiv(length, BN), splits) * BN
    first = split * columns
    last = min(first + columns, length)
    row = kl.arange(0, ROWS)
    head = kv_head * SHARED + row
    d = kl.arange(0, DIM)
    q_offsets = (batch * heads + head[:, None]) * DIM + d[None, :]
    queries = kl.load(q + q_offsets, mask=row[:, None] < SHARED, other=0.0)
    maximum = kl.full([ROWS], -float("inf"), dtype=kl.float32)
    total = kl.zeros([ROWS], dtype=kl.float32)
    acc = kl.zeros([ROWS, DIM], dtype=kl.float32)
    for start in range(first, last, BN):
        n = start + kl.arange(0, BN)
        page = kl.load(table + batch * table_stride + n // PAGE, mask=n < last, other=0)
        # Caches have more than 2^31 elements.
        cache_row = (page.to(kl.int64) * PAGE + n % PAGE) * kv_heads + kv_head
        keys = kl.load(k_pages + cache_row[None, :] * DIM + d[:, None], mask=n[None, :] < last, other=0.0)
        scores = kl.dot(queries, keys) * (scale * 1.4426950408889634)
        scores = kl.where(n[None, :] < last, scores, -1.0e30)
        larger = kl.maximum(maximum, kl.max(scores, axis=1))
        weights = kl.exp2(scores - larger[:, None])
        shrink = kl.exp2(maximum - larger)
        total = total * shrink + kl.sum(weights, axis=1)
        values = kl.load(v_pages + cache_row[:, None] * DIM + d[None, :], mask=n[:, None] < last, other=0.0)
        acc = kl.dot(weights.to(values.dtype), values, acc * shrink[:, None])
        maximum = larger
    # A split without columns has a sum of 0, whose logarithm is -inf.
    out_row = (batch * heads + head) * splits + split
    kl.store(part_logs + out_row, kl.log2(total) + maximum, mask=row < SHARED)
    result = acc / kl.where(total > 0, total, 1.0)[:, None]
    kl.store(parts + out_row[:, None] * DIM + d[None, :], result, mask=row[:, None] < SHARED)


@kiln.kernel
def combine_kernel(parts, part_logs, out, splits, DIM: kl.constexpr, SPLITS: kl.constexpr):
    row = kl.program_id(0)
    split = kl.arange(0, SPLITS)
    d = kl.arange(0, DIM)
    mask = split < splits
    logs = kl.load(part_logs + row * splits + split, mask=mask, other=-float("inf"))
    weights = kl.exp2(logs - kl.max(logs, axis=0))
    part_offsets = (row * splits + split[:, None]) * DIM + d[None, :]
    values = kl.load(parts + part_offsets, mask=mask[:, None], other=0.0)
    result = kl.sum(values * weights[:, None], axis=0) / kl.sum(weights, axis=0)
    kl.store(out + row * DIM + d, result)
# ANCHOR_END: kernel


# ANCHOR: launch
def paged_attention(q, k_pages, v_pages, table, lengths, splits: int | None = None) -> torch.Tensor:
    """Attention of a query a sequence; lengths are at least 1."""
    batch, heads, dim = q.shape
    page, kv_heads = k_pages.shape[1:3]
    assert k_pages.shape == v_pages.shape and k_pages.shape[3] == dim and heads % kv_heads == 0
    assert all(t.is_contiguous() for t in (q, k_pages, v_pages, table, lengths)), "contiguous tensors"
    shared = heads // kv_heads
    bn = 64
    if splits is None:
        # Four instances for each multiprocessor of a large GPU, and four blocks an instance.
        splits = max(1, min(512 // (batch * kv_heads or 1), cdiv(table.shape[1] * page, 4 * bn)))
    parts = torch.empty(batch, heads, splits, dim, device=q.device, dtype=torch.float32)
    part_logs = torch.empty(batch, heads, splits, device=q.device, dtype=torch.float32)
    out = torch.empty_like(q)
    page_kernel[(batch, kv_heads, splits)](
        q, k_pages, v_pages, table, lengths, parts, part_logs,
        1 / math.sqrt(dim), heads, table.stride(0), splits,
        SHARED=shared, ROWS=max(16, next_power_of_2(shared)), DIM=dim, PAGE=page, BN=bn, num_warps=4,
    )  # fmt: skip
    combine_kernel[(batch * heads,)](
        parts, part_logs, out, splits, DIM=dim, SPLITS=next_power_of_2(splits), num_warps=1
    )
    return out
# ANCHOR_END: launch


def gathered(pages: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """Keys or values of a sequence: [kv_heads, length, dim]."""
    return pages[table.long()].flatten(0, 1)[:length].transpose(0, 1)


def reference(q, k_pages, v_pages, table, lengths):
    outputs = []
    for i, length in enumerate(lengths.tolist()):
        k, v = (gathered(pages, table[i], length) for pages in (k_pages, v_pages))
        shared = q.shape[1] // k.shape[0]
        k, v = (t.repeat_interleave(shared, dim=0) for t in (k, v))
        scores = (k @ q[i, :, :, None]).squeeze(-1) / math.sqrt(q.shape[2])
        outputs.append((torch.softmax(scores, dim=-1)[:, None, :] @ v).squeeze(1))
    return torch.stack(outputs)


def inputs(device, lengths, heads, kv_heads, dim, page=16, dtype=torch.float16):
    batch, most = len(lengths), cdiv(max(lengths), page)
    # Pages in any order, and some that no sequence has.
    order = torch.randperm(batch * most + 3, device=device)[: batch * most]
    table = order.to(torch.int32).view(batch, most).contiguous()

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(dtype)

    k, v = (rand(batch * most + 3, page, kv_heads, dim) for _ in range(2))
    return rand(batch, heads, dim), k, v, table, torch.tensor(lengths, device=device, dtype=torch.int32)


CASES = {
    "paged": Case(
        run=paged_attention,
        reference=reference,
        inputs=inputs,
        small=[
            {"lengths": [1, 77, 300], "heads": 4, "kv_heads": 2, "dim": 64},
            {"lengths": [129], "heads": 8, "kv_heads": 1, "dim": 32, "page": 32, "dtype": torch.bfloat16},
            {"lengths": [40, 65], "heads": 2, "kv_heads": 2, "dim": 32},
        ],
        full={"lengths": [4096] * 16, "heads": 32, "kv_heads": 8, "dim": 128},
        # Weights are rounded to the type of the values.
        roundings=4,
        working=None,
    ),
}


@perf_report(
    Benchmark(
        x_names=["length"],
        x_vals=[512, 1024, 2048, 4096, 8192],
        line_arg="provider",
        line_vals=["kiln", "torch"],
        line_names=["Kiln, pages", "PyTorch (SDPA), contiguous"],
        ylabel="GB/s",
        plot_name="paged_attention",
        args={"batch": 16, "heads": 32, "kv_heads": 8, "dim": 128, "dtype": torch.float16},
    )
)
def benchmark(length, batch, heads, kv_heads, dim, dtype, provider, device=DEVICE, clock=do_bench):
    tensors = inputs(device, [length] * batch, heads, kv_heads, dim, dtype=dtype)
    q = tensors[0][:, :, None, :]
    k, v = (
        torch.randn(batch, kv_heads, length, dim, device=device, dtype=dtype).contiguous() for _ in range(2)
    )
    sdpa = torch.nn.functional.scaled_dot_product_attention
    calls = {
        "kiln": lambda: paged_attention(*tensors),
        "torch": lambda: sdpa(q, k, v, enable_gqa=True),
    }
    milliseconds = clock(calls[provider], return_mode="median")
    return 2 * k.nbytes / milliseconds * 1e-6


if __name__ == "__main__":
    benchmark.run(print_data=True)
