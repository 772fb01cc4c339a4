"""How often a kernel is compiled, and by whom: sizes that differ in what code makes no use of share a variant, and only
the first of some types is compiled by the launch."""

from __future__ import annotations

import time

import pytest
import torch

import kiln
import kiln.language as kl

pytestmark = pytest.mark.native


def counted(kernel):
    """A fresh kernel of the same source, and how often a launch asked for its source to compile it."""
    fresh = kiln.kernel(kernel.fn)
    described = []
    describe = fresh._describe
    fresh._describe = lambda constants: described.append(1) or describe(constants)
    return fresh, described


@kiln.kernel
def scaled_rows(x, out, rows, columns, stride, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    mask = i < columns
    for row in range(kl.program_id(0), rows, kl.num_programs(0)):
        v = kl.load(x + row * stride + i, mask=mask) / rows
        kl.store(out + row * stride + i, v, mask=mask)


def run(kernel, rows, columns=48):
    x = torch.randn(rows, columns)
    out = torch.empty_like(x)
    launched = kernel[(2,)](x, out, rows, columns, x.stride(0), BLOCK=64)
    torch.testing.assert_close(out, x / rows)
    return launched.block


def test_another_number_of_rows_compiles_nothing():
    kernel, compiled = counted(scaled_rows)
    assert len({run(kernel, rows) for rows in (5, 6, 16, 17, 32)}) == 1
    assert len({run(kernel, rows) for rows in (1, 16, 17)}) <= 3
    assert len(compiled) == 1


def test_a_stride_that_16_divides_gets_a_variant_soon():
    kernel, compiled = counted(scaled_rows)
    first = run(kernel, 5, 50)
    assert "div 16" not in first
    # What no fact is known of runs wherever facts are.
    assert run(kernel, 5, 48) == first
    until = time.monotonic() + 60
    while (special := run(kernel, 5, 48)) == first and time.monotonic() < until:
        time.sleep(0.01)
    assert "div 16" in special
    assert run(kernel, 5, 64) == special
    assert run(kernel, 5, 42) == first
    assert len(compiled) == 1


def test_warmup_gives_the_variant_for_all_facts():
    kernel, compiled = counted(scaled_rows)
    first = run(kernel, 5, 50)
    x, out = torch.randn(5, 48), torch.empty(5, 48)
    for columns, divisor in [(48, "div 16"), (40, "div 8"), (44, "div 4")]:
        warm = kernel[(2,)](x, out, 5, columns, columns, BLOCK=64, warmup=True).block
        assert divisor in warm and warm != first
        assert run(kernel, 5, columns) == warm
    assert len(compiled) == 1


@kiln.kernel
def added(x, y, out, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(out + i, kl.load(x + i, mask=i < n) + kl.load(y + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("sizes", [(1, 16, 17), (17, 16, 1), (16, 1, 17), (1000, 2000, 3000, 1)])
def test_sizes_of_vectors(sizes):
    kernel, compiled = counted(added)
    programs = set()
    for n in sizes:
        x, y = torch.randn(n), torch.randn(n)
        out = torch.empty(n)
        programs.add(kernel[(kiln.kernels.cdiv(n, 64),)](x, y, out, n, BLOCK=64).block)
        torch.testing.assert_close(out, x + y)
    assert len(programs) <= 3 and len(compiled) == 1


@kiln.kernel
def first_of(values, out, at, unused):
    kl.store(out, kl.load(values + at) * 2)


def test_the_alignment_of_single_elements_does_not_matter():
    kernel, compiled = counted(first_of)
    memory = torch.arange(64.0)
    for start in range(4):
        out = torch.zeros(5)
        kernel[(1,)](memory[start:], out[start:], 3, 16 + start)
        assert out[start] == 2 * (start + 3)
    assert len(compiled) == 1
