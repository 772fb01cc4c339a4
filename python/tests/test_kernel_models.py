"""Models with kernels of Triton's, and a language model with kernels written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import kiln
import kiln.language as kl
import triton_stand_in
from kiln.kernels import cdiv

pytestmark = pytest.mark.native

# Triton's kernels


def triton_model(triton):
    """A model with a plain, a tuned and a computed kernel of Triton's."""
    plain, other = triton.jit(relu_function), triton.jit(scaled_function)
    tuned = triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=8)], key=["n"])(other)
    guessed = triton.heuristics({"BLOCK": lambda named: 16 if named["n"] < 1000 else 64})(other)

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            n = x.numel()
            y, z, out = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
            plain[(cdiv(n, 32),)](x * 2, y, n, DTYPE="f32", BLOCK=32, num_warps=2)
            tuned[lambda meta: (cdiv(n, meta["BLOCK"]),)](y, z, n, 3.0)
            guessed[lambda meta: (cdiv(n, meta["BLOCK"]),)](z, out, n, 0.5)
            return out + 1

    return Model().eval()


def relu_function(x, out, n, DTYPE: kl.constexpr, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    value = kl.maximum(kl.load(x + at, at < n), 0.0)
    kl.store(out + at, value if DTYPE == "f32" else value.to(kl.float16), at < n)


def scaled_function(x, out, n, by, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(out + at, kl.load(x + at, at < n) * by, at < n)


@pytest.mark.parametrize("dynamic", [False, True])
@torch.no_grad()
def test_kernels_of_triton_without_a_gpu(monkeypatch, dynamic):
    module = triton_model(triton_stand_in.install(monkeypatch))
    options = {"fallback": "error"}
    compiled = torch.compile(module, backend="kiln", options=options, fullgraph=True, dynamic=dynamic)
    for shape in [(9, 11), (20, 5)]:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), torch.relu(x * 2) * 1.5 + 1)


@torch.no_grad()
def test_kernels_of_triton_in_programs(monkeypatch):
    module, x = triton_model(triton_stand_in.install(monkeypatch)), torch.randn(9, 11)
    want = torch.relu(x * 2) * 1.5 + 1
    torch.testing.assert_close(kiln.compile(module, (x,), options={"fallback": "error"})(x), want)
    sizes = ({0: torch.export.Dim("rows", min=2, max=80)},)
    compiled = kiln.compile(module, (x,), dynamic=sizes)
    torch.testing.assert_close(compiled(x), want)


# A block of a language model


@kiln.kernel
def rms_norm_kernel(x, weight, out, stride, n, eps, BLOCK: kl.constexpr):
    row, column = kl.program_id(0), kl.arange(0, BLOCK)
    value = kl.load(x + row * stride + column, column < n).to(kl.float32)
    scale = kl.rsqrt(kl.sum(value * value, 0) / n + eps)
    kl.store(out + row * n + column, value * scale * kl.load(weight + column, column < n), column < n)


@kiln.kernel
def rope_kernel(q, batch_stride, head_stride, row_stride, cos, sin, HALF: kl.constexpr):
    """Turns the halves of a head in place."""
    head, row, at = kl.program_id(0), kl.program_id(1), kl.arange(0, HALF)
    start = q + kl.program_id(2) * batch_stride + head * head_stride + row * row_stride
    low, high = kl.load(start + at), kl.load(start + HALF + at)
    c, s = kl.load(cos + row * HALF + at), kl.load(sin + row * HALF + at)
    kl.store(start + at, low * c - high * s)
    kl.store(start + HALF + at, high * c + low * s)


@kiln.kernel
def cross_entropy_kernel(logits, labels, losses, n, BLOCK: kl.constexpr):
    row, most, total = kl.program_id(0), float("-inf"), 0.0
    logits += row * n
    for start in range(0, n, BLOCK):
        column = start + kl.arange(0, BLOCK)
        value = kl.load(logits + column, column < n, float("-inf"))
        higher = kl.maximum(most, kl.max(value, 0))
        total = total * kl.exp(most - higher) + kl.sum(kl.exp(value - higher), 0)
        most = higher
    label = kl.load(labels + row)
    kl.store(losses + row, most + kl.log(total) - kl.load(logits + label))


class Decoder(nn.Module):
    """A layer with norms and rotary embeddings by hand, and a loss by hand."""

    def __init__(self, width: int = 32, heads: int = 4, words: int = 50) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.embed = nn.Embedding(words, width)
        self.norms = nn.ParameterList([torch.rand(width) + 0.5 for _ in range(2)])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, words, bias=False)
        angles = torch.arange(16)[:, None] * 10000.0 ** (-torch.arange(self.size // 2) / (self.size // 2))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def norm(self, x: Tensor, weight: Tensor, by_hand: bool) -> Tensor:
        if not by_hand:
            return nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5)
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(flat)
        rms_norm_kernel[(flat.shape[0],)](flat, weight, out, flat.stride(0), flat.shape[1], 1e-5, BLOCK=32)
        return out.view(x.shape)

    def turn(self, x: Tensor, by_hand: bool) -> Tensor:
        """`x`: batch, heads, rows, size."""
        if not by_hand:
            cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
            low, high = x.chunk(2, -1)
            return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)
        grid = (x.shape[1], x.shape[2], x.shape[0])
        rope_kernel[grid](x, *x.stride()[:3], self.cos, self.sin, HALF=self.size // 2)
        return x

    def forward(self, ids: Tensor, labels: Tensor, by_hand: bool = True) -> Tensor:
        batch, rows = ids.shape
        x = self.embed(ids)
        parts = self.qkv(self.norm(x, self.norms[0], by_hand)).chunk(3, -1)
        q, k, v = (p.view(batch, rows, self.heads, self.size).transpose(1, 2) for p in parts)
        q, k = self.turn(q, by_hand), self.turn(k, by_hand)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, rows, -1))
        logits = self.head(self.norm(x, self.norms[1], by_hand)).view(batch * rows, -1)
        if not by_hand:
            return nn.functional.cross_entropy(logits, labels.view(-1))
        losses = torch.empty(batch * rows)
        cross_entropy_kernel[(batch * rows,)](logits, labels.reshape(-1), losses, logits.shape[1], BLOCK=16)
        return losses.mean()


@torch.no_grad()
def test_a_language_model_with_kernels_by_hand(tmp_path):
    module = Decoder().eval()
    ids, labels = torch.randint(50, (2, 2, 7))
    want = module(ids, labels, by_hand=False)
    torch.testing.assert_close(module(ids, labels), want)
    options = {"fallback": "error"}
    compiled = kiln.compile(module, (ids, labels), options=options)
    torch.testing.assert_close(compiled(ids, labels), want)
    compiled.save(tmp_path / "decoder.kiln")
    torch.testing.assert_close(kiln.load(tmp_path / "decoder.kiln")(ids, labels), want)
    fast = torch.compile(module, backend="kiln", options=options, fullgraph=True, dynamic=True)
    torch.testing.assert_close(fast(ids, labels), want)
    ids, labels = torch.randint(50, (2, 3, 11))
    torch.testing.assert_close(fast(ids, labels), module(ids, labels, by_hand=False))
