"""`kiln.compile`: calls as of the module, state, sizes, saving and timing."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from sample_modules import Cache, Nested, Result
from torch import nn

import kiln
from kiln.api import backend

X = torch.arange(12.0).reshape(3, 4) - 5


def test_one_tensor():
    layer = nn.Linear(4, 2).eval()
    compiled = kiln.compile(layer, (X,))
    torch.testing.assert_close(compiled(X), layer(X).detach())
    assert not compiled(X).requires_grad
    assert repr(compiled) == "Compiled(Linear, cpu)"


def test_one_tensor_without_a_tuple_and_a_dict_of_keywords():
    layer = nn.Linear(4, 2).eval()
    for example in (X, [X], {"input": X}):
        compiled = kiln.compile(layer, example)
        torch.testing.assert_close(compiled(X), layer(X).detach())
        torch.testing.assert_close(compiled(input=X), layer(X).detach())


def test_nested_inputs_and_results():
    module = Nested().eval()
    more = {"a": [X + 1]}
    compiled = kiln.compile(module, {"x": X, "scale": 2.0, "more": more})
    want = module(X, 2.0, more=more)
    for got in (
        compiled(X, 2.0, more=more),
        compiled(x=X, scale=2.0, more=more),
        compiled(more=more, x=X, scale=2.0),
    ):
        assert list(got) == list(want)
        torch.testing.assert_close(got["y"], want["y"])
        torch.testing.assert_close(got["pair"][0], want["pair"][0])
        assert (got["rows"], got["none"], got["pair"][1]) == (3, None, "text")


def test_registered_dataclasses():
    class Module(nn.Module):
        def forward(self, x):
            return Result(x + 1, x * 2)

    got = kiln.compile(Module().eval(), (X,))(X)
    assert isinstance(got, Result)
    torch.testing.assert_close(got.b, X * 2)


def test_a_call_of_another_nesting_says_so():
    compiled = kiln.compile(Nested().eval(), (X, 2.0))
    with pytest.raises(kiln.InputError, match=r"`more` was not among the example.*compile it"):
        compiled(X, 2.0, more={"a": [X]})
    with pytest.raises(kiln.InputError, match="called wrongly"):
        compiled(X, 2.0, nothing=1)


def test_wrong_tensors_are_errors_of_their_own():
    compiled = kiln.compile(nn.ReLU().eval(), (X,))
    with pytest.raises(kiln.ShapeError):
        compiled(torch.ones(2, 2))
    with pytest.raises(kiln.KilnError):
        compiled(X.double())
    with pytest.raises(kiln.InputError):
        compiled(3)


def test_an_exported_program_and_its_decomposed_form():
    layer = nn.Linear(4, 2).eval()
    with torch.no_grad():
        program = torch.export.export(layer, (X,))
    for form in (program, program.run_decompositions({}), program.run_decompositions()):
        torch.testing.assert_close(kiln.compile(form)(X), layer(X).detach())


def test_a_functional_program_is_not_traced_again(monkeypatch):
    layer = nn.Linear(4, 2).eval()
    with torch.no_grad():
        program = torch.export.export(layer, (X,)).run_decompositions({})

    def traced(*args):
        raise AssertionError("a functional program was traced again")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", traced)
    torch.testing.assert_close(kiln.compile(program)(X), layer(X).detach())


@pytest.mark.native
def test_timings_are_of_every_stage():
    compiled = kiln.compile(nn.Linear(4, 2).eval(), (X,))
    assert list(compiled.seconds) == ["export", "functional", "program"]
    (binding,) = compiled.bindings()
    stages = binding["timings"]
    assert list(stages) == ["specialise", "plan", "lower", "codegen", "load"]
    assert compiled.timings == {**compiled.seconds, **stages}
    assert all(seconds > 0 for seconds in compiled.timings.values())
    # The stages follow each other, and there is nothing between them that takes time.
    assert 0.5 * binding["compile_s"] < sum(stages.values()) <= binding["compile_s"]
    assert binding["threads"]["generating"] > 0
    assert binding["threads"]["assembling"] == 0


def test_what_cannot_be_compiled_says_what_can():
    with pytest.raises(kiln.UsageError, match="without example inputs: pass a tuple"):
        kiln.compile(nn.ReLU())
    with pytest.raises(kiln.UsageError, match="unknown option 'trainin'"):
        kiln.compile(nn.ReLU().eval(), (X,), options={"trainin": "error"})


class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1


def test_what_torch_export_cannot_trace():
    with pytest.raises(kiln.UnsupportedError, match=r"torch.export cannot trace the module"):
        kiln.compile(Branching().eval(), (X,))


def test_a_failed_export_leaves_torch_compile_as_it_was():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x + self.count

    with pytest.raises(kiln.UnsupportedError):
        kiln.compile(Branching().eval(), (X,))
    with torch.no_grad():
        got = torch.compile(Counting(), backend=backend.kiln, fullgraph=True)(X)
    torch.testing.assert_close(got, X + 1)


def test_a_module_in_training_mode_is_warned_of():
    with pytest.warns(UserWarning, match="kiln: the module is in training mode"):
        kiln.compile(nn.ReLU().train(), (X,))


def test_autocast_within_the_module():
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                y = self.linear(x)
            return y.float() + x

    module = Module().eval()
    # The default keeps more bits within a kernel than PyTorch does.
    compiled = kiln.compile(module, (X,), options={"numerics": "exact"})
    torch.testing.assert_close(compiled(X), module(X).detach())


def test_device_moves_the_program_and_says_which_devices_there_are():
    layer = nn.Linear(4, 2).eval()
    assert kiln.compile(layer, (X,), device="cpu").device == "cpu"
    with pytest.raises(kiln.UnsupportedError, match="on meta: use cpu or cuda"):
        kiln.compile(layer, (X,), device="meta")


def test_tf32_is_as_torch_has_it():
    def f32(device, **given):
        return kiln.options.for_engine(given, device).get("no_tf32", False)

    before = torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = True
        assert not f32("cuda:0")
        torch.backends.cudnn.allow_tf32 = False
        assert f32("cuda:0")
        assert not f32("cpu") and not f32("cuda:0", numerics="fast")
        assert not f32("cuda:0", no_tf32=False)
    finally:
        torch.backends.cudnn.allow_tf32 = before


@pytest.mark.native
@pytest.mark.parametrize("compile", ["torch.compile", "kiln.compile"])
@pytest.mark.parametrize("views", ["meshgrid", "broadcast_tensors", "einsum", "atleast_2d"])
def test_writes_to_views_that_composite_operators_give(views, compile):
    """Schemas of these operators do not say that their results share memory with operands."""
    of = {
        "meshgrid": lambda x: torch.meshgrid(x, x.new_ones(1), indexing="ij")[0],
        "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(4))[0],
        "einsum": lambda x: torch.einsum("ij->ji", x.view(2, 2)),
        "atleast_2d": lambda x: torch.atleast_2d([x])[0],
    }[views]

    class Writes(nn.Module):
        def forward(self, x):
            y = x * 2
            of(y)[0].add_(3)
            return y

    x = torch.randn(4)
    if compile == "torch.compile":
        run = torch.compile(Writes().eval(), backend="kiln")
    else:
        run = kiln.compile(Writes().eval(), (x,))
    with torch.no_grad():
        torch.testing.assert_close(run(x), Writes()(x))


# What cannot be passed or copied


def odd_tensors():
    jagged = [torch.ones(2, 4), torch.ones(1, 4)]
    return {
        "jagged": (torch.nested.nested_tensor(jagged, layout=torch.jagged), "to_padded_tensor"),
        "nested": (torch.nested.nested_tensor(jagged), "to_padded_tensor"),
        "sparse": (X.to_sparse(), "to_dense"),
        "csr": (X.to_sparse_csr(), "to_dense"),
        "quantised": (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "dequantize"),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["jagged", "nested", "sparse", "csr", "quantised"])
def test_tensors_that_are_not_dense_are_errors_with_a_remedy(name):
    odd, remedy = odd_tensors()[name]
    with pytest.raises(kiln.InputError, match=remedy):
        kiln.compile(nn.ReLU().eval(), (odd,))
    with pytest.raises(kiln.InputError, match=remedy):
        kiln.compile(nn.ReLU().eval(), {"input": odd})


@pytest.mark.native
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["jagged", "nested", "sparse", "csr", "quantised"])
def test_calls_with_tensors_that_are_not_dense_are_errors_with_a_remedy(name):
    odd, remedy = odd_tensors()[name]
    compiled = kiln.compile(nn.ReLU().eval(), (X,))
    for _ in range(2):
        with pytest.raises(kiln.InputError, match=f"input `input` .*{remedy}"):
            compiled(odd)
        torch.testing.assert_close(compiled(X), X.relu())


def test_a_compiled_program_cannot_be_pickled():
    compiled = kiln.compile(nn.ReLU().eval(), (X,))
    for how in (pickle.dumps, copy.deepcopy):
        with pytest.raises(kiln.UsageError, match=r"write it with `.save`"):
            how(compiled)
    torch.testing.assert_close(copy.copy(compiled)(X), X.relu())


@pytest.mark.native
def test_an_engine_cannot_be_pickled():
    with pytest.raises(kiln.UsageError, match=r"write an artifact with `save`"):
        pickle.dumps(kiln.compile(nn.ReLU().eval(), (X,)).engine)


# Sizes


def test_dynamic_sizes_by_every_way_to_ask():
    layer = nn.Linear(4, 2).eval()
    batch = torch.export.Dim("batch", min=2, max=16)
    for dynamic in (True, {"input": {0: torch.export.Dim.AUTO}}, ({0: batch},)):
        compiled = kiln.compile(layer, (X,), dynamic=dynamic)
        assert len(compiled.symbols) == 1
        for rows in (3, 5, 3):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), layer(x).detach())
        assert len(compiled.bindings()) == 2


def test_sizes_outside_of_their_range_are_errors():
    batch = torch.export.Dim("batch", min=2, max=16)
    compiled = kiln.compile(nn.ReLU().eval(), (X,), dynamic=({0: batch},))
    with pytest.raises(kiln.ShapeError):
        compiled(torch.ones(17, 4))


def test_a_range_that_begins_at_one_takes_one():
    batch = torch.export.Dim("batch", min=1, max=16)
    compiled = kiln.compile(nn.ReLU().eval(), (X,), dynamic=({0: batch},))
    torch.testing.assert_close(compiled(X[:1]), X[:1].relu())


def test_dynamic_sizes_that_do_not_fit_the_module_are_the_users_errors():
    with pytest.raises(kiln.UsageError, match=r"torch.export refused the arguments"):
        kiln.compile(nn.ReLU().eval(), (X,), dynamic={"nothing": {0: torch.export.Dim.AUTO}})


def test_compiling_compiles_for_the_example_inputs():
    compiled = kiln.compile(nn.ReLU().eval(), (X,), dynamic=True)
    assert [sorted(b["sizes"].values()) for b in compiled.bindings()] == [[3, 4]]
    assert len(kiln.compile(nn.ReLU().eval(), (X,)).bindings()) == 1
    program = torch.export.export(nn.ReLU().eval(), (X,))
    assert len(kiln.compile(program).bindings()) == 1


@pytest.mark.native
def test_compiling_refuses_what_a_call_would():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.fft.fft(x).real

    class Sorted(nn.Module):
        def forward(self, x):
            return x.sort().values

    with pytest.raises(kiln.UnsupportedError, match="fft_"):
        kiln.compile(Spectrum().eval(), (X,), options={"fallback": "error"})
    with pytest.raises(kiln.UnsupportedError, match=r"does not compile aten::sort"):
        kiln.compile(Sorted().eval(), (X,), options={"fallback": "error"})


def test_weights_that_are_written_to_between_compiling_and_the_first_call():
    layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(6, 5)).eval()
    x = torch.randn(2, 3, 8, 8)
    compiled = kiln.compile(layer, (x,))
    with torch.no_grad():
        layer[0].weight.mul_(2)
        layer[1].running_mean.add_(1)
        layer[2].weight.add_(1)
        torch.testing.assert_close(compiled(x), layer(x))


def test_warm_takes_sizes_and_examples():
    compiled = kiln.compile(
        nn.ReLU().eval(), (X,), dynamic=True, warm=[(5, 4), (torch.ones(6, 4),)]
    )
    a, b = compiled.symbols
    compiled.warm({a: 7, b: 4})
    assert [entry["sizes"] for entry in compiled.bindings()] == [
        {a: X.shape[0], b: X.shape[1]},
        {a: 5, b: 4},
        {a: 6, b: 4},
        {a: 7, b: 4},
    ]
    with pytest.raises(kiln.UsageError, match="1 sizes for 2 symbols"):
        compiled.warm((5,))


# State


def test_state_is_the_modules_own():
    module, reference = Cache().eval(), Cache().eval()
    reference.load_state_dict(module.state_dict())
    compiled = kiln.compile(module, (X[:1],))
    assert sorted(compiled.state) == ["cache", "length"]
    with torch.no_grad():
        for row in range(3):
            x = X[row : row + 1]
            torch.testing.assert_close(compiled(x), reference(x))
    torch.testing.assert_close(compiled.state["cache"], reference.cache)
    assert compiled.state["length"].item() == 3
    assert module.cache.data_ptr() == compiled.state["cache"].data_ptr()
    compiled.state["length"].zero_()
    reference.length.zero_()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X[:1]), reference(X[:1]))


def test_inputs_are_written_to():
    class Module(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    compiled = kiln.compile(Module().eval(), (X.clone(),))
    x = X.clone()
    torch.testing.assert_close(compiled(x), (X + 1) * 2)
    torch.testing.assert_close(x, X + 1)


def stale():
    """A module with weights that are folded, others to load, and an input."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    new = {k: v if v.dtype is torch.int64 else v + 1 for k, v in module.state_dict().items()}
    return module, new, torch.randn(2, 3, 8, 8)


def test_weights_that_were_written_to_are_taken_up():
    module, new, x = stale()
    compiled = kiln.compile(module, (x,))
    before = compiled(x)
    module.load_state_dict(new)
    torch.testing.assert_close(compiled(x), module(x).detach())
    assert not torch.equal(compiled(x), before)


@pytest.mark.native
def test_frozen_weights_are_not_looked_at():
    module, new, x = stale()
    compiled = kiln.compile(module, (x,), options={"weights": "frozen"})
    before = compiled(x)
    module.load_state_dict(new)
    torch.testing.assert_close(compiled(x), before)
    compiled.refresh()
    torch.testing.assert_close(compiled(x), module(x).detach())


def test_refresh_takes_up_new_weights():
    layer = nn.Linear(4, 2).eval()
    compiled = kiln.compile(layer, (X,), options={"weights": "frozen"})
    compiled(X)
    with torch.no_grad():
        layer.weight.mul_(2)
    compiled.refresh()
    torch.testing.assert_close(compiled(X), layer(X).detach())
