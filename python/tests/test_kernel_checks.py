"""Kernels by the interpreter: the same results, and checks that find seeded mistakes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kiln
import kiln.kernels
import kiln.language as kl
from kiln.kernels import CheckFailed
from kiln.kernels.interpret import fill_new_memory, leave_new_memory

pytestmark = pytest.mark.native

N = 200


@pytest.fixture(autouse=True)
def new_memory(fresh: None) -> Iterator[None]:
    fill_new_memory()
    yield
    leave_new_memory()


def found(launch: Any) -> list[kiln.kernels.Finding]:
    with pytest.raises(CheckFailed) as raised:
        launch()
    return raised.value.findings


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().split("\n")
    return 1 + next(i for i, line in enumerate(lines) if text in line and "line_of" not in line)


@kiln.kernel(interpret=True)
def double(x, o, n, BLOCK: kl.constexpr):
    offs = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    m = offs < n
    kl.store(o + offs, kl.load(x + offs, mask=m) * 2, mask=m)


def test_results_are_those_of_compiled_kernels() -> None:
    x, o = torch.randn(N), torch.empty(N)
    double[(2,)](x, o, N, BLOCK=128)
    assert torch.equal(o, 2 * x)
    # Views of one tensor, in place.
    both = torch.arange(10.0)
    double[(1,)](both[2:7], both[2:7], 5, BLOCK=8)
    assert both.tolist() == [0, 1, 4, 6, 8, 10, 12, 7, 8, 9]


@kiln.kernel(interpret=True)
def no_mask(x, o, n, BLOCK: kl.constexpr):
    offs = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    x = kl.load(x + offs)  # missing mask
    kl.store(o + offs, x, mask=offs < n)


def test_a_missing_mask_is_proven_before_the_run(recwarn: pytest.WarningsRecorder) -> None:
    compiled = kiln.kernels.jit(no_mask.fn)
    x = torch.ones(N)
    compiled[(1,)](x, torch.zeros(N), N, BLOCK=64)
    assert not [w for w in recwarn if w.category is kiln.kernels.KernelWarning]
    with pytest.warns(kiln.kernels.KernelWarning, match="`x` is read at element 255, and has 200") as told:
        # The memory is there: the tensor is a part of a larger one.
        compiled[(2,)](torch.ones(512)[:N], torch.zeros(N), N, BLOCK=128)
    assert "# missing mask" in str(told[0].message)


def test_a_missing_mask() -> None:
    [only] = found(lambda: no_mask[(2,)](torch.ones(N), torch.zeros(N), N, BLOCK=128))
    assert (only.kind, only.tensor, only.instance) == ("missing_mask", "x", (1, 0, 0))
    assert only.place == (__file__, line_of("# missing mask"))
    assert "element 200" in only.message and "mask=" in only.message


@kiln.kernel(interpret=True)
def wide_mask(x, o, n, BLOCK: kl.constexpr):
    offs = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(o + offs, kl.load(x + offs, mask=offs < n), mask=offs <= n)  # wide mask


def test_a_mask_that_lets_too_much_through() -> None:
    [only] = found(lambda: wide_mask[(2,)](torch.ones(N), torch.zeros(N), N, BLOCK=128))
    assert (only.kind, only.tensor) == ("out_of_bounds", "o")
    assert only.place == (__file__, line_of("# wide mask"))


@kiln.kernel(interpret=True)
def before_start(x, o):
    kl.store(o, kl.load(x - 1))


def test_an_access_before_the_start() -> None:
    [only] = found(lambda: before_start[(1,)](torch.ones(4), torch.zeros(1)))
    assert only.kind == "missing_mask" and "element -1" in only.message


@kiln.kernel(interpret=True)
def total(x, o, BLOCK: kl.constexpr):
    offs = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    s = kl.load(o)  # read of the sum
    kl.store(o, s + kl.sum(kl.load(x + offs)))  # write of the sum


def test_a_race_between_instances() -> None:
    kinds = found(lambda: total[(4,)](torch.ones(64), torch.zeros(1), BLOCK=16))
    assert {f.kind for f in kinds} == {"race"}
    lines = {line_of("# read of the sum"), line_of("# write of the sum")}
    assert {f.place[1] for f in kinds if f.place} <= lines
    assert all(f.other and f.other[1] in lines for f in kinds)


@kiln.kernel(interpret=True)
def total_by_atomics(x, o, BLOCK: kl.constexpr):
    offs = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.atomic_add(o, kl.sum(kl.load(x + offs)))


@kiln.kernel(interpret=True)
def total_by_a_lock(x, o, lock, BLOCK: kl.constexpr):
    offs = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    s = kl.sum(kl.load(x + offs))
    while kl.atomic_cas(lock, 0, 1) == 1:
        pass
    kl.store(o, kl.load(o) + s)
    kl.atomic_xchg(lock, 0)


def test_atomics_and_locks_do_not_race() -> None:
    o = torch.zeros(1)
    total_by_atomics[(4,)](torch.ones(64), o, BLOCK=16)
    total_by_a_lock[(4,)](torch.ones(64), o, torch.zeros(1, dtype=torch.int32), BLOCK=16)
    assert o.item() == 128


@kiln.kernel(interpret=True)
def scatter(index, o, BLOCK: kl.constexpr):
    offs = kl.arange(0, BLOCK)
    kl.store(o + kl.load(index + offs), offs)


def test_two_values_for_one_element() -> None:
    index = torch.tensor([0, 1, 1, 2])
    [only] = found(lambda: scatter[(1,)](index, torch.zeros(4, dtype=torch.int32), BLOCK=4))
    assert (only.kind, only.tensor) == ("conflict", "o") and "element 1" in only.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8])
def test_a_read_of_what_nothing_has_written(dtype: torch.dtype) -> None:
    x = torch.empty(8, dtype=dtype)
    found_now = found(lambda: double[(1,)](x, torch.empty_like(x), 8, BLOCK=8))
    assert [(f.kind, f.tensor) for f in found_now] == [("uninitialised", "x")]
    # Torch has written it now.
    x.fill_(3)
    double[(1,)](x, torch.empty_like(x), 8, BLOCK=8)


@kiln.kernel(interpret=True)
def far(x, o, stride):
    row = kl.program_id(0) * 65536
    kl.store(o + kl.program_id(0), kl.load(x + row * stride))  # overflow


def test_an_offset_that_overflows() -> None:
    """65536 * 65536 is 0 in 32 bits, an element that exists."""
    [only] = found(lambda: far[(2,)](torch.ones(4), torch.zeros(2), 65536))
    assert (only.kind, only.tensor) == ("overflow", "x")
    assert "4294967296" in only.message and "int64" in only.message


@kiln.kernel(interpret=True)
def hashed(x, o, BLOCK: kl.constexpr):
    offs = kl.arange(0, BLOCK)
    kl.store(o + offs, kl.load(x + (offs.to(kl.uint32) * 2654435761) % BLOCK))


def test_a_hash_wraps_on_purpose() -> None:
    hashed[(1,)](torch.ones(16), torch.zeros(16), BLOCK=16)


@kiln.kernel(interpret=True)
def asserting(x, BLOCK: kl.constexpr):
    v = kl.load(x + kl.arange(0, BLOCK))
    kl.device_assert(v > 0, "x is positive")


def test_assertions_are_checked() -> None:
    [only] = found(lambda: asserting[(1,)](torch.tensor([1.0, 2.0, -1.0, 3.0]), BLOCK=4))
    assert only.kind == "assertion" and "x is positive" in only.message and "element 2" in only.message
    asserting[(1,)](torch.ones(4), BLOCK=4)


@kiln.kernel(interpret=True)
def printing(x, n, BLOCK: kl.constexpr):
    v = kl.load(x + kl.arange(0, BLOCK))
    kl.device_print("v", v)
    print("n is", n)


def test_printing_shows_values(capsys: pytest.CaptureFixture[str]) -> None:
    printing[(2,)](torch.tensor([1.0, 2.0]), 7, BLOCK=2)
    out = capsys.readouterr().out
    assert out.count("v tensor([1., 2.])") == 2 and "(1, 0, 0) n is 7" in out


@kiln.kernel(interpret=True)
def stopping(x, n, BLOCK: kl.constexpr):
    v = kl.load(x + kl.arange(0, BLOCK))
    s = kl.sum(v)
    breakpoint()
    kl.store(x, s)


def test_breakpoints_have_the_kernels_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def hook() -> None:
        frame = sys._getframe(1)
        seen.append((frame.f_lineno, dict(frame.f_locals)))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    stopping[(1,)](torch.tensor([1.0, 2.0]), 5, BLOCK=2)
    [(line, variables)] = seen
    assert line == line_of("    breakpoint()")
    assert variables["v"].tolist() == [1, 2] and variables["s"] == 3.0 and variables["n"] == 5
    assert variables["instance"] == (0, 0, 0)


def test_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_new_memory()
    monkeypatch.setenv("KILN_INTERPRET", "1")
    kernel = kiln.kernels.jit(no_mask.fn)
    assert torch.empty(4).isnan().all()
    assert kernel.interpret and found(lambda: kernel[(2,)](torch.ones(N), torch.zeros(N), N, BLOCK=128))
    monkeypatch.setenv("KILN_INTERPRET", "0")
    assert not kiln.kernels.jit(no_mask.fn).interpret


@kiln.kernel
def reporting(x, n, BLOCK: kl.constexpr):
    v = kl.load(x + kl.arange(0, BLOCK))
    kl.device_print("v", v)
    kl.device_print("n 100%", n)
    kl.device_assert(v > 0, "x is positive")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_compiled_kernels_print_elements(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    x = torch.tensor([1.5, -2.0, 3.0, 4.0], device=device)
    reporting[(2,)](x, 7, BLOCK=4)
    if device == "cuda":
        torch.cuda.synchronize()
    lines = capfd.readouterr().out.splitlines()
    values = {line.split(" v ")[0]: float(line.split(" v ")[1]) for line in lines if " v " in line}
    assert len(values) == 8 and values["pid (1, 0, 0) idx (1)"] == -2.0
    assert sum(line.endswith("idx () n 100% 7") for line in lines) == 2


def test_compiled_kernels_check_assertions_in_debug_mode() -> None:
    reporting[(1,)](torch.tensor([1.0, -1.0]), 7, BLOCK=2)
    with pytest.raises(kiln.KilnError, match=r"x is positive .*element \(1\) of instance \(0, 0, 0\)"):
        reporting[(1,)](torch.tensor([1.0, -1.0]), 7, BLOCK=2, debug=True)
    reporting[(1,)](torch.tensor([1.0, 1.0]), 7, BLOCK=2, debug=True)


def test_assertions_on_a_gpu_end_the_process_s_context() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    code = (
        "import torch, importlib.util as u; s = u.spec_from_file_location('t', {!r}); m = u.module_from_spec(s);"
        "s.loader.exec_module(m); m.reporting[(1,)](torch.tensor([1.0, -1.0]).cuda(), 7, BLOCK=2, debug=True);"
        "torch.cuda.synchronize()"
    ).format(__file__)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode != 0 and "x is positive" in ended.stdout + ended.stderr


def test_pads_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    printing[(1,)](torch.tensor([1.0, 2.0, 3.0]), 7, BLOCK=3)
    assert "v tensor([1., 2., 3.])" in capfd.readouterr().out
    reporting[(1,)](torch.tensor([1.0, 2.0, 3.0]), 7, BLOCK=3, debug=True)
    assert sum(" v " in line for line in capfd.readouterr().out.splitlines()) == 3


@kiln.kernel(interpret=True)
def windows(x: kl.Array, d, o):
    block = x[0:4, 0:4] + d.load([0, 0])
    kl.store(o + kl.arange(0, 4)[:, None] * 4 + kl.arange(0, 4)[None, :], block)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_arrays_and_descriptors_are_interpreted(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    x = torch.arange(9.0, device=device).reshape(3, 3)
    wide = torch.ones(4, 4, device=device)
    o = torch.empty(4, 4, device=device)
    windows[(1,)](x, kiln.kernels.TensorDescriptor.from_tensor(wide, [4, 4]), o)
    assert torch.equal(o[:3, :3], x + 1) and (o[3] == 1).all()


def test_new_memory_is_filled_where_it_is_plain() -> None:
    assert torch.empty(4).isnan().all() and torch.ones(2).new_empty(3).isnan().all()
    with torch.device("meta"):
        assert torch.empty(3).device.type == "meta"
    with FakeTensorMode():
        assert torch.empty(3).shape == (3,)
    leave_new_memory()
    assert not hasattr(torch.empty, "__wrapped__") and not hasattr(torch.Tensor.new_empty, "__wrapped__")


@kiln.kernel(interpret=True)
def odd(x, o):
    offs = kl.program_id(0) * 24 + kl.arange(0, 24)
    kl.store(o + offs, kl.load(x + offs))  # 24 elements


def test_an_access_of_an_odd_block_has_no_mask() -> None:
    assert found(lambda: odd[(2,)](torch.ones(40), torch.empty(48)))[0].kind == "missing_mask"
    odd[(2,)](torch.ones(48), torch.empty(48))


@kiln.kernel(interpret=True)
def from_table(table, n, BLOCK: kl.constexpr):
    at = kl.load(table + kl.program_id(0)).to(kl.pointer_type(kl.float32))
    offs = kl.arange(0, BLOCK)
    kl.store(at + offs, kl.load(at + offs, mask=offs < n) + 1.0, mask=offs < n)


@kiln.kernel(interpret=True)
def from_table_of(table, a, b, same, n, BLOCK: kl.constexpr):
    from_table(table, n, BLOCK)
    pid = kl.program_id(0)
    kl.store(same + pid, kl.where(pid == 0, a.to(kl.int64), b.to(kl.int64)) == kl.load(table + pid))


def test_tables_of_pointers_are_followed() -> None:
    a, b, same = torch.zeros(8), torch.zeros(8), torch.zeros(2, dtype=torch.bool)
    table = torch.tensor([a.data_ptr(), b.data_ptr()])
    from_table_of[(2,)](table, a, b, same, 8, BLOCK=8)
    assert (a == 1).all() and (b == 1).all() and same.all()
    finding = found(lambda: from_table_of[(1,)](table, a, b, same, 9, BLOCK=16))[0]
    assert (finding.kind, finding.tensor) == ("out_of_bounds", "a")
    # Memory that the launch does not have.
    finding = found(lambda: from_table[(1,)](table, 8, BLOCK=8))[0]
    assert finding.tensor is None and "memory of no tensor of the launch" in finding.message


@kiln.kernel(interpret=True)
def promising(x, n, stride):
    kl.assume(n % 4 == 0)  # a promise
    kl.store(x + kl.multiple_of(stride, 8), n)  # another one


def test_promises_that_do_not_hold_are_found() -> None:
    x = torch.zeros(32, dtype=torch.int32)
    promising[(1,)](x, 8, 16)
    assert x[16] == 8
    assert "assume promises this" in found(lambda: promising[(1,)](x, 6, 16))[0].message
    assert "multiples of 8" in found(lambda: promising[(1,)](x, 8, 12))[0].message


@kiln.kernel
def by_assembly(x, o, TEXT: kl.constexpr, CONSTRAINTS: kl.constexpr):
    offs = kl.arange(0, 64)
    y = kl.inline_asm_elementwise(TEXT, CONSTRAINTS, [kl.load(x + offs)], dtype=kl.float32, is_pure=True, pack=1)
    kl.store(o + offs, y)


@pytest.mark.parametrize("interpret", [False, True])
def test_plain_assembly_runs_on_processors(interpret: bool) -> None:
    kernel = kiln.kernels.jit(by_assembly.fn, interpret=interpret)
    x, o = torch.linspace(-3, 3, 64), torch.empty(64)
    for text, right in (
        ("tanh.approx.f32 $0, $1;", torch.tanh),
        ("{ mul.ftz.f32 $0, $1, 0f40000000; ex2.approx.ftz.f32 $0, $0; }", lambda x: torch.exp2(2 * x)),
    ):
        kernel[(1,)](x, o, text, "=f,f")
        torch.testing.assert_close(o, right(x), rtol=1e-3, atol=1e-5)
    with pytest.raises(kiln.kernels.KernelUnsupported, match="vote.sync.all.pred.*is for GPUs") as raised:
        kernel[(1,)](x, o, "vote.sync.all.pred $0, $1, -1;", "=f,f")
    assert "inline_asm_elementwise(TEXT" in str(raised.value)
