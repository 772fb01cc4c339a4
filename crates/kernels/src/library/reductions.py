# Reductions and scans.


def _sum_combine(a, b):
    return a + b


def _product_combine(a, b):
    return a * b


def _xor_combine(a, b):
    return a ^ b


def _or_combine(a, b):
    return a | b


def _max_combine(a, b):
    return maximum(a, b)


def _min_combine(a, b):
    return minimum(a, b)


def _argmax_left(value1, index1, value2, index2):
    take1 = (value1 > value2) | ((value1 == value2) & (index1 < index2))
    return where(take1, value1, value2), where(take1, index1, index2)


def _argmax_any(value1, index1, value2, index2):
    take1 = value1 > value2
    return where(take1, value1, value2), where(take1, index1, index2)


def _argmin_left(value1, index1, value2, index2):
    take1 = (value1 < value2) | ((value1 == value2) & (index1 < index2))
    return where(take1, value1, value2), where(take1, index1, index2)


def _argmin_any(value1, index1, value2, index2):
    take1 = value1 < value2
    return where(take1, value1, value2), where(take1, index1, index2)


def _with_indices(input, axis, combine, keep_dims):
    return reduce((input, _index_along(input, axis)), axis, combine, keep_dims=keep_dims)


# Halves and small integers are compared in 32 bits.
def _widened(input):
    if input.dtype.primitive_bitwidth < 32:
        if input.dtype.is_floating():
            return input.to(float32)
        return input.to(int32)
    return input


def _bf16_as_float32(input):
    if input.dtype.is_bf16():
        return input.to(float32)
    return input


# Integers under 32 bits are summed in 32 bits of their sign.
def _summed(input, dtype):
    if dtype is not None:
        return input.to(dtype)
    if input.dtype.is_bool():
        return input.to(int32)
    if input.dtype.is_int_signed() and input.dtype.int_bitwidth < 32:
        return input.to(int32)
    if input.dtype.is_int_unsigned() and input.dtype.int_bitwidth < 32:
        return input.to(uint32)
    return input


def max(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    if return_indices:
        if return_indices_tie_break_left:
            return _with_indices(_bf16_as_float32(input), axis, _argmax_left, keep_dims)
        return _with_indices(_bf16_as_float32(input), axis, _argmax_any, keep_dims)
    return reduce(_widened(input), axis, _max_combine, keep_dims=keep_dims)


def min(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    if return_indices:
        if return_indices_tie_break_left:
            return _with_indices(_bf16_as_float32(input), axis, _argmin_left, keep_dims)
        return _with_indices(_bf16_as_float32(input), axis, _argmin_any, keep_dims)
    return reduce(_widened(input), axis, _min_combine, keep_dims=keep_dims)


def argmax(input, axis, tie_break_left=True, keep_dims=False):
    _, index = max(input, axis, return_indices=True, return_indices_tie_break_left=tie_break_left, keep_dims=keep_dims)
    return index


def argmin(input, axis, tie_break_left=True, keep_dims=False):
    _, index = min(input, axis, return_indices=True, return_indices_tie_break_left=tie_break_left, keep_dims=keep_dims)
    return index


def sum(input, axis=None, keep_dims=False, dtype: constexpr = None):
    return reduce(_summed(input, dtype), axis, _sum_combine, keep_dims=keep_dims)


def xor_sum(input, axis=None, keep_dims=False):
    static_assert(input.type.scalar.is_int(), "xor_sum takes integers")
    return reduce(input, axis, _xor_combine, keep_dims=keep_dims)


def reduce_or(input, axis=None, keep_dims=False):
    static_assert(input.type.scalar.is_int(), "reduce_or takes integers")
    return reduce(input, axis, _or_combine, keep_dims=keep_dims)


def cumsum(input, axis=0, reverse=False, dtype: constexpr = None):
    return associative_scan(_summed(_bf16_as_float32(input), dtype), axis, _sum_combine, reverse)


def cumprod(input, axis=0, reverse=False):
    return associative_scan(_bf16_as_float32(input), axis, _product_combine, reverse)
