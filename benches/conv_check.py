"""Convolutions of many shapes against float64: one to three axes, strides, dilation, groups, uneven padding, NaN and infinity.

    python3 benches/conv_check.py --kiln dist/kiln [--device cpu] [--seed N] [--cases N] [--jobs N] [--keep FOLDER]

Each element must lie within the rounding that its sum of absolute terms allows. Cases are drawn from the seed; a failing one
is printed with its graph.
"""

import argparse
import concurrent.futures
import math
import os
import random
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "tf32": torch.float32}
# Of a result's rounding, and of each term.
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-10, "f32": 1e-6, "tf32": 1e-6}
TERM = {"bf16": 3e-6, "f16": 3e-6, "f32": 3e-6, "tf32": 2.0**-9.5}
# The least and most FMAs, and elements of an input.
WORK = (1 << 21, {"cuda:0": 1 << 34, "cpu": 1 << 29})
ELEMENTS = 1 << 26


class Case:
    """A convolution's sizes, drawn until they fit."""

    def __init__(self, rng, device):
        while not self.draw(rng) or not WORK[0] < self.work() < WORK[1][device]:
            pass

    def draw(self, rng):
        self.dtype, self.axes = rng.choice(["bf16", "f16", "bf16", "f32", "tf32"]), rng.choice([2, 2, 2, 2, 1, 3])
        self.groups, self.images = rng.choice([1, 1, 1, 1, 2, 4]), rng.choice([1, 2, 3, 8, 16, 32, 33])
        self.read, self.written = rng.choice([16, 32, 48, 64, 64, 96, 128, 192, 256, 512, 100]), rng.choice([16, 24, 64, 64, 96, 128, 256, 512, 63, 1])
        of = lambda choices: [rng.choice(choices) for _ in range(self.axes)]
        self.sizes = of([4, 7, 8, 11] if self.axes == 3 else [1, 5, 7, 8, 13, 14, 28, 33, 56, 64, 97])
        self.window, self.stride, self.dilation = of([1, 2, 3, 3, 3, 5, 7]), of([1, 1, 1, 2, 2, 3]), of([1, 1, 1, 2, 3])
        self.padding = [rng.choice([0, k // 2, k // 2, k - 1, 1]) for k in self.window]
        if rng.random() < 0.5:
            self.window, self.stride, self.dilation = ([v[0]] * self.axes for v in (self.window, self.stride, self.dilation))
            self.padding = [self.window[0] // 2 * self.dilation[0]] * self.axes
        self.epilogue, self.special = rng.choice(["none", "bias_relu", "residual"]), rng.random() < 0.15
        reach = [n + 2 * p - d * (k - 1) - 1 for n, p, d, k in zip(self.sizes, self.padding, self.dilation, self.window)]
        self.out = [r // s + 1 for r, s in zip(reach, self.stride)]
        whole = self.read % self.groups == 0 and self.written % self.groups == 0
        return whole and min(reach) >= 0 and self.images * self.read * math.prod(self.sizes) < ELEMENTS

    def work(self):
        return self.images * self.written * math.prod(self.out) * self.read // self.groups * math.prod(self.window)

    def shapes(self):
        """Of the input, the weight, the bias and the residual."""
        return [
            [self.images, self.read, *self.sizes],
            [self.written, self.read // self.groups, *self.window],
            [self.written],
            [self.images, self.written, *self.out],
        ]

    def graph(self):
        dtype = "f32" if self.dtype == "tf32" else self.dtype
        lists = lambda v: "[" + ",".join(map(str, v)) + "]"
        inputs = ", ".join(f"%{n}: {dtype}{lists(s)}" for n, s in zip("xwbr", self.shapes()))
        bias = ", %b" if self.epilogue != "none" else ""
        numbers = f"stride={lists(self.stride)} padding={lists(self.padding)} dilation={lists(self.dilation)} groups={self.groups}"
        rest = {"none": "return %y", "bias_relu": "%z = relu %y\n  return %z", "residual": "%z = add %y, %r\n  return %z"}[self.epilogue]
        more = f"transposed=false output_padding={lists([0] * self.axes)}"
        return f"graph case({inputs}) {{\n  %y = conv %x, %w{bias} {numbers} {more}\n  {rest}\n}}\n"

    def inputs(self, generator):
        tensors = [torch.randn(s, generator=generator).to(TYPES[self.dtype]) for s in self.shapes()]
        for value in (math.inf, math.nan) if self.special else ():
            flat = tensors[0].view(-1)
            flat[torch.randint(flat.numel(), (1,), generator=generator)] = value
        return tensors

    def expected(self, inputs):
        """In float64, and the sum of absolute terms."""
        x, w, b, r = (v.to("cuda" if torch.cuda.is_available() else "cpu").double() for v in inputs)
        conv = [F.conv1d, F.conv2d, F.conv3d][self.axes - 1]
        of = lambda x, w, b: conv(x, w, b if self.epilogue != "none" else None, self.stride, self.padding, self.dilation, self.groups)
        with torch.backends.cudnn.flags(enabled=False):
            value, size = of(x, w, b), of(x.abs(), w.abs(), b.abs())
        if self.epilogue == "bias_relu":
            value = torch.where(value.isnan(), value, value.clamp_min(0))
        if self.epilogue == "residual":
            value, size = value + r, size + r.abs()
        return value, size

    def wrong(self, got, value, size):
        """How many elements."""
        largest = 65000 if self.dtype == "f16" else 1e38
        allowed = ROUNDING[self.dtype] * value.abs() + TERM[self.dtype] * size + 1e-6
        finite = value.isfinite() & (value.abs() < largest)
        far = finite & ~((got - value).abs() <= allowed)
        return int((far | (value.isnan() & ~got.isnan()) | (value.isinf() & (got != value))).sum())


def check(number, args, folder):
    case = Case(random.Random(args.seed * 1000 + number), args.device)
    at = os.path.join(folder, str(number))
    with open(at + ".kiln", "w") as f:
        f.write(case.graph())
    inputs = case.inputs(torch.Generator().manual_seed(args.seed * 1000 + number))
    save_file({str(i): v for i, v in enumerate(inputs)}, at + ".in")
    numerics = "exact" if case.dtype == "f32" else "torch"
    command = [args.kiln, "run", at + ".kiln", "--inputs", at + ".in", "--outputs", at + ".out", "--device", args.device, "--numerics", numerics]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        return f"{case.graph()}{ran.stderr[-500:]}"
    value, size = case.expected(inputs)
    got = load_file(at + ".out")["0"].to(value.device).double()
    wrong = case.wrong(got, value, size)
    for end in (".in", ".out"):
        os.remove(at + end)
    return f"{case.graph()}{numerics}: {wrong} of {got.numel()} elements are wrong" if wrong else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kiln", default="dist/kiln")
    parser.add_argument("--device", default="cuda:0", choices=["cuda:0", "cpu"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--keep", help="folder for the graphs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        folder = args.keep or temporary
        os.makedirs(folder, exist_ok=True)
        problems = [p for p in pool.map(lambda n: check(n, args, folder), range(args.cases)) if p]
    print("\n".join(problems))
    print(f"seed {args.seed}: {args.cases} convolutions, {len(problems)} problems")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
