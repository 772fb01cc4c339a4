#!/usr/bin/env python3
"""Attention through Kiln beside PyTorch, in one run on one GPU: SDPA with each of its kernels, Inductor, FlexAttention.

    python benches/attention.py [table] [scores] [few] [quantised] [random [N [SEED]]] [models] [--form sdpa|primitives|both] [--models NAME]...
                                [--peers all|sdpa|none] [--quick] [--json FILE] [--out FILE]         default: all these sections
    python benches/attention.py cpu                                                                 on two threads
    python benches/attention.py table scores few random --device cpu                                small sizes, to try the script

table:  sizes of models and corners, full and causal, through `scaled_dot_product_attention` and from primitives
scores: biases, masks, soft-cap, documents, beside FlexAttention and beside the plain kernel of as many keys
few:    1 to 16 queries over long keys: share of the speed of a copy; inputs rotate, so that no cache keeps the keys between calls
quantised: the same over keys and values in f8e4m3
random: N random attentions against float64, and whether two runs give the same bytes
models: whole models in bf16, and their errors
cpu:    16 to 4096 keys on the host, beside eager and torch.compile

Launches are recorded in CUDA graphs on all sides, except where a column says otherwise; reduce-overhead records its own. Samples are
interleaved; medians, on the host the fastest tenth. Ratios are the peer's time over Kiln's. FLOPs count pairs of queries and keys that the
mask allows. Tables are written row by row, so that what was measured is kept if a run is cut off.

An error is a row's largest over its largest element, against float64, and may be twice eager's and roundings; of a model, twice eager's.
Exit status 1: a result is wrong, or a random case was refused.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attention_cases as cases
import attention_models
import attention_random
import gpu
import kiln
import timing
import torch
from attention_bench import KERNELS, NAN, Bench, first_call, milliseconds, ratio, teraflops
from timing import Side
from torch.nn.attention import SDPBackend, sdpa_kernel

#: B, H, S, D and the mask.
SHAPES = [
    (4, 32, 4096, 128, "full"), (4, 32, 4096, 128, "causal"), (16, 16, 1024, 64, "causal"), (16, 16, 1024, 64, "full"),
    (1, 32, 16384, 128, "causal"), (2, 16, 8192, 64, "causal"), (8, 16, 2048, 96, "causal"), (8, 12, 1023, 64, "full"),
    (8, 12, 1023, 64, "causal"), (4, 8, 2048, 256, "causal"),
]  # fmt: skip
SCORED = [(4, 32, 4096, 128), (2, 16, 8192, 64)]
#: Bytes over which the inputs of `few` rotate: more than a GPU's caches hold.
ROTATED = 160 << 20
SECTIONS = ["table", "scores", "few", "quantised", "random", "models"]
#: Batch, width, heads of keys, keys.
FEW = [(b, d, h, n) for n in (4096, 16384, 131072) for h in (8, 32) for d in (64, 128) for b in (1, 8)]
QUANTISED = [(8, 128, 8, 16384), (8, 64, 8, 16384), (1, 128, 8, 131072), (8, 128, 8, 131072), (8, 128, 32, 4096)]


def table(bench: Bench, form: str) -> None:
    peers = ["SDPA", *KERNELS, "eager", "Inductor", "reduce-overhead"]
    columns = ["B x H x S x D", "form", "kernels", "kiln ms", "TFLOP/s", *(f"{p} ms" for p in peers), "best / kiln", "errors: kiln, eager"]
    bench.head("table", "Sizes, bf16", columns)
    for batch, heads, length, dim, which in SHAPES:
        batch, heads, length = bench.small(batch, heads, length)
        args = tuple(bench.new(batch, heads, length, dim) for _ in range(3))
        case = cases.PLAIN[which]
        flops = 4 * dim * case.pairs((batch * heads, length, length), (), bench.device)
        for name, module in cases.forms(which, form):
            bench.fresh()
            shape = f"{batch}x{heads}x{length}x{dim} {which}"
            compiled, kernels = bench.kiln(module, args)
            if compiled is None:
                bench.row([shape, name, kernels], shape=shape, form=name, problem=kernels)
                continue
            errors, figures = bench.checked(compiled, module, args)
            sides = {"kiln": Side(first_call(compiled, args)), **bench.through_sdpa(cases.Sdpa(case), args)}
            if name != "SDPA":
                sides["eager"] = Side(first_call(module, args))
            times, problems = bench.timed({**sides, **bench.inductor(module, args)})
            cells = [milliseconds(times, p) for p in peers]
            ours = [milliseconds(times, "kiln"), teraflops(flops, times.get("kiln", NAN))]
            row = [shape, name, kernels, *ours, *cells, ratio(times, peers), errors]
            bench.row(row, shape=shape, form=name, kernels=kernels, flops=flops, ms=times, problems=problems, **figures)


def scores(bench: Bench, form: str) -> None:
    peers = ["FlexAttention", "SDPA", "Inductor"]
    columns = ["B x H x S x D", "function", "form", "kernels", "kiln ms", "TFLOP/s", "time / plain kiln", *(f"{p} ms" for p in peers)]
    bench.head("scores", "Score functions, bf16", [*columns, "best / kiln", "FlexAttention / kiln", "errors: kiln, eager"])
    for batch, heads, length, dim in SCORED:
        batch, heads, length = bench.small(batch, heads, length)
        q, k, v = (bench.new(batch, heads, length, dim) for _ in range(3))
        plain = {which: bench.kiln(cases.Sdpa(case), (q, k, v))[0] for which, case in cases.PLAIN.items()}
        for case in cases.scores(length):
            with torch.device(bench.device):
                more = case.more(batch, heads, length, q.dtype)
            args = (q, k, v, *more)
            flops = 4 * dim * case.pairs((batch * heads, length, length), tuple(more), bench.device)
            both = [("primitives", cases.Primitives(case)), *([("SDPA", cases.Sdpa(case))] if case.cap is None else [])]
            for name, module in both:
                if form not in ("both", name.lower()):
                    continue
                bench.fresh()
                shape = f"{batch}x{heads}x{length}x{dim}"
                compiled, kernels = bench.kiln(module, args)
                if compiled is None:
                    bench.row([shape, case.name, name, kernels], shape=shape, function=case.name, form=name, problem=kernels)
                    continue
                errors, figures = bench.checked(compiled, module, args)
                sides = {"kiln": Side(first_call(compiled, args)), **bench.inductor(module, args, overhead=False)}
                if plain[case.plain] is not None:
                    sides["plain"] = Side(first_call(plain[case.plain], (q, k, v)))
                if case.cap is None and bench.peers != "none":
                    sides["SDPA"] = Side(first_call(cases.Sdpa(case), args))
                problem = {}
                if bench.device == "cuda" and bench.peers == "all":
                    try:
                        sides["FlexAttention"] = Side(cases.flex(case, args))
                    except Exception as e:  # What FlexAttention refuses is told beside the row.
                        problem = {"FlexAttention": timing.first_line(e)}
                times, problems = bench.timed(sides)
                over = f"{times['kiln'] / times['plain']:.2f} of {case.plain}" if {"kiln", "plain"} <= times.keys() else "-"
                ours = [milliseconds(times, "kiln"), teraflops(flops, times.get("kiln", NAN)), over]
                theirs = [milliseconds(times, p) for p in peers]
                row = [shape, case.name, name, kernels, *ours, *theirs, ratio(times, peers), ratio(times, peers[:1]), errors]
                found = {"kernels": kernels, "flops": flops, "ms": times, "problems": {**problem, **problems}, **figures}
                bench.row(row, shape=shape, function=case.name, form=name, **found)


def in_turn(function: Callable[..., Any], sets: list[tuple[Any, ...]], kernel: SDPBackend | None = None) -> Callable[[], Any]:
    """Calls with each of the inputs."""

    def run() -> None:
        with sdpa_kernel(kernel) if kernel is not None else contextlib.nullcontext():
            for args in sets:
                function(*args)

    return run


def few(bench: Bench, sizes: list[tuple[int, int, int, int]], module: cases.Sdpa, stored: torch.dtype) -> None:
    peers = ["SDPA", *KERNELS, "Inductor"]
    columns = ["queries", "heads / of keys", "D", "keys", "batch", "kernels", "kiln us", "copy GB/s", "kiln / copy speed"]
    title = f"Few queries, bf16, keys and values {stored}".replace("torch.", "")
    bench.head("few", title, [*columns, *(f"{p} us" for p in peers), "best / kiln", "errors: kiln, eager"])
    for batch, dim, of_keys, length in sizes:
        batch, length = bench.small(batch, 8, length)[0], bench.small(1, 1, length)[2]
        bytes_read = 2 * batch * of_keys * length * dim * stored.itemsize
        count = max(1, min(16, -(-ROTATED // bytes_read))) if bench.device == "cuda" else 2
        kept = [tuple(bench.new(batch, of_keys, length, dim).to(stored) for _ in range(2)) for _ in range(count)]
        for queries in (1, 4, 16):
            bench.fresh()
            few_row(bench, queries, 32 // of_keys, kept, bytes_read, peers, module)
        del kept


def few_row(
    bench: Bench, queries: int, groups: int, kept: list[cases.Tensors], bytes_read: int, peers: list[str], module: cases.Sdpa
) -> None:
    """A function of its own, so that nothing of a row takes memory in the next."""
    batch, of_keys, length, dim = kept[0][0].shape
    sets = [(bench.new(batch, of_keys * groups, queries, dim), *kv) for kv in kept]
    name = [queries, f"{of_keys * groups}/{of_keys}", dim, length, batch]
    found = dict(zip(("queries", "heads", "dim", "keys", "batch"), name, strict=True))
    compiled, kernels = bench.kiln(module, sets[0])
    if compiled is None:
        bench.row([*name, kernels], **found, problem=kernels)
        return
    errors, figures = bench.checked(compiled, module, sets[0])
    sides = {"kiln": Side(in_turn(compiled, sets))}
    if bench.peers != "none":
        sides["SDPA"] = Side(in_turn(module, sets))
    if bench.peers != "none" and bench.device == "cuda":
        sides |= {n: Side(in_turn(module, sets, kernel)) for n, kernel in KERNELS.items()}
    if bench.peers == "all":
        sides["Inductor"] = Side(in_turn(torch.compile(module, dynamic=False), sets))
    blocks = [tuple(torch.empty(bytes_read, dtype=torch.uint8, device=bench.device) for _ in range(2)) for _ in sets]
    # A kernel: `copy_` is a copy of the driver's in a CUDA graph, which is slower for large blocks.
    sides["copy"] = Side(in_turn(lambda a, b: torch.neg(a, out=b), blocks))
    times, problems = bench.timed(sides)
    us = {side: ms * 1e3 / len(sets) for side, ms in times.items()}
    # A copy reads and writes.
    speed = 2 * bytes_read / us.get("copy", NAN) / 1e3
    share = bytes_read / us.get("kiln", NAN) / 1e3 / speed
    shown = [f"{us[p]:.2f}" if p in us else "-" for p in ["kiln", *peers]]
    row = [*name, kernels, shown[0], f"{speed:.0f}", f"{share:.2f}", *shown[1:], ratio(us, peers), errors]
    bench.row(row, **found, kernels=kernels, us=us, copy_gbps=speed, share=share, problems=problems, **figures)


def models(bench: Bench, only: list[str]) -> None:
    import copy

    peers = ["eager", "eager in a graph", "Inductor", "reduce-overhead"]
    columns = ["model", "kernels", "kiln ms", *(f"{p} ms" for p in peers), "best / kiln", "errors in the 2-norm: kiln, eager"]
    bench.head("models", "Models, bf16; calls, not recorded but where it is said", columns)
    for name, build in attention_models.library(bench.device).items():
        if only and not any(o.lower() in name.lower() for o in only):
            continue
        bench.fresh()
        torch.manual_seed(0)
        with torch.device(bench.device):
            module, args = build()
        module = module.to(torch.bfloat16).eval()
        args = tuple(a.to(torch.bfloat16) if a.is_floating_point() else a for a in args)
        compiled, kernels = bench.kiln(module, args)
        if compiled is None:
            bench.row([name, kernels], model=name, problem=kernels)
            continue
        exact = copy.deepcopy(module).double()
        want = gpu.flat(exact(*(a.double() if a.is_floating_point() else a for a in args)))[0]
        del exact
        ours, eager = (gpu.error(gpu.flat(run(*args))[0], want) for run in (compiled, module))
        del want
        wrong = not ours <= 2 * eager
        bench.wrong += wrong
        call = first_call(module, args)
        sides = {"kiln": Side(first_call(compiled, args), recorded=False)}
        if bench.peers != "none":
            sides["eager"] = Side(call, recorded=False)
        if bench.peers != "none" and bench.device == "cuda":
            sides["eager in a graph"] = Side(call)
        sides |= {n: Side(side.call, recorded=False) for n, side in bench.inductor(module, args).items()}
        times, problems = bench.timed(sides)
        cells = [milliseconds(times, p) for p in ["kiln", *peers]]
        row = [name, kernels, *cells, ratio(times, peers), f"{'**wrong** ' * wrong}{ours:.1e}, {eager:.1e}"]
        bench.row(row, model=name, kernels=kernels, ms=times, problems=problems, error=ours, eager_error=eager)


def randomly(bench: Bench, count: int, seed: int) -> None:
    columns = ["case", "B x H / H of keys x queries:keys x D", "kernels", "kiln ms", "SDPA ms", "SDPA / kiln"]
    bench.head("random", f"{count} random attentions, seed {seed}", [*columns, "errors: kiln, eager", "verdict"])
    wrong, ratios = 0, []
    for number in range(count):
        drawn = attention_random.draw(random.Random(seed * 100_003 + number), bench.device)
        bench.fresh()
        args = drawn.inputs(bench.device, seed * 100_003 + number)
        module = drawn.module()
        compiled, kernels = bench.kiln(module, args)
        if compiled is None:
            wrong += 1
            bench.row([number, drawn, kernels, "", "", "", "", "**refused**"], case=number, drawn=str(drawn), problem=kernels)
            continue
        want, either = attention_random.exact(drawn, args)
        got, again, theirs = compiled(*args).clone(), compiled(*args), module(*args)
        same = torch.equal(got.view(torch.uint8), again.view(torch.uint8))
        agreed = lambda x: torch.where(either & x.isnan(), want, x.double())  # noqa: B023,E731
        ours = cases.worst(agreed(got), want)
        # Rows in which eager itself is another NaN or infinity say nothing of its rounding, nor do rows without a key, in which SDPA's
        # kernels differ among themselves.
        finite = (theirs.isfinite() & want.isfinite()).all(-1, keepdim=True) & want.any(-1, keepdim=True)
        eager = cases.worst(torch.where(finite, theirs.double(), 0), torch.where(finite, want, 0))
        if drawn.special:
            # What eager rounds shows where no NaN or infinity spreads.
            clean = tuple(t.nan_to_num(0, 0, 0) if t.is_floating_point() else t for t in args)
            plain = attention_random.exact(drawn, clean)[0]
            some = plain.any(-1, keepdim=True)
            eager = max(eager, cases.worst(torch.where(some, module(*clean).double(), 0), torch.where(some, plain, 0)))
        right = ours <= cases.allowed_error(eager, args)
        wrong += not (right and same)
        verdict = "right" if right and same else "**wrong**" if same else "**two runs differ**"
        times, problems = bench.timed({"kiln": Side(first_call(compiled, args)), "SDPA": Side(first_call(module, args))})
        if times.keys() >= {"kiln", "SDPA"}:
            ratios.append(times["SDPA"] / times["kiln"])
        cells = [kernels, milliseconds(times, "kiln"), milliseconds(times, "SDPA"), ratio(times, ["SDPA"]).removesuffix(" SDPA")]
        found = {"kernels": kernels, "ms": times, "problems": problems, "error": ours, "eager_error": eager, "same_bytes": same}
        bench.row([number, drawn, *cells, f"{ours:.1e}, {eager:.1e}", verdict], case=number, drawn=str(drawn), **found)
    bench.wrong += wrong
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else NAN
    least = min(ratios, default=NAN)
    slower = sum(r < 1 for r in ratios)
    bench.say(f"\n{count} cases of seed {seed}, {wrong} wrong.")
    bench.say(f"SDPA / kiln: geometric mean {mean:.2f}, least {least:.2f}, below 1 in {slower}.")


def on_host(bench: Bench) -> None:
    torch.set_num_threads(2)
    columns = ["B x H x S x D", "type", "form", "kernels", "kiln ms", "eager ms", "torch.compile ms", "eager / kiln"]
    bench.head("cpu", "CPU, two threads", [*columns, "torch.compile / kiln", "errors: kiln, eager"])
    for length in (16, 64, 256, 1024, 4096):
        batch, heads, dim = 1, 12, 64
        for letters in ("f32", "bf16"):
            args = tuple(bench.new(batch, heads, length, dim, dtype=attention_random.TYPES[letters]) for _ in range(3))
            for which in ("full", "causal"):
                for form, module in cases.forms(which, "both"):
                    if form == "where(tril)":
                        continue
                    bench.fresh()
                    name = [f"{batch}x{heads}x{length}x{dim} {which}", letters, form]
                    found = dict(zip(("shape", "dtype", "form"), name, strict=True))
                    compiled, kernels = bench.kiln(module, args)
                    if compiled is None:
                        bench.row([*name, kernels], **found, problem=kernels)
                        continue
                    errors, figures = bench.checked(compiled, module, args)
                    sides = {"kiln": Side(first_call(compiled, args)), "eager": Side(first_call(module, args))}
                    sides |= bench.inductor(module, args)
                    times, problems = bench.timed(sides)
                    against = [ratio(times, [p]).partition(" ")[0] for p in ("eager", "Inductor")]
                    cells = [milliseconds(times, p) for p in ("kiln", "eager", "Inductor")]
                    bench.row([*name, kernels, *cells, *against, errors], **found, ms=times, problems=problems, **figures)


def sections(words: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], int, int]:
    """The sections, and of `random` the cases and the seed."""
    numbers = [w for w in words if w.isdigit()]
    names = [w for w in words if not w.isdigit()]
    unknown = [w for w in names if w not in (*SECTIONS, "cpu")]
    if unknown or len(numbers) > 2 or (numbers and "random" not in names):
        parser.error(f"sections are {', '.join(SECTIONS)} and cpu; two numbers, cases and seed, may follow random")
    count, seed = [int(n) for n in numbers] + [50, 0][len(numbers) :]
    return names or SECTIONS, count, seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    parser.add_argument("--form", choices=["sdpa", "primitives", "both"], default="both")
    parser.add_argument("--models", action="append", default=[], metavar="NAME", help="part of a model's name; several; default: all")
    parser.add_argument("--peers", choices=["all", "sdpa", "none"], default="all", help="sdpa: without what torch.compile makes")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help="the tables as Markdown")
    args = parser.parse_args()
    names, count, seed = sections(args.sections, parser)
    device = "cpu" if names == ["cpu"] else args.device
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device: use --device cpu to try the script, or the section cpu")
    torch.manual_seed(0)
    machine = gpu.machine() if device == "cuda" else f"CPU: {timing.host()}; torch {torch.__version__}; {datetime.date.today()}"

    def save(bench: Bench) -> None:
        if args.out:
            args.out.write_text("\n".join(bench.lines) + "\n")
        if args.json:
            found = {"machine": machine, "command": sys.argv, "wrong": bench.wrong, "rows": bench.rows}
            args.json.write_text(json.dumps(found, indent=1, default=str))

    bench = Bench(device, (5 if args.quick else 15) * (1 if device == "cuda" else 2), args.peers, save)
    bench.say("# Attention beside PyTorch\n")
    bench.say(f"{machine}; kiln {kiln.__version__}; `python benches/attention.py {' '.join(sys.argv[1:])}`")
    run = {
        "table": lambda: table(bench, args.form), "scores": lambda: scores(bench, args.form), "few": lambda: few(bench, FEW, cases.Sdpa(cases.PLAIN["full"]), torch.bfloat16),
        "quantised": lambda: few(bench, QUANTISED, cases.Quantised(), torch.float8_e4m3fn),
        "models": lambda: models(bench, args.models), "random": lambda: randomly(bench, count, seed), "cpu": lambda: on_host(bench),
    }  # fmt: skip
    with torch.no_grad():
        for name in names:
            run[name]()
            bench.end()
    if bench.wrong:
        bench.say(f"\n{bench.wrong} results are wrong.")
    save(bench)
    return 1 if bench.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
