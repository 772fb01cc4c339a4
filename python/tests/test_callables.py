"""`kiln.compile` of functions, methods and other callables, and arguments in every form."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys

import pytest
import torch
from torch import nn

import kiln
from kiln.api import callables

X = torch.arange(12.0).reshape(3, 4) - 5
LAYER = nn.Linear(4, 4).eval()
TABLE = torch.ones(4, 4)


class Masked(nn.Module):
    def forward(self, x, mask=None, scale=1.0, *, negative=False):
        y = x * scale
        if mask is not None:
            y = y + mask
        return -y if negative else y


class Pairs(nn.Module):
    def forward(self, pair, table):
        return pair[0] + pair[1] * table["a"]


class Model:
    """Holds a module, and is none."""

    def __init__(self):
        self.layers = [nn.Linear(4, 4).eval()]

    def run(self, x):
        return self.layers[0](x) @ TABLE

    def __call__(self, x):
        return self.run(x) * 2


def scaled(x, scale=2.0, *, more=None):
    y = LAYER(x) * scale
    return y if more is None else y + more


def examples():
    model = Model()
    return {
        "function": (scaled, "scaled"),
        "closure": (lambda x: scaled(x) + model.run(x), "lambda"),
        "partial": (functools.partial(scaled, scale=3.0), "scaled"),
        "method of a module": (LAYER.forward, "Linear.forward"),
        "method": (model.run, "Model.run"),
        "object": (model, "Model"),
        "builtin": (torch.relu, "relu"),
        "torch.compile": (torch.compile(scaled), "scaled"),
        "compiled module": (torch.compile(LAYER), "Linear"),
        "data parallel": (nn.DataParallel(LAYER), "Linear"),
    }


@pytest.mark.parametrize("name", examples())
def test_callables(name):
    call, shown = examples()[name]
    with torch.no_grad():
        want = call(X) if "ompile" not in name else (LAYER if "module" in name else scaled)(X)
    compiled = kiln.compile(call, (X,))
    torch.testing.assert_close(compiled(X), want)
    assert repr(compiled) == f"Compiled({shown}, cpu)"


def test_a_function_shares_the_weights_of_the_modules_that_it_uses():
    layer = nn.Linear(4, 4).eval()
    compiled = kiln.compile(lambda x: layer(x).relu(), (X,))
    assert compiled.state_dict().keys() == {"layer.weight", "layer.bias"}
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
    assert not compiled(X).any()


def test_a_function_writes_to_the_buffers_of_a_module():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x):
            self.total += x.sum(0)
            return self.total * 1

    counter = Counter().eval()
    compiled = kiln.compile(lambda x: counter(x) + 1, (X,))
    for n in (1, 2):
        torch.testing.assert_close(compiled(X), n * X.sum(0) + 1)
    torch.testing.assert_close(counter.total, 2 * X.sum(0))


def test_functions_without_arguments_and_with_dynamic_sizes():
    torch.testing.assert_close(kiln.compile(lambda: TABLE * 2, ())(), TABLE * 2)
    compiled = kiln.compile(scaled, (X,), dynamic=True)
    torch.testing.assert_close(compiled(X[:2]), scaled(X[:2]).detach())


def test_a_module_of_a_function_in_training_mode_is_warned_of():
    layer = nn.Linear(4, 4)
    with pytest.warns(UserWarning, match="kiln: the module is in training mode"):
        kiln.compile(lambda x: layer(x), (X,))


FORMS = [
    ((X,), {}),
    ((X, None), {}),
    ((X, None, 1.0), {}),
    ((X,), {"mask": None, "scale": 1.0, "negative": False}),
    ((), {"negative": False, "x": X}),
]


@pytest.mark.parametrize("example", range(len(FORMS)))
def test_defaults_may_be_passed_or_left_out(example):
    args, kwargs = FORMS[example]
    compiled = kiln.compile(Masked().eval(), args, kwargs=kwargs)
    for args, kwargs in FORMS:
        torch.testing.assert_close(compiled(*args, **kwargs), X)


@pytest.mark.parametrize(
    ("example", "call", "text"),
    [
        ((X,), (X, X), "argument `mask` was not among the example inputs.*default, None: compile"),
        ((X,), (X, None, 2.0), "argument `scale` was not among.*default, 1.0: compile"),
        ((X, None), (X, X), "input `mask` is a tensor, and was none among the example inputs"),
        ((X, X), (X, None), "input `mask` is None, and was a tensor among the example inputs"),
        ((X, X), (X,), "input `mask` is None, and was a tensor among the example inputs"),
        ((X, None, 2.0), (X,), "scale`? is 1.0"),
        ((X,), (), "called wrongly: missing a required argument: 'x'"),
    ],
)
def test_arguments_that_are_not_those_of_compiling(example, call, text):
    compiled = kiln.compile(Masked().eval(), example)
    with pytest.raises(kiln.InputError, match=text):
        compiled(*call)


def test_lists_for_tuples_and_dicts_in_any_order():
    for pair in ([X, X + 1], (X, X + 1)):
        compiled = kiln.compile(Pairs().eval(), (pair, {"a": X, "b": X}))
        for given in ([X, X + 1], (X, X + 1)):
            got = compiled(given, {"b": X, "a": X})
            torch.testing.assert_close(got, X + (X + 1) * X)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (((X,), {"a": X}), r"argument `pair` has 1 items, and 2 in the example inputs"),
        (((X, X), {"b": X}), r"argument `table` has the keys \['b'\], and \['a'\] in the"),
        ((X, {"a": X}), r"argument `pair` is a leaf, and tuple\(leaf, leaf\) in the example"),
    ],
)
def test_another_nesting_is_named_with_its_argument(call, text):
    compiled = kiln.compile(Pairs().eval(), ((X, X), {"a": X}))
    with pytest.raises(kiln.InputError, match=text + ".*compile it again"):
        compiled(*call)


def test_any_number_of_arguments():
    def added(*tensors, **named):
        return sum(tensors) + named["last"]

    compiled = kiln.compile(added, (X, X), kwargs={"last": X})
    torch.testing.assert_close(compiled(X, X, last=X), 3 * X)
    with pytest.raises(kiln.InputError, match="1 positional argument and keyword last"):
        compiled(X, last=X)


# Wrong examples


@pytest.mark.parametrize(
    ("example", "text"),
    [
        ((), r"do not fit Linear\(input\): missing a required argument: 'input'; pass a tuple"),
        ((X, X), r"do not fit Linear\(input\): too many positional arguments"),
        ({"y": X}, r"do not fit Linear\(input\).*a dict goes in a tuple"),
        ((torch.ones(3, 5),), r"Linear fails .* shapes cannot be multiplied.*; pass inputs"),
        ((X.numpy(),), r"Linear fails when it is run .* must be Tensor, not numpy.ndarray"),
    ],
)
def test_wrong_example_inputs(example, text):
    with pytest.raises(kiln.InputError, match=text) as error:
        kiln.compile(LAYER, example)
    assert error.value.__cause__ is None and error.value.__suppress_context__


def test_wrong_example_inputs_name_the_users_line():
    with pytest.raises(kiln.InputError, match=r"at .*test_callables.py:\d+: mat1 and mat2"):
        kiln.compile(lambda x: x @ TABLE, (torch.ones(3, 5),))


def test_wrong_example_inputs_leave_buffers_as_they_are():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x @ TABLE

    counter = Counter().eval()
    with pytest.raises(kiln.InputError, match="shapes cannot be multiplied"):
        kiln.compile(counter, (torch.ones(3, 5),))
    assert counter.count == 0


def test_example_inputs_outside_of_dynamic():
    batch = torch.export.Dim("batch", min=5)
    with pytest.raises(kiln.UsageError, match=r"outside of `dynamic`.*pass example inputs"):
        kiln.compile(LAYER, (X,), dynamic={"input": {0: batch}})


@pytest.mark.native
def test_kilns_sentence_is_all_that_is_written():
    code = """
import kiln, torch
for f, x in ((torch.nn.Linear(4, 4).eval(), torch.ones(3, 5)),
             (lambda x: x + 1 if x.sum() > 0 else x, torch.ones(3))):
    try:
        kiln.compile(f, (x,))
    except kiln.KilnError as error:
        print(type(error).__name__)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["InputError", "UnsupportedError"]
    written = [line for line in run.stderr.splitlines() if "triton" not in line]
    assert written == []


def test_what_torch_says_is_logged_for_who_asks(caplog):
    with caplog.at_level(logging.DEBUG, "kiln"), pytest.raises(kiln.UnsupportedError):
        kiln.compile(lambda x: x + 1 if x.sum() > 0 else x, (X,))
    assert "torch.export failed" in caplog.text and "data-dependent" in caplog.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_called_says_what_can():
    with pytest.raises(kiln.UsageError, match=r"an int: pass a torch.nn.Module, a function, or"):
        kiln.compile(3, (X,))
    with pytest.raises(kiln.UsageError, match="was given the class ReLU: pass"):
        kiln.compile(nn.ReLU, (X,))
    with pytest.raises(kiln.UsageError, match="a TorchScript module: pass the module that"):
        kiln.compile(torch.jit.script(nn.ReLU()), (X,))


def test_sharded_modules_are_named(monkeypatch):
    fsdp = pytest.importorskip("torch.distributed.fsdp")

    class Sharded(fsdp.FSDPModule, nn.Linear):
        def __new__(cls, *args):
            return nn.Module.__new__(cls)

    text = r"wrapped by FSDP2 \(fully_shard\).*compile the module without it"
    with pytest.raises(kiln.UnsupportedError, match=text):
        kiln.compile(Sharded(4, 4).eval(), (X,))


def test_replicas_are_unwrapped():
    inner = nn.Linear(4, 4).eval()
    wrapped = object.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = inner
    assert callables.module_of(wrapped) is inner
    torch.testing.assert_close(kiln.compile(wrapped, (X,))(X), inner(X).detach())
