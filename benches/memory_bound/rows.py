"""The memory-bound workloads: each a text graph for Kiln, and the same in PyTorch.

    python3 benches/memory_bound/rows.py > snapshot-tests/memory_bound.kiln    after a change: the graphs whose kernels are snapshots

A workload is a dict: `name`, `graph` (text), `inputs` (dtype, shape, and the largest index for integers), `torch` (the function
as a user writes it), `floor` (bytes, where they are not all inputs and results once).
"""

SIZE = {"f32": 4, "bf16": 2, "f16": 2, "i64": 8}
LENGTHS = [7, 96, 255, 768, 1000, 4097, 50257, 131072, 262144]


def shape(s):
    return "[" + ",".join(map(str, s)) + "]"


def row(name, inputs, body, torch, floor=None):
    """`body`: statements on %a, %b, … ending in the value(s) to return after `return`."""
    given = [(i if len(i) == 3 else (*i, None)) for i in inputs]
    params = ", ".join(f"%{chr(97 + n)}: {d}{shape(s)}" for n, (d, s, _) in enumerate(given))
    lines = "\n".join("  " + line.strip() for line in body.strip().splitlines())
    return {"name": name, "graph": f"graph {name}({params}) {{\n{lines}\n}}\n", "inputs": given, "torch": torch, "floor": floor}


SOFTMAX = """
%max = reduce.max %a axes=[1]
%d = sub %a, %max
%e = exp %d
%sum = reduce.sum %e axes=[1]
%y = div %e, %sum
return %y"""
GELU = """
%cube = pow %a, 3
%c = mul %cube, 0.044715
%d = add %a, %c
%e = mul %d, 0.7978845608028654
%t = tanh %e
%u = add %t, 1
%h = mul %a, 0.5
%y = mul %h, %u
return %y"""


def softmax_primitives(x):
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


def gelu_primitives(x):
    return 0.5 * x * (1 + (0.7978845608028654 * (x + 0.044715 * x * x * x)).tanh())


def rope(x, cos, sin):
    import torch

    lo, hi = x.chunk(2, -1)
    return x * cos + torch.cat((-hi, lo), -1) * sin


def rope_pairs(x, cos, sin):
    import torch

    pairs = x.unflatten(-1, (-1, 2))
    return x * cos + torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2) * sin


def named():
    import torch
    import torch.nn.functional as F

    big, half = (16384, 8192), "bf16"
    for d in ("f32", half):
        yield row(f"gelu_tanh_primitives_16384_{d}", [(d, (16384, 16384))], GELU, gelu_primitives)
    yield row("gelu_tanh_16384_bf16", [(half, (16384, 16384))], "%y = gelu_tanh %a\nreturn %y", lambda x: F.gelu(x, approximate="tanh"))
    yield row("softmax_primitives_583x931_f32", [("f32", (583, 931))], SOFTMAX, softmax_primitives)
    for r, c in ((4096, 1024), (4096, 4096), (4096, 12672), (8192, 32768), (2048, 131072)):
        yield row(f"softmax_{r}x{c}_f32", [("f32", (r, c))], "%y = softmax %a axis=1\nreturn %y", lambda x: F.softmax(x, 1))
    yield row("softmax_primitives_2048x131072_f32", [("f32", (2048, 131072))], SOFTMAX, softmax_primitives)
    vector = (half, (8192,))
    yield row("layer_norm_16384x8192_bf16", [(half, big), vector, vector], "%y = layer_norm %a, %b, %c eps=1e-5\nreturn %y", lambda x, g, b: F.layer_norm(x, (8192,), g, b))
    body = "%s = add %a, %b\n%y = layer_norm %s, %c, %d eps=1e-5\nreturn %s, %y"
    residual = lambda x, r, g, b: (x + r, F.layer_norm(x + r, (8192,), g, b))
    yield row("residual_layer_norm_16384x8192_bf16", [(half, big), (half, big), vector, vector], body, residual)
    yield row("rms_norm_16384x8192_bf16", [(half, big), vector], "%y = rms_norm %a, %b eps=1e-6\nreturn %y", lambda x, g: F.rms_norm(x, (8192,), g, 1e-6))
    yield row("bias_gelu_erf_16384x8192_bf16", [(half, big), vector], "%s = add %a, %b\n%y = gelu_erf %s\nreturn %y", lambda x, b: F.gelu(x + b))
    yield row("swiglu_16384x8192_bf16", [(half, big), (half, big)], "%s = silu %a\n%y = mul %s, %b\nreturn %y", lambda a, b: F.silu(a) * b)
    yield row("row_sum_16384x8192_bf16", [(half, big)], "%s = reduce.sum %a axes=[1]\n%y = reshape %s shape=[16384]\nreturn %y", lambda x: x.sum(1))
    yield row("column_sum_16384x8192_bf16", [(half, big)], "%s = reduce.sum %a axes=[0]\n%y = reshape %s shape=[8192]\nreturn %y", lambda x: x.sum(0))
    yield row("full_sum_16384x8192_bf16", [(half, big)], "%s = reduce.sum %a axes=[0,1]\n%y = reshape %s shape=[]\nreturn %y", lambda x: x.sum())
    entropy = """
    %p = log_softmax %a axis=1
    %i = reshape %b shape=[8192,1]
    %g = gather %p, %i axis=1 : bf16[8192,1]
    %m = reduce.mean %g axes=[0,1]
    %n = neg %m
    %y = reshape %n shape=[]
    return %y"""
    yield row("cross_entropy_8192x50304_bf16", [(half, (8192, 50304)), ("i64", (8192,), 50304)], entropy, F.cross_entropy)
    yield row("transpose_add_8192_bf16", [(half, (8192, 8192))] * 2, "%t = permute %b perm=[1,0]\n%y = add %a, %t\nreturn %y", lambda x, y: x + y.t())
    halves = """
    %lo = slice %a axis=3 start=0 len=64
    %hi = slice %a axis=3 start=64 len=64
    %n = neg %hi
    %r = concat %n, %lo axis=3
    %p = mul %a, %b
    %q = mul %r, %c
    %y = add %p, %q
    return %y"""
    pairs = """
    %v = reshape %a shape=[8,2048,32,64,2]
    %even = slice %v axis=4 start=0 len=1
    %odd = slice %v axis=4 start=1 len=1
    %n = neg %odd
    %j = concat %n, %even axis=4
    %r = reshape %j shape=[8,2048,32,128]
    %p = mul %a, %b
    %q = mul %r, %c
    %y = add %p, %q
    return %y"""
    angles = (half, (2048, 1, 128))
    yield row("rope_8x2048x32x128_bf16", [(half, (8, 2048, 32, 128)), angles, angles], halves, rope)
    # RoPE of adjacent elements in place of halves.
    yield row("rope_pairs_8x2048x32x128_bf16", [(half, (8, 2048, 32, 128)), angles, angles], pairs, rope_pairs)
    channels = (half, (256,))
    yield row("group_norm_32x256x128x128_bf16", [(half, (32, 256, 128, 128)), channels, channels], "%y = group_norm %a, %b, %c groups=32 eps=1e-5\nreturn %y", lambda x, g, b: F.group_norm(x, 32, g, b))
    yield row("log_softmax_axis0_8192_bf16", [(half, (8192, 8192))], "%y = log_softmax %a axis=0\nreturn %y", lambda x: F.log_softmax(x, 0))
    yield row("softmax_axis0_8192_f32", [("f32", (8192, 8192))], "%y = softmax %a axis=0\nreturn %y", lambda x: F.softmax(x, 0))
    yield row("cumsum_4096x8192_f32", [("f32", (4096, 8192))], "%y = scan.sum %a axis=1\nreturn %y", lambda x: x.cumsum(1))
    yield row("argmax_16384x8192_f32", [("f32", big)], "%s = reduce.argmax %a axes=[1]\n%y = reshape %s shape=[16384]\nreturn %y", lambda x: x.argmax(1))
    moved = 16384 * (8 + 2 * 2 * 768)
    yield row("embedding_50304x768_bf16", [(half, (50304, 768)), ("i64", (16384,), 50304)], "%y = take %a, %b axis=0\nreturn %y", lambda t, i: F.embedding(i, t), moved)
    names = ", ".join(f"%{chr(97 + n)}" for n in range(8))
    yield row("cat_of_8_16384x1024_bf16", [(half, (16384, 1024))] * 8, f"%y = concat {names} axis=1\nreturn %y", lambda *x: torch.cat(x, 1))
    body = "%s = add %a, %b\n%t = add %s, %c\n%y = layer_norm %t, %d, %e eps=1e-5\nreturn %y"
    dropped = lambda x, b, r, g, c: F.layer_norm(F.dropout(x + b, 0.1, training=False) + r, (8192,), g, c)
    yield row("bias_dropout_residual_layer_norm_bf16", [(half, big), vector, (half, big), vector, vector], body, dropped)


def lengths():
    import torch.nn.functional as F

    for d in ("f32", "bf16", "f16"):
        for n in LENGTHS:
            size = ((1 << 27) // n, n)
            yield row(f"softmax_n{n}_{d}", [(d, size)], "%y = softmax %a axis=1\nreturn %y", lambda x: F.softmax(x, 1))
        for n in LENGTHS:
            size = ((1 << 27) // n, n)
            norm = lambda x, g, b, n=n: F.layer_norm(x, (n,), g, b)
            yield row(f"layer_norm_n{n}_{d}", [(d, size), (d, (n,)), (d, (n,))], "%y = layer_norm %a, %b, %c eps=1e-5\nreturn %y", norm)


def rows():
    return [*named(), *lengths()]


if __name__ == "__main__":
    print("# Written by benches/memory_bound/rows.py.")
    print("\n".join(r["graph"] for r in rows()), end="")
