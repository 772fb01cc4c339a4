"""The kernels of `benches/kernel_cases` at small odd sizes, compared with PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytestmark = pytest.mark.native

FOLDER = Path(__file__).resolve().parents[2] / "benches" / "kernel_cases"
PACKAGE = "untuned_kernel_cases"
PREFIX = "case_"


def package() -> ModuleType:
    """The kernels as a package under a name that nothing else has."""
    if PACKAGE not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            PACKAGE, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
    return sys.modules[PACKAGE]


FAMILIES = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in package().FAMILIES}
CASES = [
    pytest.param(getattr(module, name), id=f"{family}-{name.removeprefix(PREFIX)}")
    for family, module in FAMILIES.items()
    for name in vars(module)
    if name.startswith(PREFIX)
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("make", CASES)
def test_agrees_with_pytorch(make: object, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    assert callable(make)
    case = make(package().case.Inputs(device), small=True)
    error = case.error()
    assert case.right(error), f"{error:.2e} of the largest, {case.tolerance:.2e} allowed"
