"""Graphs that are split around what Kiln refuses: results, state, and the pieces."""

from __future__ import annotations

import copy

import pytest
import torch
from agreement import same
from torch import nn

import kiln
from kiln import pieces
from kiln.api import backend

X = torch.arange(12.0).reshape(3, 4) / 7 - 1


@torch.library.custom_op("kilntest::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("kilntest::parts", mutates_args=())
def parts(x: torch.Tensor, sizes: list[int], scale: float, name: str) -> list[torch.Tensor]:
    assert name == "a" and isinstance(scale, float)
    return [p * scale for p in x.split(sizes)]


@parts.register_fake
def _(x, sizes, scale, name):
    return [p * scale for p in x.split(sizes)]


@torch.library.custom_op("kilntest::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


RANDOM = (torch.Tag.nondeterministic_seeded,)


@torch.library.custom_op("kilntest::drawn", mutates_args=(), tags=RANDOM)
def drawn(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x) + x


@drawn.register_fake
def _(x):
    return torch.empty_like(x)


#: Takes an alias of its operand for a result.
LIBRARY = torch.library.Library("kilntest", "FRAGMENT")
LIBRARY.define("first(Tensor(a) x) -> Tensor(a)")
LIBRARY.impl("first", lambda x: x[0], "CompositeExplicitAutograd")
LIBRARY.impl("first", lambda x: x[0], "Meta")


def spectrum(x):
    """Complex values: dtypes that Kiln does not have."""
    return torch.fft.fft(x).real


def chosen(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def counted(x):
    """A size that depends on data."""
    return (x.reshape(-1)[torch.nonzero(x.reshape(-1) > 0)[:, 0]] * 2).sum()


def overlapping(x):
    """What depends on the order in memory."""
    return x.t().clone(memory_format=torch.preserve_format).as_strided(x.shape, (1, x.shape[0]))


def gathered(x):
    """The same by operators whose schemas say that they only compute."""
    y = torch.as_strided_copy(torch.exp(x.t()), x.shape, (1, x.shape[0]))
    return torch.as_strided_scatter((x + y).t() * 2, x[:2, :2] * 2, (2, 2), (1, 2)).t()


def masked(x):
    return torch.masked_select(x, x > 0).exp().mean()


def narrow(x):
    return (x + 9).to(torch.uint16).to(torch.float32)


def noise(x):
    return x + torch.rand_like(x)


def written(x):
    y = x * 1
    torch.ops.kilntest.bump(y)
    return y


REFUSED = {
    "complex": spectrum,
    "uint16": narrow,
    "cond": chosen,
    "random": noise,
    "random, of a library": lambda x: torch.ops.kilntest.drawn(x),
    "written": written,
    "as_strided": overlapping,
    "copies by strides": gathered,
}

#: Where a refused call is among others, and how many pieces Kiln compiles.
PLACES = {
    "in the middle": (lambda f: lambda x: f(x * 2) + 1, 2),
    "at the start": (lambda f: lambda x: f(x).relu() + 1, 1),
    "at the end": (lambda f: lambda x: f(x.sin() + 1), 1),
    "twice": (lambda f: lambda x: f(f(x * 2).sin() + 1) * 2, 3),
    "beside others": (lambda f: lambda x: (f(x * 2) + 1, f(x * 3) + 2, x.exp() + 1), 2),
    "behind each other": (lambda f: lambda x: f(f(x + 1)) * 2, 2),
}


def compiled(f, dynamic=None, **options):
    return torch.compile(f, backend=backend.kiln, fullgraph=True, dynamic=dynamic, options=options)


def agree(f, *args, dynamic=None):
    """Calls `f` eagerly and compiled, twice each; gives the pieces."""
    eager = copy.deepcopy(f) if isinstance(f, nn.Module) else f
    run = compiled(f, dynamic)
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    with torch.no_grad(), pieces.collecting() as found:
        for seed in range(2):
            torch.manual_seed(seed)
            got = run(*ours)
            torch.manual_seed(seed)
            same(got, eager(*theirs))
            same(ours, theirs)
    if isinstance(f, nn.Module):
        same(dict(f.state_dict()), dict(eager.state_dict()))
    return found


def states(found):
    return [piece.state for piece in found]


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
    assert all("test_split.py:" in p.source and p.reason for p in eager)
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


class Buffers(nn.Module):
    """Writes to buffers before, with and behind what is refused."""

    def __init__(self, refused):
        super().__init__()
        self.refused = refused
        for name in ("before", "behind", "both", "read"):
            self.register_buffer(name, torch.zeros(3, 4))

    def forward(self, x):
        self.before.add_(x * 2)
        y = self.refused(self.before + x)
        self.behind.copy_(y + 1)
        self.both.mul_(0.5).add_(self.behind)
        z = self.refused(self.both + self.read[:1] * 2) + self.read
        self.read[1:] += z[1:]
        return z + self.before, self.read.t(), y


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
    assert "test_split.py:" in eager.source and eager.reason.endswith(eager.source)
    assert "piece 1 at " in str(report) and "runs eagerly: `aten::fft_fft`" in str(report)
    assert report.to_dict()["pieces"][1]["state"] == "eager"


@pytest.mark.native
def test_what_has_nothing_to_compile_is_one_piece():
    (piece,) = agree(lambda x: torch.fft.fft(x).real, X)
    assert piece.state == "eager" and "complex64" in piece.reason


# kiln.compile


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
        assert part.state == "eager" and "test_split.py:" in part.source
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
