"""Models whose attention is a part of the time, with random weights: configurations of transformers and torchvision, and a U-Net of the shape
of Stable Diffusion's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Called(nn.Module):
    """A model called with tensors by these names, and one of its results."""

    def __init__(self, model: nn.Module, names: list[str], result: str, **more: object) -> None:
        super().__init__()
        self.model, self.names, self.result, self.more = model, names, result, more

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(**dict(zip(self.names, args, strict=True)), **self.more), self.result)


class Residual(nn.Module):
    def __init__(self, into: int, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, into), nn.SiLU(), nn.Conv2d(into, width, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.skip = nn.Conv2d(into, width, 1) if into != width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.skip(x) + self.second(self.first(x))


class Attends(nn.Module):
    def __init__(self, width: int, context: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(n, width, bias=False) for n in (width, context, context))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # noqa: E731
        y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(context)), split(self.v(context)))
        return self.out(y.transpose(1, 2).flatten(2))


class Mixes(nn.Module):
    """Self-attention over an image's points, attention to a text, and a gated linear unit."""

    def __init__(self, width: int, context: int = 768) -> None:
        super().__init__()
        self.norm, self.norms = nn.GroupNorm(32, width), nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = Attends(width, width), Attends(width, context)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        z = self.norms[0](y)
        y = y + self.own(z, z)
        y = y + self.text(self.norms[1](y), text)
        value, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(value * F.gelu(gate))
        return x + y.transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """Of the shape of Stable Diffusion 1's, without its time embedding: latents of 4 channels, a text of width 768."""

    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280)) -> None:
        super().__init__()
        self.start, self.end = nn.Conv2d(4, widths[0], 3, padding=1), nn.Conv2d(widths[0], 4, 3, padding=1)
        before = (widths[0], *widths[:-1])
        self.down = nn.ModuleList(nn.ModuleList([Residual(i, o), Mixes(o)]) for i, o in zip(before, widths, strict=True))
        self.smaller = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.middle = nn.ModuleList([Residual(widths[-1], widths[-1]), Mixes(widths[-1])])
        self.up = nn.ModuleList(nn.ModuleList([Residual(2 * o, i), Mixes(i)]) for i, o in zip(before, widths, strict=True))

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x, kept = self.start(x), []
        for level, (residual, mixes) in enumerate(self.down):
            x = mixes(residual(x), text)
            kept.append(x)
            if level < len(self.smaller):
                x = self.smaller[level](x)
        x = self.middle[1](self.middle[0](x), text)
        for level in reversed(range(len(self.up))):
            if x.shape[2:] != kept[level].shape[2:]:
                x = F.interpolate(x, size=kept[level].shape[2:])
            x = self.up[level][1](self.up[level][0](torch.cat([x, kept[level]], 1)), text)
        return self.end(x)


def drawn(module: nn.Module) -> nn.Module:
    """The model with random numbers in place of weights that start as zero."""
    for p in module.parameters():
        if not p.any():
            nn.init.normal_(p, std=0.02)
    return module


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
            found[f"{name} b{b}"] = lambda make=make, b=b: (drawn(make()), image(b))

    def seq2seq(model: nn.Module, names: list[str], *inputs: torch.Tensor) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        return Called(model, names, "last_hidden_state", use_cache=False), inputs

    def text(b: int, s: int) -> torch.Tensor:
        return ids(b, s)[0]

    two = {"encoder_layers": layers(6), "decoder_layers": layers(6)}
    for b in (1, 16):
        found[f"Whisper base b{b}"] = lambda b=b: seq2seq(
            t.WhisperModel(t.WhisperConfig(d_model=512, encoder_attention_heads=8, decoder_attention_heads=8, **two)),
            ["input_features", "decoder_input_ids"], torch.randn(b, 80, 3000), text(b, 128),
        )  # fmt: skip
        found[f"T5 base b{b}"] = lambda b=b: seq2seq(
            t.T5Model(t.T5Config(d_model=768, d_ff=3072, num_layers=layers(12), num_heads=12)),
            ["input_ids", "decoder_input_ids"], text(b, 512), text(b, 128),
        )  # fmt: skip
        found[f"CLIP ViT-B/32 b{b}"] = lambda b=b: (
            Called(t.CLIPModel(t.CLIPConfig()), ["input_ids", "pixel_values"], "image_embeds"), (text(b, 77), *image(b)),
        )  # fmt: skip
        found[f"DINOv2 base b{b}"] = lambda b=b: (
            Called(t.Dinov2Model(t.Dinov2Config(num_hidden_layers=layers(12))), ["pixel_values"], "last_hidden_state"), image(b),
        )  # fmt: skip
        found[f"U-Net b{b}"] = lambda b=b: (UNet(), (torch.randn(b, 4, 64, 64), torch.randn(b, 77, 768)))
    found["SAM ViT-B b1"] = lambda: (
        Called(t.SamVisionModel(t.SamVisionConfig(num_hidden_layers=layers(12))), ["pixel_values"], "last_hidden_state"),
        (torch.randn(1, 3, 1024, 1024),),
    )  # fmt: skip
    return found
