"""Writes programs of torch.export: `programs.py FOLDER` writes NAME.pt2 with NAME.safetensors, which holds inputs "in0", … and results "out0", …"""

import sys
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

folder = Path(sys.argv[1])
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        split = lambda t: t.view(*t.shape[:2], 4, 8).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.pool(self.body(x)).flatten(1)).softmax(-1)


class Tied(nn.Module):
    """One weight as embedding and as projection, a transposed parameter, a constant, two results and a dict."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.mixed = nn.Parameter(torch.randn(4, 6).t())
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, ids, scale):
        x = self.embedding(ids) * scale
        return {"logits": x @ self.embedding.weight.t(), "mixed": x @ self.mixed + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0])}


class Sizes(nn.Module):
    """Sizes that follow from the batch's."""

    def forward(self, x):
        n = x.shape[0]
        return torch.cat([x, x.new_ones(n // 2, x.shape[1])]).reshape(-1) * n


class Branch(nn.Module):
    """Export follows the branch of an even batch."""

    def forward(self, x):
        return x + 1 if x.shape[0] % 2 == 0 else x * 2


def store(name, model, inputs):
    with torch.no_grad():
        results = model(*inputs)
    results = list(results.values()) if isinstance(results, dict) else results
    results = results if isinstance(results, (list, tuple)) else [results]
    tensors = {f"in{i}": t for i, t in enumerate(inputs)} | {f"out{i}": t for i, t in enumerate(results)}
    safetensors.torch.save_file({k: v.clone().contiguous() for k, v in tensors.items()}, folder / f"{name}.safetensors")


batch = torch.export.Dim("batch", min=4, max=64)
cases = {
    "attention": (Attention(), (torch.randn(2, 7, 32),), None),
    "convolutions": (Convolutions(), (torch.randn(2, 3, 8, 8),), None),
    "tied": (Tied(), (torch.randint(11, (3, 5)), torch.tensor(0.5)), None),
    "sizes": (Sizes(), (torch.randn(6, 3),), {"x": {0: batch}}),
}
for name, (model, inputs, dynamic) in cases.items():
    model = model.eval()
    program = torch.export.export(model, inputs, dynamic_shapes=dynamic)
    if name == "convolutions":
        torch.export.save(program, folder / "in_place.pt2")
    torch.export.save(program.run_decompositions({}), folder / f"{name}.pt2")
    torch.export.save(program.run_decompositions(), folder / f"{name}.core.pt2")
    store(name, model, inputs)
    if dynamic:
        store(f"{name}9", model, (torch.randn(9, 3),))

branch = torch.export.export(Branch(), (torch.randn(6, 3),), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
torch.export.save(branch.run_decompositions({}), folder / "branch.pt2")
store("branch", Branch(), (torch.randn(6, 3),))
store("branch8", Branch(), (torch.randn(8, 3),))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return x + self.count


class Regions(nn.Module):
    """Parts that PyTorch runs without gradients or without autocast, with a size as operand and as result."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            y.mul_(2)
            n = x.shape[0] * 2
            with torch.autocast("cpu", enabled=False):
                parts = y.float(), y.float() * 3
            rest = torch.cat(parts).reshape(n, 3)
        return y + rest[: x.shape[0]], rest + n


class Autocast(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x.t()


class Slices(nn.Module):
    """Writes through views of views, and reads other views afterwards."""

    def forward(self, x, y):
        z = x.clone()
        row, rest = z[0], z[1:]
        row.mul_(2).clamp_(max=1.5)
        rest[:, 1:3].copy_(y)
        z.transpose(0, 1)[0].fill_(7)
        z[z > 5] = -1.0
        return z, row + 1, rest.relu_()


given = (torch.randn(4, 5), torch.randn(3, 2))
torch.export.save(torch.export.export(Slices(), given), folder / "slices.pt2")
store("slices", Slices(), given)

counter = torch.export.export(Counter(), (torch.randn(3),))
torch.export.save(counter, folder / "counter_in_place.pt2")
torch.export.save(counter.run_decompositions({}), folder / "counter.pt2")

regions = Regions().eval()
for name, model in [("regions", regions), ("autocast", Autocast())]:
    torch.export.save(torch.export.export(model, (torch.randn(6, 3),), dynamic_shapes={"x": {0: batch}}), folder / f"{name}.pt2")
store("regions", regions, (torch.randn(6, 3),))
store("regions9", regions, (torch.randn(9, 3),))
