"""Axes of charts: where a value lies, and which values are marked."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Most values that an axis marks.
_MOST_TICKS = 8


@dataclass(frozen=True)
class Scale:
    """How an axis shows values: its label, whether by logarithms, and the names of places 0, 1, …
    where there are no values."""

    label: str = ""
    is_log: bool = False
    names: list[str] | None = None


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on pixels from `start` to `end`."""

    scale: Scale
    low: float
    high: float
    start: float
    end: float

    @staticmethod
    def over(scale: Scale, values: list[float], start: float, end: float, *, zero: bool) -> Axis:
        """An axis that shows these values; from zero on with `zero`, if it is not logarithmic."""
        shown = [v for v in values if math.isfinite(v) and (v > 0 or not scale.is_log)]
        low, high = (min(shown), max(shown)) if shown else (1.0, 2.0)
        if scale.is_log:
            low, high = (low / 2, high * 2) if low == high else (low, high)
            return Axis(scale, low, high, start, end)
        if zero:
            low, high = min(low, 0.0), max(high * 1.05, 0.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        return Axis(scale, low, high, start, end)

    def shows(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.scale.is_log)

    def pixel(self, value: float) -> float:
        if self.scale.is_log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """The values that are marked, with their texts."""
        if self.scale.names is not None:
            step = -(-len(self.scale.names) // _MOST_TICKS)
            named = list(enumerate(self.scale.names))[::step]
            return [(float(place), name) for place, name in named]
        values = self._powers() if self.scale.is_log else self._round()
        return [(value, short(value)) for value in values]

    def _round(self) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten."""
        rough = (self.high - self.low) / 6
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]

    def _powers(self) -> list[float]:
        """Powers of two within a factor of 2^16, of ten beyond."""
        base = 2.0 if self.high / self.low <= 2.0**16 else 10.0
        first = math.ceil(math.log(self.low, base) - 1e-9)
        last = math.floor(math.log(self.high, base) + 1e-9)
        step = max(1, -(-(last - first + 1) // _MOST_TICKS))
        return [base**n for n in range(first, last + 1, step)]


def short(value: float) -> str:
    """A number as an axis shows it: `4096`, `16.78M`, `0.25`."""
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.6g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"
