"""The page of measured figures is what its script writes from the tables of results."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT, RESULTS = ROOT / "scripts" / "results", ROOT / "benches" / "results"


def run(*options):
    call = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(call, capture_output=True, text=True, check=False)


def check(folder):
    return run("--check", "--folder", str(folder))


@pytest.fixture
def results(tmp_path):
    return Path(shutil.copytree(RESULTS, tmp_path / "results"))


def edit(file, before, after):
    text = file.read_text()
    assert before in text, before
    file.write_text(text.replace(before, after, 1))


def test_the_page_is_what_the_tables_say():
    done = check(RESULTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_figure_that_changed_is_found(results):
    edit(results / "README.md", "memory-bound kernels | best of eager, torch.compile", "x | y")
    done = check(results)
    assert done.returncode == 1
    assert "-| x | y | 84" in done.stdout and "run scripts/results" in done.stderr
    assert run("--folder", str(results)).returncode == 0
    assert check(results).returncode == 0
    row = "| row_sum_16384x8192_bf16 | 63.1 | 62.2 | 0.99 | 102.3 | 62.0 | 1.00 |"
    edit(results / "memory-bound.md", row, row.replace("1.00", "0.50"))
    done = check(results)
    assert done.returncode == 1 and "**0.50** (row_sum_16384x8192_bf16) | 5 |" in done.stdout


@pytest.mark.parametrize(
    ("before", "missing"),
    [
        ("NVIDIA H200", "machine"),
        ("580.159.04", "driver"),
        ("2026-11-22", "date"),
        ("benches/memory-bound run", "command"),
    ],
)
def test_a_run_that_is_not_described_is_refused(results, before, missing):
    file = results / "memory-bound.md"
    file.write_text(file.read_text().replace(before, ""))
    done = run("--folder", str(results))
    assert done.returncode == 1
    assert f"memory-bound.md, `Memory-bound kernels`: names no {missing}" in done.stderr


def test_a_table_that_is_gone_is_named(results):
    edit(results / "start.md", "Inductor cold", "Inductor")
    told = "start.md has no table `On an H200` with a column `Inductor cold`"
    assert told in check(results).stderr
