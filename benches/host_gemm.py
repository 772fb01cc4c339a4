"""Matmuls and convolutions on the processor beside PyTorch eager, at each instruction set: the sizes of seven models and of
ResNet-50, and sizes drawn at random.

    .deps/venv/bin/python benches/host_gemm.py [--kiln target/release/kiln] [--levels avx2,avx512,amx] [--dtypes f32,bf16] [--threads 1,2]
                                                 [--seed N] [--rounds N] [--seconds S]

`kiln bench` and PyTorch in this process run interleaved, for S seconds each; of the rounds the least tenth percentile counts. Before each
run of Kiln this process pauses until OpenMP's threads, which spin for work as Kiln's do, have gone to sleep. PyTorch is
held to the level by ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS, Kiln by KILN_CPU. On a machine that others
use, `chrt -r 1` before the command keeps their work away from both sides.
"""

import argparse
import datetime
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
import time

PEERS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "amx": {},
}
REST = 0.02

# Form, batch, M, N and K: right operands are inputs stored [K, N] ("nn") or [N, K] ("nt"), or a weight ("w").
PRODUCTS = [
    # The demo's matmul_leaky_relu and glu_mlp; mlp and loopif.
    ("nn", 1, 128, 160, 96), ("w", 1, 16, 256, 64), ("w", 1, 16, 64, 128), ("w", 1, 4, 256, 64), ("w", 1, 4, 128, 128), ("w", 1, 4, 16, 16),
    # ViT-B/16: projections, the gated layers, attention, the head; ResNet-18's head.
    ("w", 1, 197, 2304, 768), ("w", 1, 197, 768, 768), ("w", 1, 197, 3072, 768), ("w", 1, 197, 768, 3072),
    ("nt", 12, 197, 197, 64), ("nn", 12, 197, 64, 197), ("w", 1, 1, 1000, 768), ("w", 1, 1, 1000, 512),
    # BERT and GPT-2 on two rows of 32 tokens.
    ("w", 1, 64, 768, 768), ("w", 1, 64, 3072, 768), ("w", 1, 64, 768, 3072), ("w", 1, 64, 2304, 768), ("nt", 24, 32, 32, 64), ("nn", 24, 32, 64, 32),
    # Llama.
    ("w", 1, 64, 256, 256), ("w", 1, 64, 128, 256), ("w", 1, 64, 688, 256), ("w", 1, 64, 256, 688), ("nt", 16, 32, 32, 32), ("nn", 16, 32, 32, 32),
]  # fmt: skip
# Batch, input channels, size, output channels, filter size, stride, padding.
CONVOLUTIONS = [
    # ResNet-18 and the patch embedding of ViT-B/16.
    (1, 3, 224, 64, 7, 2, 3), (1, 64, 56, 64, 3, 1, 1), (1, 64, 56, 128, 3, 2, 1), (1, 64, 56, 128, 1, 2, 0), (1, 128, 28, 128, 3, 1, 1),
    (1, 128, 28, 256, 3, 2, 1), (1, 128, 28, 256, 1, 2, 0), (1, 256, 14, 256, 3, 1, 1), (1, 256, 14, 512, 3, 2, 1), (1, 256, 14, 512, 1, 2, 0),
    (1, 512, 7, 512, 3, 1, 1), (1, 3, 224, 768, 16, 16, 0),
    # What ResNet-50 adds.
    (1, 64, 56, 64, 1, 1, 0), (1, 64, 56, 256, 1, 1, 0), (1, 256, 56, 64, 1, 1, 0), (1, 256, 56, 128, 1, 1, 0), (1, 128, 56, 128, 3, 2, 1),
    (1, 128, 28, 512, 1, 1, 0), (1, 256, 56, 512, 1, 2, 0), (1, 512, 28, 128, 1, 1, 0), (1, 512, 28, 256, 1, 1, 0), (1, 256, 28, 256, 3, 2, 1),
    (1, 256, 14, 1024, 1, 1, 0), (1, 512, 28, 1024, 1, 2, 0), (1, 1024, 14, 256, 1, 1, 0), (1, 1024, 14, 512, 1, 1, 0), (1, 512, 14, 512, 3, 2, 1),
    (1, 512, 7, 2048, 1, 1, 0), (1, 1024, 14, 2048, 1, 2, 0), (1, 2048, 7, 512, 1, 1, 0),
]  # fmt: skip


def drawn(seed):
    """26 matmuls and 14 convolutions, sizes log-uniform."""
    r = random.Random(seed)
    size = lambda low, high: round(math.exp(r.uniform(math.log(low), math.log(high))))
    products, convolutions = [], []
    while len(products) < 26:
        form = r.choice(["nn", "nt", "w"])
        batch = 1 if form == "w" else r.choice([1, 1, size(2, 16)])
        m, n, k = size(1, 1024), size(8, 2048), size(8, 2048)
        if 1e4 < batch * m * n * k < 1.5e9:
            products.append((form, batch, m, n, k))
    while len(convolutions) < 14:
        images, window, stride = r.choice([1, 1, 2, 8]), r.choice([1, 1, 3, 3, 5, 7]), r.choice([1, 1, 2])
        cin, cout, image = size(3, 512), size(16, 512), size(7, 112)
        if 1e5 < images * cin * cout * (image // stride) ** 2 * window**2 < 1e9:
            convolutions.append((images, cin, image, cout, window, stride, window // 2))
    return products, convolutions


def product(dtype, form, batch, m, n, k):
    """Name, operations, graph, and what PyTorch does."""
    import torch

    kind = getattr(torch, {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[dtype])
    outer, shape = ([batch], f"{batch},") if batch > 1 else ([], "")
    a = torch.randn(*outer, m, k, dtype=kind)
    name = f"{'' if batch == 1 else f'{batch} x '}{m}x{n}x{k}, {dict(nn='[K, N]', nt='[N, K]', w='weight')[form]}"
    head = f"graph product(%a: {dtype}[{shape}{m},{k}]"
    if form == "w":
        w = torch.randn(n, k, dtype=kind)
        text = f'{head}) {{\n  @w "w": {dtype}[{n},{k}] = random(seed=1, scale=0.1)\n  %c = linear %a, @w\n  return %c\n}}\n'
        return name, 2 * m * n * k, text, lambda: torch.nn.functional.linear(a, w)
    if form == "nn":
        b = torch.randn(*outer, k, n, dtype=kind)
        text = f"{head}, %b: {dtype}[{shape}{k},{n}]) {{\n  %c = dot %a, %b\n  return %c\n}}\n"
        return name, 2 * batch * m * n * k, text, lambda: a @ b
    b = torch.randn(*outer, n, k, dtype=kind)
    axes = "[0,2,1]" if batch > 1 else "[1,0]"
    text = f"{head}, %b: {dtype}[{shape}{n},{k}]) {{\n  %t = permute %b perm={axes}\n  %c = dot %a, %t\n  return %c\n}}\n"
    return name, 2 * batch * m * n * k, text, lambda: a @ b.transpose(-1, -2)


def convolution(dtype, images, cin, size, cout, window, stride, padding):
    import torch

    kind = getattr(torch, {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[dtype])
    x, w = torch.randn(images, cin, size, size, dtype=kind), torch.randn(cout, cin, window, window, dtype=kind)
    f = lambda: torch.nn.functional.conv2d(x, w, None, stride, padding)
    name = f"convolution {cin} to {cout}, {images} x {size}x{size}, {window}x{window}{f', stride {stride}' if stride > 1 else ''}"
    how = f"stride=[{stride},{stride}] padding=[{padding},{padding}]"
    text = f"graph convolution(%x: {dtype}[{images},{cin},{size},{size}]) {{\n"
    text += f'  @w "w": {dtype}[{cout},{cin},{window},{window}] = random(seed=1, scale=0.1)\n  %c = conv %x, @w {how}\n  return %c\n}}\n'
    return name, 2 * f().numel() * cin * window**2, text, f


def tenth(f, seconds):
    """Microseconds of calls, their tenth percentile."""
    for _ in range(3):
        f()
    samples, begin = [], time.perf_counter()
    while len(samples) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        f()
        samples.append(time.perf_counter() - start)
    return sorted(samples)[len(samples) // 10] * 1e6


def measure(args, level, dtype, threads):
    """Rows of one table; in a process that is held to the level."""
    import torch

    torch.set_grad_enabled(False)
    torch.set_num_threads(threads)
    def bench(path):
        command = [args.kiln, "bench", path, "--device", "cpu", "--threads", str(threads), "--seconds", str(args.seconds), "--json", "-"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "KILN_CPU": level})
        return json.loads(done.stdout)["fused"]["p10"] * 1e3 if done.returncode == 0 else sys.exit(done.stderr)

    random_products, random_convolutions = drawn(args.seed)
    groups = [("sizes of models", PRODUCTS, CONVOLUTIONS), (f"drawn at random, seed {args.seed}", random_products, random_convolutions)]
    for group, products, convolutions in groups:
        rows = [lambda p=p: product(dtype, *p) for p in products] + [lambda c=c: convolution(dtype, *c) for c in convolutions]
        ratios = []
        print(f"\n{level}, {dtype}, {threads} thread{'s' if threads > 1 else ''}, {group}\n")
        print("| op | Kiln us | PyTorch us | Kiln GFLOP/s | PyTorch / Kiln |\n|---|---|---|---|---|")
        for row in rows:
            name, flops, text, torchs = row()
            ours = theirs = math.inf
            with tempfile.NamedTemporaryFile("w", suffix=".kiln") as f:
                f.write(text)
                f.flush()
                for _ in range(args.rounds):
                    time.sleep(REST)
                    ours = min(ours, bench(f.name))
                    theirs = min(theirs, tenth(torchs, args.seconds))
            ratios.append(theirs / ours)
            print(f"| {name} | {ours:.1f} | {theirs:.1f} | {flops / ours * 1e-3:.0f} | {ratios[-1]:.2f} |", flush=True)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        few = sum(r < 0.95 for r in ratios)
        print(f"\nGeometric mean {mean:.2f}, least {min(ratios):.2f}, {few} of {len(ratios)} below 0.95.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="avx2,avx512,amx")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.015, help="of each run")
    parser.add_argument("--kiln", default="target/release/kiln")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return measure(args, args.levels, args.dtypes, int(args.threads))
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    print(f"{cpu}; {datetime.date.today()}; `python benches/host_gemm.py {' '.join(sys.argv[1:])}`", flush=True)
    for level in args.levels.split(","):
        for dtype in args.dtypes.split(","):
            for threads in args.threads.split(","):
                one = [sys.executable, __file__, "--one", "--levels", level, "--dtypes", dtype, "--threads", threads]
                more = ["--seed", str(args.seed), "--rounds", str(args.rounds), "--seconds", str(args.seconds), "--kiln", args.kiln]
                subprocess.run(one + more, env={**os.environ, **PEERS[level]}, check=True)


if __name__ == "__main__":
    main()
