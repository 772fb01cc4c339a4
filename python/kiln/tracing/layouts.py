"""The order in memory of results that torch's functions for the device `meta` do not tell.

A convolution of two dimensions keeps the channels last where its input or its weight has them so
(`suggest_memory_format` in ATen's Convolution.cpp: cuDNN, MKL-DNN and ATen's kernels of the CPU).
A recurrent layer computes step by step, and with the batch first its steps are first in memory. A
test compares with torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

#: Their input and weight are the first two operands.
_CONVOLUTIONS = frozenset(
    {
        "aten::conv1d",
        "aten::conv2d",
        "aten::conv3d",
        "aten::conv_transpose1d",
        "aten::conv_transpose2d",
        "aten::conv_transpose3d",
        "aten::convolution",
        "aten::_convolution",
    }
)
_RECURRENT = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})

#: Operators whose results are asked for here.
KNOWN = _CONVOLUTIONS | _RECURRENT


def result(name: str, row_major: Any, operands: Sequence[Any], device: torch.device) -> Any:
    """The result of an operator with the strides that it has on the device; None if they are not
    known.

    `row_major`: the result as a row-major tensor.

    >>> meta, last = torch.device("meta"), torch.channels_last
    >>> x, w = torch.empty(1, 3, 5, 5, device=meta), torch.empty(8, 3, 3, 3, device=meta)
    >>> y = torch.empty(1, 8, 3, 3, device=meta)
    >>> result("aten::conv2d", y, (x.to(memory_format=last), w), torch.device("cpu")).stride()
    (72, 1, 24, 8)
    """
    if name in _CONVOLUTIONS:
        return _convolution(row_major, operands[0], operands[1], device)
    output, *states = row_major
    # With the states of packed sequences come other operands.
    if len(operands) != 9 or type(operands[-1]) is not bool:
        return None
    if operands[-1]:
        steps = torch.empty_like(output.transpose(0, 1), memory_format=torch.contiguous_format)
        output = steps.transpose(0, 1)
    return (output, *states)


def _convolution(
    row_major: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, device: torch.device
) -> torch.Tensor | None:
    formats = {suggest_memory_format(x), suggest_memory_format(weight)}
    if formats == {torch.contiguous_format}:
        return row_major if x.is_contiguous() or x.dim() == 4 else None
    if x.dim() != 4:
        return None
    if device.type == "cuda" and x.dtype is torch.float64:
        return row_major
    return row_major.to(memory_format=torch.channels_last)
