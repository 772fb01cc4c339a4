//! Transcendental functions: vector polynomials for f32; the C library lane by lane for f64 and where a polynomial does
//! not apply.
//!
//! The polynomials are within 2 ulp of the true value (tests/host_math.rs). Frequent and short ones are inlined, the
//! others are written once per width, as internal functions. Coefficients called minimax were fitted for the least
//! maximal relative error, each rounded to f32 before the next was fitted.
// Coefficients are written as published; each is read as the nearest f32.
#![allow(clippy::excessive_precision)]
mod exp;
mod log;
mod pow;
mod trig;

use super::text::{Name, float, literal, reg, vector};
use super::{Emit, Res};
use kiln_block::{Arithmetic, BinaryOp, Elem, UnaryOp};
use log::Base;

/// A function of the C library: its name for f32 and for f64.
type Symbols = (&'static str, &'static str);

fn unary_symbols(op: UnaryOp) -> Option<Symbols> {
    use UnaryOp::*;
    Some(match op {
        Exp => ("expf", "exp"),
        Exp2 | Exp2Approx => ("exp2f", "exp2"),
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
        Tanh | TanhApprox => ("tanhf", "tanh"),
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
    if op == UnaryOp::Gelu {
        return Ok(F32 { e, d, n }.gelu(&x));
    }
    let (single, double) = unary_symbols(op).ok_or_else(|| format!("{op:?} of {elem}"))?;
    if elem == Elem::F64 {
        return Ok(library(e, d, double, reg(elem), &[&x], n));
    }
    let mut f = F32 { e, d, n };
    Ok(match op {
        UnaryOp::Exp => f.exp(&x),
        UnaryOp::Exp2 | UnaryOp::Exp2Approx => f.exp2(&x),
        UnaryOp::Expm1 => f.expm1(&x),
        UnaryOp::Tanh | UnaryOp::TanhApprox => f.tanh(&x),
        UnaryOp::Erf => f.erf(&x),
        UnaryOp::Log => f.log(&x, Base::E),
        UnaryOp::Log2 => f.log(&x, Base::Two),
        UnaryOp::Log10 => f.log(&x, Base::Ten),
        UnaryOp::Log1p => f.log1p(&x),
        _ => f.outlined(single, &[&x], |f, a| match op {
            UnaryOp::Sin => f.sin(&a[0]),
            UnaryOp::Cos => f.cos(&a[0]),
            UnaryOp::Tan => f.tan(&a[0]),
            UnaryOp::Asin => f.asin(&a[0]),
            UnaryOp::Acos => f.acos(&a[0]),
            UnaryOp::Atan => f.atan(&a[0]),
            UnaryOp::Sinh => f.sinh(&a[0]),
            UnaryOp::Cosh => f.cosh(&a[0]),
            _ => library(f.e, f.d, single, "float", &[&a[0]], n),
        }),
    })
}

pub(super) fn binary(e: &mut Emit, d: usize, op: BinaryOp, elem: Elem, x: &Name, y: &Name, n: usize) -> Res<Name> {
    let (single, double) = match op {
        BinaryOp::Pow => ("powf", "pow"),
        BinaryOp::Atan2 => ("atan2f", "atan2"),
        BinaryOp::Rem => ("fmodf", "fmod"),
        _ => return Err(format!("{op:?} of {elem}")),
    };
    if elem == Elem::F64 {
        return Ok(library(e, d, double, reg(elem), &[x, y], n));
    }
    Ok(F32 { e, d, n }.outlined(single, &[x, y], |f, a| match op {
        BinaryOp::Pow => f.pow(&a[0], &a[1]),
        BinaryOp::Atan2 => f.atan2(&a[0], &a[1]),
        _ => f.fmod(&a[0], &a[1]),
    }))
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
        // The target features must match the caller's, or vectors are passed differently.
        e.text.add_helper(&name, text.replace(" noinline nounwind {", " noinline nounwind #0 {"));
    }
    e.text.call(d, &t, &name, &list)
}

/// f32 formulas over `n` lanes, written into scope `d`.
struct F32<'e, 'k> {
    e: &'e mut Emit<'k>,
    d: usize,
    n: usize,
}

impl F32<'_, '_> {
    /// The function of one or two arguments that `body` writes, as an internal function of this width; for one lane the
    /// library's.
    fn outlined(&mut self, symbol: &'static str, args: &[&Name], body: impl FnOnce(&mut F32, &[Name]) -> Name) -> Name {
        // Under IEEE arithmetic an element's bits must not depend on its position, so the scalar tail uses the vector
        // formula, too.
        if self.n == 1 && self.e.kernel.arithmetic != Arithmetic::Ieee {
            return library(self.e, self.d, symbol, "float", args, 1);
        }
        let (t, name) = (self.t(), format!("lanes.{symbol}.{}", self.n));
        if !self.e.text.has_helper(&name) {
            let names: Vec<Name> = (0..args.len()).map(|i| format!("%a{i}").into()).collect();
            let outer = self.e.text.open_helper();
            let result = body(&mut F32 { e: self.e, d: 0, n: self.n }, &names);
            let text = self.e.text.close_helper(outer);
            let params: Vec<String> = names.iter().map(|a| format!("{t} {a}")).collect();
            let text = format!(
                "define internal {t} @{name}({}) nounwind willreturn memory(none) #0 {{\n{text}  ret {t} {result}\n}}\n",
                params.join(", ")
            );
            self.e.text.add_helper(&name, text);
        }
        let list: Vec<(&str, &str)> = args.iter().map(|a| (t.as_str(), &***a)).collect();
        self.e.text.call(self.d, &t, &name, &list)
    }
    /// `fast`, but the library's function in lanes where `far` is set. Only in outlined functions.
    fn unless(&mut self, far: &Name, fast: Name, symbol: &'static str, args: &[&Name]) -> Name {
        let (t, c, n) = (self.t(), vector("i1", self.n), self.n);
        let any = match n {
            1 => far.clone(),
            _ => self.e.text.call(self.d, "i1", &format!("llvm.vector.reduce.or.v{n}i1"), &[(&c, far)]),
        };
        let l = self.e.text.label();
        self.e.text.line(self.d, format!("br label %{l}.test"));
        self.e.text.mark(&format!("{l}.test"));
        self.e.text.line(self.d, format!("br i1 {any}, label %{l}.far, label %{l}.done"));
        self.e.text.mark(&format!("{l}.far"));
        let slow = library(self.e, self.d, symbol, "float", args, n);
        let slow = self.select(far, &slow, &fast);
        self.e.text.line(self.d, format!("br label %{l}.done"));
        self.e.text.mark(&format!("{l}.done"));
        self.e.text.emit(self.d, format!("phi {t} [ {fast}, %{l}.test ], [ {slow}, %{l}.far ]"))
    }
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
}
