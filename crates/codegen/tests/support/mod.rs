//! Typed buffers, rounding and running for the tests of host code.
pub mod launch;

use kiln_block::*;
use kiln_codegen::host;
pub use kiln_number::Random;

/// An element's value, a float or an integer.
#[derive(Clone, Copy, Debug)]
pub enum Num {
    F(f64),
    I(i64),
}
impl Num {
    pub fn f(self) -> f64 {
        match self {
            Num::F(v) => v,
            Num::I(v) => v as f64,
        }
    }
    pub fn i(self) -> i64 {
        match self {
            Num::F(v) => v as i64,
            Num::I(v) => v,
        }
    }
}
/// The value as `e` holds it.
pub fn round(e: Elem, v: Num) -> Num {
    match (e, v) {
        (Elem::F64, v) => Num::F(v.f()),
        (Elem::F32, Num::I(v)) => Num::F(v as f32 as f64),
        (Elem::F32, v) => Num::F(v.f() as f32 as f64),
        (e, v) if e.is_float() => {
            let f = e.format().unwrap();
            let r = fit(v.f(), f.fraction as i32 + 1, f.least_exponent(), f.largest());
            Num::F(if r.is_finite() || f.infinities { r } else { f64::NAN })
        }
        (Elem::I64, v) => Num::I(v.i()),
        (Elem::I32, Num::F(v)) => Num::I(v as i32 as i64),
        (Elem::I32, Num::I(v)) => Num::I(v as i32 as i64),
        (Elem::I16, Num::F(v)) => Num::I(v as i16 as i64),
        (Elem::I8, Num::F(v)) => Num::I(v as i8 as i64),
        (Elem::U16, Num::F(v)) => Num::I(v as u16 as i64),
        (Elem::U32, Num::F(v)) => Num::I(v as u32 as i64),
        (Elem::U64, Num::F(v)) => Num::I(v as u64 as i64),
        (Elem::U64, v) => v,
        (Elem::U8, Num::F(v)) => Num::I(v as u8 as i64),
        (e @ (Elem::I16 | Elem::I8 | Elem::U8 | Elem::U16 | Elem::U32), Num::I(v)) => Num::I(e.wrapped(v)),
        (Elem::Bool, Num::F(v)) => Num::I((v != 0.0) as i64),
        (_, Num::I(v)) => Num::I((v != 0) as i64),
        (_, Num::F(_)) => unreachable!("{e} is a float"),
    }
}
fn fit(v: f64, precision: i32, min: i32, max: f64) -> f64 {
    if v == 0.0 || !v.is_finite() {
        return v;
    }
    let e = (v.abs().log2().floor() as i32).max(min);
    let ulp = 2f64.powi(e - precision + 1);
    let r = (v / ulp).round_ties_even() * ulp;
    if r.abs() > max { f64::INFINITY.copysign(v) } else { r }
}
pub fn encode(e: Elem, v: Num) -> Vec<u8> {
    match e {
        Elem::F64 => v.f().to_le_bytes().to_vec(),
        Elem::F32 => (v.f() as f32).to_le_bytes().to_vec(),
        Elem::Bf16 => (((v.f() as f32).to_bits() >> 16) as u16).to_le_bytes().to_vec(),
        Elem::F16 => half_bits(v.f()).to_le_bytes().to_vec(),
        Elem::I64 | Elem::U64 => v.i().to_le_bytes().to_vec(),
        Elem::I32 | Elem::U32 => (v.i() as i32).to_le_bytes().to_vec(),
        Elem::I16 | Elem::U16 => (v.i() as i16).to_le_bytes().to_vec(),
        Elem::I8 | Elem::U8 | Elem::Bool => vec![v.i() as u8],
        f => vec![(0..=255u8).find(|&b| f8(f, b).to_bits() == v.f().to_bits()).unwrap_or(0x7f)],
    }
}
/// The number that a byte encodes, except NaN, by the definition of the format.
pub fn f8(e: Elem, b: u8) -> f64 {
    let f = e.format().unwrap();
    let s = if b & 0x80 != 0 { -1.0 } else { 1.0 };
    let (x, digits) = (((b & 0x7f) >> f.fraction) as i32, b & ((1 << f.fraction) - 1));
    let m = f64::from(digits) / f64::from(1 << f.fraction);
    let last = (1 << f.exponent) - 1;
    match (x, digits) {
        (x, 0) if x == last && f.infinities => s * f64::INFINITY,
        (x, _) if x == last && f.infinities => f64::NAN,
        (_, _) if b & 0x7f == 0x7f => f64::NAN,
        (0, _) => s * m * 2f64.powi(1 - f.bias()),
        _ => s * (1.0 + m) * 2f64.powi(x - f.bias()),
    }
}
fn half_bits(v: f64) -> u16 {
    let s = if v.is_sign_negative() { 0x8000 } else { 0 };
    let a = v.abs();
    s | if v.is_nan() {
        0x7e00
    } else if a.is_infinite() {
        0x7c00
    } else if a < 2f64.powi(-14) {
        (a * 2f64.powi(24)) as u16
    } else {
        let e = a.log2().floor() as i32;
        (((e + 15) as u16) << 10) + ((a / 2f64.powi(e) - 1.0) * 1024.0) as u16
    }
}
pub fn decode(e: Elem, b: &[u8]) -> Num {
    match e {
        Elem::F64 => Num::F(f64::from_le_bytes(b.try_into().unwrap())),
        Elem::F32 => Num::F(f32::from_le_bytes(b.try_into().unwrap()) as f64),
        Elem::Bf16 => Num::F(f32::from_bits((u16::from_le_bytes(b.try_into().unwrap()) as u32) << 16) as f64),
        Elem::F16 => {
            let h = u16::from_le_bytes(b.try_into().unwrap());
            let (s, x, m) = (if h & 0x8000 != 0 { -1.0 } else { 1.0 }, (h >> 10 & 31) as i32, (h & 1023) as f64);
            Num::F(match x {
                31 if m != 0.0 => f64::NAN,
                31 => s * f64::INFINITY,
                0 => s * m * 2f64.powi(-24),
                _ => s * (1.0 + m / 1024.0) * 2f64.powi(x - 15),
            })
        }
        Elem::I64 | Elem::U64 => Num::I(i64::from_le_bytes(b.try_into().unwrap())),
        Elem::U32 => Num::I(u32::from_le_bytes(b.try_into().unwrap()) as i64),
        Elem::U16 => Num::I(u16::from_le_bytes(b.try_into().unwrap()) as i64),
        Elem::I32 => Num::I(i32::from_le_bytes(b.try_into().unwrap()) as i64),
        Elem::I16 => Num::I(i16::from_le_bytes(b.try_into().unwrap()) as i64),
        Elem::I8 => Num::I(b[0] as i8 as i64),
        Elem::U8 | Elem::Bool => Num::I(b[0] as i64),
        f => Num::F(f8(f, b[0])),
    }
}
pub fn encode_all(e: Elem, v: &[Num]) -> Vec<u8> {
    v.iter().flat_map(|&v| encode(e, round(e, v))).collect()
}
pub fn decode_all(e: Elem, b: &[u8]) -> Vec<Num> {
    b.chunks(e.bytes()).map(|c| decode(e, c)).collect()
}
/// Equal, or within `ulps` units of `e`'s precision.
pub fn near(e: Elem, got: Num, want: Num, ulps: f64) -> bool {
    match (got, want) {
        (Num::I(a), Num::I(b)) => a == b,
        (a, b) => {
            let (a, b) = (a.f(), b.f());
            let (p, min) = match e {
                Elem::F64 => (52, -1022),
                Elem::F32 => (23, -126),
                Elem::F16 => (10, -14),
                _ => (7, -126),
            };
            let ulp = 2f64.powi((b.abs().log2().floor().max(-1e4) as i32).max(min) - p);
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= ulps * ulp
        }
    }
}

/// Compiles and runs all instances on raw buffers, in the order of the parameters.
pub fn run(k: &BlockProgram, buffers: &mut [Vec<u8>]) {
    if let Err(e) = verify::verify(k) {
        panic!("{e}\n{}", text::print(k));
    }
    let module = match host::compile(std::slice::from_ref(k)) {
        Ok(m) => m,
        Err(e) => panic!("{e}\n{}\n{}", text::print(k), host::llvm_text(std::slice::from_ref(k)).unwrap_or_default()),
    };
    let args: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr()).collect();
    let f = module.function(0).unwrap();
    let n = k.instances().unwrap() as u64;
    // In two ranges, as threads would.
    // SAFETY: the test's buffers are as large as the kernel's parameters reach.
    unsafe {
        f(args.as_ptr(), 0, n / 2);
        f(args.as_ptr(), n / 2, n);
    }
}

/// Values of elements, drawn at random.
pub trait Values {
    /// A plain value of the element: floats in -4..4, integers small.
    fn value(&mut self, e: Elem) -> Num;
    fn values(&mut self, e: Elem, n: usize) -> Vec<Num>;
}
impl Values for Random {
    fn value(&mut self, e: Elem) -> Num {
        match e {
            Elem::Bool => Num::I((self.next_u64() >> 60 & 1) as i64),
            Elem::U8 => Num::I((self.next_u64() >> 56) as i64),
            e if e.is_int() => Num::I((self.next_u64() >> 58) as i64 - 30),
            e => round(e, Num::F(self.uniform() * 8.0 - 4.0)),
        }
    }
    fn values(&mut self, e: Elem, n: usize) -> Vec<Num> {
        (0..n).map(|_| self.value(e)).collect()
    }
}

/// `base + iota` offsets of a block of `n`, row-major over `shape` with these strides.
pub fn grid_offsets(b: &mut Builder, shape: &[usize], strides: &[i64]) -> Value {
    let mut sum = None;
    for (axis, (&n, &s)) in shape.iter().zip(strides).enumerate() {
        let mut i = b.iota(n);
        for a in 0..shape.len() {
            if a != axis {
                i = b.expand_dims(i, a);
            }
        }
        let s = b.i32(s);
        let t = b.binary(BinaryOp::Mul, i, s);
        sum = Some(match sum {
            None => t,
            Some(x) => b.binary(BinaryOp::Add, x, t),
        });
    }
    let sum = sum.unwrap();
    b.broadcast_to(sum, shape)
}
pub fn strides(shape: &[usize]) -> Vec<i64> {
    (0..shape.len()).map(|i| shape[i + 1..].iter().product::<usize>() as i64).collect()
}
