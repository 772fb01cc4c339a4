"""Memory-bound workloads of types other than f32, bf16 and f16, and of several types: quantisation, mixed precision, masks, bytes.

    python3 benches/memory_bound/types.py DIR    writes DIR/NAME.kiln for each
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
from memory_bound.rows import row

SIZE = {"f64": 8, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}
BYTES = 120_000_000
QUANTISED = "%p = abs %f\n%m = reduce.max %p axes=[1]\n%s = div %m, 448.0\n%q = div %f, %s\n%y = cast %q to=f8e4m3\nreturn %y, %s"


def of_type(dtype, end, n):
    """Casts, sums, concatenations, transposes and scans of rows of n elements."""
    s = (BYTES // SIZE[dtype] // n, n)
    one, several = [(dtype, s)], [(dtype, s), (dtype, (s[0], 64))]
    exact = dtype in ("f64", "i64")
    total = "sum" if exact else "any" if dtype == "bool" else "max"
    yield row(f"reduce_{dtype}_{end}", one, f"%y = reduce.{total} %a axes=[1]\nreturn %y", None)
    yield row(f"reduce_columns_{dtype}_{end}", one, f"%y = reduce.{total} %a axes=[0]\nreturn %y", None)
    yield row(f"transpose_{dtype}_{end}", one, "%y = permute %a perm=[1,0]\nreturn %y", None)
    yield row(f"concat_{dtype}_{end}", several, "%y = concat %a, %b axis=1\nreturn %y", None)
    if dtype == "bool":
        yield row(f"count_{end}", one, "%i = cast %a to=i64\n%y = reduce.sum %i axes=[1]\nreturn %y", None)
        yield row(f"masked_{end}", [(dtype, s), ("f32", s)], "%y = select %a, %b, 0.0\nreturn %y", None)
    else:
        yield row(f"cast_{dtype}_{end}", one, "%y = cast %a to=f32\nreturn %y", None)
        yield row(f"scan_{dtype}_{end}", one, "%y = scan.sum %a axis=1\nreturn %y", None)


def quantised(n):
    """To and from 8-bit floats, with a scale a row, given or computed."""
    s = (BYTES // n, n)
    scale, weight = ("bf16", (s[0], 1)), ("bf16", (n,))
    yield row(f"quantise_{n}", [("bf16", s), scale], "%c = mul %a, %b\n%y = cast %c to=f8e4m3\nreturn %y", None)
    yield row(f"dequantise_{n}", [("f8e4m3", s), scale], "%c = cast %a to=bf16\n%y = mul %c, %b\nreturn %y", None)
    yield row(f"quantise_rows_{n}", [("bf16", s)], "%f = cast %a to=f32\n" + QUANTISED, None)
    normalised = "%n = rms_norm %a, %b eps=1e-6\n%f = cast %n to=f32\n"
    yield row(f"rms_norm_quantise_{n}", [("bf16", s), weight], normalised + QUANTISED, None)


def mixed():
    """bf16 with f32, as under autocast, and masks."""
    s = (16384, 4096)
    x, wide, vector = ("bf16", s), ("f32", s), ("f32", s[1:])
    up = "%f = cast %a to=f32\n"
    yield row("widen", [x], "%y = cast %a to=f32\nreturn %y", None)
    yield row("narrow", [wide], "%y = cast %a to=bf16\nreturn %y", None)
    yield row("narrow_f8e5m2", [wide], "%y = cast %a to=f8e5m2\nreturn %y", None)
    layer_norm = "%n = layer_norm {}, {} eps=1e-5\n%y = cast %n to=bf16\nreturn "
    yield row("layer_norm", [x, vector, vector], up + layer_norm.format("%f", "%b, %c") + "%y", None)
    residual = up + "%t = add %f, %b\n" + layer_norm.format("%t", "%c, %d") + "%t, %y"
    yield row("residual_layer_norm", [x, wide, vector, vector], residual, None)
    yield row("rms_norm", [x, vector], up + "%n = rms_norm %f, %b eps=1e-6\n%y = cast %n to=bf16\nreturn %y", None)
    yield row("softmax", [x], up + "%y = softmax %f axis=1\nreturn %y", None)
    yield row("residual", [x, wide], up + "%y = add %f, %b\nreturn %y", None)
    masked = "%s = select %b, %a, -inf\n%y = softmax %s axis=1\nreturn %y"
    yield row("masked_softmax_odd", [("bf16", (4096, 4097)), ("bool", (4096, 4097))], masked, None)
    pixels = "%f = cast %a to=f32\n%d = mul %f, 0.00392156862745098\n%s = sub %d, 0.5\n%y = cast %s to=bf16\nreturn %y"
    yield row("pixels", [("u8", (64, 3, 1024, 1024))], pixels, None)


def positions():
    """Arg-reductions over vocabularies."""
    for dtype, rows, n in [("bf16", 4096, 50257), ("f16", 2048, 50257), ("f32", 4096, 50257), ("bf16", 512, 151936), ("i32", 4096, 5003)]:
        yield row(f"argmax_{dtype}_{n}", [(dtype, (rows, n))], "%y = reduce.argmax %a axes=[1]\nreturn %y", None)


def all_types():
    for dtype in SIZE:
        yield from of_type(dtype, "even", 4096)
        yield from of_type(dtype, "odd", 4099)
    for n in [3000, 4096, 5120, 7168]:
        yield from quantised(n)
    yield from mixed()
    yield from positions()


if __name__ == "__main__":
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for w in all_types():
        with open(os.path.join(folder, w["name"] + ".kiln"), "w") as f:
            f.write(w["graph"])
