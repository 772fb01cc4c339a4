"""What a launch says of the kernel that ran, and `kiln kernel` for the same without a launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kiln
import kiln.testing
import kiln.language as kl


pytestmark = pytest.mark.native


@kiln.kernel
def rows(x, o, stride, n, BLOCK: kl.constexpr):
    offs = kl.program_id(0) * stride + kl.arange(0, BLOCK)
    m = kl.arange(0, BLOCK) < n
    kl.store(o + offs, kl.exp(kl.load(x + offs, mask=m)) + 0.0, mask=m)


@kiln.kernel
def product(a, b, o, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)[:, None] * BLOCK + kl.arange(0, BLOCK)[None, :]
    kl.store(o + i, kl.dot(kl.load(a + i), kl.load(b + i)))


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return str(request.param)


def launched(device: str) -> Any:
    x = torch.ones(64, 1000, device=device)
    return rows[(64,)](x, torch.empty_like(x), x.stride(0), 1000, BLOCK=1024)


def test_stages_are_texts(device: str) -> None:
    handle = launched(device)
    assert handle.block.startswith("kernel @rows(")
    assert "define" in handle.llvm
    assert (handle.ptx is None) == (device == "cpu")
    if device == "cpu":
        assert "ret" in str(handle.asm)
    else:
        assert ".entry rows" in handle.asm["ptx"]
    assert handle.asm["llir"] == handle.llvm
    with pytest.raises(KeyError, match="the stages are"):
        handle.asm["cubin"]


def test_passes_show_what_they_changed(device: str) -> None:
    passes = launched(device).passes()
    names = [p.name for p in passes]
    assert names[:3] == ["written", "relevant_facts", "wide_offsets"] and ("layout" in names) == (device == "cuda")
    assert passes["cse"].diff.count("\n-") > 0
    if device == "cpu":
        assert passes[-1].text == launched(device).block
    changed = [p for p in passes if p.diff]
    assert changed and all(line[:1] in " +-@" for p in changed for line in p.diff.splitlines())
    assert str(passes).startswith("== written\nkernel @rows(")


def test_facts_tell_the_time_and_how_dots_are_computed(device: str) -> None:
    facts = launched(device).facts
    # 64 rows of 1000 floats, read and written.
    assert facts.predicted["bytes"] == 2 * 64 * 1000 * 4
    assert facts["predicted"]["us"] > 0 and facts.predicted["bound"] in str(facts)
    ones = torch.ones(32, 32, device=device)
    handle = product[(1,)](ones, ones, torch.empty_like(ones), BLOCK=32)
    assert handle.facts.dots == ["f32 by tf32"] and "f32 by tf32" in str(handle.facts)
    with pytest.raises(AttributeError, match="no fact is named"):
        handle.facts.nothing
    if device == "cuda":
        assert facts.code["threads"] == 128 and handle.n_spills in (None, 0)


def test_a_page_has_everything(device: str) -> None:
    page = launched(device).html()
    assert page.startswith("<!doctype html>") and "<script" not in page and "http" not in page
    assert "Pass fold" in page and "predicted" in page and "kernel @rows(" in page


def test_ports_ask_the_machine_and_the_handle(device: str) -> None:
    import kiln.kernels as triton

    target = triton.runtime.driver.active.get_current_target()
    assert target.backend == ("cuda" if torch.cuda.is_available() else "cpu")
    sizes = triton.runtime.driver.active.utils.get_device_properties()
    assert sizes["multiprocessor_count"] > 0 and triton.tools.tensor_descriptor.TensorDescriptor
    assert triton.testing.do_bench is kiln.testing.do_bench
    handle = launched(device)
    handle._init_handles()
    assert handle.metadata.num_warps == 4 and handle.metadata.shared >= 0
    if device == "cuda":
        assert handle.n_regs > 0 and handle.n_spills == 0


def test_what_was_compiled_ahead_is_launched() -> None:
    x, o = torch.ones(4, 100), torch.zeros(4, 100)
    ahead = rows.warmup(x, o, 100, 100, BLOCK=128, num_warps=8, grid=(1,))
    ahead._init_handles()
    assert ahead.metadata.shared == 0 and ahead.metadata.num_warps == 8
    # With constants by place, as the warmup passed them by name, and without.
    again = ahead[(2,)](x, o, 100, 100, 128)
    assert again.metadata.num_warps == 8
    ahead[(4, 1, 1)](x, o, 100, 100)
    torch.testing.assert_close(o, x.exp())
