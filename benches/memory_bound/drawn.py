"""Memory-bound workloads with shapes and types drawn at random: what nobody tuned for.

    python3 benches/memory_bound/drawn.py DIR [--seed 1] [--each 40]    writes DIR/NAME.kiln for each
"""

import argparse
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
from memory_bound.rows import row


def length(r, low, high):
    """A length between two: odd, prime, round, a power of two."""
    n = round(2 ** r.uniform(low, high))
    kind = r.random()
    if kind < 0.25:
        return max(1, n | 1)
    if kind < 0.5:
        return max(8, n // 8 * 8)
    if kind < 0.65:
        return 1 << max(0, n.bit_length() - 1)
    return max(1, n)


def budget(r):
    """Bytes that a workload reads: from what launches bound to what memory bounds, most of the time the latter."""
    return 2 ** (r.uniform(14, 24) if r.random() < 0.25 else r.uniform(26.5, 28.2))


def shaped(r, rank, size):
    """A shape of about that many bytes."""
    dtype = r.choice(["f32", "bf16", "f16"])
    count = budget(r) / (4 if dtype == "f32" else 2)
    weights = [r.random() + 0.2 for _ in range(rank)]
    total = sum(weights)
    shape = [max(1, round(count ** (w / total))) for w in weights]
    del size
    return dtype, tuple(length(r, max(0.0, s.bit_length() - 1.2), max(0.5, s.bit_length() - 0.8)) for s in shape)


def pointwise(r, name):
    dtype, s = shaped(r, r.choice([1, 2, 2, 3, 4]), None)
    others = [tuple(1 if r.random() < 0.5 else n for n in s) for _ in range(r.randint(0, 2))]
    op = r.choice(["gelu_tanh", "silu", "relu", "exp", "tanh"])
    names = "bcd"
    body, last = [f"%s0 = {op} %a"], "%s0"
    for i, _ in enumerate(others):
        body.append(f"%s{i + 1} = {r.choice(['mul', 'add'])} {last}, %{names[i]}")
        last = f"%s{i + 1}"
    return row(name, [(dtype, s)] + [(dtype, o) for o in others], "\n".join(body + [f"return {last}"]), None)


def transposes(r, name):
    rank = r.choice([2, 2, 3, 4])
    dtype, s = shaped(r, rank, None)
    perm = list(range(rank))
    while perm == sorted(perm):
        r.shuffle(perm)
    out = tuple(s[p] for p in perm)
    body = f"%t = permute %a perm=[{','.join(map(str, perm))}]\n"
    if r.random() < 0.5:
        return row(name, [(dtype, s), (dtype, out)], body + "%y = add %t, %b\nreturn %y", None)
    return row(name, [(dtype, s)], body + "%y = relu %t\nreturn %y", None)


def moved(r, name):
    dtype, s = shaped(r, r.choice([2, 3]), None)
    axis = r.randrange(len(s))
    kind = r.choice(["concat", "slice", "upsample", "roll"])
    if kind == "concat":
        parts = [s] + [tuple(length(r, 0, 8) if i == axis else n for i, n in enumerate(s)) for _ in range(r.randint(1, 3))]
        names = ", ".join(f"%{chr(97 + i)}" for i in range(len(parts)))
        return row(name, [(dtype, p) for p in parts], f"%y = concat {names} axis={axis}\nreturn %y", None)
    if kind == "upsample":
        inner = tuple(n for i, n in enumerate(s))
        a, b = inner[-2], inner[-1]
        k = r.choice([2, 2, 3, 4])
        lead = ",".join(map(str, inner[:-2]))
        lead = lead + "," if lead else ""
        body = f"%v = reshape %a shape=[{lead}{a},1,{b},1]\n%w = broadcast %v shape=[{lead}{a},{k},{b},{k}]\n"
        return row(name, [(dtype, inner)], body + f"%u = reshape %w shape=[{lead}{a * k},{b * k}]\n%y = relu %u\nreturn %y", None)
    n = s[axis]
    at = r.randrange(n)
    if kind == "slice":
        start, keep = r.randrange(n), 0
        keep = r.randint(1, n - start)
        return row(name, [(dtype, s)], f"%v = slice %a axis={axis} start={start} len={keep}\n%y = relu %v\nreturn %y", None)
    if at == 0:
        at = 1 if n > 1 else 0
    if n < 2:
        return row(name, [(dtype, s)], "%y = relu %a\nreturn %y", None)
    body = f"%p = slice %a axis={axis} start={at} len={n - at}\n%q = slice %a axis={axis} start=0 len={at}\n%y = concat %p, %q axis={axis}\nreturn %y"
    return row(name, [(dtype, s)], body, None)


def reduced(r, name, rank, axes, s, dtype):
    listed = ",".join(map(str, axes))
    kind = r.choice(["sum", "mean", "max", "variance", "logsumexp"] + (["argmax"] if len(axes) == 1 else []))
    if kind in ("sum", "mean", "max", "argmax"):
        body = f"%y = reduce.{kind} %a axes=[{listed}]\nreturn %y"
    elif kind == "variance":
        body = f"%m = reduce.mean %a axes=[{listed}]\n%d = sub %a, %m\n%q = mul %d, %d\n%v = reduce.mean %q axes=[{listed}]\nreturn %m, %v"
    else:
        body = f"%m = reduce.max %a axes=[{listed}]\n%d = sub %a, %m\n%e = exp %d\n%s = reduce.sum %e axes=[{listed}]\n%l = log %s\n%y = add %l, %m\nreturn %y"
    return row(name, [(dtype, s)], body, None)


def row_reductions(r, name):
    dtype, s = shaped(r, r.choice([1, 2, 2, 3]), None)
    rank = len(s)
    axes = [rank - 1] if rank < 3 or r.random() < 0.5 else [rank - 2, rank - 1]
    return reduced(r, name, rank, axes, s, dtype)


def column_reductions(r, name):
    dtype, s = shaped(r, r.choice([2, 2, 3, 4]), None)
    rank = len(s)
    axes = {2: [0], 3: r.choice([[0], [1], [0, 1]]), 4: [0, 2, 3]}[rank]
    return reduced(r, name, rank, axes, s, dtype)


def normalised(r, name, axis, s, dtype):
    kind = r.choice(["softmax", "log_softmax", "layer_norm", "rms_norm", "residual"])
    last = axis == len(s) - 1
    if kind in ("softmax", "log_softmax") or not last:
        kind = kind if kind in ("softmax", "log_softmax") else "softmax"
        return row(name, [(dtype, s)], f"%y = {kind} %a axis={axis}\nreturn %y", None)
    vector = (dtype, (s[-1],))
    if kind == "layer_norm":
        return row(name, [(dtype, s), vector, vector], "%y = layer_norm %a, %b, %c eps=1e-5\nreturn %y", None)
    if kind == "rms_norm":
        return row(name, [(dtype, s), vector], "%y = rms_norm %a, %b eps=1e-6\nreturn %y", None)
    body = "%s = add %a, %b\n%y = layer_norm %s, %c, %d eps=1e-5\nreturn %s, %y"
    return row(name, [(dtype, s), (dtype, s), vector, vector], body, None)


def norms(r, name):
    dtype, s = shaped(r, r.choice([2, 2, 3]), None)
    return normalised(r, name, len(s) - 1, s, dtype)


def column_norms(r, name):
    dtype, s = shaped(r, r.choice([2, 3]), None)
    return normalised(r, name, r.randrange(len(s) - 1), s, dtype)


def scans(r, name):
    dtype, s = shaped(r, r.choice([1, 2, 2, 3]), None)
    return row(name, [("f32" if r.random() < 0.5 else dtype, s)], f"%y = scan.sum %a axis={r.randrange(len(s))}\nreturn %y", None)


def windows(r, name):
    """Depthwise convolutions and pools of a batch of images."""
    dtype = r.choice(["f32", "bf16", "f16"])
    side = r.choice([7, 7, 14, 14, 28, 28, 56, 112, round(2 ** r.uniform(2.5, 7))])
    other = side if r.random() < 0.8 else length(r, 2, 7)
    channels = length(r, 3, 10)
    batch = max(1, round(budget(r) / 4 / (4 if dtype == "f32" else 2) / (side * other * channels)))
    shape = (batch, channels, side, other)
    size = min(r.choice([2, 3, 3, 5, 7]), side, other)
    stride = r.choice([1, 1, 2])
    padding = r.choice([size // 2, size // 2, 0])
    sides = f"stride=[{stride},{stride}] padding=[{padding},{padding}]"
    if r.random() < 0.4:
        kind = r.choice(["max", "avg"])
        return row(name, [(dtype, shape)], f"%y = pool.{kind} %a window=[{size},{size}] {sides}\nreturn %y", None)
    weight = (dtype, (channels, 1, size, size))
    return row(name, [(dtype, shape), weight, (dtype, (channels,))], f"%y = conv %a, %b, %c {sides} groups={channels}\nreturn %y", None)


FAMILIES = [pointwise, transposes, moved, row_reductions, column_reductions, norms, column_norms, scans, windows]


def drawn(seed, each):
    for family in FAMILIES:
        for n in range(each):
            r = random.Random(f"{family.__name__} {seed} {n}")
            yield family(r, f"{family.__name__}_{seed}_{n}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--each", type=int, default=40)
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    for w in drawn(a.seed, a.each):
        with open(os.path.join(a.folder, w["name"] + ".kiln"), "w") as f:
            f.write(w["graph"])
