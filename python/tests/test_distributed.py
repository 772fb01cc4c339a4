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


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each process says of each case."""
    folder = tmp_path_factory.mktemp("ranks")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, *launch, str(RANKS), str(folder)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    files = sorted(folder.glob("*.json"))
    assert len(files) == 2, run.stdout[-8000:]
    return [json.loads(f.read_text()) for f in files]


@pytest.mark.parametrize("name", cases())
def test_processes_agree_with_one(told, name):
    for rank, of in enumerate(told):
        assert of[name] == "", f"process {rank}:\n{of[name]}"
