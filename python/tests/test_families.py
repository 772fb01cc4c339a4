"""Programs drawn at random, by `torch.compile`, `kiln.compile` and as `.pt2`, against eager."""

from __future__ import annotations

import families
import pytest
import torch

import kiln
from kiln import versions
from kiln.api import backend
from kiln.reports import accuracy

CASES = [(family, seed) for family, seeds in families.FAMILIES.items() for seed in seeds]

pytestmark = pytest.mark.parametrize(
    ("family", "seed"), CASES, ids=[f"{family.__name__}-{seed}" for family, seed in CASES]
)


#: Each operator rounds to its type, as in eager PyTorch.
EXACT = {"numerics": "exact"}


def same(program, got):
    """Dtypes and shapes are eager's, and so are values but for rounding: of what float64 gives."""
    exact = program.eager_in_f64()
    wrong = []
    for text, ours, want, true in zip(program.texts, got, program.eager(), exact, strict=True):
        if (ours.dtype, ours.shape) != (want.dtype, want.shape):
            wrong.append(
                f"{text}: {ours.dtype} {list(ours.shape)}, eager {want.dtype} {list(want.shape)}"
            )
            continue
        try:
            torch.testing.assert_close(ours, want, equal_nan=True)
        except AssertionError as error:
            if true is None or not accuracy.compare(ours, want, true).ok:
                wrong.append(f"{text}: {error}")
    assert not wrong, "\n".join(wrong)


@torch.no_grad()
def test_torch_compile(family, seed):
    program = family(seed)
    same(
        program, torch.compile(program.module, backend=backend.kiln, options=EXACT)(*program.inputs)
    )


@torch.no_grad()
def test_kiln_compile(family, seed):
    program = family(seed)
    same(program, kiln.compile(program.module, program.inputs, options=EXACT)(*program.inputs))


def traced_wrongly(error):
    """Whether torch's shapes of LSTM states, which are wrong up to 2.11, are in the way."""
    return not isinstance(error, kiln.KilnError) or "torch.export wrote wrongly" in str(error)


@torch.no_grad()
def test_pt2(family, seed, tmp_path):
    program = family(seed)

    def loaded():
        path = tmp_path / "program.pt2"
        torch.export.save(torch.export.export(program.module, program.inputs), path)
        return kiln.load(path, options=EXACT)(*program.inputs)

    try:
        got = loaded()
    except Exception as error:
        assert family is families.fallback_views and traced_wrongly(error), error
        with versions.shapes_of_states():
            got = loaded()
    same(program, got)
