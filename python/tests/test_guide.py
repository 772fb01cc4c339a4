"""The Python of the guide, the READMEs and the notebook runs, and prints what the pages show.

A page's ```python blocks run in order in one namespace; a ```text block after one is what it
prints, with `...` for what differs between machines, as in doctest. `pytest --kiln-update` writes
outputs that changed; lines with `...` that still hold stay.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import doctest
import io
import json
import linecache
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "kiln.ipynb"
PYTHON, TEXT, END = "```python", "```text", "```"


def pages() -> list[Path]:
    """The pages that have Python code."""
    known = [*sorted((ROOT / "docs" / "src").glob("*.md")), ROOT / "README.md"]
    known.append(ROOT / "python" / "README.md")
    return [page for page in known if f"{PYTHON}\n" in page.read_text(encoding="utf-8")]


@dataclass
class Block:
    """A block of code, and the output that the page shows after it."""

    #: Number of lines before the code.
    before: int
    code: str
    #: First line and end of the output in the page's lines; None where none is shown.
    shown: tuple[int, int] | None


def blocks(lines: list[str]) -> Iterator[Block]:
    """The blocks of a page."""
    at = 0
    while PYTHON in lines[at:]:
        start = lines.index(PYTHON, at) + 1
        end = lines.index(END, start)
        at = end + 1
        after = at + 1 if lines[at : at + 1] == [""] else at
        shown = None
        if lines[after : after + 1] == [TEXT]:
            shown = after + 1, lines.index(END, after + 1)
            at = shown[1] + 1
        yield Block(start, "\n".join(lines[start:end]) + "\n", shown)


def matches(want: str, got: str) -> bool:
    """Whether an output is what is shown, which may have `...` in it."""
    return doctest.OutputChecker().check_output(f"{want}\n", f"{got}\n", doctest.ELLIPSIS)


def renewed(want: list[str], got: list[str]) -> list[str]:
    """The new output, with what the old one leaves out if that is still to be found: lines that
    have `...`, and lines that are `...` between two others."""
    if matches("\n".join(want), "\n".join(got)):
        return want
    alone = [i for i, line in enumerate(want) if line.strip() == "..."]
    kept = [line for i, line in enumerate(want) if "..." in line and i not in alone]
    new = [next((k for k in kept if matches(k, line)), line) for line in got]
    for i in alone:
        try:
            start = new.index(want[i - 1]) + 1 if i > 0 else 0
            end = new.index(want[i + 1], start) if i + 1 < len(want) else len(new)
        except ValueError:
            continue
        new[start:end] = [want[i]]
    return new


def run(code: str, before: int, file: str, names: dict[str, Any]) -> str:
    """What code prints that has so many lines before it in its file."""
    padded = "\n" * before + code
    linecache.cache[file] = (len(padded), None, padded.splitlines(keepends=True), file)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(padded, file, "exec"), names)
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())


@pytest.fixture(autouse=True)
def in_a_folder_with_the_guides_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "docs" / "model", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "encoder", raising=False)
    # The width of reports.
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.native
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_what_its_code_prints(page: Path, request: pytest.FixtureRequest) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    names: dict[str, Any] = {"__name__": "__main__"}
    wrong, new = [], list(lines)
    moved = ran = 0
    for block in blocks(lines):
        # Lines count as in a script of the page's code, so that they do not depend on outputs.
        got = run(block.code, ran, f"{page.stem}.py", names)
        ran += block.code.count("\n")
        first, end = block.shown or (block.before, block.before)
        want = "\n".join(lines[first:end])
        if matches(want, got):
            continue
        if block.shown is None:
            where = f"{page.name}:{block.before}"
            raise AssertionError(f"{where} prints, and no {TEXT} block follows:\n{got}")
        replaced = renewed(lines[first:end], got.splitlines())
        new[first + moved : end + moved] = replaced
        moved += len(replaced) - (end - first)
        wrong += difflib.unified_diff(
            want.splitlines(), got.splitlines(), f"{page.name}:{first}", "now", lineterm=""
        )
    if request.config.getoption("--kiln-update"):
        page.write_text("\n".join(new) + "\n", encoding="utf-8")
        return
    help = "the page shows something else; to update it run `pytest --kiln-update`"
    assert not wrong, "\n".join([help, *wrong])


def test_blocks_have_the_output_that_follows() -> None:
    shown, silent = [PYTHON, "print(1)", END, "", TEXT, "1", END], [PYTHON, "x = 1", END]
    page = ["text", *shown, *silent, "text", TEXT, END]
    assert list(blocks(page)) == [Block(2, "print(1)\n", (6, 7)), Block(9, "x = 1\n", None)]


def test_outputs_differ_where_dots_are_alone() -> None:
    assert matches("took ... s", "took 3 s")
    assert not matches("took ... s", "took 3 ms")
    assert not matches("a", "a\nb")
    assert renewed(["a", "took ... s"], ["b", "took 3 s"]) == ["b", "took ... s"]
    shown, now = ["a", "...", "c", "..."], ["z", "a", "b", "c", "d"]
    assert renewed(shown, now) == ["z", *shown]
    assert renewed(["a", "...", "c"], ["a", "b", "d"]) == ["a", "b", "d"]


def cells() -> list[str]:
    """The code cells of the notebook."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


@pytest.mark.native
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for i, code in enumerate(cells()):
        # What a notebook shows of a cell is its last expression.
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        name = f"cell_{i}.py"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        exec(compile(tree, name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
            page = getattr(value, "_repr_html_", None)
            shown.append(page() if page is not None else repr(value))
    assert any(text.startswith("<") and "iframe" in text for text in shown), "no report is shown"


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None, cell["source"]
