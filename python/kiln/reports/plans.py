"""The plans and fallbacks of a report as stable text, which `kiln.snapshot` gives.

Estimates of cost, steps of the search and lines of source are left out: they change with machines
and releases while a plan stays.
"""

from __future__ import annotations

import re

from kiln.reports.report import Report

#: What changes while a plan stays: estimates, steps of the search, lines of source.
_COSTS = re.compile(r"^ *(?:cost|search) .*\n", re.MULTILINE)
_TIMES = re.compile(r" (?:lower_bound_us|us)=[0-9.]+")
_PLACES = re.compile(r' loc\("[^"]*"(?:, "[^"]*")*\)')


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
