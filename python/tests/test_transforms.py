"""Transforms of `torch.func` within what `torch.compile` hands over: values of eager, or eager."""

from __future__ import annotations

import json
import random
import warnings

import pytest
import torch
from agreement import agree, compiled, same
from torch._dynamo.exc import TorchRuntimeError
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional

from kiln import pieces, versions
from kiln.api import backend
from kiln.tracing import aot, transforms

W = torch.linspace(-1, 1, 16).reshape(4, 4).cos()
U = torch.linspace(-0.5, 1.5, 4)


def written(n):
    """A tensor that is written to through a view of it."""
    z = torch.zeros(n, n)
    z.diagonal().fill_(1.0)
    z[0, 1:] += 2
    return z


#: Functions of a vector, with the operators that Kiln keeps whole.
DIFFERENTIATED = {
    "a matrix that was written": lambda f: grad(lambda u: (written(4) @ u).sum())(f),
    "grad of matmul": grad(lambda u: (W @ u).sin().sum()),
    "vjp of linear": lambda u: vjp(lambda v: functional.linear(v, W), u)[1](u)[0],
    "jacrev of matmul": jacrev(lambda u: W @ u),
    "jacfwd of matmul": jacfwd(lambda u: W @ u),
    "hessian": hessian(lambda u: (W @ u).sin() @ u),
    "jvp": lambda u: jvp(lambda v: functional.layer_norm(v, (4,)) @ W, (u,), (u + 1,)),
    "forward over reverse": jacfwd(grad(lambda u: functional.softmax(W @ u, 0) @ u)),
    "reverse over forward": jacrev(jacfwd(lambda u: (W @ u).tanh())),
    "grad in vmap": lambda u: vmap(grad(lambda v: (W @ v).exp().sum()))(torch.outer(u, u)),
    "attention": grad(
        lambda u: functional.scaled_dot_product_attention(
            u.expand(1, 4, 4) * W, W[None], W[None].sin()
        ).sum()
    ),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_go_through_operators_that_are_kept_whole(name):
    f = DIFFERENTIATED[name]
    torch._dynamo.reset()
    # Both modes, in turn.
    gradients = list(DIFFERENTIATED).index(name) % 2 == 0
    with torch.set_grad_enabled(gradients), pieces.collecting() as found:
        same(torch.compile(f, backend=backend.kiln)(U), f(U))
    assert "compiled" in [piece.state for piece in found]


def names_of(piece):
    """The operators of a compiled piece, by the names that its nodes have."""
    (engine,) = piece.engines
    kernels = json.loads(engine.report(None))["kernels"]
    return [node.rpartition("::")[2] for kernel in kernels for node in kernel["nodes"]]


def test_operators_stay_whole_where_nothing_is_differentiated():
    def f(u, w):
        return functional.linear(u, w), grad(lambda v: (v @ v).sin())(u)

    (piece,) = agree(f, U, W)
    assert "linear" in names_of(piece)


# A random family


class Drawn:
    """A function of a vector of four elements, and a transform of it, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.text: list[str] = []

    def function(self, scalar: bool):
        steps = self.draw.choices(list(STEPS), k=self.draw.randint(2, 4))
        self.text.append(" ".join(steps) + (" to a scalar" if scalar else ""))

        def f(u):
            for step in steps:
                u = STEPS[step](u)
            return (u @ u.cos()) if scalar else u

        return f

    def transformed(self, depth: int = 2):
        """A function of a vector, whose results are those of a transform."""
        name = self.draw.choice(list(TRANSFORMS))
        self.text.append(name)
        of_scalar, transform = TRANSFORMS[name]
        if depth > 1 and not of_scalar and self.draw.random() < 0.6:
            return transform(self.transformed(depth - 1))
        return transform(self.function(of_scalar))


def through_views(u):
    z = torch.zeros_like(u).expand(2, 4).clone()
    z[0] = u
    z[1, ::2].copy_(u[::2].sin())
    z.diagonal().mul_(2)
    return z.sum(0)


#: Each keeps a vector of four elements.
STEPS = {
    "matmul": lambda u: W @ u,
    "linear": lambda u: functional.linear(u, W, W[0]),
    "sin": torch.sin,
    "softmax": lambda u: functional.softmax(u, -1),
    "layer_norm": lambda u: functional.layer_norm(u, (4,), W[1], W[2]),
    "written": lambda u: written(4) @ u,
    "views": through_views,
    "cumsum": lambda u: u.cumsum(-1),
    "where": lambda u: torch.where(u > 0, u.tanh(), u * 0.5),
    "index": lambda u: u[torch.tensor([2, 0, 1, 1])],
    "outer": lambda u: torch.outer(u, u).sum(0),
    "einsum": lambda u: torch.einsum("i,ij->j", u, W),
    "gelu": functional.gelu,
    "attention": lambda u: functional.scaled_dot_product_attention(
        (W * u)[None], W[None], W[None].sin()
    )[0, 1],
    "conv": lambda u: functional.conv1d(u.view(1, 1, 4), W[:1, :3].view(1, 1, 3), padding=1).view(
        4
    ),
    "cosine": lambda u: functional.cosine_similarity(W, u.expand(4, 4)),
    "flatten": lambda u: torch.stack([u, u * 2]).flatten()[2:6],
}

#: Whether a transform takes functions that give a scalar, and the transform.
TRANSFORMS = {
    "grad": (True, grad),
    "hessian": (True, hessian),
    "jacrev": (False, jacrev),
    "jacfwd": (False, jacfwd),
    "jvp": (False, lambda f: lambda u: jvp(f, (u,), (u.cos(),))),
    "vjp": (False, lambda f: lambda u: vjp(lambda v: _first(f(v)).sum(), u)[1](torch.ones(()))[0]),
    "vmap": (False, lambda f: lambda u: vmap(lambda v: f(v))(torch.outer(u, u) + 1)),
    "vmap of rows": (False, lambda f: lambda u: vmap(f, in_dims=1, out_dims=-1)(W * u)),
    "vmap grad": (True, lambda f: lambda u: vmap(grad(f))(W * u)),
    "grad of vmap": (True, lambda f: grad(lambda u: vmap(f)(W * u).sum())),
}


def _first(result):
    return result if isinstance(result, torch.Tensor) else _first(result[0])


def check_drawn(seed):
    drawn = Drawn(seed)
    f = drawn.transformed()
    torch.manual_seed(seed)
    u = torch.randn(4)
    print(f"seed {seed}: {drawn.text}")
    try:
        want = f(u)
    except RuntimeError as error:
        pytest.skip(f"eager refuses {drawn.text}: {error}")
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            got = torch.compile(f, backend=backend.kiln)(u)
    except TorchRuntimeError as error:
        # Of dynamo's own trace, before any backend is called.
        pytest.skip(f"dynamo refuses {drawn.text}: {str(error).splitlines()[0]}")
    finally:
        clean()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def clean():
    """Fails unless no transform is left on."""
    assert versions.transform_depth() == 0 and not versions.is_forward_mode()
    assert versions.autograd_settings() == (False, None)
    same(hessian(lambda u: (u * u).sum())(U), 2 * torch.eye(4))


@pytest.mark.parametrize("seed", range(12))
def test_random_transforms_give_what_eager_gives(seed):
    check_drawn(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 400))
def test_more_random_transforms_give_what_eager_gives(seed):
    check_drawn(seed)


# What cannot be traced, and what fails


def test_what_torch_cannot_trace_runs_eagerly_and_leaves_no_transform_on():
    # Autograd makes a view of another view's strides, which AOT cannot follow under vmap.
    f = vmap(grad(lambda u: through_views(u) @ u.cos()))
    with pieces.collecting() as found, torch.no_grad():
        got = torch.compile(f, backend=backend.kiln)(W.t())
    same(got, f(W.t()))
    assert [p.state for p in found] == ["eager"] and "torch cannot trace it" in found[0].reason
    clean()


@pytest.mark.parametrize("transform", [jacfwd, jacrev, lambda f: vmap(grad(lambda u: f(u).sum()))])
def test_a_call_that_fails_leaves_no_transform_on(transform):
    def f(u, i):
        return transform(lambda v: W[i] @ v)(u), u * 2

    u = (W if transform not in (jacfwd, jacrev) else U).clone().requires_grad_()
    run = torch.compile(f, backend=backend.kiln)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "kiln: gradients are on")
        run(u, torch.tensor([0, 1]))
    with pytest.raises(IndexError, match="out of bounds"):
        run(u, torch.tensor([0, 10]))
    clean()
    same(run(u, torch.tensor([0, 1])), f(u, torch.tensor([0, 1])))


def test_a_body_that_fails_leaves_modes_as_they_were():
    with pytest.raises(ValueError, match="here"), transforms.undone():
        torch._C._functorch._grad_increment_nesting()
        torch._C._functorch._jvp_increment_nesting()
        torch._C._enter_dual_level()
        torch._C._functorch._vmap_increment_nesting(2, "error")
        torch._C._set_grad_enabled(False)
        torch._C._functorch.set_inplace_requires_grad_allowed(True)
        torch._C._autograd._saved_tensors_hooks_disable("a test")
        torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, None)
        raise ValueError("here")
    clean()
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


# The check of what was lost


def of_unknown_means(monkeypatch):
    """Makes derivatives that Kiln does not recognise in a graph."""
    monkeypatch.setattr(transforms, "differentiates", lambda gm: False)


@pytest.mark.parametrize("name", ["a matrix that was written", "jacrev of matmul"])
def test_a_trace_that_lost_what_it_should_read_is_not_taken(name, monkeypatch, caplog):
    of_unknown_means(monkeypatch)
    f = DIFFERENTIATED[name]
    with torch.no_grad():
        same(compiled(f)(U), f(U))
    assert "composite operators are decomposed: traced whole, nothing reads" in caplog.text


def test_a_write_that_no_result_depends_on_keeps_operators_whole(monkeypatch):
    traces = []
    run = aot._Trace.run

    def counted(self, inference, *, whole):
        traces.append(whole)
        return run(self, inference, whole=whole)

    def f(u, w):
        z = torch.zeros(4)
        z[1:].fill_(2)
        # The gradient does not depend on z.
        return functional.linear(u, w) + vjp(lambda v: v.sin() + z, u)[1](u)[0]

    monkeypatch.setattr(aot._Trace, "run", counted)
    (piece,) = agree(f, U, W)
    assert traces == [True, False, True] and "linear" in names_of(piece)
