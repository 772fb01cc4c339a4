"""Tensors of 2^31 elements and more: offsets and masks are meant over the integers, though `int32` is their type.

Of the 2 GiB only the pages are there that are written.
"""

from __future__ import annotations

import pytest
import torch

import kiln
import kiln.language as kl

pytestmark = pytest.mark.native

ROWS, PITCH = 33, 2**26
BLOCK = 64


@pytest.fixture(params=["cpu", "cuda"])
def large(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    try:
        x = torch.empty(2**31 + BLOCK, dtype=torch.uint8, device=request.param)
    except RuntimeError as error:
        pytest.skip(f"needs 2 GiB of memory: {error}")
    for row in range(ROWS):
        x[row * PITCH : row * PITCH + BLOCK] = 0
    return x


@kiln.kernel
def mark(x, n, PITCH: kl.constexpr, BLOCK: kl.constexpr):
    i = kl.program_id(0) * PITCH + kl.arange(0, BLOCK)
    kl.store(x + i, kl.program_id(0) + 1, mask=i < n)


@kiln.kernel
def mark_rows(x, rows, pitch, columns, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    for row in range(kl.program_id(0), rows, kl.num_programs(0)):
        kl.store(x + (row * pitch + i), row + 1, mask=i < columns)


@kiln.kernel
def mark_by_pointers(x, rows, pitch, columns, BLOCK: kl.constexpr):
    i = kl.arange(0, BLOCK)
    start = 0
    for row in range(rows):
        kl.store(x + start + i, row + 1, mask=i < columns)
        start += pitch


@kiln.kernel
def mark_described(x, rows, pitch, columns, BLOCK: kl.constexpr):
    array = kl.make_tensor_descriptor(x, [rows * pitch], [1], [BLOCK])
    row = kl.program_id(0)
    array.store([row * pitch], (kl.zeros((BLOCK,), kl.int32) + row + 1).to(kl.uint8))


def rows_of(x, width=BLOCK):
    return torch.stack([x[row * PITCH : row * PITCH + width] for row in range(ROWS)]).cpu()


def numbers(width=BLOCK):
    return torch.arange(1, ROWS + 1, dtype=torch.uint8)[:, None].expand(ROWS, width)


def test_products_exceed_32_bits(large):
    mark[(ROWS,)](large, large.numel(), PITCH=PITCH, BLOCK=BLOCK)
    assert torch.equal(rows_of(large), numbers())


def test_masks_exceed_32_bits(large):
    launched = mark[(ROWS + 40,)](large, large.numel() - 8, PITCH=PITCH, BLOCK=BLOCK)
    want = numbers().clone()
    want[-1, -8:] = 0
    assert torch.equal(rows_of(large), want)
    assert "i64" in launched.block


@pytest.mark.parametrize("kernel", [mark_rows, mark_by_pointers, mark_described])
def test_rows_of_a_pitch_of_the_launch(large, kernel):
    columns = BLOCK if kernel is mark_described else 50
    grid = ROWS if kernel is mark_described else 1 if kernel is mark_by_pointers else 4
    kernel[(grid,)](large, ROWS, PITCH, columns, BLOCK=BLOCK)
    assert torch.equal(rows_of(large, columns), numbers(columns))


def test_smaller_tensors_have_offsets_of_32_bits():
    x = torch.zeros(2 * BLOCK, dtype=torch.uint8)
    launched = mark[(2,)](x, x.numel(), PITCH=BLOCK, BLOCK=BLOCK)
    assert "i64" not in launched.block and "span32" in launched.block


def test_strides_say_how_far_a_tensor_reaches(large):
    view = large[::PITCH]
    assert view.numel() == ROWS
    launched = mark[(ROWS,)](view, large.numel(), PITCH=PITCH, BLOCK=BLOCK)
    assert "i64" in launched.block
    assert torch.equal(rows_of(large), numbers())
