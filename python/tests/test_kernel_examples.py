"""The examples of `python/examples/kernels` at small sizes, compared with PyTorch in f64.

A case says how many roundings of which type its results see (`Case`), so that a tolerance follows
from the arithmetic. With checks of the interpreter each case has no findings.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kiln.kernels import Autotuner, Kernel
from kiln.kernels.tuning import Wrapped

pytestmark = pytest.mark.native

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "kernels"
BENCHES = FOLDER.parents[2] / "benches"
PACKAGE = "kernel_examples"


def package() -> ModuleType:
    """The examples as a package under a name that nothing else has."""
    if PACKAGE not in sys.modules:
        where = FOLDER / "__init__.py"
        spec = importlib.util.spec_from_file_location(
            PACKAGE, where, submodule_search_locations=[str(FOLDER)]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = module
        spec.loader.exec_module(module)
    return sys.modules[PACKAGE]


def example(name: str) -> ModuleType:
    package()
    return importlib.import_module(f"{PACKAGE}.{name}")


EXAMPLES = package().EXAMPLES
CASES = [(name, case) for name in EXAMPLES for case in example(name).CASES]
SIZES = [
    pytest.param(name, case, size, id=f"{name}-{case.replace(' ', '_')}-{i}")
    for name, case in CASES
    for i, size in enumerate(example(name).CASES[case].small)
]


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return str(request.param)


@pytest.fixture(autouse=True)
def one_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuned kernels take their first configuration: what is fastest is no matter here."""
    for name in EXAMPLES:
        for value in vars(example(name)).values():
            if isinstance(value, Autotuner):
                monkeypatch.setattr(value, "configs", value.configs[:1])


@pytest.mark.parametrize(("name", "case", "size"), SIZES)
def test_an_example_computes_what_its_reference_does(name: str, case: str, size: Any, device: str) -> None:
    assert example(name).CASES[case].worst_error(device, size) <= 1


def kernels(module: ModuleType) -> Iterator[Kernel[Any]]:
    for value in vars(module).values():
        if isinstance(value, (Kernel, Wrapped)):
            yield value if isinstance(value, Kernel) else value.base_fn


@pytest.mark.parametrize(("name", "case"), CASES, ids=lambda v: v.replace(" ", "_"))
def test_checks_find_nothing(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = example(name).CASES[case]
    if chosen.unchecked:
        pytest.skip(chosen.unchecked)
    for kernel in kernels(example(name)):
        monkeypatch.setattr(kernel, "interpret", True)
    size = chosen.checked or chosen.small[-1]
    assert chosen.worst_error("cpu", size) <= 1


def test_copies_for_triton_name_nothing_of_kiln_but_its_clock() -> None:
    spec = importlib.util.spec_from_file_location("kernel_benches", BENCHES / "kernels.py")
    assert spec is not None and spec.loader is not None
    benches = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = benches
    spec.loader.exec_module(benches)
    for name in EXAMPLES:
        text = benches.for_triton((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        tree = ast.parse(text)
        imported = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        kiln = [line for line in imported if "kiln" in line and not line.startswith("from kiln.testing ")]
        kernels = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list]
        used = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
        assert not kiln and "kl" not in used and "kiln" not in used, (name, kiln)
        assert any("triton.jit" in map(ast.unparse, k.decorator_list) for k in kernels), name


def test_the_guide_shows_the_examples() -> None:
    script = BENCHES / "kernel_pages.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run benches/kernel_pages.py to update the pages"
