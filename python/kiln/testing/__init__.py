"""Checks and times kernels, and shows times as tables and charts: the names are those of
`triton.testing`."""

from __future__ import annotations

from kiln.testing.clock import Spread, do_bench, timed
from kiln.testing.comparison import assert_close
from kiln.testing.report import Benchmark, Mark, bars, perf_report
from kiln.testing.table import Table

__all__ = [
    "Benchmark",
    "Mark",
    "Spread",
    "Table",
    "assert_close",
    "bars",
    "do_bench",
    "perf_report",
    "timed",
]
