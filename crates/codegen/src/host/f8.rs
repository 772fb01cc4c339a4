//! f8e4m3 (the finite variant): 3 bits of fraction, exponent bias 7, no infinity, largest 448; beyond it NaN, as PyTorch casts.
//! Registers hold the value as f32.
use super::Emit;
use super::text::{Name, float, literal, vector};

/// Types and literals of `n` lanes.
struct Lanes {
    n: usize,
    f: String,
    i: String,
    c: String,
}
impl Lanes {
    fn new(n: usize) -> Lanes {
        Lanes { n, f: vector("float", n), i: vector("i32", n), c: vector("i1", n) }
    }
    fn int(&self, v: i64) -> Name {
        literal("i32", self.n, &v.to_string())
    }
    fn float(&self, v: f64) -> Name {
        literal("float", self.n, &float("float", v))
    }
}

impl Emit<'_> {
    /// An f32 to the nearest value, ties to even.
    pub fn f8_round(&mut self, d: usize, x: &Name, n: usize) -> Name {
        let l = Lanes::new(n);
        let (f, i, c) = (&l.f, &l.i, &l.c);
        let a = self.intrinsic(d, "fabs", "float", n, &[x]);
        // Normal: the fraction's lower 20 bits are rounded off.
        let u = self.text.emit(d, format!("bitcast {f} {a} to {i}"));
        let s = self.text.emit(d, format!("lshr {i} {u}, {}", l.int(20)));
        let odd = self.text.emit(d, format!("and {i} {s}, {}", l.int(1)));
        let r = self.text.emit(d, format!("add {i} {u}, {}", l.int(0x7_ffff)));
        let r = self.text.emit(d, format!("add {i} {r}, {odd}"));
        let r = self.text.emit(d, format!("and {i} {r}, {}", l.int(-0x10_0000)));
        let normal = self.text.emit(d, format!("bitcast {i} {r} to {f}"));
        // Below 2^-6: a multiple of 2^-9, the last place of 3/2 * 2^14.
        let magic = l.float(24576.0);
        let t = self.text.emit(d, format!("fadd {f} {a}, {magic}"));
        let small = self.text.emit(d, format!("fsub {f} {t}, {magic}"));
        let is_small = self.text.emit(d, format!("fcmp olt {f} {a}, {}", l.float(0.015625)));
        let r = self.text.emit(d, format!("select {c} {is_small}, {f} {small}, {f} {normal}"));
        // More than this rounds to more than the largest number, 448.
        let fits = self.text.emit(d, format!("fcmp ole {f} {a}, {}", l.float(464.0)));
        let r = self.text.emit(d, format!("select {c} {fits}, {f} {r}, {f} {}", l.float(f64::NAN)));
        self.intrinsic(d, "copysign", "float", n, &[&r, x])
    }
    /// A rounded value to its byte.
    pub fn f8_pack(&mut self, d: usize, x: &Name, n: usize) -> Name {
        let l = Lanes::new(n);
        let (f, i, c) = (&l.f, &l.i, &l.c);
        let u = self.text.emit(d, format!("bitcast {f} {x} to {i}"));
        let sign = self.text.emit(d, format!("lshr {i} {u}, {}", l.int(24)));
        let sign = self.text.emit(d, format!("and {i} {sign}, {}", l.int(0x80)));
        let m = self.text.emit(d, format!("and {i} {u}, {}", l.int(0x7fff_ffff)));
        let m = self.text.emit(d, format!("lshr {i} {m}, {}", l.int(20)));
        let normal = self.text.emit(d, format!("sub {i} {m}, {}", l.int(120 << 3)));
        // Adding 3/2 * 2^14 leaves the multiple of 2^-9 in the low bits.
        let a = self.intrinsic(d, "fabs", "float", n, &[x]);
        let t = self.text.emit(d, format!("fadd {f} {a}, {}", l.float(24576.0)));
        let t = self.text.emit(d, format!("bitcast {f} {t} to {i}"));
        let small = self.text.emit(d, format!("and {i} {t}, {}", l.int(7)));
        let is_small = self.text.emit(d, format!("fcmp olt {f} {a}, {}", l.float(0.015625)));
        let r = self.text.emit(d, format!("select {c} {is_small}, {i} {small}, {i} {normal}"));
        let nan = self.text.emit(d, format!("fcmp uno {f} {x}, {x}"));
        let r = self.text.emit(d, format!("select {c} {nan}, {i} {}, {i} {r}", l.int(0x7f)));
        let r = self.text.emit(d, format!("or {i} {r}, {sign}"));
        self.text.emit(d, format!("trunc {i} {r} to {}", vector("i8", n)))
    }
    /// A byte to its value.
    pub fn f8_unpack(&mut self, d: usize, x: &Name, n: usize) -> Name {
        let l = Lanes::new(n);
        let (f, i, c) = (&l.f, &l.i, &l.c);
        let u = self.text.emit(d, format!("zext {} {x} to {i}", vector("i8", n)));
        let m = self.text.emit(d, format!("and {i} {u}, {}", l.int(0x7f)));
        let b = self.text.emit(d, format!("shl {i} {m}, {}", l.int(20)));
        let b = self.text.emit(d, format!("add {i} {b}, {}", l.int(120 << 23)));
        let normal = self.text.emit(d, format!("bitcast {i} {b} to {f}"));
        let small = self.text.emit(d, format!("sitofp {i} {m} to {f}"));
        let small = self.text.emit(d, format!("fmul {f} {small}, {}", l.float(2f64.powi(-9))));
        let is_small = self.text.emit(d, format!("icmp ult {i} {m}, {}", l.int(8)));
        let r = self.text.emit(d, format!("select {c} {is_small}, {f} {small}, {f} {normal}"));
        let nan = self.text.emit(d, format!("icmp eq {i} {m}, {}", l.int(0x7f)));
        let r = self.text.emit(d, format!("select {c} {nan}, {f} {}, {f} {r}", l.float(f64::NAN)));
        let negative = self.text.emit(d, format!("icmp ugt {i} {u}, {}", l.int(0x7f)));
        let minus = self.text.emit(d, format!("fneg {f} {r}"));
        self.text.emit(d, format!("select {c} {negative}, {f} {minus}, {f} {r}"))
    }
}
