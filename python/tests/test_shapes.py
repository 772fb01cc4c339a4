"""Sizes that change: what bindings share, calls while another thread compiles, and buckets."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import kiln
from kiln import pieces

pytestmark = pytest.mark.native

BATCH = torch.export.Dim("batch", min=1, max=64)


class Projection(nn.Module):
    """Its weight is folded when a binding is loaded, and packed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) / 6)

    def forward(self, x):
        return (x @ (self.weight.exp() * self.weight)).softmax(-1)


class Counted(nn.Module):
    """Counts the calls that run it eagerly."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x):
        if not torch.compiler.is_compiling():
            self.calls += 1
        return self.inner(x)


def until_compiled(compiled, x, want):
    """Calls until the binding is there."""
    end = time.monotonic() + 120
    while not compiled.bindings():
        torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
        assert time.monotonic() < end


# What bindings share


def test_bindings_share_weights_and_memory():
    module = Projection().eval()
    x = torch.randn(64, 32)
    compiled = kiln.compile(module, (x[:8],), dynamic=({0: BATCH},), warm=[(64,)])
    one = compiled.bytes()
    compiled.warm((40,))
    compiled.warm((48,))
    bindings = compiled.bindings()
    assert all(b["shared_bytes"] >= 32 * 32 * 4 for b in bindings)
    own = [b["bytes"] for b in bindings]
    assert compiled.bytes() == one + own[1] + own[2], "one folded weight, and one arena"
    with torch.no_grad():
        module.weight.mul_(0.5)
        for rows in (64, 40, 48):
            torch.testing.assert_close(compiled(x[:rows]), module(x[:rows]))
    assert compiled.bytes() == one + sum(b["bytes"] for b in compiled.bindings()) - own[0]


# Calls while another thread compiles


def test_eager_serves_while_another_thread_compiles():
    module = Counted(Projection()).eval()
    x = torch.randn(5, 32)
    want = module.inner(x).detach()
    options = {"while_compiling": "eager"}
    compiled = kiln.compile(module, (x,), dynamic=({0: BATCH},), options=options)
    assert module.calls == 0
    torch.testing.assert_close(compiled(x), want)
    assert module.calls == 1, "nothing was compiled yet"
    until_compiled(compiled, x, want)
    served = module.calls
    got = compiled(x)
    assert module.calls == served and not got.requires_grad
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    (binding,) = compiled.bindings()
    # A call at the end of compiling may have found the binding already.
    assert 1 <= binding["eager"] <= served and binding["hits"] >= 1


def test_weights_that_change_before_a_binding_is_ready_are_taken_up():
    module = Projection().eval()
    x = torch.randn(5, 32)
    options = {"while_compiling": "eager"}
    compiled = kiln.compile(module, (x,), dynamic=({0: BATCH},), options=options)
    compiled(x)
    end = time.monotonic() + 120
    while not compiled.bindings():
        assert time.monotonic() < end
        time.sleep(0.01)
    # Folded, but no call has seen it yet.
    with torch.no_grad():
        module.weight.mul_(0.5)
    torch.testing.assert_close(compiled(x), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_state_follows_from_call_to_call_whoever_serves():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("sum", torch.zeros(4))

        def forward(self, x):
            self.sum += x.sum(0)
            return self.sum * 2

    module, alone = Steps().eval(), Steps().eval()
    options = {"while_compiling": "eager"}
    compiled = kiln.compile(module, (torch.ones(2, 4),), dynamic=({0: BATCH},), options=options)
    end = time.monotonic() + 120
    while True:
        done = len(compiled.bindings()) == 1
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), alone(x), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(module.sum, alone.sum, rtol=1e-4, atol=1e-3)
        assert time.monotonic() < end
        if done:
            break


def test_torch_compile_serves_eagerly_meanwhile():
    module = Projection().eval()
    with torch.no_grad(), pieces.collecting() as found:
        options = {"while_compiling": "eager"}
        run = torch.compile(module, backend="kiln", dynamic=True, options=options)
        end = time.monotonic() + 120
        for done, rows in enumerate((5, 7)):
            x = torch.randn(rows, 32)
            torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
            (engine,) = found[0].engines
            while len(engine.bindings()) == done:
                torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
                assert time.monotonic() < end
            torch.testing.assert_close(run(x), module(x), rtol=1e-4, atol=1e-5)
    assert [b["eager"] >= 1 and b["hits"] >= 1 for b in engine.bindings()] == [True, True]


def test_an_error_of_compiling_surfaces_at_a_later_call():
    class Sorted(nn.Module):
        def forward(self, x):
            return torch.linalg.svdvals(x)

    x = torch.randn(3, 4)
    options = {"while_compiling": "eager", "fallback": "error"}
    compiled = kiln.compile(Sorted().eval(), (x,), options=options)
    torch.testing.assert_close(compiled(x), torch.linalg.svdvals(x))
    end = time.monotonic() + 120
    with pytest.raises(kiln.UnsupportedError):
        while time.monotonic() < end:
            compiled(x)
    with pytest.raises(kiln.UnsupportedError):
        compiled(x)


def test_threads_meet_while_compiling():
    module = Projection().eval()
    options = {"while_compiling": "eager"}
    compiled = kiln.compile(module, (torch.randn(4, 32),), dynamic=({0: BATCH},), options=options)
    together, failed = threading.Barrier(4), []

    def calls(n):
        try:
            together.wait()
            end = time.monotonic() + 120
            for rows in (3, 4, 5 + n):
                x = torch.randn(rows, 32)
                want = module(x).detach()
                while rows not in [next(iter(b["sizes"].values())) for b in compiled.bindings()]:
                    torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
                    assert time.monotonic() < end
                torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert len(compiled.bindings()) == 6


def test_the_interpreter_ends_while_compiling():
    script = """
        import torch, kiln
        module = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Softmax(-1))
        module.eval()
        n = torch.export.Dim("n", min=1, max=64)
        compiled = kiln.compile(
            module, (torch.ones(2, 32),), dynamic=({0: n},), options={"while_compiling": "eager"}
        )
        for rows in range(2, 40):
            compiled(torch.ones(rows, 32))
        print("done")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr


def test_what_cannot_serve_meanwhile_is_refused(tmp_path):
    compiled = kiln.compile(nn.ReLU().eval(), (torch.ones(3),))
    compiled.save(tmp_path / "relu.kiln")
    with pytest.raises(kiln.UsageError, match="which a file does not have"):
        kiln.load(tmp_path / "relu.kiln", options={"while_compiling": "eager"})
    with pytest.raises(kiln.UsageError, match="'wait' or 'eager'"):
        kiln.compile(nn.ReLU().eval(), (torch.ones(3),), options={"while_compiling": "no"})


# Buckets


def bucketed(module, x, buckets=(8, 32), name="x.0", dynamic=None):
    options = {"buckets": {name: list(buckets)}}
    return kiln.compile(module.eval(), x, dynamic=dynamic or ({0: BATCH},), options=options)


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_batches_are_rounded_up():
    module = Wrapped(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    x = torch.randn(64, 16)
    compiled = bucketed(module, (x[:8],))
    for rows in (1, 3, 8, 9, 31, 40):
        got = compiled(x[:rows])
        assert got.shape == (rows, 4)
        torch.testing.assert_close(got, module(x[:rows]).detach(), rtol=1e-4, atol=1e-5)
    sizes = [(next(iter(b["sizes"].values())), b["padded"]) for b in compiled.bindings()]
    assert sizes == [(8, 2), (32, 2), (40, 0)]


def test_rows_that_are_added_may_become_nan():
    class Normed(nn.Module):
        def forward(self, x):
            return x / x.norm(dim=1, keepdim=True)

    x = torch.randn(5, 4)
    got = bucketed(Normed(), (x[:4],))(x)
    torch.testing.assert_close(got, F.normalize(x), rtol=1e-4, atol=1e-5)
    assert not got.isnan().any()


def test_a_convolutional_net():
    module = Wrapped(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        )
    )  # fmt: skip
    x = torch.randn(5, 3, 8, 8)
    compiled = bucketed(module, (x[:4],))
    torch.testing.assert_close(compiled(x), module(x).detach(), rtol=1e-4, atol=1e-5)
    assert compiled.bindings()[0]["padded"] == 1


def test_an_encoder_with_a_mask():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        vocab_size=100,
    )  # fmt: skip

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = transformers.BertModel(config)

        def forward(self, ids, mask):
            result = self.inner(input_ids=ids, attention_mask=mask)
            return result.last_hidden_state, result.pooler_output

    module = Encoder().eval()
    ids, mask = torch.randint(0, 100, (5, 12)), torch.ones(5, 12, dtype=torch.long)
    mask[1, 7:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = bucketed(
            module, (ids[:4], mask[:4]), name="ids.0", dynamic=({0: BATCH}, {0: BATCH})
        )
    for got, want in zip(compiled(ids, mask), module(ids, mask), strict=True):
        torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-4)
    assert compiled.bindings()[0]["padded"] == 1


class SoftmaxOverBatch(nn.Module):
    def forward(self, x):
        return x.softmax(0)


class CumulativeSum(nn.Module):
    def forward(self, x):
        return x.cumsum(0)


class BatchStatistics(nn.Module):
    def forward(self, x):
        return F.batch_norm(x, None, None, training=True)


class MeanOfBatch(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Flattened(nn.Module):
    def forward(self, x):
        return x.reshape(-1).softmax(0).reshape(x.shape)


class SizeInValues(nn.Module):
    def forward(self, x):
        return x / x.shape[0]


@pytest.mark.parametrize(
    "module, what",
    [
        (SoftmaxOverBatch(), "softmax"),
        (CumulativeSum(), "scan.sum"),
        (BatchStatistics(), "mixes the rows"),
        (MeanOfBatch(), "reduce"),
        (Flattened(), "softmax"),
        (SizeInValues(), "depends on the size of the batch"),
    ],
)
def test_programs_that_mix_rows_are_refused(module, what):
    with pytest.raises(kiln.UnsupportedError, match="`x.0` of .* cannot be rounded up") as refused:
        bucketed(module, (torch.randn(4, 6),))
    assert what in str(refused.value) and "test_shapes.py" in str(refused.value)


def test_buckets_that_are_wrong_are_the_users_errors():
    x = torch.randn(4, 6)
    with pytest.raises(kiln.UsageError, match="a dict of lists of numbers"):
        kiln.compile(nn.ReLU().eval(), (x,), options={"buckets": [8]})
    with pytest.raises(kiln.ShapeError, match="no dimension `y.0`"):
        bucketed(MeanOfBatch(), (x,), name="y.0")
    with pytest.raises(kiln.ShapeError, match="cannot be 128"):
        bucketed(Wrapped(nn.ReLU()), (x,), buckets=(128,))
    with pytest.raises(kiln.UsageError, match="use kiln.compile"):
        torch.compile(nn.ReLU(), backend="kiln", options={"buckets": {"x.0": [8]}})(x)


class Squeezed(nn.Module):
    """What it computes of one row differs in rank and in its branch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = self.inner(x).squeeze(0)
        return y * 100 if x.shape[0] == 1 else y


@pytest.mark.parametrize(
    "dynamic", [True, {"x": {0: torch.export.Dim.AUTO}}, {"x": {0: torch.export.Dim.DYNAMIC}}]
)
def test_sizes_of_zero_and_one_are_sizes_as_others(dynamic):
    module = Squeezed().eval()
    compiled = kiln.compile(module, (torch.randn(4, 8),), dynamic=dynamic)
    for step, rows in enumerate([5, 1, 0, 2, 1, 0, 7]):
        x = torch.randn(rows, 8)
        given = compiled(x)
        assert module.calls == 2 * step + 1
        wanted = module(x)
        assert given.shape == wanted.shape
        torch.testing.assert_close(given, wanted)


def test_sizes_that_the_user_has_excluded_stay_so():
    compiled = kiln.compile(
        Squeezed().eval(), (torch.randn(4, 8),), dynamic={"x": {0: torch.export.Dim("n", min=2)}}
    )
    for rows in [1, 0]:
        with pytest.raises(kiln.ShapeError, match="exported for 2 to any size"):
            compiled(torch.randn(rows, 8))


def test_a_program_squeezes_a_dimension_that_is_one(tmp_path):
    def squeezed(x):
        return (x.squeeze(0) * 2).sum(-1)

    class Module(nn.Module):
        forward = staticmethod(squeezed)

    program = torch.export.export(
        Module(), (torch.randn(4, 8),), dynamic_shapes={"x": {0: torch.export.Dim("n")}}
    )
    torch.export.save(program, tmp_path / "squeezed.pt2")
    for compiled in (kiln.load(tmp_path / "squeezed.pt2"), kiln.compile(program)):
        for rows in [3, 1, 0]:
            x = torch.randn(rows, 8)
            assert compiled(x).shape == squeezed(x).shape
            torch.testing.assert_close(compiled(x), squeezed(x))
