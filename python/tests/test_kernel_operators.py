"""Operators from kernels, and derivatives of kernels written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import kiln
import kiln.language as kl
from kiln.kernels import cdiv
from test_kernel_graphs import add_kernel, split_kernel

pytestmark = pytest.mark.native

add_op = kiln.op(
    add_kernel,
    outputs={"out": lambda x: torch.empty_like(x)},
    given={"n": lambda x: x.numel(), "BLOCK": 64},
    grid=lambda named: (cdiv(named["n"], named["BLOCK"]),),
)

split_op = kiln.op(
    split_kernel,
    outputs={"low": lambda x: torch.empty_like(x), "high": lambda x: torch.empty_like(x)},
    given={"n": lambda x: x.numel(), "BLOCK": 32},
    grid=lambda named: (cdiv(named["n"], named["BLOCK"]),),
)


class Operators(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        low, high = split_op(x * 2)
        return add_op(low, y=high) + 1

    def reference(self, x: Tensor) -> Tensor:
        return x * 2 + 1


@torch.no_grad()
def test_operators():
    module, x = Operators().eval(), torch.randn(5, 7)
    want = module.reference(x)
    torch.testing.assert_close(module(x), want)
    options = {"fallback": "error"}
    torch.testing.assert_close(kiln.compile(module, (x,), options=options)(x), want)
    compiled = torch.compile(module, backend="kiln", options=options, fullgraph=True)
    torch.testing.assert_close(compiled(x), want)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: add_op(x), "add_kernel() lacks the argument `y`"),
        (lambda x: add_op(x, x, x), "takes 2 arguments (x, y), but 3 were given"),
        (lambda x: add_op(x, x, z=x), "takes `z` once at most"),
        (
            lambda x: kiln.op(
                add_kernel, outputs={"y": lambda x: x + 1}, grid=(1,), given={"BLOCK": 16}
            )(x, x + 0, 5),
            "its kernel writes to `out` too",
        ),
        (
            lambda x: kiln.op(
                split_kernel, outputs={"low": lambda x: torch.empty_like(x)}, grid=(1,), given={"BLOCK": 16}
            )(x, x, 5),
            "its kernel writes to `high` too",
        ),
        (
            lambda x: kiln.op(add_kernel, outputs={"out": torch.empty_like}, grid=(1,)),
            "write a function, as `lambda x: empty_like(x)`",
        ),
        (lambda x: kiln.op(add_kernel, outputs={"z": lambda x: x}, grid=(1,)), "`z` is no parameter of it"),
    ],
)
def test_calls_that_do_not_fit_an_operator(call, told):
    with pytest.raises(TypeError) as error:
        call(torch.randn(5))
    assert told in str(error.value)


# Derivatives


@kiln.kernel
def square_kernel(x, out, n, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    value = kl.load(x + at, at < n)
    kl.store(out + at, value * value, at < n)


@kiln.kernel
def square_backward_kernel(x, grad, out, n, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(out + at, 2 * kl.load(x + at, at < n) * kl.load(grad + at, at < n), at < n)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        square_kernel[(1,)](x, out, x.numel(), BLOCK=128)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        out = torch.empty_like(x)
        square_backward_kernel[(1,)](x, grad.contiguous(), out, x.numel(), BLOCK=128)
        return out


square_op = kiln.op(
    square_kernel,
    outputs={"out": lambda x: torch.empty_like(x)},
    given={"n": lambda x: x.numel(), "BLOCK": 128},
    grid=(1,),
)
square_backward_op = kiln.op(
    square_backward_kernel,
    outputs={"out": lambda x: torch.empty_like(x)},
    given={"n": lambda x: x.numel(), "BLOCK": 128},
    grid=(1,),
)
square_op.register_autograd(
    lambda ctx, grad: square_backward_op(*ctx.saved_tensors, grad.contiguous()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@pytest.mark.parametrize("square", [Square.apply, square_op], ids=["function", "operator"])
@pytest.mark.parametrize("backend", [None, "aot_eager", "kiln"])
def test_derivatives(square, backend):
    def loss(x: Tensor) -> Tensor:
        return (square(x * 3) + x).sum()

    run = loss if backend is None else torch.compile(loss, backend=backend, fullgraph=True)
    x = torch.randn(6, 8, requires_grad=True)
    if backend == "kiln":
        with pytest.warns(UserWarning, match="gradients are on"):
            run(x).backward()
    else:
        run(x).backward()
    torch.testing.assert_close(x.grad, 18 * x + 1)
    with torch.no_grad():
        torch.testing.assert_close(run(x), (9 * x * x + x).sum())
