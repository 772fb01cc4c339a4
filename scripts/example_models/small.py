"""Small modules around one kernel each: softmax, activations, products, attention."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from .registry import example


def module(function, *inputs):
    """A module without weights from a function, with its inputs."""

    class Function(nn.Module):
        def forward(self, *args):
            return function(*args)

    return Function(), inputs


@example("tiny_mlp")
def tiny_mlp():
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 16)), (torch.randn(8, 32),)


@example("softmax_primitives")
def softmax_primitives():
    def f(x):
        e = torch.exp(x - x.amax(dim=-1, keepdim=True))
        return e / e.sum(dim=-1, keepdim=True)

    return module(f, torch.randn(583, 931))


@example("gelu_tanh_primitives")
def gelu_tanh_primitives():
    def f(x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))

    return module(f, torch.randn(64, 257))


@example("matmul_leaky_relu")
def matmul_leaky_relu():
    return module(lambda a, b: F.leaky_relu(a @ b, 0.01), torch.randn(128, 96), torch.randn(96, 160))


class GluMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(128, 64)

    def forward(self, x):
        return self.down(F.glu(self.up(x), dim=-1))


@example("glu_mlp")
def glu_mlp():
    return GluMlp(), (torch.randn(16, 64),)


@example("cdist")
def cdist():
    return module(lambda a, b: torch.cdist(a, b), torch.randn(40, 24), torch.randn(56, 24))


@example("cdist_small")
def cdist_small():
    return module(lambda a, b: torch.cdist(a, b), torch.randn(2, 10, 8), torch.randn(2, 12, 8))


@example("attention_primitives")
def attention_primitives():
    def f(q, k, v):
        s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        keep = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
        p = torch.softmax(s.masked_fill(~keep, float("-inf")), dim=-1)
        return p @ v

    return module(f, *(torch.randn(2, 4, 33, 16) for _ in range(3)))


@example("attention_sdpa")
def attention_sdpa():
    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return module(f, *(torch.randn(2, 4, 33, 16) for _ in range(3)))


@example("attention_gqa_mask")
def attention_gqa_mask():
    def f(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)

    mask = torch.rand(2, 1, 20, 24) > 0.3
    mask[..., 0] = True
    return module(f, torch.randn(2, 8, 20, 16), torch.randn(2, 2, 24, 16), torch.randn(2, 2, 24, 16), mask)


@example("encoder_layers")
def encoder_layers():
    class Encoders(nn.Module):
        def __init__(self):
            super().__init__()
            layer = lambda **options: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options)
            self.first = nn.TransformerEncoder(layer(norm_first=True), 2, enable_nested_tensor=False)
            self.last = layer(activation="gelu")
            self.attention = nn.MultiheadAttention(32, 2, batch_first=True)

        def forward(self, x):
            y = self.last(self.first(x))
            return y, self.attention(y, y, y, need_weights=False)[0]

    return Encoders(), (torch.randn(2, 9, 32),)


@example("rms_norm_primitives")
def rms_norm_primitives():
    def f(x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    return module(f, torch.randn(12, 80), torch.randn(80))


@example("norms")
def norms():
    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.group = nn.GroupNorm(4, 16)
            self.instance = nn.InstanceNorm2d(16, affine=True)
            self.batch = nn.BatchNorm2d(16)
            self.layer = nn.LayerNorm([9, 7], elementwise_affine=False)
            self.rms = nn.RMSNorm(7)

        def forward(self, x):
            return self.rms(self.layer(self.batch(self.group(x))) + self.instance(x))

    m = Norms()
    m.batch.running_mean.normal_()
    m.batch.running_var.uniform_(0.5, 2.0)
    return m, (torch.randn(2, 16, 9, 7),)


@example("convolutions")
def convolutions():
    class Convolutions(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Conv2d(4, 8, 3, stride=2, padding=1)
            self.b = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False)
            self.c = nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1, output_padding=1)
            self.d = nn.Conv1d(6, 5, 3, padding="same")

        def forward(self, x):
            y = self.c(F.relu(self.b(self.a(x))))
            return self.d(y.flatten(2))

    return Convolutions(), (torch.randn(2, 4, 15, 17),)


@example("convolutions_script", how="script")
def convolutions_script():
    return convolutions()


@example("pools")
def pools():
    def f(x):
        a = F.max_pool2d(x, 3, 2, 1)
        b = F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        c = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)[..., : a.shape[-2], : a.shape[-1]]
        return a + b + c, F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (4, 4)), F.max_pool1d(x[0], 2)

    return module(f, torch.randn(2, 3, 16, 16))
