# Philox 4x32, a counter-based generator of random bits, and the distributions made of it.


def philox_impl(c0, c1, c2, c3, k0, k1, n_rounds: constexpr = 10):
    if c0.dtype == uint32:
        key_a: constexpr = 0x9E3779B9
        key_b: constexpr = 0xBB67AE85
        round_a: constexpr = 0xD2511F53
        round_b: constexpr = 0xCD9E8D57
    else:
        static_assert(c0.dtype == uint64, "philox takes uint32 or uint64")
        key_a: constexpr = 0x9E3779B97F4A7C15
        key_b: constexpr = 0xBB67AE8584CAA73B
        round_a: constexpr = 0xD2E7470EE14C6C93
        round_b: constexpr = 0xCA5A826395121157
    for _ in static_range(n_rounds):
        old_c0 = c0
        old_c2 = c2
        multiplier_a = full([], round_a, c0.dtype)
        multiplier_b = full([], round_b, c0.dtype)
        c0 = umulhi(multiplier_b, old_c2) ^ c1 ^ k0
        c2 = umulhi(multiplier_a, old_c0) ^ c3 ^ k1
        c1 = old_c2 * multiplier_b
        c3 = old_c0 * multiplier_a
        k0 = k0 + full([], key_a, k0.dtype)
        k1 = k1 + full([], key_b, k1.dtype)
    return c0, c1, c2, c3


def philox(seed, c0, c1, c2, c3, n_rounds: constexpr = 10):
    seed = to_tensor(seed).to(uint64)
    c0 = to_tensor(c0)
    c1 = to_tensor(c1)
    c2 = to_tensor(c2)
    c3 = to_tensor(c3)
    if c0.dtype.primitive_bitwidth == 32:
        word: constexpr = uint32
        key_high = ((seed >> 32) & 0xFFFFFFFF).to(uint32)
        key_low = (seed & 0xFFFFFFFF).to(uint32)
    else:
        word: constexpr = uint64
        key_high = full([], 0, uint64)
        key_low = seed
    return philox_impl(
        c0.to(word, bitcast=True),
        c1.to(word, bitcast=True),
        c2.to(word, bitcast=True),
        c3.to(word, bitcast=True),
        key_low,
        key_high,
        n_rounds,
    )


def randint4x(seed, offset, n_rounds: constexpr = 10):
    offset = to_tensor(offset)
    if offset.dtype.primitive_bitwidth > 32:
        low = (offset & 0xFFFFFFFF).to(uint32)
        high = ((offset >> 32) & 0xFFFFFFFF).to(uint32)
    else:
        low = offset.to(uint32)
        high = low * 0
    zero = low * 0
    return philox(seed, low, high, zero, zero, n_rounds)


def randint(seed, offset, n_rounds: constexpr = 10):
    value, _, _, _ = randint4x(seed, offset, n_rounds)
    return value


# Bits as a float in [0, 1).
def uint_to_uniform_float(x):
    if x.dtype == uint32 or x.dtype == int32:
        signed = x.to(int32, bitcast=True)
        scale: constexpr = 4.6566127342e-10
    else:
        signed = x.to(int64, bitcast=True)
        scale: constexpr = 1.0842020432385337e-19
    positive = where(signed < 0, -signed - 1, signed)
    return positive * scale


def rand(seed, offset, n_rounds: constexpr = 10):
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


def rand4x(seed, offsets, n_rounds: constexpr = 10):
    a, b, c, d = randint4x(seed, offsets, n_rounds)
    return uint_to_uniform_float(a), uint_to_uniform_float(b), uint_to_uniform_float(c), uint_to_uniform_float(d)


# The Box-Muller transform.
def pair_uniform_to_normal(u1, u2):
    u1 = maximum(1.0e-7, u1)
    angle = 6.283185307179586 * u2
    radius = sqrt(-2.0 * log(u1))
    return radius * cos(angle), radius * sin(angle)


def randn(seed, offset, n_rounds: constexpr = 10):
    a, b, _, _ = randint4x(seed, offset, n_rounds)
    normal, _ = pair_uniform_to_normal(uint_to_uniform_float(a), uint_to_uniform_float(b))
    return normal


def randn4x(seed, offset, n_rounds: constexpr = 10):
    a, b, c, d = rand4x(seed, offset, n_rounds)
    n1, n2 = pair_uniform_to_normal(a, b)
    n3, n4 = pair_uniform_to_normal(c, d)
    return n1, n2, n3, n4
