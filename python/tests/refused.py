"""Operators and functions that Kiln refuses, and what becomes of graphs that have them."""

from __future__ import annotations

import copy

import torch
from agreement import same
from torch import nn

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
