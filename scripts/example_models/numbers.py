"""Operators that take a Python number, each over a tensor and an int argument: tests give them every integer type and numbers
beyond its range."""

import torch

from .registry import example

NUMBERS = {
    "add": "x + n",
    "radd": "n + x",
    "add_alpha": "torch.add(x, x, alpha=n)",
    "sub": "x - n",
    "rsub": "n - x",
    "mul": "x * n",
    "div": "x / n",
    "floor_divide": "x // n",
    "div_floor": "torch.div(x, n, rounding_mode='floor')",
    "div_trunc": "torch.div(x, n, rounding_mode='trunc')",
    "remainder": "x % n",
    "fmod": "torch.fmod(x, n)",
    "pow": "x ** n",
    "rpow": "n ** x",
    "eq": "x == n",
    "ne": "x != n",
    "lt": "x < n",
    "le": "x <= n",
    "gt": "x > n",
    "ge": "x >= n",
    "clamp": "x.clamp(n, 5)",
    "clamp_min": "x.clamp_min(n)",
    "clamp_max": "x.clamp_max(n)",
    "threshold": "torch.threshold(x, 3, n)",
    "masked_fill": "x.masked_fill(x > 1, n)",
    "where": "torch.where(x > 1, x, n)",
    "where_first": "torch.where(x > 1, n, x)",
    "maximum": "torch.maximum(x, torch.tensor(n))",
    "minimum": "torch.minimum(torch.tensor(n), x)",
    "fill": "torch.fill(x, n)",
    "fill_in_place": "(x + 0).fill_(n)",
    "full_like": "torch.full_like(x, n)",
    "new_full": "x.new_full([3], n)",
    "pad": "torch.nn.functional.pad(x, [1, 2], value=float(n))",
    "index_fill": "x.index_fill(0, torch.tensor([1]), n)",
    "scatter": "x.scatter(0, torch.tensor([1]), n)",
    "addcmul": "torch.addcmul(x, x, x, value=n)",
    "bitwise_and": "x & n",
    "bitwise_or": "x | n",
    "bitwise_xor": "x ^ n",
    "add_in_place": "(x + 0).add_(n)",
}


def taking_number(name, expression):
    m = type(name, (torch.jit.ScriptModule,), {})()  # a class of its own: TorchScript compiles one forward for each
    m.define(f"def forward(self, x, n: int):\n    return {expression}\n")
    return m, (torch.zeros(2, dtype=torch.int64), 1)


for _name, _expression in NUMBERS.items():
    example("number_" + _name, how="script")(lambda n=_name, e=_expression: taking_number(n, e))
