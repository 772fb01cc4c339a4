"""What `kiln.compile` returns as a module of torch: weights, moves, hooks, strides, transforms."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import kiln
from kiln.api import backend

X = torch.arange(12.0).reshape(3, 4) - 5


@pytest.fixture
def layer():
    return nn.Linear(4, 4).eval()


def image(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


def test_a_program_fits_where_a_module_does(layer):
    compiled = kiln.compile(layer, (X,))
    model = nn.Sequential(compiled, nn.Linear(4, 2)).eval()
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [n for n, _ in model.named_parameters()][:2] == ["0.weight", "0.bias"]
    torch.testing.assert_close(model(X), model[1](layer(X).detach()))
    assert len(list(nn.ModuleList([compiled]).parameters())) == 2
    assert compiled.weight is layer.weight and compiled.in_features == 4
    assert "Compiled(Linear, cpu)" in repr(model)


def test_a_state_dict_that_is_loaded_is_the_programs(layer):
    compiled = kiln.compile(layer, (X,))
    zeros = {f"0.{k}": torch.zeros_like(v) for k, v in layer.state_dict().items()}
    nn.Sequential(compiled).load_state_dict(zeros)
    assert not compiled(X).any()
    ones = {k: torch.ones_like(v) for k, v in layer.state_dict().items()}
    compiled.load_state_dict(ones, assign=True)
    torch.testing.assert_close(compiled(X), layer(X).detach())
    assert layer.weight.all()


def test_moved_weights_are_compiled_again(layer):
    compiled = kiln.compile(layer, (X,))
    assert nn.Sequential(compiled).double()[0] is compiled
    got = compiled(X.double())
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, layer(X.double()).detach())
    engine = compiled.engine
    compiled.to("cpu")
    torch.testing.assert_close(compiled(X.double()), got)
    assert compiled.engine is engine


def test_memory_that_another_took_is_compiled_again(layer):
    compiled = kiln.compile(layer, (X,))
    compiled.weight.data = torch.zeros(4, 4)
    torch.testing.assert_close(compiled(X), layer(X).detach())
    compiled.bias = nn.Parameter(torch.ones(4))
    torch.testing.assert_close(compiled(X), torch.ones(3, 4))
    assert layer.bias is compiled.bias


def test_functional_call_runs_the_module_with_these_weights(layer):
    compiled = kiln.compile(layer, (X,))
    before = layer(X).detach()
    doubled = {k: v * 2 for k, v in layer.state_dict().items()}
    for part, given in ((compiled, doubled), (nn.Sequential(compiled), doubled)):
        names = {k if part is compiled else f"0.{k}": v for k, v in given.items()}
        if part is compiled:
            with pytest.warns(UserWarning, match="kiln: .* other weights.*runs eagerly: compile"):
                got = torch.func.functional_call(part, names, (X,))
        else:
            got = torch.func.functional_call(part, names, (X,))
        torch.testing.assert_close(got, 2 * before)
        torch.testing.assert_close(compiled(X), before)


@pytest.mark.native
def test_transforms_of_torch_func(layer):
    compiled = kiln.compile(layer, (X,))
    weights = dict(layer.named_parameters())

    def loss(call):
        return lambda w: torch.func.functional_call(call, w, (X,)).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = torch.func.grad(loss(compiled))(weights)
    torch.testing.assert_close(got, torch.func.grad(loss(layer))(weights))
    batch = torch.stack([X, X + 1])
    torch.testing.assert_close(torch.func.vmap(compiled)(batch), torch.func.vmap(layer)(batch))
    of_input = torch.func.jacrev(layer)(X)
    torch.testing.assert_close(torch.func.jacrev(compiled)(X), of_input)


def test_hooks_of_the_program_run_and_cost_nothing_afterwards(layer):
    compiled = kiln.compile(layer, (X,))
    seen = []
    before = compiled.register_forward_pre_hook(lambda m, args: seen.append("before"))
    after = compiled.register_forward_hook(lambda m, args, result: result * 0)
    assert not compiled(X).any() and seen == ["before"]
    before.remove(), after.remove()
    torch.testing.assert_close(compiled(X), layer(X).detach())
    assert compiled._serve_call is compiled._serve_fast
    of_all = nn.modules.module.register_module_forward_hook(lambda m, a, r: seen.append(m))
    compiled(X)
    of_all.remove()
    assert seen == ["before", compiled]


def test_hooks_of_inner_modules_are_told_of(layer):
    seen = []
    layer.register_forward_hook(lambda m, args, result: seen.append(type(result)))
    with pytest.warns(UserWarning, match="kiln: hooks of 0 are traced into the program"):
        compiled = kiln.compile(nn.Sequential(layer).eval(), (X,))
    traced = len(seen)
    compiled(X)
    assert len(seen) == traced


def test_the_training_mode_stays_that_of_compiling():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    compiled = kiln.compile(model, (X,))
    outer = nn.Sequential(compiled, nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="kiln: .* in evaluation mode and stays so.*again"):
        outer.train()
    assert outer.training and not compiled.training and not model.training
    torch.testing.assert_close(compiled(X), model(X).detach())
    outer.eval()


@pytest.mark.native
def test_autocast_is_that_of_compiling(layer):
    compiled = kiln.compile(layer, (X,))
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.warns(UserWarning, match="kiln: .*not with autocast to torch.bfloat16: compile"),
    ):
        assert compiled(X).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        within = kiln.compile(layer, (X,))
        assert within(X).dtype == torch.bfloat16
    with pytest.warns(UserWarning, match="kiln: .*not with autocast off: compile"):
        within(X)


# Strides


class Permuted(nn.Module):
    """Results of every order in memory, dense or not."""

    def forward(self, x):
        y = x * 2
        return y, {"t": (y + 1).transpose(1, 3), "row": y.sum(1), "s": y[:, ::2], "n": 3}


@pytest.mark.parametrize("splits", [False, True])
def test_results_have_the_modules_strides(splits):
    class Module(Permuted):
        def forward(self, x):
            return super().forward(torch.polar(x.abs(), x).abs() if splits else x)

    x = image(2, 6, 4, 4)
    module = Module().eval()
    compiled = kiln.compile(module, (x,))
    got, want = compiled(x), module(x)
    assert got[0].stride() == want[0].stride()
    for name in ("t", "row"):
        assert got[1][name].stride() == want[1][name].stride()
        torch.testing.assert_close(got[1][name], want[1][name])
    torch.testing.assert_close(got[1]["s"], want[1]["s"])
    assert got[1]["n"] == 3


def test_channels_last_of_convolutions_and_by_to():
    conv = nn.Conv2d(3, 8, 3).eval()
    x = torch.randn(2, 3, 8, 8)
    compiled = kiln.compile(conv, (x,))
    assert compiled(x).is_contiguous()
    compiled.to(memory_format=torch.channels_last)
    got = compiled(x.to(memory_format=torch.channels_last))
    assert got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got, conv(x).detach())


def test_dynamic_sizes_keep_the_order_of_memory():
    compiled = kiln.compile(nn.ReLU().eval(), (image(2, 3, 8, 8),), dynamic=True)
    for shape in ((2, 3, 8, 8), (5, 4, 7, 9)):
        x = image(*shape)
        got = compiled(x)
        assert got.shape == x.shape and got.stride() == x.stride()
        torch.testing.assert_close(got, x.relu())


@pytest.mark.native
def test_an_artifact_has_the_modules_shapes(tmp_path):
    x = image(2, 3, 8, 8)
    kiln.compile(nn.ReLU().eval(), (x,)).save(tmp_path / "relu.kiln")
    torch.testing.assert_close(kiln.load(tmp_path / "relu.kiln")(x), x.relu())


# Programs within programs


def test_a_program_is_traced_as_its_module(layer):
    compiled = kiln.compile(layer, (X,))
    model = nn.Sequential(compiled, nn.Linear(4, 2)).eval()
    want = model(X).detach()
    torch.testing.assert_close(kiln.compile(model, (X,))(X), want)
    with torch.no_grad():
        whole = torch.compile(model, backend=backend.kiln, fullgraph=True)
        torch.testing.assert_close(whole(X), want)
    torch.testing.assert_close(kiln.compile(compiled, (X[:2],))(X[:2]), layer(X[:2]).detach())
    torch.testing.assert_close(compiled(X), layer(X).detach())


def test_an_exported_program_has_its_weights_and_cannot_be_moved(layer):
    with torch.no_grad():
        program = torch.export.export(layer, (X,))
    compiled = kiln.compile(program)
    assert list(compiled.state_dict()) == ["weight", "bias"]
    torch.testing.assert_close(compiled(X), layer(X).detach())
    with pytest.raises(kiln.UsageError, match="is for cpu, and was not compiled from a module"):
        compiled.half()
    with pytest.raises(kiln.UsageError, match="leave them out, or pass the module"):
        kiln.compile(program, (X,))


@pytest.mark.native
def test_a_file_has_no_weights_in_torch(layer, tmp_path):
    kiln.compile(layer, (X,)).save(tmp_path / "layer.kiln")
    loaded = kiln.load(tmp_path / "layer.kiln")
    assert loaded.state_dict() == {}
    torch.testing.assert_close(nn.Sequential(loaded).to("cpu")(X), layer(X).detach())
    with pytest.raises(kiln.UsageError, match="load it with another `device`"):
        loaded.half()


def test_copies():
    compiled = kiln.compile(nn.ReLU().eval(), (X,))
    torch.testing.assert_close(copy.copy(compiled)(X), X.relu())
    with pytest.raises(kiln.UsageError, match=r"write it with `.save`"):
        copy.deepcopy(nn.Sequential(compiled))
