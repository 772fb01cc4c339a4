"""Models whose attention is a part of the time, with random weights: configurations of transformers and torchvision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def library(device: str) -> dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]]:
    """Models with random weights and their inputs, by name; of two layers and short texts on a CPU."""
    import transformers as t
    from torchvision import models as vision

    small = device == "cpu"
    layers = lambda n: 2 if small else n  # noqa: E731
    ids = lambda b, s: (torch.randint(0, 30000, (b, max(8, s // 32) if small else s)),)  # noqa: E731
    image = lambda b: (torch.randn(1 if small else b, 3, 224, 224),)  # noqa: E731
    gpt2 = lambda: t.GPT2Model(t.GPT2Config(n_layer=layers(12), use_cache=False))  # noqa: E731
    bert = lambda: t.BertModel(t.BertConfig(num_hidden_layers=layers(12)))  # noqa: E731
    llama = lambda: t.LlamaModel(  # noqa: E731
        t.LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers(4), num_attention_heads=32,
            num_key_value_heads=8, head_dim=64, max_position_embeddings=16384, rope_theta=500000.0, use_cache=False,
        )
    )  # fmt: skip
    found = {}
    texts = {"GPT-2": (gpt2, [(1, 128), (8, 1024)]), "BERT": (bert, [(1, 128), (32, 512)]), "Llama": (llama, [(1, 128), (4, 2048)])}
    for name, (build, sizes) in texts.items():
        for b, s in sizes:
            found[f"{name} b{b} s{s}"] = lambda build=build, b=b, s=s: (build(), ids(b, s))
    for name, make, batches in (("ViT-B/16", vision.vit_b_16, (1, 64)), ("Swin-T", vision.swin_t, (64,))):
        for b in batches:
            found[f"{name} b{b}"] = lambda make=make, b=b: (make(), image(b))
    return found
