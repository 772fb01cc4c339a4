"""Convolutions drawn at random, half of them transposed, through `kiln.compile` beside PyTorch: times and errors.

    python3 benches/drawn_convs.py [--seed N] [--cases N] [--transposed] [--inductor] [--seconds S] [--json F] [--named]

One to three axes, strides 1 to 4, windows 1 to 7, 3 to 512 channels, groups, f32 (tf32 by PyTorch's defaults) and halves, batch 1 to 128, inputs and
results of up to 2 GB. Peers: eager, eager in a CUDA graph, and with --inductor torch.compile. A result is right if its error from
float64 (on a part of the images) is at most twice eager's and what rounding allows. --named: shapes of KernelBench.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time

import torch
from timing import Side, measure

import kiln

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Bytes of a tensor; FMAs.
BYTES, WORK = 1 << 31, 1 << 41
#: Relative rounding of an operand.
TERM = {"f32": 2.0**-11, "bf16": 2.0**-9, "f16": 2.0**-11}


class Conv(torch.nn.Module):
    """A convolution, ordinary or transposed, and an activation."""

    def __init__(self, case: dict) -> None:
        super().__init__()
        kind = ("ConvTranspose" if case["transposed"] else "Conv") + f"{len(case['size'])}d"
        more = {"output_padding": case["output_padding"]} if case["transposed"] else {}
        self.conv = getattr(torch.nn, kind)(
            case["cin"], case["cout"], case["window"], stride=case["stride"], padding=case["padding"],
            dilation=case["dilation"], groups=case["groups"], bias=case["bias"], **more,
        )
        self.after = case["after"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return {"none": lambda v: v, "relu": torch.relu, "tanh": torch.tanh, "mish": torch.nn.functional.mish}[self.after](y)


def draw(rng: random.Random, transposed: bool) -> dict:
    while True:
        axes = rng.choice([1, 2, 2, 2, 3])
        groups = rng.choice([1, 1, 1, 1, 2, 4])
        of = lambda choices: [rng.choice(choices) for _ in range(axes)] if rng.random() < 0.25 else [rng.choice(choices)] * axes
        case = {
            "transposed": transposed, "dtype": rng.choice(["f32", "f32", "bf16", "f16"]), "groups": groups,
            "batch": rng.choice([1, 2, 4, 8, 16, 32, 64, 128]),
            "cin": groups * rng.choice([3, 8, 16, 32, 48, 64, 96, 128, 256, 512]),
            "cout": groups * rng.choice([3, 8, 16, 32, 48, 64, 96, 128, 256, 512]),
            "size": of({1: [64, 500, 4096, 32768], 2: [7, 14, 28, 56, 64, 112, 224, 256], 3: [8, 16, 20, 32, 64]}[axes]),
            "window": of([1, 2, 3, 3, 3, 4, 5, 7]), "stride": of([1, 1, 2, 2, 3, 4]), "dilation": of([1, 1, 1, 1, 2]),
            "bias": rng.random() < 0.5, "after": rng.choice(["none", "relu", "tanh", "mish"]),
        }
        if max(case["cin"], case["cout"]) > 1024:
            continue
        case["padding"] = [rng.choice([0, d * (k - 1) // 2]) for k, d in zip(case["window"], case["dilation"])]
        case["output_padding"] = [rng.choice([0, s - 1]) for s in case["stride"]] if transposed else None
        if fits(case):
            return case


def result(case: dict) -> list[int]:
    steps = zip(case["size"], case["window"], case["stride"], case["dilation"], case["padding"], case["output_padding"] or case["stride"])
    if case["transposed"]:
        return [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, d, p, o in steps]
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, d, p, _ in steps]


def fits(case: dict) -> bool:
    out = result(case)
    if min(out) < 1 or (not case["transposed"] and any(n + 2 * p < d * (k - 1) + 1 for n, k, d, p in
                                                      zip(case["size"], case["window"], case["dilation"], case["padding"]))):
        return False
    size = TYPES[case["dtype"]].itemsize
    read = case["batch"] * case["cin"] * math.prod(case["size"])
    written = case["batch"] * case["cout"] * math.prod(out)
    points = read if case["transposed"] else written
    channels = case["cout" if case["transposed"] else "cin"] // case["groups"]
    work = points * channels * math.prod(case["window"])
    return max(read, written) * size <= BYTES and (1 << 24) <= work <= WORK


def named() -> list[dict]:
    def case(cin, cout, batch, size, window, stride=1, padding=0, transposed=True, after="none", **more):
        axes = len(size)
        full = lambda v: list(v) if isinstance(v, (list, tuple)) else [v] * axes
        return {"transposed": transposed, "dtype": "f32", "groups": more.get("groups", 1), "batch": batch, "cin": cin, "cout": cout,
                "size": list(size), "window": full(window), "stride": full(stride), "dilation": full(more.get("dilation", 1)),
                "padding": full(padding), "output_padding": full(more.get("output_padding", 0)) if transposed else None,
                "bias": more.get("bias", False), "after": after}
    return [
        case(64, 64, 32, [256, 256], 4, 2, after="tanh"),
        case(32, 32, 8, [512, 1024], 3),
        case(32, 64, 16, [32, 64, 64], 3, 2, 1),
        case(48, 48, 8, [64, 64, 64], 3),
        case(64, 128, 16, [65536], 5, padding=2),
        case(64, 128, 8, [128, 128], 3, [2, 3], [1, 0], groups=4),
        case(3, 16, 16, [64, 64, 64], 3, after="mish", transposed=False),
        case(64, 128, 16, [1024, 1024], 1, transposed=False),
        case(64, 128, 16, [524280], 3, 3, transposed=False, dilation=4),
        case(16, 128, 16, [1024, 1024], 3, transposed=False),
    ]


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--cases", type=int, default=60)
    p.add_argument("--transposed", action="store_true")
    p.add_argument("--inductor", action="store_true")
    p.add_argument("--named", action="store_true")
    p.add_argument("--check", action="store_true", help="compile and check only")
    p.add_argument("--device", default="cuda")
    p.add_argument("--seconds", type=float, default=540)
    p.add_argument("--json")
    a = p.parse_args()
    rng, start = random.Random(a.seed), time.time()
    cases = named() if a.named else [draw(rng, a.transposed or n % 2 == 0) for n in range(a.cases)]
    rows = []
    for n, case in enumerate(cases):
        if time.time() - start > a.seconds:
            print(f"out of time before case {n}")
            break
        torch.manual_seed(n)
        dtype = TYPES[case["dtype"]]
        model = Conv(case).to(a.device, dtype).eval()
        x = torch.randn(case["batch"], case["cin"], *case["size"], device=a.device, dtype=dtype)
        row = dict(case, n=n)
        rows.append(row)
        text = " ".join(f"{k}={v}" for k, v in case.items() if k not in ("dtype", "transposed"))
        head = f"{n:3} {'T' if case['transposed'] else ' '} {case['dtype']:4} {text}"
        try:
            with torch.no_grad():
                eager = model(x)
                part = min(case["batch"], max(1, (1 << 24) // max(1, eager[0].numel())))
                small = Conv(case).to(a.device, torch.float64).eval()
                small.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
                want = small(x[:part].double())
                begin = time.time()
                fast = kiln.compile(model, (x,))
                row["compile_s"] = time.time() - begin
                got = fast(x)
                errors = [error(got[:part], want), error(eager[:part], want)]
                rest = ((got.float() - eager.float()).norm() / eager.float().norm()).item()
                row["error"], row["eager_error"] = errors
                row["right"] = errors[0] <= max(2 * errors[1], 2 * TERM[case["dtype"]]) and rest <= 4 * TERM[case["dtype"]]
                row["kernels"] = [(k["name"], k["predicted_us"]) for k in json.loads(fast.explain().to_json())["kernels"]]
                del want, small, got, eager
                if a.check:
                    print(f"{'right' if row['right'] else 'WRONG'} {errors[0]:.1e} ({errors[1]:.1e}) compile {row['compile_s']:.1f} s {head}", flush=True)
                    continue
                sides = {"kiln": Side(lambda: fast(x)), "eager": Side(lambda: model(x), recorded=False), "graph": Side(lambda: model(x))}
                if a.inductor:
                    torch._dynamo.reset()
                    other = torch.compile(model)
                    other(x)
                    sides["inductor"] = Side(lambda: other(x))
                times, why = measure(sides, a.device, 5)
            row.update(times=times, why=why)
            best = min(v for k, v in times.items() if k != "kiln")
            row["ratio"] = best / times["kiln"]
            said = " ".join(f"{k} {v:.3f}" for k, v in times.items())
            predicted = sum(k[1] or 0 for k in row["kernels"]) / 1e3
            print(f"{row['ratio']:5.2f} {'right' if row['right'] else 'WRONG'} {errors[0]:.1e} ({errors[1]:.1e}) {said} predicted {predicted:.3f} "
                  f"compile {row['compile_s']:.1f} s {head}", flush=True)
        except Exception as e:  # noqa: BLE001
            row["failed"] = f"{type(e).__name__}: {str(e)[:300]}"
            print(f"FAILED {row['failed']} {head}", flush=True)
        torch.cuda.empty_cache()
    for name, kind in [("transposed", True), ("ordinary", False)]:
        ratios = [r["ratio"] for r in rows if r["transposed"] == kind and "ratio" in r]
        if ratios:
            print(f"{name}: {len(ratios)} cases, geometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.2f}, "
                  f"under 0.9: {sum(r < 0.9 for r in ratios)}")
    print(f"right {sum(r.get('right', False) for r in rows)} of {len(rows)}; seed {a.seed}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f)


if __name__ == "__main__":
    main()
