# Functions of `libdevice` that no single op computes: of the bits of numbers, and elementary ones by others.


def float_as_int(x):
    return x.to(int32, bitcast=True)


def int_as_float(x):
    return x.to(float32, bitcast=True)


def _bits_of_float(x):
    if x.dtype.is_fp64():
        return x.to(int64, bitcast=True)
    static_assert(x.dtype.is_fp32(), "bits are those of float32 and float64")
    return x.to(int32, bitcast=True)


def signbit(x):
    return (_bits_of_float(to_tensor(x)) < 0).to(int32)


def copysign(x, y):
    size = abs(x)
    return where(_bits_of_float(to_tensor(y)) < 0, -size, size)


def asinh(x):
    a = abs(x)
    large = a > 268435456.0
    small = where(large, 1.0, a)
    inner = log1p(small + small * small / (1.0 + sqrt(1.0 + small * small)))
    return copysign(where(large, log(a) + 0.6931471805599453, inner), x)


def acosh(x):
    large = x > 268435456.0
    above = where(large, 1.0, x) - 1.0
    inner = log1p(above + sqrt(2.0 * above + above * above))
    return where(large, log(x) + 0.6931471805599453, inner)


def atanh(x):
    return 0.5 * log1p(2.0 * x / (1.0 - x))


def sinpi(x):
    return sin(3.141592653589793 * (x - 2.0 * rint(0.5 * x)))


def cospi(x):
    return cos(3.141592653589793 * (x - 2.0 * rint(0.5 * x)))


def rcp_rn(x):
    return div_rn(1.0, x)


def saturatef(x):
    # NaN becomes 0.
    return minimum(maximum(x, 0.0), 1.0)


def llrint(x):
    return rint(x).to(int64)


def float2int_rn(x):
    return rint(x).to(int32)


def int2float_rn(x):
    return x.to(float32)


def _unsigned(x):
    if x.dtype.primitive_bitwidth == 64:
        return x.to(uint64, bitcast=True)
    static_assert(x.dtype.primitive_bitwidth == 32, "bits are counted in integers of 32 and 64 bits")
    return x.to(uint32, bitcast=True)


# Neighbouring counts are added, in fields that grow from 1 bit to 32.
def _bits_32(x):
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24


def popc(x):
    bits = _unsigned(to_tensor(x))
    if bits.dtype == uint64:
        return (_bits_32(bits.to(uint32)) + _bits_32((bits >> 32).to(uint32))).to(int32)
    return _bits_32(bits).to(int32)


def clz(x):
    bits = _unsigned(to_tensor(x))
    for step in static_range(6 if bits.dtype == uint64 else 5):
        bits = bits | (bits >> (1 << step))
    return popc(~bits)


def ffs(x):
    bits = _unsigned(to_tensor(x))
    lowest = bits & (~bits + 1)
    return where(bits == 0, 0, popc(lowest - 1) + 1)


def brev(x):
    bits = _unsigned(to_tensor(x))
    static_assert(bits.dtype == uint32, "bits are reversed in integers of 32 bits")
    bits = ((bits >> 1) & 0x55555555) | ((bits & 0x55555555) << 1)
    bits = ((bits >> 2) & 0x33333333) | ((bits & 0x33333333) << 2)
    bits = ((bits >> 4) & 0x0F0F0F0F) | ((bits & 0x0F0F0F0F) << 4)
    bits = ((bits >> 8) & 0x00FF00FF) | ((bits & 0x00FF00FF) << 8)
    return ((bits >> 16) | (bits << 16)).to(int32, bitcast=True)
