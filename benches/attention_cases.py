"""Attention as modules, through `scaled_dot_product_attention` and from primitives, and its float64 reference.

Inputs are q [B, H, S_q, D], k and v [B, H_kv, S_k, D], and what the scores' function reads beside them: tensors that broadcast to
[B, H, S_q, S_k], with all four dimensions, so that the reference may be computed one head at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """What happens to scores between scaling and softmax. Functions take the query's and the key's index, and the tensors of `more`:
    blocks that broadcast in modules, scalars in FlexAttention."""

    name: str
    #: Which kernel without the function does as much work.
    plain: str = "full"
    more: Callable[[int, int, int, torch.dtype], list[torch.Tensor]] = lambda b, h, s, dtype: []
    #: Keys that a query sees; all if None.
    allowed: Callable[..., Any] | None = None
    bias: Callable[..., Any] | None = None
    #: Scores are held within ±cap by tanh.
    cap: float | None = None

    def pairs(self, sizes: tuple[int, int, int], more: Tensors, device: str) -> int:
        """Pairs of queries and keys that are computed, over all batches and heads. `sizes`: B * H, S_q, S_k."""
        products, queries, keys = sizes
        if self.allowed is None:
            return products * queries * keys
        seen = self.allowed(*indices(queries, keys, device), *more)
        return int(seen.sum()) * (products * queries * keys // seen.numel())


def indices(queries: int, keys: int, device: Any) -> Tensors:
    return torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)[None, :]


def causal(i: Any, j: Any, *more: Any) -> Any:
    return j <= i


def documents(b: int, h: int, s: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Eight documents of uneven lengths: the id of each query's, and of each key's."""
    ends = torch.randint(1, s, (b, 7, 1)).sort(1).values
    ids = (torch.arange(s) >= ends).sum(1)
    return [ids[:, None, :, None].contiguous(), ids[:, None, None, :].contiguous()]


def padding(b: int, h: int, s: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Texts from half the length to all of it."""
    return [(torch.arange(s) < torch.linspace(s / 2, s, b).round()[:, None])[:, None, None, :]]


def triangle(b: int, h: int, s: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """A causal mask in memory, which is added."""
    return [torch.full((1, 1, s, s), torch.finfo(dtype).min).triu(1).to(dtype)]


def slopes(b: int, h: int, s: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [2.0 ** (-8 * torch.arange(1, h + 1) / h)[None, :, None, None]]


PLAIN = {"full": Case("full"), "causal": Case("causal", "causal", allowed=causal)}


def scores(s: int) -> list[Case]:
    """Score functions for `s` keys."""
    window, prefix = s // 8, s // 4
    add = lambda i, j, bias: bias  # noqa: E731
    return [
        Case("bias [1,1,S,S]", more=lambda b, h, s, dtype: [torch.randn(1, 1, s, s).to(dtype)], bias=add),
        Case("bias [1,H,S,S]", more=lambda b, h, s, dtype: [torch.randn(1, h, s, s).to(dtype)], bias=add),
        Case("causal tensor [1,1,S,S]", more=triangle, bias=add),
        Case("key padding [B,1,1,S]", more=padding, allowed=lambda i, j, mask: mask),
        Case(f"sliding window of {window}", "causal", allowed=lambda i, j: (j <= i) & (i - j < window)),
        Case("ALiBi", "causal", more=slopes, allowed=causal, bias=lambda i, j, slope: slope * (j - i)),
        Case("soft-cap", "causal", allowed=causal, cap=5.0),
        Case("documents", "causal", more=documents, allowed=lambda i, j, mine, its: (j <= i) & (mine == its)),
        Case(f"prefix of {prefix}", "causal", allowed=lambda i, j: (j <= i) | (j < prefix)),
    ]


class Sdpa(nn.Module):
    """`scaled_dot_product_attention`, which takes all but soft-caps."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        mask = None
        at = indices(q.shape[-2], k.shape[-2], q.device)
        if self.case.allowed not in (None, causal) or self.case.bias is not None:
            mask = self.case.allowed(*at, *more) if self.case.allowed else None
            if self.case.bias is not None:
                bias = self.case.bias(*at, *more)
                mask = (bias if mask is None else bias.masked_fill(~mask, -math.inf)).to(q.dtype)
        is_causal = mask is None and self.case.allowed is causal
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
        )


class Quantised(Sdpa):
    """The same over keys and values that are stored in 8 bits."""

    def __init__(self) -> None:
        super().__init__(PLAIN["full"])

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return super().forward(q, k.to(q.dtype), v.to(q.dtype))


class Primitives(nn.Module):
    """Matmul, scale, score function, softmax, matmul. `triangle`: how the causal mask is spelled, by comparing indices if None."""

    def __init__(self, case: Case, triangle: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.case, self.triangle = case, triangle

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        s = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        at = indices(q.shape[-2], k.shape[-2], q.device)
        if self.case.cap is not None:
            s = self.case.cap * torch.tanh(s / self.case.cap)
        if self.case.bias is not None:
            s = s + self.case.bias(*at, *more)
        if self.triangle is not None:
            s = self.triangle(s)
        elif self.case.allowed is not None:
            s = s.masked_fill(~self.case.allowed(*at, *more), -math.inf)
        return torch.matmul(torch.softmax(s, -1).to(v.dtype), v)


def fill_upper(s: torch.Tensor) -> torch.Tensor:
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -math.inf)


def where_lower(s: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(), s, -math.inf)


def add_lowest(s: torch.Tensor) -> torch.Tensor:
    """As the eager attention of transformers has it."""
    seen = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()
    return s + torch.where(seen, torch.zeros((), dtype=s.dtype, device=s.device), torch.finfo(s.dtype).min)


def forms(which: str, form: str) -> list[tuple[str, nn.Module]]:
    """The modules of plain attention, `which` is "full" or "causal", by name."""
    case = PLAIN[which]
    found: list[tuple[str, nn.Module]] = [("SDPA", Sdpa(case))] if form != "primitives" else []
    if form != "sdpa" and which == "causal":
        found += [("masked_fill(triu)", Primitives(case, fill_upper)), ("where(tril)", Primitives(case, where_lower))]
        found.append(("+ finfo.min", Primitives(case, add_lowest)))
    elif form != "sdpa":
        found.append(("primitives", Primitives(case)))
    return found


def flex(case: Case, args: Tensors) -> Callable[[], torch.Tensor]:
    """FlexAttention with the case's function, and its block mask made ahead, as it is used."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v, *more = args
    batch, heads, queries, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]

    def at(b: Any, h: Any, i: Any, j: Any) -> list[Any]:
        return [t[tuple(x if n > 1 else 0 for x, n in zip((b, h, i, j), t.shape))] for t in more]

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if case.cap is not None:
            s = case.cap * torch.tanh(s / case.cap)
        return s if case.bias is None else s + case.bias(i, j, *at(b, h, i, j))

    mask = None
    if case.allowed is not None:
        by_batch = batch if any(t.shape[0] > 1 for t in more) else None
        keep = lambda b, h, i, j: case.allowed(i, j, *at(b, h, i, j))  # noqa: E731
        mask = create_block_mask(keep, by_batch, None, queries, keys, device=q.device)
    score_mod = None if case.cap is None and case.bias is None else score
    run = torch.compile(flex_attention, dynamic=False)
    return lambda: run(q, k, v, score_mod=score_mod, block_mask=mask)


def reference(module: nn.Module, args: Tensors) -> torch.Tensor:
    """The module in float64, one head of keys after the other: scores of all heads take more memory than there is."""
    q, k, v, *more = args
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=torch.float64, device=q.device)
    group = q.shape[1] // k.shape[1]
    double = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
    for b in range(q.shape[0]):
        for h in range(k.shape[1]):
            heads = slice(h * group, (h + 1) * group)
            part = lambda t, b=b, heads=heads: double(  # noqa: E731
                t[b : b + 1] if t.shape[0] > 1 else t[:1]
            )[:, heads if t.shape[1] > 1 else slice(0, 1)]
            inputs = [double(t[b : b + 1, s]) for t, s in ((q, heads), (k, slice(h, h + 1)), (v, slice(h, h + 1)))]
            out[b : b + 1, heads] = module(*inputs, *(part(t) for t in more))
    return out


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest error of a row, over the row's largest element; infinite where NaN or infinity disagree."""
    got = got.double()
    finite = want.isfinite()
    differ = (finite != got.isfinite()) | (want.isnan() != got.isnan()) | (want.isinf() & (got != want))
    if differ.any():
        return math.inf
    off = torch.where(finite, (got - want).abs(), 0).amax(-1)
    size = torch.where(finite, want.abs(), 0).amax(-1)
    return (off / size).nan_to_num(0.0, math.inf).max().item()


def allowed_error(eager: float, args: Tensors) -> float:
    """Twice eager's, and rounding: of the result, and of sums in f32 over D and over the keys, whose errors add up as the square root
    of their terms (Higham and Mary, 2019). What eager gets wrong altogether allows nothing."""
    return 2 * (eager if math.isfinite(eager) else 0.0) + rounding(*args[:2])


def rounding(q: torch.Tensor, k: torch.Tensor) -> float:
    terms = math.sqrt(q.shape[-1]) + math.sqrt(k.shape[-2])
    return torch.finfo(q.dtype).eps / 2 + terms * torch.finfo(torch.float32).eps / 2
