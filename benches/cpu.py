"""Kiln on the processor: every exported model and fusion case, fused, unfused and PyTorch eager in one process with equal threads,
memory-bound cases beside torch.compile's C++ backend as well, and a table of single matmuls and convolutions.

    .deps/venv/bin/python benches/cpu.py [--kiln target/release/kiln] [--models models] [--out benches/results] [NAME]...

Archives come from `scripts/export-models --group all`. Writes OUT/cpu.md and OUT/cpu.json. The error is measured against a
float64 reference and stands beside PyTorch eager's own. A NAME is a model, part of the name of a case of memory.py, or
`products`.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import memory
import timing
import torch
from safetensors.torch import load_file, save_file

MODELS = ["mlp", "loopif", "resnet18", "vit_b_16", "bert", "gpt2", "llama"]
CASES = ["softmax_primitives", "gelu_tanh_primitives", "matmul_leaky_relu", "glu_mlp", "cdist", "attention_primitives"]

# M, N and K of matmuls.
PRODUCTS = [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (64, 3072, 768), (1, 4096, 4096), (8, 4096, 4096), (197, 2304, 768)]
# Input and output channels, image size, filter size, stride, padding, batch.
CONVOLUTIONS = [
    (3, 64, 224, 7, 2, 3, 1),
    (64, 64, 56, 3, 1, 1, 1),
    (64, 128, 56, 3, 2, 1, 1),
    (64, 128, 56, 1, 2, 0, 1),
    (128, 128, 28, 3, 1, 1, 1),
    (256, 256, 14, 3, 1, 1, 1),
    (512, 512, 7, 3, 1, 1, 1),
    (512, 512, 7, 3, 1, 1, 8),
]

torch.set_grad_enabled(False)


def flat(x):
    if torch.is_tensor(x):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    return [t for e in x for t in flat(e)] if isinstance(x, (list, tuple)) else []


def error(a, b):
    """Relative error in the 2-norm; infinite where NaN or infinity disagree."""
    a, b = a.double().flatten(), b.double().flatten()
    if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    a, b = a[a.isfinite()], b[b.isfinite()]
    norm = b.norm().item()
    return (a - b).norm().item() / norm if norm else (a - b).norm().item()


def worst(a, b):
    return max((error(x, y) for x, y in zip(a, b)), default=0.0) if len(a) == len(b) else float("inf")


def references(path, given):
    """Outputs in float64 and in PyTorch eager's own precision."""
    stored = load_file(given)
    module = torch.jit.load(path)
    arguments = list(module.forward.schema.arguments)[1:]
    tensors = [stored[str(i)] for i in range(len(stored))]
    plain = [t if "Tensor" in str(a.type) else t.item() for t, a in zip(tensors, arguments)]
    with torch.jit.optimized_execution(False):
        eager = flat(module(*plain))
        double = [t.double() if torch.is_tensor(t) and t.is_floating_point() else t for t in plain]
        try:
            exact = flat(torch.jit.load(path).double()(*double))
        except RuntimeError:
            exact = eager
    return exact, eager


def measure(kiln, name, folder, seconds):
    path, given = f"{folder}/{name}.pt", f"{folder}/{name}.safetensors"
    command = [kiln, "bench", path, "--inputs", given, "--device", "cpu", "--against", "unfused,torch", "--seconds", str(seconds), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"problem": done.stderr.strip().splitlines()[:1]}
    row = json.loads(done.stdout)
    exact, eager = references(path, given)
    row["torch_err"] = worst(eager, exact)
    for form, flags in (("fused", []), ("unfused", ["--unfused"])):
        with tempfile.TemporaryDirectory() as t:
            out = f"{t}/out.safetensors"
            done = subprocess.run([kiln, "run", path, "--inputs", given, "--outputs", out, "--device", "cpu", *flags], capture_output=True, text=True)
            if done.returncode:
                row[form + "_err"] = float("inf")
                row["problem"] = done.stderr.strip().splitlines()[:1]
                continue
            got = load_file(out)
            row[form + "_err"] = worst([got[str(i)] for i in range(len(got))], exact)
    explain = subprocess.run([kiln, "explain", path, "--inputs", given, "--json", "-"], capture_output=True, text=True)
    row["fallback"] = json.loads(explain.stdout)["fallback"] if explain.returncode == 0 else []
    return row


def median_ms(function, inputs, seconds):
    """Median of calls for this long, at least three."""
    samples, begin = [], time.perf_counter()
    while len(samples) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        function(*inputs)
        samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def against_compiled(kiln, path, module, inputs, seconds, rounds=3):
    """torch.compile's C++ backend and Kiln, interleaved, with equal threads: its milliseconds, the median over the rounds of its
    time over Kiln's, and what was wrong, if anything."""
    torch.set_num_threads(os.cpu_count())
    torch._dynamo.reset()
    try:
        fast = torch.compile(module)
        fast(*inputs)
    except Exception as e:
        return None, None, f"{type(e).__name__}: {str(e).strip().splitlines()[0][:80]}".replace("|", "/")
    times, ratios = [], []
    for _ in range(rounds):
        command = [kiln, "bench", f"{path}.pt", "--inputs", f"{path}.safetensors", "--device", "cpu", "--seconds", str(seconds / rounds), "--json", "-"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return None, None, done.stderr.strip().splitlines()[0]
        times.append(median_ms(fast, inputs, seconds / rounds))
        ratios.append(times[-1] / json.loads(done.stdout)["fused"]["median_ms"])
    return statistics.median(times), statistics.median(ratios), ""


class Product(torch.nn.Module):
    """A matmul of two inputs; `turned` says that the right one is stored [N, K]."""

    def __init__(self, turned):
        super().__init__()
        self.turned = turned

    def forward(self, a, b):
        return a @ b.t() if self.turned else a @ b


def products():
    """Name, operations, module and inputs of each row of the table."""
    for m, n, k in PRODUCTS:
        a, flops = torch.randn(m, k), 2 * m * n * k
        yield f"{m}×{n}×{k}, [K, N]", flops, Product(False), (a, torch.randn(k, n))
        yield f"{m}×{n}×{k}, [N, K]", flops, Product(True), (a, torch.randn(n, k))
        yield f"{m}×{n}×{k}, weight", flops, torch.nn.Linear(k, n, bias=False), (a,)
    for cin, cout, size, window, stride, padding, images in CONVOLUTIONS:
        module = torch.nn.Conv2d(cin, cout, window, stride, padding, bias=False)
        x = torch.randn(images, cin, size, size)
        flops = 2 * module(x).numel() * cin * window**2
        yield f"convolution {cin}→{cout}, {images}×{size}², {window}×{window}, stride {stride}", flops, module, (x,)


def product_table(kiln, seconds):
    """GFLOP/s of Kiln and of PyTorch eager, from one process each."""
    lines = ["", "Matmuls and convolutions in f32. The right operand of a matmul is an input, stored [K, N] or [N, K], or a weight.", ""]
    lines += ["| op | Kiln GFLOP/s | eager GFLOP/s | Kiln / eager |", "|---|---|---|---|"]
    figures = {}
    for name, flops, module, inputs in products():
        with tempfile.TemporaryDirectory() as t:
            torch.jit.trace(module.eval(), inputs).save(f"{t}/m.pt")
            save_file({str(i): x for i, x in enumerate(inputs)}, f"{t}/in.safetensors")
            command = [kiln, "bench", f"{t}/m.pt", "--inputs", f"{t}/in.safetensors", "--device", "cpu", "--against", "torch", "--seconds", str(seconds), "--json", "-"]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines.append(f"| {name} | {done.stderr.strip().splitlines()[:1]} | | |")
        else:
            row = json.loads(done.stdout)
            ours, theirs = (flops / row[side]["median_ms"] * 1e-6 for side in ("fused", "torch"))
            figures[name] = {"gflops": ours, "torch_gflops": theirs}
            lines.append(f"| {name} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |")
        print(lines[-1], flush=True)
    return lines, figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kiln", default="target/release/kiln")
    parser.add_argument("--models", default="models")
    parser.add_argument("--out", default="benches/results")
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    names = [n for n in args.names if os.path.exists(f"{args.models}/{n}.pt")] if args.names else MODELS + CASES
    with_products = not args.names or "products" in args.names
    head = f"{timing.processor()}, {os.cpu_count()} threads; torch {torch.__version__}; {datetime.date.today()}; `python benches/cpu.py {' '.join(sys.argv[1:])}`"
    lines = ["# Kiln on the processor", "", head, ""]
    lines += ["| model | ops | kernels | falls back | fused ms (p10-p90) | unfused ms | eager ms | eager / fused | err fused | err unfused | err eager | compile s |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    figures = {"machine": head}
    for name in names:
        r = figures[name] = measure(args.kiln, name, args.models, args.seconds)
        if "fused" not in r:
            lines.append(f"| {name} | {r['problem']} | | | | | | | | | | |")
        else:
            f, u, t = r["fused"], r["unfused"]["median_ms"], (r["torch"] or {}).get("median_ms", float("nan"))
            kinds = ", ".join(sorted(set(r["fallback"]))) or "-"
            lines.append(
                f"| {name} | {r['ops']} | {len(r['kernels'])} | {kinds} | {f['median_ms']:.3f} ({f['p10']:.3f}-{f['p90']:.3f}) | {u:.3f} | {t:.3f} | {t / f['median_ms']:.2f} "
                f"| {r['fused_err']:.1e} | {r['unfused_err']:.1e} | {r['torch_err']:.1e} | {r['compile_s']:.2f} |"
            )
        print(lines[-1], flush=True)
    more = [n for n in args.names if n not in names and n != "products"]
    if more or not args.names:
        lines.append("")
        with tempfile.TemporaryDirectory() as folder:
            once = lambda name, folder: measure(args.kiln, name, folder, args.seconds / 4)
            peer = lambda path, module, inputs: against_compiled(args.kiln, path, module, inputs, args.seconds / 4)
            for line in memory.tables(once, peer, folder, more):
                lines.append(line)
                print(line, flush=True)
    if with_products:
        table, figures["products"] = product_table(args.kiln, args.seconds / 4)
        lines += table
    os.makedirs(args.out, exist_ok=True)
    with open(f"{args.out}/cpu.md", "w") as f:
        f.write("\n".join(lines) + "\n")
    with open(f"{args.out}/cpu.json", "w") as f:
        json.dump(figures, f, indent=1)


if __name__ == "__main__":
    main()
