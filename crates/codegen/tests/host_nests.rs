//! Loops of the generated code: shapes, masks, tails, reductions, scans, matmuls, loops of the program.
use crate::support::*;
use kiln_block::*;

/// Dense input of `shape` as a block.
fn whole(b: &mut Builder, p: Value, shape: &[usize]) -> Value {
    let at = grid_offsets(b, shape, &strides(shape));
    let p = b.ptr_add(p, at);
    b.load(p, None, None)
}
fn put(b: &mut Builder, p: Value, v: Value) {
    let shape = b.shape(v);
    if shape.is_empty() {
        b.store(p, v, None);
        return;
    }
    let at = grid_offsets(b, &shape, &strides(&shape));
    let p = b.ptr_add(p, at);
    b.store(p, v, None);
}
/// Runs a program from one dense input to one dense output.
fn one(
    e: Elem,
    shape: &[usize],
    x: &[Num],
    to: Elem,
    out: usize,
    f: impl FnOnce(&mut Builder, Value) -> Value,
) -> Vec<Num> {
    let mut b = Builder::new("nest", [1, 1, 1], 4);
    let (p, q) = (b.param("x", e, true), b.param("y", to, false));
    let v = whole(&mut b, p, shape);
    let r = f(&mut b, v);
    put(&mut b, q, r);
    let mut buffers = [encode_all(e, x), vec![0; out * to.bytes()]];
    run(&b.finish(), &mut buffers);
    decode_all(to, &buffers[1])
}
/// Slices along `axis`, in the row-major order of the others.
fn slices(x: &[Num], shape: &[usize], axis: usize) -> Vec<Vec<Num>> {
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let n = shape[axis];
    (0..outer * inner).map(|s| (0..n).map(|i| x[(s / inner) * n * inner + i * inner + s % inner]).collect()).collect()
}
fn same(what: &str, e: Elem, got: &[Num], want: &[Num], ulps: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(near(e, *g, *w, ulps), "{what}, element {i}: {g:?}, expected {w:?}");
    }
}

const SHAPES: [&[usize]; 8] = [&[1], &[8], &[256], &[4, 16], &[16, 1], &[2, 8, 32], &[64, 2], &[1, 128]];

#[test]
fn reductions() {
    for shape in SHAPES {
        let n = shape.iter().product();
        for axis in 0..shape.len() {
            for e in [Elem::F32, Elem::F64, Elem::F16, Elem::Bf16, Elem::I32, Elem::I64] {
                let x = Random::new(7 + n as u64).values(e, n);
                let rows = slices(&x, shape, axis);
                let fold = |f: &dyn Fn(f64, f64) -> f64| -> Vec<Num> {
                    rows.iter().map(|r| round(e, Num::F(r.iter().map(|v| v.f()).reduce(f).unwrap()))).collect()
                };
                let tolerance = if e.is_float() { 64.0 } else { 0.0 };
                let cases = [
                    (ReduceOp::Sum, fold(&|a, b| a + b), tolerance),
                    (ReduceOp::Max, fold(&f64::max), 0.0),
                    (ReduceOp::Min, fold(&f64::min), 0.0),
                ];
                for (op, want, ulps) in cases {
                    let got = one(e, shape, &x, e, n / shape[axis], |b, v| b.reduce(op, v, axis));
                    // Sums that cancel are compared relative to the size of their terms.
                    let ulps = if ulps > 0.0 && e != Elem::F64 && e != Elem::F32 {
                        1.0 + 1e-3 * n as f64
                    } else {
                        ulps * n as f64
                    };
                    same(&format!("{op:?} {e}{shape:?} axis {axis}"), e, &got, &want, ulps);
                }
                for (op, sign) in [(ReduceOp::ArgMax, 1.0), (ReduceOp::ArgMin, -1.0)] {
                    let want: Vec<Num> = rows
                        .iter()
                        .map(|r| {
                            let mut best = 0;
                            for i in 1..r.len() {
                                if r[i].f() * sign > r[best].f() * sign {
                                    best = i;
                                }
                            }
                            Num::I(best as i64)
                        })
                        .collect();
                    let got = one(e, shape, &x, Elem::I32, n / shape[axis], |b, v| b.reduce(op, v, axis));
                    same(&format!("{op:?} {e}{shape:?} axis {axis}"), Elem::I32, &got, &want, 0.0);
                }
            }
        }
    }
}

#[test]
fn reductions_with_nan() {
    for at in [0usize, 17, 63] {
        let mut x: Vec<Num> = (0..64).map(|i| Num::F((i % 10) as f64)).collect();
        x[at] = Num::F(f64::NAN);
        for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum] {
            let got = one(Elem::F32, &[64], &x, Elem::F32, 1, |b, v| b.reduce(op, v, 0));
            assert!(got[0].f().is_nan(), "{op:?}");
        }
        for op in [ReduceOp::ArgMax, ReduceOp::ArgMin] {
            let got = one(Elem::F32, &[64], &x, Elem::I32, 1, |b, v| b.reduce(op, v, 0));
            assert_eq!(got[0].i(), at as i64, "{op:?}");
        }
    }
}

#[test]
fn bool_and_u8_reductions() {
    for e in [Elem::Bool, Elem::U8] {
        let x = Random::new(3).values(e, 64);
        for axis in 0..2 {
            for (op, f) in [(ReduceOp::And, (|a, b| a & b) as fn(i64, i64) -> i64), (ReduceOp::Or, |a, b| a | b)] {
                let want: Vec<Num> = slices(&x, &[4, 16], axis)
                    .iter()
                    .map(|r| Num::I(r.iter().map(|v| v.i()).reduce(f).unwrap()))
                    .collect();
                let got = one(e, &[4, 16], &x, e, 64 / [4, 16][axis], |b, v| b.reduce(op, v, axis));
                same(&format!("{op:?} {e} axis {axis}"), e, &got, &want, 0.0);
            }
        }
    }
}

#[test]
fn scans() {
    for shape in SHAPES {
        let n: usize = shape.iter().product();
        for axis in 0..shape.len() {
            // Along the innermost axis sums and products are accumulated in f64, along others in f32.
            let inner = shape.iter().rposition(|&n| n > 1).is_none_or(|a| a == axis);
            let held = |v: f64| if inner { v } else { v as f32 as f64 };
            for e in [Elem::F32, Elem::I32, Elem::I64, Elem::Bf16] {
                let x = Random::new(5).values(e, n);
                for op in [ScanOp::Sum, ScanOp::Max, ScanOp::Prod] {
                    let got = one(e, shape, &x, e, n, |b, v| b.scan(op, v, axis));
                    for (g, r) in slices(&got, shape, axis).iter().zip(slices(&x, shape, axis)) {
                        let mut acc: Option<(f64, i64)> = None;
                        let want: Vec<Num> = r
                            .iter()
                            .map(|v| {
                                let x = (v.f(), v.i());
                                let a = match (acc, op) {
                                    (None, _) => x,
                                    (Some(a), ScanOp::Sum) => (held(a.0 + x.0), a.1.wrapping_add(x.1)),
                                    (Some(a), ScanOp::Prod) => (held(a.0 * x.0), a.1.wrapping_mul(x.1)),
                                    (Some(a), ScanOp::Max) => (a.0.max(x.0), a.1.max(x.1)),
                                };
                                acc = Some(a);
                                round(e, if e.is_float() { Num::F(a.0 as f32 as f64) } else { Num::I(a.1) })
                            })
                            .collect();
                        same(&format!("{op:?} {e}{shape:?} axis {axis}"), e, g, &want, 0.0);
                    }
                }
            }
        }
    }
}

#[test]
fn permute_reshape_broadcast() {
    let shape = [4, 8, 16];
    let x = Random::new(1).values(Elem::F32, 512);
    for perm in [[0u8, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1], [2, 0, 1], [1, 2, 0]] {
        let got = one(Elem::F32, &shape, &x, Elem::F32, 512, |b, v| b.permute(v, &perm));
        let to: Vec<usize> = perm.iter().map(|&p| shape[p as usize]).collect();
        let mut want = vec![Num::F(0.0); 512];
        for (i, w) in want.iter_mut().enumerate() {
            let at = [i / (to[1] * to[2]), i / to[2] % to[1], i % to[2]];
            let mut from = [0; 3];
            for (a, &p) in at.iter().zip(&perm) {
                from[p as usize] = *a;
            }
            *w = x[from[0] * 128 + from[1] * 16 + from[2]];
        }
        same(&format!("permute {perm:?}"), Elem::F32, &got, &want, 0.0);
    }
    for to in [&[512usize][..], &[2, 256], &[32, 16], &[8, 4, 16], &[4, 1, 8, 16], &[128, 4], &[256, 2]] {
        let got = one(Elem::F32, &shape, &x, Elem::F32, 512, |b, v| b.reshape(v, to));
        same(&format!("reshape {to:?}"), Elem::F32, &got, &x, 0.0);
    }
    // x[a, b, c] - max over b.
    let got = one(Elem::F32, &shape, &x, Elem::F32, 512, |b, v| {
        let m = b.reduce(ReduceOp::Max, v, 1);
        let m = b.expand_dims(m, 1);
        b.binary(BinaryOp::Sub, v, m)
    });
    let rows = slices(&x, &shape, 1);
    let want: Vec<Num> = (0..512)
        .map(|i| {
            let m = rows[i / 128 * 16 + i % 16].iter().map(|v| v.f()).fold(f64::MIN, f64::max);
            Num::F((x[i].f() as f32 - m as f32) as f64)
        })
        .collect();
    same("centred", Elem::F32, &got, &want, 0.0);
}

/// A masked 2-D tile with row and column bounds, over a grid.
#[test]
fn masked_tiles() {
    for (rows, cols) in [(1, 1), (5, 7), (33, 65), (64, 128), (70, 100)] {
        let (h, w) = (16, 64);
        let mut b = Builder::new("tile", [usize::div_ceil(cols, w), usize::div_ceil(rows, h), 1], 4);
        let (x, bias, y) =
            (b.param("x", Elem::F32, true), b.param("bias", Elem::F32, true), b.param("y", Elem::F32, false));
        let start = |b: &mut Builder, axis: u8, n: usize, at: usize| {
            let p = b.program_id(axis);
            let c = b.i32(n as i64);
            let p = b.binary(BinaryOp::Mul, p, c);
            let i = b.iota(n);
            let i = b.binary(BinaryOp::Add, p, i);
            b.expand_dims(i, at)
        };
        let (i, j) = (start(&mut b, 1, h, 1), start(&mut b, 0, w, 0));
        let (nr, nc) = (b.i32(rows as i64), b.i32(cols as i64));
        let (mi, mj) = (b.cmp(CmpOp::Lt, i, nr), b.cmp(CmpOp::Lt, j, nc));
        let mask = b.binary(BinaryOp::And, mi, mj);
        let row = b.binary(BinaryOp::Mul, i, nc);
        let at = b.binary(BinaryOp::Add, row, j);
        let px = b.ptr_add(x, at);
        let v = b.load(px, Some(mask), None);
        let pb = b.ptr_add(bias, j);
        let vb = b.load(pb, Some(mj), None);
        let s = b.binary(BinaryOp::Add, v, vb);
        let py = b.ptr_add(y, at);
        b.store(py, s, Some(mask));
        let (vx, vb) = (Random::new(1).values(Elem::F32, rows * cols), Random::new(2).values(Elem::F32, cols));
        let mut buffers = [encode_all(Elem::F32, &vx), encode_all(Elem::F32, &vb), vec![0; rows * cols * 4 + 256]];
        run(&b.finish(), &mut buffers);
        let got = decode_all(Elem::F32, &buffers[2]);
        let want: Vec<Num> = (0..rows * cols)
            .map(|i| Num::F((vx[i].f() as f32 + vb[i % cols].f() as f32) as f64))
            .chain(vec![Num::F(0.0); 64])
            .collect();
        same(&format!("{rows}x{cols}"), Elem::F32, &got, &want, 0.0);
    }
}

/// A mask over quotients and remainders of the coordinate can change within the axis without changing within a vector.
#[test]
fn masks_of_quotients_and_remainders() {
    let n = 256;
    for by in [2, 8, 16, 32, 64, 96, 256] {
        for (op, cmp, limit) in [
            (BinaryOp::Div, CmpOp::Lt, 2),
            (BinaryOp::Div, CmpOp::Ge, 1),
            (BinaryOp::Rem, CmpOp::Lt, by / 2),
            (BinaryOp::Rem, CmpOp::Ge, 1),
        ] {
            let mut b = Builder::new("parts", [1, 1, 1], 4);
            let (x, y) = (b.param("x", Elem::I32, true), b.param("y", Elem::I32, false));
            let i = b.iota(n);
            let (divisor, bound) = (b.i32(by), b.i32(limit));
            let part = b.binary(op, i, divisor);
            let mask = b.cmp(cmp, part, bound);
            let (from, to) = (b.ptr_add(x, i), b.ptr_add(y, i));
            let v = b.load(from, Some(mask), None);
            b.store(to, v, None);
            let data: Vec<Num> = (1..=n as i64).map(Num::I).collect();
            let mut buffers = [encode_all(Elem::I32, &data), vec![0; n * 4]];
            run(&b.finish(), &mut buffers);
            let want = |i: i64| {
                let part = if op == BinaryOp::Div { i / by } else { i % by };
                let inside = if cmp == CmpOp::Lt { part < limit } else { part >= limit };
                Num::I(if inside { i + 1 } else { 0 })
            };
            let want: Vec<Num> = (0..n as i64).map(want).collect();
            same(
                &format!("{op:?} by {by}, {cmp:?} {limit}"),
                Elem::I32,
                &decode_all(Elem::I32, &buffers[1]),
                &want,
                0.,
            );
        }
    }
}
#[test]
fn matmuls() {
    for (m, n, k) in [(1, 1, 1), (4, 8, 16), (16, 16, 16), (32, 64, 8), (64, 4, 32), (2, 128, 64)] {
        for (e, to) in [
            (Elem::F32, Elem::F32),
            (Elem::F16, Elem::F32),
            (Elem::Bf16, Elem::F32),
            (Elem::F64, Elem::F64),
            (Elem::U8, Elem::I32),
            (Elem::F8e4m3, Elem::F32),
            (Elem::F8e5m2, Elem::F32),
        ] {
            let mut b = Builder::new("dot", [1, 1, 1], 4);
            let (pa, pb, pc) = (b.param("a", e, true), b.param("b", e, true), b.param("c", to, false));
            let (va, vb) = (whole(&mut b, pa, &[m, k]), whole(&mut b, pb, &[k, n]));
            let init =
                b.constant(Type::block(to, [m, n]), if to == Elem::I32 { Const::Int(3) } else { Const::Float(3.0) });
            let r = b.dot(va, vb, init, DotPrecision::Exact);
            put(&mut b, pc, r);
            let (a, x) = (Random::new(1).values(e, m * k), Random::new(2).values(e, k * n));
            let mut buffers = [encode_all(e, &a), encode_all(e, &x), vec![0; m * n * to.bytes()]];
            run(&b.finish(), &mut buffers);
            let want: Vec<Num> = (0..m * n)
                .map(|i| {
                    round(to, Num::F(3.0 + (0..k).map(|l| a[i / n * k + l].f() * x[l * n + i % n].f()).sum::<f64>()))
                })
                .collect();
            let got = decode_all(to, &buffers[2]);
            for (g, w) in got.iter().zip(&want) {
                assert!(
                    (g.f() - w.f()).abs() <= 1e-5 * 16.0 * (k as f64).sqrt(),
                    "{e} {m}x{n}x{k}: {g:?}, expected {w:?}"
                );
            }
        }
    }
}

/// Carried blocks, scalars and pointers, nested loops.
#[test]
fn loops() {
    // y[i] = sum over t < 10 of x[t * 64 + i], with a pointer that advances, an offset block that grows and a scalar
    // that counts.
    let x = Random::new(4).values(Elem::F32, 640);
    let mut b = Builder::new("loop", [1, 1, 1], 4);
    let (p, y, z) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false), b.param("z", Elem::I32, false));
    let i = b.iota(64);
    let pi = b.ptr_add(p, i);
    let zero = b.constant(Type::block(Elem::F32, [64]), Const::Float(0.0));
    let [lo, hi, step, n] = [0, 10, 1, 64].map(|v| b.i32(v));
    let none = b.i32(0);
    let r = b.for_loop([lo, hi, step], &[zero, zero, none, i, pi, p], |b, _, c| {
        let ps = b.broadcast_to(p, &[64]);
        let pa = b.ptr_add(ps, c[3]);
        let (u, v) = (b.load(pa, None, None), b.load(c[4], None, None));
        let pw = b.ptr_add(c[5], i);
        let w = b.load(pw, None, None);
        let s = b.binary(BinaryOp::Add, c[0], u);
        let vw = b.binary(BinaryOp::Add, v, w);
        let t = b.binary(BinaryOp::Add, c[1], vw);
        let one = b.i32(1);
        let k = b.binary(BinaryOp::Add, c[2], one);
        let ns = b.splat(n, &[64]);
        let off = b.binary(BinaryOp::Add, c[3], ns);
        let next = b.ptr_add(c[4], ns);
        let walk = b.ptr_add(c[5], n);
        vec![s, t, k, off, next, walk]
    });
    let two = b.binary(BinaryOp::Add, r[0], r[1]);
    let py = b.ptr_add(y, i);
    b.store(py, two, None);
    b.store(z, r[2], None);
    let mut buffers = [encode_all(Elem::F32, &x), vec![0; 256], vec![0; 4]];
    run(&b.finish(), &mut buffers);
    let got = decode_all(Elem::F32, &buffers[1]);
    for (i, g) in got.iter().enumerate() {
        let w: f64 = (0..10).map(|t| x[t * 64 + i].f() * 3.0).sum();
        assert!((g.f() - w).abs() < 1e-4, "{i}: {g:?}, expected {w}");
    }
    assert_eq!(decode_all(Elem::I32, &buffers[2])[0].i(), 10);
}

#[test]
fn carried_blocks_swap() {
    // (a, b) = (b, a + b) seven times, nested twice.
    let mut b = Builder::new("fibonacci", [1, 1, 1], 4);
    let y = b.param("y", Elem::I64, false);
    let (one, zero) = (
        b.constant(Type::block(Elem::I64, [32]), Const::Int(1)),
        b.constant(Type::block(Elem::I64, [32]), Const::Int(0)),
    );
    let [lo, hi, step, three] = [0, 7, 2, 3].map(|v| b.i32(v));
    let r = b.for_loop([lo, hi, step], &[zero, one], |b, _, c| {
        b.for_loop([lo, three, step], c, |b, _, c| {
            let s = b.binary(BinaryOp::Add, c[0], c[1]);
            vec![c[1], s]
        })
    });
    put(&mut b, y, r[0]);
    let mut buffers = [vec![0; 256]];
    run(&b.finish(), &mut buffers);
    // 4 outer iterations of 2 inner ones.
    assert!(decode_all(Elem::I64, &buffers[0]).iter().all(|v| v.i() == 21), "{:?}", decode_all(Elem::I64, &buffers[0]));
}

#[test]
fn overwritten_memory_is_read_first() {
    // Reversal in place through one parameter.
    let mut b = Builder::new("reverse", [1, 1, 1], 4);
    let p = b.param("x", Elem::F32, false);
    let i = b.iota(64);
    let last = b.i32(63);
    let j = b.binary(BinaryOp::Sub, last, i);
    let (pi, pj) = (b.ptr_add(p, i), b.ptr_add(p, j));
    let v = b.load(pi, None, None);
    b.store(pj, v, None);
    let x = Random::new(4).values(Elem::F32, 64);
    let mut buffers = [encode_all(Elem::F32, &x)];
    run(&b.finish(), &mut buffers);
    let want: Vec<Num> = x.iter().rev().copied().collect();
    same("reverse", Elem::F32, &decode_all(Elem::F32, &buffers[0]), &want, 0.0);
}

#[test]
fn conditions() {
    let text = "kernel @cond(%x: ptr<f32> readonly, %y: ptr<f32>) grid [4, 1, 1] warps 4 {
      %pid = program_id 0 : i32
      %two = const 2 : i32
      %n = const 32 : i32
      %base = mul %pid, %n : i32
      %i = iota : i32[32]
      %bs = splat %base : i32[32]
      %at = add %bs, %i : i32[32]
      %xs = splat %x : ptr<f32>[32]
      %ys = splat %y : ptr<f32>[32]
      %xp = ptr_add %xs, %at : ptr<f32>[32]
      %yp = ptr_add %ys, %at : ptr<f32>[32]
      %v = load %xp : f32[32]
      %c = cmp lt %pid, %two : bool
      %r, %k = if %c : f32[32], i32 {
        %d = add %v, %v : f32[32]
        yield %d, %pid
      } else {
        %e = neg %v : f32[32]
        yield %e, %n
      }
      %kf = cast f32 %k : f32
      %ks = splat %kf : f32[32]
      %s = add %r, %ks : f32[32]
      store %yp, %s
    }";
    let k = match text::parse(text) {
        Ok(k) => k,
        Err(e) => panic!("{e}"),
    };
    let x = Random::new(4).values(Elem::F32, 128);
    let mut buffers = [encode_all(Elem::F32, &x), vec![0; 512]];
    run(&k, &mut buffers);
    for (i, g) in decode_all(Elem::F32, &buffers[1]).iter().enumerate() {
        let (v, pid) = (x[i].f() as f32, i / 32);
        let w = if pid < 2 { v + v + pid as f32 } else { -v + 32.0 };
        assert_eq!(g.f() as f32, w, "element {i}");
    }
}

/// The example programs of the block IR compile, and attention is right.
#[test]
fn seed_attention() {
    let k = text::parse(include_str!("../../block/tests/kernels/attention.block")).unwrap();
    let count = 4 * 256 * 64;
    let mut r = Random::new(11);
    let mut input = || -> Vec<Num> { (0..count).map(|_| round(Elem::F16, Num::F(r.uniform() * 2.0 - 1.0))).collect() };
    let (q, kk, v) = (input(), input(), input());
    let mut buffers =
        [encode_all(Elem::F16, &q), encode_all(Elem::F16, &kk), encode_all(Elem::F16, &v), vec![0; count * 2]];
    run(&k, &mut buffers);
    let got = decode_all(Elem::F16, &buffers[3]);
    for head in 0..4 {
        for row in [0usize, 1, 63, 64, 200, 255] {
            let at = |x: &[Num], r: usize, c: usize| x[head * 256 * 64 + r * 64 + c].f();
            let s: Vec<f64> =
                (0..256).map(|j| (0..64).map(|c| at(&q, row, c) * at(&kk, j, c)).sum::<f64>() / 8.0).collect();
            let top = s.iter().copied().fold(f64::MIN, f64::max);
            let p: Vec<f64> = s.iter().map(|v| (v - top).exp()).collect();
            let sum: f64 = p.iter().sum();
            for c in 0..64 {
                let want: f64 = (0..256).map(|j| p[j] * at(&v, j, c)).sum::<f64>() / sum;
                let g = at(&got, row, c);
                assert!((g - want).abs() < 1e-3, "head {head}, row {row}, column {c}: {g}, expected {want}");
            }
        }
    }
}

#[test]
fn lower_level_ops_are_refused() {
    let k = text::parse(include_str!("../../block/tests/kernels/pipeline.block")).unwrap();
    assert!(kiln_codegen::host::compile(&[k]).is_err());
    let k = text::parse(include_str!("../../block/tests/kernels/matmul.block")).unwrap();
    if let Err(e) = kiln_codegen::host::compile(&[k]) {
        panic!("{e}");
    }
}

/// Sums of many terms of one sign: each row is rounded about once, where plain f32 would round once per term.
#[test]
fn long_sums_are_rounded_once() {
    let shape = [4, 1 << 16];
    let n = shape[0] * shape[1];
    let x: Vec<Num> = Random::new(11).values(Elem::F32, n).into_iter().map(|v| Num::F(v.f().abs())).collect();
    let want: Vec<Num> = slices(&x, &shape, 1).iter().map(|r| Num::F(r.iter().map(|v| v.f()).sum::<f64>())).collect();
    let got = one(Elem::F32, &shape, &x, Elem::F32, shape[0], |b, v| b.reduce(ReduceOp::Sum, v, 1));
    for (g, w) in got.iter().zip(&want) {
        assert!((g.f() - w.f()).abs() <= 1.2e-7 * w.f(), "{g:?}, exactly {w:?}");
    }
}
