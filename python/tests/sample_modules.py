"""Modules of tests: nested inputs and results, and state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Result:
    a: torch.Tensor
    b: torch.Tensor


torch.export.register_dataclass(Result)


class Nested(nn.Module):
    def forward(self, x, scale=1.0, *, more=None):
        y = x * scale
        if more is not None:
            y = y + more["a"][0]
        return {"y": y, "rows": x.shape[0], "none": None, "pair": (y.relu(), "text")}


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(8, 4))
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, x):
        self.cache.index_copy_(0, self.length, self.linear(x))
        self.length += 1
        return self.cache.sum(0)
