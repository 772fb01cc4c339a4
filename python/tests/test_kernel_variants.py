"""How often a kernel is compiled: sizes that differ in what code makes no use of share a variant."""

from __future__ import annotations

import pytest
import torch

import kiln
import kiln.language as kl

pytestmark = pytest.mark.native


def counted(kernel):
    """A fresh kernel of the same source, with the number of its compilations."""
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
    kernel[(2,)](x, out, rows, columns, x.stride(0), BLOCK=64)
    torch.testing.assert_close(out, x / rows)


def test_another_number_of_rows_compiles_nothing():
    kernel, compiled = counted(scaled_rows)
    for rows in (5, 6, 16, 17, 32):
        run(kernel, rows)
    assert len(compiled) == 1
    run(kernel, 1)
    assert len(compiled) == 2


def test_strides_that_16_divides_have_a_variant():
    kernel, compiled = counted(scaled_rows)
    for columns in (48, 50, 64, 42):
        run(kernel, 5, columns)
    assert len(compiled) == 2


@kiln.kernel
def added(x, y, out, n, BLOCK: kl.constexpr):
    i = kl.program_id(0) * BLOCK + kl.arange(0, BLOCK)
    kl.store(out + i, kl.load(x + i, mask=i < n) + kl.load(y + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("sizes", [(1, 16, 17), (17, 16, 1), (1000, 2000, 3000, 1)])
def test_sizes_of_vectors(sizes):
    kernel, compiled = counted(added)
    for n in sizes:
        x, y = torch.randn(n), torch.randn(n)
        out = torch.empty(n)
        kernel[(kiln.kernels.cdiv(n, 64),)](x, y, out, n, BLOCK=64)
        torch.testing.assert_close(out, x + y)
    assert len(compiled) <= 2


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
