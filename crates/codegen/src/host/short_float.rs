//! Conversions between floats of 8 or 16 bits and f32, in which registers hold them, by integers: for formats that the
//! processor does not convert. Numbers beyond the largest become infinity or NaN, as in PyTorch's casts.
use super::Emit;
use super::text::{Name, float, literal, vector};
use kiln_block::{Elem, Format};

/// LLVM types and literals of `n` lanes.
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

/// 1.5 times the power of two whose last place in f32 is the format's least number: adding it leaves a multiple of that
/// number in the low bits.
fn magic(format: Format) -> f64 {
    1.5 * format.least() / f64::from(f32::EPSILON)
}

/// The format of an element that is converted by integers, where the processor does not do it.
pub(super) fn by_integers(elem: Elem) -> Option<Format> {
    elem.f8().or((elem == Elem::F16).then_some(Format::F16))
}

/// The LLVM type of `n` elements in memory.
fn stored(format: Format, n: usize) -> String {
    vector(if format.bits() == 8 { "i8" } else { "i16" }, n)
}

impl Emit<'_> {
    /// Rounds an f32 to the nearest value of the format, ties to even.
    pub fn short_round(&mut self, d: usize, format: Format, x: &Name, n: usize) -> Name {
        let l = Lanes::new(n);
        let (f, i, c) = (&l.f, &l.i, &l.c);
        let dropped = 23 - format.fraction;
        let a = self.intrinsic(d, "fabs", "float", n, &[x]);
        // Normal numbers: the lower bits of the fraction are rounded off.
        let u = self.text.emit(d, format!("bitcast {f} {a} to {i}"));
        let s = self.text.emit(d, format!("lshr {i} {u}, {}", l.int(dropped.into())));
        let odd = self.text.emit(d, format!("and {i} {s}, {}", l.int(1)));
        let r = self.text.emit(d, format!("add {i} {u}, {}", l.int((1 << (dropped - 1)) - 1)));
        let r = self.text.emit(d, format!("add {i} {r}, {odd}"));
        let r = self.text.emit(d, format!("and {i} {r}, {}", l.int(-1 << dropped)));
        let normal = self.text.emit(d, format!("bitcast {i} {r} to {f}"));
        // Subnormal numbers: a multiple of the least number.
        let magic = l.float(magic(format));
        let t = self.text.emit(d, format!("fadd {f} {a}, {magic}"));
        let small = self.text.emit(d, format!("fsub {f} {t}, {magic}"));
        let is_small = self.text.emit(d, format!("fcmp olt {f} {a}, {}", l.float(format.least_normal())));
        let r = self.text.emit(d, format!("select {c} {is_small}, {f} {small}, {f} {normal}"));
        // Anything larger rounds to more than the largest number.
        let fits = self.text.emit(d, format!("fcmp ole {f} {a}, {}", l.float(format.last().into())));
        // NaN plus infinity stays NaN.
        let beyond = match format.infinities {
            true => self.text.emit(d, format!("fadd {f} {a}, {}", l.float(f64::INFINITY))),
            false => l.float(f64::NAN),
        };
        let r = self.text.emit(d, format!("select {c} {fits}, {f} {r}, {f} {beyond}"));
        self.intrinsic(d, "copysign", "float", n, &[&r, x])
    }
    /// Encodes a rounded value in the format's bits.
    pub fn short_pack(&mut self, d: usize, format: Format, x: &Name, n: usize) -> Name {
        let l = Lanes::new(n);
        let (f, i, c) = (&l.f, &l.i, &l.c);
        let u = self.text.emit(d, format!("bitcast {f} {x} to {i}"));
        let bits = format.bits();
        let sign = self.text.emit(d, format!("lshr {i} {u}, {}", l.int((32 - bits).into())));
        let sign = self.text.emit(d, format!("and {i} {sign}, {}", l.int(1 << (bits - 1))));
        let m = self.text.emit(d, format!("and {i} {u}, {}", l.int(0x7fff_ffff)));
        let m = self.text.emit(d, format!("lshr {i} {m}, {}", l.int((23 - format.fraction).into())));
        let below = format.bias_below_f32() << format.fraction;
        let normal = self.text.emit(d, format!("sub {i} {m}, {}", l.int(below.into())));
        // Adding this leaves the multiple of the least number in the low bits.
        let a = self.intrinsic(d, "fabs", "float", n, &[x]);
        let t = self.text.emit(d, format!("fadd {f} {a}, {}", l.float(magic(format))));
        let t = self.text.emit(d, format!("bitcast {f} {t} to {i}"));
        let small = self.text.emit(d, format!("and {i} {t}, {}", l.int((1 << format.fraction) - 1)));
        let is_small = self.text.emit(d, format!("fcmp olt {f} {a}, {}", l.float(format.least_normal())));
        let mut r = self.text.emit(d, format!("select {c} {is_small}, {i} {small}, {i} {normal}"));
        if let Some(infinity) = format.infinity() {
            let finite = self.text.emit(d, format!("fcmp ole {f} {a}, {}", l.float(format.largest())));
            r = self.text.emit(d, format!("select {c} {finite}, {i} {r}, {i} {}", l.int(infinity.into())));
        }
        let nan = self.text.emit(d, format!("fcmp uno {f} {x}, {x}"));
        let r = self.text.emit(d, format!("select {c} {nan}, {i} {}, {i} {r}", l.int(format.nan().into())));
        let r = self.text.emit(d, format!("or {i} {r}, {sign}"));
        self.text.emit(d, format!("trunc {i} {r} to {}", stored(format, n)))
    }
    /// Decodes the format's bits.
    pub fn short_unpack(&mut self, d: usize, format: Format, x: &Name, n: usize) -> Name {
        let l = Lanes::new(n);
        let (f, i, c) = (&l.f, &l.i, &l.c);
        let u = self.text.emit(d, format!("zext {} {x} to {i}", stored(format, n)));
        let magnitude = (1 << (format.bits() - 1)) - 1;
        let m = self.text.emit(d, format!("and {i} {u}, {}", l.int(magnitude)));
        let b = self.text.emit(d, format!("shl {i} {m}, {}", l.int((23 - format.fraction).into())));
        let b = self.text.emit(d, format!("add {i} {b}, {}", l.int((format.bias_below_f32() << 23).into())));
        let normal = self.text.emit(d, format!("bitcast {i} {b} to {f}"));
        let small = self.text.emit(d, format!("sitofp {i} {m} to {f}"));
        let small = self.text.emit(d, format!("fmul {f} {small}, {}", l.float(format.least())));
        let is_small = self.text.emit(d, format!("icmp ult {i} {m}, {}", l.int(1 << format.fraction)));
        let mut r = self.text.emit(d, format!("select {c} {is_small}, {f} {small}, {f} {normal}"));
        if let Some(infinity) = format.infinity() {
            let finite = self.text.emit(d, format!("icmp ult {i} {m}, {}", l.int(infinity.into())));
            r = self.text.emit(d, format!("select {c} {finite}, {f} {r}, {f} {}", l.float(f64::INFINITY)));
        }
        // Without infinities one bit pattern is NaN, otherwise all patterns above infinity's are.
        let (is, bits) = format.infinity().map_or(("eq", format.nan()), |infinity| ("ugt", infinity));
        let nan = self.text.emit(d, format!("icmp {is} {i} {m}, {}", l.int(bits.into())));
        let r = self.text.emit(d, format!("select {c} {nan}, {f} {}, {f} {r}", l.float(f64::NAN)));
        let negative = self.text.emit(d, format!("icmp ugt {i} {u}, {}", l.int(magnitude)));
        let minus = self.text.emit(d, format!("fneg {f} {r}"));
        self.text.emit(d, format!("select {c} {negative}, {f} {minus}, {f} {r}"))
    }
}
