"""Matmuls and convolutions on a CUDA machine beside PyTorch, interleaved in one run: eager (cuBLAS, cuDNN), torch.compile, max-autotune.

    python3 benches/gemm.py --kiln dist/kiln [--out benches/results/gemm.json] [--only NAME]... [--compile] [--autotune] [--rounds N]
                             [--tuned STORE]

`--tuned`: Kiln once more, with the schedules that `kiln tune` found; rows without an entry are as before. Launches in a CUDA graph
on both sides, medians of the rounds; random normal data; exact f32 unless the row says tf32; rows of
tf32x3 are beside exact f32, rows of f8_fast beside `use_fast_accum`.
"""

import argparse
import json
import math
import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(__file__))
import gpu


def rows():
    """(name, function of PyTorch, shapes, dtype, FMAs)."""
    import torch
    import torch.nn.functional as F

    half, full = torch.bfloat16, torch.float32
    for n in (1024, 2048, 4096, 8192):
        yield f"gemm_{n}_bf16", torch.mm, [(n, n), (n, n)], half, n**3
    for m, n, k in ((1, 4096, 4096), (16, 11008, 4096), (128, 4096, 11008), (2048, 4096, 4096), (8192, 28672, 8192), (4096, 4096, 65536)):
        yield f"linear_{m}x{n}x{k}_bf16", F.linear, [(m, k), (n, k)], half, m * n * k
    m, n, k = 8192, 16384, 4096
    gelu = lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh")
    yield f"linear_gelu_{m}x{n}x{k}_bf16", gelu, [(m, k), (n, k), (n,)], half, m * n * k
    yield f"linear_leaky_{m}x{n}x{k}_bf16", lambda x, w: F.leaky_relu(F.linear(x, w)), [(m, k), (n, k)], half, m * n * k
    swiglu = lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u)
    for m, n, k in ((m, n, k), (16, 11008, 4096), (2048, 11008, 4096)):
        yield f"swiglu_{m}x{n}x{k}_bf16", swiglu, [(m, k), (n, k), (n, k)], half, 2 * m * n * k
    geglu = lambda x, w: (lambda h: h[:, :5120] * F.gelu(h[:, 5120:]))(F.linear(x, w))
    yield "geglu_4096x5120x1280_bf16", geglu, [(4096, 1280), (10240, 1280)], half, 4096 * 10240 * 1280
    for op, m, n, k, f in (
        ("softmax", 16384, 128, 1024, lambda x, w, b: F.softmax(F.linear(x, w, b), -1)),
        ("softmax", 16384, 64, 4096, lambda x, w: F.softmax(F.linear(x, w), -1)),
        ("log_softmax", 16384, 100, 2048, lambda x, w, b: F.log_softmax(F.linear(x, w, b), -1)),
        ("layer_norm", 8192, 256, 4096, lambda x, w, b, g, c: F.layer_norm(F.linear(x, w, b), (256,), g, c)),
        ("residual_norm", 32768, 256, 1024, lambda x, w, b, r, g, c: F.layer_norm(F.linear(x, w, b) + r, (256,), g, c)),
        ("rms_norm", 65536, 64, 512, lambda x, w, g: F.rms_norm(F.linear(x, w), (64,), g, 1e-6)),
    ):
        more = {"residual_norm": [(n,), (m, n), (n,), (n,)], "layer_norm": [(n,)] * 3}.get(op, [(n,)] * (n != 64 or op == "rms_norm"))
        yield f"{op}_{m}x{n}x{k}_bf16", f, [(m, k), (n, k), *more], half, m * n * k
    yield "bmm_64x1024_bf16", torch.bmm, [(64, 1024, 1024), (64, 1024, 1024)], half, 64 * 1024**3
    for n in (1024, 4096):
        yield f"gemm_{n}_f32", torch.mm, [(n, n), (n, n)], full, n**3
    for n in (1024, 4096):
        yield f"gemm_{n}_tf32x3", torch.mm, [(n, n), (n, n)], full, n**3
    yield "linear_8192x768x768_tf32x3", F.linear, [(8192, 768), (768, 768)], full, 8192 * 768 * 768
    for n in (1024, 4096):
        yield f"gemm_{n}_tf32", torch.mm, [(n, n), (n, n)], full, n**3
    yield "linear_8192x768x768_tf32", F.linear, [(8192, 768), (768, 768)], full, 8192 * 768 * 768
    eighth = torch.float8_e4m3fn
    for n in (4096, 8192):
        for fast in (False, True):
            one = torch.ones((), device="cuda")
            scaled = lambda a, b, one=one, fast=fast: torch._scaled_mm(a, b.t(), one, one, out_dtype=half, use_fast_accum=fast)
            yield f"gemm_{n}_f8{'_fast' if fast else ''}", scaled, [(n, n), (n, n)], eighth, n**3
    n = 8192
    x, y, v = torch.rand(n, 1, device="cuda"), torch.rand(1, n, device="cuda"), torch.randn(n, device="cuda", dtype=half)
    rowwise = lambda a, b: torch._scaled_mm(a, b.t(), x, y, v, out_dtype=half)
    yield f"linear_{n}x{n}x{n}_f8", rowwise, [(n, n), (n, n)], eighth, n**3
    yield "linear_197x3072x768_f32", F.linear, [(197, 768), (3072, 768)], full, 197 * 3072 * 768
    yield "linear_8192x768x768_f32", F.linear, [(8192, 768), (768, 768)], full, 8192 * 768 * 768
    yield "gemm_4097_f32", torch.mm, [(4097, 4097), (4097, 4097)], full, 4097**3
    yield "gemm_4097_bf16", torch.mm, [(4097, 4097), (4097, 4097)], half, 4097**3
    for n, c, h, o, k, p, s in ((1, 64, 56, 64, 3, 1, 1), (32, 64, 56, 64, 3, 1, 1), (1, 256, 14, 256, 3, 1, 1), (32, 128, 28, 128, 3, 1, 1), (32, 256, 14, 256, 3, 1, 1), (32, 512, 7, 512, 3, 1, 1), (32, 256, 56, 64, 1, 0, 1), (32, 3, 224, 64, 7, 3, 2)):
        size = (h + 2 * p - k) // s + 1
        for dtype, letters in ((full, "f32"), (half, "bf16"), (full, "tf32")):
            conv = lambda x, w, s=s, p=p: F.conv2d(x, w, stride=s, padding=p)
            yield f"conv_{n}x{c}x{h}_{o}x{k}_{letters}", conv, [(n, c, h, h), (o, c, k, k)], dtype, n * o * size * size * c * k * k
    # Distances by a matmul, as torch.cdist computes more than 25 rows, and by differences.
    sizes, work = [(8192, 512), (8192, 512)], 8192 * 8192 * 512
    for letters in ("f32", "tf32"):
        yield f"cdist_8192x8192x512_{letters}", torch.cdist, sizes, full, work
    differences = lambda a, b: torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    for letters in ("f32", "tf32"):
        yield f"cdist_differences_8192x8192x512_{letters}", differences, sizes, full, work


def kiln_us(kiln, name, *more):
    if name.startswith("conv_"):
        # tf32 is what PyTorch's defaults allow of convolutions, and what Kiln does unless numerics are exact.
        numerics = [] if name.endswith("_tf32") else ["--numerics", "exact"] if name.endswith("_f32") else []
        name, more = name.replace("_tf32", "_f32"), [*more, *numerics]
    for kind, numerics in (("_tf32x3", ["--splits"]), ("_tf32", ["--numerics", "fast"])):
        if name.endswith(kind):
            name, more = name.replace(kind, "_f32"), [*more, *numerics]
    result, problem = gpu.bench(kiln, f"benches/graphs/{name.removesuffix('_fast')}.kiln", "--seconds", "0.15", *more)
    return (sum(k["median_us"] for k in result["kernels"]) if result else math.nan), problem


def main():
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--kiln", action="append", default=[], help="several: each is measured")
    parser.add_argument("--out")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--autotune", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tuned")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    gpu.find_library()
    figures = {"machine": gpu.machine(), "rows": {}}
    builds = {k: (k, []) for k in args.kiln or ["dist/kiln"]}
    last_build = list(builds)[-1]
    if args.tuned:
        builds["tuned"] = (last_build, ["--tuned", args.tuned])
    ways = [""] + (["compile"] if args.compile else []) + (["autotune"] if args.autotune else [])
    heads = ["kiln us" if b == last_build else f"{os.path.basename(b)} us" for b in builds]
    print(f"| graph | {' | '.join(heads)} | TFLOP/s | " + " | ".join(w or "eager us" for w in ways) + " | best torch / kiln |")
    for name, function, shapes, dtype, work in rows():
        if args.only and not any(o in name for o in args.only):
            continue
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name.endswith("_tf32")
        inputs = [torch.randn(*s, device="cuda").to(dtype) for s in shapes]
        functions = {"": function}
        for way in ways[1:]:
            torch._dynamo.reset()
            functions[way] = torch.compile(function, mode="max-autotune-no-cudagraphs" if way == "autotune" else None)
        ours, theirs = {b: [] for b in builds}, {w: [] for w in ways}
        problem = ""
        for _ in range(args.rounds):
            for way, f in functions.items():
                theirs[way].append(gpu.time_product(f, inputs) * 1e3)
            for b, (kiln, more) in builds.items():
                us, why = kiln_us(kiln, name, *more)
                ours[b].append(us)
                problem = problem or why
        us, them = {b: statistics.median(v) for b, v in ours.items()}, {w: statistics.median(v) for w, v in theirs.items()}
        last = us[last_build]
        figures["rows"][name] = {"kiln_us": us, "torch_us": them, "problem": problem}
        cells = [f"{v:.1f}" for v in us.values()] + [f"{2 * work / last / 1e6:.0f}"] + [f"{v:.1f}" for v in them.values()]
        print(f"| {name} | {' | '.join(cells)} | {min(them.values()) / last:.2f} | {problem}", flush=True)
        del inputs, functions
        torch.cuda.empty_cache()
    if args.out:
        with open(args.out, "w") as f:
            json.dump(figures, f, indent=1)


if __name__ == "__main__":
    main()
