"""PyTorch's own samples of its operators through `torch.compile`; takes minutes: `--kiln-slow`.

One sample of each operator that is deterministic: the last of the first three, which is seldom the
plainest one.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from kiln import backend

pytest.importorskip("expecttest", reason="torch's samples need it: pip install expecttest")
methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")

#: Words in the names of operators whose results are random or not initialised.
RANDOM = (
    "rand",
    "dropout",
    "bernoulli",
    "normal",
    "multinomial",
    "empty",
    "exponential",
    "cauchy",
    "geometric",
)

#: Operators that torch.compile itself cannot trace with dynamic sizes, a view of memory outside of
#: its tensor, and operators of CUDA.
LEFT_OUT = ("backward", "as_strided-partial_views", "jiterator", "cov")

OPERATORS = {
    f"{op.name}-{op.variant_test_name}" if op.variant_test_name else op.name: op
    for op in methods.op_db
    if torch.float32 in op.supported_dtypes("cpu") and not any(w in op.name for w in RANDOM)
}
for name in [n for n in OPERATORS if any(w in n for w in LEFT_OUT)]:
    del OPERATORS[name]


def copies(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, tree)


def dense(tree):
    leaves = torch.utils._pytree.tree_leaves(tree)
    return all(t.layout is torch.strided for t in leaves if isinstance(t, torch.Tensor))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name, dynamic):
    op = OPERATORS[name]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(op.sample_inputs("cpu", torch.float32), 3))
        if not samples:
            pytest.skip("torch has no samples")
        sample = samples[-1]
        call = (sample.input, sample.args, sample.kwargs)

        def f(input, args, kwargs):
            return op.op(input, *args, **kwargs)

        want = f(*copies(call))
        if not dense((call, want)):
            pytest.skip("sparse")
        got = torch.compile(f, backend=backend.kiln, dynamic=dynamic)(*copies(call))
    torch.testing.assert_close(got, want, equal_nan=True)
