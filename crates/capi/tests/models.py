"""Writes programs of torch.export: `models.py FOLDER` writes double.pt2, whose batch size varies, and counter.pt2, which keeps state."""

import sys
from pathlib import Path

import torch
from torch import nn


class Double(nn.Module):
    def forward(self, x):
        return x * 2


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.tensor([10.0, 20.0]))

    def forward(self, x):
        self.sum.add_(x)
        return self.sum.clone()


folder = Path(sys.argv[1])
batch = torch.export.Dim("batch", min=2, max=64)
double = torch.export.export(Double(), (torch.ones(4, 3),), dynamic_shapes=({0: batch},))
torch.export.save(double, folder / "double.pt2")
counter = torch.export.export(Counter(), (torch.ones(2),))
torch.export.save(counter.run_decompositions({}), folder / "counter.pt2")
