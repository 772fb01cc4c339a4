"""Inputs on which kernels go wrong first: rows of every length with NaN and infinities in them, rows of one element, views that
start anywhere, and more than 2^31 elements. As `rows`, with `special`: the inputs have NaN and infinities.
"""

from .rows import row

LENGTHS = [1, 2, 7, 31, 96, 255, 257, 1001, 2047, 4097, 8191, 50257, 131073]
OPS = {
    "softmax": ("%y = softmax %a axis=1\nreturn %y", lambda F, x: F.softmax(x, 1)),
    "log_softmax": ("%y = log_softmax %a axis=1\nreturn %y", lambda F, x: F.log_softmax(x, 1)),
    "sum": ("%s = reduce.sum %a axes=[1]\nreturn %s", lambda F, x: x.sum(1, keepdim=True)),
    "max": ("%s = reduce.max %a axes=[1]\nreturn %s", lambda F, x: x.amax(1, keepdim=True)),
    "argmax": ("%s = reduce.argmax %a axes=[1]\nreturn %s", lambda F, x: x.argmax(1, keepdim=True)),
}


def checks():
    import torch.nn.functional as F

    for d in ("f32", "bf16", "f16"):
        for n in LENGTHS:
            rows = max(3, min(5000, (1 << 19) // n)) | 1
            for name, (body, call) in OPS.items():
                r = row(f"{name}_{rows}x{n}_{d}", [(d, (rows, n))], body, lambda x, call=call: call(F, x))
                yield {**r, "special": True}
            norm = lambda x, y, g, b, n=n: (x + y, F.layer_norm(x + y, (n,), g, b))
            # So many rows that weights are copied for them, too.
            for rows in [rows] + [(1 << 23) // n | 1] * (n > 1000):
                inputs = [(d, (rows, n)), (d, (rows, n)), (d, (n,)), (d, (n,))]
                yield {**row(f"residual_layer_norm_{rows}x{n}_{d}", inputs, "%s = add %a, %b\n%y = layer_norm %s, %c, %d eps=1e-5\nreturn %s, %y", norm), "special": True}
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
