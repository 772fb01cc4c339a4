"""Attention as models write it is one kernel, whatever stands between its two matmuls."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from agreement import compiled
from torch.nn import functional as F

from kiln import pieces

pytestmark = pytest.mark.native

#: Batches, heads, queries, keys, width.
B, H, S, T, D = 2, 4, 37, 53, 24
INF = float("inf")


def places():
    return torch.arange(S)[:, None], torch.arange(T)[None, :]


def causal():
    i, j = places()
    return j <= i


def near():
    i, j = places()
    return causal() & (i - j < 9)


def scaled(q, k):
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def weighted(scores, v, wide=False):
    if wide:
        p = torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype)
    else:
        p = torch.softmax(scores, -1)
    return F.dropout(p, 0.1, False) @ v


def lowest(q, keep):
    low = torch.finfo(q.dtype).min
    return torch.zeros(keep.shape, dtype=q.dtype).masked_fill(~keep, low)


def cap(scores):
    return torch.tanh(scores / 5) * 5


def sdpa(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def distances(q):
    i, j = places()
    return (j - i).to(q.dtype)


def same_document(a, b):
    return a[:, None, :, None] == b[:, None, None, :]


def prefixed(n):
    return causal() | (torch.arange(T)[None, :] < n[:, None, None, None])


def windows(q, k, v, bias, mask):
    scores = scaled(q, k) + bias
    scores = scores.view(-1, mask.shape[0], *scores.shape[1:]) + mask[None, :, None]
    return weighted(scores.view(-1, *scores.shape[2:]), v)


def beside(scores, v, sinks, less=True, wide=False):
    """As gpt-oss: the probability of the sink beside the scores is dropped."""
    sinks = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], -1)
    scores = torch.cat([scores, sinks], -1)
    if less:
        scores = scores - scores.max(dim=-1, keepdim=True).values
    p = F.softmax(scores, -1, dtype=torch.float32 if wide else scores.dtype)[..., :-1]
    return F.dropout(p, 0.1, False).to(v.dtype) @ v


def softmax_one(scores):
    most = scores.amax(-1, keepdim=True).clamp(min=0)
    powers = torch.exp(scores - most)
    return powers / (torch.exp(-most) + powers.sum(-1, keepdim=True))


def padded(scores):
    return torch.softmax(F.pad(scores, (0, 1)), -1)[..., :-1]


def first(scores):
    return torch.cat([scores.new_zeros(*scores.shape[:-1], 1), scores], -1).softmax(-1)[..., 1:]


#: What a form takes after q, k and v.
EXTRA = {
    "slope": lambda dtype: [0.5 ** torch.arange(1.0, H + 1).to(dtype)[:, None, None]],
    "length": lambda _: [torch.tensor([3, 11])],
    # Queries without a key have NaN in eager; its matmul of bf16 spreads these to rows beside them.
    "documents": lambda dtype: [
        (torch.arange(S) * 3 // S).expand(B, -1).contiguous(),
        (torch.arange(T) * 3 // S)[None] + torch.arange(B)[:, None] * int(dtype == torch.float32),
    ],
    "keep": lambda _: [torch.rand(B, T) > 0.3],
    "factor": lambda dtype: [torch.rand(H, 1, 1).to(dtype) + 0.1],
    "root": lambda dtype: [torch.tensor(4.9).to(dtype)],
    "bias": lambda dtype: [torch.randn(H, S, T).to(dtype)],
    "windows": lambda dtype: [
        torch.randn(H, S, T).to(dtype),
        torch.zeros(B, S, T).masked_fill(torch.rand(B, S, T) > 0.7, -100.0).to(dtype),
    ],
    "sinks": lambda dtype: [torch.randn(H).to(dtype) + 1],
    "": lambda _: [],
}

FORMS = {
    "a quotient": ("", lambda q, k, v: weighted(q @ k.mT / math.sqrt(D), v)),
    "scaled queries": ("", lambda q, k, v: weighted((q * D**-0.5) @ k.mT, v, True)),
    "a window": ("", lambda q, k, v: weighted(torch.where(near(), scaled(q, k), -INF), v)),
    "an added window": ("", lambda q, k, v: weighted(scaled(q, k) + lowest(q, near()), v, True)),
    "a prefix": (
        "length",
        lambda q, k, v, n: weighted(
            scaled(q, k).masked_fill(~prefixed(n), torch.finfo(q.dtype).min), v
        ),
    ),
    "documents": (
        "documents",
        lambda q, k, v, a, b: weighted(
            scaled(q, k).masked_fill(~(same_document(a, b) & causal()), -INF), v
        ),
    ),
    "padding": (
        "keep",
        lambda q, k, v, keep: weighted(
            scaled(q, k) + (1.0 - keep[:, None, None].to(q.dtype)) * torch.finfo(q.dtype).min, v
        ),
    ),
    "ALiBi": ("slope", lambda q, k, v, s: weighted(scaled(q, k) + distances(q) * s, v)),
    "causal ALiBi": (
        "slope",
        lambda q, k, v, s: weighted(
            (scaled(q, k) + distances(q) * s).masked_fill(~causal(), -INF), v
        ),
    ),
    "a soft cap": ("", lambda q, k, v: weighted(cap(scaled(q, k)), v)),
    "a causal soft cap": (
        "",
        lambda q, k, v: weighted(cap(scaled(q, k)) + lowest(q, causal()), v, True),
    ),
    "a factor of each head": ("factor", lambda q, k, v, s: weighted(q @ k.mT * s, v)),
    "a tensor's quotient": ("root", lambda q, k, v, r: weighted(q @ k.mT / r, v)),
    "a bias": ("bias", lambda q, k, v, b: weighted(scaled(q, k) + b, v)),
    "shifted windows": ("windows", windows),
    "sinks": ("sinks", lambda q, k, v, s: beside(scaled(q, k) + lowest(q, causal()), v, s)),
    "sinks of a window": (
        "sinks",
        lambda q, k, v, s: beside(scaled(q, k).masked_fill(~near(), -INF), v, s, less=False),
    ),
    "sinks in f32": (
        "sinks",
        lambda q, k, v, s: beside(scaled(q, k) + lowest(q, near()), v, s, wide=True),
    ),
    "softmax one": ("", lambda q, k, v: softmax_one(scaled(q, k)) @ v),
    "a causal softmax one": (
        "",
        lambda q, k, v: softmax_one(scaled(q, k).masked_fill(~causal(), -INF)) @ v,
    ),
    "a column of padding": ("", lambda q, k, v: padded(scaled(q, k)) @ v),
    "a first column": ("", lambda q, k, v: first(scaled(q, k).float()).to(q.dtype) @ v),
    "SDPA's window": ("", lambda q, k, v: sdpa(q, k, v, near())),
    "SDPA's ALiBi": ("slope", lambda q, k, v, s: sdpa(q, k, v, distances(q) * s)),
    "SDPA's documents": ("documents", lambda q, k, v, a, b: sdpa(q, k, v, same_document(a, b))),
    "SDPA's prefix": ("length", lambda q, k, v, n: sdpa(q, k, v, prefixed(n))),
    "SDPA's padding": (
        "keep",
        lambda q, k, v, keep: sdpa(q, k, v, causal() & keep[:, None, None]),
    ),
}

#: Forms in which more than a number and a mask stand between the matmuls.
SCORE_FUNCTIONS = {
    "a soft cap",
    "a causal soft cap",
    "a factor of each head",
    "a tensor's quotient",
}


def error(got, exact):
    """The root of the sum of squares of the errors; NaN must be where it is in `exact`."""
    assert torch.equal(got.isnan(), exact.isnan())
    return (got.double() - exact).nan_to_num(0.0).norm().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
@torch.no_grad()
def test_forms_of_attention_are_one_kernel(name, dtype):
    torch.manual_seed(7)
    extra, form = FORMS[name]
    args = [torch.randn(B, H, n, D).to(dtype) for n in (S, T, T)] + EXTRA[extra](dtype)
    with pieces.collecting() as found:
        got = compiled(form)(*args)
    exact = form(*(x.double() if x.is_floating_point() else x for x in args))
    # Scores are rounded less often than by eager's operators.
    assert got.dtype == dtype
    assert error(got, exact) <= 2 * error(form(*args), exact)
    (piece,) = found
    plan = piece.engines[0].plan()
    kernels = [line.split()[2] for line in plan.splitlines() if " run (" in line]
    if name in SCORE_FUNCTIONS:
        assert "attention" not in kernels, "attention on the host has no score function\n" + plan
        return
    # Where it costs less, what is added to all scores is summed before.
    allowed = {"attention", "pointwise"} if name == "shifted windows" else {"attention"}
    assert kernels.count("attention") == 1 and set(kernels) <= allowed, plan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_layers_of_gpt_oss_have_one_kernel_of_attention(dtype):
    """One with a sliding window and one without, of heads that share keys, beside padding."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.GptOssConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        vocab_size=99,
        max_position_embeddings=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=6,
    )
    model = transformers.GptOssForCausalLM(config).eval()
    for layer in model.model.layers:
        layer.self_attn.sinks.normal_()
    ids, mask = torch.randint(3, 99, (2, 17)), torch.ones(2, 17, dtype=torch.long)
    mask[1, 12:] = 0
    model = model.to(dtype)
    double = copy.deepcopy(model).double()
    double.set_experts_implementation("eager")

    def logits(m):
        return m(input_ids=ids, attention_mask=mask, use_cache=False).logits

    with pieces.collecting() as found:
        got = logits(compiled(model, fallback="torch", fullgraph=False))
    exact = logits(double)
    assert error(got, exact) <= 2 * error(logits(model), exact)
    plans = [engine.plan() for piece in found for engine in piece.engines]
    kernels = [line.split()[2] for p in plans for line in p.splitlines() if " run (" in line]
    assert kernels.count("attention") == 2, plans
    assert "\n".join(plans).count("sink=true") == 2, plans
