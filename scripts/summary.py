"""Prints a table of `kiln bench --json` results: summary.py FOLDER NAME..., which reads FOLDER/NAME.json."""

import json
import sys
from pathlib import Path

NOISY = 2  # limit of p90 over p10, as in `kiln bench`
BUSY = 0.2  # limit of the share of the processor taken by other processes, as in `kiln bench`


def noisy(side):
    return side["p90"] > NOISY * side["p10"]


def ratio(bench, name):
    """A side's time relative to the fused kernels; marked with `~` if runs of either differed widely or the machine was busy."""
    side, fused = bench.get(name), bench["fused"]
    if not side:
        return "-"
    mark = "~" if noisy(side) or noisy(fused) or bench["others"] > BUSY else ""
    return f"{mark}{side['median_ms'] / fused['median_ms']:.2f}x"


def error(bench):
    return "-" if bench["reference"] == "none" else f"{bench['max_rel_err']:.1e}"


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    width = max(len("model"), *map(len, names))
    print(f"  {'model':{width}}  {'ops':>5} {'kernels':>7} {'fused ms':>9} {'unfused':>8} {'torch':>8} {'error':>8}")
    for name in names:
        b = json.loads((folder / f"{name}.json").read_text())
        ms = ("~" if noisy(b["fused"]) else "") + f"{b['fused']['median_ms']:.3f}"
        print(
            f"  {name:{width}}  {b['ops']:>5} {len(b['kernels']):>7} {ms:>9} {ratio(b, 'unfused'):>8}"
            f" {ratio(b, 'torch'):>8} {error(b):>8}"
        )


main()
