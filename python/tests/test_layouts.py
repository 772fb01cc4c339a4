"""The order in memory of results of convolutions and recurrent layers is eager's."""

from __future__ import annotations

import random

import pytest
import torch

import kiln
from kiln.tracing import layouts

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def drawn(seed, device):
    """A convolution, its operands, and what `torch.convolution` takes."""
    draw = random.Random(seed)
    dims = draw.choice([1, 2, 2, 2, 3])
    transposed = draw.random() < 0.3
    groups = draw.choice([1, 1, 1, 2, 4])
    depthwise = draw.random() < 0.2
    cin = groups * draw.choice([1, 2, 3, 8])
    cout = groups * draw.choice([1, 2, 8])
    if depthwise:
        groups, cout = cin, cin * draw.choice([1, 2])
    window = [draw.choice([1, 1, 2, 3, 5]) for _ in range(dims)]
    size = [draw.choice([5, 6, 9, 16]) for _ in range(dims)]
    x = torch.randn(draw.choice([1, 2, 17]), cin, *size, device=device)
    shape = (cin, cout // groups, *window) if transposed else (cout, cin // groups, *window)
    w = torch.randn(shape, device=device)
    dtypes = [torch.float32, torch.float32, torch.bfloat16, torch.float64]
    dtype = draw.choice([*dtypes, torch.float16] if device == "cuda" else dtypes)
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    x, w = x.to(dtype), w.to(dtype)
    if dims in formats:
        x, w = (t.to(memory_format=formats[dims]) if draw.random() < 0.5 else t for t in (x, w))
    stride = [draw.choice([1, 1, 2]) for _ in range(dims)]
    fits = [2 * k < n for k, n in zip(window, size, strict=True)]
    dilation = [draw.choice([1, 1, 1, 2]) if fit else 1 for fit in fits]
    padding = [draw.choice([0, 1]) if k > 1 else 0 for k in window]
    zero = [0] * dims
    return x, w, (None, stride, padding, dilation, transposed, zero, groups)


@pytest.mark.parametrize("device", DEVICES)
def test_convolutions_have_eagers_order(device):
    known = 0
    for seed in range(150):
        x, w, more = drawn(seed, device)
        with torch.no_grad():
            want = torch.convolution(x, w, *more)
        y = torch.empty(want.shape, dtype=want.dtype, device="meta")
        metas = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in (x, w)
        ]
        got = layouts.result("aten::convolution", y, metas, x.device)
        if got is None:
            continue
        known += 1
        told = f"seed {seed}: {x.shape} {x.stride()} {w.shape} {w.stride()} {x.dtype} {more}"
        sizes = [i for i, n in enumerate(want.shape) if n > 1]
        assert [got.stride(i) for i in sizes] == [want.stride(i) for i in sizes], told
    assert known > 100


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_have_eagers_order(kind, batch_first, device):
    class Steps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            cells = getattr(torch.nn, kind)
            self.cells = cells(6, 8, 2, batch_first=batch_first, bidirectional=True)

        def forward(self, x):
            result, state = self.cells(x)
            return result, *(state if isinstance(state, tuple) else [state])

    model, x = Steps().eval().to(device), torch.randn(3, 5, 6, device=device)
    compiled = kiln.compile(model, (x,))
    with torch.no_grad():
        for got, want in zip(compiled(x), model(x), strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want)
