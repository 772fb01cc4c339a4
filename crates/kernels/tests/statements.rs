//! What statements and operators compute: one row for each rule.
use crate::harness::{buffer, compiled, executed, int, pointer, refused, scalar, zeros};
use kiln_block::Elem;
use kiln_kernels::{ErrorKind, Number};

struct Row {
    rule: &'static str,
    /// Lines of a kernel of `out`, eight floats, `x`, the floats 0 to 7, `n`, the int32 5, and `C`, the constexpr 3.
    /// `i` is
    /// `arange(0, 8)`.
    body: &'static str,
    /// The first elements of `out`.
    out: &'static [f64],
}

const fn row(rule: &'static str, body: &'static str, out: &'static [f64]) -> Row {
    Row { rule, body, out }
}

const ROWS: &[Row] = &[
    row("`//` truncates at run time", "tl.store(out, (n - 12) // 2)", &[-3.0]),
    row("`%` has the dividend's sign at run time", "tl.store(out, (n - 12) % 4)", &[-3.0]),
    row("`//` of constexpr is Python's", "tl.store(out, -7 // 2)", &[-4.0]),
    row("`%` of constexpr is Python's", "tl.store(out, -7 % 4)", &[1.0]),
    row("`**` of constexpr", "tl.store(out, 2 ** C)", &[8.0]),
    row("`/` of integers is a float", "tl.store(out, n / 2)", &[2.5]),
    row("`>>` of signed is arithmetic", "tl.store(out, (n - 12) >> 1)", &[-4.0]),
    row("`>>` of unsigned is logical", "tl.store(out, tl.full([], 200, tl.uint8) >> 1)", &[100.0]),
    row("stores cast to the pointer's type", "tl.store(out + i, i)", &[0.0, 1.0, 2.0]),
    row(
        "masked loads without other give 0",
        "tl.store(out + i, tl.load(x + i, mask=i > 5))",
        &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 7.0],
    ),
    row("masked loads give other", "tl.store(out + i, tl.load(x + i, mask=i > 1, other=9))", &[9.0, 9.0, 2.0]),
    row(
        "constants wrap in the pointer's type",
        "p = x.to(tl.pointer_type(tl.uint8), bitcast=True)\n    tl.store(out, tl.load(p + 3, mask=n > 9, other=-1))\n    \
         tl.store(p, 257)\n    tl.store(out + 1, tl.load(p))",
        &[255.0, 1.0],
    ),
    row("masked stores leave the rest", "tl.store(out + i, i + 1, mask=i < 2)", &[1.0, 2.0, 0.0]),
    row("a scalar is loaded and stored", "tl.store(out + 1, tl.load(x + n))", &[0.0, 5.0]),
    row(
        "maximum ignores NaN",
        "v = tl.where(i == 1, float('nan'), tl.load(x + i))\n    tl.store(out + i, tl.maximum(v, 3.0))",
        &[3.0, 3.0, 3.0, 3.0, 4.0],
    ),
    row(
        "max over an axis ignores NaN",
        "v = tl.where(i == 7, float('nan'), tl.load(x + i))\n    tl.store(out, tl.max(v, 0))\n    \
         tl.store(out + 1, tl.min(v, 0))",
        &[6.0, 0.0],
    ),
    row(
        "max and min of NaN alone are NaN",
        "v = tl.where(i < n, float('nan'), tl.load(x + i))\n    a = tl.max(tl.where(i < 8, float('nan'), v), 0)\n    \
         b = tl.min(tl.where(i < 8, float('nan'), v), 0)\n    tl.store(out, (a != a).to(tl.int32))\n    \
         tl.store(out + 1, (b != b).to(tl.int32))\n    tl.store(out + 2, tl.min(v, 0))",
        &[1.0, 1.0, 5.0],
    ),
    row(
        "maximum propagates NaN if asked",
        "v = tl.maximum(float('nan'), 3.0, propagate_nan=tl.PropagateNan.ALL)\n    \
         tl.store(out, (v != v).to(tl.int32))",
        &[1.0],
    ),
    row(
        "argmax takes the left of equals",
        "tl.store(out, tl.argmax(tl.where(i == 2, 9, tl.where(i == 5, 9, 0)), 0))",
        &[2.0],
    ),
    row(
        "NaN never wins argmax",
        "v = tl.where(i == 1, float('nan'), tl.load(x + i))\n    tl.store(out, tl.argmax(v, 0))",
        &[7.0],
    ),
    row(
        "max with indices",
        "v, at = tl.max(tl.load(x + i), 0, return_indices=True)\n    tl.store(out, v)\n    tl.store(out + 1, at)",
        &[7.0, 7.0],
    ),
    row("new axes", "a = i[:, None] * 0 + i[None, :]\n    tl.store(out + i, tl.sum(a, 0))", &[0.0, 8.0, 16.0]),
    row(
        "`...` stands for the other axes",
        "a = i[None, ...]\n    tl.store(out, a.shape[0] * 10 + len(a.shape))",
        &[12.0],
    ),
    row(
        "`.T` and `.shape`",
        "a = (i[:, None] + tl.zeros([1, 2], tl.int32)).T\n    tl.store(out, a.shape[0] * 100 + a.shape[1])",
        &[208.0],
    ),
    row("broadcasting adds leading axes", "a = i[:, None] + tl.arange(0, 2)\n    tl.store(out, tl.sum(a))", &[64.0]),
    row(
        "keep_dims",
        "a = tl.sum(i[:, None] + tl.zeros([1, 2], tl.int32), 1, keep_dims=True)\n    \
         tl.store(out, a.shape[0] * 10 + a.shape[1])",
        &[81.0],
    ),
    row("methods of blocks", "tl.store(out, tl.load(x + i).to(tl.int32).sum(0) + i.max(0))", &[35.0]),
    row(
        "dtypes",
        "tl.store(out, tl.load(x).dtype == tl.float32 and x.dtype.element_ty == tl.float32 \
         and x.type.element_ty == tl.float32)",
        &[1.0],
    ),
    row(
        "dtype predicates",
        "tl.store(out, i.dtype.is_int() and not i.dtype.is_floating() and i.type.scalar.is_int32())",
        &[1.0],
    ),
    row(
        "a kept constexpr is a size",
        "B: tl.constexpr = C + 1\n    tl.store(out + tl.arange(0, B), 1.0)",
        &[1.0, 1.0, 1.0, 1.0, 0.0],
    ),
    row("a bare annotation", "B: tl.constexpr\n    B = 2\n    tl.store(out + tl.arange(0, B), 1.0)", &[1.0, 1.0, 0.0]),
    row("augmented assignment", "v = n\n    v += 2\n    v *= 3\n    v -= 1\n    tl.store(out, v)", &[20.0]),
    row("parameters are assigned again", "n = n * 2\n    out += 1\n    tl.store(out, n)", &[0.0, 10.0]),
    row(
        "several targets",
        "a = b = n\n    a, (b, c) = a + 1, (b + 2, 3)\n    tl.store(out, a * 100 + b * 10 + c)",
        &[673.0],
    ),
    row("tuples", "t = (n, 2) + (3,)\n    tl.store(out, t[0] * 100 + t[-1] * 10 + len(t[1:]))", &[532.0]),
    row("None is handled at compile time", "v = None\n    if v is None:\n        v = n\n    tl.store(out, v)", &[5.0]),
    row(
        "the dead side need not type",
        "if C == 3:\n        v = n\n    else:\n        v = undefined.name(n)\n    tl.store(out, v)",
        &[5.0],
    ),
    row("constexpr and stops early", "if C == 4 and undefined > 0:\n        tl.store(out, 1)", &[0.0]),
    row("constexpr and run time", "if C == 3 and n > 4:\n        tl.store(out, 1)", &[1.0]),
    row("or at run time", "if n > 9 or n < 6:\n        tl.store(out, 1)", &[1.0]),
    row("not at run time", "if not n > 9:\n        tl.store(out, 1)", &[1.0]),
    row("if assigns on both sides", "if n > 4:\n        v = 1\n    else:\n        v = 2\n    tl.store(out, v)", &[1.0]),
    row(
        "if changes a variable",
        "v = n\n    if n > 9:\n        v = 1\n    elif n > 4:\n        v = v + 20\n    tl.store(out, v)",
        &[25.0],
    ),
    row(
        "if chooses a block",
        "v = tl.load(x + i)\n    if n == 5:\n        v = v + 1.0\n    tl.store(out + i, v)",
        &[1.0, 2.0, 3.0],
    ),
    row("a conditional expression at run time", "tl.store(out, n if n > 9 else n * 2)", &[10.0]),
    row("a conditional expression at compile time", "tl.store(out, n if C == 3 else undefined)", &[5.0]),
    row("early return", "if n > 4:\n        tl.store(out, 1)\n        return\n    tl.store(out, 2)", &[1.0]),
    row("early return that is not taken", "if n > 9:\n        return\n    tl.store(out, 2)", &[2.0]),
    row(
        "early return in a nested if",
        "if n > 4:\n        if n > 9:\n            return\n        tl.store(out, 1)\n    tl.store(out + 1, 2)",
        &[1.0, 2.0],
    ),
    row("a loop with run-time bounds", "v = 0\n    for k in range(n):\n        v += k\n    tl.store(out, v)", &[10.0]),
    row(
        "a loop from, to, step",
        "v = 0\n    for k in range(1, n + 1, 2):\n        v = v * 10 + k\n    tl.store(out, v)",
        &[135.0],
    ),
    row(
        "a loop downwards",
        "v = 0\n    for k in range(n, 0, -2):\n        v = v * 10 + k\n    tl.store(out, v)",
        &[531.0],
    ),
    row("a loop without trips", "v = 7\n    for k in range(n, 0):\n        v = 1\n    tl.store(out, v)", &[7.0]),
    row(
        "nested loops",
        "v = 0\n    for k in range(3):\n        for m in range(k):\n            v += 1\n    tl.store(out, v)",
        &[3.0],
    ),
    row(
        "a loop swaps variables",
        "a = 1\n    b = 2\n    for k in range(3):\n        a, b = b, a\n    tl.store(out, a * 10 + b)",
        &[21.0],
    ),
    row(
        "a loop carries a tuple",
        "t = (0, n)\n    for k in range(3):\n        t = (t[0] + k, t[1])\n    tl.store(out, t[0] * 10 + t[1])",
        &[35.0],
    ),
    row(
        "a loop moves a pointer",
        "p = x\n    v = 0.0\n    for k in range(4):\n        v += tl.load(p)\n        p += 2\n    tl.store(out, v)",
        &[12.0],
    ),
    row(
        "an if in a loop",
        "v = 0\n    for k in range(n):\n        if k % 2 == 0:\n            v += k\n    tl.store(out, v)",
        &[6.0],
    ),
    row(
        "a loop counts in int64",
        "v = n.to(tl.int64)\n    for k in range(v):\n        v += k\n    tl.store(out, v)",
        &[15.0],
    ),
    row("while", "v = n\n    t = 0\n    while v > 0:\n        t += v\n        v -= 2\n    tl.store(out, t)", &[9.0]),
    row("while that does not run", "v = n\n    while v > 9:\n        v -= 1\n    tl.store(out, v)", &[5.0]),
    row(
        "while carries blocks and pointers",
        "p = x\n    v = i\n    while tl.load(p) < 3:\n        p += 1\n        v += i\n    tl.store(out + i, v)",
        &[0.0, 4.0, 8.0],
    ),
    row("bits of a float", "tl.store(out, tl.full([], 1.0, tl.float32).to(tl.int32, bitcast=True) >> 23)", &[127.0]),
    row(
        "integers as pointers",
        "a = x.to(tl.int64) + 8\n    p = a.to(tl.pointer_type(tl.float32))\n    tl.store(out, tl.load(p))",
        &[2.0],
    ),
    row(
        "a pointer to other elements",
        "p = x.to(tl.pointer_type(tl.int32), bitcast=True)\n    tl.store(out, tl.load(p + 1) >> 23)",
        &[127.0],
    ),
    row(
        "a static loop",
        "for k in tl.static_range(0, 4, 2):\n        b: tl.constexpr = k + 1\n        tl.store(out + k, b)",
        &[1.0, 0.0, 3.0],
    ),
    row("a loop over a tuple", "for k in (1, 4):\n        tl.store(out + k, k)", &[0.0, 1.0, 0.0, 0.0, 4.0]),
    row("list comprehension", "t = [k * 2 for k in (1, 2, 3) if k != 2]\n    tl.store(out, t[0] * 10 + t[1])", &[26.0]),
    row("range of constants", "t = [k for k in range(C)]\n    tl.store(out, len(t))", &[3.0]),
    row("min and max of constexpr", "B: tl.constexpr = max(min(C, 2), 1)\n    tl.store(out, B)", &[2.0]),
    row("in at compile time", "if C in (1, 3) and 4 not in (1, 3):\n        tl.store(out, 1)", &[1.0]),
    row(
        "isinstance, hasattr, getattr",
        "if isinstance(C, int) and hasattr(x, 'dtype') and getattr(C, 'value', 0) == 3:\n        tl.store(out, 1)",
        &[1.0],
    ),
    row("int and float at compile time", "tl.store(out, int(2.9) + float('1.5'))", &[3.5]),
    row(
        "an f-string with names",
        "tl.static_assert(f'{C=} {C = }, {C == 3}' == 'C=3 C = 3, True')\n    tl.store(out, 1)",
        &[1.0],
    ),
    row("an f-string", "tl.static_assert(f'{C}-{tl.float32}' == '3-fp32')\n    tl.store(out, 1)", &[1.0]),
    row("a named expression", "if (v := n + 1) > 3:\n        tl.store(out, v)", &[6.0]),
    row("assert of what is known", "assert C == 3, 'three'\n    tl.store(out, 1)", &[1.0]),
    row(
        "reads what was stored before",
        "tl.store(out, 1)\n    tl.debug_barrier()\n    tl.store(out + 1, tl.load(out) + 1)",
        &[1.0, 2.0],
    ),
    row("offsets may be int64", "tl.store(out + i.to(tl.int64), i)", &[0.0, 1.0]),
    row("offsets are subtracted", "tl.store(out + n - 4, 1)", &[0.0, 1.0]),
    row("where chooses a pointer", "p = tl.where(n > 4, x + 2, x + 3)\n    tl.store(out, tl.load(p))", &[2.0]),
    row("casts truncate", "tl.store(out, tl.full([], -2.7, tl.float32).to(tl.int32))", &[-2.0]),
    row("a bool is a comparison with 0", "tl.store(out, tl.full([], 2, tl.int32).to(tl.int1))", &[1.0]),
    row("sum of comparisons", "tl.store(out, tl.sum(i > 2, 0))", &[5.0]),
    row("sum over all axes", "tl.store(out, tl.sum(i[:, None] + i[None, :]))", &[448.0]),
    row("xor_sum", "tl.store(out, tl.xor_sum(i + 8, 0))", &[0.0]),
    row("reduce with a function of blocks", "tl.store(out, tl.sum(i.reshape(2, 4), 1).max(0))", &[22.0]),
    row("cumsum", "tl.store(out + i, tl.cumsum(i, 0))", &[0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0, 28.0]),
    row(
        "cumsum backwards",
        "tl.store(out + i, tl.cumsum(i, 0, reverse=True))",
        &[28.0, 28.0, 27.0, 25.0, 22.0, 18.0, 13.0, 7.0],
    ),
    row("cumprod", "tl.store(out + i, tl.cumprod(i + 1, 0))", &[1.0, 2.0, 6.0, 24.0]),
    row("sort", "tl.store(out + i, tl.sort((i * 5) % 8))", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
    row(
        "sort downwards",
        "tl.store(out + i, tl.sort(tl.load(x + (i * 3) % 8), descending=True))",
        &[7.0, 6.0, 5.0, 4.0],
    ),
    row(
        "sort of rows",
        "v = tl.sort(((i * 5) % 8).reshape(2, 4))\n    tl.store(out + i, v.reshape(8))",
        &[0.0, 2.0, 5.0, 7.0, 1.0, 3.0, 4.0, 6.0],
    ),
    row("topk", "tl.store(out + tl.arange(0, 2), tl.topk((i * 5) % 8, 2))", &[7.0, 6.0, 0.0]),
    row("flip", "tl.store(out + i, tl.flip(i))", &[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]),
    row(
        "interleave",
        "a = tl.arange(0, 4)\n    tl.store(out + i, tl.interleave(a, a + 10))",
        &[0.0, 10.0, 1.0, 11.0, 2.0, 12.0],
    ),
    row("gather", "tl.store(out + i, tl.gather(tl.load(x + i), (i * 3) % 8, 0))", &[0.0, 3.0, 6.0, 1.0]),
    row(
        "gather along the second axis",
        "v = i.reshape(2, 4)\n    v = tl.gather(v, 3 - v % 4, 1)\n    tl.store(out + i, v.reshape(8))",
        &[3.0, 2.0, 1.0, 0.0, 7.0, 6.0, 5.0, 4.0],
    ),
    row("join and split", "a, b = tl.split(tl.join(i, i + 10))\n    tl.store(out + i, b - a)", &[10.0, 10.0]),
    row(
        "cat",
        "a = tl.arange(0, 4)\n    tl.store(out + i, tl.cat(a, a + 10, can_reorder=True))",
        &[0.0, 1.0, 2.0, 3.0, 10.0, 11.0],
    ),
    row(
        "permute and reshape",
        "a = tl.trans(i.reshape(2, 4))\n    tl.store(out + i, a.reshape(8))",
        &[0.0, 4.0, 1.0, 5.0, 2.0, 6.0],
    ),
    row("histogram", "tl.store(out + tl.arange(0, 4), tl.histogram(i % 3, 4))", &[3.0, 3.0, 2.0, 0.0]),
    row("softmax", "v = tl.softmax(tl.zeros([8], tl.float32))\n    tl.store(out + i, v)", &[0.125, 0.125]),
    row("clamp", "tl.store(out + i, tl.clamp(tl.load(x + i), 1.0, 3.0))", &[1.0, 1.0, 2.0, 3.0, 3.0]),
    row("cdiv", "tl.store(out, tl.cdiv(n, 2) * 10 + tl.cdiv(C, 2))", &[32.0]),
    row("swizzle2d", "a, b = tl.swizzle2d(n // 3, n % 3, 4, 3, 2)\n    tl.store(out, a * 10 + b)", &[12.0]),
    row("device_assert is left out", "tl.device_assert(n > 100, 'no')\n    tl.store(out, 1)", &[1.0]),
    row("bias of exponents", "tl.store(out, tl.float16.exponent_bias + tl.float8e4nv.exponent_bias)", &[22.0]),
    row("multiple_of is the value", "tl.store(out, tl.multiple_of(n, 5))", &[5.0]),
    row(
        "block pointers",
        "p = tl.make_block_ptr(x, (7,), (1,), (0,), (4,), (0,))\n    p = tl.advance(p, (4,))\n    \
         tl.store(out + tl.arange(0, 4), tl.load(p, boundary_check=(0,), padding_option='zero'))",
        &[4.0, 5.0, 6.0, 0.0],
    ),
    row(
        "descriptors",
        "d = tl.make_tensor_descriptor(x, [2, 4], [4, 1], [2, 4])\n    v = d.load([1, 0])\n    \
         tl.store(out + i, v.reshape(8))",
        &[4.0, 5.0, 6.0, 7.0, 0.0],
    ),
    row(
        "descriptors store",
        "d = tl.make_tensor_descriptor(out, [3], [1], [4])\n    d.store([0], tl.arange(0, 4) + 1.0)",
        &[1.0, 2.0, 3.0, 0.0],
    ),
    row("a dtype casts", "tl.store(out, tl.int32(tl.load(x + 3) + 0.5))", &[3.0]),
    row(
        "types are values",
        "tl.static_assert(i.type == tl.block_type(tl.int32, [8]) and x.type == tl.pointer_type(tl.float32))\n    \
         tl.store(out, 1)",
        &[1.0],
    ),
    row("a slice of None", "tl.store(out, i[None, None:None:None].shape[1])", &[8.0]),
    row(
        "a rounding mode on the same type",
        "v = tl.load(x + 1)\n    tl.store(out, v.to(tl.float32, fp_downcast_rounding='rtne'))",
        &[1.0],
    ),
    row("next_power_of_2", "tl.store(out, tl.next_power_of_2(C + 2))", &[8.0]),
    row("positions in the grid", "tl.store(out, tl.num_programs(0) * 10 + tl.program_id(0))", &[10.0]),
    row(
        "libdevice of bits",
        "tl.store(out, libdevice.popc(n * 3) * 100 + libdevice.clz(n) + libdevice.ffs(n * 8))\n    \
         tl.store(out + 1, libdevice.clz((n - 5).to(tl.int64)))\n    tl.store(out + 2, libdevice.brev(n) >> 29)",
        &[433.0, 64.0, -3.0],
    ),
    row(
        "libdevice of signs",
        "v = -tl.load(x)\n    tl.store(out, libdevice.signbit(v) * 10 + libdevice.copysign(3.0, v))\n    \
         tl.store(out + 1, libdevice.llrint(2.5) + libdevice.saturatef(tl.load(x + 3)))\n    \
         tl.store(out + 2, libdevice.round(-2.5))\n    tl.store(out + 3, libdevice.rcp_rn(tl.load(x + 4)))",
        &[7.0, 3.0, -3.0, 0.25],
    ),
    row("libdevice", "tl.store(out, libdevice.pow(tl.load(x + 3), tl.load(x + 2)))", &[9.0]),
    row("atomic_add gives the old value", "v = tl.atomic_add(out, 2)\n    tl.store(out + 1, v + 1)", &[2.0, 1.0]),
    row("atomics are masked", "tl.atomic_add(out + i, 1.0, mask=i < 2)", &[1.0, 1.0, 0.0]),
    row(
        "the largest float, of both signs",
        "tl.store(out + i, -5.0)\n    tl.atomic_max(out, 3.5)\n    tl.atomic_max(out, -2)\n    \
         tl.atomic_max(out + 1, -1)",
        &[3.5, -1.0],
    ),
    row(
        "the least float, of both signs",
        "tl.store(out + i, 5.0)\n    tl.atomic_min(out, -3.5)\n    tl.atomic_min(out, 2)\n    \
         tl.atomic_min(out + 1, 1)",
        &[-3.5, 1.0],
    ),
    row("compare and swap", "v = tl.atomic_cas(out, 0.0, 5.0)\n    tl.store(out + 1, v + 1)", &[5.0, 1.0]),
    row("exchange", "v = tl.atomic_xchg(x + 2, 9.0)\n    tl.store(out, tl.load(x + 2) * 10 + v)", &[92.0]),
    row(
        "a spin lock",
        "p = out.to(tl.pointer_type(tl.int32), bitcast=True) + 7\n    \
         while tl.atomic_cas(p, 0, 1) == 1:\n        pass\n    tl.store(out, 3)\n    tl.atomic_xchg(p, 0)",
        &[3.0],
    ),
    row("`>>` of uint32 is logical", "tl.store(out, (n - 6).to(tl.uint32) >> 28)", &[15.0]),
    row("uint32 is divided without sign", "tl.store(out, (n - 6).to(tl.uint32) // 0x10000000)", &[15.0]),
    row("comparison of uint32", "tl.store(out, (n - 6).to(tl.uint32) > 5)", &[1.0]),
    row(
        "a loop counts in uint32",
        "v = 0\n    for k in range(n.to(tl.uint32)):\n        v += 1\n    tl.store(out, v)",
        &[5.0],
    ),
    row("umulhi", "tl.store(out, tl.umulhi((n - 6).to(tl.uint32), tl.full([], 16, tl.uint32)))", &[15.0]),
    row("fma", "tl.store(out, tl.fma(tl.load(x + 2), tl.load(x + 3), 1.0))", &[7.0]),
    row("div_rn and sqrt_rn", "tl.store(out, tl.div_rn(tl.sqrt_rn(tl.load(x + 4)), 4.0))", &[0.5]),
    row(
        "rounding towards zero",
        "v = tl.full([], 1.9999, tl.float32).to(tl.bfloat16, fp_downcast_rounding='rtz')\n    \
         tl.store(out, v.to(tl.float32) < 2)",
        &[1.0],
    ),
    row(
        "functions of the language combine elements",
        "v = tl.reduce(i, 0, tl.maximum)\n    f: tl.constexpr = tl.minimum\n    \
         tl.store(out, v * 10 + tl.reduce(i + 2, 0, f))",
        &[72.0],
    ),
    row("atomic_add without its result", "tl.atomic_add(out, 1.5)\n    tl.atomic_add(out, 2)", &[3.5]),
];

fn kernel(body: &str) -> String {
    format!("\ndef kernel(out, x, n, C: tl.constexpr):\n    i = tl.arange(0, 8)\n    {body}\n")
}

fn arguments() -> Vec<kiln_kernels::Argument> {
    vec![pointer(Number::Float32), pointer(Number::Float32), scalar(Number::Int32), int(3)]
}

#[test]
fn statements_compute_these() {
    let mut wrong = vec![];
    for Row { rule, body, out } in ROWS {
        let kernel = kernel(body);
        if let Err(error) = compiled(&kernel, arguments()) {
            wrong.push(format!("{rule}: {error}"));
            continue;
        }
        let buffers = vec![zeros(Elem::F32, 8), buffer(Elem::F32, (0..8).map(f64::from)), buffer(Elem::I32, [5.0])];
        let got = executed(&kernel, arguments(), [1, 1, 1], buffers)[0].to_f64();
        if got[..out.len()] != **out {
            wrong.push(format!("{rule}: {got:?}, not {out:?}:{kernel}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Bodies that are errors, the kind, a part of the message.
const REFUSED: &[(&str, ErrorKind, &str)] = &[
    ("tl.store(out, abs('x'))", ErrorKind::Type, "'x' has no run-time value"),
    ("v = 0\n    for k in range(n):\n        v += 1.5", ErrorKind::Type, "`v` is int32 ahead of the loop, and float32"),
    ("for k in range(n):\n        v = k\n    tl.store(out, v)", ErrorKind::Name, "`v` is first assigned in a loop"),
    ("for k in range(n):\n        pass\n    tl.store(out, k)", ErrorKind::Name, "`k` is the index of a loop"),
    ("if n > 1:\n        v = 1\n    tl.store(out, v)", ErrorKind::Name, "`v` is assigned on one side"),
    (
        "if n > 1:\n        v = 1\n    else:\n        v = 1.0\n    tl.store(out, v)",
        ErrorKind::Name,
        "Mismatched type for v between",
    ),
    ("for k in range(n):\n        return", ErrorKind::Unsupported, "`return` in a loop"),
    ("for k in range(n):\n        break", ErrorKind::Unsupported, "`break` is not supported"),
    ("for k in range(n):\n        continue", ErrorKind::Unsupported, "`continue` is not supported"),
    ("if i > 2:\n        pass", ErrorKind::Type, "has no single truth"),
    ("B = 8\n    j = tl.arange(0, B)", ErrorKind::Type, "`end` is int32"),
    ("j = tl.arange(6, 6)", ErrorKind::Value, "is empty"),
    ("v = i + tl.arange(0, 4)", ErrorKind::Type, "shapes [8] and [4] do not broadcast"),
    ("v = i[i]", ErrorKind::Unsupported, "is no index of a block"),
    ("v = i[8]", ErrorKind::Value, "element 8 of 8"),
    ("v = i[3:3]", ErrorKind::Value, "is empty"),
    ("v = i[n:8]", ErrorKind::Type, "a slice of a block ends at int32"),
    ("v = i[..., ..., 0]", ErrorKind::Value, "`...` twice"),
    ("v = i[0, 1]", ErrorKind::Value, "the index names 2"),
    ("(i + 1)[2] = 1", ErrorKind::Unsupported, "that has no name"),
    ("i[2:4] = i", ErrorKind::Type, "do not broadcast"),
    ("C[2] = 1", ErrorKind::Unsupported, "elements of the constant 3 are not assigned"),
    ("v = tl.load(n)", ErrorKind::Type, "load takes a pointer"),
    ("v = tl.load(x, mask=i > 2)", ErrorKind::Type, "a single pointer"),
    ("v = tl.load(x + i, other=0)", ErrorKind::Value, "`other` is given without `mask`"),
    ("tl.static_assert(C == 4, 'four')", ErrorKind::Assertion, "four"),
    ("assert C == 4, f'{C} is not 4'", ErrorKind::Assertion, "3 is not 4"),
    ("tl.static_assert(n == 4)", ErrorKind::Type, "known only at run time"),
    ("def inner():\n        pass", ErrorKind::Unsupported, "`def` is not supported"),
    ("v = {1: 2}", ErrorKind::Unsupported, "dictionary is not supported"),
    ("v = i.reshape(3, 3)", ErrorKind::Value, "has 8 elements, and shape [3, 3] has 9"),
    ("v = i.reshape(2, 2)", ErrorKind::Value, "has 8 elements"),
    ("v = tl.load(x + i, cache_modifier='.xx')", ErrorKind::Value, "cache_modifier '.xx'"),
    ("v = tl.dot(i, i)", ErrorKind::Type, "dot takes two blocks of two axes"),
    ("v = x + x", ErrorKind::Type, "`+` is not defined on pointer<float32> and pointer<float32>"),
    ("v = x * 2", ErrorKind::Type, "`*` is not defined on pointer<float32>"),
    ("v = x + 1.5", ErrorKind::Type, "`+` is not defined on pointer<float32>"),
    ("a, b = (1, 2, 3)", ErrorKind::Type, "3 values are assigned to 2 names"),
    ("v = (1, 2)[5]", ErrorKind::Value, "element 5 of a tuple of 2"),
    ("v = C.nothing", ErrorKind::Name, "no attribute `nothing`"),
    ("v = tl.load(pointer=x, pointr=x)", ErrorKind::Type, "has no parameter `pointr`"),
    ("for k in tl.static_range(n):\n        pass", ErrorKind::Type, "static_range runs to int32"),
    ("for k in range(0, n, 0):\n        pass", ErrorKind::Value, "step of a range is 0"),
    ("v = tl.program_id(3)", ErrorKind::Value, "no axis 3"),
    ("v = 1 // 0", ErrorKind::Value, "division by zero"),
    ("v = tl.load(x + i) & n", ErrorKind::Type, "`&` has invalid operands of type float32 and int32"),
    ("v = tl.load(x) >> 1", ErrorKind::Type, "`>>` has invalid operands of type float32 and int32"),
    ("v = i.reshape(1, 2, 1, 2, 1, 2, 1)", ErrorKind::Unsupported, "has 7 axes"),
    (
        "v = tl.load(x).to(tl.float8e5, fp_downcast_rounding='rtz')",
        ErrorKind::Unsupported,
        "to float8e5 toward zero is not supported",
    ),
    ("v = tl.sum(i, 1)", ErrorKind::Value, "axis 1 of a block of 1 axes"),
];

#[test]
fn statements_refuse_these() {
    for (body, kind, part) in REFUSED {
        let error = refused(&kernel(body), arguments());
        assert!(error.message.contains(part) && error.kind == *kind, "{body}: {error}");
        assert!(error.place.is_some() && error.hint.is_some(), "{body}: {error}");
    }
}
