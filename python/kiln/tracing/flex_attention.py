"""FlexAttention with the operators that it stands for.

Dynamo calls a higher-order operator with the score function and the mask as graphs of numbers.
They are mapped over all scores here, so that Kiln sees attention as programs write it: the mask is
made of positions, and what its block sparsity says is found again from them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx

#: Positions of the score function and of the mask among the arguments of a call.
SCORES, MASK = 3, 4


def expanded(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with calls of `attention` in place of the operator."""
    operator = getattr(torch.ops.higher_order, "flex_attention", None)
    if operator is None or not any(node.target is operator for node in gm.graph.nodes):
        return gm
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        if node.target is operator:
            node.target = attention
            # Of a mask of blocks only its function is read.
            *blocks, mask = node.args[MASK]
            node.update_arg(MASK, (*(None for _ in blocks), mask))
    changed = fx.GraphModule(gm, graph)
    changed.meta = gm.meta
    return changed


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Any = None,
    score_mod_other_buffers: Sequence[Tensor] = (),
    mask_mod_other_buffers: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """The result of FlexAttention; the log-sum-exp and the maximal score of each query, both
    divided by the logarithm of 2."""
    batch, heads = query.shape[:2]
    key, value = (_repeated(x, batch, heads) for x in (key, value))
    scores = (query @ key.transpose(-2, -1)).to(_wide(query.dtype)) * scale
    places = [torch.arange(n, device=query.device, dtype=torch.int32) for n in scores.shape]
    with _numbers_index():
        keep = _over(block_mask[-1], len(mask_mod_other_buffers))(*places, *mask_mod_other_buffers)
        scores = _over(score_mod, len(score_mod_other_buffers), 1)(
            scores, *places, *score_mod_other_buffers
        )
    scores = torch.where(keep, scores, -math.inf)
    weights = torch._safe_softmax(scores, dim=-1).to(query.dtype)
    sums, most = scores.logsumexp(-1), scores.amax(-1)
    return weights @ value, sums / math.log(2), most / math.log(2)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _repeated(x: Tensor, batch: int, heads: int) -> Tensor:
    """Keys or values repeated for the heads and the batch of the queries."""
    key_heads = x.shape[1]
    if key_heads != heads:
        repeated = x[:, :, None].expand(-1, -1, heads // key_heads, -1, -1)
        x = repeated.reshape(x.shape[0], heads, *x.shape[2:])
    return x if x.shape[0] == batch else x.expand(batch, -1, -1, -1)


def _over(function: Callable[..., Tensor], others: int, scores: int = 0) -> Callable[..., Tensor]:
    """The function mapped over batches, heads, queries and keys.

    `scores`: 1 if its first argument is a score. `others`: how many more tensors it takes whole.
    """
    for axis in reversed(range(4)):
        places = [0 if i == axis else None for i in range(4)]
        function = torch.vmap(function, (*[0] * scores, *places, *[None] * others))
    return function


def _numbers_index() -> AbstractContextManager[Any]:
    """Context manager in which tensors may be indexed by mapped numbers. It is private to torch."""
    try:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()
    except ImportError:
        return contextlib.nullcontext()
