"""`kiln.snapshot`: the plan of a model as stable text, for tests that hold fusion decisions in
place.

The text has the engine's plan (buffers, kernels in order with what they compute, what stopped
fusion), and what PyTorch runs and why. Estimates of cost and lines of source are left out: they
change with machines and releases while the plan stays. With `kiln.pytest_plugin` a test is one
line:

    def test_plan(kiln_plan, kiln_snapshot):
        assert kiln_plan(model, (x,)) == kiln_snapshot
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln.api.compile import compile
from kiln.api.compiled import Compiled
from kiln.reports import plans
from kiln.reports.report import Report


def snapshot(
    model: Any,
    args: Any = None,
    *,
    dynamic: Any = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """The plan of a module, an exported program, a `Compiled` or a `Report` as text.

    `args`: the example inputs, as `kiln.compile` takes them.

    >>> import torch, kiln
    >>> plan = kiln.snapshot(torch.nn.ReLU().eval(), (torch.ones(3),))
    >>> plan.splitlines()[0]
    'kernels 1, fallbacks 0'
    """
    if isinstance(model, Report):
        report = model
    elif isinstance(model, Compiled):
        report = model.explain()
    else:
        report = compile(model, args, dynamic=dynamic, options=options).explain()
    return plans.plan(report)
