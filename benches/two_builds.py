#!/usr/bin/env python3
"""Compares two builds of Kiln on graphs whose plans they disagree about.

    python3 benches/two_builds.py OLD NEW [--seed 5930] [--cases 120] [--computed] [--json F]

OLD and NEW are `kiln` commands. Draws gated layers, projections of one input and attention written as matmuls, in
bf16, f16 and f32; with `--computed` matmuls of few rows whose operands are computed before. Plans each with both commands for sm_90a and, where kernels or schedules differ, times both in turn
on the first GPU: the least of three medians each. Prints microseconds, the old build's time over the new one's, and
the same as predicted. Where there is no GPU it names the graphs that differ.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import tempfile
from pathlib import Path

KINDS = ["gated", "gated", "qkv", "grouped", "two", "attention"]


def linear(lines: list[str], dtype: str, shape: tuple[int, int], weight: str, to: str) -> None:
    """Adds a matmul of %x with a weight of this shape."""
    lines.insert(0, f"@{weight}: {dtype}[{shape[0]},{shape[1]}] = fill(0.01)")
    lines.append(f"%{to} = linear %x, @{weight}")


def draw(r: random.Random, number: int) -> tuple[str, str]:
    """A graph with its name."""
    kind, dtype = r.choice(KINDS), r.choice(["f32", "f32", "bf16", "f16"])
    if kind == "attention":
        batch, heads = r.choice([1, 2, 8]), r.choice([1, 4, 8, 12])
        queries = r.choice([16, 64, 100, 128, 256, 512, 1024])
        keys, depth = r.choice([queries, 64, 128, 2048]), r.choice([32, 64, 80, 128])
        q, k = f"{dtype}[{batch},{heads},{queries},{depth}]", f"{dtype}[{batch},{heads},{keys},{depth}]"
        body = (
            "%t = permute %k perm=[0,1,3,2]\n %d = dot %q, %t\n %s = mul %d, 0.125\n"
            " %p = softmax %s axis=3\n %y = dot %p, %v\n return %y"
        )
        return f"attention_{number}_{dtype}_{queries}x{keys}", f"graph g(%q: {q}, %k: {k}, %v: {k}) {{\n {body}\n}}\n"
    rows = r.choice([1, 2, 4, 7, 16, 33, 64, 100, 128, 256, 512, 1000, 2048])
    width = r.choice([256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096])
    inner = r.choice([512, 768, 1024, 1408, 2048, 2816, 4096, 5504, 8192, 11008])
    lines: list[str] = []
    if kind in ("gated", "two"):
        linear(lines, dtype, (inner, width), "a", "a")
        linear(lines, dtype, (inner, width), "b", "b")
        lines += [f"%s = {r.choice(['silu', 'gelu_tanh', 'tanh'])} %a", "%y = mul %s, %b", "return %y"]
        if kind == "gated":
            lines.insert(0, f"@c: {dtype}[{width},{inner}] = fill(0.01)")
            lines[-1:] = ["%z = linear %y, @c", "return %z"]
    else:
        few = width if kind == "qkv" else max(width // 4, 64)
        for name, columns in (("q", width), ("k", few), ("v", few)):
            linear(lines, dtype, (columns, width), name, name)
        lines += ["%e = exp %k", "return %q, %e, %v"]
    name = f"{kind}_{number}_{dtype}_{rows}x{width}x{inner}"
    return name, f"graph g(%x: {dtype}[{rows},{width}]) {{\n " + "\n ".join(lines) + "\n}\n"


def computed(r: random.Random, number: int) -> tuple[str, str]:
    """A matmul of few rows whose operands are computed: a weight that is dequantised, a gated row, or both."""
    kind, dtype = r.choice(["weight", "weight", "groups", "row", "both"]), r.choice(["f32", "bf16", "f16"])
    rows, op = r.choice([1, 1, 2, 3, 4, 8, 12, 16]), r.choice(["linear", "linear", "dot"])
    n, k = (r.choice([64, 256, 512, 768, 1024, 2048, 4096, 8192, 11008]) for _ in range(2))
    shape = (k, n) if op == "dot" else (n, k)
    matrix, row = f"{shape[0]},{shape[1]}", f"{rows},{k}"
    inputs, lines, x, w = [], [], "%x", "%w"
    if kind in ("weight", "both"):
        inputs += [f"%q: i8[{matrix}]", f"%t: {dtype}[{r.choice([f'{shape[0]},1', f'{shape[1]}'])}]"]
        lines += [f"%c = cast %q to={dtype}", "%w = mul %c, %t"]
    elif kind == "groups":
        groups = f"{shape[0]},{shape[1] // 64},64"
        inputs += [f"%q: i8[{matrix}]", f"%t: {dtype}[{shape[0]},{shape[1] // 64},1]"]
        lines += [f"%c = cast %q to={dtype}", f"%g = reshape %c shape=[{groups}]", "%m = mul %g, %t"]
        lines += [f"%w = reshape %m shape=[{matrix}]"]
    else:
        inputs += [f"%w: {dtype}[{matrix}]"]
    inputs += [f"%x: {dtype}[{row}]"]
    if kind in ("row", "both"):
        inputs += [f"%z: {dtype}[{row}]"]
        lines += [f"%s = {r.choice(['silu', 'gelu_tanh', 'relu'])} %x", "%h = mul %s, %z"]
        x = "%h"
    lines += [f"%y = {op} {x}, {w}", "return %y"]
    name = f"{kind}_{number}_{dtype}_{op}_{rows}x{n}x{k}"
    return name, f"graph g({', '.join(inputs)}) {{\n " + "\n ".join(lines) + "\n}\n"


def kernels(command: str, graph: Path) -> list[str]:
    """Kernels of a plan with their schedules."""
    plan = subprocess.run(
        [command, "print", graph, "--stage", "plan", "--target", "sm_90a"], capture_output=True, text=True, check=True
    )
    return [line for line in plan.stdout.splitlines() if line.startswith(("  kernel", "    schedule"))]


def timed(command: str, graph: Path, report: Path) -> tuple[float, float]:
    """Median and predicted microseconds."""
    subprocess.run(
        [command, "bench", graph, "--device", "cuda:0", "--seconds", "0.6", "--json", report],
        capture_output=True,
        check=True,
    )
    found = json.loads(report.read_text())
    return found["fused"]["median_ms"] * 1e3, sum(k["predicted_us"] or 0 for k in found["kernels"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--seed", type=int, default=5930)
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--computed", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["KILN_CACHE"] = "off"
    r = random.Random(args.seed)
    has_gpu = Path("/dev/nvidia0").exists()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.cases):
            name, text = computed(r, number) if args.computed else draw(r, number)
            graph = Path(folder) / "graph.kiln"
            graph.write_text(text)
            if kernels(args.old, graph) == kernels(args.new, graph):
                continue
            if not has_gpu:
                print(name, flush=True)
                continue
            both = [[timed(c, graph, graph.with_suffix(".json")) for c in (args.old, args.new)] for _ in range(3)]
            old, new = (min(pair[i] for pair in both) for i in (0, 1))
            rows.append({"graph": name, "old": old[0], "new": new[0], "predicted": old[1] / new[1]})
            print(f"{name:44} {old[0]:9.2f} {new[0]:9.2f} {old[0] / new[0]:6.3f} {old[1] / new[1]:6.3f}", flush=True)
    ratios = [row["old"] / row["new"] for row in rows]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(rows)} of {args.cases} differ: {mean:.3f} in the geometric mean, {min(ratios):.3f} the least")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
