"""FlexAttention is compiled, whatever its score function and its mask say."""

from __future__ import annotations

import pytest
import torch
from agreement import agree
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]

B, H, S, D = 2, 4, 128, 16
SLOPES, DOCS = torch.rand(H), torch.arange(S) // 50
BIAS, LENGTHS = torch.randn(B, H, S, S), torch.tensor([100, 128])
TABLE = torch.randn(H, 2 * S)


def same(score, b, h, i, j):
    return score


def alibi(score, b, h, i, j):
    return score + SLOPES[h] * (j - i)


def bias(score, b, h, i, j):
    return score + BIAS[b, h, i, j]


def cap(score, b, h, i, j):
    return 20 * torch.tanh(score / 20)


def relative(score, b, h, i, j):
    return score + TABLE[h][i - j + S]


def two(score, b, h, i, j):
    return torch.where(h % 2 == 0, cap(score, b, h, i, j), score * SLOPES[h])


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i >= j) & (i - j < 30)


def documents(b, h, i, j):
    return (DOCS[i] == DOCS[j]) & causal(b, h, i, j)


def padded(b, h, i, j):
    return j < LENGTHS[b]


def prefix(b, h, i, j):
    return (j < 40) | (i >= j)


def never(b, h, i, j):
    """Query 7 of head 1 sees no key."""
    return (h != 1) | (i != 7)


def tensors(heads=H, queries=S, dtype=torch.float32):
    torch.manual_seed(5)
    return [torch.randn(B, h, n, D).to(dtype) for h, n in ((H, queries), (heads, S), (heads, S))]


@pytest.mark.parametrize("mask", [None, causal, window, documents, padded, prefix, never])
@pytest.mark.parametrize("score", [None, same, alibi, bias, cap, relative, two])
def test_score_functions_and_masks(score, mask):
    blocks = mask and create_block_mask(mask, B, H, S, S, device="cpu")

    def of(q, k, v):
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks)

    agree(of, *tensors(), calls=1)


def test_indices_that_count():
    x = torch.randn(4, 5, 6)
    i, j, one = torch.arange(3), torch.arange(5), torch.arange(1)
    whole = slice(None)
    for index in (i, (i[:, None], j), (j[:4], i[:, None]), (whole, i, one), (i, whole, i)):
        agree(lambda x, index=index: x[index], x, calls=1)
    agree(lambda x: x[torch.arange(4)[:, None], :, torch.arange(6)], x, calls=1)
    agree(lambda x: x[torch.arange(1), torch.arange(5)], x, calls=1)
    agree(lambda x: x[torch.arange(3), torch.arange(3)], x, calls=1)


def test_the_log_sum_exp():
    blocks = create_block_mask(never, None, H, S, S, device="cpu")

    def of(q, k, v):
        return flex_attention(q, k, v, block_mask=blocks, return_lse=True, scale=0.3)

    agree(of, *tensors(), calls=1)


def test_shared_heads_and_other_lengths():
    def of(q, k, v):
        return flex_attention(q, k, v, score_mod=alibi, enable_gqa=True)

    agree(of, *tensors(heads=2, queries=60), calls=1)


def test_a_module_with_learned_slopes():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slopes = torch.nn.Parameter(torch.rand(H))

        def forward(self, q, k, v):
            slopes = self.slopes.exp()

            def score(score, b, h, i, j):
                return score - slopes[h] * (i - j).abs()

            return flex_attention(q, k, v, score_mod=score)

    agree(Layer(), *tensors(), calls=1)
