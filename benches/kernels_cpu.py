#!/usr/bin/env python3
"""Kernels written by hand on the CPU, beside PyTorch's eager operators.

    benches/kernels_cpu.py [--threads 2] [--rounds 15] [-k WORD] [--json OUT.json]

What the tutorials of block languages compute, at sizes that users take. Kernels and operators are
timed in one process, in turns: medians of rounds, and the best, since OpenMP's threads, which eager has,
wait for each other where other programs run. Results are compared in f64.

To compare one thread of each: `taskset -c 0 benches/kernels_cpu.py --threads 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Callable

os.environ.setdefault("KILN_CACHE", "off")

import kiln
import kiln.language as kl
import torch
import torch.nn.functional as F
from kiln.kernels import cdiv, next_power_of_2
from kiln.language.extra import libdevice


@kiln.kernel
def add(x, y, out, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    mask = i < n
    kl.store(out + i, kl.load(x + i, mask=mask) + kl.load(y + i, mask=mask), mask=mask)


@kiln.kernel
def softmax(out, x, x_stride, out_stride, rows, columns, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    mask = i < columns
    for row in kl.range(kl.program_id(0), rows, kl.num_programs(0)):
        block = kl.load(x + row * x_stride + i, mask=mask, other=-float("inf"))
        e = kl.exp(block - kl.max(block, axis=0))
        kl.store(out + row * out_stride + i, e / kl.sum(e, axis=0), mask=mask)


@kiln.kernel
def tile_of(tile, M, N, BM: kl.constexpr, BN: kl.constexpr, GROUP: kl.constexpr):
    """The tile's row and column: columns of groups of rows, so that neighbours share operands."""
    rows, columns = kl.cdiv(M, BM), kl.cdiv(N, BN)
    in_group = GROUP * columns
    first = (tile // in_group) * GROUP
    size = min(rows - first, GROUP)
    return first + (tile % in_group) % size, (tile % in_group) // size


@kiln.kernel
def matmul(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr, GROUP: kl.constexpr,
):  # fmt: skip
    m, n = tile_of(kl.program_id(0), M, N, BM, BN, GROUP)
    am = (m * BM + kl.arange(0, BM)) % M
    bn = (n * BN + kl.arange(0, BN)) % N
    k = kl.arange(0, BK)
    pa = a + (am[:, None] * sam + k[None, :] * sak)
    pb = b + (k[:, None] * sbk + bn[None, :] * sbn)
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    for i in range(0, kl.cdiv(K, BK)):
        left = kl.load(pa, mask=k[None, :] < K - i * BK, other=0.0)
        right = kl.load(pb, mask=k[:, None] < K - i * BK, other=0.0)
        acc = kl.dot(left, right, acc, input_precision="ieee")
        pa += BK * sak
        pb += BK * sbk
    cm = m * BM + kl.arange(0, BM)
    cn = n * BN + kl.arange(0, BN)
    mask = (cm[:, None] < M) & (cn[None, :] < N)
    kl.store(c + scm * cm[:, None] + scn * cn[None, :], acc.to(c.dtype.element_ty), mask=mask)


@kiln.kernel
def persistent_matmul(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr, GROUP: kl.constexpr,
):  # fmt: skip
    for tile in kl.range(kl.program_id(0), kl.cdiv(M, BM) * kl.cdiv(N, BN), kl.num_programs(0)):
        m, n = tile_of(tile, M, N, BM, BN, GROUP)
        am = m * BM + kl.arange(0, BM)
        bn = n * BN + kl.arange(0, BN)
        am = kl.where(am < M, am, 0)
        bn = kl.where(bn < N, bn, 0)
        acc = kl.zeros((BM, BN), dtype=kl.float32)
        for i in range(0, kl.cdiv(K, BK)):
            k = i * BK + kl.arange(0, BK)
            left = kl.load(a + (am[:, None] * sam + k[None, :] * sak), mask=k[None, :] < K, other=0.0)
            right = kl.load(b + (k[:, None] * sbk + bn[None, :] * sbn), mask=k[:, None] < K, other=0.0)
            acc = kl.dot(left, right, acc, input_precision="ieee")
        cm = m * BM + kl.arange(0, BM)
        cn = n * BN + kl.arange(0, BN)
        mask = (cm[:, None] < M) & (cn[None, :] < N)
        kl.store(c + scm * cm[:, None] + scn * cn[None, :], acc.to(c.dtype.element_ty), mask=mask)


@kiln.kernel
def grouped_matmul(
    a_addresses, b_addresses, c_addresses, sizes, groups, like,
    BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr,
):  # fmt: skip
    """Several products in one launch: addresses and sizes lie in memory; matrices are contiguous, of the type of `like`."""
    tile = kl.program_id(0)
    end = 0
    for g in range(groups):
        M = kl.load(sizes + g * 3)
        N = kl.load(sizes + g * 3 + 1)
        K = kl.load(sizes + g * 3 + 2)
        columns = kl.cdiv(N, BN)
        tiles = kl.cdiv(M, BM) * columns
        while tile >= end and tile < end + tiles:
            a = kl.load(a_addresses + g).to(like.dtype)
            b = kl.load(b_addresses + g).to(like.dtype)
            c = kl.load(c_addresses + g).to(like.dtype)
            am = (tile - end) // columns * BM + kl.arange(0, BM)
            bn = (tile - end) % columns * BN + kl.arange(0, BN)
            k = kl.arange(0, BK)
            pa = a + am[:, None] * K + k[None, :]
            pb = b + k[:, None] * N + bn[None, :]
            acc = kl.zeros((BM, BN), dtype=kl.float32)
            for _ in range(0, kl.cdiv(K, BK)):
                acc = kl.dot(kl.load(pa), kl.load(pb), acc, input_precision="ieee")
                pa += BK
                pb += BK * N
            kl.store(c + am[:, None] * N + bn[None, :], acc.to(like.dtype.element_ty))
            tile += kl.num_programs(0)
        end = end + tiles


@kiln.kernel
def dropout(x, out, n, p, seed, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    mask = i < n
    value = kl.load(x + i, mask=mask)
    kl.store(out + i, kl.where(kl.rand(seed, i) > p, value / (1 - p), 0.0), mask=mask)


@kiln.kernel
def asin(x, out, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    mask = i < n
    kl.store(out + i, libdevice.asin(kl.load(x + i, mask=mask)), mask=mask)


@kiln.kernel
def layer_norm(x, out, w, b, means, scales, stride, n, eps, BLOCK: kl.constexpr):
    row = kl.program_id(0)
    x += row * stride
    out += row * stride
    total = kl.zeros([BLOCK], dtype=kl.float32)
    for at in range(0, n, BLOCK):
        i = at + kl.arange(0, BLOCK)
        total += kl.load(x + i, mask=i < n, other=0.0).to(kl.float32)
    mean = kl.sum(total, axis=0) / n
    squares = kl.zeros([BLOCK], dtype=kl.float32)
    for at in range(0, n, BLOCK):
        i = at + kl.arange(0, BLOCK)
        value = kl.load(x + i, mask=i < n, other=0.0).to(kl.float32)
        value = kl.where(i < n, value - mean, 0.0)
        squares += value * value
    scale = 1 / kl.sqrt(kl.sum(squares, axis=0) / n + eps)
    kl.store(means + row, mean)
    kl.store(scales + row, scale)
    for at in range(0, n, BLOCK):
        i = at + kl.arange(0, BLOCK)
        mask = i < n
        value = kl.load(x + i, mask=mask, other=0.0).to(kl.float32)
        value = (value - mean) * scale * kl.load(w + i, mask=mask) + kl.load(b + i, mask=mask)
        kl.store(out + i, value, mask=mask)


@kiln.kernel
def layer_norm_back(
    dx, dy, dw, db, x, w, means, scales, locks, stride, n, GROUP: kl.constexpr, BLOCK: kl.constexpr
):
    """The gradient of rows; those of weights and biases are added up in as many rows as there are locks."""
    row = kl.program_id(0)
    i = kl.arange(0, BLOCK)
    mask = i < n
    lock = locks + row % GROUP
    count = lock + GROUP
    dw += row % GROUP * n + i
    db += row % GROUP * n + i
    value = kl.load(x + row * stride + i, mask=mask, other=0).to(kl.float32)
    grad = kl.load(dy + row * stride + i, mask=mask, other=0).to(kl.float32)
    weight = kl.load(w + i, mask=mask).to(kl.float32)
    scale = kl.load(scales + row)
    normal = kl.where(mask, (value - kl.load(means + row)) * scale, 0.0)
    weighted = kl.where(mask, weight * grad, 0.0)
    c1 = kl.sum(normal * weighted, axis=0) / n
    c2 = kl.sum(weighted, axis=0) / n
    kl.store(dx + row * stride + i, (weighted - (normal * c1 + c2)) * scale, mask=mask)
    part_w = (grad * normal).to(w.dtype.element_ty)
    part_b = grad.to(w.dtype.element_ty)
    while kl.atomic_cas(lock, 0, 1) == 1:
        pass
    if kl.load(count) == 0:
        kl.atomic_xchg(count, 1)
    else:
        part_w += kl.load(dw, mask=mask)
        part_b += kl.load(db, mask=mask)
    kl.store(dw, part_w, mask=mask)
    kl.store(db, part_b, mask=mask)
    kl.debug_barrier()
    kl.atomic_xchg(lock, 0)


@kiln.kernel
def layer_norm_sums(dw, db, w_out, b_out, rows, n, BM: kl.constexpr, BN: kl.constexpr):
    columns = kl.program_id(0) * BN + kl.arange(0, BN)
    sum_w = kl.zeros((BM, BN), dtype=kl.float32)
    sum_b = kl.zeros((BM, BN), dtype=kl.float32)
    for at in range(0, rows, BM):
        i = at + kl.arange(0, BM)
        mask = (i[:, None] < rows) & (columns[None, :] < n)
        offsets = i[:, None] * n + columns[None, :]
        sum_w += kl.load(dw + offsets, mask=mask, other=0.0)
        sum_b += kl.load(db + offsets, mask=mask, other=0.0)
    kl.store(w_out + columns, kl.sum(sum_w, axis=0), mask=columns < n)
    kl.store(b_out + columns, kl.sum(sum_b, axis=0), mask=columns < n)


@kiln.kernel
def attention(
    q, k, v, out, scale, length,
    CAUSAL: kl.constexpr, DIM: kl.constexpr, BM: kl.constexpr, BN: kl.constexpr,
):  # fmt: skip
    start = kl.program_id(0) * BM
    head = kl.program_id(1) * length * DIM
    m = start + kl.arange(0, BM)
    n = kl.arange(0, BN)
    d = kl.arange(0, DIM)
    query = kl.load(q + head + m[:, None] * DIM + d[None, :])
    most = kl.full([BM], -float("inf"), dtype=kl.float32)
    total = kl.zeros([BM], dtype=kl.float32)
    acc = kl.zeros([BM, DIM], dtype=kl.float32)
    end = min(start + BM, length) if CAUSAL else length
    for at in range(0, end, BN):
        key = kl.load(k + head + (at + n)[None, :] * DIM + d[:, None])
        scores = kl.dot(query, key, input_precision="ieee") * (scale * 1.44269504)
        if CAUSAL:
            scores = kl.where(m[:, None] >= (at + n)[None, :], scores, -1.0e6)
        larger = kl.maximum(most, kl.max(scores, 1))
        p = kl.exp2(scores - larger[:, None])
        shrink = kl.exp2(most - larger)
        total = total * shrink + kl.sum(p, 1)
        acc = acc * shrink[:, None]
        value = kl.load(v + head + (at + n)[:, None] * DIM + d[None, :])
        acc = kl.dot(p.to(value.dtype), value, acc, input_precision="ieee")
        most = larger
    kl.store(out + head + m[:, None] * DIM + d[None, :], (acc / total[:, None]).to(out.dtype.element_ty))


@dataclass
class Launch:
    """One launch: a kernel, its grid, its arguments."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Any:
        return self.kernel[self.grid](*self.arguments, **self.constants)


@dataclass
class Case:
    """What is timed: launches and the operator that does the same, into memory that is there already."""

    name: str
    launches: list[Launch]
    eager: Callable[[], Any]
    results: list[torch.Tensor]
    expected: Callable[[], list[torch.Tensor]]
    """The results in f64; empty: they are not compared."""
    tolerance: float
    clear: list[torch.Tensor] = field(default_factory=list)
    """What must be zero before the launches."""

    def run(self) -> None:
        for tensor in self.clear:
            tensor.zero_()
        for launch in self.launches:
            launch.run()


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def pointwise() -> list[Case]:
    n, block = 1 << 20, 1024
    x, y, out, eager = rand(n), rand(n), torch.empty(n), torch.empty(n)
    unit = torch.rand(98432) * 2 - 1
    angles, found = torch.empty(98432), torch.empty(98432)
    grid = (cdiv(n, block),)
    dropped = torch.empty(n)
    return [
        Case("vector add, 2^20", [Launch(add, grid, (x, y, out, n), {"BLOCK": block})],
             lambda: torch.add(x, y, out=eager), [out], lambda: [x.double() + y.double()], 1e-6),
        Case("dropout, 2^20", [Launch(dropout, grid, (x, dropped, n, 0.5, 123), {"BLOCK": block})],
             lambda: F.dropout(x, 0.5), [dropped], lambda: [], 0),
        Case("asin, 98432", [Launch(asin, (cdiv(98432, block),), (unit, found, 98432), {"BLOCK": block})],
             lambda: torch.asin(unit, out=angles), [found], lambda: [unit.double().asin()], 1e-6),
    ]  # fmt: skip


def softmaxes() -> list[Case]:
    cases = []
    for rows, columns in ((1823, 781), (4096, 1024)):
        x, out, eager = rand(rows, columns), torch.empty(rows, columns), torch.empty(rows, columns)
        arguments = (out, x, columns, columns, rows, columns)
        launch = Launch(softmax, (rows,), arguments, {"BLOCK": next_power_of_2(columns)})
        cases.append(
            Case(f"softmax, {rows}x{columns}", [launch],
                 lambda x=x, eager=eager: torch.softmax(x, 1, out=eager), [out],
                 lambda x=x: [x.double().softmax(1)], 1e-6)
        )  # fmt: skip
    return cases


def matmuls() -> list[Case]:
    cases = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for n in (512, 1024):
            a, b = rand(n, n, dtype=dtype), rand(n, n, dtype=dtype)
            c, eager = torch.empty_like(a), torch.empty_like(a)
            strides = (*a.stride(), *b.stride(), *c.stride())
            blocks = {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8}
            grid = (cdiv(n, 128) * cdiv(n, 128),)
            tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
            kinds = [("matmul", matmul, grid)]
            if dtype == torch.float16:
                kinds.append(("persistent matmul", persistent_matmul, (2,)))
            for what, kernel, grid in kinds:
                name = f"{what}, {n} cubed, {str(dtype).removeprefix('torch.')}"
                launch = Launch(kernel, grid, (a, b, c, n, n, n, *strides), blocks)
                cases.append(
                    Case(name, [launch], lambda a=a, b=b, eager=eager: torch.mm(a, b, out=eager), [c],
                         lambda a=a, b=b: [a.double() @ b.double()], tolerance)
                )  # fmt: skip
    return cases


def grouped() -> list[Case]:
    sizes = [1024, 512, 256, 128]
    a = [rand(n, n, dtype=torch.float16) for n in sizes]
    b = [rand(n, n, dtype=torch.float16) for n in sizes]
    c = [torch.empty_like(x) for x in a]
    eager = [torch.empty_like(x) for x in a]
    addresses = [torch.tensor([x.data_ptr() for x in some]) for some in (a, b, c)]
    shapes = torch.tensor([[n, n, n] for n in sizes], dtype=torch.int32)
    constants = {"BM": 64, "BN": 128, "BK": 64}
    launch = Launch(grouped_matmul, (8,), (*addresses, shapes, len(sizes), c[0]), constants)

    def one_by_one() -> None:
        for x, y, out in zip(a, b, eager, strict=True):
            torch.mm(x, y, out=out)

    expected = lambda: [x.double() @ y.double() for x, y in zip(a, b, strict=True)]  # noqa: E731
    return [Case("grouped matmul, 1024 to 128, float16", [launch], one_by_one, c, expected, 2e-3)]


def norms() -> list[Case]:
    cases = []
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 5e-3)):
        rows, n, eps, group = 1151, 8192, 1e-5, 96
        x, w, b = rand(rows, n, dtype=dtype), rand(n, dtype=dtype), rand(n, dtype=dtype)
        dy, out = rand(rows, n, dtype=dtype), torch.empty_like(x)
        means, scales = torch.empty(rows), torch.empty(rows)
        name = f"{rows}x{n}, {str(dtype).removeprefix('torch.')}"
        forward = Launch(layer_norm, (rows,), (x, out, w, b, means, scales, n, n, eps), {"BLOCK": 8192})

        def reference(x=x, w=w, b=b, n=n, eps=eps, dy=dy) -> list[torch.Tensor]:
            x, w, b = (t.double().requires_grad_() for t in (x, w, b))
            y = F.layer_norm(x, (n,), w, b, eps)
            return [y, *torch.autograd.grad(y, (x, w, b), dy.double())]

        cases.append(
            Case(f"layer norm, {name}", [forward], lambda x=x, w=w, b=b: F.layer_norm(x, (8192,), w, b, 1e-5),
                 [out], lambda reference=reference: reference()[:1], tolerance)
        )  # fmt: skip
        dx, dw, db = torch.empty_like(x), torch.zeros(group, n, dtype=dtype), torch.zeros(group, n, dtype=dtype)
        w_out, b_out, locks = torch.empty_like(w), torch.empty_like(b), torch.zeros(2 * group, dtype=torch.int32)
        forward.run()
        back = [
            Launch(layer_norm_back, (rows,), (dx, dy, dw, db, x, w, means, scales, locks, n, n),
                   {"GROUP": group, "BLOCK": 8192}),
            Launch(layer_norm_sums, (cdiv(n, 128),), (dw, db, w_out, b_out, group, n), {"BM": 32, "BN": 128}),
        ]  # fmt: skip
        tx, tw, tb = (t.clone().requires_grad_() for t in (x, w, b))
        y = F.layer_norm(tx, (n,), tw, tb, eps)
        eager = lambda y=y, inputs=(tx, tw, tb), dy=dy: torch.autograd.grad(y, inputs, dy, retain_graph=True)  # noqa: E731
        cases.append(
            Case(f"layer norm backward, {name}", back, eager, [dx, w_out, b_out],
                 lambda reference=reference: reference()[1:], tolerance * 10, [locks])
        )  # fmt: skip
    return cases


def attentions() -> list[Case]:
    cases = []
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 5e-2)):
        for causal in (False, True):
            q, k, v = (rand(2, 4, 1024, 64, dtype=dtype) for _ in range(3))
            out = torch.empty_like(q)
            constants = {"CAUSAL": causal, "DIM": 64, "BM": 64, "BN": 64}
            launch = Launch(attention, (16, 8), (q, k, v, out, 0.125, 1024), constants)
            name = f"attention, 2x4x1024x64, {str(dtype).removeprefix('torch.')}{', causal' if causal else ''}"
            once = lambda q=q, k=k, v=v, causal=causal: F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
            wide = lambda q=q, k=k, v=v, causal=causal: [  # noqa: E731
                F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
            ]
            cases.append(Case(name, [launch], once, [out], wide, tolerance))
    return cases


FAMILIES = (pointwise, softmaxes, matmuls, grouped, norms, attentions)


def difference(case: Case) -> float:
    """The largest difference from the results in f64, by the largest of these."""
    found = 0.0
    for result, expected in zip(case.results, case.expected(), strict=False):
        off = (result.double() - expected.detach()).abs().max() / expected.detach().abs().max()
        found = max(found, off.item())
    return found


def milliseconds(case: Case, rounds: int, seconds: float = 4) -> tuple[list[float], list[float]]:
    """Times of the kernel and of the operator, in turns; fewer rounds where they take longer."""
    times: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    for n in range(rounds):
        if n >= 1 and time.perf_counter() - begin > seconds:
            break
        for run, into in ((case.run, times[0]), (case.eager, times[1])):
            run()
            start = time.perf_counter()
            run()
            into.append((time.perf_counter() - start) * 1e3)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("-k", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    found, wrong = [], False
    columns = f"{'Kiln':>9} {'eager':>9} {'ratio':>7}"
    print(f"{'milliseconds':44} {columns} {columns} {'first':>9} {'difference':>11}   medians, then the best")
    for case in (case for family in FAMILIES for case in family()):
        if args.k not in case.name:
            continue
        start = time.perf_counter()
        case.run()
        first = (time.perf_counter() - start) * 1e3
        off = difference(case)
        kernel, eager = milliseconds(case, args.rounds)
        row = {"kernel": case.name, "first_ms": first, "difference": off}
        for what, chosen in (("median", statistics.median), ("best", min)):
            row |= {f"kiln_{what}_ms": chosen(kernel), f"eager_{what}_ms": chosen(eager)}
        ratios = [row[f"eager_{what}_ms"] / row[f"kiln_{what}_ms"] for what in ("median", "best")]
        medians = f"{row['kiln_median_ms']:9.3f} {row['eager_median_ms']:9.3f} {ratios[0]:7.2f}"
        bests = f"{row['kiln_best_ms']:9.3f} {row['eager_best_ms']:9.3f} {ratios[1]:7.2f}"
        print(f"{case.name:44} {medians} {bests} {first:9.0f} {off:11.1e}", flush=True)
        if off > case.tolerance:
            print(f"{case.name}: the result is off by {off:.1e}, more than {case.tolerance:.1e}", file=sys.stderr)
            wrong = True
        found.append(row)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(found, f, indent=1)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
