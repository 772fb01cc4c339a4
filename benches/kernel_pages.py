#!/usr/bin/env python3
"""Pages of the guide about the examples in python/examples/kernels, and the code that is generated for them.

    benches/kernel_pages.py [--kiln target/release/kiln] [--check]

Writes docs/src/kernels/*.md, which show what the sources say of themselves and include the sources, and the list
of pages in SUMMARY.md. With `--kiln` it writes docs/src/kernels/code/*.txt too, by `kiln kernel`, for an H200: facts
about the code of a kernel at one size, and the loop of its PTX that does most of the work. No GPU is needed;
`ptxas` is, for registers. Charts come from `benches/kernels.py`. With `--check` nothing is written: it says
what differs.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path("python/examples/kernels")
PAGES = ROOT / "docs/src/kernels"
CODE, CHARTS = PAGES / "code", PAGES / "charts"
#: Lines of PTX that a page shows at most.
LIMIT = 44
#: Characters of a line of PTX.
WIDTH = 110
#: What a loop is known by, the most telling first: it does most of the work.
WORK = ("wgmma.mma_async", "mma.sync", "fma.rn", "ld.global", "st.global")


INDEX = """# Examples of kernels

Kernels of usual computations, in the language of [Writing kernels](../writing-kernels.md): a file for each, which
runs on GPUs and on the CPU. Each has a reference in PyTorch that tests compare with in f64, and benchmarks, which
`python3 benches/kernels.py` runs beside PyTorch and, from the same source, beside Triton."""


@dataclass(frozen=True)
class Shown:
    """A kernel at one size, as arguments of `kiln kernel`."""

    kernel: str
    args: str
    grid: str
    warps: int = 4


def numbers(*values: int) -> str:
    return ", ".join(f"i32={v}" for v in values)


N = 4096
SQUARE = numbers(N, N, N)
STRIDES = numbers(N, 1, N, 1, N, 1)
TILES = "BM=128, BN=256, BK=64"
HEADS = ", ".join([numbers(N * 2048, 128, 2048)] * 4)

SHOWN = {
    "vector_add": [Shown("add_kernel", "*f32, *f32, *f32, i32=134217728, BLOCK=1024", "131072")],
    "softmax": [Shown("softmax_kernel", f"*f32, *f32, {numbers(931, 931, 931)}, BLOCK=1024", "583", 2)],
    "gelu": [Shown("gelu_kernel", "*bf16, *bf16, i32=67108864, TANH=False, BLOCK=1024", "65536")],
    "dropout": [Shown("dropout_kernel", "*f32, *f32, i32=67108864, f32=0.5, i32=123, BLOCK=1024", "65536")],
    "rms_norm": [
        Shown(
            "rms_norm_kernel",
            f"*bf16, None, *bf16, *bf16, None, {numbers(4096, 4096)}, f32=0.000001, BLOCK=4096",
            "8192",
            8,
        )
    ],
    "layer_norm": [
        Shown(
            "forward_kernel",
            "*f16, *f16, *f16, *f16, *f32, *f32, i32=8192, f32=0.00001, BLOCK=8192",
            "4096",
            16,
        )
    ],
    "rotary": [
        Shown(
            "rotary_kernel",
            f"*bf16, *bf16, *bf16, *bf16, {numbers(4096, 32, 4096)}, HALF=64, HEADS=32, INVERSE=False",
            "16384",
        )
    ],
    "cross_entropy": [
        Shown(
            "cross_entropy_kernel",
            f"*bf16, *i64, *f32, *bf16, {numbers(128256, 128256)}, *f32, IGNORED=-100, BLOCK=4096",
            "4096",
            8,
        )
    ],
    "matmul": [
        Shown(
            "matmul_kernel",
            f"*f16, *f16, *f16, {SQUARE}, {STRIDES}, EPILOGUE=None, {TILES}, GROUP=8",
            "512",
            8,
        )
    ],
    # `kiln kernel` cannot name a function as a constant yet.
    "matmul_leaky_relu": [],
    "ladder": [
        Shown("outer_kernel", f"*bf16, *bf16, *bf16, {SQUARE}, BM=64, BN=64", "64,64"),
        Shown(
            "tile_kernel", f"*bf16, *bf16, *bf16, {SQUARE}, EXACT=False, BM=128, BN=128, BK=64", "1024", 8
        ),
    ],
    "persistent_matmul": [
        Shown("persistent_matmul_kernel", f"*f16, *f16, *f16, {SQUARE}, {TILES}, GROUP=8", "132", 8)
    ],
    "stream_k_matmul": [
        Shown(
            "stream_k_kernel",
            f"*f16, *f16, *f32, {SQUARE}, i32=497, BM=128, BN=128, BK=64, GROUP=8",
            "132",
            8,
        )
    ],
    "grouped_gemm": [
        Shown("grouped_gemm_kernel", "*i64, *i32, i32=16, *f16, ALIGNED=True, BM=128, BN=128, BK=64", "132", 8)
    ],
    "cdist": [
        Shown(
            "product_kernel", f"*f32, *f32, *f32, {numbers(8192, 8192, 512)}, BM=128, BN=128, BK=32", "64,64", 8
        ),
        Shown(
            "difference_kernel",
            f"*f32, *f32, *f32, {numbers(8192, 8192, 512)}, SQUARED=False, BM=64, BN=64, BK=8",
            "128,128",
            8,
        ),
    ],
    "scaled_matmul": [
        Shown(
            "scaled_matmul_kernel",
            f"*float8e4nv, *float8e4nv, *f32, *f32, *bf16, {SQUARE}, "
            "SUM=float32, BM=128, BN=128, BK=128, GROUP=8",
            "1024",
            8,
        )
    ],
    "int4_matmul": [
        Shown(
            "int4_matmul_kernel",
            f"*f16, *u8, *f16, *f16, *f16, {numbers(16, 11008, 4096)}, SIZE=128, BM=16, BN=64, BK=64",
            "1,172",
        )
    ],
    "attention": [
        Shown(
            "attention_kernel",
            f"*f16, *f16, *f16, *f16, f32=0.088, {numbers(N, N, 16)}, {HEADS}, "
            "SCORE=None, CAUSAL=True, WINDOW=0, SHARED=1, DIM=128, BM=128, BN=64",
            "32,32",
            8,
        )
    ],
    "paged_attention": [
        Shown(
            "page_kernel",
            f"*f16, *f16, *f16, *i32, *i32, *f32, *f32, f32=0.088, {numbers(32, 256, 4)}, "
            "SHARED=4, ROWS=16, DIM=128, PAGE=16, BN=64",
            "16,8,4",
        )
    ],
    "selective_scan": [
        Shown(
            "sequential_kernel",
            f"*bf16, *bf16, *f32, *bf16, *bf16, *f32, *bf16, {numbers(1024, 2048)}, STATE=16, CHANNELS=32",
            "64,4",
        )
    ],
}


@dataclass(frozen=True)
class Example:
    """An example's source, as a page shows it."""

    name: str
    title: str
    #: What the module says of itself.
    about: str
    #: Parts of the source by name, in the order of the file.
    anchors: list[str]
    #: Names of the benchmarks' charts.
    charts: list[str]


def titles() -> dict[str, str]:
    """The titles of the examples by name, as their package lists them."""
    tree = ast.parse((ROOT / SOURCES / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXAMPLES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise RuntimeError(f"{SOURCES}/__init__.py lists no EXAMPLES")


def example(name: str, title: str) -> Example:
    text = (ROOT / SOURCES / f"{name}.py").read_text(encoding="utf-8")
    anchors = re.findall(r"^# ANCHOR: (\w+)$", text, re.MULTILINE)
    charts = sorted(file.stem for file in CHARTS.glob("*.svg") if file.stem in plots(text))
    return Example(name, title, ast.get_docstring(ast.parse(text)) or "", anchors, charts)


def plots(text: str) -> set[str]:
    """The charts of a source's benchmarks: names that are given, and those that begin with one."""
    given = re.findall(r'plot_name=f?"([^"{]+)(\{?)', text)
    exact = {name for name, more in given if not more}
    begins = tuple(name for name, more in given if more)
    return exact | {f.stem for f in CHARTS.glob("*.svg") if begins and f.stem.startswith(begins)}


def page(example: Example) -> str:
    """The page of an example: what it says of itself, its source, its charts and its code."""
    parts = [f"# {example.title}", example.about]
    for anchor in example.anchors:
        parts.append(f"```python,ignore\n{{{{#include ../../../{SOURCES}/{example.name}.py:{anchor}}}}}\n```")
    parts.append(
        f"The whole file, with its reference and benchmarks, is `{SOURCES}/{example.name}.py`. "
        f"`cd python/examples && python -m kernels.{example.name}` prints the table."
    )
    if example.charts:
        parts.append("## How fast it is")
        parts += [f"![{chart}](charts/{chart}.svg)" for chart in example.charts]
        parts.append("Measured by `benches/kernels.py`; `benches/results/kernels.md` names the machine.")
    if SHOWN[example.name]:
        parts.append("## Generated code")
        parts.append("Facts about the code for an H200, and the loop that does most of the work:")
        parts.append(f"```text\n{{{{#include code/{example.name}.txt}}}}\n```")
    return "\n\n".join(parts) + "\n"


def kiln(binary: str, name: str, shown: Shown, stage: str, target: str = "sm_90a") -> str:
    """What `kiln kernel` prints."""
    file, _, kernel = shown.kernel.rpartition(":")
    command = [binary, "kernel", f"{SOURCES / (file or f'{name}.py')}:{kernel}", "--args", shown.args]
    command += ["--grid", shown.grid, "--num-warps", str(shown.warps), "--target", target, "--stage", stage]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {' '.join(command)}\n{done.stderr}")
    return done.stdout


def loops(ptx: str) -> list[list[str]]:
    """The innermost loops of a program, from a label to the branch back to it, but for those that wait."""
    lines = [plain(line) for line in ptx.splitlines()]
    labels = {line[:-1]: at for at, line in enumerate(lines) if re.fullmatch(r"\$[\w$]+:", line)}
    spans = []
    for at, line in enumerate(lines):
        branch = re.search(r"\bbra(?:\.uni)?\s+(\$[\w$]+);", line)
        start = labels.get(branch.group(1), at) if branch else at
        if start < at and not waits(lines[start:at]):
            spans.append((start, at))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    return [[line for line in lines[start : end + 1] if shows(line)] for start, end in inner]


def plain(line: str) -> str:
    """A line without what surrounds an instruction of tensor cores, and the middle of long lists of registers."""
    line = re.sub(r"^\s*\{ \.reg \.pred p; setp\S* [^;]*; (wgmma.*) \}$", r"\1", line).strip()
    return re.sub(r"\{(%\w+), (?:%\w+, ){3,}(%\w+)\}", r"{\1, ..., \2}", line)


def waits(loop: list[str]) -> bool:
    """Whether a loop only asks whether a barrier's phase is over."""
    return len(loop) <= 6 and any("try_wait" in line for line in loop)


def shows(line: str) -> bool:
    return bool(line) and not line.startswith(("//", ".", "{", "}"))


def opcode(line: str) -> str:
    words = line.split()
    return words[1] if words[0].startswith("@") else words[0]


def busiest(ptx: str) -> list[str]:
    """The loop that does most of the work; the whole program where there is no loop."""

    def work(loop: list[str]) -> tuple[int, ...]:
        return tuple(sum(op in line for line in loop) for op in WORK)

    whole = [line for line in map(plain, ptx.splitlines()) if shows(line) and line.endswith((";", ":"))]
    return max([*loops(ptx), whole], key=lambda lines: (lines is not whole and any(work(lines)), work(lines)))


def shortened(lines: list[str]) -> list[str]:
    """The lines, with runs of one instruction as its first two, and the middle left out if they are many."""
    short: list[str] = []
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and opcode(lines[end]) == opcode(lines[at]):
            end += 1
        short += lines[at : min(end, at + 2)]
        if end - at > 2:
            short.append(f"... {end - at - 2} more of {opcode(lines[at]).rstrip(';')}")
        at = end
    if len(short) > LIMIT:
        left = len(short) - LIMIT
        short = [*short[: LIMIT // 2], f"... {left} lines", *short[-LIMIT // 2 :]]
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..." for line in short]


def code(binary: str, name: str) -> str:
    """The text of an example's generated code."""
    parts = []
    for shown in SHOWN[name]:
        loop = shortened(busiest(kiln(binary, name, shown, "ptx")))
        parts.append(kiln(binary, name, shown, "facts") + "\n" + "\n".join(loop))
    return "\n\n".join(parts) + "\n"


def summary(examples: list[Example]) -> str:
    """SUMMARY.md with the list of pages below the chapter on kernels."""
    lines = (ROOT / "docs/src/SUMMARY.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if "(kernels/" not in line]
    at = next(i for i, line in enumerate(lines) if "(from-triton.md)" in line) + 1
    pages = [f"  - [{e.title}](kernels/{e.name}.md)" for e in examples]
    return "\n".join([*lines[:at], "- [Examples of kernels](kernels/index.md)", *pages, *lines[at:]]) + "\n"


def index(examples: list[Example]) -> str:
    """The page that lists the examples."""
    rows = [f"| [{e.title}]({e.name}.md) | {first_sentence(e)} |" for e in examples]
    return "\n".join([INDEX, "", "| | |", "|---|---|", *rows]) + "\n"


def first_sentence(example: Example) -> str:
    """What an example computes: the first paragraph up to its formula or end."""
    paragraph = example.about.partition("\n\n")[0].replace("\n", " ")
    return paragraph.replace("|", "\\|")


def files(binary: str | None) -> dict[Path, str]:
    """All files of the pages; those of code only with a `kiln` to make them."""
    examples = [example(name, title) for name, title in titles().items()]
    found = {PAGES / f"{e.name}.md": page(e) for e in examples}
    found[PAGES / "index.md"] = index(examples)
    found[ROOT / "docs/src/SUMMARY.md"] = summary(examples)
    if binary is not None:
        found |= {CODE / f"{e.name}.txt": code(binary, e.name) for e in examples if SHOWN[e.name]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kiln", help="the `kiln` command; without it the generated code stays as it is")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file differs")
    args = parser.parse_args()
    differ = []
    for file, text in files(args.kiln).items():
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        differ.append(str(file.relative_to(ROOT)))
        if not args.check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    print(f"{'differ' if args.check else 'written'}: {', '.join(differ) or 'none'}")
    return int(args.check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
