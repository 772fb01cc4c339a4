"""Blocks of Llama on several GPUs: eager, Inductor and Kiln in one run, under torchrun.

    torchrun --standalone --nproc-per-node=2 benches/distributed.py [--tokens 1 512 4096] [--sequence-parallel] [--cuda-graph]

Heads and hidden units are sharded by `parallelize_module`; with --sequence-parallel the norms and residuals are sharded along the sequence
as well, so that all-gathers and reduce-scatters take the place of all-reduces. Every round times each of the three for as many calls as fill
it; a call counts as long as in the slowest process. The figures are medians of the rounds, and the error is against eager. Process 0 prints
the table. `--device cpu` runs small shapes on gloo, to try the script where there is no GPU.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from kiln import pieces

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python/tests"))
import llama

#: Seconds of a round of one of the three.
ROUND = 0.05


class Blocks(nn.Module):
    def __init__(self, n, *sizes):
        super().__init__()
        self.blocks = nn.ModuleList(llama.Block(*sizes) for _ in range(n))

    def forward(self, x, cos, sin):
        for block in self.blocks:
            x = block(x, cos, sin)
        return x


def sharded(model, mesh, sequence):
    """The model with the weights of this process."""
    for block in model.blocks:
        parallelize_module(block, mesh, llama.plan(sequence))
    return model


def captured(run, x):
    """`run` as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run(*x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(*x)

    def replay(*_):
        graph.replay()
        return result

    return replay


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(run, x, device, calls):
    """Of one call, in the slowest process."""
    dist.barrier()
    wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        run(*x)
    wait(device)
    took = torch.tensor((time.perf_counter() - start) / calls, device=device, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def local(t):
    return t.to_local() if isinstance(t, DTensor) else t


def measure(args, model, tokens, device, dtype):
    """A row for each of the three."""
    each = args.width // args.heads
    angles = torch.arange(tokens, device=device)[:, None] * 1e4 ** -(torch.arange(each // 2, device=device) * 2 / each)
    angles = torch.cat([angles, angles], -1)
    torch.manual_seed(tokens)
    x = torch.randn(args.batch, tokens, args.width, device=device, dtype=dtype)
    if args.sequence_parallel:
        x = x.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()
    x = (x, angles.cos().to(dtype), angles.sin().to(dtype))
    runs, told = {"eager": model}, {}
    for name in args.against:
        torch._dynamo.reset()
        dist.barrier()
        start = time.perf_counter()
        runs[name] = torch.compile(model, backend=name, fullgraph=True, dynamic=False)
        with pieces.collecting() as found:
            got, want = local(runs[name](*x)), local(model(*x))
        wait(device)
        off = ((got - want).float().norm() / want.float().norm()).item()
        told[name] = {"first_call_s": time.perf_counter() - start, "error": off}
        if name == "kiln":
            states = [p.reason or p.state for p in found]
            assert states == ["compiled"], f"Kiln did not compile the model: {states}"
    if args.cuda_graph:
        runs = {name: captured(run, x) for name, run in runs.items()}
    calls = {}
    for name, run in runs.items():
        seconds(run, x, device, 3)
        calls[name] = max(1, round(ROUND / seconds(run, x, device, 3)))
    rounds = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            rounds[name].append(seconds(run, x, device, calls[name]))
    rows = []
    for name, took in rounds.items():
        ms = statistics.median(took) * 1e3
        deciles = statistics.quantiles(took, n=10) if len(took) > 1 else [took[0]] * 9
        of = {"tokens": tokens, "by": name, "ms": ms, "p10": deciles[0] * 1e3, "p90": deciles[-1] * 1e3}
        rows.append(of | {"tokens_per_ms": args.batch * tokens / ms} | told.get(name, {}))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 128, 2048])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=4096, help="that of Llama 3 8B, as are the next three")
    parser.add_argument("--hidden", type=int, default=14336)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--shared", type=int, default=8, help="heads of keys and values")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--cuda-graph", action="store_true", help="each of the three in a CUDA graph")
    parser.add_argument("--against", nargs="+", default=["inductor", "kiln"], choices=["inductor", "kiln"])
    parser.add_argument("--json", help="a file for the rows")
    args = parser.parse_args()
    device = torch.device(args.device, int(os.environ["LOCAL_RANK"]) if args.device == "cuda" else 0)
    if args.device == "cuda":
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    n, dtype = dist.get_world_size(), getattr(torch, args.dtype)
    mesh = init_device_mesh(args.device, (n,))
    torch.manual_seed(0)
    with torch.device(device):
        model = Blocks(args.layers, args.width, args.heads, args.shared, args.hidden).to(dtype)
    model = sharded(model, mesh, args.sequence_parallel)
    rows = []
    with torch.no_grad():
        for tokens in args.tokens:
            if args.sequence_parallel and tokens % n:
                continue
            rows += measure(args, model, tokens, device, dtype)
    if dist.get_rank() == 0:
        name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
        print(f"{args.layers} blocks, width {args.width}, {args.dtype}, {n} x {name}, torch {torch.__version__}")
        print(f"{'tokens':>7}  {'by':<9}{'ms':>9}{'p10':>9}{'p90':>9}{'tokens/ms':>11}{'of eager':>10}{'error':>10}{'first s':>9}")
        eager = {r["tokens"]: r["ms"] for r in rows if r["by"] == "eager"}
        for r in rows:
            error, first = (f"{r[k]:.1e}" if k == "error" and k in r else f"{r.get(k, 0):.1f}" for k in ("error", "first_call_s"))
            if r["by"] == "eager":
                error = first = "-"
            print(
                f"{r['tokens']:>7}  {r['by']:<9}{r['ms']:>9.3f}{r['p10']:>9.3f}{r['p90']:>9.3f}{r['tokens_per_ms']:>11.1f}"
                f"{eager[r['tokens']] / r['ms']:>9.2f}x{error:>10}{first:>9}"
            )
        if args.json:
            with open(args.json, "w") as f:
                json.dump(rows, f, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
