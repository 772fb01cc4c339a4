//! Every pointwise op on every element against scalar Rust.
// Tables of ops with their meaning.
#![allow(clippy::type_complexity)]
use crate::support::*;
use kiln_block::*;

const N: usize = 100;

fn samples(e: Elem, seed: u64) -> Vec<Num> {
    let mut r = Random::new(seed * 77 + 1);
    let special: Vec<Num> = if e.is_float() {
        [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-3, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 100.0, -100.0]
            .map(Num::F)
            .to_vec()
    } else if e == Elem::Bool {
        vec![]
    } else {
        [0, 1, -1, 2, 7, -7, 100].map(Num::I).to_vec()
    };
    (0..N)
        .map(|i| {
            // Special values meet in all combinations over the seeds.
            let s = (i * 13 + seed as usize * (i / 7 + 1)) % 40;
            round(e, special.get(s).copied().unwrap_or_else(|| r.value(e)))
        })
        .collect()
}

/// Runs `f` over N elements (a masked block of 128) and gives the results.
fn apply(from: &[Elem], to: Elem, inputs: &[Vec<Num>], f: impl Fn(&mut Builder, &[Value]) -> Value) -> Vec<Num> {
    let mut b = Builder::new("op", [1, 1, 1], 4);
    let names = ["x", "y", "z"];
    let params: Vec<Value> = from.iter().zip(names).map(|(e, n)| b.param(n, *e, true)).collect();
    let out = b.param("out", to, false);
    let i = b.iota(128);
    let n = b.i32(N as i64);
    let mask = b.cmp(CmpOp::Lt, i, n);
    let loaded: Vec<Value> = params
        .iter()
        .map(|p| {
            let p = b.ptr_add(*p, i);
            b.load(p, Some(mask), None)
        })
        .collect();
    let r = f(&mut b, &loaded);
    let p = b.ptr_add(out, i);
    b.store(p, r, Some(mask));
    let k = b.finish();
    let mut buffers: Vec<Vec<u8>> = from.iter().zip(inputs).map(|(e, v)| encode_all(*e, v)).collect();
    buffers.push(vec![0; N * to.bytes()]);
    run(&k, &mut buffers);
    decode_all(to, buffers.last().unwrap())
}
fn check(name: String, e: Elem, inputs: &[Vec<Num>], got: &[Num], ulps: f64, want: impl Fn(&[Num]) -> Num) {
    for i in 0..N {
        let args: Vec<Num> = inputs.iter().map(|v| v[i]).collect();
        let w = round(e, want(&args));
        assert!(near(e, got[i], w, ulps), "{name} of {args:?}: {:?}, expected {w:?}", got[i]);
    }
}

#[test]
fn unary_floats() {
    use UnaryOp::*;
    let exact: &[(UnaryOp, fn(f64) -> f64)] = &[
        (Neg, |x| -x),
        (Abs, f64::abs),
        (Sqrt, f64::sqrt),
        (Floor, f64::floor),
        (Ceil, f64::ceil),
        (Round, f64::round_ties_even),
        (Trunc, f64::trunc),
    ];
    let close: &[(UnaryOp, fn(f64) -> f64)] = &[
        (Exp, f64::exp),
        (Exp2, f64::exp2),
        (Expm1, f64::exp_m1),
        (Log, f64::ln),
        (Log2, f64::log2),
        (Log10, f64::log10),
        (Log1p, f64::ln_1p),
        (Rsqrt, |x| 1.0 / x.sqrt()),
        (Sin, f64::sin),
        (Cos, f64::cos),
        (Tan, f64::tan),
        (Asin, f64::asin),
        (Acos, f64::acos),
        (Atan, f64::atan),
        (Sinh, f64::sinh),
        (Cosh, f64::cosh),
        (Tanh, f64::tanh),
    ];
    for e in [Elem::F64, Elem::F32, Elem::F16, Elem::Bf16].into_iter() {
        for (list, ulps) in [(exact, 0.0), (close, 2.0)] {
            for &(op, f) in list {
                let x = samples(e, op as u64 + 1);
                let got = apply(&[e], e, std::slice::from_ref(&x), |b, v| b.unary(op, v[0]));
                check(format!("{op:?} {e}"), e, &[x], &got, ulps, |a| Num::F(f(a[0].f())));
            }
        }
        let x = samples(e, 3);
        let got = apply(&[e], Elem::Bool, std::slice::from_ref(&x), |b, v| b.unary(IsNan, v[0]));
        check("isnan".into(), Elem::Bool, std::slice::from_ref(&x), &got, 0.0, |a| Num::I(a[0].f().is_nan() as i64));
        let got = apply(&[e], Elem::Bool, std::slice::from_ref(&x), |b, v| b.unary(IsInf, v[0]));
        check("isinf".into(), Elem::Bool, &[x], &got, 0.0, |a| Num::I(a[0].f().is_infinite() as i64));
    }
}

#[test]
fn unary_integers() {
    for e in [Elem::I64, Elem::I32, Elem::I16, Elem::I8, Elem::U8] {
        let ops: &[(UnaryOp, fn(i64) -> i64)] =
            &[(UnaryOp::Neg, |x| -x), (UnaryOp::Abs, i64::abs), (UnaryOp::Not, |x| !x)];
        for &(op, f) in ops {
            let x = samples(e, 5);
            let got = apply(&[e], e, std::slice::from_ref(&x), |b, v| b.unary(op, v[0]));
            check(format!("{op:?} {e}"), e, &[x], &got, 0.0, |a| Num::I(f(a[0].i())));
        }
    }
    let x = samples(Elem::Bool, 5);
    let got = apply(&[Elem::Bool], Elem::Bool, std::slice::from_ref(&x), |b, v| b.unary(UnaryOp::Not, v[0]));
    check("not".into(), Elem::Bool, &[x], &got, 0.0, |a| Num::I(1 - a[0].i()));
}

#[test]
fn binary_floats() {
    use BinaryOp::*;
    let max = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    let min = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) };
    let ops: [(BinaryOp, Box<dyn Fn(f64, f64) -> f64>, f64); 9] = [
        (Add, Box::new(|a, b| a + b), 0.0),
        (Sub, Box::new(|a, b| a - b), 0.0),
        (Mul, Box::new(|a, b| a * b), 0.0),
        (Div, Box::new(|a, b| a / b), 0.0),
        (Rem, Box::new(|a, b| a % b), 0.0),
        (Max, Box::new(max), 0.0),
        (Min, Box::new(min), 0.0),
        (Pow, Box::new(f64::powf), 2.0),
        (Atan2, Box::new(f64::atan2), 2.0),
    ];
    for e in [Elem::F64, Elem::F32, Elem::F16, Elem::Bf16].into_iter() {
        for (op, f, ulps) in &ops {
            for seed in 1..4 {
                let inputs = [samples(e, seed), samples(e, seed + 10)];
                let got = apply(&[e, e], e, &inputs, |b, v| b.binary(*op, v[0], v[1]));
                check(format!("{op:?} {e}"), e, &inputs, &got, *ulps, |a| Num::F(f(a[0].f(), a[1].f())));
            }
        }
    }
}

#[test]
fn binary_integers() {
    use BinaryOp::*;
    let bits = |e: Elem| e.bytes() as i64 * 8;
    for e in [Elem::I64, Elem::I32, Elem::I16, Elem::I8, Elem::U8] {
        let ops: Vec<(BinaryOp, Box<dyn Fn(i64, i64) -> i64>)> = vec![
            (Add, Box::new(i64::wrapping_add)),
            (Sub, Box::new(i64::wrapping_sub)),
            (Mul, Box::new(i64::wrapping_mul)),
            (Div, Box::new(|a, b| if b == 0 { 0 } else { a.wrapping_div(b) })),
            (Rem, Box::new(|a, b| if b == 0 { 0 } else { a.wrapping_rem(b) })),
            (Max, Box::new(i64::max)),
            (Min, Box::new(i64::min)),
            (And, Box::new(|a, b| a & b)),
            (Or, Box::new(|a, b| a | b)),
            (Xor, Box::new(|a, b| a ^ b)),
            (Shl, Box::new(move |a, b| if (0..bits(e)).contains(&b) { a << b } else { 0 })),
            (
                Shr,
                Box::new(move |a, b| match (0..bits(e)).contains(&b) {
                    true => a >> b,
                    false if e == Elem::U8 => 0,
                    false => a >> 63,
                }),
            ),
        ];
        for (op, f) in &ops {
            for seed in 1..4 {
                let inputs = [samples(e, seed), samples(e, seed + 10)];
                let got = apply(&[e, e], e, &inputs, |b, v| b.binary(*op, v[0], v[1]));
                check(format!("{op:?} {e}"), e, &inputs, &got, 0.0, |a| Num::I(f(a[0].i(), a[1].i())));
            }
        }
    }
    for (op, f) in [(And, (|a, b| a & b) as fn(i64, i64) -> i64), (Or, |a, b| a | b), (Xor, |a, b| a ^ b)] {
        let inputs = [samples(Elem::Bool, 1), samples(Elem::Bool, 12)];
        let got = apply(&[Elem::Bool; 2], Elem::Bool, &inputs, |b, v| b.binary(op, v[0], v[1]));
        check(format!("{op:?} bool"), Elem::Bool, &inputs, &got, 0.0, |a| Num::I(f(a[0].i(), a[1].i())));
    }
}

#[test]
fn division_by_constants() {
    for c in [1i64, 2, 3, 7, 16, 64, 100, -3, -1, 0] {
        for e in [Elem::I32, Elem::I64] {
            for rem in [false, true] {
                let x = samples(e, 9);
                let op = if rem { BinaryOp::Rem } else { BinaryOp::Div };
                let got = apply(&[e], e, std::slice::from_ref(&x), |b, v| {
                    let c = b.constant(Type::scalar(e), Const::Int(c));
                    b.binary(op, v[0], c)
                });
                check(format!("{op:?} by {c}"), e, &[x], &got, 0.0, |a| {
                    Num::I(if c == 0 {
                        0
                    } else if rem {
                        a[0].i() % c
                    } else {
                        a[0].i() / c
                    })
                });
                // Of affine indices.
                let got = apply(&[], e, &[], |b, _| {
                    let i = b.iota(128);
                    let i = b.cast(i, e);
                    let (c, m) =
                        (b.constant(Type::scalar(e), Const::Int(c)), b.constant(Type::scalar(e), Const::Int(-32)));
                    let i = b.binary(BinaryOp::Add, i, m);
                    b.binary(op, i, c)
                });
                for (i, g) in got.iter().enumerate() {
                    let x = i as i64 - 32;
                    assert_eq!(
                        g.i(),
                        if c == 0 {
                            0
                        } else if rem {
                            x % c
                        } else {
                            x / c
                        },
                        "{op:?} of {x} by {c}"
                    );
                }
            }
        }
    }
}

#[test]
fn comparisons_and_select() {
    use CmpOp::*;
    let all = [Elem::F64, Elem::F32, Elem::F16, Elem::Bf16, Elem::I64, Elem::I32, Elem::I16, Elem::I8, Elem::U8];
    for e in all.into_iter() {
        for op in [Eq, Ne, Lt, Le, Gt, Ge] {
            let inputs = [samples(e, 1), samples(e, 2)];
            let f = move |a: &[Num]| match (a[0], a[1]) {
                (Num::I(a), Num::I(b)) => [a == b, a != b, a < b, a <= b, a > b, a >= b][op as usize],
                (a, b) => {
                    let (a, b) = (a.f(), b.f());
                    [a == b, a != b, a < b, a <= b, a > b, a >= b][op as usize]
                }
            };
            let got = apply(&[e, e], Elem::Bool, &inputs, |b, v| b.cmp(op, v[0], v[1]));
            check(format!("{op:?} {e}"), Elem::Bool, &inputs, &got, 0.0, |a| Num::I(f(a) as i64));
            let got = apply(&[e, e], e, &inputs, |b, v| {
                let c = b.cmp(op, v[0], v[1]);
                b.select(c, v[1], v[0])
            });
            check(format!("select {op:?} {e}"), e, &inputs, &got, 0.0, |a| if f(a) { a[1] } else { a[0] });
        }
    }
}

#[test]
fn casts() {
    for from in Elem::ALL.into_iter() {
        for to in Elem::ALL.into_iter() {
            if from == to {
                continue;
            }
            let mut x = samples(from, 4);
            if from.is_float() {
                x[0] = round(from, Num::F(300.7));
                x[1] = round(from, Num::F(-3.9));
                x[2] = round(from, Num::F(1e30));
                x[3] = round(from, Num::F(1.00390625 + 1e-9));
                x[4] = round(from, Num::F(16.5 + 1e-7));
            }
            let got = apply(&[from], to, std::slice::from_ref(&x), |b, v| b.cast(v[0], to));
            let value = |v: Num| match (from, to, v) {
                (Elem::U64, Elem::F32, Num::I(v)) => Num::F(v as u64 as f32 as f64),
                (Elem::U64, to, Num::I(v)) if to.is_float() => Num::F(v as u64 as f64),
                _ => v,
            };
            check(format!("cast {from} to {to}"), to, &[x], &got, 0.0, |a| value(a[0]));
        }
    }
}
