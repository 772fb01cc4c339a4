"""The calls that tests/operators.rs compares: `operators.py FOLDER`. A row is an operator with its overload, and its arguments; those that
are not given have their default."""

import math
import sys
from pathlib import Path

import drawn
import torch
from calls import FLOATS, INTS, case, normal, special, whole, write
from torch.nn import functional as F

f32, f64, i64, i32, boolean = torch.float32, torch.float64, torch.int64, torch.int32, torch.bool


def positive(dtype, *shape):
    return (torch.rand(*shape) * 0.9 + 0.05).to(dtype)


def mask(*shape):
    m = torch.rand(*shape) > 0.4
    m[..., 0] = True
    return m


# Attention of a device: the same function, with the arguments of each form.
for d in FLOATS:
    q, k, v = normal(d, 2, 4, 9, 8), normal(d, 2, 4, 7, 8), normal(d, 2, 4, 7, 8)
    bias = normal(d, 2, 4, 9, 7)
    bias[0, 0, 1] = -math.inf
    square = [normal(d, 2, 4, 9, 8) for _ in range(3)]

    def reference(q, k, v, **options):
        """One result, and a logsumexp that nothing reads."""
        return lambda: (F.scaled_dot_product_attention(q, k, v, **options), torch.zeros(q.shape[:3]))

    base = "_scaled_dot_product_"
    case(base + "flash_attention_for_cpu", q, k, v, attn_mask=bias, keep=1)
    case(base + "flash_attention_for_cpu", *square, 0.0, True, scale=0.3, keep=1)
    case(base + "flash_attention", *square, 0.0, True, scale=0.3, by=reference(*square, is_causal=True, scale=0.3), keep=1)
    case(base + "flash_attention", q, k, v, by=reference(q, k, v), keep=1)

    # Exponentials become weights of the half type, so torch's kernels of some processors compute them no better than that: their sum, and
    # with it the log-sum-exp, has the relative error of one rounding.
    exponentials = (0.0, 0.0 if d == f32 else torch.finfo(d).eps / 2)
    # With the log-sum-exp.
    case(base + "flash_attention_for_cpu", q, k, v, attn_mask=normal(d, 2, 4, 9, 7), keep=2, rounding=exponentials)
    case(base + "flash_attention_for_cpu", *square, 0.0, True, scale=0.3, keep=2, rounding=exponentials)

    def both(q, k, v, scale):
        sums = torch.logsumexp(q.float() @ k.float().mT * scale, -1)
        return lambda: (F.scaled_dot_product_attention(q, k, v, scale=scale), sums)

    case(base + "flash_attention", q, k, v, scale=0.2, by=both(q, k, v, 0.2), keep=2)
    case(base + "cudnn_attention", q, k, v, None, True, scale=0.2, by=both(q, k, v, 0.2), keep=2)
    for form in ("efficient_attention", "cudnn_attention"):
        case(base + form, q, k, v, bias, False, by=reference(q, k, v, attn_mask=bias), keep=1)
        case(base + form, *square, None, False, 0.0, True, scale=0.2, by=reference(*square, is_causal=True, scale=0.2), keep=1)
    case(base + "fused_attention_overrideable", q, k, v, bias, scale=0.4, by=reference(q, k, v, attn_mask=bias, scale=0.4), keep=1)
    case(base + "attention_math", q, k, v, bias, scale=0.4, keep=1)
    case("scaled_dot_product_attention", q, k, v, mask(9, 7))
    case(base + "attention_math", q, k, v, mask(9, 7), keep=1, left="a bool mask where torch adds it")
    case("_safe_softmax", bias, -1)
    case("_safe_softmax", bias, 1, f32)
    case("scaled_dot_product_attention", *square, None, 0.1, refused="saved in training mode")
for form, arguments in (("flash_attention", [0.5]), ("efficient_attention", [None, False, 0.5]), ("flash_attention_for_cpu", [0.5])):
    q = normal(f32, 1, 2, 3, 8)
    case(f"_scaled_dot_product_{form}", q, q, q, *arguments, refused="saved in training mode")

# Norms.
for d in FLOATS:
    x, gain, shift = normal(d, 3, 6, 5, 4), normal(d, 6), normal(d, 6)
    mean, var = normal(d, 6), positive(d, 6)
    case("native_layer_norm", x, [5, 4], normal(d, 5, 4), None, 1e-5, keep=1)
    case("native_group_norm", x, gain, shift, 3, 6, 20, 3, 1e-5, keep=1)
    case("native_group_norm", x, None, None, 3, 6, 20, 2, 1e-3, keep=1)
    case("native_batch_norm", x, gain, shift, mean, var, False, 0.1, 1e-5, keep=1)
    case("_native_batch_norm_legit_functional", x, gain, shift, mean, var, False, 0.1, 1e-5, keep=1)
    case("_native_batch_norm_legit_no_training", x, gain, shift, mean, var, 0.1, 1e-5, keep=1)
    case("_batch_norm_no_update", x, None, shift, mean, var, 0.1, 1e-5, keep=1)
    case("_native_batch_norm_legit.no_stats", x, gain, shift, True, 0.1, 1e-5, keep=1)
    case("_native_batch_norm_legit.no_stats", normal(d, 1, 6, 9), None, None, True, 0.1, 1e-5, keep=1)
    case("batch_norm", x, gain, None, None, None, True, 0.1, 1e-5, False)
    case("_weight_norm", normal(d, 4, 3, 2), positive(d, 4, 1, 1), 0)
x, s = normal(f32, 3, 6), normal(f32, 6)
case("batch_norm", x, None, None, s, s.abs(), True, 0.1, 1e-5, False, refused="`aten::batch_norm` shows")
case("_weight_norm_interface", normal(f32, 4, 3), positive(f32, 1, 3), 1, keep=1)
case("_adaptive_avg_pool2d", normal(f32, 2, 3, 8, 6), [4, 3])
case("_adaptive_avg_pool2d", normal(f32, 2, 3, 7, 5), [3, 2])
case("_adaptive_avg_pool3d", normal(f32, 2, 3, 4, 6, 6), [2, 3, 2])
case("avg_pool2d", normal(f32, 2, 3, 7, 6), [3, 2], [2, 2], [1, 0], False, False, 5)

# Functions.
for d in FLOATS:
    x, y = special(d), special(d).flip(0)
    for name in ("acosh", "asinh", "atanh", "isposinf", "isneginf", "sinc", "absolute", "negative", "deg2rad", "rad2deg", "nan_to_num"):
        case(name, x if name != "sinc" else x[:10])
    for name in ("acosh", "asinh", "atanh", "logit", "arcsin"):
        case(name, positive(d, 5, 7) + (1 if name == "acosh" else 0))
    case("asinh", normal(d, 5, 7) * 1e-3)
    case("logit", normal(d, 5, 7), 0.125)
    left, right = x.repeat(len(x)), x.repeat_interleave(len(x))
    # The sign of a NaN is lost.
    known = ~right.isnan()
    case("copysign.Tensor", left[known], right[known])
    case("copysign.Scalar", x, -2.0)
    case("signbit", x[:-1])
    case("hypot", left, right)
    case("logaddexp2", left, right)
    case("special_xlog1py", left, right)
    case("special_xlog1py.other_scalar", x, 0.5)
    case("xlogy.Tensor", left, right)
    case("heaviside", x, y)
    case("ldexp.Tensor", normal(d, 9), torch.arange(-4, 5))
    case("isclose", left, right, equal_nan=True)
    case("isclose", left, right)
    case("rrelu", normal(d, 5, 7))
    case("round.decimals", normal(d, 5, 7) * 30, decimals=1)
    case("log_sigmoid_forward", normal(d, 5, 7), keep=1)
    case("arctan2", normal(d, 5, 7), normal(d, 7))
for d in INTS:
    x, y = whole(d, 5, 7), whole(d, 7)
    for name in ("asinh", "deg2rad", "isposinf", "signbit", "negative", "absolute"):
        case(name, x)
    case("copysign.Tensor", x, y)
    case("hypot", x.float(), y.float())
    case("heaviside", x, y)
    case("subtract.Tensor", x, y, alpha=3)
    for name in ("greater", "less_equal", "not_equal", "multiply", "divide"):
        case(name + ".Tensor", x, y)

# Shifts beyond the bits, of numbers at both ends, and quotients that round to a whole number.
for d in (torch.uint8, torch.int8, torch.int16, i32, i64):
    ends = torch.tensor([torch.iinfo(d).min, torch.iinfo(d).max, 1, 5, 100], dtype=d)
    distances = torch.arange(0 if d == torch.uint8 else -2, 67).to(d)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        case(name + ".Tensor", ends[:, None], distances)
        case(name + ".Tensor_Scalar", ends, 3)
for d in FLOATS:
    case("div.Tensor_mode", normal(d, 2000) * 20, normal(d, 2000), rounding_mode="trunc")
    case("float_power.Tensor_Scalar", positive(d, 5, 7), 1.5)

# Tensors of rank 0.
for d in (f32, torch.bfloat16):
    x, i = torch.tensor(1.5).to(d), torch.tensor(0)
    case("softmax.int", x, 0)
    case("_log_softmax", x, 0, False)
    case("_safe_softmax", x, -1)
    case("gather", x, 0, i)
    case("index_select", x, -1, i)
    case("scatter.src", x, 0, i, -x)
    case("scatter_add", x, 0, i, x)
    for padding in (-1, 2):
        case("embedding_dense_backward", normal(d, 3, 5, 4), torch.randint(6, (3, 5)), 6, padding, False)
    case("prod.dim_int", x, 0)
    case("flip", x, [0])
    case("atleast_3d.Sequence", [x, normal(d, 4), normal(d, 2, 3)])

# Creation.
for steps in (0, 1, 2, 5, 12):
    for d in (f32, f64):
        case("linspace", -1.0, 2.5, steps, dtype=d)
        case("logspace", -1, 2, steps, 3.0, dtype=d)
case("linspace", 3, -9, 7)
case("linspace", 3.7, -9.9, 8, dtype=i64)
case("linspace", 0, 1, 7, dtype=torch.bfloat16, left="whose step torch rounds")
for offset in (-4, -1, 0, 2, 9):
    case("tril_indices", 4, 3, offset)
    case("triu_indices", 3, 5, offset, dtype=i32)
case("empty_strided", [0, 3], [3, 1])
case("new_empty_strided", normal(f32, 2), [3, 0], [1, 1])

# Views that are copies.
x = normal(f32, 3, 1, 4)
for name, arguments in (
    ("view_copy", [[12]]),
    ("_reshape_copy", [[4, 3]]),
    ("slice_copy.Tensor", [2, 1, 4, 2]),
    ("expand_copy", [[3, 5, 4]]),
    ("permute_copy", [[2, 0, 1]]),
    ("select_copy.int", [0, -1]),
    ("unsqueeze_copy", [1]),
    ("squeeze_copy", []),
    ("squeeze_copy.dim", [1]),
    ("squeeze_copy.dims", [[0, 1]]),
    ("transpose_copy.int", [0, 2]),
    ("alias_copy", []),
    ("detach_copy", []),
    ("split_copy.Tensor", [2, 2]),
    ("split_with_sizes_copy", [[1, 2], 0]),
    ("unbind_copy.int", [2]),
    ("diagonal_copy", [1, 0, 2]),
    ("unfold_copy", [2, 3, 1]),
    ("narrow_copy", [2, 1, 2]),
    ("resolve_conj", []),
    ("lift", []),
):
    case(name, x, *arguments)
case("t_copy", normal(f32, 3, 4))
case("mH", normal(f32, 2, 3, 4))
for offset in (-1, 0, 2):
    case("diag_embed", normal(f32, 2, 3, 4), offset, 0, 2)
    case("diag_embed", normal(f32, 2, 3), offset, 2, 1)

# Splits and joins.
x = normal(f32, 5, 6, 4)
case("tensor_split.indices", x, [1, 4], 1)
case("tensor_split.indices", x, [-2, 9, 2], 0)
for name in ("hsplit", "vsplit", "dsplit"):
    case(name + ".int", normal(f32, 4, 4, 4), 2)
    case(name + ".array", x, [1, 3])
case("hsplit.array", normal(f32, 6), [2])
for name in ("dstack", "column_stack", "row_stack"):
    case(name, [normal(f32, 4), normal(f32, 4)])
    case(name, [normal(f32, 4, 3), whole(i64, 4, 3)])
case("block_diag", [normal(f32, 2, 3), normal(f32, 4), torch.tensor(2.0), normal(f32, 0, 2)])
for mode in ("reflection", "replication"):
    case(mode + "_pad3d", normal(f32, 2, 3, 4, 5, 6), [1, 2, 3, 0, 2, 1])
case("_pad_circular", normal(f32, 2, 3, 4, 5), [1, 2, 3, 0])
case("channel_shuffle", x[None], 5)
case("native_channel_shuffle", x[None], 5)

# Writes.
for d in (f32, torch.bfloat16, i64):
    x = whole(d, 4, 7, 5)
    case("slice_scatter", x, whole(d, 4, 3, 5), 1, 1, 6, 2)
    case("slice_scatter", x, whole(d, 4, 2, 5), 1, 0, 7, 4)
    case("slice_scatter", x, whole(d, 4, 2, 5), 1, 2, 4)
    case("select_scatter", x, whole(d, 4, 5), 1, -2)
    for offset in (-3, -1, 0, 2, 4):
        case("diagonal_scatter", x, torch.diagonal(x, offset, 1, 2).contiguous() * 3 + 1, offset, 1, 2)
        case("diagonal_scatter", x, torch.diagonal(x, offset, 2, 0).contiguous() * 3 + 1, offset, 2, 0)
    case("masked_scatter", x, mask(7, 5), whole(d, 4, 7, 5))
    index, other = torch.tensor([[2, -1], [0, 3]]), torch.tensor([1, 0])
    distinct = torch.tensor([3, 0])
    case("index_put", x, [None, distinct], whole(d, 4, 2, 5))
    case("index_put", x, [None, distinct, torch.tensor([1, -1])], whole(d, 4, 2))
    case("index_put", x, [torch.tensor([1, 2]), None, distinct], whole(d, 2, 7))
    case("index_put", x, [None, None, distinct], whole(d, 1, 1, 2))
    case("index_put", x, [None, index.abs()], whole(d, 4, 2, 2, 5), True)
    case("index_put", x, [torch.tensor([1, 2]), distinct], torch.tensor(3).to(d))
    case("_unsafe_index_put", x, [None, distinct], whole(d, 4, 2, 5))
    case("_unsafe_index.Tensor", x, [None, index, other])
    case("_unsafe_index.Tensor", x, [index, None, other])
    case("_unsafe_masked_index", x, torch.tensor([[True, False], [True, True]]), [index.abs(), index.abs(), index.abs()], 7)
    case("take_along_dim", x, torch.tensor([-1, 2]).view(1, 2, 1), 1)
    case("repeat_interleave.Tensor", torch.tensor([2, 1, 2]), output_size=5, left="repeat_interleave of positions")
    case("take", x, torch.tensor([[0, -1], [139, 77]]))
    case("scatter_reduce.two", x, 1, torch.randint(7, (4, 3, 5)), whole(d, 4, 7, 5), "sum", include_self=False)

# Places, membership, bags.
for d in (f32, torch.bfloat16, i64):
    x, edges = whole(d, 3, 6), whole(d, 9).sort().values
    for right in (False, True):
        case("bucketize.Tensor", x, edges, right=right)
        case("searchsorted.Tensor", whole(d, 3, 9).sort(-1).values, x, right=right, out_int32=True)
        case("searchsorted.Tensor", edges, x, side="right" if right else "left")
    case("isin.Tensor_Tensor", x, edges, invert=True)
    case("isin.Tensor_Scalar", x, 3)
    case("count_nonzero", x)
    case("count_nonzero.dim_IntList", x, [1])
case("bucketize.Tensor", special(f32), torch.tensor([-1.0, 0.0, 1.0, 2.0]))
case("searchsorted.Scalar", torch.tensor([-1.0, 0.0, 1.0, 2.0]), 0.5)
for d in FLOATS:
    table, indices = normal(d, 10, 6), torch.randint(10, (9,))
    for mode in (0, 1):
        offsets = torch.tensor([0, 2, 2, 5])
        case("_embedding_bag", table, indices, offsets, mode=mode, keep=1)
        case("embedding_bag", table, indices, torch.tensor([0, 3, 9]), mode=mode, include_last_offset=True, keep=1)
        case("embedding_bag.padding_idx", table, indices, offsets, False, mode, False, None, False, int(indices[3]) - 10, keep=1)
        case("_embedding_bag", table, indices, offsets, mode=mode, padding_idx=int(indices[3]), keep=1)
    case("_embedding_bag", table, indices, offsets, mode=2, keep=1, refused="embedding_bag of maxima")
    case("_embedding_bag_forward_only", table, indices, offsets, mode=1, keep=1)
    case("_embedding_bag", table, indices, offsets, per_sample_weights=normal(d, 9), keep=1)

# Sums and differences.
for d in FLOATS:
    x = normal(d, 4, 5, 6)
    holes = x.masked_fill(torch.rand(4, 5, 6) > 0.7, math.nan)
    case("nanmean", holes, [1])
    case("nanmean", holes)
    case("aminmax", x)
    case("aminmax", x, dim=1, keepdim=True)
    case("dist", x, normal(d, 5, 6), 3)
    case("diff", x, 2, 1)
    case("diff", x, 1, -1, normal(d, 4, 5, 2), normal(d, 4, 5, 1))
    case("linalg_cross", normal(d, 4, 3, 2), normal(d, 1, 3, 2), dim=1)
    case("cross", normal(d, 4, 3), normal(d, 4, 3), 1)
    case("binary_cross_entropy", positive(d, 4, 5), positive(d, 4, 5), positive(d, 5))
    case("binary_cross_entropy", torch.tensor([0.0, 1.0, 0.5]).to(d), torch.tensor([1.0, 0.0, 1.0]).to(d), None, 0)
case("nll_loss_forward", normal(f32, 4, 5), torch.randint(5, (4,)), None, 1, -100, keep=1)
case("diff", whole(i64, 7), 3)
case("diff", mask(5, 6))
case("trace", normal(f32, 4, 6))
case("trace", whole(i32, 5, 3))
case("flipud", whole(i64, 3, 4))
case("fliplr", whole(i64, 3, 4))

# Matmuls.
for d in FLOATS:
    case("bilinear", normal(d, 2, 3, 4), normal(d, 2, 3, 5), normal(d, 6, 4, 5), normal(d, 6))
    case("bilinear", normal(d, 4), normal(d, 5), normal(d, 6, 4, 5))
    case("addr", normal(d, 4, 5), normal(d, 4), normal(d, 5), beta=0.5, alpha=2)
    case("tensordot", normal(d, 3, 4, 5), normal(d, 5, 2, 4), [1, 2], [2, 0])
    case("kron", normal(d, 3, 2), normal(d, 4, 5))
    case("kron", normal(d, 2), normal(d, 4, 5))
    case("addbmm", normal(d, 3, 5), normal(d, 2, 3, 4), normal(d, 2, 4, 5), beta=0.5)
    case("inner", normal(d, 2, 3, 4), normal(d, 5, 2, 4))
    case("einsum", "...ij,jk->...ik", [normal(d, 2, 6, 3, 4), normal(d, 4, 5)])
    case("einsum", "b...i,...i->...b", [normal(d, 2, 3, 4), normal(d, 3, 4)])
    case("einsum", "...a,...b->...ab", [normal(d, 3, 4), normal(d, 2, 3, 5)])
for p in (0.0, 0.5, 1.0, 3.0, math.inf):
    case("cdist", normal(f32, 2, 4, 5), normal(f32, 2, 3, 5), p, None)
case("_cdist_forward", normal(f32, 2, 9, 8), normal(f32, 2, 7, 8), 2.0, None)
case("_euclidean_dist", normal(f32, 9, 8), normal(f32, 7, 8))

# Images.
for d in FLOATS:
    x = normal(d, 2, 3, 6, 5)
    case("im2col", x, [3, 2], [1, 1], [0, 0], [1, 1])
    case("im2col", x, [2, 3], [2, 1], [1, 2], [2, 1])
    case("im2col", x[0], [2, 2], [1, 1], [1, 0], [1, 2])
    for arguments in ([[3, 2], [1, 1], [0, 0], [1, 1]], [[2, 3], [2, 1], [1, 2], [2, 1]]):
        columns = torch.ops.aten.im2col(x, *arguments)
        case("col2im", normal(d, *columns.shape), [6, 5], *arguments)
    case("_upsample_nearest_exact1d", x[0], [9])
    case("_upsample_nearest_exact2d", x, [9, 4])
    case("_upsample_nearest_exact2d.vec", x, None, [2.0, 1.5])
    for corners in (False, True):
        case("upsample_bicubic2d", x, [9, 5], corners)
        case("upsample_bicubic2d.vec", x, None, corners, [1.7, 0.6])

for seed in (1, 2, 3):
    drawn.resampling(seed, 100)

# Steps of recurrent networks.
for d in FLOATS:
    x, h, cell = normal(d, 3, 5), normal(d, 3, 4), normal(d, 3, 4)

    def weights(gates):
        return [normal(d, gates * 4, 5), normal(d, gates * 4, 4), normal(d, gates * 4), normal(d, gates * 4)]

    case("rnn_tanh_cell", x, h, *weights(1))
    case("rnn_relu_cell", x, h, *weights(1))
    case("gru_cell", x, h, *weights(3))
    case("gru_cell", x, h, *weights(3)[:2])
    case("lstm_cell", x, [h, cell], *weights(4))
    case("lstm_cell", x, [h, cell], *weights(4)[:2])
    wx, wh, bx, bh = weights(3)
    case("_thnn_fused_gru_cell", x @ wx.T, h @ wh.T, h, bx, bh, by=lambda: (torch.gru_cell(x, h, wx, wh, bx, bh), h), keep=1)
    wx, wh, bx, bh = weights(4)
    case("_thnn_fused_lstm_cell", x @ wx.T, h @ wh.T, cell, bx, bh, by=lambda: (*torch.lstm_cell(x, [h, cell], wx, wh, bx, bh), h), keep=2)

# Dropout that is off, and what is random.
x = normal(f32, 3, 4)
case("native_dropout", x, 0.5, False)
case("native_dropout", x, 0.0, True, by=lambda: (x, torch.ones_like(x, dtype=boolean)))
case("native_dropout", x, 0.5, True, refused="the model was saved in training mode, as `aten::native_dropout` shows")
case("native_dropout", x, 0.5, None, refused="saved in training mode")
for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"):
    case(name, x, 0.5, False)
    case(name, x, 0.0, True, by=lambda: x)
    case(name, x, 0.5, True, refused=f"the model was saved in training mode, as `aten::{name}` shows")
case("rrelu", x, training=True, refused="saved in training mode")
weights = [normal(f32, *shape) for shape in ((8, 4), (8, 2), (8,), (8,)) * 2]
weights[4] = normal(f32, 8, 2)
state = [torch.zeros(2, 3, 2)] * 2
case("lstm.input", normal(f32, 5, 3, 4), state, weights, True, 2, 0.5, True, False, False, refused="`aten::lstm` shows")
for name, arguments in (
    ("rand", [[2, 3]]),
    ("randn", [[2, 3]]),
    ("rand_like", [x]),
    ("randint", [5, [3]]),
    ("randperm", [6]),
    ("bernoulli", [x.abs().clamp(max=1)]),
    ("bernoulli.p", [x, 0.5]),
    ("normal.Tensor_float", [x]),
    ("multinomial", [x.abs(), 2]),
):
    case(name, *arguments, refused=f"`aten::{name.split('.')[0]}` draws random numbers")

write(Path(sys.argv[1]))
