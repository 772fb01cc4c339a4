"""Matmuls, convolutions and attention with sizes and types drawn at random: what nobody tuned for.

    python3 benches/drawn_products.py DIR [--seed 1] [--each 20]    writes DIR/NAME.kiln for each

`--example schedules` measures schedules of these beside their prices.
"""

import argparse
import os
import random


def size(r, low, high):
    """A size between two powers of two: odd, a multiple of 8, round."""
    n = round(2 ** r.uniform(low, high))
    kind = r.random()
    if kind < 0.15:
        return max(1, n | 1)
    if kind < 0.6:
        return max(8, n // 8 * 8)
    return 1 << max(0, n.bit_length() - 1)


def dtype(r):
    return r.choice(["bf16", "bf16", "f16", "f32"])


def matmul(r, name):
    d = dtype(r)
    most = 39 if d == "f32" else 42
    while True:
        m, n, k = size(r, 0, 13.5), size(r, 5, 14), size(r, 5, 13.5)
        if 2**22 <= m * n * k <= 2**most:
            break
    after = r.choice(["", "%z = gelu_tanh %y", "%z = add %y, %r"])
    more = f", %r: {d}[{m},{n}]" if "%r" in after else ""
    return f"graph {name}(%a: {d}[{m},{k}], %b: {d}[{n},{k}]{more}) {{\n  %y = linear %a, %b\n  {after}\n  return {'%z' if after else '%y'}\n}}\n"


def batched(r, name):
    d = dtype(r)
    while True:
        b, m, n, k = size(r, 1, 8), size(r, 3, 11), size(r, 3, 11), size(r, 4, 10)
        if 2**24 <= b * m * n * k <= 2**39 and b * (m * k + k * n + m * n) < 2**28:
            break
    return f"graph {name}(%a: {d}[{b},{m},{k}], %b: {d}[{b},{k},{n}]) {{\n  %y = dot %a, %b\n  return %y\n}}\n"


def conv(r, name):
    d = dtype(r)
    while True:
        n, c, o, h = size(r, 0, 6), size(r, 2, 10), size(r, 4, 10), size(r, 3, 8)
        w = r.choice([1, 3, 3, 3, 5, 7])
        stride = r.choice([1, 1, 1, 2])
        work = n * c * o * w * w * (h // stride) ** 2
        if w <= h and 2**24 <= work <= 2**38 and n * max(c, o) * h * h < 2**27:
            break
    pad = w // 2
    return (
        f"graph {name}(%x: {d}[{n},{c},{h},{h}], %w: {d}[{o},{c},{w},{w}]) {{\n  %y = conv %x, %w stride=[{stride},{stride}] "
        f"padding=[{pad},{pad}] dilation=[1,1] groups=1\n  %z = relu %y\n  return %z\n}}\n"
    )


def attention(r, name):
    d = r.choice(["bf16", "bf16", "f16", "f32"])
    while True:
        b, h, w = size(r, 0, 5), r.choice([1, 4, 8, 12, 16, 32]), r.choice([32, 64, 64, 80, 96, 128, 128, 256])
        s, t = size(r, 0, 13), size(r, 4, 14)
        s = t if r.random() < 0.5 else s
        if 2**24 <= b * h * s * t * w <= 2 ** (37 if d == "f32" else 40) and b * h * max(s, t) * w < 2**28:
            break
    causal = " causal=true" if s == t and r.random() < 0.4 else ""
    q, k = f"{d}[{b},{h},{s},{w}]", f"{d}[{b},{h},{t},{w}]"
    return f"graph {name}(%q: {q}, %k: {k}, %v: {k}) {{\n  %y = attention %q, %k, %v scale=0.125{causal}\n  return %y\n}}\n"


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--each", type=int, default=20)
    a = p.parse_args()
    os.makedirs(a.dir, exist_ok=True)
    r = random.Random(a.seed)
    for make in [matmul, matmul, batched, conv, attention]:
        for i in range(a.each):
            name = f"{make.__name__}_{i}" if make is not matmul else f"matmul_{i}_{r.randrange(10**6)}"
            with open(os.path.join(a.dir, name + ".kiln"), "w") as f:
                f.write(make(r, name))
