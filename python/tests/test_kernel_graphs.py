"""Kernels written by hand inside models, through every door, compared with torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import kiln
import kiln.language as kl
from kiln.kernels import Config, KernelError, TensorDescriptor, autotune, cdiv, heuristics

pytestmark = pytest.mark.native


@kiln.kernel
def add_kernel(x, y, out, n, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    inside = at < n
    kl.store(out + at, kl.load(x + at, inside) + kl.load(y + at, inside), inside)


def add(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[lambda meta: (cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=64)
    return out


class Add(nn.Module):
    """A launch between operators of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.relu(add(y, x * 2))

    def reference(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x) + x * 2)


@kiln.kernel
def scale_kernel(x, by, n, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(x + at, kl.load(x + at, at < n) * by, at < n)


class InPlace(nn.Module):
    """Kernels that write to an argument, to a view of it, and to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        scale_kernel[(1,)](y, 3.0, y.numel(), BLOCK=64)
        scale_kernel[(1,)](y[1], 0.5, y.shape[1], BLOCK=16)
        scale_kernel[(1,)](self.state, 2.0, 16, BLOCK=16)
        return y, self.state + x[0]

    def reference(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x + 1) * 3
        y[1] *= 0.5
        self.state.mul_(2)
        return y, self.state + x[0]


@kiln.kernel
def split_kernel(x, low, high, n, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    value = kl.load(x + at, at < n)
    kl.store(low + at, kl.minimum(value, 0.0), at < n)
    kl.store(high + at, kl.maximum(value, 0.0), at < n)


class Split(nn.Module):
    """A kernel with two outputs, both of which are used."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = torch.empty_like(x), torch.empty_like(x)
        split_kernel[(cdiv(x.numel(), 32),)](x, low, high, x.numel(), BLOCK=32)
        return low * 2, high + 1

    def reference(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.clamp(max=0) * 2, x.clamp(min=0) + 1


tuned_add = autotune([Config({"BLOCK": 32}), Config({"BLOCK": 128})], key=["n"])(add_kernel)


class Tuned(nn.Module):
    """A tuned kernel, whose grid is a function of the configuration."""

    def forward(self, x: Tensor) -> Tensor:
        out, n = torch.empty_like(x), x.numel()
        tuned_add[lambda meta: (cdiv(n, meta["BLOCK"]),)](x, x, out, n)
        return out + 1

    def reference(self, x: Tensor) -> Tensor:
        return x + x + 1


guessed_add = heuristics({"BLOCK": lambda named: 16 if named["n"] < 1000 else 64})(add_kernel)


class Guessed(Tuned):
    """A constant that is computed from the arguments."""

    def forward(self, x: Tensor) -> Tensor:
        out, n = torch.empty_like(x), x.numel()
        guessed_add[lambda meta: (cdiv(n, meta["BLOCK"]),)](x, x, out, n)
        return out + 1


@kiln.kernel
def rows_kernel(x, bias, out, row_stride, column_stride, n, BLOCK: kl.constexpr):
    row, column = kl.program_id(0), kl.arange(0, BLOCK)
    inside = column < n
    value = kl.load(x + row * row_stride + column * column_stride, inside)
    if bias is not None:
        value += kl.load(bias + column, inside)
    kl.store(out + row * n + column, value, inside)


def rows(x: Tensor, bias: Tensor | None) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    rows_kernel[(x.shape[0],)](x, bias, out, x.stride(0), x.stride(1), x.shape[1], BLOCK=32)
    return out


class Views(nn.Module):
    """Views as arguments: transposed, a part of a tensor, and none."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        return rows(y.t(), self.bias), rows(y[:, 2:5], None), rows(y.chunk(2, 1)[1], None)

    def reference(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        return y.t() + self.bias, y[:, 2:5].clone(), y.chunk(2, 1)[1].clone()


@kiln.kernel
def where_kernel(mask, x, out, n, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    value = kl.where(kl.load(mask + at, at < n), kl.load(x + at, at < n), 0.0)
    kl.store(out + at, value, at < n)


class Where(nn.Module):
    """A mask of booleans, and halves."""

    def forward(self, x: Tensor) -> Tensor:
        y, n = x.half() * 2, x.numel()
        out = torch.empty_like(y)
        where_kernel[(cdiv(n, 32),)](y > 0, y, out, n, BLOCK=32)
        return out.float()

    def reference(self, x: Tensor) -> Tensor:
        y = x.half() * 2
        return torch.where(y > 0, y, 0).float()


@kiln.kernel
def bins_kernel(x, counts, n, BLOCK: kl.constexpr):
    at = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.atomic_add(counts + kl.load(x + at, at < n), 1, at < n)


class Bins(nn.Module):
    """Atomics into memory that is zero."""

    def forward(self, x: Tensor) -> Tensor:
        places = (x * 3).to(torch.int32).abs() % 5
        counts, n = torch.zeros(5, dtype=torch.int32), x.numel()
        bins_kernel[(cdiv(n, 32),)](places, counts, n, BLOCK=32)
        return counts + 1

    def reference(self, x: Tensor) -> Tensor:
        places = (x * 3).to(torch.int32).abs() % 5
        return torch.bincount(places.flatten(), minlength=5).int() + 1


@kiln.kernel
def tiles_kernel(source, target, M: kl.constexpr):
    row = kl.program_id(0) * M
    target.store([row, 0], source.load([row, 0]) * 2)


class Tiles(nn.Module):
    """Descriptors of tensors."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        out = torch.empty_like(y)
        described = [TensorDescriptor.from_tensor(t, [4, 16]) for t in (y, out)]
        tiles_kernel[(cdiv(y.shape[0], 4),)](*described, M=4)
        return out * 2

    def reference(self, x: Tensor) -> Tensor:
        return (x + 1) * 4


@kiln.kernel
def array_kernel(x: kl.Array, out: kl.Array, BLOCK: kl.constexpr):
    row = kl.program_id(0)
    out[row, 0:BLOCK] = x[row, 0:BLOCK] + 1


class Arrays(nn.Module):
    """Tensors with their sizes and strides."""

    def forward(self, x: Tensor) -> Tensor:
        y = (x * 2).t()
        out = torch.empty(y.shape)
        array_kernel[(y.shape[0],)](y, out, BLOCK=16)
        return out

    def reference(self, x: Tensor) -> Tensor:
        return (x * 2).t() + 1


MODELS = [
    (Where, (8, 16)),
    (Bins, (8, 16)),
    (Tiles, (10, 16)),
    (Arrays, (8, 16)),
    (Add, (4, 8)),
    (InPlace, (3, 16)),
    (Split, (5, 7)),
    (Tuned, (9, 11)),
    (Guessed, (9, 11)),
    (Views, (6, 8)),
]
NAMES = [model.__name__ for model, _ in MODELS]


def case(model: type[nn.Module], shape: tuple[int, ...]) -> tuple[nn.Module, nn.Module, Tensor]:
    """A model, one of the same weights for the reference, and an input."""
    torch.manual_seed(0)
    module = model().eval()
    plain = model().eval()
    plain.load_state_dict(module.state_dict())
    return module, plain, torch.randn(shape)


@pytest.mark.parametrize(("model", "shape"), MODELS, ids=NAMES)
@torch.no_grad()
def test_eager(model, shape):
    module, plain, x = case(model, shape)
    torch.testing.assert_close(module(x), plain.reference(x))


@pytest.mark.parametrize(("model", "shape"), MODELS, ids=NAMES)
@torch.no_grad()
def test_compile(model, shape):
    module, plain, x = case(model, shape)
    compiled = kiln.compile(module, (x,), options={"fallback": "error"})
    for _ in range(2):
        torch.testing.assert_close(compiled(x), plain.reference(x))
    assert "launch" in str(compiled.explain())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("model", "shape"), MODELS, ids=NAMES)
@torch.no_grad()
def test_torch_compile(model, shape, dynamic):
    module, plain, x = case(model, shape)
    options = {"fallback": "error"}
    compiled = torch.compile(module, backend="kiln", options=options, dynamic=dynamic, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), plain.reference(x))


@pytest.mark.parametrize(("model", "shape"), MODELS, ids=NAMES)
@torch.no_grad()
def test_exported_program(model, shape, tmp_path):
    module, plain, x = case(model, shape)
    program = torch.export.export(module, (x,))
    torch.export.save(program.run_decompositions({}), tmp_path / "model.pt2")
    # Read and run by native code, which has neither the module nor its kernels.
    loaded = kiln.load(tmp_path / "model.pt2")
    for _ in range(2):
        torch.testing.assert_close(loaded(x), plain.reference(x))
    # PyTorch runs the program too.
    torch.testing.assert_close(program.module()(x), case(model, shape)[1].reference(x))


@pytest.mark.parametrize(("model", "shape"), MODELS, ids=NAMES)
@torch.no_grad()
def test_exported_by_bytecode(model, shape):
    module, plain, x = case(model, shape)
    program = torch.export.export(module, (x,), strict=True)
    torch.testing.assert_close(program.module()(x), plain.reference(x))


@pytest.mark.parametrize(("model", "shape"), MODELS, ids=NAMES)
@torch.no_grad()
def test_artifact(model, shape, tmp_path):
    module, plain, x = case(model, shape)
    kiln.compile(module, (x,)).save(tmp_path / "model.kiln")
    loaded = kiln.load(tmp_path / "model.kiln")
    got, want = loaded(x), case(model, shape)[1].reference(x)
    torch.testing.assert_close(got, want)


@torch.no_grad()
def test_sizes_that_change_are_traced_once():
    module, traces = Tuned().eval(), CompileCounterWithBackend("kiln")
    compiled = torch.compile(module, backend=traces, dynamic=True)
    for shape in [(9, 11), (40, 3), (128, 130)]:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), module.reference(x))
    assert traces.frame_count == 1


@torch.no_grad()
def test_sizes_of_a_program_that_change():
    module, x = Add().eval(), torch.randn(4, 8)
    compiled = kiln.compile(module, (x,), dynamic=({0: torch.export.Dim("rows", min=2, max=500)},))
    for count in (4, 7, 100):
        x = torch.randn(count, 8)
        torch.testing.assert_close(compiled(x), module.reference(x))


@kiln.kernel
def pair_kernel(q, k, n, row, BLOCK: kl.constexpr):
    at = kl.program_id(0) * row + kl.arange(0, BLOCK)
    inside = kl.arange(0, BLOCK) < n
    a, b = kl.load(q + at, inside), kl.load(k + at, inside)
    kl.store(q + at, a + b, inside)
    kl.store(k + at, a - b, inside)


class Overlapping(nn.Module):
    """Two views of one tensor, both of which a kernel writes."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 0
        q, k, _ = y.chunk(3, -1)
        pair_kernel[(y.shape[0],)](q, k, q.shape[-1], y.stride(0), BLOCK=16)
        return y

    def reference(self, x: Tensor) -> Tensor:
        q, k, v = x.chunk(3, -1)
        return torch.cat([q + k, q - k, v], -1)


@torch.no_grad()
def test_views_of_one_tensor_are_one_memory():
    module, x = Overlapping().eval(), torch.randn(4, 24)
    want = module.reference(x)
    torch.testing.assert_close(module(x), want)
    options = {"fallback": "error"}
    torch.testing.assert_close(kiln.compile(module, (x,), options=options)(x), want)
    torch.testing.assert_close(torch.compile(module, backend="kiln", options=options)(x), want)
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), want)


@pytest.mark.parametrize("view", ["slice", "transposed", "row"])
@torch.no_grad()
def test_views_as_inputs(view):
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return rows(x, None) * 2

    whole = torch.randn(8, 9)
    x = {"slice": whole[1:6, 2:7], "transposed": whole.t(), "row": whole[2:4]}[view]
    module = Model().eval()
    torch.testing.assert_close(kiln.compile(module, (x,))(x), x * 2)
    torch.testing.assert_close(torch.compile(module, backend="kiln", fullgraph=True)(x), x * 2)


@torch.no_grad()
def test_a_kernel_writes_to_the_input():
    def doubled(x: Tensor) -> Tensor:
        scale_kernel[(1,)](x, 2.0, x.numel(), BLOCK=64)
        return x + 1

    compiled = torch.compile(doubled, backend="kiln", fullgraph=True)
    for _ in range(2):
        x = torch.randn(40)
        want = x * 2
        torch.testing.assert_close(compiled(x), want + 1)
        torch.testing.assert_close(x, want)


@torch.no_grad()
def test_only_what_is_written_is_written():
    x = torch.randn(5, 7)
    program = torch.export.export(Split().eval(), (x,))
    (node,) = [n for n in program.graph.nodes if n.target is torch.ops.kiln.launch.default]
    parameters, tensors, written = node.args[2:5]
    assert [parameters.split(",")[i] for i in written] == ["low", "high"]
    assert len(tensors) == 3


@kiln.kernel
def odd_kernel(x, out, n, BLOCK: kl.constexpr):
    at = kl.arange(0, BLOCK)
    kl.store(out + at, kl.load(x + at, at < n), at < n)
    while n > 0:
        n = unknown_function(n)  # noqa: F821


@torch.no_grad()
def test_a_kernel_that_does_not_compile_is_named():
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = torch.empty_like(x)
            odd_kernel[(1,)](x, out, 4, BLOCK=4)
            return out

    for run in (Model().eval(), lambda x: kiln.compile(Model().eval(), (x,))):
        with pytest.raises(kiln.KilnError) as error:
            run(torch.randn(4))
        assert "unknown_function" in str(error.value) and "test_kernel_graphs.py" in str(error.value)
    with pytest.raises(KernelError, match="unknown_function"):
        torch.compile(Model().eval(), backend="kiln")(torch.randn(4))
