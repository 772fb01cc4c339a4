"""What one recorded run of a module gives, and what is left to torch.export."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from test_models import MODELS
from torch import nn
from torch.nn import functional as F

import kiln
from kiln.lowering import lower_module
from kiln.tracing import export, shapes, trace

X = torch.arange(12.0).reshape(3, 4) / 6 - 1


def module(forward, **tensors):
    """A module of a function of itself and x, with buffers."""

    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            for name, tensor in tensors.items():
                self.register_buffer(name, tensor.clone())

        def forward(self, *args, **kwargs):
            return forward(self, *args, **kwargs)

    return Made().eval()


def written(s, x):
    y = x * 2
    y[1:, :2] += 1
    y.diagonal().fill_(7)
    y.t()[0].mul_(3)
    return y, y.view(-1)[::2]


def of_state(s, x):
    s.total.add_(x.sum(0))
    s.seen[1:].copy_(x[0, :2])
    return s.total * 1, s.seen + 1


def of_inputs(s, x):
    x.relu_()
    return x + 1


def masks(s, x):
    rows = torch.arange(3)
    keep = torch.vmap(lambda i: torch.vmap(lambda j: i >= j)(torch.arange(4)))(rows)
    return torch.where(keep, x, -1.0).softmax(-1)


def numbers(s, x):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(2), x.shape[0], None, x.dim()


def constants_are_made_anew(s, x):
    count = torch.zeros(4)
    count += x[0]
    table = torch.tensor([1.0, 2.0, 3.0, 4.0])
    table[0] = x[0, 0]
    return count, table


def without_training(s, x):
    x = F.dropout(x, 0.5, training=False)
    x = F.batch_norm(x, s.mean, s.var)
    return F.alpha_dropout(x, 0.5, training=False)


def nested(s, pair, *more, scale=1.0, by_name=None):
    out = {"sum": pair[0] + pair[1], "more": [m * scale for m in more]}
    return out if by_name is None else {**out, "extra": by_name["z"] - 1}


def cast(s, x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.t()


#: Modules that are recorded, and their arguments.
RECORDED = {
    "written": (module(written), (X,), {}),
    "state": (module(of_state, total=torch.zeros(4), seen=torch.zeros(3)), (X,), {}),
    "inputs": (module(of_inputs), (X,), {}),
    "masks": (module(masks), (X,), {}),
    "numbers": (module(numbers), (X,), {}),
    "constants": (module(constants_are_made_anew), (X,), {}),
    "still": (module(without_training, mean=torch.ones(4), var=torch.full((4,), 2.0)), (X,), {}),
    "nested": (module(nested), ((X, X + 1), X, X * 2), {"scale": 3.0, "by_name": {"z": X}}),
    "keywords": (module(nested), (), {"pair": [X, X]}),
    "autocast": (module(cast), (X,), {}),
    "plain attribute": (module(lambda s, x: x + s.table), (X,), {}),
    "returned": (module(lambda s, x: (x, s.table, x.t()), table=torch.ones(2)), (X,), {}),
    "einsum": (module(lambda s, x: torch.einsum("ij,kj->ik", x, x)), (X,), {}),
    "integers": (module(lambda s, x: (x > 0).sum(0).cumsum(0) // 2), (X,), {}),
}
RECORDED["plain attribute"][0].table = torch.ones(4)


def same(got, want):
    got_leaves, got_spec = torch.utils._pytree.tree_flatten(got)
    leaves, spec = torch.utils._pytree.tree_flatten(want)
    assert got_spec == spec
    for a, b in zip(got_leaves, leaves, strict=True):
        torch.testing.assert_close(a, b)


def copied(values):
    return torch.utils._pytree.tree_map(
        lambda t: t.clone() if isinstance(t, torch.Tensor) else t, values
    )


def scaled(values, factor):
    return torch.utils._pytree.tree_map(
        lambda t: t * factor if isinstance(t, torch.Tensor) else t, values
    )


@pytest.fixture
def only_recorded(monkeypatch):
    """torch.export is not there."""

    def refused(*args, **kwargs):
        raise AssertionError("the module went through torch.export")

    monkeypatch.setattr(export, "export", refused)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_run_computes_what_eager_computes(name, only_recorded):
    model, args, kwargs = RECORDED[name]
    before = copied(dict(model.named_buffers()))
    example = args if args else {"pair": kwargs["pair"]}
    recorded = lower_module.record(model, *((args, kwargs) if args else ((), example)), name="M")
    assert recorded is not None
    # kiln.compile takes positions or names, and records no call twice.
    if not (args and kwargs):
        compiled = kiln.compile(model, copied(example))
        for factor in (1, -2):
            given, again = ((scaled(args, factor), scaled(kwargs, factor)) for _ in range(2))
            state = copied(dict(model.named_buffers()))
            with torch.no_grad():
                got = copied(compiled(*given[0], **given[1]))
                after = copied(dict(model.named_buffers()))
                for buffer, tensor in model.named_buffers():
                    tensor.copy_(state[buffer])
                want = model(*again[0], **again[1])
            same(got, want)
            same(given, again)
            same(after, dict(model.named_buffers()))
    for buffer, tensor in model.named_buffers():
        tensor.copy_(before[buffer])


def reads_data(s, x):
    return x * 2 if x.sum() > 0 else x - 1


def reads_memory(s, x):
    return x + float(s.table.numpy()[0])


def reads_list(s, x):
    return x * s.table.tolist()[0]


def draws(s, x):
    return F.dropout(x, 0.5, training=True)


def assigns(s, x):
    s.last = x * 2
    return s.last + 1


def assigns_number(s, x):
    s.calls = getattr(s, "calls", 0) + 1
    return x + 1


def differentiates(s, x):
    return torch.func.grad(lambda u: (u * u).sum())(x)


def differentiates_by_autograd(s, x):
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad((y * y).sum(), y)[0]


def replaces_data(s, x):
    y = x * 1
    y.data = torch.ones(3, 4)
    return y + 1


def sized_by_data(s, x):
    return x[x > 0]


def hides_an_error(s, x):
    try:
        return x + x.sum().item()
    except Exception:
        return x


GLOBAL = torch.full((4,), 3.0)


def of_a_global(s, x):
    return x + GLOBAL


def writes_statistics(s, x):
    return F.batch_norm(x, s.mean, s.var, training=True)


#: Modules that one run must not fix.
REFUSED = {
    "data": module(reads_data),
    "memory": module(reads_memory, table=torch.ones(2)),
    "list": module(reads_list, table=torch.ones(2)),
    "random": module(draws),
    "attribute": module(assigns),
    "number": module(assigns_number),
    "gradient": module(differentiates),
    "autograd": module(differentiates_by_autograd),
    "replaced": module(replaces_data),
    "sizes": module(sized_by_data),
    "hidden": module(hides_an_error),
    "global": module(of_a_global),
    "statistics": module(writes_statistics, mean=torch.zeros(4), var=torch.ones(4)),
    "training": nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_more_than_its_operands_is_not_recorded(name):
    model = REFUSED[name]
    attributes = dict(vars(model))
    with pytest.raises(trace.NotTraced):
        trace.trace(model, (X,), {})
    assert vars(model) == attributes
    # Neither modes nor flags are left behind.
    assert torch.ones(2).sum().item() == 2 and not torch.compiler.is_compiling()
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


def test_threads_record_one_after_the_other():
    models = [nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)]).eval() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        runs = list(threads.map(lambda m: trace.trace(m, (X,), {}), models))
    assert [len(run.params) for run in runs] == [40] * 6
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
    assert not torch.compiler.is_compiling()


def test_a_write_to_what_may_be_a_copy_is_not_recorded():
    def forward(s, x):
        y = x.t().reshape(-1)
        y.add_(1)
        return x, y

    with pytest.raises(trace.NotTraced, match="view or a copy"):
        trace.trace(module(forward), (X,), {})


def test_weights_are_neither_copied_nor_read():
    layer = nn.Linear(4, 4).eval()
    traced = trace.trace(layer, (X,), {})
    assert [t is p for t, p in zip(traced.tensors.values(), layer.parameters(), strict=True)]
    assert all(
        t.data_ptr() == p.data_ptr()
        for t, p in zip(traced.tensors.values(), layer.parameters(), strict=True)
    )
    huge = nn.Linear(4, 4).eval()
    huge.register_buffer("unused", torch.empty(1).expand(2**40))
    assert list(trace.trace(huge, (X,), {}).params.values()) == ["weight", "bias"]


def test_calls_say_where_they_are():
    class Outer(nn.Module):
        layers: ClassVar

        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            return self.inner(x) + 1

    run = trace.trace(Outer().eval(), (X,), {})
    calls = [n for n in run.graph.nodes if n.op == "call_function"]
    paths = [next(reversed(n.meta["nn_module_stack"].values()))[0] for n in calls]
    assert paths == ["inner.0", "inner.1", ""]
    assert all("test_trace.py" in n.meta["stack_trace"] for n in calls)


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_those_of_torch(name, monkeypatch):
    """Every rule that a model uses agrees with torch's own function."""
    rule, checked = shapes.result, []

    def compared(func, args, kwargs):
        found = rule(func, args, kwargs)
        if found is not None:
            # What writes has the same type before and after.
            want = func(*args, **kwargs)
            want = want[0] if isinstance(want, tuple) else want
            checked.append(func)
            assert (found.shape, found.dtype) == (want.shape, want.dtype), func
            sizes = zip(found.shape, found.stride(), want.stride(), strict=True)
            assert all(size == 1 or a == b for size, a, b in sizes), (func, found.stride())
        return found

    monkeypatch.setattr(shapes, "result", compared)
    model, args, kwargs = MODELS[name]()
    trace.trace(model.eval(), args, kwargs)
    assert checked


@pytest.mark.parametrize("seed", range(40))
def test_drawn_operands_have_results_of_torchs_shapes(seed):
    """Pointwise operators of views, broadcast, permuted and cut."""
    draw = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=draw))

    shape = [number(1, 4) for _ in range(number(1, 5))]

    def operand():
        order = torch.randperm(len(shape), generator=draw).tolist()
        whole = [shape[a] * number(1, 3) for a in order]
        t = torch.empty(whole, device="meta").permute([order.index(a) for a in range(len(order))])
        t = t[tuple(slice(None, None, max(1, t.shape[i] // shape[i])) for i in range(len(shape)))]
        for axis in range(len(shape)):
            if number(0, 4) == 0:
                t = t.narrow(axis, 0, 1)
        return t[(0,) * number(0, 2)] if number(0, 3) == 0 and len(shape) > 1 else t

    for func in (torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor, torch.ops.aten.lt.Tensor):
        a, b = operand(), operand()
        found, want = shapes.result(func, (a, b), {}), func(a, b)
        assert found is not None
        assert (found.shape, found.dtype) == (want.shape, want.dtype)
        sizes = zip(found.shape, found.stride(), want.stride(), strict=True)
        assert all(size == 1 or x == y for size, x, y in sizes), (a.stride(), b.stride())


def test_a_start_imports_neither_dynamo_nor_sympy():
    code = (
        "import sys, torch, kiln\n"
        "m = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))\n"
        "x = torch.ones(2, 4)\n"
        "y = kiln.compile(m.eval(), (x,))(x)\n"
        "assert torch.allclose(y, m(x), atol=1e-5)\n"
        "slow = [m for m in ('sympy', 'torch._dynamo', 'torch._inductor') if m in sys.modules]\n"
        "assert not slow, slow\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def views_of_inputs(s, x):
    y = x * 2
    y.relu_()
    return x.t(), y, y.view(-1), y.sum(0, keepdim=True)


#: Graphs of torch.compile that are recorded as they are, and such that go through AOT autograd.
DIRECT = {
    "plain": (module(lambda s, x: (x @ x.t()).softmax(-1)), True),
    "views": (module(views_of_inputs), True),
    "buffers": (module(lambda s, x: x + s.table, table=torch.ones(4)), True),
    "writes": (module(of_inputs), False),
    "random": (module(draws), False),
    "none": (module(lambda s, x: (x + 1, None, 3)), True),
}


@pytest.mark.parametrize("name", DIRECT)
def test_graphs_of_dynamo_are_recorded_where_nothing_is_written(name, monkeypatch):
    from kiln.tracing import aot

    model, recorded = DIRECT[name]
    made = []
    aot_autograd = aot.aot_autograd

    def counted(**kwargs):
        made.append(kwargs)
        return aot_autograd(**kwargs)

    monkeypatch.setattr(aot, "aot_autograd", counted)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="kiln", fullgraph=True)
    with torch.no_grad():
        x, again = X.clone(), X.clone()
        got, want = compiled(x), model(again)
    assert (not made) == recorded
    if name != "random":
        same(got, want)
        same(x, again)
    if name == "views":
        # They share memory as those of eager do.
        assert got[0].data_ptr() == x.data_ptr() and got[1].data_ptr() == got[2].data_ptr()
        got[1].fill_(5)
        assert got[2].eq(5).all()
