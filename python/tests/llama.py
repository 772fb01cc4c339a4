"""A block of Llama, and how it is sharded over processes, for `ranks.py` and benches."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn.functional import scaled_dot_product_attention, silu


class Attention(nn.Module):
    """`shared` heads of keys and values for `heads` of queries."""

    def __init__(self, width, heads, shared):
        super().__init__()
        self.each, self.grouped = width // heads, shared != heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, shared * self.each, bias=False) for _ in range(2))

    def forward(self, x, cos, sin):
        def heads(t):
            return t.unflatten(-1, (-1, self.each)).transpose(1, 2)

        def turned(t):
            a, b = t.chunk(2, -1)
            return t * cos + torch.cat([-b, a], -1) * sin

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        y = scaled_dot_product_attention(
            turned(q), turned(k), v, is_causal=True, enable_gqa=self.grouped
        )
        return self.o(y.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, width, hidden, bias):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias)

    def forward(self, x):
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """`bias`: of the last linear layer, which Llama has none of."""

    def __init__(self, width, heads, shared, hidden, bias=False):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = Attention(width, heads, shared), Gated(width, hidden, bias)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


def plan(sequence=False):
    """For `parallelize_module`: heads and hidden units are sharded; with `sequence` the norms and
    residuals too, along the sequence."""
    columns = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
    rows = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
    found = {at: ColwiseParallel() for at in columns} | {"attention.o": rows, "mlp.down": rows}
    if sequence:
        cut, whole = (Shard(1), None, None), (Replicate(), None, None)
        found |= {
            "norm1": SequenceParallel(),
            "norm2": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=cut, desired_input_layouts=whole),
            "mlp": PrepareModuleInput(input_layouts=cut[:1], desired_input_layouts=whole[:1]),
        }
    return found
