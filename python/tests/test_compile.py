"""`kiln.compile`: calls as of the module, state, sizes, saving and timing."""

from __future__ import annotations

import copy
import pickle
import time
import zipfile
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import kiln
from kiln.api import artifact, backend
from kiln.reports import bench

X = torch.arange(12.0).reshape(3, 4) - 5


@dataclass
class Result:
    a: torch.Tensor
    b: torch.Tensor


torch.export.register_dataclass(Result)


class Nested(nn.Module):
    def forward(self, x, scale=1.0, *, more=None):
        y = x * scale
        if more is not None:
            y = y + more["a"][0]
        return {"y": y, "rows": x.shape[0], "none": None, "pair": (y.relu(), "text")}


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(8, 4))
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, x):
        self.cache.index_copy_(0, self.length, self.linear(x))
        self.length += 1
        return self.cache.sum(0)


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


# Files and times


def test_an_artifact_is_loaded(tmp_path):
    layer = nn.Linear(4, 2).eval()
    compiled = kiln.compile(layer, (X,))
    compiled.save(tmp_path / "layer.kiln")
    loaded = kiln.load(tmp_path / "layer.kiln")
    torch.testing.assert_close(loaded(X), layer(X).detach())
    assert repr(loaded) == "Compiled(layer.kiln, cpu)"
    with pytest.raises(kiln.InputError, match="keywords x: give positions"):
        loaded(x=X)
    with pytest.raises(kiln.UsageError, match="no example inputs"):
        loaded.bench()
    with pytest.raises(kiln.UsageError, match="needs the module"):
        loaded.bench(X)


@pytest.mark.native
def test_a_program_of_torch_export_is_loaded_with_its_nesting(tmp_path):
    module = Nested().eval()
    with torch.no_grad():
        program = torch.export.export(module, (X,), {"more": {"a": [X]}})
    torch.export.save(program.run_decompositions({}), tmp_path / "nested.pt2")
    got = kiln.load(tmp_path / "nested.pt2")(X, more={"a": [X]})
    torch.testing.assert_close(got["pair"][0], (X + X).relu())


@pytest.mark.native
@pytest.mark.parametrize("kind", ["cache.pt2", "cache.kiln"])
def test_the_state_of_a_loaded_file_is_its_own(kind, tmp_path):
    module, reference = Cache().eval(), Cache().eval()
    reference.load_state_dict(module.state_dict())
    file = tmp_path / kind
    if kind.endswith("pt2"):
        with torch.no_grad():
            program = torch.export.export(module, (X[:1],), strict=True)
        torch.export.save(program.run_decompositions({}), file)
    else:
        kiln.compile(module, (X[:1],)).save(file)
    loaded = kiln.load(file)
    assert sorted(loaded.state) == ["cache", "length"]
    assert not loaded.state["cache"].any()
    with torch.no_grad():
        for row in range(2):
            x = X[row : row + 1]
            torch.testing.assert_close(loaded(x), reference(x))
    torch.testing.assert_close(loaded.state["cache"], reference.cache)
    assert (loaded.state["length"].item(), module.length.item()) == (2, 0)
    # What is written to it is what the next call starts from.
    loaded.state["length"].zero_()
    reference.length.zero_()
    with torch.no_grad():
        torch.testing.assert_close(loaded(X[:1]), reference(X[:1]))


@pytest.mark.native
@pytest.mark.parametrize("text", ["[1, 2", "[]", '{"graph_module": 3}', "\xff"])
def test_a_broken_archive_is_an_error_of_the_engine(text, tmp_path):
    with zipfile.ZipFile(tmp_path / "broken.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/models/model.json", text.encode("latin-1"))
    with pytest.raises(kiln.KilnError):
        kiln.load(tmp_path / "broken.pt2")


def test_the_device_of_an_archive_is_that_of_its_export():
    def found(*devices):
        values = {str(i): {"device": d} for i, d in enumerate(devices)}
        return artifact._exported_on({"graph_module": {"graph": {"tensor_values": values}}})

    cpu, gpu = {"type": "cpu", "index": None}, {"type": "cuda", "index": 0}
    here = "cuda:0" if torch.cuda.is_available() else "cpu"
    assert [found(), found(cpu), found(cpu, gpu)] == ["cpu", "cpu", here]
    assert found({"type": "cuda", "index": 99}) == "cpu"
    assert artifact._exported_on({}) == "cpu"


def test_the_nesting_of_an_archive_is_read(tmp_path):
    with torch.no_grad():
        program = torch.export.export(Nested().eval(), (X,), {"more": {"a": [X]}})
    torch.export.save(program, tmp_path / "nested.pt2")
    in_spec, out_spec = artifact._nesting(artifact._program(tmp_path / "nested.pt2"))
    assert in_spec == program.call_spec.in_spec
    assert out_spec == program.call_spec.out_spec
    (tmp_path / "text").write_text("graph")
    assert artifact._nesting(artifact._program(tmp_path / "text")) == (None, None)


def test_bench_times_in_one_table():
    layer = nn.Linear(4, 2).eval()

    def double(x):
        return layer(x) * 2

    def broken(x):
        raise ValueError("no")

    compiled = kiln.compile(layer, (X,))
    table = compiled.bench(against=("eager", double, broken), repetitions=5)
    assert [row.name for row in table.rows] == ["kiln", "eager", "double", "broken"]
    first = table["kiln"]
    assert first.ratio == 1.0 and 0 < first.p10_ms <= first.median_ms <= first.p90_ms
    assert table["eager"].ratio == pytest.approx(table["eager"].median_ms / first.median_ms)
    assert table["broken"].error == "ValueError: no"
    assert "ValueError: no" in str(table)
    with pytest.raises(kiln.UsageError, match="'inductr': use one of eager"):
        compiled.bench(against=("inductr",))


def test_a_failure_of_what_is_timed_is_not_hidden():
    def broken():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        bench.measure({"a": broken}, (), {}, "cpu")


def test_bench_ends_in_time_and_shows_what_it_does(capsys):
    class Terminal:
        def __init__(self):
            self.text = ""

        def isatty(self):
            return True

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    def slow(x):
        time.sleep(0.02)
        return x

    started = time.perf_counter()
    table = bench.measure({"slow": slow}, (X,), {}, "cpu", repetitions=10**6, seconds=0.2)
    assert time.perf_counter() - started < 5
    assert table["slow"].median_ms >= 20
    shown = Terminal()
    with bench._Progress(shown) as progress:
        progress.tell("first call of slow")
        progress._ended.wait(1.5)
    assert "first call of slow (1 s)" in shown.text and shown.text.endswith("\r\x1b[K")
    # Where nobody looks, nothing is written.
    assert capsys.readouterr().err == ""
