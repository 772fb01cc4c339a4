# Functions of numbers.


def cdiv(x, div):
    return (x + (div - 1)) // div


def sigmoid(x):
    return 1 / (1 + exp(-x))


def softmax(x, dim=None, keep_dims=False, ieee_rounding=False):
    axis: constexpr = 0 if dim is None else dim
    shifted = x - max(x, axis, keep_dims=True)
    numerator = exp(shifted)
    return fdiv(numerator, sum(numerator, axis, keep_dims=True), ieee_rounding)


def swizzle2d(i, j, size_i, size_j, size_g):
    # Groups of `size_g` rows are walked column by column; the last group may have fewer rows.
    linear = i * size_j + j
    group_size = size_g * size_j
    group = linear // group_size
    first_row = group * size_g
    rows = minimum(size_i - first_row, size_g)
    within = linear % group_size
    return first_row + within % rows, within // rows


def exp10(x):
    return exp2(x * 3.321928094887362)


def fast_exp10f(x):
    return exp2(x * 3.321928094887362)


def round(x):
    # Halves go away from zero.
    whole = trunc(x)
    step = where(x < 0, -1.0, 1.0)
    return where(abs(x - whole) >= 0.5, whole + step, whole)


def isfinited(x):
    return (isnan(x) | isinf(x)) == 0


def finitef(x):
    return (isnan(x) | isinf(x)) == 0


def relu(x):
    return maximum(x, 0.0)


def fdim(x, y):
    return where(x > y, x - y, 0.0)


def hypot(x, y):
    return sqrt(x * x + y * y)


def cbrt(x):
    root = exp2(log2(abs(x)) / 3.0)
    return where(x == 0, x, where(x < 0, -root, root))
