"""Models that depend on the memory layout: strides, views, in-place changes; and shapes that depend on data."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import rnn

from .features import integers, normal, op
from .registry import example
from .small import module

# Strides.

op("as_strided", lambda x: (x.t().as_strided((3, 2), (2, 1), 1), x.as_strided((2, 3), (1, 2)), x[1:].as_strided((4,), (2,), 1), (x.t() + 1).as_strided((3, 2), (4, 1)),
                            x.t().contiguous().as_strided((2, 5), (5, 1)), x[:, 1].as_strided((2, 2), (1, 4)), torch.as_strided(x, (2, 3, 2), (0, 1, 6)), x.as_strided((), (), 7),
                            x.as_strided((0, 2), (1, 1)), x.unsqueeze(1).permute(2, 1, 0).as_strided((2, 2), (6, 2)), x[2].as_strided((3,), (1,))), normal(4, 6))


@example("strides_read", how="script")
def strides_read():
    class StridesRead(nn.Module):
        def forward(self, x: torch.Tensor):
            y = x.t()
            if not y.is_contiguous():
                y = y * 2
            step, row = x.stride(0), y.stride(0)
            return y + step, y.as_strided([2, 2], [row, step]), x[1:] * x[1:].storage_offset()

    return StridesRead(), (torch.randn(4, 6),)


op("as_strided_beside", lambda x: torch.ones(3, 4)[:, :2].to(x).expand(3, 2).as_strided((3, 4), (4, 1)) + torch.empty_strided((2, 3), (8, 1)).fill_(1.0).copy_(x).as_strided((2,), (8,)).sum(), normal(2, 3))
op("as_strided_scatter", lambda x: x.t().as_strided_scatter(x[0, :2], (2,), (2,), 1), normal(4, 6))

# Changes through views.


def changes(name, function, *inputs):
    example("mutates_" + name)(lambda: module(function, *(i() for i in inputs)))


def pieces(x):
    y = x * 2
    a, b, c = y.chunk(3, 1)
    a.sigmoid_()
    b += a
    p, q = y.split(2, 0)
    r, s = p.split([4, 2], 1)
    r.neg_()
    q[1].zero_()
    rows = y.unbind(0)
    rows[1].mul_(3)
    rows[2].copy_(rows[1])
    return (y, a, b, c, p, q, r, s, *rows, *y.tensor_split((1, 4), 1))


def other_views(x):
    y = x + 1
    t = y.transpose(0, 1)
    t[2].mul_(2)
    y.unsqueeze(0).expand(1, 4, 6)[0, 1].fill_(7.0)
    y.narrow(1, 1, 3).select(0, 2).neg_()
    y.view(2, 2, 6)[1].t()[3].add_(1.0)
    y.diagonal().mul_(3)
    y.unfold(1, 2, 2).movedim(2, 0)[1].sub_(1)
    y.as_strided((2, 2), (6, 1), 7).add_(10)
    y.permute(1, 0).unflatten(0, (2, 3))[1].abs_()
    return y, t


def many_views(x):
    y = x.clone()
    for i in range(40):
        y[:, i] += y[:, (i + 1) % 40]
    return y


changes("pieces", pieces, normal(4, 6))
changes("other_views", other_views, normal(4, 6))
changes("many_views", many_views, normal(3, 40))


def through_list(x):
    y = x[0] * 2
    (a,) = torch.meshgrid(y, indexing="ij")
    a.add_(1)
    return y


def overlapping(x):
    y = x * 2
    y.unfold(1, 3, 1).add_(1)
    return y


changes("through_list", through_list, normal(4, 6))
changes("overlapping", overlapping, normal(4, 6))


@example("mutates_shape", how="script")
def mutates_shape():
    class Resized(nn.Module):
        def forward(self, x: torch.Tensor):
            y = x * 2
            y.resize_([12])
            return y

    return Resized(), (torch.randn(4, 6),)


# Shapes that depend on data: each is refused.


def shape_of(name, function, *inputs):
    example("shape_" + name)(lambda: module(function, *(i() for i in inputs)))


def packed(x, lengths):
    return rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False).data


shape_of("where", lambda x: torch.where(x > 0)[0], normal(3, 4))
shape_of("nonzero", lambda x: (x > 0).nonzero(), normal(3, 4))
shape_of("argwhere", lambda x: torch.argwhere(x > 0), normal(3, 4))
shape_of("masked_select", lambda x: x.masked_select(x > 0), normal(3, 4))
shape_of("mask_index", lambda x: x[x > 0], normal(3, 4))
shape_of("unique", lambda x: torch.unique(x), integers(0, 4, 9))
shape_of("unique_consecutive", lambda x: torch.unique_consecutive(x), integers(0, 4, 9))
shape_of("one_hot", lambda x: F.one_hot(x), integers(0, 4, 9))
shape_of("bincount", lambda x: torch.bincount(x), integers(0, 4, 9))
shape_of("repeat_interleave", lambda x, n: x.repeat_interleave(n, 0), normal(3, 4), integers(1, 4, 3))
shape_of("repeats", lambda n: torch.repeat_interleave(n), integers(1, 4, 3))
shape_of("tensor_split", lambda x, n: torch.tensor_split(x, n), normal(6, 4), lambda: torch.tensor([2, 4]))
shape_of("pack_padded_sequence", packed, normal(3, 5, 2), lambda: torch.tensor([5, 2, 3]))
# The same operators where the shape is fixed are compiled.
op("fixed_shapes", lambda x, i, n: (torch.where(x > 0, x, 0.0), F.one_hot(i, 5), x[i], x.repeat_interleave(n, 0, output_size=6), x.repeat_interleave(torch.tensor([1, 2, 3]), 0),
                                    x[torch.tensor([True, False, True])], torch.tensor_split(x, (1, 3), 1)[1], torch.tensor([1, 0, 2]).nonzero() + x[0, 0].int()),
   normal(3, 4), integers(0, 3, 3), lambda: torch.tensor([1, 2, 3]))
