//! Accuracy of the vector functions in units in the last place, over wide ranges of f32 against f64.
// Tables of ops with their meaning.
#![allow(clippy::type_complexity)]
mod support;
use kiln_block::*;
use support::*;

const N: usize = 1 << 20;

fn apply(op: UnaryOp, x: &[f32]) -> Vec<f32> {
    let block = 1024;
    let mut b = Builder::new("math", [x.len() / block, 1, 1], 4);
    let (p, q) = (b.param("x", Elem::F32, true), b.param("y", Elem::F32, false));
    let pid = b.program_id(0);
    let n = b.i32(block as i64);
    let base = b.binary(BinaryOp::Mul, pid, n);
    let i = b.iota(block);
    let i = b.binary(BinaryOp::Add, base, i);
    let (p, q) = (b.ptr_add(p, i), b.ptr_add(q, i));
    let v = b.load(p, None, None);
    let r = b.unary(op, v);
    b.store(q, r, None);
    let mut buffers = [x.iter().flat_map(|v| v.to_le_bytes()).collect(), vec![0; x.len() * 4]];
    run(&b.finish(), &mut buffers);
    buffers[1].chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Largest error in ulp (of the f32 result) and where.
fn worst(op: UnaryOp, x: &[f32], f: impl Fn(f64) -> f64) -> (f64, f32) {
    let got = apply(op, x);
    let mut worst = (0.0, 0.0);
    for (&x, &g) in x.iter().zip(&got) {
        let want = f(x as f64);
        let w = want as f32;
        if w.is_nan() || w.is_infinite() || g.is_nan() {
            assert!(
                (w.is_nan() && g.is_nan()) || w == g || (g.is_infinite() && want.abs() > 3.4028e38),
                "{op:?} {x}: {g}, expected {w}"
            );
            continue;
        }
        let exponent = (want.abs().log2().floor().max(-1e3) as i32).max(-126);
        let error = (g as f64 - want).abs() / 2f64.powi(exponent - 23);
        if error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

/// Evenly in value, and evenly in bits over all exponents.
fn inputs(lo: f32, hi: f32) -> Vec<f32> {
    let mut r = Random(99);
    let mut x: Vec<f32> = (0..N / 2).map(|i| lo + (hi - lo) * i as f32 / (N / 2) as f32).collect();
    while x.len() < N - 16 {
        let v = f32::from_bits(r.bits() as u32);
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
    let cases: [(UnaryOp, fn(f64) -> f64); 9] = [
        (Exp, f64::exp),
        (Exp2, f64::exp2),
        (Expm1, f64::exp_m1),
        (Tanh, f64::tanh),
        (Erf, |x| erf(x)),
        (Log, f64::ln),
        (Log2, f64::log2),
        (Log10, f64::log10),
        (Log1p, f64::ln_1p),
    ];
    for (op, f) in cases {
        let (error, at) = worst(op, &x, f);
        println!("{op:?}: {error:.3} ulp at {at:e}");
        assert!(error <= 2.0, "{op:?}: {error} ulp at {at:e}");
    }
}
