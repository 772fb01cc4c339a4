"""`kiln.compile` of modules that keep tensors in attributes, check data, or call what torch cannot
trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import kiln

X = torch.arange(12.0).reshape(3, 4) - 5


class Cell(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.hidden = hidden

    def forward(self, x):
        before = torch.zeros_like(x) if self.hidden is None else self.hidden
        self.hidden = torch.tanh(self.layer(x) + before)
        return self.hidden * 2


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell(torch.zeros(3, 4))

    def forward(self, x):
        return self.cell(x) + 1


def twins(make):
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(make().eval())
    return made


class Buffered(Outer):
    """An inner buffer that is replaced, whose old value is a result."""

    def __init__(self):
        super().__init__()
        del self.cell.hidden
        self.cell.register_buffer("hidden", torch.zeros(3, 4), persistent=False)

    def forward(self, x):
        before = self.cell.hidden
        return before, before[0], self.cell(x) + 1


@pytest.mark.parametrize("make", [lambda: Cell(torch.zeros(3, 4)), Outer, Buffered])
def test_a_tensor_that_a_module_assigns_to_itself_is_state(make):
    module, eager = twins(make)
    compiled = kiln.compile(module, (X,))
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(X), eager(X))
    name = "hidden" if isinstance(module, Cell) else "cell.hidden"
    assert list(compiled.state) == [name]
    cell, other = (m if isinstance(m, Cell) else m.cell for m in (module, eager))
    torch.testing.assert_close(cell.hidden, other.hidden)
    assert "hidden" not in compiled.state_dict()


def test_state_that_begins_with_none_is_refused_with_a_remedy():
    module = Cell(None).eval()
    text = r"keeps a tensor in `hidden`, which is None .*make it a tensor of shape \[3, 4\]"
    with pytest.raises(kiln.UnsupportedError, match=text):
        kiln.compile(module, (X,))
    assert module.hidden is None and "hidden" not in module._buffers


@pytest.mark.parametrize("known", [False, True])
def test_a_tensor_that_is_only_left_in_a_module_is_told_of(known):
    class Records(nn.Module):
        def __init__(self):
            super().__init__()
            if known:
                self.last = None

        def forward(self, x):
            self.last = x * 2
            return self.last + 1

    module = Records().eval()
    with pytest.warns(UserWarning, match="kiln: the module assigns `last`, which calls of"):
        compiled = kiln.compile(module, (X,))
    torch.testing.assert_close(compiled(X), X * 2 + 1)
    assert getattr(module, "last", None) is None and "forward" not in vars(module)


# Checks of data


class Checks(nn.Module):
    def forward(self, x):
        if torch.any(x < -100):
            raise ValueError(f"{x.shape} has small values")
        if not (x < 100).all():
            raise ValueError("large values")
        return x * 2


def test_checks_that_read_data_are_left_out():
    before = torch.Tensor.__dict__.get("__bool__")
    compiled = kiln.compile(Checks().eval(), (X,), options={"fallback": "error"})
    torch.testing.assert_close(compiled(X), X * 2)
    assert torch.Tensor.__dict__.get("__bool__") is before


def test_branches_on_data_are_no_checks():
    def two(x):
        if x.sum() > 0:
            y = x + 1
            raise_later = False
        else:
            y, raise_later = x, True
        if raise_later:
            raise ValueError
        return y

    with pytest.raises(kiln.UnsupportedError, match="cannot trace"):
        kiln.compile(two, (X,))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("full", [False, True])
def test_gaussian_nll_loss(reduction, full):
    given = X, X + 1, X.abs() + 0.1

    def loss(x, y, v):
        return F.gaussian_nll_loss(x, y, v, full=full, reduction=reduction)

    torch.testing.assert_close(kiln.compile(loss, given)(*given), loss(*given))


# Functions that torch cannot trace


@pytest.mark.native
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc_loss(reduction):
    scores = torch.randn(20, 3, 6).log_softmax(2)
    targets = torch.randint(1, 6, (3, 7))
    sizes = torch.full((3,), 20), torch.tensor([7, 5, 3])
    loss = nn.CTCLoss(reduction=reduction, zero_infinity=True).eval()
    compiled = kiln.compile(loss, (scores, targets, *sizes))
    for lengths in (sizes[1], torch.tensor([1, 7, 2])):
        given = scores, targets, sizes[0], lengths
        torch.testing.assert_close(compiled(*given), loss(*given))

    def listed(scores, targets):
        return F.ctc_loss(scores, targets, [20, 20, 20], [7, 5, 3], reduction=reduction)

    got = kiln.compile(listed, (scores, targets))(scores, targets)
    torch.testing.assert_close(got, listed(scores, targets))


@pytest.mark.native
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multilabel_margin_loss_of_vectors(reduction):
    x, target = X[0], torch.tensor([3, 0, -1, 1])

    def loss(x, target):
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    got = kiln.compile(loss, (x, target))(x, target)
    assert got.shape == loss(x, target).shape
    torch.testing.assert_close(got, loss(x, target))
    rows = X, target.expand(3, 4)
    torch.testing.assert_close(kiln.compile(loss, rows)(*rows), loss(*rows))
