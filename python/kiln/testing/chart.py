"""Charts as SVG that loads nothing, and that is readable on light and on dark pages."""

from __future__ import annotations

import html
import sys
import tempfile
import webbrowser
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from kiln.testing.axes import Axis, Scale

_WIDTH, _HEIGHT = 760, 440
_LEFT, _TOP, _BOTTOM = 76, 44, 56
_FONT = 12
#: Pixels of a bar, with the space around it.
_BAR = 24

#: Colours for light and dark pages that people with any colour vision can tell apart (Okabe and Ito, 2008).
_COLOURS = [
    ("#0072b2", "#4da3e0"),
    ("#d55e00", "#f08a4b"),
    ("#009e73", "#2fc596"),
    ("#cc79a7", "#e09cc3"),
    ("#b8860b", "#e6b53c"),
    ("#3a8fb7", "#7cc8ee"),
    ("#505050", "#b4bac0"),
]
#: Where `styles` name a colour, as matplotlib does.
_NAMED = {
    "blue": 0, "b": 0, "red": 1, "r": 1, "orange": 1, "green": 2, "g": 2, "purple": 3, "magenta": 3, "m": 3,
    "yellow": 4, "y": 4, "cyan": 5, "c": 5, "black": 6, "k": 6, "gray": 6, "grey": 6,
}  # fmt: skip
_DASHES = {"--": "7 4", "dashed": "7 4", ":": "2 3", "dotted": "2 3", "-.": "7 3 2 3", "dashdot": "7 3 2 3"}


def _in_notebook() -> bool:
    """Whether what is displayed shows up."""
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


class Point(NamedTuple):
    """A value at a place, and its spread if that is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """The values of one provider; `colour` and `dash` as in matplotlib."""

    name: str
    points: list[Point]
    colour: str | None = None
    dash: str = "-"


class Chart:
    """A chart: notebooks show it, `svg()` is its text."""

    title: str

    def svg(self) -> str:
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Writes the SVG to a file."""
        Path(path).write_text(self.svg(), encoding="utf-8")

    def show(self) -> None:
        """Shows the chart in a notebook, otherwise in the browser; without one, says where it is."""
        if _in_notebook():
            import_module("IPython.display").display(self)
            return
        with tempfile.NamedTemporaryFile("w", suffix=".svg", delete=False, encoding="utf-8") as file:
            file.write(self.svg())
        if not webbrowser.open(Path(file.name).as_uri()):
            print(f"{self.title}: {file.name}")

    def _repr_svg_(self) -> str:
        return self.svg()


@dataclass(frozen=True)
class Lines(Chart):
    """Lines over sizes, one a provider, with bands where the spread is known."""

    title: str
    lines: list[Line]
    x: Scale
    y: Scale

    def svg(self) -> str:
        points = [point for line in self.lines for point in line.points]
        legend = max((len(line.name) for line in self.lines), default=0) * 7 + 44
        right = _WIDTH - legend
        xs = Axis.over(self.x, [p.x for p in points], _LEFT, right - 8, zero=False)
        heights = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
        ys = Axis.over(self.y, heights, _HEIGHT - _BOTTOM, _TOP, zero=True)
        parts = [_text(self.title, _LEFT, 22, "start", "title"), *_grid(xs, ys, right)]
        for n, line in enumerate(self.lines):
            place = _NAMED.get(line.colour or "", n % len(_COLOURS))
            parts += _band(line, xs, ys, place) + _line(line, xs, ys, place)
            at = _TOP + 10 + 20 * n
            dash = _dash(line)
            parts.append(f'<path class="s{place}" d="M{right + 6} {at}h22"{dash}/>')
            parts.append(_text(line.name, right + 34, at + 4, "start"))
        return _document(self.title, parts, _HEIGHT)


@dataclass(frozen=True)
class Bars(Chart):
    """A bar for each name, one below the other, with what it stands for at its end."""

    title: str
    names: list[str]
    values: list[Point]
    scale: Scale

    def svg(self) -> str:
        left = 16 + 7 * max(map(len, self.names), default=0)
        # What does not fit beside bars of some length is cut, and told when the mouse is over it.
        left = min(left, _WIDTH // 2)
        height = _TOP + _BAR * len(self.names) + 24
        shown = [v for p in self.values for v in (p.y, p.high) if v is not None]
        axis = Axis.over(Scale(self.scale.label), shown, left, _WIDTH - 70, zero=True)
        unit = f", {self.scale.label}" if self.scale.label else ""
        parts = [_text(f"{self.title}{unit}", 16, 22, "start", "title")]
        for n, (name, point) in enumerate(zip(self.names, self.values, strict=True)):
            top = _TOP + _BAR * n
            cut = name if len(name) * 7 <= left else name[: left // 7 - 3] + "…"
            parts.append(f"<g><title>{html.escape(name)}</title>{_text(cut, left - 8, top + 13, 'end')}")
            end = axis.pixel(point.y) if axis.shows(point.y) else left
            parts.append(
                f'<rect class="f0" x="{left}" y="{top}" width="{end - left:.1f}" height="{_BAR - 7}"/>'
            )
            after = end
            if point.low is not None and point.high is not None:
                low, high = axis.pixel(point.low), axis.pixel(point.high)
                middle = top + (_BAR - 7) / 2
                parts.append(f'<path class="spread" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>')
                after = max(end, high)
            parts.append(_text(f"{point.y:.4g}", after + 6, top + 13, "start") + "</g>")
        return _document(self.title, parts, height)


def _grid(xs: Axis, ys: Axis, right: float) -> list[str]:
    """The marked values of both axes with their lines, and the labels."""
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for value, text in ys.ticks():
        at = ys.pixel(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        parts.append(_text(text, _LEFT - 8, at + 4, "end"))
    for value, text in xs.ticks():
        at = xs.pixel(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {bottom}v5"/>')
        parts.append(_text(text, at, bottom + 20, "middle"))
    parts.append(_text(xs.scale.label, (_LEFT + right) / 2, _HEIGHT - 14, "middle"))
    middle = (_TOP + bottom) / 2
    turned = f'<g transform="translate(18 {middle}) rotate(-90)">{_text(ys.scale.label, 0, 0, "middle")}</g>'
    return [*parts, turned]


def _dash(line: Line) -> str:
    dash = _DASHES.get(line.dash)
    return f' stroke-dasharray="{dash}"' if dash is not None else ""


def _line(line: Line, xs: Axis, ys: Axis, place: int) -> list[str]:
    """The line, interrupted where there is no value, and a dot a point that says its value."""
    path, parts, pen = "", [], "M"
    for point in line.points:
        if not (xs.shows(point.x) and ys.shows(point.y)):
            pen = "M"
            continue
        x, y = xs.pixel(point.x), ys.pixel(point.y)
        path += f"{pen}{x:.1f} {y:.1f}"
        pen = "L"
        what = html.escape(f"{line.name}, {point.x:.6g}: {point.y:.6g}")
        parts.append(
            f'<circle class="f{place}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{what}</title></circle>'
        )
    return [f'<path class="s{place}" d="{path}"{_dash(line)}/>', *parts] if path else []


def _band(line: Line, xs: Axis, ys: Axis, place: int) -> list[str]:
    """The area between the spread's ends, over each run of points where both are known."""
    runs: list[list[Point]] = [[]]
    for point in line.points:
        ends = [point.low, point.high]
        if xs.shows(point.x) and all(v is not None and ys.shows(v) for v in ends):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    parts = []
    for run in runs:
        if len(run) > 1:
            upper = [(xs.pixel(p.x), ys.pixel(p.high)) for p in run if p.high is not None]
            lower = [(xs.pixel(p.x), ys.pixel(p.low)) for p in reversed(run) if p.low is not None]
            corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in upper + lower)
            parts.append(f'<polygon class="f{place} band" points="{corners}"/>')
    return parts


def _text(text: str, x: float, y: float, anchor: str, kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{html.escape(text)}</text>'


def _document(title: str, parts: list[str], height: int) -> str:
    """The SVG of some parts, with its style sheet for light and dark pages."""
    style = _style([light for light, _ in _COLOURS], "#ffffff", "#1b1f24", "#d9dde2")
    dark = _style([dark for _, dark in _COLOURS], "#14171b", "#e6e9ec", "#333a42")
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-label="{html.escape(title)}">\n'
        f"<style>text{{font:{_FONT}px system-ui,sans-serif}}.title{{font-size:15px;font-weight:600}}"
        f".band{{opacity:.18}}path{{fill:none}}{style}@media (prefers-color-scheme:dark){{{dark}}}</style>\n"
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>\n{body}\n</svg>\n'
    )


def _style(colours: list[str], page: str, ink: str, grid: str) -> str:
    rules = [f".f{n}{{fill:{c}}}.s{n}{{stroke:{c};stroke-width:2}}" for n, c in enumerate(colours)]
    base = (
        f".page{{fill:{page}}}text{{fill:{ink}}}.grid{{stroke:{grid}}}.spread{{stroke:{ink};stroke-width:2}}"
    )
    return base + "".join(rules)
