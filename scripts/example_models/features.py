"""Single features: how values go in and out, element types, mutation, and one small module per group of operators."""

from typing import Dict, List, Tuple

import torch
from torch import nn
from torch.nn import functional as F

from .registry import example
from .small import module

# Inputs and outputs.


@example("out_tuple")
def out_tuple():
    return module(lambda x: (x + 1, (x * 2, [x - 1, x.neg()])), torch.randn(3, 4))


@example("out_list")
def out_list():
    return module(lambda x: [x + 1, x * 2], torch.randn(3, 4))


@example("out_dict")
def out_dict():
    return module(lambda x: {"sum": x.sum(), "last": x[-1]}, torch.randn(3, 4))


class NestedDict(nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[Dict[str, torch.Tensor], List[torch.Tensor]]:
        d = {"double": x * 2}
        d["half"] = x / 2
        parts: List[torch.Tensor] = []
        for i in range(3):
            parts.append(x + i)
        return d, parts


@example("out_nested", how="script")
def out_nested():
    return NestedDict(), (torch.randn(3, 4),)


@example("several_inputs")
def several_inputs():
    return module(lambda a, b, c: a * b + c, torch.randn(3, 4), torch.randn(4), torch.randn(3, 1))


@example("output_is_input")
def output_is_input():
    return module(lambda x, y: (x, x + y, y), torch.randn(3, 4), torch.randn(3, 4))


class ScalarArguments(nn.Module):
    def forward(self, x: torch.Tensor, n: int, scale: float, flip: bool):
        y = x[:n] * scale
        return -y if flip else y


@example("scalar_arguments", how="script")
def scalar_arguments():
    return ScalarArguments(), (torch.randn(6, 4), 3, 0.5, True)


class OptionalArgument(nn.Module):
    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None, k: int = 2):
        if bias is not None:
            x = x + bias
        return x * k


@example("optional_argument", how="script")
def optional_argument():
    return OptionalArgument(), (torch.randn(6, 4),)


# Element types.

for _name, _dtype in (("f64", torch.float64), ("f16", torch.float16), ("bf16", torch.bfloat16)):
    example("dtype_" + _name)(
        lambda d=_dtype: module(lambda x, y: torch.tanh(x * y + 0.5) / 3, torch.randn(5, 7).to(d), torch.randn(7).to(d))
    )
for _name, _dtype in (("i64", torch.int64), ("i32", torch.int32), ("i16", torch.int16), ("i8", torch.int8), ("u8", torch.uint8)):
    example("dtype_" + _name)(
        lambda d=_dtype: module(
            lambda x, y: ((x * 2 + y) // 3, x / y, x % y, (x & y) | 1, (x + 0.5) * y, x.sum(0), x > y),
            torch.randint(1, 100, (5, 7)).to(d), torch.randint(1, 9, (7,)).to(d),
        )
    )


@example("dtype_narrow")
def dtype_narrow():
    def f(a, b, c, x):
        wraps = (a * 2 + 3, -a, a.abs(), a << 1, a >> 1, a // 3, a % 3, ~a, c * c, c.max(1).values, c.argmin(0), c.cumsum(1))
        mixed = (a + b, a + c, b + c, a * 0.5, a + x, a.float().sum(), a.sum(1), a.prod(1), a > b, torch.where(a > 0, a, c))
        return wraps + mixed + (x.clamp(-90, 90).to(torch.int8), (x * 30).to(torch.int16), c.to(torch.int8), b.to(torch.int8), a.to(torch.uint8))

    return module(f, torch.randint(-128, 128, (5, 7)).to(torch.int8), torch.randint(0, 256, (5, 7)).to(torch.uint8),
                  torch.randint(-(2**15), 2**15, (5, 7)).to(torch.int16), torch.randn(5, 7) * 40)


class QuantisedLinear(nn.Module):
    """8-bit weights with one scale per row; activations are quantised dynamically."""

    def __init__(self, inner, outer):
        super().__init__()
        w = torch.randn(outer, inner)
        scale = w.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (w / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x):
        s = x.abs().amax(-1, keepdim=True) / 127
        q = (x / s).round().clamp(-128, 127).to(torch.int8)
        exact = torch._int_mm(q, self.weight.t()).float() * s * self.scale.t()
        return F.linear(x, self.weight.to(x.dtype) * self.scale), exact


@example("quantised_linear")
def quantised_linear():
    return QuantisedLinear(64, 48), (torch.randn(32, 64),)


@example("dtype_bool")
def dtype_bool():
    def f(a, b):
        return a & b, a | ~b, a ^ b, a + 1, a.sum(), a.any(1), a.all(0), a * 2.5, a.float().mean()

    return module(f, torch.rand(5, 7) > 0.5, torch.rand(5, 7) > 0.5)


@example("dtype_f8")
def dtype_f8():
    f8 = torch.float8_e4m3fn
    every_half = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    numbers = torch.arange(127, dtype=torch.uint8).view(f8).float()
    between = (numbers[1:] + numbers[:-1]) / 2
    infinite = torch.tensor(float("inf"))
    edges = [between, torch.nextafter(between, infinite), torch.nextafter(between, -infinite), torch.tensor([464.0, 464.1, 480.0])]

    def f(x, e, a, w, bias):
        q, v = a.to(f8), w.to(f8)
        half, quarter = torch.tensor(0.5), torch.tensor(0.25)
        y = torch._scaled_mm(q, v.t(), scale_a=half, scale_b=quarter, bias=bias, out_dtype=torch.bfloat16)
        z = torch._scaled_mm(q, v.t(), scale_a=half, scale_b=quarter, out_dtype=torch.float32)
        return x.to(f8), e.to(f8).float(), (-e).to(f8), q.t().contiguous().view(-1), y, z

    return module(f, every_half, torch.cat(edges), torch.randn(32, 64), torch.randn(48, 64), torch.randn(48).bfloat16())


@example("dtype_f8e5m2")
def dtype_f8e5m2():
    f8 = torch.float8_e5m2
    every_half = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    numbers = torch.arange(124, dtype=torch.uint8).view(f8).float()
    between = (numbers[1:] + numbers[:-1]) / 2
    infinite = torch.tensor(float("inf"))
    edges = [between, torch.nextafter(between, infinite), torch.nextafter(between, -infinite), torch.tensor([61439.9, 61440.0, 1e9])]

    def f(x, e, b, a, w):
        q, v = a.to(f8), w.to(f8)
        half = torch.tensor(0.5)
        y = torch._scaled_mm(q, v.t(), scale_a=half, scale_b=half, out_dtype=torch.float32)
        return x.to(f8), e.to(f8).float(), (-e).to(f8), b.float(), b.half(), q.t().contiguous().view(-1), y

    every_byte = torch.arange(256).to(torch.uint8).view(f8)
    return module(f, every_half, torch.cat(edges), every_byte, torch.randn(32, 64), torch.randn(48, 64))


@example("dtype_mixed")
def dtype_mixed():
    def f(h, s, i, b):
        return h + s, h * 2, i * 0.5, i + h, b + i, b * s, s + i, torch.where(b, h, s), h * s.sum(), s / i, i / 2

    return module(f, torch.randn(4, 3).half(), torch.randn(4, 3), torch.randint(1, 9, (4, 3)), torch.rand(4, 3) > 0.5)


# Mutation.


class MutatesView(nn.Module):
    def forward(self, x: torch.Tensor):
        y = x * 2.0
        y[:, 0] = 0.0
        y[1:3, 1:].mul_(3.0)
        y.t()[2].add_(1.0)
        z = y.view(-1)
        z[5:7] = 9.0
        return y, z


@example("mutates_view", how="script")
def mutates_view():
    return MutatesView(), (torch.randn(4, 6),)


@example("mutates_view_trace")
def mutates_view_trace():
    def f(x):
        y = x * 2.0
        y[:, 0] = 0.0
        y[1:3, 1:] *= 3.0
        y[0].copy_(x[1])
        return y + 1

    return module(f, torch.randn(4, 6))


@example("mutates_plain")
def mutates_plain():
    def f(x):
        y = x + 1
        y += 2
        y.mul_(3).relu_()
        y.clamp_(0, 5)
        return F.relu(y, inplace=True)

    return module(f, torch.randn(4, 6))


class MutatesWeight(nn.Module):
    """Changes its own state: import must refuse it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor):
        self.count += 1
        return x + self.count


@example("mutates_weight", how="script")
def mutates_weight():
    return MutatesWeight(), (torch.randn(2, 3),)


class Trains(nn.Module):
    """Uses training mode unconditionally, like a trace of a module on which eval() was not called."""

    def __init__(self, norm):
        super().__init__()
        self.norm = nn.BatchNorm1d(3) if norm else None

    def forward(self, x: torch.Tensor):
        if self.norm is None:
            return nn.functional.dropout(x, 0.5, training=True)
        return nn.functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)


@example("trains_dropout")
def trains_dropout():
    return Trains(norm=False), (torch.randn(2, 3),)


@example("trains_norm")
def trains_norm():
    return Trains(norm=True), (torch.randn(2, 3),)


class BatchStatistics(nn.Module):
    """A norm without running statistics: it uses those of the batch, in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x: torch.Tensor):
        return self.norm(x)


@example("batch_statistics")
def batch_statistics():
    return BatchStatistics(), (torch.randn(2, 3),)


class ManyProblems(nn.Module):
    """Three things that import must refuse, all in one report."""

    def forward(self, x: torch.Tensor):
        n = int(x.sum().item())
        a = x[x > 0]
        if bool(x[0, 0] > 0):
            x = x + 1
        return x * n, a.sum()


@example("many_problems", how="script")
def many_problems():
    return ManyProblems(), (torch.randn(2, 3),)


@example("complex_inside")
def complex_inside():
    return module(lambda x: torch.fft.rfft(x).abs() + 1, torch.randn(4, 16))


# Operators, a few to a module.


def op(name, function, *inputs):
    example("op_" + name)(lambda: module(function, *(i() if callable(i) else i for i in inputs)))


def normal(*shape):
    return lambda: torch.randn(*shape)


def positive(*shape):
    return lambda: torch.rand(*shape) + 0.1


def integers(low, high, *shape):
    return lambda: torch.randint(low, high, shape)


op("arithmetic", lambda x, y: (x + y, torch.add(x, y, alpha=2), x - y, torch.sub(x, y, alpha=3), 1 - x, torch.rsub(x, y, alpha=2),
                               x * y, x / y, 2 / x, -x, x.abs(), x.square(), x.reciprocal()), normal(3, 4), normal(3, 4))
op("rounding", lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.sign(), x.frac(), torch.round(x, decimals=1)), lambda: torch.randn(3, 9) * 3)
op("division", lambda x, y: (torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"), x // 2, x % y,
                             torch.fmod(x, y), torch.remainder(x, 2.5), torch.fmod(x, -1.5), torch.floor_divide(x, y)), lambda: torch.randn(3, 9) * 9, normal(3, 9))
op("int_division", lambda x, y: (torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc"), x // y, x % y, torch.fmod(x, y),
                                 x / y, x // 3, x % -4), integers(-50, 50, 4, 5), lambda: torch.randint(1, 9, (4, 5)) * -1)
op("exponentials", lambda x: (x.exp(), x.expm1(), x.log(), x.log2(), x.log10(), x.log1p(), x.sqrt(), x.rsqrt(), x.exp2()), positive(3, 9))
op("trigonometry", lambda x: (x.sin(), x.cos(), x.tan(), x.asin(), x.acos(), x.atan(), x.sinh(), x.cosh(), x.tanh(), x.erf(), x.erfc()), lambda: torch.rand(3, 9) - 0.5)
op("powers", lambda x, y: (x ** 2, x ** 3, x ** 0.5, x ** -1, x ** -0.5, x ** 1.7, x ** y, 2 ** y, x ** 0, x ** 1), positive(3, 9), normal(3, 9))
op("int_powers", lambda x: (x ** 2, x ** 3, x ** 0.5, x * x), integers(1, 9, 4, 5))
op("activations", lambda x: (F.relu(x), F.relu6(x), F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.mish(x), F.hardswish(x),
                             F.hardsigmoid(x), F.hardtanh(x), F.leaky_relu(x, 0.2), F.elu(x), F.selu(x), F.celu(x, 0.7), F.softplus(x),
                             F.softplus(x, 2.0, 1.0), F.logsigmoid(x), F.softsign(x), F.tanhshrink(x), F.hardshrink(x), F.softshrink(x), F.threshold(x, 0.1, 20.0)), lambda: torch.randn(5, 8) * 4)
op("prelu", lambda x, w: F.prelu(x, w), normal(2, 3, 5), normal(3))
op("clamp", lambda x, y: (x.clamp(-1, 1), x.clamp(min=0.5), x.clamp(max=0.5), torch.clamp(x, y, y + 1), x.clamp_min(0), x.clamp_max(0), torch.maximum(x, y),
                          torch.minimum(x, y), torch.max(x, y), torch.fmax(x, y), torch.fmin(x, y)), normal(4, 5), normal(4, 5))
op("compare", lambda x, y: (x == y, x != y, x < y, x <= y, x > y, x >= 0.5, x.eq(1), torch.isnan(x), torch.isinf(x), torch.isfinite(x), x.isclose(y)), normal(4, 5), normal(4, 5))
op("logic", lambda a, b: (torch.logical_and(a, b), torch.logical_or(a, b), torch.logical_xor(a, b), torch.logical_not(a), ~(a > 1), (a > 0) & (b > 0)), integers(0, 3, 4, 5), integers(0, 2, 4, 5))
op("where", lambda c, x, y: (torch.where(c, x, y), torch.where(c, x, 0.0), x.masked_fill(c, -1e9), x.masked_fill(c, float("-inf")), torch.where(c, 1.0, 0.0)), lambda: torch.rand(4, 5) > 0.5, normal(4, 5), normal(5))
op("lerp", lambda x, y, w: (torch.lerp(x, y, 0.3), torch.lerp(x, y, w), torch.addcmul(x, y, w, value=0.5), torch.addcdiv(x, y, w + 3, value=2), torch.atan2(x, y),
                            torch.logaddexp(x, y), torch.copysign(x, y), torch.xlogy(w.abs(), y.abs()), torch.hypot(x, y)), normal(4, 5), normal(4, 5), positive(4, 5))
op("nan_to_num", lambda x: (torch.nan_to_num(x / x.relu()), torch.nan_to_num(x, 1.0, 2.0, 3.0)), normal(4, 5))
op("bitwise", lambda a, b: (a & b, a | b, a ^ b, ~a, a << 1, a >> 1), integers(0, 100, 4, 5), integers(0, 100, 4, 5))
op("reductions", lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.mean(), x.mean((-1, -2)), x.amax(1), x.amin((0, 1)), x.prod(1), x.prod(), x.max(), x.min(),
                            x.max(1)[0], x.max(1)[1], x.min(2, keepdim=True)[0], x.argmax(), x.argmax(1), x.argmin(2, keepdim=True), (x > 0).any(), (x > 0).all(1), (x > 0).sum(2)), normal(3, 4, 5))
op("moments", lambda x: (x.var(), x.std(), x.var(1), x.var((0, 2), unbiased=False), x.std(1, keepdim=True), torch.var_mean(x, 1)[0], torch.var_mean(x, 1)[1],
                         torch.var(x, dim=1, correction=0), torch.std_mean(x, 2)[0]), normal(3, 4, 5))
op("vector_norms", lambda x: (x.norm(), x.norm(dim=1), torch.linalg.vector_norm(x, dim=1), torch.linalg.vector_norm(x, 1, dim=(0, 2)), torch.linalg.vector_norm(x, float("inf"), dim=1),
                              torch.linalg.vector_norm(x, 3.0), torch.linalg.norm(x[0]), F.normalize(x, dim=1), torch.norm(x, p=1, dim=2, keepdim=True)), normal(3, 4, 5))
op("log_sums", lambda x: (x.logsumexp(1), x.logsumexp((0, 2), keepdim=True), F.log_softmax(x, 1), F.softmax(x, 0), F.softmin(x, 1), x.softmax(-1, dtype=torch.float64), x.nansum(1)), normal(3, 4, 5))
op("scans", lambda x: (x.cumsum(1), x.cumprod(2), (x > 0).cumsum(0), x.cumsum(-1, dtype=torch.float64)), normal(3, 4, 5))
op("shapes", lambda x: (x.view(12, 5), x.reshape(-1), x.flatten(1), x.unsqueeze(1), x.unsqueeze(-1), x[None].squeeze(0), x[:, :1].squeeze(), x.permute(2, 0, 1), x.transpose(0, -1),
                        x[0].t(), x.mT, x.unflatten(2, (5, 1)), x.movedim(0, 2), x.swapaxes(0, 1), x.expand(2, 3, 4, 5), x[:, :1].expand(-1, 7, -1), x.view_as(x), x[0].T,
                        torch.broadcast_to(x, (2, 3, 4, 5)), x[:, :1].expand_as(x), x.ravel(), torch.atleast_2d(x[0, 0])), normal(3, 4, 5))
op("slices", lambda x: (x[1], x[:, -1], x[:, 1:3], x[..., ::2], x[:, 1:-1], x[-2:], x.narrow(1, 1, 2), x.select(2, -2), x[1:100], x[2:1], x[:, 3::3],
                        x.split(2, 1)[1], x.chunk(3, 2)[2], x.unbind(1)[2], x.split([1, 3], 1)[1], x.tensor_split(2, 2)[0], x.diagonal(0, 0, 1)), normal(3, 4, 5))
op("joins", lambda x, y: (torch.cat([x, y], 0), torch.cat([x, y], -1), torch.stack([x, y]), torch.stack([x, y], -1), torch.hstack([x, y]), torch.vstack([x, y]),
                          torch.cat([x, y.double()], 1)), normal(3, 4), normal(3, 4))
op("copies", lambda x: (x.clone(), x.contiguous(), x.detach(), x.flip(0), x.flip((0, 1)), x.roll(1, 0), x.roll((1, -2), (0, 1)), x.roll(3), x.repeat(2, 3), x.repeat(2, 1, 1),
                        x.repeat_interleave(2, 1), x.tile(2), x.rot90()), normal(3, 4))
op("pads", lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 0, 2, 1), value=3.0), F.pad(x, (-1, 1)), F.pad(x, (1, 1), mode="reflect"), F.pad(x, (2, 1), mode="replicate"),
                      F.pad(x, (1, 2), mode="circular"), F.pad(x[:, None], (1, 1, 2, 2), mode="reflect")), normal(2, 3, 5))
op("triangles", lambda x: (x.tril(), x.triu(1), x.tril(-1), torch.diag(x[0]), torch.diag(x[:, :4]), torch.eye(4) + x[:, :4]), normal(4, 5))
op("creation", lambda x: (torch.zeros(3, 4) + x, torch.ones_like(x) * 2, torch.full((4,), 2.5) * x, torch.arange(4) + x, torch.arange(0, 8, 2) * x, torch.full_like(x, 7), x.new_zeros(2, 2),
                          x.new_ones(4) + x, torch.linspace(0, 1, 4) * x, torch.tensor([1.0, 2, 3, 4]) * x, torch.arange(1.0, 3.0, 0.5) + x, torch.zeros_like(x), x.new_full((2,), 3.0),
                          torch.empty_like(x).fill_(2.0)), normal(3, 4))
op("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij") + torch.meshgrid(x, y, indexing="xy"), normal(3), normal(4))
op("index_get", lambda x, i, j: (x[i], x[:, i], x[i, j], x[:, :, j], x.index_select(1, i), x[i[:, None], j], x[None, i], x[-i], x[:, i, j], x[i, :, j], x[i, 1:3]), normal(4, 4, 5), integers(0, 4, 3), integers(0, 4, 3))
op("gather", lambda x, i: (x.gather(0, i), x.gather(1, i), torch.take_along_dim(x, i[:1], 0)), normal(4, 5), integers(0, 4, 3, 5))
op("scatter", lambda x, i, s: (x.scatter(0, i, s), x.scatter(1, i, 2.0), x.scatter_add(0, i, s), x.index_add(0, i[0, :3], s), x.index_fill(0, i[0], 3.0), x.index_put((i[0],), s[0]),
                               x.index_copy(0, torch.tensor([2, 0, 1]), s), x.masked_fill(x > 0, 0)), normal(4, 5), lambda: torch.stack([torch.randperm(4)[:3] for _ in range(5)], 1), normal(3, 5))
op("scatter_reduce", lambda x, i, s: (x.scatter_reduce(0, i, s, "sum"), x.scatter_reduce(0, i, s, "amax"), x.index_reduce(0, i[:, 0], s, "amax")), normal(4, 5), integers(0, 4, 3, 5), normal(3, 5))
op("embedding", lambda i, w: (F.embedding(i, w), F.embedding(i, w, padding_idx=0), F.one_hot(i, 10)), integers(0, 10, 3, 4), normal(10, 6))
op("matmul", lambda a, b, v: (a @ b, torch.bmm(a, b), torch.matmul(a, v), torch.matmul(v, b), torch.mm(a[0], b[0]), torch.mv(a[0], v), torch.dot(v, v), torch.outer(v, v), a @ b[0], a[0] @ b, torch.matmul(v, v)),
   normal(2, 3, 5), normal(2, 5, 4), normal(5))
op("addmm", lambda c, a, b, d: (torch.addmm(c, a, b), torch.addmm(c, a, b, beta=0.5, alpha=2.0), torch.addmm(d, a, b), torch.baddbmm(d, a[None], b[None], beta=2.0, alpha=0.5),
                                torch.addbmm(c, a[None], b[None]), torch.addmv(c[:, 0], a, b[:, 0])), normal(3, 4), normal(3, 5), normal(5, 4), normal(4))
op("einsum", lambda a, b: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij,bjk->ki", a, b), torch.einsum("bij->bi", a), torch.einsum("bij,bik->bjk", a, a), torch.einsum("...ij->...ji", a)),
   normal(2, 3, 5), normal(2, 5, 4))
op("linear", lambda x, w, b: (F.linear(x, w, b), F.linear(x, w), F.linear(x[0, 0], w, b), F.bilinear(x, x, w.view(1, 6, 5).expand(5, 6, 5)[:, :5], b[:5])), normal(2, 3, 5), normal(6, 5), normal(6))
op("losses", lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.cross_entropy(x, torch.tensor([0, 1, 2])), F.kl_div(x, y.softmax(1)), F.cosine_similarity(x, y), F.pairwise_distance(x, y),
                           F.binary_cross_entropy_with_logits(x, y.sigmoid()), F.nll_loss(x.log_softmax(1), torch.tensor([0, 1, 2])), F.huber_loss(x, y), F.mse_loss(x, y, reduction="none")), normal(3, 4), normal(3, 4))
op("upsample_integers", lambda x: (F.interpolate(x, scale_factor=2, mode="bilinear"), F.interpolate(x, scale_factor=2)), lambda: torch.randint(0, 256, (1, 3, 5, 4), dtype=torch.uint8))
op("similarity", lambda x, y: (F.cosine_similarity(x[:, None], y[None], dim=-1), F.cosine_similarity(x[None], y[:, None], dim=1), F.cosine_similarity(x, y[:1], 0)), normal(3, 4), normal(3, 4))
op("rank_0", lambda x, y, i: (x.index_add(0, i, y), x.index_copy(0, i, y), x.index_fill(0, i, 3.0), x.index_add(0, i, y, alpha=2), x.index_select(0, i), x.gather(0, i), x.scatter(0, i, y),
                              x.scatter_add(0, i, y), x.cumsum(0), x.softmax(0), x.log_softmax(0), x.logsumexp(0), x.sum(0), x.max(0)[0], x.argmax(0), x.flip(0),
                              x.repeat(2), x.tile(3), x.view(1), x.unsqueeze(0), x.expand(2, 3), torch.stack([x, y]), x.norm(), x.var(unbiased=False), F.one_hot(i, 3),
                              y.repeat(4).index_fill(0, i, x), F.cosine_similarity(x, y, 0), torch.cat([x.view(1), y.view(1)])), lambda: torch.tensor(1.5), lambda: torch.tensor(-0.7), lambda: torch.tensor(0))
op("no_elements", lambda x, y, i: (x + y, x.sum(), x.sum(0), x.sum(1), x.prod(1), x.mean(0), x.t(), x @ y.t(), x.t() @ y, torch.cat([x, y]), torch.cat([x, y], 1), x.view(-1), x.reshape(4, 0), x.softmax(0),
                                   x.cumsum(1), x[i], x.index_select(0, i), x.gather(0, i[:, None].expand(0, 4)), x.scatter(0, i[:, None].expand(0, 4), y), x.index_add(0, i, y), x.any(), x.all(1),
                                   x.flip(0), x.roll(1, 1), x.repeat(2, 2), x.chunk(2, 1)[1], x.unbind(1)[3], x.as_strided((0, 3), (1, 1)), x.expand(5, 0, 4), F.pad(x, (1, 1)), F.pad(x, (0, 0, 1, 2)),
                                   x.tril(), F.one_hot(i, 3), x.masked_fill(x > 0, 1.0), F.layer_norm(x, (4,)), F.linear(x, torch.ones(3, 4))), normal(0, 4), normal(0, 4), lambda: torch.zeros(0, dtype=torch.int64))
op("upsample", lambda x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 9)), F.interpolate(x, scale_factor=2, mode="bilinear"), F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
                          F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.unfold(x, 3), F.interpolate(x, scale_factor=0.5, mode="bilinear")), normal(1, 4, 6, 6))
op("windows", lambda x: (x.unfold(1, 3, 2), x.unfold(0, 2, 1) * 2, x.unfold(-1, 7, 7), x.unfold(0, 2, 2).unfold(1, 3, 3), x.repeat_interleave(torch.tensor(3), 1), x.repeat_interleave(2)), normal(4, 7))
op("sort", lambda x: (x.sort(1)[0], x.topk(2, 1)[1], x.argsort(1), x.sort(1)[1] + 1), normal(3, 4))
op("glu", lambda x: (F.glu(x, 1), F.glu(x, -1)), normal(2, 4, 6))
op("casts", lambda x: (x.half(), x.to(torch.float64), x.int(), x.long(), x.bool(), x.to(torch.uint8), x.bfloat16().float(), x.type_as(x.half()), x.double().to(x)), lambda: torch.rand(4, 5) * 100)
op("pool3d", lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 2), F.adaptive_avg_pool3d(x, 1), F.avg_pool1d(x[0, 0], 2), F.adaptive_avg_pool1d(x[0, 0], 2), F.adaptive_max_pool2d(x[0], 1)), normal(1, 2, 4, 4, 4))
op("pool_uneven", lambda x, y: (F.adaptive_avg_pool2d(x, (3, 5)), F.adaptive_avg_pool2d(x, (9, 4)), F.adaptive_max_pool2d(x, (3, 4)), F.adaptive_avg_pool1d(x[0], 4), F.adaptive_avg_pool3d(y, (2, 3, 5)),
                                    F.adaptive_max_pool3d(y, 3), F.adaptive_avg_pool2d(x.half(), 4), F.adaptive_avg_pool2d(x, (1, 3)), F.adaptive_avg_pool2d(x / x.relu(), 4)), normal(2, 3, 7, 11), normal(1, 2, 5, 4, 7))
op("complex_view", lambda x: torch.view_as_real(torch.view_as_complex(x) * 2), normal(3, 2))
