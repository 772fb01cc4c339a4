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

import re
from collections.abc import Mapping
from typing import Any

from kiln.compiled import Compiled
from kiln.compiling import compile
from kiln.report import Report

#: What changes while a plan stays: estimates, steps of the search, lines of source.
_COSTS = re.compile(r"^ *(?:cost|search) .*\n", re.MULTILINE)
_TIMES = re.compile(r" (?:lower_bound_us|us)=[0-9.]+")
_PLACES = re.compile(r' loc\("[^"]*"(?:, "[^"]*")*\)')


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
    return plan(report)


def plan(report: Report) -> str:
    """The plans and fallbacks of a report as text."""
    kernels, fallbacks = report.kernels, report.fallbacks
    lines = [f"kernels {len(kernels)}, fallbacks {len(fallbacks)}"]
    for text in report.plans:
        for varies in (_COSTS, _TIMES, _PLACES):
            text = varies.sub("", text)
        lines += text.rstrip().splitlines()
    lines += [f"fallback {op}" for op in fallbacks]
    for part in report.eager:
        lines.append(f"eager: {part.reason}")
    return "\n".join(lines) + "\n"
