"""Complex tensors at the edges of compiled programs, and beside steps of PyTorch."""

from __future__ import annotations

import pytest
import torch
from agreement import same
from torch import nn

import kiln
from kiln import pieces
from kiln.api import backend

pytestmark = pytest.mark.native


class Turned(nn.Module):
    """A complex input, parameter and results."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(5), torch.arange(5.0)))

    def forward(self, x, factor):
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * factor
        return {"turned": z * self.turn, "size": z.abs(), "back": [z.conj() / 2]}


X = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
FACTORS = [
    torch.complex(torch.arange(5.0), torch.ones(5)),
    # A conjugate that is a view of what it is the conjugate of, and one out of order in memory.
    torch.complex(torch.ones(5), torch.arange(5.0)).conj(),
    torch.complex(torch.arange(10.0), torch.ones(10))[::2],
]


@torch.no_grad()
def test_torch_compile():
    module = Turned().eval()
    compiled = torch.compile(module, backend=backend.kiln, options={"fallback": "error"})
    with pieces.collecting() as found:
        for factor in FACTORS:
            same(compiled(X, factor), module(X, factor))
    assert {p.state for p in found} == {"compiled"}


@torch.no_grad()
def test_kiln_compile(tmp_path):
    module = Turned().eval()
    compiled = kiln.compile(module, (X, FACTORS[0]), options={"fallback": "error"})
    for factor in FACTORS:
        same(compiled(X, factor), module(X, factor))
    with pytest.raises(kiln.UnsupportedError, match="complex tensors, which no artifact holds"):
        compiled.save(tmp_path / "turned.kiln")


@torch.no_grad()
def test_pt2(tmp_path):
    module = Turned().eval()
    torch.export.save(torch.export.export(module, (X, FACTORS[0])), tmp_path / "turned.pt2")
    compiled = kiln.load(tmp_path / "turned.pt2")
    for factor in FACTORS:
        same(compiled(X, factor), module(X, factor))


@torch.no_grad()
def test_a_transform_is_a_step_of_torch():
    def f(x):
        spectrum = torch.fft.rfft(x * 2) * torch.polar(torch.ones(6), torch.arange(6.0))
        return (spectrum.conj() * spectrum).real + 1

    with pieces.collecting() as found:
        same(torch.compile(f, backend=backend.kiln)(X), f(X))
    assert [p.state for p in found] == ["compiled", "eager", "compiled"]
    assert "fft" in found[1].reason
