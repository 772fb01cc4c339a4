"""Kernels written by hand, launched on tensors of the CPU, and of a GPU where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kiln
import kiln.language as kl
from kiln.kernels import KernelError, KernelUnsupported, cdiv, next_power_of_2
from kiln.language.standard import _log2

pytestmark = pytest.mark.native

SCALE = kl.constexpr(3)


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return request.param


@kiln.kernel
def add(x, y, out, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    mask = i < n
    kl.store(out + i, kl.load(x + i, mask=mask) + kl.load(y + i, mask=mask), mask=mask)


@pytest.mark.parametrize("n", [1, 16, 17, 1000, 4096, 98432])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_vectors_are_added(device, n, dtype):
    x, y = ((torch.randn(n) * 100).to(device, dtype) for _ in range(2))
    out = torch.full((n + 8,), 7).to(device, dtype)
    add[(cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    torch.testing.assert_close(out[:n], x + y, rtol=0, atol=0)
    assert (out[n:] == 7).all()


@kiln.kernel
def softmax(out, x, x_stride, out_stride, rows, columns, BLOCK: kl.constexpr):
    for row in kl.range(kl.program_id(0), rows, kl.num_programs(0)):
        i = kl.arange(0, BLOCK)
        mask = i < columns
        block = kl.load(x + row * x_stride + i, mask=mask, other=-float("inf"))
        e = kl.exp(block - kl.max(block, axis=0))
        kl.store(out + row * out_stride + i, e / kl.sum(e, axis=0), mask=mask)


@pytest.mark.parametrize("shape", [(3, 5), (37, 781), (128, 1024)])
@pytest.mark.parametrize("programs", [1, 4])
def test_softmax_of_rows(device, shape, programs):
    x = torch.randn(shape, device=device)
    out = torch.empty_like(x)
    block = next_power_of_2(shape[1])
    softmax[(programs,)](out, x, x.stride(0), out.stride(0), *shape, BLOCK=block)
    torch.testing.assert_close(out, torch.softmax(x, 1))


@kiln.kernel
def leaky_relu(x):
    return kl.where(x >= 0, x, 0.01 * x)


@kiln.kernel
def matmul(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: kl.constexpr, BN: kl.constexpr, BK: kl.constexpr, GROUP: kl.constexpr,
    ACTIVATION: kl.constexpr,
):  # fmt: skip
    pid = kl.program_id(axis=0)
    rows, columns = kl.cdiv(M, BM), kl.cdiv(N, BN)
    in_group = GROUP * columns
    group = pid // in_group
    first = group * GROUP
    size = min(rows - first, GROUP)
    m = first + (pid % in_group) % size
    n = (pid % in_group) // size
    am = (m * BM + kl.arange(0, BM)) % M
    bn = (n * BN + kl.arange(0, BN)) % N
    k = kl.arange(0, BK)
    pa = a + (am[:, None] * sam + k[None, :] * sak)
    pb = b + (k[:, None] * sbk + bn[None, :] * sbn)
    acc = kl.zeros((BM, BN), dtype=kl.float32)
    for i in range(0, kl.cdiv(K, BK)):
        left = kl.load(pa, mask=k[None, :] < K - i * BK, other=0.0)
        right = kl.load(pb, mask=k[:, None] < K - i * BK, other=0.0)
        acc = kl.dot(left, right, acc)
        pa += BK * sak
        pb += BK * sbk
    if ACTIVATION == "leaky_relu":
        acc = leaky_relu(acc)
    cm = m * BM + kl.arange(0, BM)
    cn = n * BN + kl.arange(0, BN)
    pc = c + scm * cm[:, None] + scn * cn[None, :]
    kl.store(pc, acc, mask=(cm[:, None] < M) & (cn[None, :] < N))


@pytest.mark.parametrize("size", [(64, 64, 64), (100, 70, 33), (1, 130, 257)])
@pytest.mark.parametrize("activation", ["", "leaky_relu"])
def test_matmul_of_the_tutorials(device, size, activation):
    m, n, k = size
    a, b = torch.randn(m, k, device=device), torch.randn(n, k, device=device).t()
    c = torch.empty(m, n, device=device)
    grid = lambda meta: (cdiv(m, meta["BM"]) * cdiv(n, meta["BN"]),)  # noqa: E731
    matmul[grid](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(),
        BM=32, BN=32, BK=16, GROUP=4, ACTIVATION=activation,
    )  # fmt: skip
    want = a.double() @ b.double()
    if activation:
        want = torch.nn.functional.leaky_relu(want, 0.01)
    torch.testing.assert_close(c.double(), want, rtol=2e-2, atol=2e-2 * k**0.5)


@kiln.kernel
def scaled(x, out, n, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    kl.store(out + i, kl.load(x + i, mask=i < n) * SCALE, mask=i < n)


def test_constants_of_the_module_are_read(device):
    x, out = torch.arange(8, device=device), torch.zeros(8, dtype=torch.int64, device=device)
    scaled[(1,)](x, out, 8, BLOCK=8)
    assert out.tolist() == [3 * i for i in range(8)]


INTEGERS = kl.pointer_type(kl.int32)


@kiln.kernel
def combined(x, out, by: kl.float16, combine: kl.constexpr, BLOCK: kl.constexpr):
    kl.static_assert(isinstance(x.dtype, kl.pointer_type) and isinstance(by, kl.tensor))
    i = kl.arange(0, BLOCK)
    bits = kl.load(x.to(INTEGERS, bitcast=True) + i)
    nothing = kl.maximum(by, float("nan"), propagate_nan=kl.PropagateNan.ALL)
    kl.store(out, kl.reduce(bits.to(kl.float32, bitcast=True), 0, combine))
    kl.store(out + 1, by)
    kl.store(out + 2, nothing)


def test_values_of_the_language_are_constants(device):
    x, out = torch.tensor([3.0, -1.0, 7.0, 2.0], device=device), torch.zeros(3, device=device)
    combined[(1,)](x, out, 1.0004, kl.minimum, BLOCK=4)
    assert out[:2].tolist() == [-1.0, 1.0] and out[2].isnan()
    combined[(1,)](x, out, float("inf"), kl.maximum, BLOCK=4)
    assert out[:2].tolist() == [7.0, float("inf")]


def rounded_down(n, to):
    return n // to * to


@kl.constexpr
def half(n):
    return rounded_down(n, 2) // 2


class ConstexprFunction:
    """A function of constants as Triton has it."""

    __module__ = "triton.runtime.jit"

    def __init__(self, fn):
        self.fn = fn
        self.__name__ = fn.__name__


def is_wide(dtype):
    return dtype.primitive_bitwidth > 16


wide = ConstexprFunction(is_wide)


@kiln.kernel
def exponent(out, N: kl.constexpr):
    ty: kl.constexpr = kl.core.get_int_dtype(16, False)
    kl.store(out, _log2(N))
    kl.store(out + 1, kl.full((), -1, kl.int32).to(ty))


def test_names_that_kernels_import_from_modules_of_the_language(device):
    out = torch.zeros(2, dtype=torch.int32, device=device)
    exponent[(1,)](out, N=32)
    assert out.tolist() == [5, 65535]


class PropagateNan:
    """What Triton's members of `PropagateNan` are."""

    ALL = type("PROPAGATE_NAN", (), {"name": "ALL"})()


@kiln.kernel
def larger(x, y, out):
    i = kl.arange(0, 4)
    a, b = kl.load(x + i), kl.load(y + i)
    kl.store(out + i, kl.maximum(a, b, propagate_nan=PropagateNan.ALL))


def test_triton_says_what_nan_does(device):
    nan = float("nan")
    x, y = torch.tensor([[nan, 1, 2, 3], [0, nan, 4, 1]], device=device)
    out = torch.empty(4, device=device)
    larger[(1,)](x, y, out)
    assert out.isnan().tolist() == [True, True, False, False] and out[2:].tolist() == [4, 3]


@kiln.kernel
def computed(out, N: kl.constexpr):
    kl.store(out + kl.arange(0, half(N)), half(N))
    if wide(out.dtype.element_ty):
        kl.store(out, 7)


def test_functions_of_constants_run_while_a_kernel_is_compiled(device):
    out = torch.zeros(8, device=device)
    computed[(1,)](out, N=9)
    assert out.tolist() == [7, 4, 4, 4, 0, 0, 0, 0]
    out = torch.zeros(8, dtype=torch.float16, device=device)
    computed[(1,)](out, N=9)
    assert out.tolist() == [4, 4, 4, 4, 0, 0, 0, 0]


@kiln.kernel
def shifted_rows(x: kl.Array, out: kl.Array, by, COLUMNS: kl.constexpr):
    row = kl.program_id(0)
    for start in range(0, x.shape[1], COLUMNS):
        out[row, start : start + COLUMNS] = x[row, start + by : start + by + COLUMNS]
    out[row, -1] += 100


@pytest.mark.parametrize("shape", [(3, 50), (17, 96), (2, 1)])
@pytest.mark.parametrize("columns", [24, 32])
def test_arrays_are_indexed(device, shape, columns):
    x = torch.randn(shape, device=device)
    for given in (x, x.t().contiguous().t(), x.repeat(1, 2)[:, : shape[1]]):
        out = torch.full(shape, -1.0, device=device)
        shifted_rows[(shape[0],)](given, out, 2, COLUMNS=columns)
        want = torch.nn.functional.pad(x[:, 2:], (0, 2))[:, : shape[1]].clone()
        want[:, -1] += 100
        assert (out == want).all()


@kiln.kernel
def product_of_any_size(a, b, out, M: kl.constexpr, N: kl.constexpr, K: kl.constexpr):
    row, column = kl.program_id(0) * M, kl.program_id(1) * N
    total = kl.zeros((M, N), kl.float32)
    for k in range(0, a.shape[1], K):
        total += kl.dot(a[row : row + M, k : k + K], b[k : k + K, column : column + N], input_precision="ieee")
    out[row : row + M, column : column + N] = total


@pytest.mark.parametrize("sizes", [(24, 40, 24), (1, 8, 5), (48, 3, 16), (16, 16, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_of_any_size(device, sizes, dtype):
    a = torch.randn(50, 61, device=device).to(dtype)
    b = torch.randn(61, 70, device=device).to(dtype)
    out = torch.zeros(50, 70, device=device)
    m, n, k = sizes
    arrays = (kl.Array(x) for x in (a, b, out))
    product_of_any_size[(cdiv(50, m), cdiv(70, n))](*arrays, M=m, N=n, K=k)
    assert torch.allclose(out, a.float() @ b.float(), atol=1e-4)


def test_what_is_no_tensor_is_no_array():
    with pytest.raises(TypeError, match="`x` of shifted_rows.. is an array, and gets a int; pass a tensor"):
        shifted_rows[(1,)](3, torch.zeros(2, 2), 1, COLUMNS=8)


@kiln.kernel
def written_twice(x, out, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    kl.store(out + i, kl.load(x + i) + 1)
    kl.store(out + i, kl.load(x + i) * 10)


def test_arguments_may_be_the_same_tensor(device):
    x, out = torch.arange(64.0, device=device), torch.empty(64, device=device)
    want = x * 10
    written_twice[(1,)](x, out, BLOCK=64)
    assert (out == want).all()
    written_twice[(1,)](x, x, BLOCK=64)
    assert (x == want + 10).all()
    # A view that begins later is the same memory too.
    y = torch.arange(65.0, device=device)
    written_twice[(1,)](y[1:], y[1:], BLOCK=64)
    assert (y[1:] == (torch.arange(1.0, 65.0, device=device) + 1) * 10).all()


def test_an_empty_grid_runs_nothing(device):
    out = torch.zeros(4, device=device)
    add[(0,)](out, out, out, 4, BLOCK=4)
    assert (out == 0).all()


def test_arguments_are_checked():
    x = torch.zeros(4)
    with pytest.raises(TypeError, match="lacks the argument `out`"):
        add[(1,)](x, x)
    with pytest.raises(KeyError, match="no parameter or option `nonsense`"):
        add[(1,)](x, x, x, 4, BLOCK=4, nonsense=1)
    for warps in (0, 3, 64, "4"):
        with pytest.raises(ValueError, match="num_warps is a power of two from 1 to 32"):
            add[(1,)](x, x, x, 4, BLOCK=4, num_warps=warps)
    with pytest.raises(TypeError, match="one to three sizes"):
        add[(1, 1, 1, 1)](x, x, x, 4, BLOCK=4)
    with pytest.raises(RuntimeError, match="launch it over a grid"):
        add(x, x, x, 4, BLOCK=4)
    with pytest.raises(RuntimeError, match="is for kernels"):
        kl.load(x)


@kiln.kernel
def wrong(x, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    kl.store(x + i, kl.arange(0, 2 * BLOCK))


def test_errors_say_where():
    with pytest.raises(kiln.KilnError, match="test_kernels.py") as e:
        wrong[(1,)](torch.zeros(8), BLOCK=8)
    assert "kl.arange(0, 2 * BLOCK)" in str(e.value) and "^" in str(e.value)


def test_a_function_without_source_is_refused_at_its_launch():
    names = {"kl": kl}
    exec("def f(x):\n    kl.store(x, 1)\n", names)
    kernel = kiln.kernel(names["f"])
    with pytest.raises(KernelUnsupported, match="define them in a file"):
        kernel[(1,)](torch.zeros(1))


def test_an_empty_tensor_stands_for_none_on_any_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    x, out = torch.ones(8, device="cuda"), torch.empty(8, device="cuda")
    with_optional[(1,)](torch.empty(0), x, out, 8, BLOCK=8)
    assert (out.cpu() == 1).all()
    with pytest.raises(TypeError, match="on another device"):
        with_optional[(1,)](torch.empty(1), x, out, 8, BLOCK=8)


@kiln.kernel
def with_optional(extra, x, out, n, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    kl.store(out + i, kl.load(x + i, mask=i < n) + kl.load(extra + i, mask=i < 0), mask=i < n)


@kiln.kernel
def halves(x, out, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(out + i, kl.load(x + i, mask=i < n).to(kl.float32), mask=i < n)
    kl.store(x + i, (kl.load(out + i, mask=i < n) * 1.0).to(kl.float16), mask=i < n)


def halves_there_and_back() -> None:
    """All numbers of 16 bits, and numbers between them."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    out, back = torch.empty(65536), x.clone()
    halves[(64,)](back, out, 65536, BLOCK=1024)
    assert torch.equal(out.isnan(), x.isnan()) and torch.equal(out[~x.isnan()], x[~x.isnan()].float())
    assert torch.equal(back[~x.isnan()].view(torch.int16), x[~x.isnan()].view(torch.int16)) and back[x.isnan()].isnan().all()
    between = torch.cat([x.float() * (1 + 2.0**-12), torch.rand(1000) * 2.0**-14, torch.tensor([65519.0, 65520.0, 1e9])])
    rounded = torch.empty(len(between), dtype=torch.float16)
    narrowed[(cdiv(len(between), 1024),)](between, rounded, len(between), BLOCK=1024)
    want = between.half()
    assert torch.equal(rounded[~want.isnan()], want[~want.isnan()])


@kiln.kernel
def narrowed(x, out, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(out + i, kl.load(x + i, mask=i < n).to(kl.float16), mask=i < n)


@pytest.mark.parametrize("level", ["portable", "avx2"])
def test_halves_on_processors_that_do_not_convert_them(level: str) -> None:
    halves_there_and_back()
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_kernels as t; t.halves_there_and_back()"
    environment = {**os.environ, "KILN_CPU": level, "KILN_CACHE": "off"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_element_types_have_the_members_of_triton() -> None:
    half, small = kl.float16, kl.int8
    assert half.is_fp16() and not half.is_fp32() and not half.is_int() and not half.is_ptr()
    assert (half.fp_mantissa_width, half.exponent_bias, kl.bfloat16.exponent_bias) == (10, 15, 127)
    assert (small.get_int_min_value(), small.get_int_max_value(), kl.uint16.get_int_max_value()) == (-128, 127, 65535)
    assert half.kind() == kl.dtype.KIND.FLOATING and kl.int1.kind() == kl.dtype.KIND.BOOLEAN
    assert small.int_signedness == kl.dtype.SIGNEDNESS.SIGNED and small.int_bitwidth == 8
    assert kl.pointer_type(kl.float32, const=True).is_const() and kl.bfloat16.codegen_name() == "bfloat16"
    assert not hasattr(half, "int_bitwidth") and not hasattr(small, "exponent_bias") and not hasattr(half, "is_odd")


@kiln.kernel
def writes_const(x: kl.const):
    kl.store(x, 0.0)


def test_const_pointers_are_not_written_through() -> None:
    with pytest.raises(KernelError, match="kl.store\\(x, 0.0\\)") as raised:
        writes_const[(1,)](torch.ones(1))
    assert "Cannot store to a constant pointer" in raised.value.error_message
