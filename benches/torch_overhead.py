"""PyTorch's time as `kiln bench --against torch` measures it, against plain Python's, on five models, in pairs.

Both run the same TorchScript archive on the same number of threads; of each the fastest tenth of its runs counts, as other work on the
machine stops a team of threads that waits for each other for long. Fails where Kiln's figure is off by more than the ratio allowed: what
Kiln makes of libtorch must be what libtorch is.

    .deps/venv/bin/python benches/torch_overhead.py [--kiln target/release/kiln] [--pairs 3] [--ratio 1.3]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

ROOT = Path(__file__).parent.parent


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (8, 32)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention() for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(256) for _ in range(4)])
        self.mlps = nn.ModuleList([nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)) for _ in range(2)])

    def forward(self, x):
        for i, (attention, mlp) in enumerate(zip(self.layers, self.mlps)):
            x = self.norms[2 * i](x + attention(x))
            x = self.norms[2 * i + 1](x + mlp(x))
        # A sort: one operator that Kiln leaves to libtorch, which it calls from its own run.
        return x.sort(-1)[0]


def convolutions():
    block = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *block, *block, nn.AdaptiveAvgPool2d(1), nn.Flatten())


MODELS = {
    "lstm": (Recurrent, [4, 32, 64]),
    "encoder": (Encoder, [1, 64, 256]),
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)), [32, 256]),
    "convolutions": (convolutions, [1, 3, 32, 32]),
    "attention": (Attention, [1, 128, 256]),
}


def plain(path, inputs, threads):
    """Milliseconds of a run in a process of its own."""
    program = f"""
import json, time, torch
from safetensors.torch import load_file
torch.set_num_threads({threads})
model, x = torch.jit.load({str(path)!r}).eval(), load_file({str(inputs)!r})["0"]
times, end = [], None
with torch.no_grad():
    for _ in range(5): model(x)
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end:
        start = time.perf_counter()
        model(x)
        times.append((time.perf_counter() - start) * 1e3)
times.sort()
print(times[len(times) // 10])
"""
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def benched(kiln, path, inputs, threads, folder):
    out = folder / "bench.json"
    call = [kiln, "bench", path, "--inputs", inputs, "--device", "cpu", "--threads", str(threads), "--against", "torch"]
    subprocess.run([*map(str, call), "--json", str(out)], check=True, capture_output=True)
    return json.loads(out.read_text())["torch"]["p10"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kiln", type=Path, default=ROOT / "target/release/kiln")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--ratio", type=float, default=1.3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    a = parser.parse_args()
    torch.manual_seed(0)
    wrong = []
    print(f"{'model':14} {'python ms':>10} {'kiln bench ms':>14} {'ratio':>6}   best of {a.pairs} pairs, {a.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name, (make, shape) in MODELS.items():
            model, x = make().eval(), torch.randn(shape)
            path, inputs = folder / f"{name}.pt", folder / f"{name}.safetensors"
            torch.jit.trace(model, x).save(str(path))
            save_file({"0": x}, str(inputs))
            pairs = [(plain(path, inputs, a.threads), benched(a.kiln, path, inputs, a.threads, folder)) for _ in range(a.pairs)]
            python, kiln = (min(side) for side in zip(*pairs))
            print(f"{name:14} {python:>10.3f} {kiln:>14.3f} {kiln / python:>6.2f}", flush=True)
            if not 1 / a.ratio <= kiln / python <= a.ratio:
                wrong.append(name)
    if wrong:
        sys.exit(f"torch_overhead: Kiln's figure for PyTorch is off by more than {a.ratio} on {', '.join(wrong)}")


if __name__ == "__main__":
    main()
