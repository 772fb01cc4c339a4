#!/usr/bin/env python3
"""Cross entropy of a vocabulary projection, and projections to odd vocabularies, through Kiln beside PyTorch on one GPU.

    python benches/cross_entropy.py [loss] [projection] [random] [--quick]

loss:       the mean cross entropy of `hidden @ weight.T`, bf16, without its logits as a result
projection: the logits alone
random:     losses of random sizes with ignored rows, a bias and a soft-cap, against float64; two runs give the same bytes

Launches are recorded in CUDA graphs but for reduce-overhead, which records its own; medians of samples taken in turn. TFLOP/s count the
projection alone. An error is that of the loss, or of a row's loss, against float64. Exit status 1: a result is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from typing import Any

import kiln
import timing
import torch
from attention_bench import best, milliseconds
from timing import Side
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

#: Rows, hidden width, vocabulary: GPT-2, Llama 2, 3, Qwen 3, odd ones.
SIZES = [
    (8192, 768, 50257), (8192, 4096, 32000), (4096, 4096, 128256), (4096, 2048, 151936), (2048, 1024, 30522), (8192, 1600, 50257),
]  # fmt: skip
PROJECTIONS = [(8192, 768, 50257), (8192, 768, 50304), (8192, 1600, 50257), (4096, 4096, 32003), (2048, 1024, 30522), (4096, 1024, 51865)]
PEERS = ["eager", "Inductor", "reduce-overhead"]


class Loss(nn.Module):
    def __init__(self, cap: float | None = None, reduction: str = "mean") -> None:
        super().__init__()
        self.cap, self.reduction = cap, reduction

    def forward(self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        logits = nn.functional.linear(hidden, weight, bias).float()
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        return cross_entropy(logits, target, reduction=self.reduction)


class Projection(nn.Module):
    def forward(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.linear(hidden, weight)


def new(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") * scale).bfloat16()


def inputs(rows: int, width: int, classes: int) -> tuple[Tensor, ...]:
    target = torch.randint(classes, (rows,), device="cuda")
    target[::7] = -100
    return new(rows, width), new(classes, width, scale=2 * width**-0.5), target


def exact(module: Loss, args: tuple[Tensor, ...]) -> Tensor:
    """Each row's loss in float64, some rows at a time."""
    hidden, weight, target, *bias = args
    rows = Loss(module.cap, "none")
    weight, bias = weight.double(), [b.double() for b in bias]

    def of(h: Tensor, t: Tensor) -> Tensor:
        logits = nn.functional.linear(h.double(), weight, *bias)
        if rows.cap is not None:
            logits = rows.cap * torch.tanh(logits / rows.cap)
        return cross_entropy(logits, t, reduction="none")

    return torch.cat([of(h, t) for h, t in zip(hidden.split(256), target.split(256), strict=True)])


def call(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*args)


def sides(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[dict[str, Side], Any]:
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    compiled = kiln.compile(module, args, options={"fallback": "error"})
    return {
        "kiln": Side(call(compiled, args)),
        "eager": Side(call(module, args)),
        "Inductor": Side(call(torch.compile(module, dynamic=False), args)),
        "reduce-overhead": Side(call(torch.compile(module, dynamic=False, mode="reduce-overhead"), args), recorded=False),
    }, compiled


def table(title: str, module: nn.Module, sizes: list[tuple[int, int, int]], rounds: int) -> None:
    print(f"\n## {title}\n\n| rows x width x classes | kernels | kiln ms | TFLOP/s | eager ms | Inductor ms | reduce-overhead ms |", end="")
    print(" best / kiln | errors: kiln, eager |\n|" + "---|" * 9)
    for rows, width, classes in sizes:
        args = inputs(rows, width, classes)
        if isinstance(module, Projection):
            args = args[:2]
        found, compiled = sides(module, args)
        errors = "-"
        if isinstance(module, Loss):
            want = exact(module, args)
            want = want.sum() / (args[2] != -100).sum()
            errors = ", ".join(f"{(y.double() - want).abs().item():.1e}" for y in (compiled(*args), module(*args)))
        times, problems = timing.measure(found, "cuda", rounds)
        name, peer = best(times, PEERS)
        flops = 2 * rows * width * classes / times["kiln"] / 1e9
        cells = [milliseconds(times, p) for p in PEERS]
        size = f"{rows}x{width}x{classes}"
        kernels = len(compiled.explain().kernels)
        print(f"| {size} | {kernels} | {times['kiln']:.4f} | {flops:.0f} | {' | '.join(cells)} | {peer / times['kiln']:.2f} {name} | {errors} |")
        for problem in problems.items():
            print("Not timed:", *problem)
        sys.stdout.flush()


def drawn(count: int, seed: int) -> int:
    draw, wrong = random.Random(seed), 0
    print(f"\n## Random losses, seed {seed}\n")
    for _ in range(count):
        rows, width, classes = draw.randint(1500, 5000), 8 * draw.randint(4, 260), draw.randint(1000, 60000)
        cap = draw.choice([None, 30.0])
        args = inputs(rows, width, classes)
        if draw.random() < 0.5:
            args = (*args, new(classes))
        module = Loss(cap, "none")
        compiled = kiln.compile(module, args, options={"fallback": "error"})
        got, again, want = compiled(*args), compiled(*args), exact(module, args)
        ours, eager = ((y.double() - want).abs().max().item() for y in (got, module(*args)))
        bad = not (torch.equal(got, again) and ours <= 2 * eager + 1e-6)
        wrong += bad
        kinds = [k.kind for k in compiled.explain().kernels]
        bias = " with a bias" if len(args) > 3 else ""
        print(f"{'WRONG ' * bad}{rows}x{width}x{classes}, cap {cap}{bias}: {kinds.count('gemm')} matmuls, errors {ours:.1e}, {eager:.1e}", flush=True)
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["loss", "projection", "random"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    failed = 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with torch.no_grad():
        if "loss" in chosen.sections:
            table("Mean cross entropy, bf16", Loss(), SIZES, 8 if chosen.quick else 20)
        if "projection" in chosen.sections:
            table("Projections, bf16", Projection(), PROJECTIONS, 8 if chosen.quick else 20)
        if "random" in chosen.sections:
            failed = drawn(chosen.count, chosen.seed)
    sys.exit(failed > 0)
