//! Accuracy of the vector functions in units in the last place, over wide ranges of f32 against f64.
// Tables of ops with their meaning.
#![allow(clippy::type_complexity)]
use crate::support::*;
use kiln_block::*;

const N: usize = 1 << 20;

fn apply(inputs: &[&[f32]], f: impl FnOnce(&mut Builder, &[Value]) -> Value) -> Vec<f32> {
    let (block, len) = (1024, inputs[0].len());
    let mut b = Builder::new("math", [len / block, 1, 1], 4);
    let p: Vec<Value> = (0..inputs.len()).map(|n| b.param(format!("x{n}"), Elem::F32, true)).collect();
    let q = b.param("y", Elem::F32, false);
    let pid = b.program_id(0);
    let n = b.i32(block as i64);
    let base = b.binary(BinaryOp::Mul, pid, n);
    let i = b.iota(block);
    let i = b.binary(BinaryOp::Add, base, i);
    let v: Vec<Value> = p
        .iter()
        .map(|&p| {
            let p = b.ptr_add(p, i);
            b.load(p, None, None)
        })
        .collect();
    let q = b.ptr_add(q, i);
    let r = f(&mut b, &v);
    b.store(q, r, None);
    let mut buffers: Vec<Vec<u8>> = inputs.iter().map(|x| x.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    buffers.push(vec![0; len * 4]);
    run(&b.finish(), &mut buffers);
    buffers[inputs.len()].chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Units in the last place of the f32 result; infinite where a NaN, an infinity or a zero's sign is wrong.
fn error(got: f32, want: f64) -> f64 {
    let w = want as f32;
    let same = (w.is_nan() && got.is_nan()) || w == got || (got.is_infinite() && want.abs() > 3.4028e38);
    if w.is_nan() || w.is_infinite() || got.is_nan() || want == 0.0 {
        let sign = w.is_nan() || w.is_sign_negative() == got.is_sign_negative();
        return if same && sign { 0.0 } else { f64::INFINITY };
    }
    let exponent = (want.abs().log2().floor().max(-1e3) as i32).max(-126);
    (got as f64 - want).abs() / 2f64.powi(exponent - 23)
}

/// Largest error in ulp and where.
fn worst(op: UnaryOp, x: &[f32], f: impl Fn(f64) -> f64) -> (f64, f32) {
    let got = apply(&[x], |b, v| b.unary(op, v[0]));
    let each = x.iter().zip(&got).map(|(&x, &g)| (error(g, f(x as f64)), x));
    each.fold((0.0, 0.0), |w, e| if e.0 > w.0 { e } else { w })
}
fn worst2(op: BinaryOp, x: &[f32], y: &[f32], f: impl Fn(f64, f64) -> f64) -> (f64, (f32, f32)) {
    let got = apply(&[x, y], |b, v| b.binary(op, v[0], v[1]));
    let each = x.iter().zip(y).zip(&got).map(|((&x, &y), &g)| (error(g, f(x as f64, y as f64)), (x, y)));
    each.fold((0.0, (0.0, 0.0)), |w, e| if e.0 > w.0 { e } else { w })
}

/// Evenly in value, and evenly in bits over all exponents.
fn inputs(lo: f32, hi: f32) -> Vec<f32> {
    let mut r = Random::new(99);
    let mut x: Vec<f32> = (0..N / 2).map(|i| lo + (hi - lo) * i as f32 / (N / 2) as f32).collect();
    while x.len() < N - 16 {
        let v = f32::from_bits(r.next_u64() as u32);
        if (lo..=hi).contains(&v) {
            x.push(v);
        }
    }
    x.extend([0.0, -0.0, 1.0, f32::INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45, f32::MAX]);
    x.extend([if lo < 0.0 { -1.0 } else { 2.0 }; 8]);
    x
}

// The C library's erf in f64.
unsafe extern "C" {
    safe fn erf(x: f64) -> f64;
}

#[test]
fn vector_functions_are_within_two_ulp() {
    use UnaryOp::*;
    let cases: Vec<(UnaryOp, f32, f32, fn(f64) -> f64)> = vec![
        (Exp, -104.0, 89.0, f64::exp),
        (Exp2, -150.0, 128.0, f64::exp2),
        (Expm1, -20.0, 89.0, f64::exp_m1),
        (Tanh, -12.0, 12.0, f64::tanh),
        (Erf, -5.0, 5.0, |x| erf(x)),
        (Log, 0.0, 1e30, f64::ln),
        (Log, 0.25, 4.0, f64::ln),
        (Log2, 0.0, 1e30, f64::log2),
        (Log2, 0.25, 4.0, f64::log2),
        (Log10, 0.0, 1e30, f64::log10),
        (Log10, 0.25, 4.0, f64::log10),
        (Log1p, -1.0, 1e30, f64::ln_1p),
        (Log1p, -0.9, 2.0, f64::ln_1p),
        (Sin, -1e4, 1e4, f64::sin),
        (Cos, -1e4, 1e4, f64::cos),
        (Tan, -1e5, 1e5, f64::tan),
        (Sin, -2e5, 2e5, f64::sin),
        (Asin, -1.0, 1.0, f64::asin),
        (Acos, -1.0, 1.0, f64::acos),
        (Atan, -8.0, 8.0, f64::atan),
        (Sinh, -4.0, 4.0, f64::sinh),
        (Cosh, -4.0, 4.0, f64::cosh),
        (Rsqrt, 0.0, 1e30, |x| 1.0 / x.sqrt()),
    ];
    for (op, lo, hi, f) in cases {
        let (error, at) = worst(op, &inputs(lo, hi), f);
        println!("{op:?} on {lo}..{hi}: {error:.3} ulp at {at:e}");
        assert!(error <= 2.0, "{op:?}: {error} ulp at {at:e}");
    }
}

/// All of f32 in even steps of bit patterns: every exponent, both signs, denormals, infinities, NaN.
#[test]
fn vector_functions_over_all_floats() {
    use UnaryOp::*;
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(1021).map(f32::from_bits).collect();
    x.truncate(x.len() / 1024 * 1024);
    let cases: [(UnaryOp, fn(f64) -> f64); 17] = [
        (Exp, f64::exp),
        (Exp2, f64::exp2),
        (Expm1, f64::exp_m1),
        (Tanh, f64::tanh),
        (Erf, |x| erf(x)),
        (Log, f64::ln),
        (Log2, f64::log2),
        (Log10, f64::log10),
        (Log1p, f64::ln_1p),
        (Sin, f64::sin),
        (Cos, f64::cos),
        (Tan, f64::tan),
        (Asin, f64::asin),
        (Acos, f64::acos),
        (Atan, f64::atan),
        (Sinh, f64::sinh),
        (Cosh, f64::cosh),
    ];
    for (op, f) in cases {
        let (error, at) = worst(op, &x, f);
        println!("{op:?}: {error:.3} ulp at {at:e}");
        assert!(error <= 2.0, "{op:?}: {error} ulp at {at:e}");
    }
}

/// All pairs of values at which a function of two arguments has a case of its own.
#[test]
fn functions_of_two_arguments_at_special_values() {
    let mut v = vec![0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 1e10, 16_777_216.0, 16_777_215.0, 1e-45, f32::MAX, f32::INFINITY];
    v.extend(v.clone().iter().map(|v| -v));
    v.extend([f32::NAN, 0.999_999_94, -0.999_999_94, 255.0, -7.0, f32::MIN_POSITIVE, 8_388_607.5, 0.1]);
    let (x, y): (Vec<f32>, Vec<f32>) = (0..1024).map(|i| (v[i / 32], v[i % 32])).unzip();
    for (op, f) in two() {
        let (error, at) = worst2(op, &x, &y, f);
        assert!(error <= 2.0, "{op:?}: {error} ulp at {at:?}");
    }
}

#[test]
fn functions_of_two_arguments_are_within_two_ulp() {
    let mut r = Random::new(7);
    let bits = |r: &mut Random| f32::from_bits(r.next_u64() as u32);
    let within = |r: &mut Random, lo: f32, hi: f32| lo + (hi - lo) * ((r.next_u64() as u32) as f32 / u32::MAX as f32);
    let anything: (Vec<f32>, Vec<f32>) = (0..N).map(|_| (bits(&mut r), bits(&mut r))).unzip();
    let usual: (Vec<f32>, Vec<f32>) =
        (0..N).map(|_| (within(&mut r, -50.0, 50.0), within(&mut r, -9.0, 9.0).round())).unzip();
    let positive: (Vec<f32>, Vec<f32>) =
        (0..N).map(|_| (within(&mut r, 0.0, 50.0), within(&mut r, -30.0, 30.0))).unzip();
    let near_one: (Vec<f32>, Vec<f32>) =
        (0..N).map(|_| (within(&mut r, 0.8, 1.2), within(&mut r, -900.0, 900.0))).unzip();
    for (op, f) in two() {
        for (x, y) in [&anything, &usual, &positive, &near_one] {
            let (error, at) = worst2(op, x, y, f);
            println!("{op:?}: {error:.3} ulp at {at:?}");
            // A remainder is exact.
            assert!(error <= if op == BinaryOp::Rem { 0.0 } else { 2.0 }, "{op:?}: {error} ulp at {at:?}");
        }
    }
}

fn two() -> [(BinaryOp, fn(f64, f64) -> f64); 3] {
    [(BinaryOp::Pow, f64::powf), (BinaryOp::Atan2, f64::atan2), (BinaryOp::Rem, |x, y| x % y)]
}
