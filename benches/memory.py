"""Memory-bound cases, as TorchScript archives written on the spot: rows, columns, pointwise chains, data movement.

`tables(measure, peer, folder)` yields Markdown lines: fused kernels against PyTorch eager and torch.compile. Used by cpu.py.
"""

import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

LENGTHS = [7, 96, 255, 768, 931, 1000, 4097, 50257]
ELEMENTS = 1 << 22


class Softmax(torch.nn.Module):
    def forward(self, x):
        return F.softmax(x, -1)


class LogSoftmax(torch.nn.Module):
    def forward(self, x):
        return F.log_softmax(x, -1)


class LayerNorm(torch.nn.Module):
    def forward(self, x, w, b):
        return F.layer_norm(x, [x.shape[-1]], w, b, 1e-5)


class RmsNorm(torch.nn.Module):
    def forward(self, x, w):
        return F.rms_norm(x, [x.shape[-1]], w, 1e-6)


class SoftmaxPrimitives(torch.nn.Module):
    def forward(self, x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)


class GeluTanh(torch.nn.Module):
    def forward(self, x):
        return F.gelu(x, approximate="tanh")


class GeluTanhPrimitives(torch.nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


class GeluErf(torch.nn.Module):
    def forward(self, x):
        return F.gelu(x)


class BiasGelu(torch.nn.Module):
    def forward(self, x, b):
        return F.gelu(x + b, approximate="tanh")


class ResidualNorm(torch.nn.Module):
    def forward(self, x, r, w, b):
        h = x + r
        return h, F.layer_norm(h, [h.shape[-1]], w, b, 1e-5)


class SwiGlu(torch.nn.Module):
    def forward(self, x, gate):
        return F.silu(gate) * x


class RowSum(torch.nn.Module):
    def forward(self, x):
        return x.sum(-1)


class ColumnSum(torch.nn.Module):
    def forward(self, x):
        return x.sum(0)


class FullSum(torch.nn.Module):
    def forward(self, x):
        return x.sum()


class CrossEntropy(torch.nn.Module):
    def forward(self, x, target):
        return F.cross_entropy(x, target)


class TransposeAdd(torch.nn.Module):
    def forward(self, x, y):
        return x.t() + y


class Rope(torch.nn.Module):
    def forward(self, x, cos, sin):
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * cos + turned * sin


class CumSum(torch.nn.Module):
    def forward(self, x):
        return x.cumsum(-1)


class ArgMax(torch.nn.Module):
    def forward(self, x):
        return x.argmax(-1)


class Variance(torch.nn.Module):
    def forward(self, x):
        return x.var(-1)


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def suite():
    """Name, module, inputs."""
    x = normal(4096, 4096)
    w, b = normal(4096), normal(4096) + 1
    return [
        ("softmax", Softmax(), [x]),
        ("softmax, five ops", SoftmaxPrimitives(), [x]),
        ("softmax 583x931, five ops", SoftmaxPrimitives(), [normal(583, 931)]),
        ("layer norm", LayerNorm(), [x, w, b]),
        ("RMS norm", RmsNorm(), [x, w]),
        ("GELU, tanh", GeluTanh(), [x]),
        ("GELU, tanh, eight ops", GeluTanhPrimitives(), [x]),
        ("GELU, erf", GeluErf(), [x]),
        ("bias, GELU", BiasGelu(), [x, b]),
        ("residual, layer norm", ResidualNorm(), [x, normal(4096, 4096), w, b]),
        ("SwiGLU", SwiGlu(), [x, normal(4096, 4096)]),
        ("row sum", RowSum(), [x]),
        ("column sum", ColumnSum(), [x]),
        ("full sum", FullSum(), [x]),
        ("variance of rows", Variance(), [x]),
        ("cross entropy 1024x50257", CrossEntropy(), [normal(1024, 50257), torch.arange(1024) * 37 % 50257]),
        ("transpose, add", TransposeAdd(), [x, normal(4096, 4096)]),
        ("RoPE 8x16x1024x128", Rope(), [normal(8, 16, 1024, 128), normal(1024, 128), normal(1024, 128)]),
        ("cumulative sum", CumSum(), [x]),
        ("arg max", ArgMax(), [x]),
    ]


def rows():
    """Single row ops, whatever the length."""
    for dtype, short in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        for n in LENGTHS:
            x, w, b = (t.to(dtype) for t in (normal(ELEMENTS // n, n), normal(n), normal(n) + 1))
            yield f"softmax {n} {short}", Softmax(), [x]
            yield f"log softmax {n} {short}", LogSoftmax(), [x]
            yield f"layer norm {n} {short}", LayerNorm(), [x, w, b]
            yield f"RMS norm {n} {short}", RmsNorm(), [x, w]


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(title, cases, measure, peer, folder, chosen):
    """Lines of one table; of the cases whose names hold one of `chosen`, if any are."""
    cases = [c for c in cases if not chosen or any(name in c[0] for name in chosen)]
    if not cases:
        return
    yield f"## {title}"
    yield ""
    yield "| case | kernels | fused ms (p10-p90) | eager ms | eager / fused | torch.compile ms | torch.compile / fused | err fused | err eager | compile s |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    eager, compiled = [], []
    for name, module, inputs in cases:
        path = os.path.join(folder, "case")
        torch.jit.script(module.eval()).save(path + ".pt")
        save_file({str(i): t.contiguous() for i, t in enumerate(inputs)}, path + ".safetensors")
        r = measure("case", folder)
        if "fused" not in r or not r["torch"]:
            yield f"| {name} | {r.get('problem', r.get('missing'))} | | | | | | | | |"
            continue
        f, t = r["fused"], r["torch"]["median_ms"]
        eager.append(t / f["median_ms"])
        ms, ratio, problem = peer(path, module, inputs)
        if problem:
            shown = f"{problem} | -"
        else:
            compiled.append(ratio)
            shown = f"{ms:.3f} | {ratio:.2f}"
        yield (
            f"| {name} | {len(r['kernels'])} | {f['median_ms']:.3f} ({f['p10']:.3f}-{f['p90']:.3f}) | {t:.3f} | {eager[-1]:.2f} | {shown} "
            f"| {r['fused_err']:.1e} | {r['torch_err']:.1e} | {r['compile_s']:.2f} |"
        )
    for what, ratios, target in (("eager", eager, 1.5), ("torch.compile", compiled, 1.0)):
        if ratios:
            yield ""
            yield f"Geometric mean of {what} / fused: {geometric_mean(ratios):.2f} over {len(ratios)} cases (target {target}); least {min(ratios):.2f}."
    yield ""


def tables(measure, peer, folder, chosen):
    yield from table("Memory-bound, 4096x4096 in f32 unless named otherwise", suite(), measure, peer, folder, chosen)
    yield from table("Rows of every length, four million elements", rows(), measure, peer, folder, chosen)
