# Products of blocks in microscaling formats: elements of few bits, and a power of two for each group of them along the
# inner axis. Both are multiplied exactly in float16 or bfloat16, which go into a plain product.


# Two elements of 4 bits (sign, two bits of exponent, one of mantissa) in a byte, the lower one first.
def _from_float4(nibble, wide: constexpr):
    mantissa: constexpr = 10 if wide == float16 else 7
    half: constexpr = 0x3800 if wide == float16 else 0x3F00
    size = (nibble & 7).to(uint16)
    normal = (size << (mantissa - 1)) + half
    bits = where(size > 1, normal, where(size == 1, half, 0).to(uint16))
    return (bits | ((nibble & 8).to(uint16) << 12)).to(wide, bitcast=True)


def _unpacked_float4(x, along_rows: constexpr, wide: constexpr):
    if along_rows:
        return trans(_unpacked_float4(trans(x), False, wide))
    return interleave(_from_float4(x & 15, wide), _from_float4(x >> 4, wide))


def _elements(x, format: constexpr, along_rows: constexpr, wide: constexpr):
    if format == "e2m1":
        return _unpacked_float4(x.to(uint8, bitcast=True), along_rows, wide)
    if format == "e4m3":
        return x.to(float8e4nv, bitcast=True).to(wide)
    if format == "e5m2":
        return x.to(float8e5, bitcast=True).to(wide)
    if format == "bf16":
        return x.to(bfloat16, bitcast=True).to(wide)
    static_assert(format == "fp16", "formats are e2m1, e4m3, e5m2, bf16 and fp16")
    return x.to(float16, bitcast=True).to(wide)


# A byte is an exponent of two with bias 127, and 255 is NaN; other scales are 8-bit floats.
def _scale_factors(scale, wide: constexpr):
    if scale.dtype.is_fp8():
        return scale.to(wide)
    byte = scale.to(uint8, bitcast=True)
    bits = byte.to(uint32) << 23
    bits = where(byte == 0, 0x400000, where(byte == 255, 0x7FC00000, bits)).to(uint32)
    return bits.to(float32, bitcast=True).to(wide)


# Scales of shape [rows, groups], each repeated for the elements of its group.
def _scaled(x, scale, wide: constexpr):
    if scale is None:
        return x
    rows: constexpr = x.shape[0]
    groups: constexpr = scale.shape[1]
    static_assert(scale.shape[0] == rows, "scales have one row for each row of the left operand or column of the right")
    static_assert(x.shape[1] % groups == 0, "scales divide the inner axis into equal groups")
    factors = broadcast_to(expand_dims(_scale_factors(scale, wide), 2), [rows, groups, x.shape[1] // groups])
    return x * reshape(factors, [rows, x.shape[1]])


def dot_scaled(
    lhs,
    lhs_scale,
    lhs_format: constexpr,
    rhs,
    rhs_scale,
    rhs_format: constexpr,
    acc=None,
    fast_math=False,
    lhs_k_pack: constexpr = True,
    rhs_k_pack: constexpr = True,
    out_dtype: constexpr = float32,
):
    static_assert(out_dtype == float32, "dot_scaled gives float32")
    static_assert(len(lhs.shape) == 2 and len(rhs.shape) == 2, "dot_scaled takes blocks of two axes")
    static_assert(lhs_k_pack or lhs_format == "e2m1", "only e2m1 is packed along the outer axis")
    static_assert(rhs_k_pack or rhs_format == "e2m1", "only e2m1 is packed along the outer axis")
    wide: constexpr = float16 if lhs_format == "fp16" or rhs_format == "fp16" else bfloat16
    a = _scaled(_elements(lhs, lhs_format, not lhs_k_pack, wide), lhs_scale, wide)
    b = _elements(rhs, rhs_format, rhs_k_pack, wide)
    if rhs_scale is not None:
        b = trans(_scaled(trans(b), rhs_scale, wide))
    return dot(a, b, acc)
