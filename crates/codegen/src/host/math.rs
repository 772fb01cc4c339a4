//! Transcendental functions: vector polynomials for f32, the C library lane by lane for f64 and for rare functions.
//!
//! Methods: exp, exp2 by Cody-Waite reduction to |r| <= ln2/2 and a minimax polynomial of degree 6; expm1 by the same reduction
//! and the polynomial of Cephes' `expf`; log as in FreeBSD's `e_logf.c`; erf by N. Juffa's two-range polynomials; tanh from
//! expm1(-2|x|). Within 2 ulp (tests/host_math.rs).
// Coefficients are written as published; each is read as the nearest f32.
#![allow(clippy::excessive_precision)]
use super::text::{Name, float, literal, reg, vector};
use super::{Emit, Res};
use kiln_block::{BinaryOp, Elem, UnaryOp};

/// A function of the C library: its name for f32 and for f64.
type Symbols = (&'static str, &'static str);

fn unary_symbols(op: UnaryOp) -> Option<Symbols> {
    use UnaryOp::*;
    Some(match op {
        Exp => ("expf", "exp"),
        Exp2 => ("exp2f", "exp2"),
        Expm1 => ("expm1f", "expm1"),
        Log => ("logf", "log"),
        Log2 => ("log2f", "log2"),
        Log10 => ("log10f", "log10"),
        Log1p => ("log1pf", "log1p"),
        Sin => ("sinf", "sin"),
        Cos => ("cosf", "cos"),
        Tan => ("tanf", "tan"),
        Asin => ("asinf", "asin"),
        Acos => ("acosf", "acos"),
        Atan => ("atanf", "atan"),
        Sinh => ("sinhf", "sinh"),
        Cosh => ("coshf", "cosh"),
        Tanh => ("tanhf", "tanh"),
        Erf => ("erff", "erf"),
        _ => return None,
    })
}

/// Address of a library function by name.
pub(super) fn address(symbol: &str) -> Option<usize> {
    macro_rules! table {
        ($($name:ident($($arg:ident),*) $t:ty;)*) => {{
            unsafe extern "C" { $(fn $name($($arg: $t),*) -> $t;)* }
            match symbol { $(stringify!($name) => Some($name as *const () as usize),)* _ => None }
        }};
    }
    table! {
        expf(x) f32; exp(x) f64; exp2f(x) f32; exp2(x) f64; expm1f(x) f32; expm1(x) f64; logf(x) f32; log(x) f64;
        log2f(x) f32; log2(x) f64; log10f(x) f32; log10(x) f64; log1pf(x) f32; log1p(x) f64; sinf(x) f32; sin(x) f64;
        cosf(x) f32; cos(x) f64; tanf(x) f32; tan(x) f64; asinf(x) f32; asin(x) f64; acosf(x) f32; acos(x) f64;
        atanf(x) f32; atan(x) f64; sinhf(x) f32; sinh(x) f64; coshf(x) f32; cosh(x) f64; tanhf(x) f32; tanh(x) f64;
        erff(x) f32; erf(x) f64; powf(x, y) f32; pow(x, y) f64; atan2f(x, y) f32; atan2(x, y) f64; fmodf(x, y) f32;
        fmod(x, y) f64;
    }
}

pub(super) fn unary(e: &mut Emit, d: usize, op: UnaryOp, elem: Elem, x: Name, n: usize) -> Res<Name> {
    if elem != Elem::F64 {
        let mut f = F32 { e, d, n };
        match op {
            UnaryOp::Exp => return Ok(f.exp(&x)),
            UnaryOp::Exp2 => return Ok(f.exp2(&x)),
            UnaryOp::Expm1 => return Ok(f.expm1(&x)),
            UnaryOp::Tanh => return Ok(f.tanh(&x)),
            UnaryOp::Erf => return Ok(f.erf(&x)),
            UnaryOp::Log => return Ok(f.log(&x, Base::E)),
            UnaryOp::Log2 => return Ok(f.log(&x, Base::Two)),
            UnaryOp::Log10 => return Ok(f.log(&x, Base::Ten)),
            UnaryOp::Log1p => return Ok(f.log1p(&x)),
            _ => {}
        }
    }
    let (single, double) = unary_symbols(op).ok_or_else(|| format!("{op:?} of {elem}"))?;
    Ok(library(e, d, if elem == Elem::F64 { double } else { single }, reg(elem), &[&x], n))
}

pub(super) fn binary(e: &mut Emit, d: usize, op: BinaryOp, elem: Elem, x: &Name, y: &Name, n: usize) -> Res<Name> {
    let (single, double) = match op {
        BinaryOp::Pow => ("powf", "pow"),
        BinaryOp::Atan2 => ("atan2f", "atan2"),
        BinaryOp::Rem => ("fmodf", "fmod"),
        _ => return Err(format!("{op:?} of {elem}")),
    };
    Ok(library(e, d, if elem == Elem::F64 { double } else { single }, reg(elem), &[x, y], n))
}

/// Calls a library function on every lane, through a helper with a loop (one per function and width).
fn library(e: &mut Emit, d: usize, symbol: &'static str, ty: &str, args: &[&Name], n: usize) -> Name {
    e.text.declare_extern(symbol, ty, args.len());
    let t = vector(ty, n);
    let list: Vec<(&str, &str)> = args.iter().map(|a| (t.as_str(), &***a)).collect();
    if n == 1 {
        return e.text.call(d, &t, symbol, &list);
    }
    let name = format!("each.{symbol}.{n}");
    if !e.text.has_helper(&name) {
        let params: Vec<String> = (0..args.len()).map(|i| format!("{t} %a{i}")).collect();
        let mut body = String::new();
        let mut lane = String::new();
        for i in 0..args.len() {
            body += &format!("  %m{i} = alloca {t}\n  store {t} %a{i}, ptr %m{i}\n");
            lane += &format!("  %p{i} = getelementptr {ty}, ptr %m{i}, i64 %l\n  %x{i} = load {ty}, ptr %p{i}\n");
        }
        let call: Vec<String> = (0..args.len()).map(|i| format!("{ty} %x{i}")).collect();
        let text = format!(
            "define internal {t} @{name}({}) noinline nounwind {{\n{body}  br label %go\ngo:\n  %l = phi i64 [ 0, %0 ], [ %k, %go ]\n\
             {lane}  %r = call {ty} @{symbol}({})\n  store {ty} %r, ptr %p0\n  %k = add i64 %l, 1\n  %c = icmp ult i64 %k, {n}\n  \
             br i1 %c, label %go, label %done\ndone:\n  %v = load {t}, ptr %m0\n  ret {t} %v\n}}\n",
            params.join(", "),
            call.join(", ")
        );
        // The host's features must match the caller's, or vectors pass differently.
        e.text.add_helper(&name, text.replace(" noinline nounwind {", " noinline nounwind #0 {"));
    }
    e.text.call(d, &t, &name, &list)
}

enum Base {
    E,
    Two,
    Ten,
}

/// f32 formulas over `n` lanes, written into scope `d`.
struct F32<'e, 'k> {
    e: &'e mut Emit<'k>,
    d: usize,
    n: usize,
}

impl F32<'_, '_> {
    fn c(&self, v: f32) -> Name {
        literal("float", self.n, &float("float", v as f64))
    }
    fn i(&self, v: i32) -> Name {
        literal("i32", self.n, &v.to_string())
    }
    fn t(&self) -> String {
        vector("float", self.n)
    }
    fn it(&self) -> String {
        vector("i32", self.n)
    }
    fn op(&mut self, name: &str, a: &Name, b: &Name) -> Name {
        let t = self.t();
        self.e.text.emit(self.d, format!("{name} {t} {a}, {b}"))
    }
    fn iop(&mut self, name: &str, a: &Name, b: &Name) -> Name {
        let t = self.it();
        self.e.text.emit(self.d, format!("{name} {t} {a}, {b}"))
    }
    fn mul(&mut self, a: &Name, b: &Name) -> Name {
        self.op("fmul", a, b)
    }
    fn add(&mut self, a: &Name, b: &Name) -> Name {
        self.op("fadd", a, b)
    }
    fn sub(&mut self, a: &Name, b: &Name) -> Name {
        self.op("fsub", a, b)
    }
    fn fma(&mut self, a: &Name, b: &Name, c: &Name) -> Name {
        self.e.intrinsic(self.d, "fma", "float", self.n, &[a, b, c])
    }
    fn neg(&mut self, a: &Name) -> Name {
        let t = self.t();
        self.e.text.emit(self.d, format!("fneg {t} {a}"))
    }
    fn abs(&mut self, a: &Name) -> Name {
        self.e.intrinsic(self.d, "fabs", "float", self.n, &[a])
    }
    fn copysign(&mut self, a: &Name, sign: &Name) -> Name {
        self.e.intrinsic(self.d, "copysign", "float", self.n, &[a, sign])
    }
    fn fcmp(&mut self, p: &str, a: &Name, b: &Name) -> Name {
        let t = self.t();
        self.e.text.emit(self.d, format!("fcmp {p} {t} {a}, {b}"))
    }
    fn select(&mut self, c: &Name, a: &Name, b: &Name) -> Name {
        let (t, ct) = (self.t(), vector("i1", self.n));
        self.e.text.emit(self.d, format!("select {ct} {c}, {t} {a}, {t} {b}"))
    }
    fn bits(&mut self, a: &Name) -> Name {
        let (t, it) = (self.t(), self.it());
        self.e.text.emit(self.d, format!("bitcast {t} {a} to {it}"))
    }
    fn of_bits(&mut self, a: &Name) -> Name {
        let (t, it) = (self.t(), self.it());
        self.e.text.emit(self.d, format!("bitcast {it} {a} to {t}"))
    }
    /// x limited to lo..=hi; NaN stays.
    fn clamp(&mut self, x: &Name, lo: f32, hi: f32) -> Name {
        let (lo, hi) = (self.c(lo), self.c(hi));
        let below = self.fcmp("olt", x, &lo);
        let x = self.select(&below, &lo, x);
        let above = self.fcmp("ogt", &x, &hi);
        self.select(&above, &hi, &x)
    }
    fn horner(&mut self, x: &Name, coefficients: &[f32]) -> Name {
        let mut p = self.c(coefficients[0]);
        for &c in &coefficients[1..] {
            let c = self.c(c);
            p = self.fma(&p, x, &c);
        }
        p
    }
    /// The integer nearest to x times `factor`, as float and as i32, without a conversion (|x * factor| < 2^22).
    fn nearest(&mut self, x: &Name, factor: f32) -> (Name, Name) {
        let (magic, factor) = (self.c(12_582_912.0), self.c(factor));
        let t = self.fma(x, &factor, &magic);
        let f = self.sub(&t, &magic);
        let bits = self.bits(&t);
        let zero = self.i(0x4b40_0000);
        let i = self.iop("sub", &bits, &zero);
        (f, i)
    }
    /// 2^k for -126 <= k <= 127.
    fn pow2(&mut self, k: &Name) -> Name {
        let (bias, shift) = (self.i(127), self.i(23));
        let b = self.iop("add", k, &bias);
        let s = self.iop("shl", &b, &shift);
        self.of_bits(&s)
    }
    /// p * 2^k, k as float and as i32. By one instruction, or by two factors, so that the whole range of results is reached
    /// with one rounding.
    fn scale(&mut self, p: &Name, kf: &Name, k: &Name) -> Name {
        if self.n == 16 && self.e.machine.lanes == 16 {
            let t = self.t();
            let args = [(&*t, &**p), (&*t, &**kf), (&*t, "zeroinitializer"), ("i16", "-1"), ("i32", "4")];
            return self.e.text.call(self.d, &t, "llvm.x86.avx512.mask.scalef.ps.512", &args);
        }
        let one = self.i(1);
        let k1 = self.iop("ashr", k, &one);
        let k2 = self.iop("sub", k, &k1);
        let (s1, s2) = (self.pow2(&k1), self.pow2(&k2));
        let r = self.mul(p, &s1);
        self.mul(&r, &s2)
    }
    /// e^r - 1 for |r| <= ln2/2 (Cephes).
    fn expm1_core(&mut self, r: &Name) -> Name {
        let p =
            self.horner(r, &[1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.000_000_1e-1]);
        let r2 = self.mul(r, r);
        self.fma(&p, &r2, r)
    }
    /// (x - k ln2, k) with k nearest to x / ln2.
    fn reduce_ln2(&mut self, x: &Name) -> (Name, Name) {
        let (r, _, k) = self.reduce_ln2_both(x);
        (r, k)
    }
    /// As `reduce_ln2`, with k as a float between the two.
    fn reduce_ln2_both(&mut self, x: &Name) -> (Name, Name, Name) {
        let (kf, k) = self.nearest(x, std::f32::consts::LOG2_E);
        let (hi, lo) = (self.c(-0.693_359_4), self.c(2.121_944_4e-4));
        let r = self.fma(&kf, &hi, x);
        (self.fma(&kf, &lo, &r), kf, k)
    }
    /// e^r for |r| <= ln2/2: 1 + r + r^2 Q(r), Q minimax in relative error (3.1e-9).
    fn exp_core(&mut self, r: &Name) -> Name {
        self.horner(r, &[1.381_454e-3, 8.368_745e-3, 4.166_839e-2, 1.666_652_1e-1, 4.999_999_4e-1, 1.0, 1.0])
    }
    fn exp(&mut self, x: &Name) -> Name {
        let x = self.clamp(x, -104.0, 89.0);
        let (r, kf, k) = self.reduce_ln2_both(&x);
        let p = self.exp_core(&r);
        self.scale(&p, &kf, &k)
    }
    fn exp2(&mut self, x: &Name) -> Name {
        let x = self.clamp(x, -151.0, 129.0);
        let (kf, k) = self.nearest(&x, 1.0);
        let f = self.sub(&x, &kf);
        let ln2 = self.c(std::f32::consts::LN_2);
        let r = self.mul(&f, &ln2);
        let p = self.exp_core(&r);
        self.scale(&p, &kf, &k)
    }
    /// e^x - 1 = 2 (2^(k-1) m + 2^(k-1) - 1/2), m = e^r - 1.
    fn expm1(&mut self, x0: &Name) -> Name {
        let x = self.clamp(x0, -18.0, 89.0);
        let (r, k) = self.reduce_ln2(&x);
        let m = self.expm1_core(&r);
        let one = self.i(1);
        let k = self.iop("sub", &k, &one);
        let s = self.pow2(&k);
        let half = self.c(-0.5);
        let t = self.add(&s, &half);
        let h = self.fma(&s, &m, &t);
        let y = self.add(&h, &h);
        let zero = self.c(0.0);
        let is_zero = self.fcmp("oeq", x0, &zero);
        self.select(&is_zero, x0, &y)
    }
    /// x + x^3 P(x^2) below 0.625 (Cephes), from there on 1 - 2e / (1 + e) with e = e^(-2|x|), which cannot overflow.
    fn tanh(&mut self, x0: &Name) -> Name {
        let a = self.abs(x0);
        let minus2 = self.c(-2.0);
        let y = self.mul(&a, &minus2);
        let x = self.clamp(&y, -20.0, 0.0);
        let (r, k) = self.reduce_ln2(&x);
        let m = self.expm1_core(&r);
        let s = self.pow2(&k);
        let e = self.fma(&s, &m, &s);
        let (one, limit) = (self.c(1.0), self.c(0.625));
        let twice = self.add(&e, &e);
        let den = self.add(&e, &one);
        let q = self.op("fdiv", &twice, &den);
        let far = self.sub(&one, &q);
        let z = self.mul(&a, &a);
        let p = self.horner(&z, &[-5.704_988_7e-3, 2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_2e-1]);
        let pz = self.mul(&p, &z);
        let near = self.fma(&pz, &a, &a);
        let is_near = self.fcmp("olt", &a, &limit);
        let r = self.select(&is_near, &near, &far);
        self.copysign(&r, x0)
    }
    fn erf(&mut self, a: &Name) -> Name {
        let t = self.abs(a);
        let s = self.mul(a, a);
        // |a| > 0.9277: 1 - exp(polynomial).
        let four = self.c(4.0);
        let over = self.fcmp("ogt", &t, &four);
        let tc = self.select(&over, &four, &t);
        let sc = self.mul(&tc, &tc);
        let r = self.horner(&tc, &[-1.728_534_7e-5, 3.831_971_3e-4]);
        let u = self.horner(&tc, &[-3.883_964_4e-3, 2.425_462_2e-2]);
        let mut r = self.fma(&r, &sc, &u);
        for c in [-1.067_778_8e-1, -6.348_466_9e-1, -1.287_175_1e-1] {
            let c = self.c(c);
            r = self.fma(&r, &tc, &c);
        }
        let minus = self.neg(&tc);
        let r = self.fma(&r, &tc, &minus);
        // exp without its outer ranges: r is in -20..0.
        let (q, k) = self.reduce_ln2(&r);
        let m = self.expm1_core(&q);
        let p = self.pow2(&k);
        let e = self.fma(&p, &m, &p);
        let one = self.c(1.0);
        let big = self.sub(&one, &e);
        let big = self.copysign(&big, a);
        let p = self.horner(
            &s,
            &[-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_3e-1, -3.761_253_4e-1, 1.283_791_7e-1],
        );
        let small = self.fma(&p, a, a);
        let limit = self.c(0.927_734_4);
        let far = self.fcmp("ogt", &t, &limit);
        self.select(&far, &big, &small)
    }
    fn log(&mut self, x0: &Name, base: Base) -> Name {
        // Denormals are scaled by 2^23 first.
        let (min, two23) = (self.c(f32::MIN_POSITIVE), self.c(8_388_608.0));
        let tiny = self.fcmp("olt", x0, &min);
        let up = self.mul(x0, &two23);
        let x = self.select(&tiny, &up, x0);
        let (zero, shift) = (self.c(0.0), self.c(-23.0));
        let extra = self.select(&tiny, &shift, &zero);
        // x = 2^k m, sqrt(1/2) <= m < sqrt(2).
        let bits = self.bits(&x);
        let (off, s23, mask, half) = (self.i(0x3f3504f3), self.i(23), self.i(0x7f_ffff), self.i(0x3f3504f3));
        let u = self.iop("sub", &bits, &off);
        let k = self.iop("ashr", &u, &s23);
        let low = self.iop("and", &u, &mask);
        let mb = self.iop("add", &low, &half);
        let m = self.of_bits(&mb);
        let (t, it) = (self.t(), self.it());
        let kf = self.e.text.emit(self.d, format!("sitofp {it} {k} to {t}"));
        let kf = self.add(&kf, &extra);
        let (one, two, h) = (self.c(1.0), self.c(2.0), self.c(0.5));
        let f = self.sub(&m, &one);
        let f2 = self.add(&f, &two);
        let s = self.op("fdiv", &f, &f2);
        let z = self.mul(&s, &s);
        let r = self.horner(&z, &[0.242_790_79, 0.284_987_87, 0.400_009_72, 0.666_666_6, 0.0]);
        let hf = self.mul(&f, &h);
        let hfsq = self.mul(&hf, &f);
        let sum = self.add(&hfsq, &r);
        let y = match base {
            Base::E => {
                let (hi, lo) = (self.c(0.693_138_1), self.c(9.058_001e-6));
                let a = self.mul(&kf, &lo);
                let a = self.fma(&s, &sum, &a);
                let a = self.sub(&a, &hfsq);
                let a = self.add(&a, &f);
                self.fma(&kf, &hi, &a)
            }
            Base::Two | Base::Ten => {
                let (hi, lo, scale) = match base {
                    Base::Two => (
                        std::f32::consts::LOG2_E,
                        (std::f64::consts::LOG2_E - std::f32::consts::LOG2_E as f64) as f32,
                        1.0,
                    ),
                    _ => {
                        let e = std::f32::consts::LOG10_E;
                        (e, (std::f64::consts::LOG10_E - e as f64) as f32, std::f32::consts::LOG10_2)
                    }
                };
                let tail = self.fma(&s, &sum, &zero);
                let tail = self.sub(&tail, &hfsq);
                // log(m) = f + tail, times the factor in two parts.
                let (hi, lo, scale) = (self.c(hi), self.c(lo), self.c(scale));
                let lm = self.add(&f, &tail);
                let d1 = self.sub(&f, &lm);
                let err = self.add(&d1, &tail);
                let a = self.mul(&lm, &lo);
                let a = self.fma(&err, &hi, &a);
                let b = self.fma(&lm, &hi, &a);
                self.fma(&kf, &scale, &b)
            }
        };
        // 0: -inf; negative: NaN; infinity and NaN: themselves.
        let (inf, ninf, nan) = (self.c(f32::INFINITY), self.c(f32::NEG_INFINITY), self.c(f32::NAN));
        let regular = self.fcmp("ult", x0, &inf);
        let y = self.select(&regular, &y, x0);
        let is_zero = self.fcmp("oeq", x0, &zero);
        let y = self.select(&is_zero, &ninf, &y);
        let bad = self.fcmp("ult", x0, &zero);
        self.select(&bad, &nan, &y)
    }
    /// log(u) + c / u with u = 1 + x rounded and c what the rounding lost.
    fn log1p(&mut self, x: &Name) -> Name {
        let one = self.c(1.0);
        let u = self.add(&one, x);
        let y = self.log(&u, Base::E);
        let um = self.sub(&u, &one);
        let c1 = self.sub(x, &um);
        let ux = self.sub(&u, x);
        let c2 = self.sub(&one, &ux);
        let a = self.abs(x);
        let large = self.fcmp("ogt", &a, &one);
        let c = self.select(&large, &c2, &c1);
        let q = self.op("fdiv", &c, &u);
        let r = self.add(&y, &q);
        let (zero, inf) = (self.c(0.0), self.c(f32::INFINITY));
        // x = -1 and infinity have no correction; zeros keep their sign.
        let at_pole = self.fcmp("oeq", &u, &zero);
        let r = self.select(&at_pole, &y, &r);
        let is_inf = self.fcmp("oeq", x, &inf);
        let r = self.select(&is_inf, x, &r);
        let is_zero = self.fcmp("oeq", x, &zero);
        self.select(&is_zero, x, &r)
    }
}
