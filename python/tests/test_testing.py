"""Times of functions, their tables and charts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from kiln.kernels import Config
from kiln.testing import Benchmark, Spread, bars, do_bench, perf_report, timed
from kiln.testing.axes import Axis, Scale
from kiln.testing.clock import quantile
from kiln.testing.table import Value

SVG = "{http://www.w3.org/2000/svg}"


def benchmark(**changes):
    parameters = {
        "x_names": ["M", "N"],
        "x_vals": [128, 256, (512, 1024)],
        "line_arg": "provider",
        "line_vals": ["fast", "slow"],
        "line_names": ["Fast & new", "Slow"],
        "styles": [("blue", "-"), ("green", "--")],
        "plot_name": "product",
        "ylabel": "GB/s",
        "xlabel": "rows",
        "args": {"K": 2},
    }
    return Benchmark(**{**parameters, **changes})


def rate(M, N, K, provider, scale=1.0):  # noqa: N803
    value = scale * M * N * K
    return (value, 0.9 * value, 1.1 * value) if provider == "fast" else value / 2


def test_a_benchmark_has_a_row_for_each_size_and_a_column_for_each_provider(capsys):
    table = perf_report(benchmark())(rate).run(print_data=True, scale=0.5)
    assert table.cells() == [
        [128, 128, 16384.0, 8192.0],
        [256, 256, 65536.0, 32768.0],
        [512, 1024, 524288.0, 262144.0],
    ]
    assert table.column("Slow") == [8192.0, 32768.0, 262144.0]
    assert capsys.readouterr().out.splitlines() == [
        "product (GB/s):",
        "  M     N  Fast & new    Slow",
        "128   128       16384    8192",
        "256   256       65536   32768",
        "512  1024      524288  262144",
    ]
    with pytest.raises(KeyError, match="there are Fast & new, Slow"):
        table.column("Fast")


def test_tables_and_charts_are_files(tmp_path):
    one, two = perf_report([benchmark(), benchmark(plot_name="log", x_log=True, y_log=True)])(rate).run(
        save_path=tmp_path / "new"
    )
    assert (one.title, two.title) == ("product", "log")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "log.csv", "log.svg", "product.csv", "product.svg", "results.html",
    ]  # fmt: skip
    lines = (tmp_path / "new/product.csv").read_text().splitlines()
    assert lines[0] == "M,N,Fast & new,Fast & new low,Fast & new high,Slow"
    assert [float(v) for v in lines[1].split(",")] == [128, 128, 32768, 0.9 * 32768, 1.1 * 32768, 16384]
    assert 'src="log.svg"' in (tmp_path / "new/results.html").read_text()


def test_a_chart_has_a_line_and_a_band_and_says_its_values():
    root = ElementTree.fromstring(perf_report(benchmark())(rate).run().chart.svg())
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"product", "rows", "GB/s", "Fast & new", "Slow"} <= {*texts}
    bands = list(root.iter(f"{SVG}polygon"))
    assert len(bands) == 1 and len(bands[0].get("points").split()) == 6
    said = [title.text for title in root.iter(f"{SVG}title")]
    assert said[:2] == ["Fast & new, 128: 32768", "Fast & new, 256: 131072"] and len(said) == 6
    dashed = [path for path in root.iter(f"{SVG}path") if path.get("stroke-dasharray")]
    assert len(dashed) == 2, "the line of Slow and its sample"
    # The values rise, so that pixels from the top fall.
    heights = [float(c.get("cy")) for c in root.iter(f"{SVG}circle")][:3]
    assert heights == sorted(heights, reverse=True)


def test_a_line_is_interrupted_where_there_is_no_value():
    def missing(M, provider):  # noqa: N803
        return float("nan") if M == 256 else float(M)

    table = perf_report(benchmark(x_names=["M"], x_vals=[128, 256, 512], args={}))(missing).run()
    root = ElementTree.fromstring(table.chart.svg())
    assert len(list(root.iter(f"{SVG}circle"))) == 4
    drawn = [p.get("d") for p in root.iter(f"{SVG}path") if p.get("class") == "s0"]
    assert [d.count("M") for d in drawn] == [2, 1]


def test_sizes_without_an_order_are_named():
    table = perf_report(benchmark(x_names=["kind"], x_vals=["row", "tile"], args={}))(
        lambda kind, provider: len(kind)
    ).run()
    assert ">tile</text>" in table.chart.svg()


def test_lines_have_names():
    with pytest.raises(ValueError, match="2 line_vals and 1 line_names; name each value"):
        benchmark(line_names=["Fast"])


@pytest.mark.parametrize(
    ("low", "high", "log", "ticks"),
    [
        (0, 100, False, ["0", "20", "40", "60", "80", "100"]),
        (128, 1024, True, ["128", "256", "512", "1024"]),
        (1, 1e6, True, ["1", "10", "100", "1000", "10000", "100000", "1M"]),
        (3, 3, False, ["2.6", "2.8", "3", "3.2", "3.4"]),
    ],
)
def test_axes_mark_round_values(low, high, log, ticks):
    axis = Axis.over(Scale(is_log=log), [low, high], 0, 100, zero=False)
    assert [text for _, text in axis.ticks()] == ticks
    assert axis.pixel(axis.low) == pytest.approx(0) and axis.pixel(axis.high) == pytest.approx(100)


class Tuned:
    __name__ = "matmul"

    def __init__(self, timings):
        self.configs_timings = timings


def test_bars_are_the_configurations_fastest_first():
    slow, fast = (Config({"BLOCK": block}, num_warps=warps) for block, warps in ((16, 4), (32, 8)))
    tuned = Tuned({slow: [2.0, 1.0, 4.0], fast: [1.0, 0.5, 1.0]})
    table = bars(tuned, rate=lambda ms: 8 / ms, ylabel="TFLOP/s")
    # Stages are the same in both, and not named.
    assert table.cells() == [["BLOCK 32, num_warps 8", 8.0], ["BLOCK 16, num_warps 4", 4.0]]
    assert table.rows[1].values == [Value(4.0, 2.0, 8.0)]
    root = ElementTree.fromstring(table.chart.svg())
    widths = [float(r.get("width")) for r in root.iter(f"{SVG}rect") if r.get("class") == "f0"]
    assert widths[0] == pytest.approx(2 * widths[1], rel=1e-3)
    with pytest.raises(ValueError, match="launch it with measure='now' first"):
        bars(Tuned({}))


def test_quantiles_lie_between_times():
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([7.0], 0.8) == 7.0
    assert Spread.of([5, 1, 2, 3, 4]) == Spread(3, 1.8, 4.2, 5)
    assert Spread.of([2.0, 2.0]).relative == 0.0


def test_a_function_is_timed_in_the_way_that_is_asked_for():
    assert isinstance(do_bench(lambda: None, warmup=1, rep=1), float)
    assert len(do_bench(lambda: None, warmup=1, rep=1, quantiles=[0.5, 0.2, 0.8])) == 3
    assert isinstance(do_bench(lambda: None, warmup=1, rep=1, quantiles=[0.5]), float)
    every = do_bench(lambda: None, warmup=1, rep=1, return_mode="all")
    assert len(every) >= 3 and all(ms >= 0 for ms in every)
    spread = do_bench(lambda: None, warmup=1, rep=1, return_mode="spread")
    assert spread.low <= spread.median <= spread.high
    with pytest.raises(ValueError, match="no return_mode 'average'; pass one of mean, median"):
        do_bench(lambda: None, return_mode="average")


def test_what_runs_before_is_not_counted():
    import time

    times = timed(lambda: None, warmup=0, rep=0.01, before=lambda: time.sleep(0.02), device="cpu")
    assert min(times) < 10
