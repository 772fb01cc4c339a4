"""Kiln on a CUDA machine: every sample graph and the exported models, checked and timed beside PyTorch in the same run.

    python3 benches/gpu.py --kiln dist/kiln --out benches/results [--only NAME]... [--skip-models]

Random graphs (`--random`, `--random-seconds`) run as well, where their program was packed.
Writes OUT/gpu-check.md (tables) and OUT/gpu-check.json (figures). A result counts as right when its error against a float64
reference is at most twice PyTorch eager's own (models), or within the dtype's tolerance of the float64 interpreter (graphs).
"""

import argparse
import copy
import datetime
import glob
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}
MODELS = ["mlp", "loopif", "resnet18", "vit_b_16", "bert", "gpt2", "llama"]
SMALL = ["softmax_primitives", "gelu_tanh_primitives", "matmul_leaky_relu", "glu_mlp", "cdist", "attention_primitives"]


def find_library():
    """Puts PyTorch's cuBLASLt on the library path, so that Kiln may take it as it would where CUDA is installed."""
    import torch

    beside = os.path.dirname(os.path.dirname(torch.__file__))
    found = glob.glob(f"{beside}/nvidia/**/libcublasLt.so*", recursive=True)
    if found:
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [os.path.dirname(found[0]), os.environ.get("LD_LIBRARY_PATH")]))


def call(*command, timeout=300):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


def bench(kiln, model, *more):
    code, out, err = call(kiln, "bench", model, "--device", "cuda:0", "--json", "-", *more)
    if code:
        return None, (err.strip() or f"exit {code}").splitlines()[0]
    return json.loads(out), ""


def graphs(kiln, only):
    rows = []
    for path in sorted(glob.glob("graphs/*.kiln")):
        name = os.path.basename(path)[:-5]
        if only and name not in only:
            continue
        result, problem = bench(kiln, path, "--against", "unfused", "--seconds", "0.3")
        rows.append((name, result, problem))
    return rows


def errors(result):
    """Two cells: the absolute and the relative error of `kiln bench`."""
    return "unchecked | " if result["reference"] == "none" else f"{result['max_abs_err']:.1e} | {result['max_rel_err']:.1e}"


def error(a, b):
    """Relative error in the 2-norm; NaN only where both have it."""
    import torch

    a, b = a.double().flatten().cpu(), b.double().flatten().cpu()
    if a.shape != b.shape or not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    a, b = a.nan_to_num(), b.nan_to_num()
    norm = b.norm().item()
    return (a - b).norm().item() / norm if norm else (a - b).norm().item()


def flat(x):
    import torch

    if torch.is_tensor(x):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    return [t for e in x for t in flat(e)] if isinstance(x, (list, tuple)) else []


def time_torch(module, inputs):
    import torch

    for _ in range(5):
        module(*inputs)
    torch.cuda.synchronize()
    samples = []
    for _ in range(30):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        module(*inputs)
        b.record()
        torch.cuda.synchronize()
        samples.append(a.elapsed_time(b))
    return statistics.median(samples)


def models(kiln, only, folder):
    import torch
    from safetensors.torch import load_file

    torch.set_grad_enabled(False)
    sys.path.insert(0, "scripts")
    import export_models

    names = [n for n in MODELS + SMALL if not only or n in only]
    code, _, err = call(sys.executable, "scripts/export_models.py", "--out", folder, *names, timeout=500)
    if code:
        print("export:", err.strip().splitlines()[-1:], flush=True)
    rows = []
    for name in names:
        path, given = f"{folder}/{name}.pt", f"{folder}/{name}.safetensors"
        if not os.path.exists(path):
            rows.append((name, None, "not exported"))
            continue
        stored = load_file(given)
        tensors = [stored[str(i)] for i in range(len(stored))]
        # The module itself, not its archive: traces made on the host keep the host's device in them.
        torch.manual_seed(export_models.SEED)
        module, inputs = export_models.example_models.EXAMPLES[name].build()
        module = module.eval()
        on = lambda xs, device, double=False: [
            (t.double() if double and t.is_floating_point() else t).to(device) if torch.is_tensor(t) else t for t in xs
        ]
        row = {}
        try:
            try:
                reference = flat(copy.deepcopy(module).double()(*on(inputs, "cpu", True)))
            except RuntimeError:
                reference = flat(module(*inputs))
            cuda = module.to("cuda")
            torch.set_default_device("cuda")
            torch.backends.cuda.matmul.allow_tf32 = False
            eager = flat(cuda(*on(inputs, "cuda")))
            row["torch_err"] = max((error(a, b) for a, b in zip(eager, reference)), default=0.0)
            row["torch_ms"] = time_torch(cuda, on(inputs, "cuda"))
            torch.set_default_device("cpu")
        except Exception as e:
            torch.set_default_device("cpu")
            row["problem"] = f"torch: {str(e).splitlines()[0]}"
        for form, flags in (("fused", []), ("unfused", ["--unfused"])):
            out = f"{folder}/{name}.{form}.safetensors"
            code, _, err = call(kiln, "run", path, "--inputs", given, "--outputs", out, "--device", "cuda:0", *flags)
            if code:
                row[form] = (err.strip() or f"exit {code}").splitlines()[0]
                continue
            got = load_file(out)
            got = [got[str(i)] for i in range(len(got))]
            row[form] = max((error(a, b) for a, b in zip(got, reference)), default=0.0) if len(got) == len(reference) else float("inf")
        row["bench"], row["problem"] = bench(kiln, path, "--inputs", given, "--against", "unfused", "--seconds", "0.5")
        rows.append((name, row, ""))
        print(name, {k: v for k, v in row.items() if k != "bench"}, flush=True)
    return rows


def peers():
    """PyTorch's ways to compute the graphs of benches/graphs, as (function, inputs)."""
    import torch
    import torch.nn.functional as F

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))

    def softmax(x):
        e = torch.exp(x - x.amax(1, keepdim=True))
        return e / e.sum(1, keepdim=True)

    new = lambda dtype, *shape: torch.randn(*shape, device="cuda", dtype=dtype)
    half, full = torch.bfloat16, torch.float32
    yield "gelu_tanh_16384_f32", {"primitives": gelu, "F.gelu": lambda x: F.gelu(x, approximate="tanh")}, lambda: [new(full, 16384, 16384)]
    yield "gelu_tanh_16384_bf16", {"primitives": gelu, "F.gelu": lambda x: F.gelu(x, approximate="tanh")}, lambda: [new(half, 16384, 16384)]
    for rows, columns in ((4096, 4096), (4096, 12672), (8192, 32768), (2048, 131072)):
        yield f"softmax_{rows}x{columns}_f32", {"primitives": softmax, "F.softmax": lambda x: F.softmax(x, 1)}, lambda: [new(full, rows, columns)]
    yield "layer_norm_16384x8192_bf16", {"F.layer_norm": lambda x, g, b: F.layer_norm(x, (8192,), g, b)}, lambda: [new(half, 16384, 8192), new(half, 8192), new(half, 8192)]
    yield "column_sum_16384x8192_bf16", {"sum": lambda x: x.sum(0)}, lambda: [new(half, 16384, 8192)]
    for n in (1024, 2048, 4096, 8192):
        yield f"gemm_{n}_bf16", {"mm": torch.mm}, lambda: [new(half, n, n), new(half, n, n)]
    yield "gemm_4096_f32", {"mm": torch.mm}, lambda: [new(full, 4096, 4096), new(full, 4096, 4096)]
    yield "bmm_64x1024_bf16", {"bmm": torch.bmm}, lambda: [new(half, 64, 1024, 1024), new(half, 64, 1024, 1024)]
    for m, n, k in ((1, 4096, 4096), (16, 11008, 4096), (128, 4096, 11008), (2048, 4096, 4096), (8192, 28672, 8192), (4096, 4096, 65536)):
        yield f"linear_{m}x{n}x{k}_bf16", {"F.linear": F.linear}, lambda: [new(half, m, k), new(half, n, k)]
    wide = lambda: [new(half, 8192, 4096), new(half, 16384, 4096)]
    yield "linear_gelu_8192x16384x4096_bf16", {"F.gelu(F.linear)": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh")}, lambda: [*wide(), new(half, 16384)]
    yield "linear_leaky_8192x16384x4096_bf16", {"F.leaky_relu(F.linear)": lambda x, w: F.leaky_relu(F.linear(x, w))}, wide
    yield "swiglu_8192x16384x4096_bf16", {"F.silu(F.linear) * F.linear": lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u)}, lambda: [*wide(), new(half, 16384, 4096)]


def moved(inputs, functions):
    """Bytes of the inputs and of the result, each once."""
    out = next(iter(functions.values()))(*inputs)
    return sum(t.numel() * t.element_size() for t in [*inputs, out])


def time_product(function, inputs):
    """Milliseconds as `kiln bench` takes them: launches in a graph, one replay ahead of the measured one."""
    # Here, since without PyTorch the rest of this file still runs.
    import timing

    play, times = timing.recorded(lambda: function(*inputs))
    samples = [timing.on_device(play, 1) / times for _ in range(15)]
    return statistics.median(samples)


def large(kiln, only, compile_peers):
    """Graphs over a gigabyte: time over the floor, which is the bytes moved once at the speed of a copy."""
    import re
    import torch
    from triton.testing import do_bench

    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    copy = 2 * x.numel() / (do_bench(lambda: y.copy_(x), return_mode="median") * 1e-3)
    del x, y
    lines = [f"Copy: {copy / 1e9:.0f} GB/s read plus written.", "", "| graph | floor ms | kiln ms | kiln / floor | peers ms | best peer / kiln | max abs err (fewer rows) |", "|---|---|---|---|---|---|---|"]
    figures = {"copy_gbps": copy / 1e9}
    for name, functions, make in peers():
        if only and name not in only:
            continue
        path = f"benches/graphs/{name}.kiln"
        result, problem = bench(kiln, path, "--seconds", "0.3")
        # Matmuls are checked on smaller shapes among the sample graphs.
        product = any(word in name for word in ("gemm", "bmm", "linear", "swiglu"))
        small = re.sub(r"\[(\d+),", lambda m: f"[{min(int(m.group(1)), 96)}," if not product else m.group(0), open(path).read())
        with tempfile.NamedTemporaryFile("w", suffix=".kiln", delete=False) as f:
            f.write(small)
        checked, wrong = bench(kiln, f.name, "--seconds", "0.01")
        inputs, times = make(), {}
        for label, function in functions.items():
            times[label] = time_product(function, inputs) if product else do_bench(lambda: function(*inputs), return_mode="median")
            if compile_peers:
                fast = torch.compile(function)
                times[label + " compile"] = do_bench(lambda: fast(*inputs), return_mode="median")
        compulsory = moved(inputs, functions)
        del inputs
        torch.cuda.empty_cache()
        figures[name] = {"kiln": result or problem, "peers_ms": times, "check": checked and checked["max_abs_err"] or wrong}
        if result is None:
            lines.append(f"| {name} | {problem} | | | | | |")
            continue
        floor = compulsory / copy * 1e3
        kiln_ms = sum(k["median_us"] for k in result["kernels"]) / 1e3
        shown = ", ".join(f"{k} {v:.3f}" for k, v in times.items())
        error_text = wrong or ("not checked" if checked["max_abs_err"] is None else f"{checked['max_abs_err']:.1e}")
        lines.append(f"| {name} | {floor:.4f} | {kiln_ms:.4f} | {kiln_ms / floor:.2f} | {shown} | {min(times.values()) / kiln_ms:.2f} | {error_text} |")
        print(lines[-1], flush=True)
    return lines, figures


def random_graphs(binary, seconds):
    """Random graphs against the float64 interpreter: as many as there is time for, on all cores, in a process each, since the
    driver compiles one module at a time in a process."""
    import re

    def start(scale, i):
        seeds = f"{i * 100_000}..{(i + 1) * 100_000}"
        command = [binary, "--device", "cuda:0", "--threads", "1", "--seeds", seeds, "--seconds", str(seconds), "--unfused", "5", "--shrink", "2", *scale]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    lines, figures = ["| random graphs | run | kernels | interpreted | failed |", "|---|---|---|---|---|"], {}
    for name, scale in (("small", []), ("large", ["--large"])):
        texts = [p.communicate()[0] for p in [start(scale, i) for i in range(max(1, os.cpu_count() - 2))]]
        totals = [re.search(r"(\d+) graphs .*?, (\d+) kernels, (\d+) of them", t) for t in texts]
        count, kernels, interpreted = (sum(int(m.group(i)) for m in totals if m) for i in (1, 2, 3))
        # A process that ends without totals lost the GPU.
        failed = [line for t in texts for line in t.splitlines() if line.startswith("seed ")]
        failed += [t[-300:] for t, m in zip(texts, totals) if not m]
        figures[name] = {"graphs": count, "kernels": kernels, "interpreted": interpreted, "failed": failed, "log": "".join(t for t in texts if "seed " in t)}
        lines.append(f"| {name} | {count} | {kernels} | {interpreted} | {len(failed)} |")
        lines += [f"| | {line[:160].replace('|', '/')} | | | |" for line in failed[:10]]
    print("\n".join(lines), flush=True)
    return lines, figures


def machine():
    code, out, _ = call("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    gpu = out.strip() if code == 0 else "no nvidia-smi"
    try:
        import torch

        version = torch.__version__
    except ImportError:
        version = "none"
    return f"{gpu}; torch {version}; {platform.machine()} {os.cpu_count()} cores; {datetime.date.today()}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kiln", default="dist/kiln")
    parser.add_argument("--out", default="benches/results")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--skip-models", action="store_true")
    parser.add_argument("--skip-graphs", action="store_true")
    parser.add_argument("--random", default="dist/kiln-random", help="the example `random`, if it is there")
    parser.add_argument("--random-seconds", type=int, default=8, help="for each of the two sizes of random graphs")
    parser.add_argument("--compile-peers", action="store_true", help="torch.compile the peers of the large graphs as well")
    args = parser.parse_args()

    lines = ["# Kiln on a CUDA machine", "", machine(), "", f"`{' '.join(sys.argv)}`", ""]
    lines += ["| sample graph | ops | kernels | fused ms | unfused ms | unfused / fused | max abs err | norm or rel err |", "|---|---|---|---|---|---|---|---|"]
    figures = {"machine": machine(), "graphs": {}, "models": {}}
    for name, r, problem in [] if args.skip_graphs else graphs(args.kiln, args.only):
        figures["graphs"][name] = r or problem
        if r is None:
            lines.append(f"| {name} | {problem} | | | | | | |")
            print(lines[-1], flush=True)
            continue
        f, u = r["fused"]["median_ms"], (r["unfused"] or {}).get("median_ms", float("nan"))
        lines.append(
            f"| {name} | {r['ops']} | {len(r['kernels'])} | {f:.4f} | {u:.4f} | {u / f:.2f} | {errors(r)} |"
        )
        print(lines[-1], flush=True)
    if args.random_seconds and os.path.exists(args.random):
        table, figures["random"] = random_graphs(args.random, args.random_seconds)
        lines += ["", *table]
    table, figures["large"] = large(args.kiln, args.only, args.compile_peers)
    lines += ["", *table]
    if not args.skip_models:
        lines += ["", "| model | kernels | fused ms | unfused ms | torch eager ms | torch / fused | err fused | err unfused | err torch | compile s |", "|---|---|---|---|---|---|---|---|---|---|"]
        with tempfile.TemporaryDirectory() as folder:
            for name, r, problem in models(args.kiln, args.only, folder):
                figures["models"][name] = r or problem
                if r is None or r.get("bench") is None:
                    lines.append(f"| {name} | {problem or r.get('problem')} | | | | | {r and r.get('fused')} | | | |")
                    continue
                b, show = r["bench"], lambda e: e if isinstance(e, str) else f"{e:.1e}"
                f, u, t = b["fused"]["median_ms"], b["unfused"]["median_ms"], r.get("torch_ms", float("nan"))
                lines.append(
                    f"| {name} | {len(b['kernels'])} | {f:.3f} | {u:.3f} | {t:.3f} | {t / f:.2f} | {show(r['fused'])} | {show(r['unfused'])} | {show(r.get('torch_err', float('nan')))} | {b['compile_s']:.2f} |"
                )
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "gpu-check.md"), "w") as f:
        f.write("\n".join(lines) + "\n")
    with open(os.path.join(args.out, "gpu-check.json"), "w") as f:
        json.dump(figures, f, indent=1, default=str)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
