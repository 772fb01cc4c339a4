//! Whole kernels, as people write them, compiled and interpreted.
use crate::harness::{buffer, executed, int, pointer, scalar, zeros};
use kiln_block::Elem;
use kiln_interp::block::Buffer;
use kiln_kernels::{Argument, Literal, Number};

/// Numbers that differ, between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        f64::from((state >> 40) as u32) / f64::from(1 << 23) - 1.0
    };
    (0..count).map(|_| f64::from(next() as f32)).collect()
}

#[track_caller]
fn close(got: &Buffer, want: &[f64], tolerance: f64) {
    for (at, (got, want)) in got.to_f64().iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "element {at}: {got}, not {want}");
    }
}

const ADD: &str = "
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)
";

#[test]
fn vectors_are_added() {
    let n = 1000;
    let (x, y) = (numbers(n, 1), numbers(n, 2));
    let f32 = pointer(Number::Float32);
    let arguments = vec![f32.clone(), f32.clone(), f32, scalar(Number::Int32), int(256)];
    let buffers = vec![
        buffer(Elem::F32, x.clone()),
        buffer(Elem::F32, y.clone()),
        zeros(Elem::F32, n),
        buffer(Elem::I32, [n as f64]),
    ];
    let out = executed(ADD, arguments, [4, 1, 1], buffers);
    let want: Vec<f64> = x.iter().zip(&y).map(|(x, y)| f64::from((x + y) as f32)).collect();
    assert_eq!(out[2].to_f64(), want);
}

const TO_F8: &str = "
def to_f8(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty).to(tl.float32))
";

/// Casts to 8-bit floats saturate, infinities too, as Triton's; a store to them is such a cast.
#[test]
fn casts_to_f8_saturate() {
    let x = [1.0, -3.0, 448.0, 1e6, -1e6, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for (number, elem, most) in [(Number::Float8E4M3, Elem::F8e4m3, 448.0), (Number::Float8E5M2, Elem::F8e5m2, 57344.0)]
    {
        let arguments = vec![pointer(Number::Float32), pointer(number), int(8)];
        let out = executed(TO_F8, arguments, [1, 1, 1], vec![buffer(Elem::F32, x), zeros(elem, 8)]);
        let got = out[1].to_f64();
        assert_eq!(got[..7], [1.0, -3.0, 448.0, most, -most, most, -most], "{number}");
        assert!(got[7].is_nan(), "{number}");
    }
}

const SOFTMAX: &str = "
def softmax(out_ptr, x_ptr, in_stride, out_stride, n_rows, n_cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    start = tl.program_id(0)
    step = tl.num_programs(0)
    for row in tl.range(start, n_rows, step, num_stages=STAGES):
        columns = tl.arange(0, BLOCK)
        mask = columns < n_cols
        x = tl.load(x_ptr + row * in_stride + columns, mask=mask, other=-float('inf'))
        shifted = x - tl.max(x, axis=0)
        numerator = tl.exp(shifted)
        denominator = tl.sum(numerator, axis=0)
        tl.store(out_ptr + row * out_stride + columns, numerator / denominator, mask=mask)
";

#[test]
fn rows_become_softmax_of_them() {
    let (rows, columns, stride) = (5, 37, 40);
    let x = numbers(rows * stride, 3);
    let i32_ = scalar(Number::Int32);
    let f32 = pointer(Number::Float32);
    let arguments = vec![f32.clone(), f32, i32_.clone(), i32_.clone(), i32_.clone(), i32_, int(64), int(3)];
    let one = |value: usize| buffer(Elem::I32, [value as f64]);
    let buffers = vec![
        zeros(Elem::F32, rows * stride),
        buffer(Elem::F32, x.clone()),
        one(stride),
        one(stride),
        one(rows),
        one(columns),
    ];
    let out = executed(SOFTMAX, arguments, [2, 1, 1], buffers);
    let mut want = vec![0.0; rows * stride];
    for row in 0..rows {
        let x = &x[row * stride..][..columns];
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = x.iter().map(|x| (x - most).exp()).sum();
        x.iter().enumerate().for_each(|(at, x)| want[row * stride + at] = (x - most).exp() / sum);
    }
    close(&out[0], &want, 1e-6);
}

const MATMUL: &str = "
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)

def matmul(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak,
    stride_bk, stride_bn,
    stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    tl.assume(pid_m >= 0)
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION == 'leaky_relu':
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(tl.float16)
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)
";

#[test]
fn matrices_are_multiplied() {
    let (m, n, k) = (40, 24, 50);
    let round = |values: Vec<f64>| -> Vec<f64> { values.iter().map(|x| half::f16::from_f64(*x).to_f64()).collect() };
    let (a, b) = (round(numbers(m * k, 4)), round(numbers(k * n, 5)));
    let f16 = pointer(Number::Float16);
    let mut arguments = vec![f16.clone(), f16.clone(), f16];
    arguments.extend(std::iter::repeat_n(scalar(Number::Int32), 9));
    arguments.extend([int(16), int(16), int(16), int(2)]);
    arguments.push(Argument::Constant(Literal::Str("leaky_relu".into())));
    let mut buffers = vec![buffer(Elem::F16, a.clone()), buffer(Elem::F16, b.clone()), zeros(Elem::F16, m * n)];
    buffers.extend([m, n, k, k, 1, n, 1, n, 1].map(|value| buffer(Elem::I32, [value as f64])));
    let out = executed(MATMUL, arguments, [3 * 2, 1, 1], buffers);
    let want: Vec<f64> = (0..m * n)
        .map(|at| {
            let (row, column) = (at / n, at % n);
            let sum: f64 = (0..k).map(|i| a[row * k + i] * b[i * n + column]).sum();
            if sum >= 0.0 { sum } else { 0.01 * sum }
        })
        .collect();
    close(&out[2], &want, 1e-3);
}

const LAYER_NORM: &str = "
def layer_norm(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    mean = 0
    _mean = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        a = tl.load(X + cols, mask=cols < N, other=0.).to(tl.float32)
        _mean += a
    mean = tl.sum(_mean, axis=0) / N
    _var = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < N, other=0.).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.)
        _var += x * x
    var = tl.sum(_var, axis=0) / N
    rstd = 1 / tl.sqrt(var + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        mask = cols < N
        w = tl.load(W + cols, mask=mask)
        b = tl.load(B + cols, mask=mask)
        x = tl.load(X + cols, mask=mask, other=0.).to(tl.float32)
        x_hat = (x - mean) * rstd
        tl.store(Y + cols, x_hat * w + b, mask=mask)
";

#[test]
fn rows_are_normalised() {
    let (rows, n) = (3, 50);
    let (x, w, b) = (numbers(rows * n, 6), numbers(n, 7), numbers(n, 8));
    let mut arguments = vec![pointer(Number::Float32); 6];
    arguments.extend([scalar(Number::Int32), scalar(Number::Int32), scalar(Number::Float32), int(32)]);
    let buffers = vec![
        buffer(Elem::F32, x.clone()),
        zeros(Elem::F32, rows * n),
        buffer(Elem::F32, w.clone()),
        buffer(Elem::F32, b.clone()),
        zeros(Elem::F32, rows),
        zeros(Elem::F32, rows),
        buffer(Elem::I32, [n as f64]),
        buffer(Elem::I32, [n as f64]),
        buffer(Elem::F32, [1e-5]),
    ];
    let out = executed(LAYER_NORM, arguments, [rows, 1, 1], buffers);
    let mut want = vec![];
    for row in x.chunks(n) {
        let mean = row.iter().sum::<f64>() / n as f64;
        let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        want.extend((0..n).map(|i| (row[i] - mean) / (var + 1e-5).sqrt() * w[i] + b[i]));
    }
    close(&out[1], &want, 1e-5);
}

const ATTENTION: &str = "
def inner(
    acc, l, m, q, k_ptr, v_ptr, rows, columns, features, stride, low, high, scale,
    CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr,
):
    for start in range(low, high, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = tl.load(k_ptr + (start + columns)[:, None] * stride + features[None, :])
        scores = tl.dot(q, tl.trans(k))
        if CAUSAL:
            mask = rows[:, None] >= (start + columns[None, :])
            scores = scores * scale + tl.where(mask, 0, -1.0e6)
            m_new = tl.maximum(m, tl.max(scores, 1))
            scores -= m_new[:, None]
        else:
            m_new = tl.maximum(m, tl.max(scores, 1) * scale)
            scores = scores * scale - m_new[:, None]
        p = tl.math.exp2(scores)
        alpha = tl.math.exp2(m - m_new)
        l = l * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + (start + columns)[:, None] * stride + features[None, :])
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(tl.float16), v, acc)
        m = m_new
    return acc, l, m

def attention(
    q_ptr, k_ptr, v_ptr, out_ptr, stride, n, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):
    start = tl.program_id(0)
    rows = start * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    features = tl.arange(0, D)
    m = tl.zeros([BLOCK_M], dtype=tl.float32) - float('inf')
    l = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    scale *= 1.44269504
    q = tl.load(q_ptr + rows[:, None] * stride + features[None, :])
    low = start * BLOCK_M
    acc, l, m = inner(acc, l, m, q, k_ptr, v_ptr, rows, columns, features, stride, 0, low, scale, False, BLOCK_N)
    high = low + BLOCK_M
    acc, l, m = inner(acc, l, m, q, k_ptr, v_ptr, rows, columns, features, stride, low, high, scale, True, BLOCK_N)
    acc = acc / l[:, None]
    tl.store(out_ptr + rows[:, None] * stride + features[None, :], acc.to(out_ptr.type.element_ty))
";

#[test]
fn attention_is_causal() {
    let (n, d) = (64, 16);
    let round = |values: Vec<f64>| -> Vec<f64> { values.iter().map(|x| half::f16::from_f64(*x).to_f64()).collect() };
    let [q, k, v] = [11, 12, 13].map(|seed| round(numbers(n * d, seed)));
    let f16 = pointer(Number::Float16);
    let mut arguments = vec![f16.clone(), f16.clone(), f16, pointer(Number::Float32)];
    arguments.extend([scalar(Number::Int32), scalar(Number::Int32), scalar(Number::Float32)]);
    arguments.extend([int(32), int(16), int(16)]);
    let buffers = vec![
        buffer(Elem::F16, q.clone()),
        buffer(Elem::F16, k.clone()),
        buffer(Elem::F16, v.clone()),
        zeros(Elem::F32, n * d),
        buffer(Elem::I32, [d as f64]),
        buffer(Elem::I32, [n as f64]),
        buffer(Elem::F32, [0.25]),
    ];
    // The sum starts from 1 beside a maximum of minus infinity, as the first block rescales it to 0.
    let out = executed(ATTENTION, arguments, [n / 32, 1, 1], buffers);
    let mut want = vec![];
    for row in 0..n {
        let score = |at: usize| 0.25 * (0..d).map(|i| q[row * d + i] * k[at * d + i]).sum::<f64>();
        let weights: Vec<f64> = (0..=row).map(|at| score(at).exp()).collect();
        let sum: f64 = weights.iter().sum();
        want.extend((0..d).map(|i| (0..=row).map(|at| weights[at] * v[at * d + i]).sum::<f64>() / sum));
    }
    // Probabilities are rounded to f16, by at most 2^-11 of them.
    close(&out[3], &want, 1.0 / 1024.0);
}
