# Bitonic sorting networks along the last axis. A block is flat here: bit j of an element's index is the middle axis
# of the shape [count / 2^(j+1), 2, 2^j].


# What tells both elements of a pair from each other: a block of integers, whose exclusive or gives the partner.
def _bits_of_elements(x):
    if not x.dtype.is_floating():
        return x
    if x.dtype.primitive_bitwidth == 8:
        return x.to(uint8, bitcast=True)
    if x.dtype.primitive_bitwidth == 16:
        return x.to(uint16, bitcast=True)
    if x.dtype.primitive_bitwidth == 32:
        return x.to(uint32, bitcast=True)
    return x.to(uint64, bitcast=True)


# Orders the two elements that differ in one bit of their index. `order` is 0 for ascending, 1 for descending, and 2 for
# descending where bit `stage` of the index is set. Elements stay where they are: each takes its partner or itself.
def _compare_and_swap(x, bit: constexpr, stage: constexpr, order: constexpr):
    outer: constexpr = x.numel // 2 ** (bit + 1)
    pairs = reshape(x, [outer, 2, 2**bit])
    bits = _bits_of_elements(pairs)
    other = (bits ^ reduce(bits, 1, _xor_combine, keep_dims=True)).to(x.dtype, bitcast=True)
    upper = (arange(0, 2) == 1)[None, :, None]
    if order == 2:
        flip = (((arange(0, outer) >> (stage - bit - 1)) & 1) == 1)[:, None, None]
        swap = where(upper, other > pairs, pairs > other) != flip
    elif order == 1:
        swap = where(upper, pairs > other, other > pairs)
    else:
        swap = where(upper, other > pairs, pairs > other)
    return reshape(where(swap, other, pairs), [x.numel])


def _merge(x, stage: constexpr, order: constexpr):
    for i in static_range(stage):
        x = _compare_and_swap(x, stage - 1 - i, stage, order)
    return x


def _larger(a, b):
    return where(a > b, a, b)


def _smaller(a, b):
    return where(a > b, b, a)


# The larger (or smaller) halves of neighbouring sorted runs of `2^log_k` elements, one ascending and one descending.
def _keep_half(x, log_k: constexpr, descending: constexpr):
    pairs = reshape(x, [x.numel // 2 ** (log_k + 1), 2, 2**log_k])
    kept = reduce(pairs, 1, _larger if descending else _smaller)
    return reshape(kept, [x.numel // 2])


# What fills a block up to powers of two comes last.
def _sorted_runs(x, k: constexpr, dim: constexpr, descending: constexpr):
    axis: constexpr = len(x.shape) - 1 if dim is None else dim
    static_assert(axis == len(x.shape) - 1 or axis == -1, "blocks are sorted along their last axis")
    kept: constexpr = x.shape[-1] if k is None else k
    static_assert(kept <= x.shape[-1], "topk takes at most the elements of the last axis")
    runs = _sorted_powers(_with_pads(x, not descending), _exact_log2(next_power_of_2(kept)), descending)
    return _without_pads(runs, x.shape[:-1] + [kept])


def _sorted_powers(x, log_k: constexpr, descending: constexpr):
    log_n: constexpr = _exact_log2(x.shape[-1])
    order: constexpr = 1 if descending else 0
    flat = reshape(x, [x.numel])
    for stage in static_range(1, log_k + 1):
        flat = _merge(flat, stage, 2 if stage < log_n else order)
    for stage in static_range(log_k + 1, log_n + 1):
        flat = _keep_half(flat, log_k, descending)
        flat = _merge(flat, log_k, 2 if stage < log_n else order)
    return reshape(flat, x.shape[:-1] + [2**log_k])


def sort(x, dim: constexpr = None, descending: constexpr = False):
    return _sorted_runs(x, None, dim, descending)


def topk(x, k: constexpr, dim: constexpr = None, descending: constexpr = True):
    return _sorted_runs(x, k, dim, descending)


def sort_impl(x, k: constexpr = None, dim: constexpr = None, descending: constexpr = False):
    return _sorted_runs(x, k, dim, descending)


def bitonic_merge(x, dim: constexpr = None, descending: constexpr = False):
    order: constexpr = 1 if descending else 0
    merged = _merge(reshape(x, [x.numel]), _exact_log2(x.shape[-1]), order)
    return reshape(merged, x.shape)
