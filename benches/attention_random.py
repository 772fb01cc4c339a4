"""Random attention against float64: sizes, groups of heads, masks, types, NaN and infinity among the inputs, rows that see no key."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from attention_cases import Case, Sdpa, Tensors, causal

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
#: The most scores of all heads, and the most elements of an input.
SCORES = {"cuda": 1 << 31, "cpu": 1 << 22}
ELEMENTS = {"cuda": 1 << 27, "cpu": 1 << 19}
MOST_KEYS = {"cuda": 5000, "cpu": 160}


@dataclass(frozen=True)
class Drawn:
    """Sizes of one attention, drawn until they fit."""

    dtype: str
    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    dim: int
    #: "full", "causal", or "mask" with rows that see no key.
    mask: str
    #: "", or where NaN and infinities lie: "q", "k" or "v".
    special: str

    def __str__(self) -> str:
        of = f"{self.batch}x{self.heads}/{self.heads // self.groups}x{self.queries}:{self.keys}x{self.dim}"
        return f"{of} {self.dtype} {self.mask}" + (f", NaN and infinity in {self.special}" if self.special else "")

    def inputs(self, device: str, seed: int) -> Tensors:
        generator = torch.Generator(device).manual_seed(seed)
        new = lambda heads, rows: torch.randn(  # noqa: E731
            self.batch, heads, rows, self.dim, generator=generator, device=device
        ).to(TYPES[self.dtype])
        found = [new(self.heads, self.queries), new(self.heads // self.groups, self.keys), new(self.heads // self.groups, self.keys)]
        if self.special:
            rows = found["qkv".index(self.special)]
            spot = lambda n: int(torch.randint(n, (1,), generator=generator, device=device))  # noqa: E731
            for value in (math.nan, math.inf, -math.inf):
                rows[spot(rows.shape[0]), spot(rows.shape[1]), spot(rows.shape[2]), spot(self.dim)] = value
        if self.mask == "mask":
            keep = torch.rand(self.batch, 1, self.queries, self.keys, generator=generator, device=device) < 0.7
            keep[:, :, :: 1 + self.queries // 3] = False
            found.append(keep)
        return tuple(found)

    def module(self) -> Sdpa:
        by_input = Case("mask", allowed=lambda i, j, keep: keep)
        return Sdpa({"full": Case("full"), "causal": Case("causal", allowed=causal), "mask": by_input}[self.mask])


def draw(rng: random.Random, device: str) -> Drawn:
    while True:
        length = lambda: round(math.exp(rng.uniform(0, math.log(MOST_KEYS[device]))))  # noqa: B023,E731
        queries, groups = length(), rng.choice([1, 1, 1, 2, 4, 8])
        drawn = Drawn(
            dtype=rng.choice(["bf16", "bf16", "f16", "f32"]), batch=rng.choice([1, 1, 2, 3, 8]), heads=rng.choice([1, 2, 3, 4]) * groups,
            groups=groups, queries=queries, keys=queries if rng.random() < 0.6 else length(), dim=rng.randrange(16, 257, 8),
            mask=rng.choice(["full", "full", "causal", "causal", "mask"]), special=rng.choice([""] * 9 + ["q", "k", "v"]),
        )  # fmt: skip
        rows = drawn.batch * drawn.heads
        most = max(drawn.queries, drawn.keys)
        if rows * drawn.queries * drawn.keys <= SCORES[device] and rows * most * drawn.dim <= ELEMENTS[device]:
            return drawn


def exact(drawn: Drawn, args: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64: attention that leaves out what the mask does, and whether NaN is right too: zero weights times NaN or infinity.

    Rows whose scores are all minus infinity are zero, as `scaled_dot_product_attention` has them.
    """
    q, k, v, *more = args
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    either = torch.zeros(q.shape, dtype=torch.bool, device=q.device)
    seen = torch.ones(1, 1, drawn.queries, drawn.keys, dtype=torch.bool, device=q.device)
    for b in range(drawn.batch):
        keep = more[0][b, 0] if more else seen[0, 0].tril() if drawn.mask == "causal" else seen[0, 0]
        for h in range(drawn.heads):
            keys, values = (t[b, h // drawn.groups].double() for t in (k, v))
            s = (q[b, h].double() @ keys.T) * drawn.dim**-0.5
            s = s.masked_fill(~keep, -math.inf)
            p = torch.where((s == -math.inf).all(-1, keepdim=True), 0, torch.softmax(s, -1))
            finite = values.isfinite()
            out[b, h] = p @ torch.where(finite, values, 0)
            either[b, h] = (p @ values).isnan()
            for j in (~finite).any(-1).nonzero().flatten().tolist():
                extra = torch.where(finite[j], 0, values[j])
                out[b, h] += torch.where(keep[:, j, None] & ~finite[j], p[:, j, None] * extra, 0)
    return out, either
