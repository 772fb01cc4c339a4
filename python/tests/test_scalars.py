"""Python's numbers as inputs of programs: one graph for all values, results as eagerly."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import kiln
from kiln import pieces
from kiln.api import backend

X = torch.arange(20.0).reshape(4, 5) / 7 - 1.3
N = torch.arange(20).reshape(4, 5) - 7

FLOATS = {
    "both sides": lambda x, s: (x * s + s, s - x, s / (x.abs() + 1), x / (s + 2)),
    "types": lambda x, s: (N * s, x.double() * s, (N > 0) * s, x.sum() * s, N.sum() + s),
    "half": lambda x, s: (x.half() * s, x.bfloat16() * s),
    "rounded": lambda x, s: (x // (s + 2), x % (s + 2), x.fmod(s + 2)),
    "div modes": lambda x, s: torch.div(x, s + 0.5, rounding_mode="trunc"),
    "powers": lambda x, s: (x.abs() ** s, (s + 2) ** x),
    "clamps": lambda x, s: (x.clamp(-s, s), x.clamp(min=s), x.clamp_max(s), N.clamp(s, 3)),
    "filled": lambda x, s: (torch.full((4, 5), s), torch.full_like(x, s) + x, x.clone().fill_(s)),
    "alpha": lambda x, s: (torch.add(x, x, alpha=s), torch.sub(x, x, alpha=s)),
    "rsub": lambda x, s: torch.rsub(x, x + 1, alpha=s),
    "addc": lambda x, s: (torch.addcmul(x, x, x, value=s), torch.addcdiv(x, x, x + 9, value=s)),
    "lerp": lambda x, s: torch.lerp(x, x * 2, s),
    "matmuls": lambda x, s: torch.addmm(x @ x.t(), x, x.t(), beta=s, alpha=s + 1),
    "activations": lambda x, s: (
        F.leaky_relu(x, s),
        F.elu(x, alpha=s),
        F.celu(x, s + 0.1),
        F.softplus(x, beta=s + 1),
        F.hardtanh(x, -s - 1, s + 1),
        F.threshold(x, s, s + 1),
    ),
    "choices": lambda x, s: (torch.where(x > 0, x, s), x.masked_fill(x > 0, s)),
    "comparisons": lambda x, s: (x > s, x <= s, x == s, s <= N),
    "arithmetic": lambda x, s: x * (2 * s + 1) ** 0.5 - s / 3 + (s // 2) * x - abs(-s),
    "tensor": lambda x, s: x * torch.tensor(s),
    "result": lambda x, s: (x * s, s * 2),
    "value of tracing": lambda x, s: F.dropout(x, s * 0, training=True) + 1,
    "branch": lambda x, s: x + s if s > 0 else x - s,
}
INTS = {
    "floats": lambda x, n: (x * n, x**n, x.clamp(max=n), n - x),
    "ints": lambda x, n: (N + n, N * n, N % n, N // n, N / n, N.int() * n),
    "bits": lambda x, n: (N << n, N & n, N | n, N ^ n),
    "positions": lambda x, n: torch.where(torch.arange(5) < n, x, 0.0),
    "filled": lambda x, n: torch.full((4, 5), n) + x,
    "bools": lambda x, n: x * (n > 3),
    "arithmetic": lambda x, n: x * (n * 2 + 1) / (n + 1) - n // 2,
}


def graphs_of(f, values):
    """How many graphs and specialisations `f(X, value)` has, whose results are eager's."""
    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(f, backend=backend.kiln)
        for value in values:
            got, want = run(X, value), f(X, value)
            torch.testing.assert_close(got, want, check_dtype=True)
    assert {piece.state for piece in found} == {"compiled"}, [piece.reason for piece in found]
    return len(found), sum(len(e.bindings()) for piece in found for e in piece.engines)


@pytest.mark.native
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    # The first value is a constant of its graph, as dynamo has it.
    assert graphs_of(FLOATS[name], [0.3 * i + 0.1 for i in range(6)]) == (2, 2)


@pytest.mark.native
@pytest.mark.parametrize("name", INTS)
def test_ints(name):
    assert graphs_of(INTS[name], [2, 3, 5, 4, 6]) == (2, 2)


@pytest.mark.native
def test_one_graph_from_the_first_call_with_dynamic():
    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(lambda x, s: x * s, backend="kiln", dynamic=True)
        for s in (0.5, -1.5, 2.25):
            torch.testing.assert_close(run(X, s), X * s)
    assert len(found) == 1


def test_ints_that_are_sizes_are_sizes():
    with torch.no_grad():
        run = torch.compile(lambda x, n: x.repeat(n, 1) * n, backend=backend.kiln)
        for n in (2, 3, 4):
            torch.testing.assert_close(run(X, n), X.repeat(n, 1) * n)


def test_floats_that_are_sizes_are_constants_of_their_graphs():
    with torch.no_grad():
        run = torch.compile(lambda x, s: x[: int(s)] * s, backend=backend.kiln)
        for s in (2.5, 3.5, 1.5):
            torch.testing.assert_close(run(X, s), X[: int(s)] * s)


def test_numbers_and_sizes_together():
    def f(x, s, n):
        return x * (s / x.shape[0]) + n * x.shape[1] + x.clamp(s, x.shape[0])

    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(f, backend=backend.kiln, dynamic=True)
        for rows, s, n in ((4, 0.5, 3), (3, 1.5, 4), (2, 0.25, 7)):
            torch.testing.assert_close(run(X[:rows], s, n), f(X[:rows], s, n))
    assert {piece.state for piece in found} == {"compiled"}


@pytest.mark.native
def test_a_number_in_two_pieces():
    def f(x, s):
        y = (x * s).bernoulli(0.5) * 0
        return (y + s).relu() + s

    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(f, backend=backend.kiln)
        for s in (0.5, 1.5, 2.5):
            torch.testing.assert_close(run(X, s), f(X, s))
    assert {piece.state for piece in found} == {"compiled", "eager"}


def test_the_environment_is_as_before(monkeypatch):
    import os

    monkeypatch.setenv("TENSORIFY_PYTHON_SCALARS", "1")
    with torch.no_grad():
        torch.compile(lambda x: x * 2, backend=backend.kiln)(X)
    assert os.environ["TENSORIFY_PYTHON_SCALARS"] == "1"


# `item`


def test_the_number_of_a_tensor_is_no_step_of_torch():
    def f(x, t):
        return x * t.item() + x.sum().item()

    compiled = kiln.compile(f, (X, torch.tensor(2.5)), options={"fallback": "error"})
    for t in (torch.tensor(-1.0), torch.tensor(3.5)):
        torch.testing.assert_close(compiled(X, t), f(X, t))
    assert not compiled.explain().eager
    captured = torch._dynamo.config.patch(capture_scalar_outputs=True)
    with captured, torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(f, backend=backend.kiln, fullgraph=True)
        torch.testing.assert_close(run(X, torch.tensor(4.0)), f(X, torch.tensor(4.0)))
    assert [piece.state for piece in found] == ["compiled"]


def test_a_number_of_a_tensor_that_is_a_result_is_read_by_torch():
    compiled = kiln.compile(lambda x, t: (x * 2, t.item() + 1), (X, torch.tensor(2)))
    got = compiled(X, torch.tensor(5))
    assert got[1] == 6
    torch.testing.assert_close(got[0], X * 2)


# kiln.compile


class Scaled(nn.Module):
    def forward(self, x, scale, shift=2, *, negative=False):
        y = (x * scale).relu() + shift * x.sin() + scale * shift
        return -y if negative else y


def test_numbers_are_inputs_with_dynamic():
    module = Scaled().eval()
    compiled = kiln.compile(module, (X, 0.5, 3), dynamic=True)
    for scale, shift in ((0.5, 3), (1.5, -7), (-3, 0), (1.25, 1)):
        want = module(X, scale, shift)
        torch.testing.assert_close(compiled(X, scale, shift), want)
        torch.testing.assert_close(compiled(X, shift=shift, scale=scale), want)
    assert len(compiled.bindings()) == 1
    assert "forward" not in vars(module)
    with pytest.raises(kiln.InputError, match=r"input `shift` is 2.5, and was .* type int"):
        compiled(X, 0.5, 2.5)
    with pytest.raises(kiln.InputError, match=r"input `scale` is 'a', and was .* type float"):
        compiled(X, "a", 2)


def test_numbers_are_constants_without_dynamic():
    compiled = kiln.compile(Scaled().eval(), (X, 0.5, 3))
    torch.testing.assert_close(compiled(X, 0.5, 3), Scaled()(X, 0.5, 3))
    with pytest.raises(kiln.InputError, match=r"scale`? is 0.75"):
        compiled(X, 0.75, 3)


def test_numbers_by_name():
    given = {"x": None, "scale": True, "shift": None}
    compiled = kiln.compile(Scaled().eval(), (X, 0.5, 3), dynamic=given)
    torch.testing.assert_close(compiled(X, 2.5, 3), Scaled()(X, 2.5, 3))
    with pytest.raises(kiln.InputError, match=r"shift`? is 4"):
        compiled(X, 2.5, 4)
    branches = {"x": None, "scale": None, "shift": None, "negative": True}
    with pytest.raises(kiln.UnsupportedError, match=r"cannot trace .* data-dependent"):
        kiln.compile(Scaled().eval(), (X, 0.5, 3), kwargs={"negative": True}, dynamic=branches)


def test_bools_by_name():
    compiled = kiln.compile(lambda x, on: x * on, (X, True), dynamic={"x": None, "on": True})
    for on in (True, False):
        torch.testing.assert_close(compiled(X, on), X * on)


def test_numbers_that_are_sizes_keep_their_value():
    compiled = kiln.compile(lambda x, n, s: x[:, :n] * s, (X, 3, 0.5), dynamic=True)
    torch.testing.assert_close(compiled(X, 3, 1.5), X[:, :3] * 1.5)
    with pytest.raises(kiln.InputError, match=r"n`? is 2"):
        compiled(X, 2, 1.5)


@pytest.mark.native
def test_numbers_of_an_artifact_are_tensors(tmp_path):
    compiled = kiln.compile(lambda x, s: x * s, (X, 0.5), dynamic={"x": None, "s": True})
    compiled.save(tmp_path / "scaled.kiln")
    loaded = kiln.load(tmp_path / "scaled.kiln")
    torch.testing.assert_close(loaded(X, torch.tensor(2.0, dtype=torch.float64)), X * 2)
