# Blocks: made, moved, and turned around.


def zeros(shape, dtype):
    return full(shape, 0, dtype)


def zeros_like(input):
    return full(input.shape, 0, input.dtype)


def ones(shape, dtype):
    return full(shape, 1, dtype)


def ravel(x, can_reorder=False):
    return reshape(x, [x.numel])


def interleave(a, b):
    both = join(a, b)
    if len(both.shape) == 1:
        return both
    return reshape(both, both.shape[:-2] + [2 * both.shape[-2]])


def squeeze(x, dim: constexpr):
    static_assert(x.shape[dim] == 1, "squeeze drops an axis of size 1")
    at: constexpr = dim if dim >= 0 else dim + len(x.shape)
    return reshape(x, x.shape[:at] + x.shape[at + 1 :])


def unsqueeze(x, dim: constexpr):
    return expand_dims(x, dim)


def flip(x, dim=None):
    axis: constexpr = len(x.shape) - 1 if dim is None else dim
    return _flip(x, axis)
