"""`kiln.explain`, `kiln.check`, `kiln.snapshot`, `kiln.doctor`, and what importing costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import kiln
from kiln import pieces
from kiln.api import backend, check
from kiln.lowering import runner
from kiln.reports import accuracy, rounding
from kiln.reports import report as report_module

X = torch.arange(12.0).reshape(3, 4) - 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(self.norm(x)).relu()


def test_explain_of_a_module():
    report = kiln.explain(Block().eval(), X)
    assert report.kernels and not report.eager and not report.graph_breaks
    assert all(kernel.name and kernel.kind and kernel.nodes for kernel in report.kernels)
    data = json.loads(report.to_json())
    assert {"kernels", "fallback", "nodes", "lower_bound_us", "predicted_us"} <= set(data)
    assert len(data["kernels"]) == len(report.kernels)
    assert data["pieces"][0]["state"] == "compiled"
    assert str(report).startswith("piece 0 at ")
    assert "<iframe srcdoc=" in report._repr_html_()


def test_explain_of_a_compiled_program_is_the_engines_report():
    compiled = kiln.compile(Block().eval(), (X,))
    for report in (compiled.explain(), kiln.explain(compiled), kiln.explain(compiled, X)):
        assert str(report) == report_module._for_python(compiled.engine.text())
        assert json.loads(report.to_json()) == json.loads(compiled.engine.report())


def test_explain_shows_sizes_of_a_dynamic_program():
    compiled = kiln.compile(nn.ReLU().eval(), (X,), dynamic=True)
    compiled(torch.ones(5, 6))
    report = kiln.explain(compiled, torch.ones(7, 8))
    assert len(report.parts[0].bindings) >= 1


def broken(x):
    y = x * 2
    torch._dynamo.graph_break()
    z = torch.cond(y.sum() > 0, lambda x: x + 1, lambda x: x - 1, (y,))
    torch._dynamo.graph_break()
    return z.relu()


def test_explain_lists_breaks_and_pieces_that_run_eagerly():
    report = kiln.explain(broken, X)
    assert [part.state for part in report.parts] == ["compiled", "compiled", "eager", "compiled"]
    (eager,) = report.eager
    assert "cond" in eager.reason and "test_report.py:" in eager.source
    assert len(report.graph_breaks) == 2
    source, reason = report.graph_breaks[0]
    assert "test_report.py:" in source and reason
    text = str(report)
    assert "runs eagerly" in text and "graph break at" in text
    assert repr(report).endswith("1 pieces run eagerly, 2 graph breaks)")


def test_explain_leaves_what_is_compiled_as_it_is():
    layer = Block().eval()
    with torch.no_grad(), pieces.collecting() as found:
        run = torch.compile(layer, backend=backend.kiln)
        run(X)
        for _ in range(12):
            assert kiln.explain(run, X).kernels
        made = len(found)
        run(X)
        assert len(found) == made == 13


def test_explain_shows_no_frame_of_its_own():
    (part,) = kiln.explain(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), X).parts
    assert "kiln/report" not in part.source
    (part,) = kiln.explain(Block().eval(), X).parts
    assert "test_report.py:" in part.source


def test_explain_names_no_line_of_its_own_where_a_graph_breaks():
    @torch._dynamo.disable
    def hidden(x):
        return x + 1

    report = kiln.explain(hidden, X)
    assert "kiln/report" not in str(report)


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_run_eagerly():
    nested = [torch.ones(2, 3), torch.ones(4, 3)]
    x = torch.nested.nested_tensor(nested, layout=torch.jagged)
    report = kiln.explain(lambda x: x + 1, x)
    assert [part.state for part in report.parts] == ["eager"]
    assert "nested tensor: pass padded tensors" in report.parts[0].reason


def test_explain_runs_without_gradients_and_gives_no_engine_away():
    report = kiln.explain(nn.Linear(4, 4), X)
    assert not report.eager
    assert "engine" not in report.to_json()


def test_explain_of_everything_that_was_compiled():
    layer = Block().eval()
    with torch.no_grad():
        run = torch.compile(layer, backend=backend.kiln)
        run(X)
    taught = torch.compile(lambda x: layer(x) * 3, backend=backend.kiln)
    with pytest.warns(UserWarning, match="gradients are on"):
        taught(X)
    states = [part.state for part in kiln.explain().parts]
    assert states[-2:] == ["compiled", "eager"]


def quiet(run, *args):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "kiln: gradients are on")
        return run(*args)


def test_explain_says_how_calls_of_each_model_ran():
    first, second = Block().eval(), Block().eval()
    # Dynamo has one graph for both.
    run, other = (torch.compile(m, backend=backend.kiln) for m in (first, second))
    with torch.no_grad():
        run(X), run(X)
    quiet(run, X), quiet(other, X)
    with torch.no_grad():
        run(X)
    report = kiln.explain(run, X)
    assert [part.state for part in report.parts] == ["compiled"]
    assert [(c.compiled, c.eager, c.last) for _, c in report.calls] == [
        (3, 0, "compiled"),
        (0, 1, "eager"),
    ]
    told = "gradients are on; use torch.no_grad()"
    assert "calls so far" in str(report) and re.search(
        rf"1 run eagerly since [\d:]{{8}}: {re.escape(told)}", str(report)
    )
    assert told in report._repr_html_().rpartition("</iframe>")[2]
    assert json.loads(report.to_json())["calls"][1]["reason"] == told
    # Without arguments: of this model alone.
    (part,) = kiln.explain(other).parts
    assert part.state == "eager" and [c.eager for c in part.runs] == [1]
    assert f"  calls       {part.runs[0]}" in str(kiln.explain(other))
    assert [len(p.models) for p, _ in pieces.of_model(first)] == [1, 2]


def test_calls_tell_since_when_and_why():
    calls = pieces.Calls()
    assert str(calls) == "none"
    calls.ran_compiled(), calls.ran_compiled()
    assert re.fullmatch(r"2 compiled since [\d:]{8}", str(calls))
    calls.ran_eagerly("a reason"), calls.ran_eagerly("a reason")
    want = r"2 compiled, 2 run eagerly; run eagerly since call 3 \([\d:]{8}\): a reason"
    assert re.fullmatch(want, str(calls))
    calls.ran_eagerly("another")
    assert calls.since == 5 and calls.to_dict()["reason"] == "another"


def test_sizes_that_are_refused_count_as_eager():
    class Refusing:
        def __init__(self, *_):
            pass

        def run(self, inputs):
            if inputs[-1].shape[0] == 5:
                raise kiln.UnsupportedError("not for five: take six")
            return [inputs[-1] * 2]

        def changed(self):
            return False

    def f(x):
        return x * 2

    run = torch.compile(f, backend=backend.kiln, dynamic=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "Engine", Refusing)
        for n in (4, 5, 5, 6):
            run(torch.ones(n, 3))
    ((_, calls),) = pieces.of_model(f)
    assert (calls.compiled, calls.eager, calls.last, calls.since) == (2, 2, "compiled", 4)


def test_explain_of_something_else():
    with pytest.raises(kiln.UsageError, match="pass a function, a module"):
        kiln.explain(3)


def test_why_asks_the_piece_that_knows():
    report = kiln.compile(Block().eval(), (X,)).explain()
    first, *_, last = report.kernels
    assert report.why(first.name, last.name) == report.why_not(first.name, last.name)
    with pytest.raises(kiln.UsageError, match="nothing was compiled"):
        flag = torch.tensor(True)
        report = kiln.explain(lambda x: torch.cond(x, torch.sin, torch.cos, (X,)), flag)
        report.why("a", "b")


# Check


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_check_passes_for_a_block(dtype):
    module = Block().eval().to(dtype)
    result = kiln.check(module, (X.to(dtype),))
    assert result and result.ok
    result.raise_if_failed()
    (output,) = result.outputs
    assert output.dtype == str(dtype).removeprefix("torch.") and output.shape == (3, 4)
    assert 0 < output.allowed < 1


def test_check_leaves_the_module_and_the_inputs_alone():
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(4))

        def forward(self, x):
            x.add_(1)
            self.n.add_(x.sum(0))
            return {"n": self.n * 2, "i": x.argmax(-1), "k": x.shape[0]}

    module, x = Module().eval(), X.clone()
    result = kiln.check(module, (), {"x": x})
    assert result.ok, result
    assert [output.name for output in result.outputs] == ["['n']", "['i']", "['k']"]
    assert torch.equal(x, X) and not module.n.any()


def test_compare_fails_for_what_is_wrong():
    eager = torch.tensor([1.0, 2.0, float("inf"), float("nan")])
    exact = torch.tensor([1.0, 2.0, float("inf"), float("nan")], dtype=torch.float64)
    assert accuracy.compare(eager.clone(), eager, exact, [eager])
    for wrong in (
        torch.tensor([1.0, 2.001, float("inf"), float("nan")]),
        torch.tensor([1.0, 2.0, float("-inf"), float("nan")]),
        torch.tensor([1.0, 2.0, 3.0, float("nan")]),
        torch.tensor([1.0, 2.0, float("inf"), 0.0]),
        torch.tensor([1.0, float("nan"), float("inf"), float("nan")]),
        eager.double(),
        eager[:2],
        None,
    ):
        assert not accuracy.compare(wrong, eager, exact, [eager]), wrong
    one = torch.tensor([1, 2])
    assert not accuracy.compare(torch.tensor([1, 3]), one, one, [one])
    assert not accuracy.compare([eager, eager], [eager], [exact], [[eager]])
    with pytest.raises(AssertionError, match="1 elements differ"):
        accuracy.compare(torch.tensor([1, 3]), one, one, [one]).raise_if_failed()


def test_the_bound_is_of_the_spread_and_not_of_eagers_error():
    exact = torch.tensor([1.0], dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    moved = [torch.tensor([1.0 + 2 * eps]), torch.tensor([1.0 - 2 * eps])]
    most = 2 * rounding.spread_factor(1) + 1
    for eager in (torch.tensor([1.0]), torch.tensor([1.5])):
        right, wrong = (torch.tensor([1.0 + n * eps]) for n in (int(most), int(most) + 1))
        assert accuracy.compare(right, eager, exact, moved)
        assert not accuracy.compare(wrong, eager, exact, moved)


def test_where_rounding_decides_any_value_passes():
    one = torch.tensor([1, 2])
    assert accuracy.compare(torch.tensor([1, 3]), one, one, [one, torch.tensor([1, 4])])
    assert not accuracy.compare(torch.tensor([2, 2]), one, one, [one, torch.tensor([1, 4])])
    inf, large = torch.tensor([float("inf")]), torch.tensor([3e38])
    assert accuracy.compare(large, inf, large.double(), [inf, large])


class Wide(nn.Module):
    """Makes f32 inside, whatever its inputs are."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.full((4,), 0.5)

    def forward(self, x):
        state = torch.zeros(x.shape[0], 4)
        norm = x.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        rows = self.linear((x.float() * norm).to(self.linear.weight.dtype)) * self.scale
        return state + rows + torch.arange(4, dtype=torch.float32)


class Attends(nn.Module):
    def forward(self, x):
        q = torch.stack([x, x.sin(), x.cos()]) @ torch.eye(4, dtype=x.dtype)
        return nn.functional.scaled_dot_product_attention(q, q, q), q.argmax(-1), (q > 0).any()


#: Programs whose results are right, and how far a wrong one is off.
PROGRAMS = {
    "f32 made inside": Wide,
    "attention": Attends,
    "a mean of cosines": lambda: Function(lambda x: x.cos().mean()),
    "a long sum": lambda: Function(lambda x: x.repeat(1, 2000).sum()),
    "cancellation": lambda: Function(lambda x: (x * 1000 + x) - x * 1000),
    "distances": lambda: Function(lambda x: torch.cdist(x.repeat(2, 1), x)),
    "variance": lambda: Function(lambda x: torch.var(x + 100, -1)),
}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_check_passes_what_is_right_for_every_seed(name, dtype):
    module = PROGRAMS[name]().eval()
    if name != "f32 made inside":
        module = module.to(dtype)
    for seed in range(8 if name == "a mean of cosines" else 2):
        torch.manual_seed(seed)
        result = kiln.check(module, (torch.randn(16, 4, dtype=dtype),))
        assert result, (seed, result)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bound_is_small_beside_a_defect(name):
    module = PROGRAMS[name]().eval()
    torch.manual_seed(0)
    x = torch.randn(16, 4)
    eager, exact, samples = accuracy.references(lambda: module, (x,), {}, wide=module.double)
    leaves = torch.utils._pytree.tree_leaves(eager)
    # One input that is one part in a hundred off.
    off = x.clone()
    off[3, 1] *= 1.01
    wrong = torch.utils._pytree.tree_leaves(module.float()(off))
    found = accuracy.compare(
        wrong,
        leaves,
        torch.utils._pytree.tree_leaves(exact),
        [torch.utils._pytree.tree_leaves(sample) for sample in samples],
    )
    assert not found, found


def test_a_model_that_is_wrong_fails(monkeypatch):
    class Block2(Block):
        def forward(self, x):
            return super().forward(x) * 1.0001

    compiled = check._compiled
    monkeypatch.setattr(check, "_compiled", lambda module, *more: compiled(Block2().eval(), *more))
    torch.manual_seed(0)
    assert not kiln.check(Block().eval(), (X,))


# Snapshots


def test_a_plan_is_text_without_numbers_of_the_machine(kiln_plan):
    module = Block().eval()
    text = kiln_plan(module, (X,))
    assert text == kiln_plan(module, (X,)) == kiln.snapshot(kiln.compile(module, (X,)))
    assert text.startswith("kernels ")
    for varies in ("us=", "cost ", ".py:"):
        assert varies not in text


pytest_plugins = ["pytester"]

PLAN_TEST = """
PLAN = "plan {}\\n" + "".join(f"line {{i}}\\n" for i in range(40)) + "end {}\\n"
def test_plan(kiln_snapshot):
    assert PLAN == kiln_snapshot
"""


def test_a_snapshot_is_written_kept_and_compared(pytester):
    options = ["-p", "no:cacheprovider"]
    if not any(p.startswith("kiln") for p in _entry_points()):
        options += ["-p", "kiln.pytest_plugin"]
    pytester.makepyfile(test_plan=PLAN_TEST.format(1, 1))
    missing = pytester.runpytest_inprocess(*options)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*write it by `pytest --kiln-update`*"])
    pytester.runpytest_inprocess(*options, "--kiln-update").assert_outcomes(passed=1)
    kept = pytester.path / "__kiln__" / "test_plan" / "test_plan.txt"
    assert kept.read_text().startswith("plan 1\n")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1)
    pytester.makepyfile(test_plan=PLAN_TEST.format(2, 2))
    changed = pytester.runpytest_inprocess(*options)
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(["*-plan 1*", "*+plan 2*", "*-end 1*", "*+end 2*", "*the plan *"])
    changed.stdout.no_fnmatch_line("*line 20*")
    assert kept.read_text().startswith("plan 1\n")


def _entry_points():
    from importlib import metadata

    return [e.name for e in metadata.entry_points(group="pytest11")]


# Doctor and import


def test_doctor_names_versions_and_the_backend():
    text = kiln.doctor()
    for part in ("kiln ", "python ", torch.__version__, "cuda", "backend"):
        assert part in text
    assert repr(text) == str(text)


def test_importing_kiln_is_light():
    setup = f"import sys; sys.path[:0] = {sys.path!r}\n"
    if "fake_native" in sys.modules:
        setup += "import fake_native; fake_native.install()\n"
    code = setup + (
        "import kiln\n"
        "heavy = ('torch._dynamo', 'torch._inductor', 'transformers', 'sympy')\n"
        "assert not [m for m in heavy if m in sys.modules and 'fake_native' not in sys.modules]\n"
        "assert 'kiln.api.compiled' not in sys.modules\n"
        "assert callable(kiln.compile) and callable(kiln.check) and callable(kiln.load)\n"
        "assert set(kiln.__all__) <= set(dir(kiln))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kiln.nothing  # noqa: B018
