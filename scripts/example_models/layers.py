"""Layers that PyTorch runs as one operator in evaluation mode, with every kind of mask; and recurrent cells with in-place updates."""

import torch
from torch import nn

from .registry import example
from .small import module


@example("gru_cell")
def gru_cell():
    return nn.GRUCell(6, 5), (torch.randn(3, 6), torch.randn(3, 5))


@example("lstm_cell")
def lstm_cell():
    return nn.LSTMCell(6, 5), (torch.randn(3, 6), (torch.randn(3, 5), torch.randn(3, 5)))


def encoder(masks, **options):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor="nested" in masks)

        def forward(self, x, *given):
            named = dict(zip((m for m in masks if m != "nested"), given))
            return self.encoder(x, **named)

    return Encoder()


def causal(n):
    return torch.triu(torch.ones(n, n, dtype=torch.bool), 1)


def padding(*lengths):
    return torch.arange(max(lengths))[None] >= torch.tensor(lengths)[:, None]


example("encoder_mask")(lambda: (encoder(["mask"]), (torch.randn(2, 7, 16), causal(7))))
example("encoder_float_mask")(lambda: (encoder(["mask"], activation="gelu"), (torch.randn(2, 7, 16), nn.Transformer.generate_square_subsequent_mask(7))))
example("encoder_padding")(lambda: (encoder(["src_key_padding_mask"], norm_first=True), (torch.randn(2, 7, 16), padding(7, 4))))
example("encoder_both")(lambda: (encoder(["mask", "src_key_padding_mask"]), (torch.randn(2, 7, 16), causal(7), padding(7, 4))))
example("encoder_blind")(lambda: (encoder(["src_key_padding_mask"]), (torch.randn(2, 7, 16), padding(7, 0))))
example("encoder_nested")(lambda: (encoder(["nested", "src_key_padding_mask"]), (torch.randn(2, 7, 16), padding(7, 4))))


@example("multi_head")
def multi_head():
    class MultiHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x, mask, pad, bias):
            def each(**options):
                yield self.attention(x, x, x, need_weights=False, **options)[0]
                yield from self.attention(x, x, x, **options)
                yield from self.attention(x, x, x, average_attn_weights=False, **options)

            both = [mask.expand(2, 4, -1, -1).reshape(8, 6, 6), pad]
            masks = [{}, {"attn_mask": mask}, {"key_padding_mask": pad}, {"attn_mask": mask, "key_padding_mask": pad}, {"attn_mask": bias}, {"attn_mask": both[0], "key_padding_mask": pad}]
            return tuple(t for m in masks for t in each(**m))

    return MultiHead(), (torch.randn(2, 6, 16), causal(6), padding(6, 4), torch.zeros(6, 6).masked_fill(causal(6), -2.0))


@example("multi_head_parts")
def multi_head_parts():
    a = nn.MultiheadAttention(16, 4, batch_first=True)
    weights = [p.detach() for p in (a.in_proj_weight, a.in_proj_bias, a.out_proj.weight, a.out_proj.bias)]

    def f(q, k, v, mask):
        call = torch._native_multi_head_attention
        return (call(q, k, k, 16, 4, *weights, None, False, True, None)[0], *call(q, k, v, 16, 4, *weights, mask, True, True, 0))

    return module(f, torch.randn(2, 5, 16), torch.randn(2, 5, 16), torch.randn(2, 5, 16), causal(5))
