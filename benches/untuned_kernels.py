#!/usr/bin/env python3
"""Kernels that nobody tuned for (`benches/kernel_cases`): Kiln, and the same files through Triton.

    benches/untuned_kernels.py [--device cuda|cpu] [--only NAME …] [--quick] [--rounds N] [--out FILE]

Each is compared with PyTorch. On a GPU, beside Triton where it is installed, times are microseconds of a launch in a
CUDA graph of several, medians of rounds in turn; most inputs are larger than the L2 cache. `--quick` only compares, at
small odd sizes, as a CPU always does. `--out` writes a table.
Exits with 1 if a result of Kiln's is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import torch
from kernels import SETTLED_S, geometric_mean, load, machine, translated
from timing import Side, first_line, measure

CASES = Path(__file__).resolve().parent / "kernel_cases"
PREFIX = "case_"
#: What the files' imports become for Triton.
TRITON = {
    "import kiln.kernels as triton": "import triton",
    "import kiln.language as tl": "import triton.language as tl",
}


def for_triton(text: str) -> str:
    for ours, theirs in TRITON.items():
        text = text.replace(ours, theirs)
    return text


def packages(device: str) -> dict[str, ModuleType]:
    """The families of kernels for Kiln, and for Triton where it runs."""
    found = {"Kiln": load("kernel_cases_kiln", CASES)}
    if device == "cuda" and importlib.util.find_spec("triton") is not None:
        found["Triton"] = load("kernel_cases_triton", translated(CASES, for_triton))
    return found


def names(package: ModuleType) -> Iterator[tuple[str, str]]:
    """Family and name of each case."""
    for family in package.FAMILIES:
        module = importlib.import_module(f"{package.__name__}.{family}")
        yield from ((family, name.removeprefix(PREFIX)) for name in vars(module) if name.startswith(PREFIX))


@dataclass
class Row:
    """What was found of a case, by who ran it."""

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    #: Milliseconds of the first launch, with what compiles the kernel.
    first: dict[str, float] = field(default_factory=dict)
    #: Microseconds of the GPU's time.
    times: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as Triton Kiln is."""
        if self.times.keys() >= {"Kiln", "Triton"}:
            return self.times["Triton"] / self.times["Kiln"]
        return None

    def told(self) -> str:
        sides = []
        for who, verdict in self.verdicts.items():
            about = f"{who} {verdict}"
            if who in self.errors:
                about += f", error {self.errors[who]:.1e}, first launch {self.first[who]:.0f} ms"
            if who in self.times:
                about += f", {self.times[who]:.1f} us"
            sides.append(about)
        ratio = [] if self.ratio is None else [f"{self.ratio:.2f} of Triton"]
        return f"{self.name:20s} " + " | ".join(sides + ratio)


def run(family: str, name: str, modules: dict[str, ModuleType], args: argparse.Namespace) -> Row:
    row, sides = Row(name), {}
    for who, package in modules.items():
        module = importlib.import_module(f"{package.__name__}.{family}")
        try:
            case = getattr(module, PREFIX + name)(package.case.Inputs(args.device), args.quick)
            begin = time.perf_counter()
            case.launch()
            if args.device == "cuda":
                torch.cuda.synchronize()
            row.first[who] = (time.perf_counter() - begin) * 1e3
            row.errors[who] = case.error()
            row.verdicts[who] = "right" if case.right(row.errors[who]) else "WRONG"
            sides[who] = Side(case.launch)
        except Exception as e:  # What one of them refuses is told, and the others go on.
            row.verdicts[who] = first_line(e)
    if args.device == "cuda" and not args.quick:
        # A variant for the facts of these launches compiles in the background.
        time.sleep(SETTLED_S)
        times, problems = measure(sides, args.device, args.rounds)
        row.times = {who: ms * 1e3 for who, ms in times.items()}
        row.verdicts.update(problems)
    return row


def table(rows: list[Row]) -> str:
    lines = ["| kernel | Kiln | Triton | Triton / Kiln |", "|---|---|---|---|"]
    for row in rows:
        cells = [
            f"{row.times[who]:.1f}" if who in row.times else row.verdicts.get(who, "") for who in ["Kiln", "Triton"]
        ]
        lines.append(f"| {row.name} | {' | '.join(cells)} | {'' if row.ratio is None else f'{row.ratio:.2f}'} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=device)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out")
    args = parser.parse_args()
    args.quick |= args.device == "cpu"
    modules = packages(args.device)
    known = list(names(modules["Kiln"]))
    unknown = set(args.only) - {name for _, name in known}
    if unknown:
        parser.error(f"no kernel is named {', '.join(sorted(unknown))}; there are {', '.join(n for _, n in known)}")
    rows = []
    for family, name in known:
        if args.only and name not in args.only:
            continue
        rows.append(run(family, name, modules, args))
        print(rows[-1].told(), flush=True)
        if args.device == "cuda":
            torch.cuda.empty_cache()
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        print(
            f"{geometric_mean(ratios):.2f} of Triton in the geometric mean of {len(ratios)}, {min(ratios):.2f} at least"
        )
    if args.out:
        command = " ".join(["python3 benches/untuned_kernels.py", *sys.argv[1:]])
        about = f"`{command}`: {machine(args.device)}, {datetime.date.today().isoformat()}."
        Path(args.out).write_text(f"{about}\n\n{table(rows)}\n", encoding="utf-8")
    wrong = [row.name for row in rows if row.verdicts.get("Kiln") != "right"]
    print(f"not right: {', '.join(wrong)}" if wrong else "all results are right")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("KILN_CACHE", "off")
    sys.exit(main())
