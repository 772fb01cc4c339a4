#!/usr/bin/env python3
"""Models that hold kernels of others, written in Triton: eager, Inductor and Kiln, in one process.

    benches/kernel_models.py --sources DIR [--only NAME …] [--small] [--out FILE]

DIR holds the Python packages of the kernels: `liger_kernel` (Liger-Kernel, its folder `src`) and `fla`
(flash-linear-attention). Models whose package is not there are left out, and named. They are:

- `llama`: layers of a Llama in bf16 with Liger's RMS norm, rotary embedding, SwiGLU and cross entropy;
- `linear_attention`: a layer with fla's chunked linear attention;
- `int4`: a feed-forward layer whose matmuls are the example `int4_matmul` of this repository, in Triton's words;
- `matmul`, `matmul_neighbours`: the example `matmul`, alone, and with a bias, a relu and a residual behind it.

Each is compiled by `torch.compile`, by Inductor, by Inductor with CUDA graphs and by Kiln, `fullgraph` for Kiln, and
compared with eager. Prints times as `do_bench` does (medians, L2 of other data), and seconds
of the first call. `--small` takes small sizes, for a look on a machine without a GPU: then only Kiln compiles.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches"))
#: Samples of a time, and bytes that are written between two.
SAMPLES, WASHED = 30, 512 << 20
F = nn.functional


class Llama(nn.Module):
    """Layers of a Llama whose elementwise parts are Liger's kernels, and the loss."""

    def __init__(self, layers: int, width: int, heads: int, shared: int, hidden: int, words: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        kept = shared * self.size

        def linear(rows: int, columns: int) -> nn.Linear:
            return nn.Linear(rows, columns, bias=False)

        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "q": linear(width, width),
                    "k": linear(width, kept),
                    "v": linear(width, kept),
                    "o": linear(width, width),
                    "gate": linear(width, hidden),
                    "up": linear(width, hidden),
                    "down": linear(hidden, width),
                }
            )
            for _ in range(layers)
        )
        self.norms = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(2 * layers + 1))
        self.out = linear(width, words)

    def forward(self, x, cos, sin, targets):
        from liger_kernel.ops.rms_norm import rms_norm_forward
        from liger_kernel.ops.rope import rope_forward
        from liger_kernel.ops.swiglu import swiglu_forward

        def norm(x, weight):
            return rms_norm_forward(x, weight, 1e-5, 0.0, "llama", False)[0]

        batch, tokens, width = x.shape
        for n, layer in enumerate(self.layers):
            y = norm(x, self.norms[2 * n])
            q = layer["q"](y).view(batch, tokens, self.heads, self.size).transpose(1, 2)
            k = layer["k"](y).view(batch, tokens, self.shared, self.size).transpose(1, 2)
            v = layer["v"](y).view(batch, tokens, self.shared, self.size).transpose(1, 2)
            q, k = rope_forward(q, k, cos, sin)[:2]
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + layer["o"](a.transpose(1, 2).reshape(batch, tokens, width))
            y = norm(x, self.norms[2 * n + 1])
            x = x + layer["down"](swiglu_forward(layer["gate"](y), layer["up"](y))[2])
        logits = self.out(norm(x, self.norms[-1])).view(batch * tokens, -1)
        return cross_entropy(logits, targets)


def cross_entropy(logits, targets):
    """The mean loss by Liger's kernel, launched without its wrapper, which waits for the targets on the host."""
    import triton
    from liger_kernel.ops.cross_entropy import MAX_FUSED_SIZE, liger_cross_entropy_kernel

    rows, words = logits.shape
    losses = torch.zeros(rows, dtype=logits.dtype, device=logits.device)
    liger_cross_entropy_kernel[(rows,)](
        X_ptr=logits, X_stride=logits.stride(-2), Y_ptr=targets, Y_stride=targets.stride(-1),
        weight_ptr=None, loss_ptr=losses, z_loss_ptr=None, loss_stride=losses.stride(-1),
        token_accuracy_ptr=None, token_accuracy_stride=0, predicted_tokens_ptr=None, predicted_tokens_stride=0,
        n_cols=words, n_non_ignore=rows, sum_non_ignore_weight=rows, weight_sum=0.0, ignore_index=-100,
        lse_square_scale=0.0, label_smoothing=0.0, reduction="mean", softcap=None,
        RETURN_Z_LOSS=False, RETURN_TOKEN_ACCURACY=False, RETURN_PREDICTED_TOKENS=False,
        BLOCK_SIZE=min(MAX_FUSED_SIZE, triton.next_power_of_2(words)), HAS_WEIGHT=False,
        HAS_SOFTCAPPING=False, HAS_GRADIENTS=False, num_warps=32,
    )  # fmt: skip
    return losses.sum()


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function without what chooses another implementation, or asks `torch.compile` to leave it alone."""
    return inspect.unwrap(getattr(function, "_torchdynamo_orig_callable", function))


class LinearAttention(nn.Module):
    """Projections around fla's chunked linear attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        from fla.ops.common.chunk_h import chunk_fwd_h
        from fla.ops.common.chunk_o import chunk_fwd_o

        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, self.size).unbind(2)
        q, k, v = F.silu(q).contiguous(), F.silu(k).contiguous(), v.contiguous()
        h = plain(chunk_fwd_h)(k=k, v=v, g=None, gk=None, gv=None, h0=None, output_final_state=False)[0]
        y = plain(chunk_fwd_o)(q=q, k=k, v=v, h=h, g=None, scale=self.size**-0.5)
        return self.out(y.reshape(batch, tokens, width))


class Int4(nn.Module):
    """A gated feed-forward layer of weights of four bits."""

    def __init__(self, width: int, hidden: int, module: Any) -> None:
        super().__init__()
        self.module = module
        for name, rows, columns in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
            _, packed, scales, zeros = module.inputs("cpu", 1, columns, rows, group=128)
            for part, values in (("packed", packed), ("scales", scales / rows**0.5), ("zeros", zeros)):
                self.register_buffer(f"{name}_{part}", values)

    def linear(self, x, name):
        parts = (getattr(self, f"{name}_{part}") for part in ("packed", "scales", "zeros"))
        return self.module.int4_matmul(x, *parts)

    def forward(self, x):
        return x + self.linear(F.silu(self.linear(x, "gate")) * self.linear(x, "up"), "down")


class Matmul(nn.Module):
    """The example's matmul by one configuration, and what may follow it."""

    def __init__(self, size: int, module: Any, neighbours: bool) -> None:
        super().__init__()
        self.kernel, self.neighbours = module.matmul_kernel, neighbours
        self.weight, self.bias = nn.Parameter(torch.randn(size, size) / size**0.5), nn.Parameter(torch.randn(size))

    def forward(self, a, residual):
        b, c = self.weight, torch.empty_like(a)
        (m, k), n = a.shape, b.shape[1]
        self.kernel[(-(-m // 128) * -(-n // 128),)](
            a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(),
            EPILOGUE=None, BM=128, BN=128, BK=64, GROUP=8, num_warps=8, num_stages=3,
        )  # fmt: skip
        return F.relu(c + self.bias) + residual if self.neighbours else c


@dataclass
class Model:
    name: str
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]


def llama(small: bool) -> Model:
    layers, width, heads, shared, hidden, words, tokens = (
        (1, 64, 4, 2, 128, 101, 16) if small else (4, 2048, 32, 8, 8192, 32000, 2048)
    )
    module = Llama(layers, width, heads, shared, hidden, words)
    size = width // heads
    angles = torch.outer(torch.arange(tokens).float(), 10000.0 ** (-torch.arange(0, size, 2) / size))
    table = torch.cat([angles, angles], 1)[None]
    dtype = torch.float32 if small else torch.bfloat16
    given = (
        torch.randn(1, tokens, width).to(dtype),
        table.cos().to(dtype),
        table.sin().to(dtype),
        torch.randint(0, words, (tokens,)),
    )
    return Model("llama", module.to(dtype), given)


def linear_attention(small: bool) -> Model:
    width, heads, tokens = (64, 2, 64) if small else (2048, 16, 4096)
    dtype = torch.float32 if small else torch.bfloat16
    module = LinearAttention(width, heads).to(dtype)
    return Model("linear_attention", module, (torch.randn(1, tokens, width).to(dtype),))


def int4(small: bool) -> Model:
    import kernels

    module = importlib.import_module(f"{kernels.triton_package().__name__}.int4_matmul")
    width, hidden, rows = (256, 512, 4) if small else (4096, 14336, 16)
    return Model("int4", Int4(width, hidden, module), (torch.randn(rows, width).half(),))


def matmul(small: bool, neighbours: bool = False) -> Model:
    import kernels

    module = importlib.import_module(f"{kernels.triton_package().__name__}.matmul")
    size = 256 if small else 4096
    given = (torch.randn(size, size).half(), torch.randn(size, size).half())
    name = "matmul_neighbours" if neighbours else "matmul"
    return Model(name, Matmul(size, module, neighbours).half(), given)


MODELS: dict[str, Callable[[bool], Model]] = {
    "llama": llama,
    "linear_attention": linear_attention,
    "int4": int4,
    "matmul": matmul,
    "matmul_neighbours": lambda small: matmul(small, neighbours=True),
}
NEEDS = {"llama": "liger_kernel", "linear_attention": "fla"}


def timed(call: Callable[[], Any], washed: torch.Tensor) -> float:
    """Milliseconds of a call on the GPU."""
    call()
    samples = []
    for _ in range(SAMPLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        washed.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return statistics.median(samples)


def ways(model: nn.Module, device: str) -> dict[str, Callable[..., Any]]:
    """The module by each way to run it, eager first."""
    found: dict[str, Callable[..., Any]] = {"eager": model}
    if device == "cuda":
        found["Inductor"] = torch.compile(model)
        found["Inductor, CUDA graphs"] = torch.compile(model, mode="reduce-overhead")
    found["Kiln"] = torch.compile(model, backend="kiln", fullgraph=True)
    return found


def measured(model: Model, device: str, washed: torch.Tensor | None) -> dict[str, Any]:
    module = model.module.to(device).eval()
    given = tuple(x.to(device) for x in model.inputs)
    row: dict[str, Any] = {"model": model.name}
    want = None
    with torch.no_grad():
        for name, call in ways(module, device).items():
            torch._dynamo.reset()
            try:
                start = time.perf_counter()
                out = call(*given)
                if device == "cuda":
                    torch.cuda.synchronize()
                first = time.perf_counter() - start
            except Exception as error:
                row[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
                continue
            out = out.double()
            want = out if want is None else want
            error = ((out - want).abs().max() / want.abs().max()).item()
            row[name] = {"first_s": round(first, 2), "difference": error}
            if washed is not None:
                row[name]["ms"] = timed(lambda call=call: call(*given), washed)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=Path, action="append", default=[])
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    sys.path[:0] = [str(path) for path in asked.sources]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    washed = torch.empty(WASHED // 4, dtype=torch.int32, device=device) if device == "cuda" else None
    rows = []
    for name in asked.only:
        package = NEEDS.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            print(f"{name}: left out, there is no package {package}; name its folder with --sources")
            continue
        torch.manual_seed(0)
        row = measured(MODELS[name](asked.small), device, washed)
        rows.append(row)
        for way, found in row.items():
            if way != "model":
                print(f"{name}: {way}: {found}", flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
