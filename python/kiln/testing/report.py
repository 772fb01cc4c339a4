"""Benchmarks over sizes and providers: `perf_report` as Triton has it, and bars over the
configurations of an autotuner."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from kiln.testing.axes import Scale
from kiln.testing.chart import Bars, Chart, Line, Lines, Point
from kiln.testing.table import Row, Table, Value

_PAGE = "<!doctype html>\n<title>Benchmarks</title>\n"


class Benchmark:
    """A table of values: a row for each of `x_vals`, a column for each of `line_vals`. Parameters
    are Triton's."""

    def __init__(
        self,
        x_names: list[str],
        x_vals: list[Any],
        line_arg: str,
        line_vals: list[Any],
        line_names: list[str],
        plot_name: str,
        args: dict[str, Any],
        xlabel: str = "",
        ylabel: str = "",
        x_log: bool = False,
        y_log: bool = False,
        styles: Any = None,
    ) -> None:
        if len(line_names) != len(line_vals):
            raise ValueError(
                f"{plot_name} has {len(line_vals)} line_vals and {len(line_names)} line_names; "
                "name each value"
            )
        self.x_names = x_names
        self.x_vals = x_vals
        self.line_arg = line_arg
        self.line_vals = line_vals
        self.line_names = line_names
        self.plot_name = plot_name
        self.args = args
        self.xlabel = xlabel
        self.ylabel = ylabel
        self.x_log = x_log
        self.y_log = y_log
        self.styles = styles

    def measured(self, fn: Callable[..., Any]) -> Table:
        """What a function gives for each size and provider."""
        table = Table(self.plot_name, list(self.x_names), list(self.line_names), self.ylabel)
        for x in self.x_vals:
            sizes = list(x) if isinstance(x, (list, tuple)) else [x] * len(self.x_names)
            named = dict(zip(self.x_names, sizes, strict=True))
            found = [fn(**named, **{self.line_arg: line}, **self.args) for line in self.line_vals]
            table.rows.append(Row(sizes, [Value.of(value) for value in found]))
        table.chart = self._chart(table)
        return table

    def _chart(self, table: Table) -> Chart:
        """Lines over the first of the sizes; over the places of rows where that is no number."""
        numbers = all(isinstance(row.sizes[0], (int, float)) for row in table.rows)
        places = [row.sizes[0] if numbers else n for n, row in enumerate(table.rows)]
        styles = list(self.styles or [])
        lines = []
        for n, name in enumerate(self.line_names):
            colour, dash = styles[n] if n < len(styles) else (None, "-")
            values = [row.values[n] for row in table.rows]
            points = [Point(float(x), v.middle, v.low, v.high) for x, v in zip(places, values, strict=True)]
            lines.append(Line(name, points, colour, dash))
        names = None if numbers else [str(row.sizes[0]) for row in table.rows]
        return Lines(
            self.plot_name,
            lines,
            x=Scale(self.xlabel or " = ".join(self.x_names), self.x_log, names),
            y=Scale(self.ylabel, self.y_log),
        )


class Mark:
    """A function with benchmarks of it."""

    def __init__(self, fn: Callable[..., Any], benchmarks: Benchmark | list[Benchmark]) -> None:
        self.fn = fn
        self.benchmarks = benchmarks

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str | Path = "",
        return_df: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Measures, and gives a `Table`, or a list of them for a list of benchmarks; with `return_df`
        frames of pandas. `save_path` is a folder for each table as CSV and its chart as SVG, and a page
        of all charts."""
        listed = isinstance(self.benchmarks, list)
        benchmarks = self.benchmarks if isinstance(self.benchmarks, list) else [self.benchmarks]
        tables = []
        for benchmark in benchmarks:
            table = benchmark.measured(lambda **named: self.fn(**named, **kwargs))
            tables.append(table)
            if print_data:
                print(table)
            if show_plots and table.chart is not None:
                table.chart.show()
        if save_path:
            _save(Path(save_path), tables)
        found: list[Any] = [table.to_frame() for table in tables] if return_df else list(tables)
        return found if listed else found[0]


def _save(folder: Path, tables: list[Table]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    page = _PAGE
    for table in tables:
        name = table.title.replace("/", "-")
        (folder / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8")
        if table.chart is not None:
            table.chart.save(folder / f"{name}.svg")
            page += f'<img src="{name}.svg" alt="{name}">\n'
    (folder / "results.html").write_text(page, encoding="utf-8")


def perf_report(benchmarks: Benchmark | list[Benchmark]) -> Callable[[Callable[..., Any]], Mark]:
    """Gives a function benchmarks that `run` measures."""

    def decorate(fn: Callable[..., Any]) -> Mark:
        return Mark(fn, benchmarks)

    return decorate


def bars(
    tuned: Any,
    title: str = "",
    rate: Callable[[float], float] | None = None,
    ylabel: str = "",
) -> Table:
    """The configurations that an autotuner measured for its last key, the fastest first. `rate` turns
    milliseconds into what is shown, such as TFLOP/s; without it the times are."""
    timings = sorted(tuned.configs_timings.items(), key=lambda item: item[1][0])
    if not timings:
        raise ValueError(
            f"{tuned.__name__} has no times of configurations: launch it with measure='now' first"
        )
    table = Table(title or str(tuned.__name__), ["configuration"], [tuned.__name__], ylabel or "ms")
    shown = rate if rate is not None else float
    names = _differences([config for config, _ in timings])
    for name, (_, (middle, *around)) in zip(names, timings, strict=True):
        low, high = sorted(shown(time) for time in (around or [middle, middle])[:2])
        table.rows.append(Row([name], [Value(shown(middle), low, high)]))
    points = [
        Point(float(n), row.values[0].middle, row.values[0].low, row.values[0].high)
        for n, row in enumerate(table.rows)
    ]
    table.chart = Bars(table.title, names, points, Scale(table.unit))
    return table


def _differences(configs: list[Any]) -> list[str]:
    """The configurations as text, without what they have in common."""
    values = [config.all_kwargs() for config in configs]
    names = [name for name in values[0] if len({repr(v.get(name)) for v in values}) > 1]
    texts = [", ".join(f"{name} {v.get(name)}" for name in names) for v in values]
    return texts if names else [str(config) for config in configs]
