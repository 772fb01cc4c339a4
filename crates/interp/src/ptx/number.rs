//! Numbers of PTX's types as the low bits of 64.
use half::{bf16, f16};

/// A type's name without the number of its bits, and that number: `f32`, `bf16`, `s64`, `b16`, `pred`.
pub fn bits(ty: &str) -> Option<u32> {
    match ty {
        "pred" => Some(1),
        _ => ty.trim_start_matches(|c: char| c.is_alphabetic()).parse().ok().filter(|n| [8, 16, 32, 64].contains(n)),
    }
}
pub fn is_float(ty: &str) -> bool {
    matches!(ty, "f16" | "bf16" | "f32" | "f64")
}
pub fn is_signed(ty: &str) -> bool {
    ty.starts_with('s')
}

/// The low `n` bits.
pub fn low(v: u64, n: u32) -> u64 {
    if n >= 64 { v } else { v & ((1 << n) - 1) }
}
/// An integer's value: with its sign, if the type has one.
pub fn int(v: u64, ty: &str) -> i128 {
    let n = bits(ty).unwrap_or(64);
    match is_signed(ty) {
        true => i128::from((low(v, n) << (64 - n)) as i64 >> (64 - n)),
        false => i128::from(low(v, n)),
    }
}
pub fn float(v: u64, ty: &str) -> f64 {
    match ty {
        "f16" => f16::from_bits(v as u16).to_f64(),
        "bf16" => bf16::from_bits(v as u16).to_f64(),
        "f32" => f64::from(f32::from_bits(v as u32)),
        _ => f64::from_bits(v),
    }
}
/// To nearest even.
pub fn rounded(x: f64, ty: &str) -> u64 {
    match ty {
        "f16" => u64::from(f16::from_f64(x).to_bits()),
        "bf16" => u64::from(bf16::from_f64(x).to_bits()),
        "f32" => u64::from((x as f32).to_bits()),
        _ => x.to_bits(),
    }
}

/// An op of one type on bits of it; `None`: not known. Floats are computed in f64 and rounded once.
pub fn apply(op: &[&str], ty: &str, x: &[u64]) -> Option<u64> {
    if let Some(half) = ty.strip_suffix("x2") {
        let part = |n: u32| apply(op, half, &x.iter().map(|v| low(v >> (16 * n), 16)).collect::<Vec<_>>());
        return Some(part(0)? | part(1)? << 16);
    }
    let has = |name: &str| op.contains(&name);
    if is_float(ty) {
        let f: Vec<f64> = x.iter().map(|v| float(*v, ty)).collect();
        // A maximum or minimum of a number and a NaN is the number, unless the instruction says otherwise.
        let pick = |f: &[f64], max: bool| match (f[0].is_nan(), f[1].is_nan()) {
            (true, _) | (_, true) if has("NaN") => f64::NAN,
            (true, _) => f[1],
            (_, true) => f[0],
            _ if max => {
                if f[0] > f[1] || f[0] == f[1] && f[1].is_sign_negative() {
                    f[0]
                } else {
                    f[1]
                }
            }
            _ => {
                if f[0] < f[1] || f[0] == f[1] && f[0].is_sign_negative() {
                    f[0]
                } else {
                    f[1]
                }
            }
        };
        let y = match (op[0], &f[..]) {
            ("add", [a, b]) => a + b,
            ("sub", [a, b]) => a - b,
            ("mul", [a, b]) => a * b,
            ("div", [a, b]) => a / b,
            ("fma" | "mad", [a, b, c]) => a.mul_add(*b, *c),
            ("max", [_, _]) => pick(&f, true),
            ("min", [_, _]) => pick(&f, false),
            ("neg", [a]) => -a,
            ("abs", [a]) => a.abs(),
            ("rcp", [a]) => 1.0 / a,
            ("sqrt", [a]) => a.sqrt(),
            ("rsqrt", [a]) => 1.0 / a.sqrt(),
            ("ex2", [a]) => a.exp2(),
            ("lg2", [a]) => a.log2(),
            ("sin", [a]) => a.sin(),
            ("cos", [a]) => a.cos(),
            ("tanh", [a]) => a.tanh(),
            ("copysign", [a, b]) => b.copysign(*a),
            _ => return None,
        };
        let y = if has("sat") { if y.is_nan() { 0.0 } else { y.clamp(0.0, 1.0) } } else { y };
        return Some(rounded(y, ty));
    }
    let n = bits(ty)?;
    let i: Vec<i128> = x.iter().map(|v| int(*v, ty)).collect();
    let shift = |b: i128| b.min(127) as u32;
    let y = match (op[0], &i[..]) {
        ("add", [a, b]) => a + b,
        ("sub", [a, b]) => a - b,
        ("mul", [a, b]) if has("hi") && n == 64 && !is_signed(ty) => ((*a as u128 * *b as u128) >> 64) as i128,
        ("mul", [a, b]) if has("hi") => (a * b) >> n,
        ("mul", [a, b]) => a.wrapping_mul(*b),
        ("mad", [a, b, c]) if has("hi") => (a.wrapping_mul(*b) >> n) + c,
        ("mad", [a, b, c]) => a.wrapping_mul(*b).wrapping_add(*c),
        ("div", [a, b]) if *b != 0 => a / b,
        ("rem", [a, b]) if *b != 0 => a % b,
        ("max", [a, b]) => *a.max(b),
        ("min", [a, b]) => *a.min(b),
        ("and", [a, b]) => a & b,
        ("or", [a, b]) => a | b,
        ("xor", [a, b]) => a ^ b,
        ("not", [a]) => !a,
        ("neg", [a]) => -a,
        ("abs", [a]) => a.abs(),
        ("popc", [a]) => i128::from(low(*a as u64, n).count_ones()),
        ("clz", [a]) => i128::from(low(*a as u64, n).leading_zeros() - (64 - n)),
        ("shl", [a, b]) => {
            if *b >= i128::from(n) {
                0
            } else {
                a << shift(*b)
            }
        }
        ("shr", [a, b]) => a >> shift(*b),
        ("bfe", [a, from, count]) => {
            let (from, count) = (low(*from as u64, 8) as u32, low(*count as u64, 8) as u32);
            let part = low((*a >> from.min(127)) as u64, count.min(64));
            let negative = is_signed(ty) && count > 0 && part >> (count - 1) & 1 == 1;
            i128::from(part) - if negative { 1i128 << count } else { 0 }
        }
        ("bfi", [a, b, from, count]) if *from < 64 && *count < 64 => {
            let mask = low(u64::MAX, *count as u32) << from;
            i128::from(*b as u64 & !mask | (*a as u64) << from & mask)
        }
        _ => return None,
    };
    Some(low(y as u64, n))
}

/// Whether a comparison holds.
pub fn compare(by: &str, ty: &str, a: u64, b: u64) -> Option<bool> {
    let order = match is_float(ty) {
        true => float(a, ty).partial_cmp(&float(b, ty)),
        false => Some(int(a, ty).cmp(&int(b, ty))),
    };
    // Those of floats whose names end with u hold for NaNs.
    let (by, unordered) = match by {
        "num" => return Some(order.is_some()),
        "nan" => return Some(order.is_none()),
        "equ" | "neu" | "ltu" | "leu" | "gtu" | "geu" => (&by[..2], true),
        _ => (by, false),
    };
    let Some(o) = order else { return Some(unordered) };
    Some(match by {
        "eq" => o.is_eq(),
        "ne" => o.is_ne(),
        "lt" | "lo" => o.is_lt(),
        "le" | "ls" => o.is_le(),
        "gt" | "hi" => o.is_gt(),
        "ge" | "hs" => o.is_ge(),
        _ => return None,
    })
}

/// A number of one type in another.
pub fn converted(op: &[&str], to: &str, from: &str, v: u64) -> Option<u64> {
    let has = |name: &str| op.contains(&name);
    if is_float(from) {
        let x = float(v, from);
        let whole = match op.iter().copied().find(|o| matches!(*o, "rni" | "rzi" | "rmi" | "rpi")) {
            Some("rni") => x.round_ties_even(),
            Some("rzi") => x.trunc(),
            Some("rmi") => x.floor(),
            Some(_) => x.ceil(),
            None => x,
        };
        if is_float(to) {
            let y = if has("sat") { whole.clamp(0.0, 1.0) } else { whole };
            return Some(rounded(y, to));
        }
        // To an integer it saturates, and a NaN is 0.
        let n = bits(to)?;
        let (least, greatest) = match is_signed(to) {
            true => (-(2f64.powi(n as i32 - 1)), 2f64.powi(n as i32 - 1) - 1.0),
            false => (0.0, 2f64.powi(n as i32) - 1.0),
        };
        let y = if whole.is_nan() { 0.0 } else { whole.clamp(least, greatest) };
        return Some(low(y as i128 as u64, n));
    }
    let x = int(v, from);
    if is_float(to) {
        return Some(if to == "f32" { u64::from((x as f32).to_bits()) } else { rounded(x as f64, to) });
    }
    let n = bits(to)?;
    let x = if has("sat") {
        let (least, greatest) =
            if is_signed(to) { (-(1i128 << (n - 1)), (1i128 << (n - 1)) - 1) } else { (0, (1i128 << n) - 1) };
        x.clamp(least, greatest)
    } else {
        x
    };
    // A number of fewer bits than its register fills that by its sign.
    let kept = low(x as u64, n);
    Some(if is_signed(to) && n < 32 { low(int(kept, to) as u64, 32) } else { kept })
}
