"""A small text classifier, and its export: `python encoder.py` writes encoder.pt, encoder.pt2 and encoder.safetensors."""
import torch
from safetensors.torch import save_file
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        split = lambda t: t.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = q @ k.transpose(-1, -2) * self.scale
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm(width)
        self.up, self.down, self.norm2 = nn.Linear(width, inner), nn.Linear(inner, width), nn.LayerNorm(width)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x))))


class Classifier(nn.Module):
    def __init__(self, words=96, width=32, heads=2, inner=128, classes=5):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1)).softmax(-1)


if __name__ == "__main__":
    torch.manual_seed(0)
    model, tokens = Classifier().eval().requires_grad_(False), torch.randint(96, (8, 64))
    torch.jit.trace(model, tokens).save("encoder.pt")
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=512)
    program = torch.export.export(model, (tokens,), dynamic_shapes={"tokens": {0: batch, 1: length}})
    torch.export.save(program, "encoder.pt2")
    save_file({"0": tokens}, "encoder.safetensors")
