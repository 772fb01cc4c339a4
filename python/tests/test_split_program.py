"""Programs of `kiln.compile` in several pieces, and models that Kiln refuses a part of."""

from __future__ import annotations

import pytest
import torch
from agreement import same
from refused import REFUSED, Buffers, X, states
from torch import nn

import kiln
from kiln import pieces
from kiln.api import backend


class Around(nn.Module):
    """Computes before and behind what is refused."""

    def __init__(self, refused):
        super().__init__()
        self.refused = refused
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, *, scale=2.0):
        return {"y": self.b(self.refused(self.a(x))) * scale, "rows": x.shape[0], "x": x}


@pytest.mark.native
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["complex", "random", "as_strided", "uint16"])
def test_kiln_compile_splits_as_torch_compile_does(name, dynamic):
    module = Around(REFUSED[name]).eval()
    run = kiln.compile(module, {"x": X, "scale": 3.0}, dynamic=dynamic or None)
    assert run.bindings(), "compiled at once"
    for x in (X, X + 1, *([torch.randn(5, 4)] if dynamic else [])):
        with torch.no_grad():
            torch.manual_seed(1)
            want = module(x, scale=3.0)
            torch.manual_seed(1)
            got = run(x=x, scale=3.0)
        same(got, want)
        assert got["x"].data_ptr() != x.data_ptr()
    assert states(run.explain().parts) == ["compiled", "eager", "compiled"]
    with torch.no_grad():
        module.a.weight.mul_(2)
        module.b.weight.add_(1)
        torch.manual_seed(1)
        want = module(X, scale=3.0)
        torch.manual_seed(1)
        same(run(x=X, scale=3.0), want)
    if dynamic:
        torch.manual_seed(1)
        want = module(X, scale=2.0)
        torch.manual_seed(1)
        same(run(x=X, scale=2.0), want)
    else:
        with pytest.raises(kiln.InputError, match=r"`scale` is 2.0, but .* compiled for 3.0"):
            run(x=X, scale=2.0)
    with pytest.raises(kiln.ShapeError, match=r"`x` has 7 in dimension 1, and not 4|`x` has 7"):
        run(x=torch.ones(3, 7), scale=3.0)
    with pytest.raises(kiln.ShapeError, match=r"`x` is float64\[3, 4\]"):
        run(x=X.double(), scale=3.0)
    with pytest.raises(kiln.UnsupportedError, match="cannot hold"):
        run.save("nowhere.kiln")
    with pytest.raises(kiln.UnsupportedError):
        kiln.compile(module, {"x": X, "scale": 3.0}, options={"fallback": "error"})


@pytest.mark.native
@pytest.mark.parametrize(
    "f", [lambda x: x[x > 0] * 2, lambda x: x.relu().nonzero() + 1], ids=["mask", "nonzero"]
)
def test_kiln_compile_of_sizes_that_depend_on_data(f):
    class Selects(nn.Module):
        def forward(self, x):
            return f(x * 3)

    run = kiln.compile(Selects().eval(), (X,))
    for x in (X, -X, X - 10):
        same(run(x), f(x * 3))


@pytest.mark.native
def test_a_file_with_sizes_that_depend_on_data_names_what_runs_it(tmp_path):
    class Counts(nn.Module):
        def forward(self, x):
            found = torch.nonzero(x.flatten() > 0)[:, 0]
            counts = torch.bincount((x.abs() * 3).long().flatten(), minlength=4).sum()
            return (x.flatten()[found] * 2).exp().sum() + counts

    path = tmp_path / "counts.pt2"
    torch.export.save(torch.export.export(Counts(), (torch.randn(6, 8),)), path)
    with pytest.raises(kiln.UnsupportedError, match=r"kiln\.compile\(torch\.export\.load\(FILE"):
        kiln.load(path)(torch.randn(6, 8))
    compiled = kiln.compile(torch.export.load(path))
    for _ in range(2):
        x = torch.randn(6, 8)
        torch.testing.assert_close(compiled(x), Counts()(x))


@pytest.mark.parametrize("name", ["complex", "random"])
def test_kiln_compile_writes_to_buffers_and_inputs_in_several_pieces(name):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Buffers(REFUSED[name])

        def forward(self, x):
            x.add_(1)
            y, t, z = self.inner(x)
            x.mul_(z)
            return y, t

    module, reference = Both().eval(), Both().eval()
    run = kiln.compile(module, (X.clone(),))
    assert sorted(run.state) == [f"inner.{n}" for n in ("before", "behind", "both", "read")]
    ours, theirs = X.clone(), X.clone()
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            got = run(ours)
            torch.manual_seed(seed)
            same(got, tuple(t.contiguous() for t in reference(theirs)))
            same(ours, theirs)
            same(dict(module.state_dict()), dict(reference.state_dict()))


@pytest.mark.native
def test_an_operator_of_a_user_is_a_step_that_no_artifact_holds(tmp_path):
    class Doubled(nn.Module):
        def forward(self, x):
            return torch.ops.kilntest.double(x + 1) - 1

    run = kiln.compile(Doubled().eval(), (X,))
    same(run(X), Doubled()(X))
    assert run.explain().fallbacks == ["kilntest::double"]
    with pytest.raises(kiln.UsageError, match=r"`kilntest::double`, an operator that only this"):
        run.save(tmp_path / "doubled.kiln")


# Models


SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


@pytest.mark.native
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Mixtral", "FNet"])
def test_one_operator_does_not_make_a_model_eager(name):
    transformers = pytest.importorskip("transformers")
    experts = {"num_key_value_heads": 2, "num_local_experts": 4} if name == "Mixtral" else {}
    config = getattr(transformers, f"{name}Config")(**SMALL, **experts)
    model = getattr(transformers, f"{name}Model")(config).eval()
    ids = torch.randint(3, 99, (2, 17))
    with torch.no_grad(), pieces.collecting() as found:
        got = torch.compile(model, backend=backend.kiln)(input_ids=ids)
        want = model(input_ids=ids)
    torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state)
    if name == "Mixtral":
        assert states(found) == ["compiled"]
        assert "transformers::grouped_mm_fallback" in found[0].engines[0].fallbacks()
    else:
        # A Fourier transform a layer.
        assert states(found) == ["compiled", "eager"] * 2 + ["compiled"]
    calls = {state: sum(p.calls for p in found if p.state == state) for state in states(found)}
    assert calls["compiled"] > 8 * calls.get("eager", 0)


@torch.no_grad()
def test_kiln_compile_of_a_float_that_is_read_from_data():
    class Bounded(nn.Module):
        def forward(self, x, low):
            return torch.clamp(x.exp(), low, 2.5) + 1

    module = Bounded().eval()
    compiled = kiln.compile(module, (X, torch.tensor(0.5)))
    for low in (0.5, 1.5):
        same(compiled(X, torch.tensor(low)), module(X, torch.tensor(low)))


# A mixture of experts


class Experts(nn.Module):
    """A loop over experts, each for the tokens that chose it."""

    def __init__(self, skips):
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.skips = skips

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            if self.skips and token.numel() == 0:
                continue
            out[token] += weights[token, slot, None] * expert(x[token])
        return out * 2


@torch.no_grad()
def test_a_mixture_of_experts_in_a_loop_is_compiled_as_by_kiln_compile():
    module, x = Experts(False).eval(), torch.randn(10, 8)
    run = torch.compile(module, backend=backend.kiln)
    for rows in (x, x * 2, x):
        torch.testing.assert_close(run(rows), module(rows))
    ours, theirs = kiln.explain(module, x), kiln.compile(module, (x,)).explain()
    assert [p.state for p in ours.parts] == [p.state for p in theirs.parts]
    assert [k.nodes for k in ours.kernels] == [k.nodes for k in theirs.kernels] != []
    # What is set while dynamo traces it is set for nothing else.
    assert not torch._dynamo.config.capture_dynamic_output_shape_ops


@torch.no_grad()
def test_a_loop_that_dynamo_leaves_out_is_told_with_the_reason(caplog):
    module, x = Experts(True).eval(), torch.randn(10, 8)
    run = torch.compile(module, backend=backend.kiln)
    torch.testing.assert_close(run(x), module(x))
    for report in (kiln.explain(run, x), kiln.explain(run), kiln.explain()):
        part = report.parts[-1]
        assert part.state == "eager" and "test_split_program.py:" in part.source
        assert "compiles nothing of `Experts.forward`: Data-dependent" in part.reason
        assert "graph break in loop" in str(report)
        assert "Data-dependent" in report._repr_html_() and "Data-dependent" in report.to_json()
    assert "dynamo found nothing" in kiln.explain(lambda x: x, x)._repr_html_()


@torch.no_grad()
def test_positions_outside_of_a_loop_end_a_graph_whose_rest_is_compiled():
    def f(x):
        rows = x[torch.where(x[:, 0] > 0)[0]]
        return (rows @ rows.t()).relu() + 1

    with pieces.collecting() as found:
        x = torch.randn(10, 8)
        torch.testing.assert_close(torch.compile(f, backend=backend.kiln)(x), f(x))
    assert [p.state for p in found][-1] == "compiled" and found[-1].calls >= 3
