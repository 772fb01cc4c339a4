//! Block programs for PTX in tests and in the `dump_ptx` example, as a model's lowering would build them.
#![allow(dead_code)]
use kiln_block::{
    BinaryOp, BlockProgram, Builder, CmpOp, Const, DotPrecision, Elem, ReduceOp, ScanOp, Type, UnaryOp, Value,
};

pub fn float(b: &mut Builder, x: f64) -> Value {
    b.constant(Type::scalar(Elem::F32), Const::Float(x))
}
fn add(b: &mut Builder, x: Value, y: Value) -> Value {
    b.binary(BinaryOp::Add, x, y)
}
fn mul(b: &mut Builder, x: Value, y: Value) -> Value {
    b.binary(BinaryOp::Mul, x, y)
}
/// `program_id(axis) * size + 0..size`.
fn range(b: &mut Builder, axis: u8, size: usize) -> Value {
    let (pid, n) = (b.program_id(axis), b.i32(size as i64));
    let (start, i) = (mul(b, pid, n), b.iota(size));
    add(b, start, i)
}
/// `rows[:, None] * stride + cols[None, :]`.
fn matrix(b: &mut Builder, rows: Value, cols: Value, stride: usize) -> Value {
    let s = b.i32(stride as i64);
    let rows = mul(b, rows, s);
    let rows = b.expand_dims(rows, 1);
    let (m, n) = (b.shape(rows)[0], b.shape(cols)[0]);
    let rows = broadcast(b, rows, &[m, n]);
    add(b, rows, cols)
}
/// Axes of size 1 repeated.
pub fn broadcast(b: &mut Builder, v: Value, shape: &[usize]) -> Value {
    let ty = b.ty(v).with_shape(shape);
    b.inst(kiln_block::Op::Broadcast, &[v], &[ty], vec![])[0]
}
/// `v[:, None]` repeated along a second axis of size n.
fn column(b: &mut Builder, v: Value, n: usize) -> Value {
    let v = b.expand_dims(v, 1);
    let m = b.shape(v)[0];
    broadcast(b, v, &[m, n])
}

/// `v[None, :]` repeated along a first axis of size m.
fn every_row(b: &mut Builder, v: Value, m: usize) -> Value {
    let v = b.expand_dims(v, 0);
    let n = b.shape(v)[1];
    broadcast(b, v, &[m, n])
}

/// z = x + y on n elements, 1024 per block.
pub fn vector_add(n: usize, elem: Elem) -> BlockProgram {
    let mut b = Builder::new(format!("add_{elem}_{n}"), [n.div_ceil(1024), 1, 1], 4);
    let ptrs = [b.param("x", elem, true), b.param("y", elem, true), b.param("z", elem, false)];
    let at = range(&mut b, 0, 1024);
    let end = b.i32(n as i64);
    let mask = b.cmp(CmpOp::Lt, at, end);
    let [x, y, z] = ptrs.map(|p| b.ptr_add(p, at));
    let (x, y) = (b.load(x, Some(mask), None), b.load(y, Some(mask), None));
    let sum = add(&mut b, x, y);
    b.store(z, sum, Some(mask));
    b.finish()
}

/// tanh-GELU on n elements.
pub fn gelu(n: usize) -> BlockProgram {
    let mut b = Builder::new(format!("gelu_{n}"), [n.div_ceil(1024), 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let at = range(&mut b, 0, 1024);
    let end = b.i32(n as i64);
    let mask = b.cmp(CmpOp::Lt, at, end);
    let (xs, ys) = (b.ptr_add(x, at), b.ptr_add(y, at));
    let x = b.load(xs, Some(mask), None);
    let cube = mul(&mut b, x, x);
    let cube = mul(&mut b, cube, x);
    let c = float(&mut b, 0.044715);
    let cube = mul(&mut b, cube, c);
    let inner = add(&mut b, x, cube);
    let c = float(&mut b, (2.0 / std::f64::consts::PI).sqrt());
    let inner = mul(&mut b, inner, c);
    let t = b.unary(UnaryOp::Tanh, inner);
    let (one, half) = (float(&mut b, 1.0), float(&mut b, 0.5));
    let t = add(&mut b, t, one);
    let h = mul(&mut b, x, half);
    let y = mul(&mut b, h, t);
    b.store(ys, y, Some(mask));
    b.finish()
}

/// One function on n elements.
pub fn unary(op: UnaryOp, n: usize, elem: Elem) -> BlockProgram {
    let mut b = Builder::new(format!("{op:?}_{elem}").to_lowercase(), [n.div_ceil(1024), 1, 1], 4);
    let (x, y) = (b.param("x", elem, true), b.param("y", elem, false));
    let at = range(&mut b, 0, 1024);
    let (xs, ys) = (b.ptr_add(x, at), b.ptr_add(y, at));
    let x = b.load(xs, None, None);
    let y = b.unary(op, x);
    b.store(ys, y, None);
    b.finish()
}

/// n elements of one type as another.
pub fn cast(n: usize, from: Elem, to: Elem) -> BlockProgram {
    let mut b = Builder::new(format!("{from}_to_{to}"), [n.div_ceil(4096), 1, 1], 4);
    let (x, y) = (b.param("x", from, true), b.param("y", to, false));
    let at = range(&mut b, 0, 4096);
    let (xs, ys) = (b.ptr_add(x, at), b.ptr_add(y, at));
    let x = b.load(xs, None, None);
    let y = b.cast(x, to);
    b.store(ys, y, None);
    b.finish()
}

/// One binary function on n elements.
pub fn binary(op: BinaryOp, n: usize, elem: Elem) -> BlockProgram {
    let mut b = Builder::new(format!("{op:?}_{elem}").to_lowercase(), [n.div_ceil(1024), 1, 1], 4);
    let ptrs = [b.param("x", elem, true), b.param("y", elem, true), b.param("z", elem, false)];
    let at = range(&mut b, 0, 1024);
    let [x, y, z] = ptrs.map(|p| b.ptr_add(p, at));
    let (x, y) = (b.load(x, None, None), b.load(y, None, None));
    let v = b.binary(op, x, y);
    b.store(z, v, None);
    b.finish()
}

/// Softmax of rows of `width` (`block`: next power of two), one row per block.
pub fn softmax(rows: usize, width: usize, warps: usize) -> BlockProgram {
    let block = width.next_power_of_two();
    let mut b = Builder::new(format!("softmax_{width}"), [rows, 1, 1], warps);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let (pid, w, i) = (b.program_id(0), b.i32(width as i64), b.iota(block));
    let start = mul(&mut b, pid, w);
    let at = add(&mut b, start, i);
    let mask = b.cmp(CmpOp::Lt, i, w);
    let (xs, ys) = (b.ptr_add(x, at), b.ptr_add(y, at));
    let low = float(&mut b, f64::NEG_INFINITY);
    let x = b.load(xs, Some(mask), Some(low));
    let max = b.reduce(ReduceOp::Max, x, 0);
    let x = b.binary(BinaryOp::Sub, x, max);
    let e = b.unary(UnaryOp::Exp, x);
    let sum = b.reduce(ReduceOp::Sum, e, 0);
    let y = b.binary(BinaryOp::Div, e, sum);
    b.store(ys, y, Some(mask));
    b.finish()
}

/// Sums of rows of a `[rows, 256]` matrix, four rows per block.
pub fn row_sum(rows: usize) -> BlockProgram {
    let mut b = Builder::new("row_sum", [rows / 4, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let (r, c) = (range(&mut b, 0, 4), b.iota(256));
    let at = matrix(&mut b, r, c, 256);
    let (xs, ys) = (b.ptr_add(x, at), b.ptr_add(y, r));
    let x = b.load(xs, None, None);
    let sum = b.reduce(ReduceOp::Sum, x, 1);
    b.store(ys, sum, None);
    b.finish()
}

/// Sums of columns of a `[rows, cols]` matrix, 128 columns per block, 32 rows per iteration.
pub fn column_sum(rows: usize, cols: usize) -> BlockProgram {
    let mut b = Builder::new("column_sum", [cols / 128, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let c = range(&mut b, 0, 128);
    let zero = b.constant(Type::block(Elem::F32, [32, 128]), Const::Float(0.0));
    let bounds = [b.i32(0), b.i32(rows as i64), b.i32(32)];
    let sums = b.for_loop(bounds, &[zero], |b, row, acc| {
        let i = b.iota(32);
        let r = add(b, row, i);
        let at = matrix(b, r, c, cols);
        let xs = b.ptr_add(x, at);
        let x = b.load(xs, None, None);
        vec![add(b, acc[0], x)]
    });
    let sum = b.reduce(ReduceOp::Sum, sums[0], 0);
    let ys = b.ptr_add(y, c);
    b.store(ys, sum, None);
    b.finish()
}

/// The maximum of elements 2x - 1, 2x and 2x + 1 that are inside, of rows of 14: seven per row.
pub fn window(rows: usize) -> BlockProgram {
    let mut b = Builder::new("window", [rows / 128, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::Bf16, true), b.param("y", Elem::Bf16, false));
    let (r, c, two) = (range(&mut b, 0, 128), b.iota(8), b.i32(2));
    let end = b.i32(7);
    let inside = b.cmp(CmpOp::Lt, c, end);
    let from = mul(&mut b, c, two);
    let mut best = None;
    for k in [-1, 0, 1] {
        let k = b.i32(k);
        let column = add(&mut b, from, k);
        let first = b.i32(0);
        let there = b.cmp(CmpOp::Ge, column, first);
        let mask = b.binary(BinaryOp::And, there, inside);
        let (at, mask) = (matrix(&mut b, r, column, 14), every_row(&mut b, mask, 128));
        let p = b.ptr_add(x, at);
        let v = b.load(p, Some(mask), None);
        best = Some(best.map_or(v, |w| b.binary(BinaryOp::Max, w, v)));
    }
    let to = matrix(&mut b, r, c, 7);
    let (p, mask) = (b.ptr_add(y, to), every_row(&mut b, inside, 128));
    if let Some(v) = best {
        b.store(p, v, Some(mask));
    }
    b.finish()
}

/// Sums of parts of a row that is stored in memory as runs of `run` elements, each `pitch` after the one before: 512
/// elements per part, the last one the remainder.
pub fn sum_of_runs(len: usize, run: usize, pitch: usize) -> BlockProgram {
    let mut b = Builder::new("sum_of_runs", [len.div_ceil(512), 1, 1], 1);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let (part, size, len, step) = (b.program_id(0), b.i32(512), b.i32(len as i64), b.i32(256));
    let lo = mul(&mut b, part, size);
    let hi = add(&mut b, lo, size);
    let hi = b.binary(BinaryOp::Min, hi, len);
    let zero = b.constant(Type::block(Elem::F32, [256]), Const::Float(0.0));
    let sums = b.for_loop([lo, hi, step], &[zero], |b, first, acc| {
        let i = b.iota(256);
        let at = add(b, first, i);
        let (run, pitch) = (b.i32(run as i64), b.i32(pitch as i64));
        let (q, r) = (b.binary(BinaryOp::Div, at, run), b.binary(BinaryOp::Rem, at, run));
        let q = mul(b, q, pitch);
        let at = add(b, q, r);
        let xs = b.ptr_add(x, at);
        let x = b.load(xs, None, None);
        vec![add(b, acc[0], x)]
    });
    let sum = b.reduce(ReduceOp::Sum, sums[0], 0);
    let ys = b.ptr_add(y, part);
    b.store(ys, sum, None);
    b.finish()
}

/// Transposes a matrix of 64x64 tiles.
pub fn transpose(rows: usize, cols: usize, elem: Elem) -> BlockProgram {
    let mut b = Builder::new(format!("transpose_{elem}"), [rows / 64, cols / 64, 1], 4);
    let (x, y) = (b.param("x", elem, true), b.param("y", elem, false));
    let (r, c) = (range(&mut b, 0, 64), range(&mut b, 1, 64));
    let from = matrix(&mut b, r, c, cols);
    let to = matrix(&mut b, c, r, rows);
    let (xs, ys) = (b.ptr_add(x, from), b.ptr_add(y, to));
    let x = b.load(xs, None, None);
    let t = b.permute(x, &[1, 0]);
    b.store(ys, t, None);
    b.finish()
}

/// c = a b by 64x64 tiles, `step` along k per iteration.
pub fn matmul([m, n, k]: [usize; 3], step: usize, elem: Elem, precision: DotPrecision) -> BlockProgram {
    let mut b = Builder::new(format!("matmul_{elem}_{precision:?}").to_lowercase(), [m / 64, n / 64, 1], 4);
    let ptrs = [b.param("a", elem, true), b.param("b", elem, true), b.param("c", elem, false)];
    let (rows, cols) = (range(&mut b, 0, 64), range(&mut b, 1, 64));
    let sum = if elem == Elem::F64 { Elem::F64 } else { Elem::F32 };
    let zero = b.constant(Type::block(sum, [64, 64]), Const::Float(0.0));
    let bounds = [b.i32(0), b.i32(k as i64), b.i32(step as i64)];
    let acc = b.for_loop(bounds, &[zero], |b, i, acc| {
        let ks = b.iota(step);
        let ks = add(b, i, ks);
        let (at_a, at_b) = (matrix(b, rows, ks, k), matrix(b, ks, cols, n));
        let (pa, pb) = (b.ptr_add(ptrs[0], at_a), b.ptr_add(ptrs[1], at_b));
        let (x, y) = (b.load(pa, None, None), b.load(pb, None, None));
        vec![b.dot(x, y, acc[0], precision)]
    });
    let c = b.cast(acc[0], elem);
    let at = matrix(&mut b, rows, cols, n);
    let pc = b.ptr_add(ptrs[2], at);
    b.store(pc, c, None);
    b.finish()
}

/// Attention of one head with width 64: 64 rows of q per block, 32 keys per iteration, running maximum and sum.
pub fn attention(rows: usize, keys: usize, causal: bool) -> BlockProgram {
    const D: usize = 64;
    let mut b = Builder::new(if causal { "attention_causal" } else { "attention" }, [rows / 64, 1, 1], 4);
    let [q, k, v] = ["q", "k", "v"].map(|p| b.param(p, Elem::Bf16, true));
    let o = b.param("o", Elem::Bf16, false);
    let (r, d) = (range(&mut b, 0, 64), b.iota(D));
    let at = matrix(&mut b, r, d, D);
    let qs = b.ptr_add(q, at);
    let q = b.load(qs, None, None);
    let max = b.constant(Type::block(Elem::F32, [64]), Const::Float(f64::NEG_INFINITY));
    let sum = b.constant(Type::block(Elem::F32, [64]), Const::Float(0.0));
    let acc = b.constant(Type::block(Elem::F32, [64, D]), Const::Float(0.0));
    let bounds = [b.i32(0), b.i32(keys as i64), b.i32(32)];
    let last = b.for_loop(bounds, &[max, sum, acc], |b, i, carried| {
        let j = b.iota(32);
        let j = add(b, i, j);
        let at = matrix(b, j, d, D);
        let (ks, vs) = (b.ptr_add(k, at), b.ptr_add(v, at));
        let (k, v) = (b.load(ks, None, None), b.load(vs, None, None));
        let k = b.permute(k, &[1, 0]);
        let zero = b.constant(Type::block(Elem::F32, [64, 32]), Const::Float(0.0));
        let s = b.dot(q, k, zero, DotPrecision::Exact);
        let scale = float(b, 0.125);
        let mut s = mul(b, s, scale);
        if causal {
            let rows = column(b, r, 32);
            let seen = b.cmp(CmpOp::Le, j, rows);
            let never = float(b, f64::NEG_INFINITY);
            s = b.select(seen, s, never);
        }
        let top = b.reduce(ReduceOp::Max, s, 1);
        let top = b.binary(BinaryOp::Max, carried[0], top);
        let top_of_rows = column(b, top, 32);
        let p = b.binary(BinaryOp::Sub, s, top_of_rows);
        let p = b.unary(UnaryOp::Exp, p);
        let shrink = b.binary(BinaryOp::Sub, carried[0], top);
        let shrink = b.unary(UnaryOp::Exp, shrink);
        let sum = mul(b, carried[1], shrink);
        let more = b.reduce(ReduceOp::Sum, p, 1);
        let sum = add(b, sum, more);
        let shrink = column(b, shrink, D);
        let acc = mul(b, carried[2], shrink);
        let p = b.cast(p, Elem::Bf16);
        let acc = b.dot(p, v, acc, DotPrecision::Exact);
        vec![top, sum, acc]
    });
    let sums = column(&mut b, last[1], D);
    let out = b.binary(BinaryOp::Div, last[2], sums);
    let out = b.cast(out, Elem::Bf16);
    let os = b.ptr_add(o, at);
    b.store(os, out, None);
    b.finish()
}

/// Index of the maximum of each row of `width`.
pub fn argmax(rows: usize, width: usize) -> BlockProgram {
    let mut b = Builder::new("argmax", [rows, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::I32, false));
    let at = range(&mut b, 0, width);
    let xs = b.ptr_add(x, at);
    let x = b.load(xs, None, None);
    let i = b.reduce(ReduceOp::ArgMax, x, 0);
    let pid = b.program_id(0);
    let ys = b.ptr_add(y, pid);
    b.store(ys, i, None);
    b.finish()
}

/// Running sums of each row of `width`.
pub fn scan(rows: usize, width: usize, op: ScanOp) -> BlockProgram {
    let mut b = Builder::new(format!("scan_{op:?}").to_lowercase(), [rows, 1, 1], 4);
    let (x, y) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let at = range(&mut b, 0, width);
    let (xs, ys) = (b.ptr_add(x, at), b.ptr_add(y, at));
    let x = b.load(xs, None, None);
    let s = b.scan(op, x, 0);
    b.store(ys, s, None);
    b.finish()
}

/// A program and the sizes of its buffers.
pub struct Program {
    pub kernel: BlockProgram,
    /// Elements of each parameter.
    pub sizes: Vec<usize>,
}

/// Small instances of all of them.
pub fn programs() -> Vec<Program> {
    let mut all = vec![];
    let mut put = |kernel: BlockProgram, sizes: &[usize]| all.push(Program { kernel, sizes: sizes.to_vec() });
    put(vector_add(4096, Elem::F32), &[4096; 3]);
    put(vector_add(5003, Elem::F32), &[5003; 3]);
    put(vector_add(4096, Elem::Bf16), &[4096; 3]);
    put(vector_add(3001, Elem::F16), &[3001; 3]);
    put(vector_add(3001, Elem::F64), &[3001; 3]);
    put(vector_add(3001, Elem::I64), &[3001; 3]);
    put(vector_add(3001, Elem::I16), &[3001; 3]);
    put(vector_add(3001, Elem::I8), &[3001; 3]);
    put(vector_add(3001, Elem::U8), &[3001; 3]);
    put(gelu(4096), &[4096; 2]);
    put(gelu(1000), &[1000; 2]);
    put(softmax(8, 1024, 4), &[8 * 1024; 2]);
    put(softmax(8, 1000, 4), &[8 * 1000; 2]);
    put(softmax(8, 1003, 4), &[8 * 1003; 2]);
    put(softmax(2, 32768, 32), &[2 * 32768; 2]);
    put(row_sum(64), &[64 * 256, 64]);
    put(column_sum(128, 256), &[128 * 256, 256]);
    put(sum_of_runs(1280, 160, 320), &[8 * 320, 3]);
    put(transpose(128, 64, Elem::F32), &[128 * 64; 2]);
    put(transpose(128, 64, Elem::Bf16), &[128 * 64; 2]);
    for (elem, precision) in [
        (Elem::Bf16, DotPrecision::Exact),
        (Elem::F16, DotPrecision::Exact),
        (Elem::F32, DotPrecision::Tf32),
        (Elem::F32, DotPrecision::Tf32x3),
        (Elem::F32, DotPrecision::Exact),
        (Elem::F64, DotPrecision::Exact),
    ] {
        put(matmul([128, 64, 96], 32, elem, precision), &[128 * 96, 96 * 64, 128 * 64]);
    }
    put(window(256), &[256 * 14, 256 * 7]);
    put(attention(128, 128, false), &[128 * 64; 4]);
    put(attention(128, 128, true), &[128 * 64; 4]);
    put(argmax(16, 1024), &[16 * 1024, 16]);
    for op in [ScanOp::Sum, ScanOp::Max] {
        put(scan(4, 1024, op), &[4 * 1024; 2]);
    }
    use UnaryOp::*;
    for op in [
        Exp, Exp2, Expm1, Log, Log2, Log10, Log1p, Sqrt, Rsqrt, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Erf,
        Floor, Ceil, Round, Trunc,
    ] {
        put(unary(op, 1024, Elem::F32), &[1024; 2]);
    }
    for op in [BinaryOp::Div, BinaryOp::Rem, BinaryOp::Max, BinaryOp::Min, BinaryOp::Pow, BinaryOp::Atan2] {
        put(binary(op, 1024, Elem::F32), &[1024; 3]);
    }
    for op in [BinaryOp::Div, BinaryOp::Rem, BinaryOp::Shl, BinaryOp::Shr, BinaryOp::Max] {
        put(binary(op, 1024, Elem::I32), &[1024; 3]);
    }
    all
}

/// Numbers between -3 and 3 (0 and 1 for bool, 0 to 9 for other integers), the same every time.
pub fn inputs(p: &Program) -> Vec<Vec<f64>> {
    let mut random = kiln_number::Random::new(12345);
    let elem = |i: usize| p.kernel.ty(p.kernel.params[i].value).elem().unwrap();
    let number = |e: Elem, x: f64| match e {
        Elem::Bool => (x * 2.0).floor(),
        e if e.is_int() => (x * 10.0).floor(),
        _ => x * 6.0 - 3.0,
    };
    p.sizes.iter().enumerate().map(|(i, n)| (0..*n).map(|_| number(elem(i), random.uniform())).collect()).collect()
}

/// Rows of a table by n indices, which are checked as lowering does it.
pub fn taken(n: usize, extent: usize) -> BlockProgram {
    let mut b = Builder::new(format!("take_{n}"), [n.div_ceil(1024), 1, 1], 4);
    let (table, index) = (b.param("table", Elem::F32, true), b.param("index", Elem::I64, true));
    let (out, faults) = (b.param("out", Elem::F32, false), b.param("faults", Elem::I64, false));
    let at = range(&mut b, 0, 1024);
    let end = b.i32(n as i64);
    let mask = b.cmp(CmpOp::Lt, at, end);
    let (is, ys) = (b.ptr_add(index, at), b.ptr_add(out, at));
    let i = b.load(is, Some(mask), None);
    let [zero, len] = [0, extent as i64].map(|n| b.constant(Type::scalar(Elem::I64), Const::Int(n)));
    let (below, beyond) = (b.cmp(CmpOp::Lt, i, zero), b.cmp(CmpOp::Ge, i, len));
    let bad = b.binary(BinaryOp::Or, below, beyond);
    let good = b.unary(UnaryOp::Not, bad);
    let inside = b.binary(BinaryOp::And, mask, good);
    let from = b.ptr_add(table, i);
    let y = b.load(from, Some(inside), None);
    b.store(ys, y, Some(mask));
    b.check(faults, [bad, i], Some(mask), 5);
    b.finish()
}
