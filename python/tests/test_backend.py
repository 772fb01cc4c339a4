"""`torch.compile` with the backend: results, state and errors are those of eager."""

from __future__ import annotations

import copy
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from agreement import X, agree, compiled, same
from torch import nn

import kiln
from kiln import pieces
from kiln.api import backend
from kiln.tracing import composites

Pair = namedtuple("Pair", "a b")


@dataclass
class Result:
    a: torch.Tensor
    b: torch.Tensor | None = None


RESULTS = {
    "tensor": lambda x: x + 1,
    "tuple": lambda x: (x + 1, x * 2),
    "list": lambda x: [x + 1, x * 2],
    "nested": lambda x: {"a": (x + 1, [x * 2]), "b": None},
    "named tuple": lambda x: Pair(x + 1, x * 2),
    "dataclass": lambda x: Result(x + 1),
    "size": lambda x: (x + 1, x.shape[0], x.shape),
    "constants": lambda x: (x + 1, 3, "a", 2.5, None, True),
    "the same twice": lambda x: (lambda y: (y, y))(x + 1),
    "an input": lambda x: (x, x + 1),
    "a view of an input": lambda x: (x.t(), x[1], x.view(-1), x + 1),
    "a view of a result": lambda x: (lambda y: (y, y.t(), y[1:]))(x + 1),
    "a transposed result": lambda x: (x + 1).t(),
    "an expanded result": lambda x: (x.sum() + 1).expand(3, 2),
    "an integer": lambda x: x.argmax(-1),
    "a boolean": lambda x: x > 0,
    "rank 0": lambda x: x.sum(),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name):
    agree(RESULTS[name], X)


def write(x):
    x.mul_(2)


#: Results that share memory with each other or with the input.
SHARED = {
    "a result and a view of it": lambda x: (lambda y: (y, y.t()))(x + 1),
    "a view before its base": lambda x: (lambda y: (y[1:], y))(x + 1),
    "views of what is no result": lambda x: (lambda y: (y[0], y.view(-1), y.t()[1]))(x + 1),
    "parts": lambda x: (x + 1).chunk(2, -1),
    "an element of parts": lambda x: (lambda y: (y, y.unbind(1)[2]))(x + 1),
    "a view by sizes": lambda x: (lambda y: (y, y.view(x.shape[1], -1), y.unsqueeze(0)))(x * 2),
    "a view with gaps": lambda x: (lambda y: (y, y.diagonal(), y.unfold(1, 2, 1)))(x + 1),
    "written parts": lambda x: (lambda y: (y, y[1:].mul_(2), y.t().add_(1)))(x + 1),
    "views of the input": lambda x: (x.t(), x[1:], x.view(-1), x * 2),
    "the input and a view": lambda x: (x, x[:, 1], x + 1),
    "views of a written input": lambda x: (x.add_(1), x.t(), x[1:, 1], x * 2),
    "other types": lambda x: (lambda y: (y, y.view(torch.int32)))(x + 1),
    "another order in memory": lambda x: (lambda y: (y, y.t().view(-1), y[1]))(x.t() + 1),
    "another order of what is no result": lambda x: (lambda y: (y.t().view(-1), y[1]))(x.t() + 1),
    "beside sizes": lambda x: (lambda y: (x.shape[0], y, None, y.t(), 3))(x + 1),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_results_that_share_memory_do_so_compiled(name, dynamic, gradients):
    f = SHARED[name]
    ours, theirs = X.clone(), X.clone()
    with torch.set_grad_enabled(gradients):
        got, want = compiled(f, dynamic)(ours), f(theirs)
        same(list(got), list(want))
        # What is written to one shows in the others.
        for a, b in ((ours, theirs), *zip(got, want, strict=True)):
            if isinstance(b, torch.Tensor):
                assert a.stride() == b.stride()
                if b.dtype is torch.float32:
                    a.add_(1)
                    b.add_(1)
                same((ours, list(got)), (theirs, list(want)))


def test_a_view_across_a_graph_break_sees_what_is_written():
    def f(x):
        y = x * 2
        v = y.t()
        torch._dynamo.graph_break()
        y.add_(1)
        return v

    with torch.no_grad():
        same(compiled(f, fullgraph=False, fallback="torch")(X), f(X))


def test_a_view_of_a_result_may_be_written_to_where_gradients_are_on():
    scale = torch.ones(3, requires_grad=True)

    def f(x):
        y = x + 1
        return y, y.t()

    y, v = compiled(f)(X)
    v.mul_(scale)
    want, view = f(X)
    view.mul_(scale)
    same((y, v), (want, view))
    assert y.requires_grad


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_keep_the_order_in_memory(dynamic):
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    f = lambda x, y: (x * 2, y + 1, y.relu().sum(0))  # noqa: E731
    with torch.no_grad():
        got, want = compiled(f, dynamic)(image, X.t()), f(image, X.t())
    same(got, want)
    assert [t.stride() for t in got] == [t.stride() for t in want]


@pytest.mark.native
def test_a_transposed_result_is_a_view_and_a_part_is_none():
    with torch.no_grad():
        got = compiled(lambda x: ((x + 1).t(), (x + 2)[1], (x + 3).view(-1)))(X)
    assert got[0].stride() == (1, 4)
    assert [t.untyped_storage().nbytes() for t in got] == [48, 16, 48]


@pytest.mark.fake
def test_results_that_share_nothing_cost_nothing():
    from kiln.lowering import views

    called = []
    original, views.Tail.__call__ = views.Tail.__call__, lambda *a: called.append(1)
    try:
        agree(lambda x: (x + 1, (x * 2).view(-1), (x * 3)[1:]), X)
    finally:
        views.Tail.__call__ = original
    assert not called


MUTATIONS = {
    "an input": lambda x: x.add_(1),
    "an input, and nothing is returned": write,
    "part of an input": lambda x: x[1].zero_().sum(),
    "a column of an input": lambda x: x[:, ::2].fill_(3).sum(),
    "an input and a view of it": lambda x: (x.t().add_(1), x.view(-1)[0]),
    "an index of an input": lambda x: x.index_copy_(0, torch.tensor([1]), x[2:3] * 2) + 0,
    "an input by an operator with out": lambda x: torch.add(x, 1, out=x) * 2,
    "a result's shape": lambda x: (x + 1).t_(),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_of_inputs(name):
    agree(MUTATIONS[name], X)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.scale = 2.0

    def forward(self, x):
        self.count += 1
        self.mean.lerp_(x.mean(0), 0.5)
        return self.linear(x) * self.scale + self.mean, self.count


def test_mutations_of_buffers():
    counter = Counter().eval()
    (piece,) = agree(counter, X, calls=3)
    assert len(piece.engines) == 1


def test_a_batch_norm_in_training_mode_updates_its_statistics():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    eager = copy.deepcopy(module)
    with torch.no_grad():
        run = compiled(module, fallback="torch")
        for x in (X, X * 2):
            same(run(x), eager(x))
    same(OrderedDict(module.state_dict()), OrderedDict(eager.state_dict()))


INPUTS = {
    "rank 0": (torch.tensor(2.0),),
    "empty": (torch.zeros(0, 4),),
    "transposed": (X.t(),),
    "strided": (torch.arange(24.0).reshape(4, 6)[::2, 1::2],),
    "expanded": (torch.ones(1, 4).expand(3, 4),),
    "offset": (torch.arange(24.0).reshape(6, 4)[2:],),
    "channels last": (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    "a parameter": (nn.Parameter(torch.ones(3)),),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name):
    agree(lambda x: (x * 2 + 1).relu(), *INPUTS[name])


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    x = torch.tensor([0, 1, 2, 3]).to(dtype)
    agree(lambda x: ((x + x) * 2, x == 1, x.float(), x.sum()), x)
    agree(lambda x: x.logical_not() & True, x.bool())


def test_python_numbers_static_and_dynamic():
    f = lambda x, k, n, flag: (x * k + n, n + 1) if flag else x  # noqa: E731
    for dynamic in (False, True):
        torch._dynamo.reset()
        with torch.no_grad():
            run = compiled(f, dynamic)
            for k, n in ((2.5, 3), (0.5, 7), (-1.5, 4)):
                same(run(X, k, n, True), f(X, k, n, True))


def test_keyword_arguments_and_nested_inputs():
    f = lambda x, *, scale=1.0, more=None: (x * scale, more["b"][0] - x)  # noqa: E731
    agree(f, X, scale=2.0, more={"a": None, "b": [X + 1]})
    agree(f, X, more={"b": (X + 1,)})


def test_optional_inputs_that_come_and_go():
    f = lambda x, mask=None: x if mask is None else x.masked_fill(mask, 0.0)  # noqa: E731
    with torch.no_grad():
        run = compiled(lambda x, mask=None: f(x + 1, mask))
        same(run(X), f(X + 1))
        same(run(X, X > 0), f(X + 1, X > 0))


def test_one_symbolic_graph_serves_all_sizes():
    with torch.no_grad(), pieces.collecting() as found:
        module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
        run = compiled(lambda x: module(x).softmax(-1) + x.shape[0], dynamic=True)
        for rows in (3, 5, 8, 5):
            x = torch.randn(rows, 4)
            same(run(x), module(x).softmax(-1) + rows)
    (piece,) = found
    (engine,) = piece.engines
    assert sorted(next(iter(b["sizes"].values())) for b in engine.bindings()) == [3, 5, 8]


def test_dynamic_numbers_may_be_negative():
    f = lambda x, i: x.select(0, i) + i  # noqa: E731
    with torch.no_grad():
        run = compiled(f, dynamic=True)
        for i in (-1, -2, -3):
            same(run(X, i), f(X, i))


def test_sizes_in_shapes_and_numbers():
    f = lambda x: (x.view(x.shape[0] // 2, -1), torch.arange(x.shape[0]) * x.shape[1])  # noqa: E731
    with torch.no_grad():
        run = compiled(f, dynamic=True)
        for shape in ((4, 6), (8, 3)):
            x = torch.randn(shape)
            same(run(x), f(x))


def test_a_graph_break_gives_pieces_that_know_their_lines():
    def f(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.relu() + 1

    found = agree(f, X, fullgraph=False)
    assert len(found) == 2
    assert "test_backend.py:" in found[0].source
    assert found[0].break_reason and "test_backend.py:" in found[0].break_source
    assert not found[1].break_reason


def test_control_flow_that_depends_on_data_is_outside():
    def f(x):
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1

    agree(f, X, fullgraph=False)
    agree(f, -X, fullgraph=False)


def test_composites_stay_whole():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.linear(self.norm(x))
            return nn.functional.scaled_dot_product_attention(y, y, y)

    (piece,) = agree(Block().eval(), torch.randn(2, 3, 8))
    assert piece.calls == 3


@pytest.mark.fake
def test_parameters_have_the_users_names_and_are_not_passed():
    counter = Counter().eval()
    (piece,) = agree(counter, X)
    program = piece.engines[0].program
    names = [program["values"][i]["name"] for i in program["params"]]
    assert names == ["linear.weight", "linear.bias"]
    assert sorted(entry["name"] for entry in program["inputs"]) == ["count", "mean", "x"]
    modules = {call["module"] for call in program["calls"]}
    assert modules == {"", "linear"}


@pytest.mark.fake
def test_composites_come_decomposed_where_torch_cannot_keep_them(monkeypatch):
    from torch.export import exported_program

    monkeypatch.delattr(exported_program, "_override_composite_implicit_decomp")
    layer = nn.Linear(4, 4).eval()
    (piece,) = agree(layer, X)
    assert [c["name"] for c in piece.engines[0].program["calls"]] == ["aten::t", "aten::addmm"]


def test_operators_that_torch_cannot_trace_whole(monkeypatch):
    agree(lambda x: torch.std_mean(x, dim=1, keepdim=True), X, dynamic=True)
    op = torch.ops.aten.std_mean.dim
    monkeypatch.setattr(composites, "_rules", lambda: {op: lambda *_, **__: NotImplemented})
    torch._dynamo.reset()
    agree(lambda x: torch.std_mean(x, dim=1, keepdim=True), X, dynamic=True)


def test_inference_mode():
    layer = nn.Linear(4, 4).eval()
    with torch.inference_mode():
        same(compiled(layer)(X), layer(X))


def test_autocast_is_in_the_graph():
    layer = nn.Linear(4, 4).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        same(compiled(layer)(X), layer(X))


def test_every_mode_is_taken():
    layer = nn.Linear(4, 4).eval()
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        torch._dynamo.reset()
        with torch.no_grad():
            same(torch.compile(layer, backend=backend.kiln, mode=mode)(X), layer(X))


def test_subclasses_of_tensors_are_taken_apart():
    from torch.testing._internal.two_tensor import TwoTensor

    weight = nn.Parameter(TwoTensor(torch.ones(4, 4), torch.eye(4)))
    x = TwoTensor(X, X + 1)
    with torch.no_grad():
        got, want = compiled(lambda x, w: (x @ w).relu())(x, weight), (x @ weight).relu()
    assert type(got) is TwoTensor
    same(got.a, want.a)
    same(got.b, want.b)


def test_tied_weights():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    module[1].weight = module[0].weight
    agree(module, X)


def test_unknown_options_are_named_with_the_known_ones():
    with torch.no_grad():
        with pytest.raises(kiln.UsageError, match=r"'numeric'.*did you mean 'numerics'.*threads"):
            compiled(lambda x: x + 1, numeric="exact")(X)
        torch._dynamo.reset()
        with pytest.raises(kiln.UsageError, match="'training' is 'no': use 'eager' or 'error'"):
            compiled(lambda x: x + 2, training="no")(X)


def test_a_graph_without_operators():
    with torch.no_grad():
        same(compiled(lambda x: (x, 3))(X), (X, 3))


def test_the_backend_is_found_by_its_name():
    with torch.no_grad():
        same(torch.compile(lambda x: x + 1, backend="kiln")(X), X + 1)
