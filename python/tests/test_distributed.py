"""Models of several processes: `ranks.py` under torchrun, two processes on the CPU (gloo)."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RANKS = Path(__file__).parent / "ranks.py"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "src" / "distributed.md"
#: Seconds for all cases together.
LIMIT = 600

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="this build of torch has no gloo",
    ),
]


def cases():
    """The functions of `ranks.py` that are cases, without importing it."""
    tree = ast.parse(RANKS.read_text())
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    return [f.name for f in functions if any(ast.unparse(d) == "case" for d in f.decorator_list)]


def torchrun(script, *args):
    """What two processes of a script print."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    # Gloo's threads end a process of torch 2.11 at its exit now and then, one in eight with the
    # backend aot_eager too: such a run is repeated.
    for _ in range(4):
        run = subprocess.run(
            [sys.executable, *launch, str(script), *map(str, args)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if run.returncode == 0 or "terminate called without an active exception" not in run.stdout:
            break
    assert run.returncode == 0, run.stdout[-8000:]
    return run.stdout


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each process says of each case."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun(RANKS, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", cases())
def test_processes_agree_with_one(told, name):
    for rank, of in enumerate(told):
        assert of[name] == "", f"process {rank}:\n{of[name]}"


def test_the_script_of_the_guide_runs(tmp_path):
    script = tmp_path / "mlp.py"
    # Its fence is not that of code that runs in one process.
    script.write_text(PAGE.read_text(encoding="utf-8").split("```py\n")[1].split("```\n")[0])
    assert "torch.Size([8, 1024])" in torchrun(script)
