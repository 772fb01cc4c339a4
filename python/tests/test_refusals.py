"""`torch.compile` with the backend: what runs eagerly instead, and what is an error."""

from __future__ import annotations

import warnings

import pytest
import torch
from agreement import X, compiled, same
from torch import nn

import kiln
from kiln import pieces
from kiln.api import backend

# Training


def test_gradients_run_eagerly_and_that_is_said_once_a_model():
    layer = nn.Linear(4, 4)
    want = layer(X).sum()
    want.backward()
    grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    with pieces.collecting() as found, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = compiled(layer)
        got = run(X).sum()
        # The same graph, and another one of the same model.
        run(X), run(X[:2])
        compiled(lambda x: layer(x) * 2)(X)
    got.backward()
    same(got, want)
    same([p.grad for p in layer.parameters()], grads)
    assert [piece.state for piece in found] == ["eager"] * 3
    assert all("gradients are on" in piece.reason for piece in found)
    said = [w for w in said if "kiln" in str(w.message)]
    assert [str(w.message) for w in said] == [
        "kiln: gradients are on: the model runs eagerly; use torch.no_grad()"
    ] * 2
    assert all(w.filename == __file__ for w in said[1:])


def test_gradients_may_be_an_error():
    layer = nn.Linear(4, 4)
    text = r"needs gradients at .*test_refusals.py:\d+: run it under"
    with pytest.raises(kiln.UnsupportedError, match=text):
        compiled(lambda x: layer(x), training="error")(X)


def test_what_needs_no_gradients_is_compiled_while_they_are_on():
    layer = nn.Linear(4, 4)
    with pieces.collecting() as found:
        same(compiled(lambda x: layer(x).argmax(-1))(X), layer(X).argmax(-1))
        same(compiled(lambda x: x * 2 + 1)(X), X * 2 + 1)
    assert [piece.state for piece in found] == ["compiled", "compiled"]


def test_no_grad_within_the_function_is_compiled():
    layer = nn.Linear(4, 4)

    @torch.no_grad()
    def f(x):
        return layer(x).relu()

    with pieces.collecting() as found:
        got = compiled(f)(X)
    same(got, f(X))
    assert not got.requires_grad
    assert [piece.state for piece in found] == ["compiled"]


# Refusals


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def test_what_kiln_refuses_runs_eagerly_and_says_why():
    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(branch, backend=backend.kiln)
        same(run(X), branch(X))
        same(run(-X), branch(-X))
    (before, piece) = found
    assert before.state == "compiled"
    assert piece.state == "eager" and "cond" in piece.reason


def test_what_kiln_refuses_may_be_an_error():
    with torch.no_grad(), pytest.raises(kiln.UnsupportedError, match="cond"):
        compiled(branch, fallback="error")(X)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32], ids=str)
def test_an_input_of_a_dtype_that_kiln_lacks_runs_eagerly(dtype):
    x = torch.arange(5).to(dtype)
    f = lambda x: x.float() + 1  # noqa: E731
    with torch.no_grad(), pieces.collecting() as found:
        same(compiled(f, fallback="torch")(x), f(x))
        (piece, after) = found
        name = str(dtype).removeprefix("torch.")
        assert piece.state == "eager" and f"takes {name} values" in piece.reason
        assert after.state == "compiled"
        with pytest.raises(kiln.UnsupportedError, match=rf"takes {name} values.* at .*:\d+; leave"):
            compiled(f)(x)


def test_an_index_out_of_range_is_the_callers_error():
    table = torch.randn(4, 3)
    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(lambda i: table[i] * 2, backend=backend.kiln)
        with pytest.raises((kiln.InputError, IndexError), match=r"out of (range|bounds)"):
            run(torch.tensor([5]))
        same(run(torch.tensor([3])), table[3:] * 2)
    assert [piece.state for piece in found] == ["compiled"]


def test_data_that_an_operator_of_torch_refuses_gives_the_error_of_torch():
    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(lambda x: torch.linalg.cholesky(x) * 2, backend=backend.kiln)
        with pytest.raises(torch.linalg.LinAlgError):
            run(-torch.eye(3))
        same(run(torch.eye(3)), torch.eye(3) * 2)
    assert len(found) == 1


@pytest.mark.fake
@pytest.mark.parametrize("error", ["ShapeError", "DeviceError", "KilnError"])
def test_what_an_engine_refuses_at_a_call_runs_eagerly(monkeypatch, error):
    import fake_native

    def run(self, args):
        raise getattr(kiln, error)("no: never")

    monkeypatch.setattr(fake_native.Engine, "run", run)
    with torch.no_grad(), pieces.collecting() as found:
        same(torch.compile(lambda x: x * 2, backend=backend.kiln)(X), X * 2)
        (piece,) = found
        assert (piece.state, piece.reason) == ("eager", "no: never")
        with pytest.raises(getattr(kiln, error)):
            compiled(lambda x: x * 3)(X)


@pytest.mark.fake
def test_a_run_that_failed_after_writing_is_not_repeated(monkeypatch):
    import fake_native

    def run(self, args):
        args[0].add_(1)
        raise kiln.KilnError("no: never")

    monkeypatch.setattr(fake_native.Engine, "run", run)
    x = X.clone()
    with torch.no_grad(), pytest.raises(kiln.KilnError, match="never"):
        torch.compile(lambda x: x.add_(1), backend=backend.kiln)(x)
    same(x, X + 1)


@pytest.mark.fake
def test_what_the_engine_refuses_runs_eagerly(monkeypatch):
    import fake_native

    monkeypatch.setattr(fake_native, "REFUSED", {"aten::mul"})
    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(lambda x: x * 2, backend=backend.kiln)
        same(run(X), X * 2)
        same(run(X + 1), (X + 1) * 2)
        with pytest.raises(kiln.UnsupportedError, match=r"aten::mul at .*test_refusals.py"):
            compiled(lambda x: x * 3)(X)
    assert found[0].state == "eager" and "aten::mul" in found[0].reason


@pytest.mark.fake
def test_sizes_that_the_engine_refuses_run_eagerly_and_others_do_not(monkeypatch):
    import fake_native

    original = fake_native.Engine.run

    def run(self, args):
        if any(type(a) is int and a == 5 for a in args):
            raise kiln.UnsupportedError("5 rows: use another number")
        return original(self, args)

    monkeypatch.setattr(fake_native.Engine, "run", run)
    with torch.no_grad(), pieces.collecting() as found:
        f = torch.compile(lambda x: x * 2, backend=backend.kiln, dynamic=True)
        for rows in (3, 5, 4, 5):
            x = torch.randn(rows, 4)
            same(f(x), x * 2)
    (piece,) = found
    assert piece.state == "compiled" and piece.reason.startswith("5 rows")
    assert len(piece.engines[0].bindings()) == 2
