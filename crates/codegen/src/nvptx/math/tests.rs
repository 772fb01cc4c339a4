//! The formulas on this machine's CPU, against f64 arithmetic of the standard library. Only `ex2` and `rsqrt`, which
//! are GPU instructions, are replaced.
use super::*;
use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::targets::{InitializationConfig, Target};
use kiln_block::Format;

fn with<'c>(
    cx: &'c Context,
    double: bool,
    n: usize,
    rounded: bool,
    f: impl Fn(&Emit<'c>, &[F<'c>]) -> Res<F<'c>>,
) -> usize {
    Target::initialize_native(&InitializationConfig::default()).unwrap();
    let e = Emit {
        cx,
        module: cx.create_module("math"),
        b: cx.create_builder(),
        host: true,
        rounded,
        ieee: false,
        f8: false,
    };
    let ty = if double { cx.f64_type() } else { cx.f32_type() };
    let function = e.module.add_function("f", ty.fn_type(&vec![ty.into(); n], false), None);
    e.b.position_at_end(cx.append_basic_block(function, ""));
    let args: Vec<F<'c>> = function.get_params().iter().map(|p| p.into_float_value()).collect();
    let v = f(&e, &args).unwrap();
    e.b.build_return(Some(&v)).unwrap();
    e.module.verify().unwrap();
    let engine = e.module.create_jit_execution_engine(OptimizationLevel::Default).unwrap();
    let address = engine.get_function_address("f").unwrap();
    std::mem::forget(engine);
    address
}

/// Distance in units of the last place of the right result; 0 if both are NaN or equal.
fn ulps(got: f32, right: f64) -> f64 {
    let rounded = right as f32;
    if got.is_nan() || rounded.is_nan() || rounded.is_infinite() || got.is_infinite() {
        return if got.to_bits() == rounded.to_bits() || got.is_nan() && rounded.is_nan() { 0.0 } else { 1e9 };
    }
    let unit =
        f32::from_bits(rounded.abs().to_bits().max(1 << 23) + 1) - f32::from_bits(rounded.abs().to_bits().max(1 << 23));
    (f64::from(got) - right).abs() / f64::from(unit)
}

/// All signs and exponents, several mantissas.
fn numbers() -> Vec<f32> {
    let mut all: Vec<f32> = vec![0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN];
    let mut state = 1u32;
    for exponent in 0..255u32 {
        for _ in 0..400 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            all.push(f32::from_bits(state >> 9 | exponent << 23 | (state & 1) << 31));
        }
    }
    all
}

fn check(op: UnaryOp, right: impl Fn(f64) -> f64, limit: f64) {
    check_as(op, right, limit, false);
}
fn check_as(op: UnaryOp, right: impl Fn(f64) -> f64, limit: f64, rounded: bool) {
    let cx = Context::create();
    let address = with(&cx, false, 1, rounded, |e, x| unary(e, op, x[0]));
    // SAFETY: the function was made with one f32 argument and result; `cx` keeps its code.
    let f: extern "C" fn(f32) -> f32 = unsafe { std::mem::transmute(address) };
    let (mut worst, mut at) = (0.0, 0.0);
    for x in numbers() {
        let error = ulps(f(x), right(f64::from(x)));
        if error > worst {
            (worst, at) = (error, x);
        }
    }
    println!("{op:?}: {worst:.3} ulp at {at:e}");
    let (got, expected) = (f(at), right(f64::from(at)));
    assert!(worst <= limit, "{op:?}({at:e}): {got:e} for {expected:e}, {worst} ulp");
    if right(-0.0) == 0.0 {
        assert_eq!(f(-0.0).is_sign_negative(), right(-0.0).is_sign_negative(), "{op:?}(-0)");
    }
}

#[test]
fn single_functions() {
    check(UnaryOp::Exp, f64::exp, 2.0);
    check(UnaryOp::Exp2, f64::exp2, 2.0);
    check(UnaryOp::Log, f64::ln, 1.0);
    check(UnaryOp::Log2, f64::log2, 2.0);
    check(UnaryOp::Log10, f64::log10, 2.0);
    check(UnaryOp::Log1p, f64::ln_1p, 1.0);
    check(UnaryOp::Sinh, f64::sinh, 2.0);
    check(UnaryOp::Cosh, f64::cosh, 2.0);
    check(UnaryOp::Atan, f64::atan, 2.0);
    check(UnaryOp::Asin, f64::asin, 2.0);
    check(UnaryOp::Acos, f64::acos, 2.0);
    check(UnaryOp::Expm1, f64::exp_m1, 1.25);
    check(UnaryOp::Tanh, f64::tanh, 2.0);
    check(UnaryOp::Rsqrt, |x| 1.0 / x.sqrt(), 2.0);
}

/// Results that are rounded to half types need an error of at most 2^-16.
#[test]
fn functions_for_half_types() {
    check_as(UnaryOp::Exp, f64::exp, 128.0, true);
    check(UnaryOp::Exp2Approx, f64::exp2, 2.0);
    check(UnaryOp::TanhApprox, f64::tanh, 128.0);
    check_as(UnaryOp::Tanh, f64::tanh, 128.0, true);
    check_as(UnaryOp::Erf, erf_exact, 128.0, true);
}

#[test]
fn turns() {
    check(UnaryOp::Sin, f64::sin, 0.51);
    check(UnaryOp::Cos, f64::cos, 0.51);
    check(UnaryOp::Tan, f64::tan, 0.51);
}

/// erf by its series, and by the continued fraction where that is slow.
fn erf_exact(x: f64) -> f64 {
    let a = x.abs();
    if x.is_nan() || a > 6.0 {
        return if x.is_nan() { x } else { 1f64.copysign(x) };
    }
    if a < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > 1e-20 * sum.abs() {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let mut k = 0.0;
    for n in (1..200).rev() {
        k = f64::from(n) / 2.0 / (a + k);
    }
    (1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + k)).copysign(x)
}

#[test]
fn error_function() {
    check(UnaryOp::Erf, erf_exact, 2.0);
}

/// Its tail is a difference, so the error is counted in ulp of x.
#[test]
fn gelu() {
    for (rounded, limit) in [(false, 2f64.powi(-23)), (true, 2f64.powi(-21))] {
        let cx = Context::create();
        let address = with(&cx, false, 1, rounded, |e, x| unary(e, UnaryOp::Gelu, x[0]));
        // SAFETY: compiled as a function of one f32.
        let f: extern "C" fn(f32) -> f32 = unsafe { std::mem::transmute(address) };
        for x in numbers().into_iter().filter(|x| x.is_finite()) {
            let wide = f64::from(x);
            let right = 0.5 * wide * (1.0 + erf_exact(wide * std::f64::consts::FRAC_1_SQRT_2));
            let error = (f64::from(f(x)) - right).abs();
            assert!(
                error <= limit * wide.abs().max(f64::from(f32::MIN_POSITIVE)),
                "gelu({x:e}): {:e} for {right:e}",
                f(x)
            );
        }
        assert_eq!(f(f32::INFINITY), f32::INFINITY);
        assert!(f(f32::NEG_INFINITY).is_nan() && f(f32::NAN).is_nan());
    }
}

fn check_binary(op: BinaryOp, right: impl Fn(f64, f64) -> f64, limit: f64) {
    let cx = Context::create();
    let address = with(&cx, false, 2, false, |e, x| binary(e, op, x[0], x[1]));
    // SAFETY: the function was made with two f32 arguments and one result; `cx` keeps its code.
    let f: extern "C" fn(f32, f32) -> f32 = unsafe { std::mem::transmute(address) };
    let all = numbers();
    let special =
        [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 33.25, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let pairs = special.iter().flat_map(|x| special.iter().map(|y| (*x, *y)));
    let far = all.iter().zip(all.iter().rev()).map(|(x, y)| (*x, *y));
    let near = all.iter().zip(all.iter().skip(77)).map(|(x, y)| (*x, *y));
    let modest = all.iter().step_by(7).flat_map(|x| [(*x, 2.5), (*x, 3.0), (*x, -0.3)]);
    // Powers near the ends of the range, where an error of the logarithm counts the most.
    let ends = all.iter().step_by(3).flat_map(|x| [125.0, -125.0, 60.0].map(|n| (*x, n / x.abs().log2())));
    for (x, y) in pairs.chain(far).chain(near).chain(modest).chain(ends) {
        let (got, expected) = (f(x, y), right(f64::from(x), f64::from(y)));
        assert!(ulps(got, expected) <= limit, "{op:?}({x:e}, {y:e}): {got:e} for {expected:e}");
    }
}

#[test]
fn two_operands() {
    check_binary(BinaryOp::Pow, f64::powf, 1.0);
    check_binary(BinaryOp::Rem, |x, y| x % y, 0.5);
    check_binary(BinaryOp::Atan2, f64::atan2, 0.51);
}

/// Powers that are rounded to half types need an error of at most 2^-16 of the result.
#[test]
fn powers_for_half_types() {
    let cx = Context::create();
    let address = with(&cx, false, 2, true, |e, x| binary(e, BinaryOp::Pow, x[0], x[1]));
    // SAFETY: the function was made with two f32 arguments and one result; `cx` keeps its code.
    let f: extern "C" fn(f32, f32) -> f32 = unsafe { std::mem::transmute(address) };
    let half = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
    let mut inside = 0;
    for x in numbers().into_iter().map(half) {
        for y in [0.0, -0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, 1.7, -0.3, 7.25, 100.0, f32::INFINITY, f32::NAN].map(half)
        {
            let (got, right) = (f(x, y), f64::from(x).powf(f64::from(y)));
            if !right.is_finite() || right == 0.0 {
                assert!(
                    ulps(got, right) <= 0.5 || right.is_nan() && got.is_nan(),
                    "pow({x:e}, {y:e}): {got:e} for {right:e}"
                );
            } else if (1e-30..1e30).contains(&right.abs()) {
                inside += 1;
                assert!(ulps(got, right) <= 128.0, "pow({x:e}, {y:e}): {got:e} for {right:e}");
            }
        }
    }
    assert!(inside > 1000, "{inside}");
}

#[test]
fn double_functions() {
    let cx = Context::create();
    type Function = fn(f64) -> f64;
    let all: [(UnaryOp, Function); 12] = [
        (UnaryOp::Exp, f64::exp),
        (UnaryOp::Exp2, f64::exp2),
        (UnaryOp::Expm1, f64::exp_m1),
        (UnaryOp::Log, f64::ln),
        (UnaryOp::Log2, f64::log2),
        (UnaryOp::Log10, f64::log10),
        (UnaryOp::Log1p, f64::ln_1p),
        (UnaryOp::Tanh, f64::tanh),
        (UnaryOp::Sinh, f64::sinh),
        (UnaryOp::Cosh, f64::cosh),
        (UnaryOp::Atan, f64::atan),
        (UnaryOp::Asin, f64::asin),
    ];
    for (op, right) in all {
        let address = with(&cx, true, 1, false, |e, x| unary(e, op, x[0]));
        // SAFETY: the function was made with one f64 argument and result; `cx` keeps its code.
        let f: extern "C" fn(f64) -> f64 = unsafe { std::mem::transmute(address) };
        for i in -4000i32..4000 {
            let x = f64::from(i) * 0.1730769 + if i % 3 == 0 { 1e-9 } else { 0.37 / f64::from(i.abs() + 1) };
            let (got, expected) = (f(x), right(x));
            let fine =
                got == expected || got.is_nan() && expected.is_nan() || ((got - expected) / expected).abs() < 4e-15;
            assert!(fine, "{op:?}({x:e}): {got:e} for {expected:e}");
        }
    }
}

/// Distance in units of the last place of the right result; 0 if both are NaN or the same.
fn double_ulps(got: f64, right: f64) -> f64 {
    if got.to_bits() == right.to_bits() || got.is_nan() && right.is_nan() {
        return 0.0;
    }
    let size = right.abs();
    if !got.is_finite() || !right.is_finite() || got.is_sign_negative() != right.is_sign_negative() {
        return 1e9;
    }
    (got - right).abs() / (size.next_up().min(f64::MAX) - size).max(f64::from_bits(1))
}
/// f64 of all signs and exponents.
fn doubles(count: usize, seed: u64) -> impl Iterator<Item = f64> {
    let mut random = kiln_number::Random::new(seed);
    (0..count).map(move |_| f64::from_bits(random.next_u64()))
}
/// f64 between `-size` and `size`.
fn modest(count: usize, seed: u64, size: f64) -> impl Iterator<Item = f64> {
    doubles(count, seed).map(move |x| (x.to_bits() >> 11) as f64 * 2f64.powi(-52) * size - size)
}

#[test]
fn error_function_of_doubles() {
    unsafe extern "C" {
        fn erf(x: f64) -> f64;
    }
    let cx = Context::create();
    let address = with(&cx, true, 1, false, |e, x| unary(e, UnaryOp::Erf, x[0]));
    // SAFETY: compiled as a function of one f64.
    let f: extern "C" fn(f64) -> f64 = unsafe { std::mem::transmute(address) };
    let special = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MIN_POSITIVE, 5e-324];
    for x in special.into_iter().chain(doubles(200_000, 3)).chain(modest(400_000, 5, 7.0)) {
        // SAFETY: the C library's function takes any number.
        let right = unsafe { erf(x) };
        assert!(double_ulps(f(x), right) <= 2.0, "erf({x:e}): {:e} for {right:e}", f(x));
    }
}

#[test]
fn powers_of_doubles() {
    let cx = Context::create();
    let address = with(&cx, true, 2, false, |e, x| binary(e, BinaryOp::Pow, x[0], x[1]));
    // SAFETY: compiled as a function of two f64.
    let f: extern "C" fn(f64, f64) -> f64 = unsafe { std::mem::transmute(address) };
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        33.25,
        1e300,
        -1e300,
        1e-300,
        5e-324,
        9007199254740993.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::MAX,
        f64::MIN_POSITIVE,
        1.0 + f64::EPSILON,
        1.0 - f64::EPSILON,
    ];
    let pairs = special.iter().flat_map(|x| special.iter().map(|y| (*x, *y)));
    let far = doubles(200_000, 7).zip(doubles(200_000, 8));
    // Results over the whole range of exponents.
    let near = doubles(400_000, 9).zip(modest(400_000, 10, 1.0)).map(|(x, share)| {
        let (x, of) = (x.abs(), x.abs().log2());
        (x, if of.is_finite() && of != 0.0 { share * 1080.0 / of } else { share })
    });
    let about_one = modest(200_000, 11, 0.5).zip(modest(200_000, 12, 1400.0)).map(|(x, y)| (1.0 + x, y));
    let whole = modest(100_000, 13, 9.0).zip(modest(100_000, 14, 40.0)).map(|(x, y)| (x, y.round()));
    let mut worst = 0.0f64;
    for (x, y) in pairs.chain(far).chain(near).chain(about_one).chain(whole) {
        let (got, right) = (f(x, y), x.powf(y));
        let error = double_ulps(got, right);
        worst = worst.max(error);
        assert!(error <= 2.0, "{x:e} ^ {y:e}: {got:e} for {right:e}");
    }
    println!("pow: {worst} ulp");
}

/// To f8 by arithmetic and back: every f8 number is reached, and all others go to the nearest.
#[test]
fn f8_there_and_back() {
    let cx = Context::create();
    for format in [Format::F8E4M3, Format::F8E5M2] {
        let address = with(&cx, false, 1, false, |e, x| {
            let byte = super::super::f8::from_f32(e, format, x)?[0];
            let half = super::super::f8::to_f16(e, format, &[byte.into_int_value()])?[0];
            Ok(e.b.build_float_ext(half.into_float_value(), e.f32(), "")?)
        });
        // SAFETY: the function was made with one f32 argument and result; `cx` keeps its code.
        let f: extern "C" fn(f32) -> f32 = unsafe { std::mem::transmute(address) };
        let count = 1u32 << format.fraction;
        let value = |n: u32| match n / count {
            0 => n as f32 * format.least() as f32,
            exponent => (count + n % count) as f32 / count as f32 * 2f32.powi(exponent as i32 - format.bias()),
        };
        let largest = format.beyond() - 1;
        assert_eq!(f64::from(value(largest)), format.largest());
        for n in 0..largest {
            let (a, b) = (value(n), value(n + 1));
            let half = (a + b) / 2.0;
            let even = if n % 2 == 0 { a } else { b };
            for sign in [1.0, -1.0] {
                let at = |x: f32| f(sign * x) * sign;
                assert_eq!(
                    [at(a), at(half.next_down()), at(half), at(half.next_up())],
                    [a, a, even, b],
                    "{format:?}: {n}"
                );
            }
        }
        let last = value(largest);
        assert_eq!([f(last), f(format.last()), f(-last)], [last, last, -last]);
        let beyond = if format.infinities { f32::INFINITY } else { f32::NAN };
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        for x in [format.last().next_up(), 2.0 * last, 65536.0, 1e6, f32::MAX, f32::INFINITY] {
            assert!(same(f(x), beyond) && same(f(-x), -beyond), "{format:?}: {x} to {} and {}", f(x), f(-x));
        }
        assert!(f(f32::NAN).is_nan() && f(-f32::NAN).is_nan());
        for x in numbers() {
            assert!(same(f(x), format.round_f32(x)), "{format:?}: {x:e} to {}", f(x));
        }
    }
}

/// Remainders are exact.
#[test]
fn remainders_of_doubles() {
    let cx = Context::create();
    let address = with(&cx, true, 2, false, |e, x| binary(e, BinaryOp::Rem, x[0], x[1]));
    // SAFETY: compiled as a function of two f64.
    let f: extern "C" fn(f64, f64) -> f64 = unsafe { std::mem::transmute(address) };
    let special =
        [0.0, -0.0, 1.0, -3.0, 0.1, 1e308, -1e-308, 5e-324, 4e-310, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let pairs = special.iter().flat_map(|x| special.iter().map(|y| (*x, *y)));
    let far = doubles(20_000, 17).zip(doubles(20_000, 18));
    let near = modest(20_000, 19, 1000.0).zip(modest(20_000, 20, 7.0));
    let small = doubles(20_000, 21).zip(modest(20_000, 22, 1e-307));
    for (x, y) in pairs.chain(far).chain(near).chain(small) {
        assert_eq!(double_ulps(f(x, y), x % y), 0.0, "{x:e} % {y:e}: {:e} for {:e}", f(x, y), x % y);
    }
}
