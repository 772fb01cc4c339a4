"""Whole networks: vision and language models with random weights."""

import torch
from torch import nn
from torch.nn import functional as F

from .registry import example


class LanguageModel(nn.Module):
    """A Hugging Face model with positional tensor inputs and its hidden states as the only output."""

    def __init__(self, model, **options):
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask, return_dict=False, **self.options)[0]


def tokens(vocabulary, batch=2, length=32):
    """Token ids and a mask whose second row is padded from position 20 on."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1, 20:] = 0
    return torch.randint(0, vocabulary, (batch, length)), mask


@example("resnet18", group="models")
def resnet18():
    import torchvision

    return torchvision.models.resnet18(weights=None), (torch.randn(1, 3, 224, 224),)


@example("resnet18_script", how="script", group="models")
def resnet18_script():
    return resnet18()


@example("vit_b_16", group="models")
def vit_b_16():
    import torchvision

    # Otherwise tracing records one opaque `_native_multi_head_attention` per layer.
    torch.backends.mha.set_fastpath_enabled(False)
    model = torchvision.models.vit_b_16(weights=None)
    # Its head is initialised to zero: all results would be zero, and no error would show.
    torch.nn.init.normal_(model.heads.head.weight, std=0.05)
    return model, (torch.randn(1, 3, 224, 224),)


def bert_with(attention):
    from transformers import BertConfig, BertModel

    config = BertConfig(attn_implementation=attention)
    return LanguageModel(BertModel(config)), tokens(config.vocab_size)


def gpt2_with(attention):
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(attn_implementation=attention)
    return LanguageModel(GPT2Model(config), use_cache=False), tokens(config.vocab_size)


def llama_with(attention):
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, attn_implementation=attention,
    )
    return LanguageModel(LlamaModel(config), use_cache=False), tokens(config.vocab_size)


for _name, _build in (("bert", bert_with), ("gpt2", gpt2_with), ("llama", llama_with)):
    example(_name, group="models")(lambda build=_build: build("sdpa"))
    example(_name + "_eager", group="models")(lambda build=_build: build("eager"))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 256)
        self.gelu_tanh = nn.GELU(approximate="tanh")
        self.norm = nn.LayerNorm(128)
        self.gelu = nn.GELU()
        self.dropout = nn.Dropout(0.1)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.glu(self.gelu_tanh(self.fc1(x)), dim=-1)
        x = self.dropout(self.gelu(self.norm(x)))
        return F.softmax(self.fc2(x), dim=-1)


@example("mlp", how="script", group="models")
def mlp():
    return Mlp(), (torch.randn(4, 64),)


class LoopIf(nn.Module):
    """Every kind of control flow that import can resolve."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.n: int = 4
        self.flag: bool = True
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor, k: int):
        for layer in self.layers:
            x = torch.relu(layer(x))
        for i in range(self.n):  # constant trip count
            x = x + self.scale * i
        for i in range(k):  # trip count from an argument
            x = x * 0.9
        if self.flag:
            x = torch.sigmoid(x)
        if x.size(0) > 1:  # condition on the shape
            x = x - x.mean(dim=0, keepdim=True)
        return x


@example("loopif", how="script", group="models")
def loopif():
    return LoopIf(), (torch.randn(4, 16), 3)


class DataDependent(nn.Module):
    """A branch on a number read from data: import must refuse it."""

    def forward(self, x: torch.Tensor):
        y = x * 3.0
        if bool(x.sum() > 0):
            y = y * 2.0
        else:
            y = -y
        return y + 1.0


@example("datadep", how="script", group="models")
def datadep():
    return DataDependent(), (torch.randn(4, 16),)
