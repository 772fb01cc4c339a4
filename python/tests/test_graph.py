"""What the writer writes of a graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import kiln
from kiln.lowering import lower_module, program_writer
from kiln.tracing import export, sources

DIM = torch.export.Dim.AUTO


def written(module, args, kwargs=None, dynamic=None):
    exported = export.functional(export.export(module.eval(), args, kwargs or {}, dynamic))
    return json.loads(lower_module.read(exported).program.text)


def function(f, *args, dynamic=None):
    """The program of a function."""

    class Module(nn.Module):
        def forward(self, *args):
            return f(*args)

    return written(Module(), args, dynamic=dynamic and (dynamic,))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x) * 2.5


def test_a_module_is_written_with_its_parameters_and_places():
    program = written(Scaled(), (torch.ones(2, 4),))
    assert program["symbols"] == {}
    assert program["values"] == [
        {"dtype": "f32", "shape": [3, 4], "name": "inner.weight"},
        {"dtype": "f32", "shape": [3], "name": "inner.bias"},
        {"dtype": "f32", "shape": [2, 4]},
        {"dtype": "f32", "shape": [2, 3]},
        {"dtype": "f32", "shape": [2, 3]},
    ]
    assert program["params"] == [0, 1]
    assert program["inputs"] == [{"name": "x", "value": 2}]
    assert program["outputs"] == [{"value": 4}]
    linear, mul = program["calls"]
    assert (linear["name"], linear["overload"], linear["outs"]) == ("aten::linear", "", [3])
    assert linear["args"] == [{"value": 2}, {"value": 0}, {"value": 1}]
    assert linear["module"] == "inner"
    innermost, outer = linear["source"].splitlines()[:2]
    assert "linear.py:" in innermost and "test_graph.py:" in outer
    assert (mul["name"], mul["overload"]) == ("aten::mul", "Tensor")
    assert mul["args"] == [{"value": 3}, {"float": 2.5}]
    assert mul["module"] == ""


def test_defaults_are_filled_in_and_keywords_are_put_in_place():
    (call,) = function(lambda x: torch.add(x, x, alpha=3), torch.ones(2))["calls"]
    assert call["args"] == [{"value": 0}, {"value": 0}, {"int": 3}]
    (call,) = function(lambda x: torch.sum(x, 0), torch.ones(2))["calls"]
    assert call["args"] == [{"value": 0}, {"ints": [0]}, {"bool": False}, "none"]


def test_dtypes_devices_layouts_and_special_numbers():
    (call,) = function(lambda x: x.to(torch.bfloat16), torch.ones(2))["calls"]
    assert {"int": 15} in call["args"]
    make = lambda x: x + torch.zeros(2, dtype=torch.int64, device="cpu")  # noqa: E731
    calls = function(make, torch.ones(2, dtype=torch.int64))["calls"]
    assert calls[0]["args"] == [
        {"ints": [2]},
        {"int": 4},
        "none",
        {"device": "cpu"},
        {"bool": False},
    ]
    (call,) = function(lambda x: x.clone(memory_format=torch.contiguous_format), torch.ones(2))[
        "calls"
    ]
    assert call["args"] == [{"value": 0}, "none"]
    (call,) = function(lambda x: x.masked_fill(x > 0, -float("inf")), torch.ones(2))["calls"][1:]
    assert call["args"][2] == {"float": "-inf"}
    (call,) = function(lambda x: torch.full_like(x, float("nan")), torch.ones(2))["calls"]
    assert call["args"][1] == {"float": "nan"}


def test_sizes_are_expressions_over_symbols():
    x = torch.ones(6, 4)
    program = function(lambda x: (x.reshape(-1), x.shape[0] * 2), x, dynamic=({0: DIM, 1: None},))
    ((symbol, about),) = program["symbols"].items()
    assert about == {"min": 2, "max": None, "hint": 6}
    name = f"Symbol('{symbol}', positive=True, integer=True)"
    assert program["values"][0]["shape"] == [name, 4]
    assert program["values"][1]["shape"] == [f"Mul(Integer(4), {name})"]
    assert program["outputs"] == [{"value": 1}, {"size": f"Mul(Integer(2), {name})"}]


def test_a_range_is_that_of_the_dimension():
    dims = ({0: torch.export.Dim("batch", min=3, max=64)},)
    program = function(lambda x: x + x, torch.ones(6, 4), dynamic=dims)
    (about,) = program["symbols"].values()
    assert about == {"min": 3, "max": 64, "hint": 6}


def test_guards_of_an_exported_program_are_kept():
    program = function(lambda x: x.view(2, -1), torch.ones(6), dynamic=({0: DIM},))
    assert len(program["symbols"]) == 1
    assert any("%" in guard and "== 0" in guard for guard in program["guards"])


def test_arithmetic_on_sizes_is_an_argument():
    program = function(lambda x: x * x.shape[0], torch.ones(6), dynamic=({0: DIM},))
    (call,) = program["calls"]
    assert list(call["args"][1]) == ["size"]
    program = function(lambda x: x.view(x.shape[0] // 2, 2), torch.ones(6), dynamic=({0: DIM},))
    (view,) = (c for c in program["calls"] if c["name"] in ("aten::view", "aten::reshape"))
    (first, second) = view["args"][1]["list"]
    assert "FloorDiv" in first["size"] and second == {"int": 2}


def test_results_of_an_operator_are_flat_and_items_are_not_calls():
    program = function(lambda x: x.split(2)[1] + x.split(2)[0], torch.ones(4))
    assert [c["name"] for c in program["calls"]] == ["aten::split", "aten::split", "aten::add"]
    assert program["calls"][0]["outs"] == [1, 2]
    assert program["calls"][2]["args"][:2] == [{"value": 2}, {"value": 3}]


def test_lists_of_tensors_and_of_optional_tensors():
    program = function(lambda x: torch.cat([x, x]), torch.ones(4))
    assert program["calls"][0]["args"] == [{"list": [{"value": 0}, {"value": 0}]}, {"int": 0}]
    program = function(lambda x, i: x[:, i], torch.ones(2, 4), torch.tensor([1, 2]))
    (index,) = (c for c in program["calls"] if c["name"] == "aten::index")
    assert index["args"][1]["list"][0] == "none"


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("hidden", torch.ones(3), persistent=False)

    def forward(self, x):
        self.count.add_(x)
        x.mul_(2)
        return self.count * self.hidden + torch.tensor([1.0, 2.0, 3.0]), None, 5


def test_writes_to_buffers_and_inputs():
    program = written(Counter(), (torch.ones(3),))
    names = [program["values"][i]["name"] for i in program["params"]]
    assert names[:2] == ["count", "hidden"] and len(names) == 3
    (x,) = program["inputs"]
    targets = [w["target"] for w in program["writes"]]
    assert targets == [program["params"][0], x["value"]]
    assert program["outputs"][1:] == ["none", {"constant": {"int": 5}}]
    assert all(not c["name"].endswith("_") for c in program["calls"])


def test_inputs_that_were_fixed_are_constants():
    class Module(nn.Module):
        def forward(self, x, k, flag, name, nothing):
            return x * k

    program = written(Module(), (torch.ones(2), 3, True, "a", None))
    constants = [entry.get("constant") for entry in program["inputs"]]
    assert constants == [None, {"int": 3}, {"bool": True}, {"str": "a"}, "none"]


def test_checks_of_tensors_are_left_out():
    def f(x):
        torch._assert(x.shape[0] > 1, "rows")
        return x.to(torch.float32).sum()

    names = [c["name"] for c in function(f, torch.ones(6), dynamic=({0: DIM},))["calls"]]
    assert not any("assert" in name for name in names)


def test_convert_element_type_is_written_as_to():
    g = torch.fx.Graph()
    x = g.placeholder("x")
    x.meta["val"] = torch.ones(2)
    y = g.call_function(torch.ops.prims.convert_element_type.default, (x, torch.float64))
    y.meta["val"] = torch.ones(2, dtype=torch.float64)
    g.output((y,))
    (call,) = json.loads(program_writer.write(g, None).text)["calls"]
    assert (call["name"], call["overload"]) == ("aten::to", "dtype")
    no = {"bool": False}
    assert call["args"] == [{"value": 0}, {"int": 7}, no, no, "none"]


def test_operators_of_other_namespaces_are_calls():
    library = torch.library.Library("kiln_test", "DEF")
    library.define("twice(Tensor x, float by=2.0) -> Tensor")
    library.impl("twice", lambda x, by=2.0: x * by, "CompositeExplicitAutograd")
    torch.library.register_fake("kiln_test::twice", lambda x, by=2.0: torch.empty_like(x))
    (call,) = function(lambda x: torch.ops.kiln_test.twice(x), torch.ones(2))["calls"]
    assert call["name"] == "kiln_test::twice"
    assert call["args"] == [{"value": 0}, {"float": 2.0}]


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def test_higher_order_operators_are_refused_with_their_line():
    with pytest.raises(kiln.UnsupportedError, match=r"cond at .*test_graph\.py:\d+: "):
        function(branch, torch.ones(2))


def test_numbers_read_from_tensors_are_refused_with_their_line():
    with pytest.raises(kiln.UnsupportedError, match=r"read from a tensor at .*test_graph\.py:\d+"):
        function(lambda x: x * x.sum().item(), torch.ones(2))


def test_tensors_on_several_devices_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    g = torch.fx.Graph()
    x, y = g.placeholder("x"), g.placeholder("y")
    with FakeTensorMode():
        x.meta["val"], y.meta["val"] = torch.ones(2, device="cuda"), torch.ones(2, device="meta")
    g.output((x, y))
    with pytest.raises(kiln.UnsupportedError, match="on cuda:0 and meta: put the module"):
        program_writer.write(g, None)


def test_tensors_of_other_dtypes_are_refused_unless_nothing_reads_them():
    def graph_of(read):
        g = torch.fx.Graph()
        x, p = g.placeholder("x"), g.placeholder("p")
        x.meta["val"], p.meta["val"] = torch.ones(2), torch.ones(2, dtype=torch.complex32)
        g.output((x, p) if read else (x,))
        return g

    text = "table is torch.complex32, a dtype that Kiln does not have: convert it"
    with pytest.raises(kiln.UnsupportedError, match=text):
        program_writer.write(graph_of(True), None, params={1: "table"})
    assert program_writer.write(graph_of(False), None, params={1: "table"}).params == []


def test_scalars_on_the_host_are_no_inputs_of_a_program_on_a_device():
    from torch._subclasses.fake_tensor import FakeTensorMode

    g = torch.fx.Graph()
    x, scale = g.placeholder("x"), g.placeholder("scale")
    with FakeTensorMode():
        x.meta["val"], scale.meta["val"] = torch.empty(2, device="cuda"), torch.empty(())
    g.output((x, scale))
    text = "scale is on cpu, and the program's other tensors on cuda:0: move scale there"
    with pytest.raises(kiln.UnsupportedError, match=text):
        program_writer.write(g, None)


def test_what_is_computed_on_the_host_within_a_program_on_a_device_is_computed_there():
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Table(torch.nn.Module):
        def forward(self, x):
            i = torch.arange(4)
            table = (i[:, None] - i[None]).abs()
            return x[table.to(x.device)], table

    with FakeTensorMode():
        exported = torch.export.export(Table(), (torch.empty(5, device="cuda"),))
    both = exported.run_decompositions({}).graph
    text = "result 1 is on cpu, and the program's other tensors on cuda:0"
    with pytest.raises(kiln.UnsupportedError, match=text):
        program_writer.write(both, None)
    output = both.output_node()
    output.args = (output.args[0][:1],)
    program = program_writer.write(both, None)
    assert program.device == "cuda:0"
    assert not any(c.get("vouched") for c in json.loads(program.text)["calls"][:4])


def test_sparse_and_meta_tensors_are_refused():
    for tensor, text in (
        (torch.ones(2, 2).to_sparse(), "use dense tensors"),
        (torch.ones(2, device="meta"), "on meta: use cpu or cuda"),
    ):
        g = torch.fx.Graph()
        x = g.placeholder("x")
        x.meta["val"] = tensor
        g.output((x,))
        with pytest.raises(kiln.UnsupportedError, match=text):
            program_writer.write(g, None)


def test_names_of_dynamo_become_paths():
    source = "L['self']._modules['layers']._modules['0']._parameters['weight']"
    assert sources.path(source) == "layers.0.weight"
    assert sources.path("L['inputs']['ids']") == "inputs['ids']"
    assert sources.module_path("L['self'].layers.0") == "layers.0"


@pytest.mark.parametrize("package", ["torch", "kiln"])
def test_packages_whose_names_begin_alike_are_the_users(package):
    home = Path(sys.modules[package].__file__).parent
    user, library = "/home/me/model.py", f"{home}vision/models/resnet.py"
    frames = [(user, 3), (library, 7), (str(home / "nn" / "linear.py"), 9)]
    trace = "\n".join(f'File "{file}", line {number}, in forward' for file, number in frames)
    assert sources.line(trace) == sources.users_line(trace) == f"{library}:7"
