"""The examples of `python/examples/kernels` at small sizes, compared with PyTorch in f64.

A case says how many roundings of which type its results see (`Case`), so that a tolerance follows
from the arithmetic. With checks of the interpreter each case has no findings.
"""

from __future__ import annotations

import importlib
import importlib.util
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


def exact(value: Any) -> Any:
    """The value, with floating tensors in f64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(exact(v) for v in value)
    return value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors(v)


def unit(case: Any, inputs: Any, device: str) -> float:
    """A unit in the last place of intermediates, relative to their size."""
    working = case.working or next(tensors(inputs)).dtype
    tf32 = case.products and device == "cuda" and working == torch.float32
    return 2.0**-10 if tf32 else torch.finfo(working).eps


def compare(case: Any, size: dict[str, Any], device: str) -> None:
    torch.manual_seed(3)
    inputs = case.inputs(device, **size)
    found = list(tensors(case.run(*inputs)))
    wanted = list(tensors(case.reference(*exact(inputs))))
    assert len(found) == len(wanted) and found, "the reference gives other results"
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        if not got.is_floating_point():
            assert torch.equal(got, want)
            continue
        want = want.double()
        largest = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 0.0
        rounding = torch.finfo(got.dtype).eps / 2
        allowed = rounding * want.abs() + case.roundings * unit(case, inputs, device) * largest
        error = (got.double() - want).abs()
        wrong = ~((error <= allowed) | (got.double() == want) | (got.isnan() & want.isnan()))
        worst = (error / allowed).nan_to_num(torch.inf)[wrong]
        assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()}, up to {worst.max():.3g} times the bound"


@pytest.mark.parametrize(("name", "case", "size"), SIZES)
def test_an_example_computes_what_its_reference_does(name: str, case: str, size: Any, device: str) -> None:
    compare(example(name).CASES[case], size, device)


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
    compare(chosen, size, "cpu")
