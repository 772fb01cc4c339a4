"""What one process has compiled another takes from the cache on disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import kiln

CODE = """
import sys, torch, kiln
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Softmax(-1)).eval()
x = torch.randn(3, 6)
options = {"cache": False} if "off" in sys.argv else None
with torch.no_grad():
    if "backend" in sys.argv:
        y = torch.compile(model, backend="kiln", options=options)(x)
    else:
        y = kiln.compile(model, (x,), options=options)(x)
    torch.testing.assert_close(y, model(x))
"""


def run(folder, *words):
    environment = {**os.environ, "KILN_CACHE": str(folder)}
    subprocess.run([sys.executable, "-c", CODE, *words], env=environment, check=True)


def entries(folder):
    """The entries of a cache: when each was written."""
    return {p.name: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("door", ["compile", "backend"])
def test_another_process_compiles_nothing_again(tmp_path, door):
    run(tmp_path / "cache", door)
    first = entries(tmp_path / "cache")
    assert first, "nothing was kept"
    run(tmp_path / "cache", door)
    assert entries(tmp_path / "cache") == first


def test_a_broken_entry_is_as_none(tmp_path):
    run(tmp_path)
    first = entries(tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-3] + b"???")
    # Results are checked there.
    run(tmp_path)
    assert entries(tmp_path).keys() == first.keys()
    # A folder that cannot be written is no reason to fail.
    run("/proc/no/folder")


def test_it_can_be_left_out(tmp_path):
    run(tmp_path, "off")
    assert not entries(tmp_path)


def test_weights_are_in_no_entry(tmp_path, monkeypatch):
    """Two models that differ in weights alone share all entries, and their results do not."""
    code = CODE.replace("manual_seed(0)", "manual_seed(1)")
    run(tmp_path)
    first = entries(tmp_path)
    environment = {**os.environ, "KILN_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert entries(tmp_path) == first


def test_the_option_is_checked():
    with pytest.raises(kiln.UsageError, match="give True or False"):
        kiln.compile(torch.nn.ReLU().eval(), (torch.ones(2),), options={"cache": "no"})
