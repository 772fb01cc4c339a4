"""PyTorch's own samples of its operators through `torch.compile`, against eager.

Of each operator that is deterministic two samples: one of the first three, which is seldom the
plainest one, and the last. A few operators always; all of them takes minutes: `--kiln-slow`.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from kiln.api import backend
from kiln.reports import accuracy

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

DTYPES = [torch.float32, torch.int64, torch.bool]

OPERATORS = {
    (f"{op.name}-{op.variant_test_name}" if op.variant_test_name else op.name, dtype): op
    for op in methods.op_db
    for dtype in DTYPES
    if dtype in op.supported_dtypes("cpu") and not any(w in op.name for w in RANDOM)
}
for key in [k for k in OPERATORS if any(w in k[0] for w in LEFT_OUT)]:
    del OPERATORS[key]

#: One of each kind: what is converted, what PyTorch runs as a step, and what splits a graph.
COMMON = """add addmm argsort cat clamp cumsum fft.fft gather index_add index_put linalg.svd
    masked_fill matmul max-reduction_with_dim mean nn.functional.conv2d nn.functional.layer_norm
    nn.functional.pad-constant nonzero scatter softmax-with_dtype sort topk unique where""".split()


def copies(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, tree)


def dense(tree):
    leaves = torch.utils._pytree.tree_leaves(tree)
    return all(t.layout is torch.strided for t in leaves if isinstance(t, torch.Tensor))


def check(name, dtype, dynamic):
    op = OPERATORS[name, dtype]

    def f(input, args, kwargs):
        return op.op(input, *args, **kwargs)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        samples = list(op.sample_inputs("cpu", dtype))
        if not samples:
            pytest.skip("torch has no samples")
        for sample in (samples[min(2, len(samples) - 1)], samples[-1]):
            call = (sample.input, sample.args, sample.kwargs)
            want = f(*copies(call))
            if not dense((call, want)):
                pytest.skip("sparse")
            torch._dynamo.reset()
            got = torch.compile(f, backend=backend.kiln, dynamic=dynamic)(*copies(call))
            try:
                torch.testing.assert_close(got, want, equal_nan=True)
            except AssertionError:
                # Long sums: then the program's own rounding says how far Kiln's order may be off.
                if not dtype.is_floating_point:
                    raise
                found = accuracy.compare(got, *accuracy.references(lambda: f, call, {}))
                assert found.ok, found


def named(dtype):
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("name", COMMON)
def test_common_operator(name):
    check(name, torch.float32, None)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [n for n, dtype in OPERATORS if dtype is torch.float32])
def test_operator(name, dynamic):
    check(name, torch.float32, dynamic)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [key for key in OPERATORS if key[1] is not torch.float32],
    ids=lambda value: value if isinstance(value, str) else named(value),
)
def test_operator_on_integers(name, dtype):
    check(name, dtype, False)
