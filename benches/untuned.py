"""Operators and shapes that nobody tuned for: torch.compile by Kiln beside TorchInductor and eager PyTorch, on one GPU.

    python benches/untuned.py [--dtype f32|bf16|f16] [--seconds S] [CASE]...

Times are medians of several calls in a row, the compilers' in turn; below about 50 us they are the host's time to launch, not the kernels'.
Floor: inputs and results once at the speed of a copy in the same run. Errors: of the worst element against float64, over the largest one.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

import kiln  # noqa: F401

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def normalised(x, mean, variance):
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def batch_norm(x):
    variance, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
    return normalised(x, mean, variance)


def resized(x, mode):
    size = (x.shape[-2] * 3 // 2 + 1, x.shape[-1] * 3 // 2 + 1)
    return F.interpolate(x, size=size, mode=mode, align_corners=True)


def doubled(x, mode):
    return F.interpolate(x, scale_factor=2, mode=mode, align_corners=None if mode == "nearest" else False)


IMAGES = (32, 64, 112, 112)

# Name, function of tensors and indices, shapes, and for each index its length and the length of the axis.
CASES = [
    ("statistics of channels", lambda x: torch.var_mean(x, (0, 2, 3), correction=0), [(64, 64, 112, 112)], []),
    ("statistics, small images", lambda x: torch.var_mean(x, (0, 2, 3), correction=0), [(128, 512, 14, 14)], []),
    ("batch norm by hand", batch_norm, [(64, 64, 112, 112)], []),
    ("batch norm", lambda x: F.batch_norm(x, None, None, training=True), [IMAGES], []),
    ("maxima of columns", lambda x: x.amax(0), [(1000000, 64)], []),
    ("maxima, odd", lambda x: x.amax(0), [(999983, 33)], []),
    ("nearest 2x", lambda x: doubled(x, "nearest"), [(16, 64, 128, 128)], []),
    ("bilinear 2x", lambda x: doubled(x, "bilinear"), [(16, 64, 128, 128)], []),
    ("bilinear 1.5x", lambda x: resized(x, "bilinear"), [(16, 64, 128, 128)], []),
    ("bicubic 2x", lambda x: doubled(x, "bicubic"), [(16, 64, 128, 128)], []),
    ("log-sum-exp", lambda x: x.logsumexp(-1), [(8192, 32000)], []),
    ("log-sum-exp, odd", lambda x: x.logsumexp(-1), [(4096, 32003)], []),
    ("cumulative sums", lambda x: x.cumsum(-1), [(256, 100000)], []),
    ("cumulative sums, few", lambda x: x.cumsum(-1), [(32, 1000000)], []),
    ("cumulative sums of columns", lambda x: x.cumsum(0), [(5000, 4096)], []),
    ("concatenation, odd", lambda *x: torch.cat(x, -1), [(16384, 1001), (16384, 333), (16384, 77)], []),
    ("rows by index", lambda x, i: x[i], [(50000, 256)], [(200000, 50000)]),
    ("columns by index", lambda x, i: x[:, i], [(4096, 8000)], [(6000, 8000)]),
    ("elements by index", lambda x, i, j: x[i, j], [(4096, 8192)], [(8000000, 4096), (8000000, 8192)]),
    ("gather", lambda x, i: torch.gather(x, 1, i.view(8192, 2048)), [(8192, 4096)], [(8192 * 2048, 4096)]),
    ("flip", lambda x: x.flip(-1) + 1, [(8192, 4097)], []),
    ("roll", lambda x: torch.roll(x, (3, 5), (2, 3)) * 1.5, [IMAGES], []),
    ("pixel shuffle", lambda x: F.pixel_shuffle(x, 2), [(16, 256, 96, 96)], []),
    ("channels last", lambda x: x.permute(0, 2, 3, 1).contiguous(), [IMAGES], []),
    ("reflected padding", lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), [IMAGES], []),
    ("average pool", lambda x: F.avg_pool2d(x, 3, 2, 1), [IMAGES], []),
    ("max pool", lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGES], []),
    ("adaptive pool", lambda x: F.adaptive_avg_pool2d(x, 7), [(32, 256, 56, 56)], []),
    ("adaptive pool, odd", lambda x: F.adaptive_avg_pool2d(x, (5, 6)), [(32, 256, 57, 59)], []),
    ("softmax of channels", lambda x: F.softmax(x, 1), [(32, 21, 256, 256)], []),
    ("softmax of 19", lambda x: F.softmax(x, -1), [(1000003, 19)], []),
    ("layer norm of 96", lambda x: F.layer_norm(x, (96,)), [(300000, 96)], []),
    ("group norm, SiLU", lambda x: F.silu(F.group_norm(x, 32)), [(8, 128, 256, 256)], []),
    ("variance of rows", lambda x: x.var(-1), [(100003, 333)], []),
    ("deviation of columns", lambda x: x.std(0), [(30000, 1000)], []),
    ("argmax of channels", lambda x: x.argmax(1), [(32, 21, 256, 256)], []),
    ("repetition", lambda x: x.repeat(1, 3), [(8192, 1001)], []),
    ("windows", lambda x: x.unfold(-1, 16, 8).mean(-1), [(512, 80000)], []),
    ("binary cross entropy", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), [(4096, 4096)] * 2, []),
    ("divergence", lambda x, y: F.kl_div(x, y.exp(), reduction="sum"), [(4096, 8192)] * 2, []),
    ("log-sigmoid of columns", lambda x: F.logsigmoid(x).sum(0), [(8192, 4096)], []),
    ("softplus", lambda x: F.softplus(x), [(8192, 4096)], []),
    ("mish", lambda x: F.mish(x), [(8192, 4096)], []),
    ("ELU", lambda x: F.elu(x), [(8192, 4096)], []),
    ("sinh and atan", lambda x: torch.sinh(x) + torch.atan(x), [(8192, 4096)], []),
    ("asin", lambda x: torch.asin(x.tanh()), [(8192, 4096)], []),
    ("log2", lambda x: torch.log2(x.abs() + 1), [(8192, 4096)], []),
    ("power", lambda x: x.abs().pow(1.7), [(8192, 4096)], []),
    ("remainder", lambda x, y: torch.fmod(x, y.abs() + 0.5), [(8192, 4096)] * 2, []),
    ("quantisation", lambda x: (x / (x.abs().amax(-1, keepdim=True) / 127)).round().to(torch.int8), [(16384, 4096)], []),
    ("cumulative maxima", lambda x: x.cummax(-1)[0], [(16384, 1500)], []),
    ("grid sample", lambda x, g: F.grid_sample(x, g, align_corners=False), [(8, 64, 128, 128), (8, 128, 128, 2)], []),
    ("sums by index", lambda x, i: x.new_zeros(10000, 256).index_add(0, i, x), [(100000, 256)], [(100000, 10000)]),
]


def timed(functions, rounds=9, calls=8):
    """Medians in us of functions that are called in turn."""
    times = [[] for _ in functions]
    for f in functions * 3:
        f()
    for _ in range(rounds):
        for f, found in zip(functions, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            # The first call is launched before its time begins.
            torch.cuda._sleep(200_000)
            start.record()
            for _ in range(calls):
                f()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) * 1000 / calls)
    return [statistics.median(found) for found in times]


def listed(results):
    return results if isinstance(results, tuple) else (results,)


def error(results, right):
    return max(((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-30)).item() for a, b in zip(results, right))


def measured(function, shapes, indices, dtype, speed):
    torch._dynamo.reset()
    torch.manual_seed(1)
    tensors = [torch.randn(s, device="cuda").to(DTYPES[dtype]) for s in shapes]
    places = [torch.randint(0, length, (count,), device="cuda") for count, length in indices]
    args = tensors + places
    ways = [torch.compile(function, backend="kiln"), torch.compile(function), function]
    with torch.no_grad():
        right = [r.double() for r in listed(function(*[t.double() for t in tensors], *places))]
        results = [listed(way(*args)) for way in ways]
        errors = [error(r, right) for r in results]
        floor = (sum(t.nbytes for t in args) + sum(r.nbytes for r in results[0])) / speed
        del right, results
        own, inductor, eager = timed([lambda way=way: way(*args) for way in ways])
    return floor, own, inductor, eager, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    begin = time.monotonic()
    source = torch.empty(1 << 28, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    (copy,) = timed([lambda: target.copy_(source)])
    speed = 2 * source.nbytes / copy
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {speed / 1000:.0f} GB/s\n")
    print("| case | shape | dtype | floor us | kiln us | kiln / floor | Inductor / kiln | eager / kiln | error | of eager |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for dtype in options.dtype or ["f32", "bf16"]:
        for name, function, shapes, indices in CASES:
            if options.cases and name not in options.cases:
                continue
            if time.monotonic() - begin > options.seconds:
                print(f"\nout of time before {name} {dtype}")
                return
            floor, own, inductor, eager, errors = measured(function, shapes, indices, dtype, speed)
            shape = "x".join(map(str, shapes[0]))
            ratios = f"{own / floor:.2f} | {inductor / own:.2f} | {eager / own:.2f}"
            errors = f"{errors[0]:.1e} | {errors[2]:.1e}"
            print(f"| {name} | {shape} | {dtype} | {floor:.1f} | {own:.1f} | {ratios} | {errors} |", flush=True)


if __name__ == "__main__":
    main()
