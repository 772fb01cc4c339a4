"""Graphs that are split around what Kiln refuses: results, state, and the pieces."""

from __future__ import annotations

import pytest
import torch
from agreement import same
from refused import (
    PLACES,
    REFUSED,
    Buffers,
    X,
    agree,
    compiled,
    counted,
    masked,
    noise,
    spectrum,
    states,
)
from torch import nn

import kiln
from kiln import pieces
from kiln.api import backend


@pytest.mark.native
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_runs_eagerly_in_place(name):
    check(name, "twice", False)


@pytest.mark.native
@pytest.mark.parametrize("place", PLACES)
def test_what_is_refused_runs_eagerly_wherever_it_is(place):
    check("complex", place, True)


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", REFUSED)
def test_whatever_is_refused_wherever_it_is(name, place, dynamic):
    check(name, place, dynamic)


def check(name, place, dynamic):
    around, count = PLACES[place]
    found = agree(around(REFUSED[name]), X, dynamic=dynamic)
    eager = [piece for piece in found if piece.state == "eager"]
    assert all("refused.py:" in p.source and p.reason for p in eager)
    # Calls before what is refused, or between two such calls, are pieces of their own.
    most = count + (3 if name == "copies by strides" else 2)
    assert eager and count <= states(found).count("compiled") <= most, found


@pytest.mark.native
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_may_be_an_error(name):
    f = REFUSED[name]
    with torch.no_grad(), pytest.raises(kiln.UnsupportedError, match="leave out fallback='error'"):
        compiled(lambda x: f(x * 2) + 1, fallback="error")(X)


@pytest.mark.native
@pytest.mark.parametrize("f", [counted, masked])
def test_sizes_that_depend_on_data(f):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = agree(lambda x: f(x * 2) + 1, X)
    assert "depend on data" in " ".join(p.reason for p in found if p.state == "eager")
    assert states(found).count("compiled") >= 1


def test_a_number_that_is_read_from_a_tensor():
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        found = agree(lambda x: (x * 2 + x.sum().item(), x.relu() + 1), X)
    # It is an operand, and so no number.
    assert states(found) == ["compiled"]


@pytest.mark.native
def test_operators_of_users_are_steps_of_a_compiled_piece():
    f = lambda x: torch.ops.kilntest.double(x + 1) - 1  # noqa: E731
    for dynamic in (False, True):
        (piece,) = agree(f, X, dynamic=dynamic)
        assert piece.state == "compiled" and piece.engines[0].fallbacks() == ["kilntest::double"]
    g = lambda x: [p + 1 for p in torch.ops.kilntest.parts(x * 2, [1, 2], 0.5, "a")]  # noqa: E731
    (piece,) = agree(g, X)
    assert piece.engines[0].fallbacks() == ["kilntest::parts"]
    with torch.no_grad(), pytest.raises(kiln.UnsupportedError, match="kilntest::double"):
        compiled(f, fallback="error")(X)


def test_an_operator_that_gives_an_alias_is_none_that_computes():
    """Torch itself traces none of these operators."""
    (piece,) = agree(lambda x: torch.ops.kilntest.first(x * 2) + 1, X)
    assert piece.state == "eager" and "alias annotations: kilntest::first" in piece.reason
    with torch.no_grad(), pytest.raises(kiln.UnsupportedError, match="alias annotations"):
        compiled(lambda x: torch.ops.kilntest.first(x * 2) + 1, fallback="error")(X)


@torch.library.custom_op("kilntest::memory", mutates_args=(), tags=(torch.Tag.needs_exact_strides,))
def memory(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.stride()) + x.new_zeros((), dtype=torch.int64)


@memory.register_fake
def _(x):
    return x.new_empty((x.dim(),), dtype=torch.int64)


@pytest.mark.native
def test_operators_that_ask_for_strides_get_them():
    (piece,) = agree(lambda x: torch.ops.kilntest.memory(x + 1) + 1, X)
    assert piece.state == "compiled"
    found = agree(lambda x: torch.ops.kilntest.memory(x.t() + 1) + 1, X)
    assert states(found) == ["compiled", "eager", "compiled"]


@pytest.mark.native
def test_sorts_are_steps_of_a_compiled_piece():
    def f(x):
        values, places = (x * 2).sort(-1, descending=True)
        return values + 1, places, x.argsort(dim=0, stable=True), (x + 1).topk(2, dim=0), x.msort()

    (piece,) = agree(f, X)
    assert set(piece.engines[0].fallbacks()) >= {"aten::sort", "aten::argsort", "aten::topk"}


@pytest.mark.native
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["complex", "random", "written", "cond", "as_strided"])
def test_writes_are_behind_what_reads(name, dynamic):
    found = agree(Buffers(REFUSED[name]), X, dynamic=dynamic)
    assert states(found).count("compiled") >= 2


@pytest.mark.native
def test_inputs_that_are_written_and_results_that_share_memory():
    def f(x, y):
        a = spectrum(x * 2)
        x.add_(a)
        y[1:].copy_(spectrum(y)[1:] * x[1:])
        b = spectrum(x) + 1
        return x, y.t(), b, b[1:], a, a.t(), x.shape[0]

    got = [*(t.clone() for t in (X, X + 1))]
    want = [t.clone() for t in got]
    with torch.no_grad(), pieces.collecting() as found:
        ours, theirs = compiled(f)(*got), f(*want)
        same((*ours, *got), (*theirs, *want))
        # What is written to one shows in the others.
        for a, b in zip(ours, theirs, strict=True):
            if isinstance(a, torch.Tensor):
                assert a.stride() == b.stride()
                a.add_(1)
                b.add_(1)
                same((*ours, *got), (*theirs, *want))
    assert states(found).count("compiled") >= 2


@pytest.mark.native
def test_random_numbers_are_drawn_in_order():
    def f(x):
        a = torch.rand(3, 4)
        b = torch.rand(3, 4) * x
        c = noise(spectrum(b))
        return a * x, b, c, torch.rand(2) + 1

    assert "draws random numbers" in "".join(p.reason for p in agree(f, X))


@pytest.mark.native
def test_sizes_that_only_inputs_of_other_pieces_tell():
    def f(x, y):
        doubled = spectrum(torch.cat([x, x], 1)) * 2
        twos = torch.full((y.shape[0],), 2.0)
        return doubled + x.shape[1], doubled.reshape(-1, 2), twos * x.shape[0]

    for rows in (3, 5):
        agree(f, torch.randn(rows, 4 + rows), torch.randn(7), dynamic=True)


@pytest.mark.native
def test_parameters_may_change_between_calls():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(spectrum(self.a(x)))

    model = Model().eval()
    run = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            same(run(X), model(X))
            model.a.weight.mul_(2)
            model.b.bias.add_(1)
            model.b.weight.data = torch.randn(4, 4)


@pytest.mark.native
def test_explain_lists_the_pieces():
    report = kiln.explain(lambda x: spectrum(x * 2) + 1, X)
    assert [part.state for part in report.parts] == ["compiled", "eager", "compiled"]
    (eager,) = report.eager
    assert "`aten::fft_fft` gives complex64 values" in eager.reason
    assert "view_as_real" not in eager.reason
    assert "refused.py:" in eager.source and eager.reason.endswith(eager.source)
    assert "piece 1 at " in str(report) and "runs eagerly: `aten::fft_fft`" in str(report)
    assert report.to_dict()["pieces"][1]["state"] == "eager"


@pytest.mark.native
def test_what_has_nothing_to_compile_is_one_piece():
    (piece,) = agree(lambda x: torch.fft.fft(x).real, X)
    assert piece.state == "eager" and "complex64" in piece.reason


@pytest.mark.native
@pytest.mark.parametrize("name", ["every second", "from the third", "transposed"])
def test_memory_is_read_as_the_operand_has_it(name):
    """An engine has copies of inputs, one element after the other."""
    whole = torch.arange(12.0)
    transposed = whole.view(3, 4).t()
    x = {"every second": whole[::2], "from the third": whole[2:], "transposed": transposed}[name]

    def f(x):
        return torch.as_strided(x, (2, 2), (1, 2), 0) * 2 + x.sum()

    with torch.no_grad():
        same(torch.compile(f, backend=backend.kiln)(x), f(x))
        same(kiln.compile(f, (x,))(x), f(x))
