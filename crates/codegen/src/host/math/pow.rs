//! Powers and remainders.
//!
//! |x|^y = 2^(y log2 |x|): the exponent is held in f64, so that the result is right to about one rounding, and split
//! into its nearest integer and a remainder in f32. log2 by s = (m - 1) / (m + 1) with m in sqrt(1/2)..sqrt(2), the
//! quotient by one Newton step from f32; its polynomial (4.2e-12) and that of 2^f (3.0e-9) are minimax.
use super::F32;
use crate::host::text::{Name, float, literal, vector};

impl F32<'_, '_> {
    pub(super) fn pow(&mut self, x: &Name, y: &Name) -> Name {
        let a = self.abs(x);
        let (zero, inf) = (self.c(0.0), self.c(f32::INFINITY));
        let above = self.fcmp("ogt", &a, &zero);
        let below = self.fcmp("olt", &a, &inf);
        let c = vector("i1", self.n);
        let regular = self.e.text.emit(self.d, format!("and {c} {above}, {below}"));
        let exponent = self.exponent(&a, &regular, y);
        let r = self.exp2_wide(&exponent);
        self.power_cases(x, y, &a, &regular, r)
    }
    /// y log2 a in f64, clamped to -200..200; log2 is that of f32's C function for 0, infinity and NaN.
    fn exponent(&mut self, a: &Name, regular: &Name, y: &Name) -> Name {
        let (m, k) = self.split_exponent(a);
        let (one, minus) = (self.c(1.0), self.w(-1.0));
        let m1 = self.add(&m, &one);
        let inverse = self.op("fdiv", &one, &m1);
        let (m, inverse, k) = (self.widen(&m), self.widen(&inverse), self.widen(&k));
        let (one, two) = (self.w(1.0), self.w(2.0));
        let (num, den) = (self.wop("fadd", &m, &minus), self.wop("fadd", &m, &one));
        let wrong = self.wop("fmul", &den, &inverse);
        let wrong = self.wop("fsub", &two, &wrong);
        let inverse = self.wop("fmul", &inverse, &wrong);
        let s = self.wop("fmul", &num, &inverse);
        let z = self.wop("fmul", &s, &s);
        let mut p = self.w(0.340_730_073_300_158_42);
        for c in [0.411_672_720_665_677_89, 0.577_083_584_941_068_71, 0.961_796_673_341_905_77, 2.885_390_081_790_085_5]
        {
            let c = self.w(c);
            p = self.wfma(&p, &z, &c);
        }
        let log = self.wfma(&s, &p, &k);
        let (zero, none) = (self.c(0.0), self.c(f32::NEG_INFINITY));
        let is_zero = self.fcmp("oeq", a, &zero);
        let special = self.select(&is_zero, &none, a);
        let (special, y) = (self.widen(&special), self.widen(y));
        let log = self.wselect(regular, &log, &special);
        let e = self.wop("fmul", &y, &log);
        let (lo, hi) = (self.w(-200.0), self.w(200.0));
        let under = self.wcmp("olt", &e, &lo);
        let e = self.wselect(&under, &lo, &e);
        let over = self.wcmp("ogt", &e, &hi);
        self.wselect(&over, &hi, &e)
    }
    /// 2^e for e in f64, -200..200 or NaN.
    fn exp2_wide(&mut self, e: &Name) -> Name {
        let magic = self.w(6_755_399_441_055_744.0);
        let n = self.wop("fadd", e, &magic);
        let n = self.wop("fsub", &n, &magic);
        let f = self.wop("fsub", e, &n);
        let (n, f) = (self.narrow(&n), self.narrow(&f));
        let (_, k) = self.nearest(&n, 1.0);
        let p = self.horner(
            &f,
            &[1.532_926_4e-4, 1.339_096_93e-3, 9.618_499_32e-3, 5.550_359_56e-2, 2.402_264_77e-1, 6.931_471_82e-1, 1.0],
        );
        self.scale(&p, &n, &k)
    }
    /// Signs, and C's cases that the formula does not give: powers of negative numbers, 1^y, x^0, (-1)^inf.
    fn power_cases(&mut self, x: &Name, y: &Name, a: &Name, regular: &Name, r: Name) -> Name {
        let (c, d) = (vector("i1", self.n), self.d);
        let and = |s: &mut Self, p: &Name, q: &Name| s.e.text.emit(d, format!("and {c} {p}, {q}"));
        let or = |s: &mut Self, p: &Name, q: &Name| s.e.text.emit(d, format!("or {c} {p}, {q}"));
        let (zero, one, half) = (self.c(0.0), self.c(1.0), self.c(0.5));
        let (inf, nan) = (self.c(f32::INFINITY), self.c(f32::NAN));
        let negative = self.is_signed(x);
        let whole = self.e.intrinsic(d, "trunc", "float", self.n, &[y]);
        let fraction = self.fcmp("une", &whole, y);
        let halved = self.mul(&whole, &half);
        let even = self.e.intrinsic(d, "trunc", "float", self.n, &[&halved]);
        let odd = self.fcmp("one", &halved, &even);
        let minus = self.neg(&r);
        let integer = self.fcmp("oeq", &whole, y);
        let odd = and(self, &odd, &integer);
        let flip = and(self, &negative, &odd);
        let r = self.select(&flip, &minus, &r);
        let bad = and(self, &negative, &fraction);
        let bad = and(self, &bad, regular);
        let r = self.select(&bad, &nan, &r);
        let (ya, unit) = (self.abs(y), self.fcmp("oeq", a, &one));
        let endless = self.fcmp("oeq", &ya, &inf);
        let unit = and(self, &unit, &endless);
        let (y0, x1) = (self.fcmp("oeq", y, &zero), self.fcmp("oeq", x, &one));
        let is_one = or(self, &y0, &x1);
        let is_one = or(self, &is_one, &unit);
        self.select(&is_one, &one, &r)
    }

    /// |x| - trunc(|x / y|) |y|, which an FMA gives exactly while the quotient is below 2^23; rounded up to an integer,
    /// the quotient is one too large and the result negative, and |y| makes up for it exactly.
    pub(super) fn fmod(&mut self, x: &Name, y: &Name) -> Name {
        let (a, b) = (self.abs(x), self.abs(y));
        let q = self.op("fdiv", &a, &b);
        let q = self.e.intrinsic(self.d, "trunc", "float", self.n, &[&q]);
        let minus = self.neg(&q);
        let r = self.fma(&minus, &b, &a);
        let zero = self.c(0.0);
        let below = self.fcmp("olt", &r, &zero);
        let up = self.add(&r, &b);
        let r = self.select(&below, &up, &r);
        // This holds for an infinite y, too.
        let small = self.fcmp("olt", &a, &b);
        let r = self.select(&small, &a, &r);
        let r = self.copysign(&r, x);
        let limit = self.c(8_388_608.0);
        let far = self.fcmp("oge", &q, &limit);
        self.unless(&far, r, "fmodf", &[x, y])
    }

    // Lanes of f64.
    fn w(&self, v: f64) -> Name {
        literal("double", self.n, &float("double", v))
    }
    fn wt(&self) -> String {
        vector("double", self.n)
    }
    fn wop(&mut self, name: &str, a: &Name, b: &Name) -> Name {
        let t = self.wt();
        self.e.text.emit(self.d, format!("{name} {t} {a}, {b}"))
    }
    fn wfma(&mut self, a: &Name, b: &Name, c: &Name) -> Name {
        self.e.intrinsic(self.d, "fma", "double", self.n, &[a, b, c])
    }
    fn wcmp(&mut self, p: &str, a: &Name, b: &Name) -> Name {
        let t = self.wt();
        self.e.text.emit(self.d, format!("fcmp {p} {t} {a}, {b}"))
    }
    fn wselect(&mut self, c: &Name, a: &Name, b: &Name) -> Name {
        let (t, ct) = (self.wt(), vector("i1", self.n));
        self.e.text.emit(self.d, format!("select {ct} {c}, {t} {a}, {t} {b}"))
    }
    fn widen(&mut self, a: &Name) -> Name {
        let (t, w) = (self.t(), self.wt());
        self.e.text.emit(self.d, format!("fpext {t} {a} to {w}"))
    }
    fn narrow(&mut self, a: &Name) -> Name {
        let (t, w) = (self.t(), self.wt());
        self.e.text.emit(self.d, format!("fptrunc {w} {a} to {t}"))
    }
}
