"""Inputs on which kernels go wrong first: rows of every length with NaN and infinities in them, rows of one element, unaligned
views, and more than 2^31 elements. As `rows`, with `special`: the inputs have NaN and infinities.
"""

from .rows import rope, row

LENGTHS = [1, 2, 7, 31, 96, 255, 257, 1001, 2047, 4097, 8191, 50257, 131073]
# Rows of persistent kernels: as many rows as clusters, one more or fewer, odd and even counts, and rows that do not fill their tiles.
WALKED = [(119, 131072), (120, 131072), (249, 131072), (256, 131072), (57, 262144), (113, 262144), (118, 262144)]
WALKED += [(528, 49152), (533, 49161), (1027, 50257), (769, 50304), (530, 60002), (533, 65532), (528, 65536)]
WALKED += [(241, 98304), (250, 100002), (251, 131068)]
WALKED_COLUMNS = [(8192, 3840), (8192, 4000), (4096, 7712)]
COLUMNS = [(2, 5), (31, 64), (257, 40), (1001, 96), (2048, 257), (4096, 128), (4097, 72), (8192, 48), (8191, 33)]
ROPE = """
%lo = slice %a axis=2 start=0 len=32
%hi = slice %a axis=2 start=32 len=32
%n = neg %hi
%r = concat %n, %lo axis=2
%p = mul %a, %b
%q = mul %r, %c
%y = add %p, %q
return %y"""
SCALED = """
%m = reduce.mean %a axes=[1]
%d = sub %a, %m
%q = mul %d, %d
%v = reduce.mean %q axes=[1]
%e = add %v, 1e-5
%r = rsqrt %e
%n = mul %d, %r
%y = mul %n, %b
return %y"""
OPS = {
    "softmax": ("%y = softmax %a axis=1\nreturn %y", lambda F, x: F.softmax(x, 1)),
    "log_softmax": ("%y = log_softmax %a axis=1\nreturn %y", lambda F, x: F.log_softmax(x, 1)),
    "sum": ("%s = reduce.sum %a axes=[1]\nreturn %s", lambda F, x: x.sum(1, keepdim=True)),
    "max": ("%s = reduce.max %a axes=[1]\nreturn %s", lambda F, x: x.amax(1, keepdim=True)),
    "argmax": ("%s = reduce.argmax %a axes=[1]\nreturn %s", lambda F, x: x.argmax(1, keepdim=True)),
}


def checks():
    import torch
    import torch.nn.functional as F

    for d in ("f32", "bf16", "f16"):
        for n in LENGTHS:
            rows = max(3, min(5000, (1 << 19) // n)) | 1
            for name, (body, call) in OPS.items():
                r = row(f"{name}_{rows}x{n}_{d}", [(d, (rows, n))], body, lambda x, call=call: call(F, x))
                yield {**r, "special": True}
            norm = lambda x, y, g, b, n=n: (x + y, F.layer_norm(x + y, (n,), g, b))
            # And so many rows that a first step copies their weights.
            for rows in [rows] + [(1 << 23) // n | 1] * (n > 1000):
                inputs = [(d, (rows, n)), (d, (rows, n)), (d, (n,)), (d, (n,))]
                yield {**row(f"residual_layer_norm_{rows}x{n}_{d}", inputs, "%s = add %a, %b\n%y = layer_norm %s, %c, %d eps=1e-5\nreturn %s, %y", norm), "special": True}
        for rows, n in WALKED:
            norm = lambda x, g, b, n=n: F.layer_norm(x, (n,), g, b)
            r = row(f"layer_norm_{rows}x{n}_{d}", [(d, (rows, n)), (d, (n,)), (d, (n,))], "%y = layer_norm %a, %b, %c eps=1e-5\nreturn %y", norm)
            yield {**r, "special": True}
            plain = lambda x, g, n=n: F.layer_norm(x, (n,), g)
            r = row(f"softmax_{rows}x{n}_{d}", [(d, (rows, n))], OPS["softmax"][0], lambda x: F.softmax(x, 1))
            yield {**r, "special": True}
            yield row(f"scaled_norm_{rows}x{n}_{d}", [(d, (rows, n)), (d, (n,))], SCALED, plain)
        # Reductions over the outer axis, whose results are distributed over the lanes of a warp.
        groups = lambda x, g, b: F.group_norm(x, 8, g, b)
        yield row(f"group_norm_{d}", [(d, (33, 64, 128, 128)), (d, (64,)), (d, (64,))], "%y = group_norm %a, %b, %c groups=8 eps=1e-5\nreturn %y", groups)
        for n, wide in WALKED_COLUMNS:
            for name in ("softmax", "log_softmax"):
                down, call = OPS[name][0].replace("axis=1", "axis=0"), OPS[name][1]
                r = row(f"{name}_of_columns_{n}x{wide}_{d}", [(d, (n, wide))], down, lambda x, call=call: call(F, x.t()).t())
                yield {**r, "special": True}
        for n, wide in COLUMNS:
            for name, (body, call) in OPS.items():
                down = body.replace("axis=1", "axis=0").replace("axes=[1]", "axes=[0]")
                r = row(f"{name}_of_columns_{n}x{wide}_{d}", [(d, (n, wide))], down, lambda x, call=call: call(F, x.t()).t())
                yield {**r, "special": True}
        yield row(f"cat_of_5_{d}", [(d, (301, n)) for n in (8, 17, 1, 64, 40)], "%y = concat %a, %b, %c, %d, %e axis=1\nreturn %y", lambda *x: torch.cat(x, 1))
        yield row(f"cat_of_5_even_{d}", [(d, (301, 64))] * 5, "%y = concat %a, %b, %c, %d, %e axis=1\nreturn %y", lambda *x: torch.cat(x, 1))
        yield row(f"rope_{d}", [(d, (37, 12, 64)), (d, (37, 1, 64)), (d, (37, 1, 64))], ROPE, rope)
        body = "%v = slice %a axis=1 start=1 len=4097\n%y = softmax %v axis=1\nreturn %y"
        yield row(f"softmax_of_columns_{d}", [(d, (37, 4099))], body, lambda x: F.softmax(x[:, 1:4098], 1))
        body = "%v = slice %a axis=0 start=3 len=30\n%y = softmax %v axis=1\nreturn %y"
        yield row(f"softmax_of_rows_{d}", [(d, (37, 1001))], body, lambda x: F.softmax(x[3:33], 1))
        body = "%v = slice %a axis=0 start=5 len=99990\n%y = gelu_tanh %v\nreturn %y"
        yield row(f"gelu_of_a_part_{d}", [(d, (100003,))], body, lambda x: F.gelu(x[5:99995], approximate="tanh"))
    many = (1 << 31) + 4099
    yield row("gelu_of_2_31_bf16", [("bf16", (many,))], "%y = gelu_tanh %a\nreturn %y", lambda x: F.gelu(x, approximate="tanh"))
    rows = many // 4097 + 1
    yield row("softmax_of_2_31_bf16", [("bf16", (rows, 4097))], "%y = softmax %a axis=1\nreturn %y", lambda x: F.softmax(x, 1))
    yield row("rows_of_2_31_bf16", [("bf16", (many // 7 + 1, 7))], "%y = softmax %a axis=1\nreturn %y", lambda x: F.softmax(x, 1))
