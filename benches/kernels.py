#!/usr/bin/env python3
"""The examples of python/examples/kernels, measured: Kiln, the same files through Triton, and PyTorch.

    benches/kernels.py [--device cuda|cpu] [--only NAME …] [--quick] [--inductor] [--out DIR] [--check]

For each example its cases are compared with references in f64 at full size; `--check` does only that. Then its
benchmarks are measured: on a GPU by events, medians with an L2 cache of other data, on the CPU by the clock. Where
Triton is installed and there is a GPU, a copy of the files whose imports are Triton's gives its times. Inductor, which
takes seconds to compile for each size, is measured with `--inductor`.

Writes DIR/kernels_collection.json (default: benches/results), a section of DIR/kernels.md, and charts, which
go to docs/src/kernels/charts without `--out`. `--quick` checks small sizes, takes one repetition of the smallest of
each benchmark, and writes only with `--out`. Exits with 1 if a result is wrong.

    compute-sanitizer python3 benches/kernels.py --check --quick    # accesses of all kernels on a GPU
"""

from __future__ import annotations

import argparse
import ast
import atexit
import datetime
import importlib
import importlib.util
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "python/examples/kernels"
RESULTS = ROOT / "benches/results"
CHARTS = ROOT / "docs/src/kernels/charts"
#: Bytes that are written between two runs on a GPU: more than its L2 cache, for longer than a launch takes the host.
WASHED = 512 << 20
#: Samples of a time on a GPU, and milliseconds after which the least number does.
SAMPLES, FEWEST, LIMIT_MS = 60, 5, 60.0
#: Sizes of benchmarks' arguments for one quick repetition, on a CPU too.
QUICK = {"size": 256, "rows": 128, "batch": 1, "tokens": 1024, "n": 256, "k": 256}
SECTION = "## The collection"
#: Seconds after which a variant for the facts of a launch, which the first launch has compiled in the background, runs.
SETTLED_S = 1.0
#: What examples' imports become for Triton, in this order.
TRITON = [
    (r"^import kiln\.language as kl$", "import triton.language as tl"),
    (r"^from kiln\.kernels import ", "from triton import "),
    (r"^import kiln$", "import triton"),
    (r"\bkiln\.kernels\.", "triton."),
    (r"\bkiln\.kernel\b", "triton.jit"),
    # Its interpreter knows constants by this name.
    (r"\bkl\b", "tl"),
]


def load(name: str, folder: Path) -> ModuleType:
    """The package in a folder, under a name."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None, folder
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def for_triton(text: str) -> str:
    """An example's text with Triton's imports, without kernels of arrays, which Triton does not have."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and "kl.Array" in ast.unparse(node.args):
            del lines[node.decorator_list[0].lineno - 1 : node.end_lineno]
    changed = "".join(lines)
    for old, new in TRITON:
        changed = re.sub(old, new, changed, flags=re.MULTILINE)
    return changed


def translated(source: Path, change: Callable[[str], str]) -> Path:
    """A folder with changed copies of a folder's files. Triton reads them while the process runs."""
    folder = Path(tempfile.mkdtemp(prefix="kernels_triton_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for file in source.glob("*.py"):
        (folder / file.name).write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


@dataclass
class Clock:
    """Times a call as `do_bench` does; keeps the spread of the last one."""

    device: str
    quick: bool
    #: Lines whose first call has been waited for.
    settled: set[int] = field(default_factory=set)
    line: int = 0
    washed: torch.Tensor | None = None
    #: The fifth and four fifths of the last samples, as multiples of their median.
    low: float = 1.0
    high: float = 1.0

    def __call__(self, call: Callable[[], Any], return_mode: str = "median") -> float:
        sample = self.on_device if self.device == "cuda" else self.on_host
        call()
        if self.quick:
            return sample(call)
        if self.device == "cuda" and self.line not in self.settled:
            self.settled.add(self.line)
            time.sleep(SETTLED_S)
            call()
        first = sample(call)
        samples = [sample(call) for _ in range(max(FEWEST, min(SAMPLES, int(LIMIT_MS / first))))]
        middle = statistics.median(samples)
        fifths = statistics.quantiles(samples, n=5)
        self.low, self.high = fifths[0] / middle, fifths[-1] / middle
        return middle

    def on_device(self, call: Callable[[], Any]) -> float:
        if self.washed is None:
            self.washed = torch.empty(WASHED // 4, dtype=torch.int32, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.washed.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def on_host(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3


@dataclass
class Found:
    """What was found of all examples."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    charts: dict[str, Any] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        return any(not row["error"] <= 1 for row in self.errors if row["by"] == "kiln")


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def check(name: str, modules: dict[str, ModuleType], args: argparse.Namespace, found: Found) -> None:
    """Compares the cases of an example with their references."""
    for who, module in modules.items():
        for title, case in module.CASES.items():
            if case.arrays and who == "triton":
                continue
            sizes = case.small if args.quick else [case.full]
            row: dict[str, Any] = {"kernel": name, "case": title, "by": who}
            try:
                row["error"] = max(case.worst_error(args.device, size) for size in sizes)
                verdict = "right" if row["error"] <= 1 else "WRONG"
                print(f"{name}: {title}: {who}: {verdict}, {row['error']:.3g} of the bound", flush=True)
            except Exception as e:  # What one of them refuses is told, and the others go on.
                row["error"], row["problem"] = math.inf, first_line(e)
                print(f"{name}: {title}: {who}: {row['problem']}", flush=True)
            found.errors.append(row)
            if args.device == "cuda":
                torch.cuda.empty_cache()


def lines_of(benchmark: Any, modules: dict[str, ModuleType], inductor: bool) -> Iterator[tuple[str, str, str]]:
    """Name, provider and module of each line: a kernel's line is measured through Triton too."""
    for line, name in zip(benchmark.line_vals, benchmark.line_names, strict=True):
        if line == "inductor" and not inductor:
            continue
        yield name, line, "kiln"
        if line.startswith("kiln") and "arrays" not in line and "triton" in modules:
            yield name.replace("Kiln", "Triton"), line, "triton"


def marks(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The benchmarked functions that a module defines."""
    # A compiled function adds globals to its module meanwhile.
    for name, value in list(vars(module).items()):
        if hasattr(value, "benchmarks") and hasattr(value, "fn"):
            yield name, value


def measure(name: str, modules: dict[str, ModuleType], args: argparse.Namespace, found: Found) -> None:
    """Measures the benchmarks of an example."""
    for function, mark in marks(modules["kiln"]):
        for benchmark in mark.benchmarks if isinstance(mark.benchmarks, list) else [mark.benchmarks]:
            measure_benchmark(name, function, benchmark, modules, args, found)


def measure_benchmark(
    name: str,
    function: str,
    benchmark: Any,
    modules: dict[str, ModuleType],
    args: argparse.Namespace,
    found: Found,
) -> None:
    clock = Clock(args.device, args.quick)
    lines = list(lines_of(benchmark, modules, args.inductor))
    problems: dict[str, str] = {}

    def value(line: int, **sizes: Any) -> tuple[float, float, float]:
        title, provider, who = lines[line]
        benched = getattr(modules[who], function).fn
        clock.low = clock.high = 1.0
        clock.line = line
        try:
            rate = benched(**sizes, provider=provider, device=args.device, clock=clock)
        except Exception as e:  # What one of them refuses is told, and the others go on.
            problems[title] = first_line(e)
            rate = math.nan
        if args.device == "cuda":
            torch.cuda.empty_cache()
        # A longer time is a lower rate.
        return rate, rate / clock.high, rate / clock.low

    fixed = dict(benchmark.args)
    if args.quick:
        fixed.update({key: small for key, small in QUICK.items() if key in fixed})
    wide = type(benchmark)(
        x_names=benchmark.x_names,
        x_vals=benchmark.x_vals[:1] if args.quick else benchmark.x_vals,
        line_arg="line",
        line_vals=list(range(len(lines))),
        line_names=[title for title, *_ in lines],
        plot_name=benchmark.plot_name,
        args=fixed,
        xlabel=benchmark.xlabel,
        ylabel=benchmark.ylabel,
        x_log=benchmark.x_log,
        y_log=benchmark.y_log,
    )
    table = wide.measured(value)
    print(table, flush=True)
    for title, problem in problems.items():
        print(f"{benchmark.plot_name}: {title}: {problem}", flush=True)
    found.charts[benchmark.plot_name] = table.chart
    for row in table.rows:
        sizes = dict(zip(benchmark.x_names, row.sizes, strict=True))
        titled = zip((title for title, *_ in lines), row.values, strict=True)
        # JSON has no NaN: what was not measured is left out.
        measured = {title: v for title, v in titled if not math.isnan(v.middle)}
        rates = {title: v.middle for title, v in measured.items()}
        spread = {title: [v.low, v.high] for title, v in measured.items()}
        known = {"kernel": name, "plot": benchmark.plot_name, "unit": benchmark.ylabel, "sizes": sizes}
        found.rows.append({**known, "rates": rates, "spread": spread, "problems": dict(problems)})


def side_of(title: str) -> str:
    return {"Kiln": "kiln", "Trit": "triton"}.get(title[:4], "torch")


def first_rate(row: dict[str, Any], side: str) -> float | None:
    """The rate of the first line of a side."""
    return next((rate for title, rate in row["rates"].items() if side_of(title) == side), None)


def ratios(rows: list[dict[str, Any]], other: str) -> list[float]:
    """How many times as fast Kiln's first line is as another, in each row that has both."""
    found = []
    for row in rows:
        kiln = first_rate(row, "kiln")
        peer = first_rate(row, other)
        if kiln and peer:
            found.append(kiln / peer)
    return found


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def summary(found: Found) -> str:
    """A table of ratios, a row for each chart, and the geometric means."""
    lines = [
        "| chart | unit | Kiln, at the largest | of Triton | least | of PyTorch | least |",
        "|---|---|---|---|---|---|---|",
    ]

    def cells(rows: list[dict[str, Any]], other: str) -> str:
        faster = ratios(rows, other)
        return f"{geometric_mean(faster):.2f} | {min(faster):.2f}" if faster else "- | -"

    for plot in dict.fromkeys(row["plot"] for row in found.rows):
        rows = [row for row in found.rows if row["plot"] == plot]
        last = first_rate(rows[-1], "kiln") or math.nan
        lines.append(f"| {plot} | {rows[0]['unit']} | {last:.4g} | {cells(rows, 'triton')} | {cells(rows, 'torch')} |")
    lines.append(f"| all | | | {cells(found.rows, 'triton')} | {cells(found.rows, 'torch')} |")
    return "\n".join(lines)


def machine(device: str) -> str:
    from timing import host

    if device == "cpu":
        return f"{host()}, torch {torch.__version__}"
    return f"{torch.cuda.get_device_name()} (driver {driver()}), torch {torch.__version__}"


def driver() -> str:
    try:
        with open("/proc/driver/nvidia/version") as f:
            found = re.search(r"Kernel Module\D*([\d.]+)", f.read())
    except OSError:
        found = None
    return found.group(1) if found else "unknown"


def write(found: Found, args: argparse.Namespace, known: dict[str, Any]) -> None:
    """The figures as JSON, the section of kernels.md, and the charts."""
    out = Path(args.out) if args.out else RESULTS
    charts = out / "charts" if args.out else CHARTS
    for folder in (out, charts):
        folder.mkdir(parents=True, exist_ok=True)
    checked = [{**row, "error": row["error"] if math.isfinite(row["error"]) else None} for row in found.errors]
    figures = {**known, "rows": found.rows, "checked": checked}
    (out / "kernels_collection.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for name, chart in found.charts.items():
        chart.save(charts / f"{name}.svg")
    if charts == CHARTS:
        # Pages show the charts that there are.
        subprocess.run([sys.executable, str(ROOT / "benches/kernel_pages.py")], check=True)
    page = out / "kernels.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    page.write_text(with_section(text, section(found, known)), encoding="utf-8")


def section(found: Found, known: dict[str, Any]) -> str:
    checked = [row["error"] for row in found.errors if row["by"] == "kiln"]
    right, total = sum(error <= 1 for error in checked), len(checked)
    return "\n".join([
        SECTION,
        "",
        f"`{known['command']}`: {known['machine']}, {known['triton']}, {known['date']}.",
        "The examples of `python/examples/kernels`; Triton runs the same files with its own imports. Rates by medians",
        "with an L2 cache of other data; ratios of rates, where more than 1 is faster than the other: geometric means",
        f"over sizes, and the least. {right} of {total} cases agree with references in f64. All rates are in",
        "`kernels_collection.json`, charts in the guide.",
        "",
        summary(found),
    ])  # fmt: skip


def with_section(text: str, new: str) -> str:
    """The page with the section in place of the old one, or at its end."""
    start = text.find(SECTION)
    if start < 0:
        return f"{text.rstrip()}\n\n{new}\n".lstrip()
    end = text.find("\n## ", start)
    after = text[end:] if end >= 0 else "\n"
    return f"{text[:start]}{new}\n{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=device)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    # A function that is compiled for many sizes stays compiled.
    torch._dynamo.config.recompile_limit = 64
    packages = {"kiln": load("examples_kiln", EXAMPLES)}
    triton = "no Triton"
    if args.device == "cuda" and importlib.util.find_spec("triton") is not None:
        packages["triton"] = load("examples_triton", translated(EXAMPLES, for_triton))
        triton = f"Triton {importlib.import_module('triton').__version__}"
    names = packages["kiln"].EXAMPLES
    unknown = [name for name in args.only if name not in names]
    if unknown:
        parser.error(f"no example is named {', '.join(unknown)}; there are {', '.join(names)}")
    begin, found = time.perf_counter(), Found()
    for name in args.only or names:
        modules = {who: importlib.import_module(f"{package.__name__}.{name}") for who, package in packages.items()}
        check(name, modules, args, found)
        if not args.check:
            measure(name, modules, args, found)
        print(f"{name}: {time.perf_counter() - begin:.0f} s since the start", flush=True)
    if not args.check:
        print(summary(found))
    if not args.check and (args.out or not args.quick):
        command = " ".join(["python3 benches/kernels.py", *sys.argv[1:]])
        known = {"machine": machine(args.device), "triton": triton, "command": command}
        write(found, args, {**known, "date": datetime.date.today().isoformat()})
    print("a result is wrong" if found.wrong else "all results are right")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("KILN_CACHE", "off")
    sys.exit(main())
