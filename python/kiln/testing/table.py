"""Measured values as rows of sizes and columns of providers: as text, as CSV, as a frame of pandas."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from kiln.testing.chart import Chart


@dataclass(frozen=True)
class Value:
    """What was measured; `low` and `high` are None where the benchmark says only one number."""

    middle: float
    low: float | None = None
    high: float | None = None

    @staticmethod
    def of(measured: Any) -> Value:
        """Of what a benchmark returns: a number, or a tuple of it with the least and the greatest."""
        if not isinstance(measured, (tuple, list)):
            return Value(float(measured))
        middle, low, high = (None if v is None else float(v) for v in (*measured, None, None)[:3])
        return Value(float("nan") if middle is None else middle, low, high)


@dataclass
class Row:
    """The sizes of a row, and what each provider reached there."""

    sizes: list[Any]
    values: list[Value]


@dataclass
class Table:
    """What a benchmark measured. It prints as text, and notebooks show its chart."""

    title: str
    size_names: list[str]
    providers: list[str]
    unit: str = ""
    rows: list[Row] = field(default_factory=list)
    chart: Chart | None = None

    def column(self, provider: str) -> list[float]:
        """The middle values of a provider, in the order of rows."""
        if provider not in self.providers:
            raise KeyError(
                f"{self.title} has no provider {provider!r}; there are {', '.join(self.providers)}"
            )
        place = self.providers.index(provider)
        return [row.values[place].middle for row in self.rows]

    def cells(self) -> list[list[Any]]:
        """Sizes and middle values, row by row."""
        return [[*row.sizes, *(value.middle for value in row.values)] for row in self.rows]

    def to_csv(self) -> str:
        """The table as CSV; a provider whose spread is known has two more columns."""
        spread = [
            any(row.values[place].low is not None for row in self.rows)
            for place in range(len(self.providers))
        ]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = list(self.size_names)
        for provider, known in zip(self.providers, spread, strict=True):
            names += [provider, f"{provider} low", f"{provider} high"] if known else [provider]
        writer.writerow(names)
        for row in self.rows:
            cells = list(row.sizes)
            for value, known in zip(row.values, spread, strict=True):
                cells += [value.middle, value.low, value.high] if known else [value.middle]
            writer.writerow(["" if cell is None else cell for cell in cells])
        return text.getvalue()

    def to_frame(self) -> Any:
        """The sizes and middle values as a frame of pandas, which must be installed."""
        return import_module("pandas").DataFrame(self.cells(), columns=[*self.size_names, *self.providers])

    def __str__(self) -> str:
        names = [*self.size_names, *self.providers]
        lines = [names, *([_number(cell) for cell in row] for row in self.cells())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        ]
        unit = f" ({self.unit})" if self.unit else ""
        return "\n".join([f"{self.title}{unit}:", *aligned])

    def _repr_html_(self) -> str:
        chart = self.chart.svg() if self.chart is not None else ""
        head = "".join(f"<th>{_escaped(name)}</th>" for name in [*self.size_names, *self.providers])
        body = "".join(
            "<tr>" + "".join(f"<td>{_escaped(_number(cell))}</td>" for cell in row) + "</tr>"
            for row in self.cells()
        )
        return f"{chart}<table><tr>{head}</tr>{body}</table>"


def _number(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.6g}"
    return str(cell)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
