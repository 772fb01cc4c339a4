//! Exponentials and what is computed from them: tanh, sinh, cosh, erf.
//!
//! exp and exp2 by Cody-Waite reduction to |r| <= ln2/2 and a minimax polynomial of degree 6; expm1 by the same
//! reduction and the polynomial of Cephes' `expf`; erf by N. Juffa's two-range polynomials; tanh from expm1(-2|x|);
//! sinh from expm1(|x|), below 1 by a polynomial; cosh from exp(|x|).
use super::F32;
use crate::host::text::Name;

/// p * 2^k, k as float and as i32.
struct Power {
    p: Name,
    kf: Name,
    k: Name,
}

impl F32<'_, '_> {
    /// The integer nearest to x times `factor`, as float and as i32, without a conversion (|x * factor| < 2^22).
    pub(super) fn nearest(&mut self, x: &Name, factor: f32) -> (Name, Name) {
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
    /// p * 2^k, k as float and as i32. By one instruction, or by two factors, so that the whole range of results is
    /// reached with one rounding.
    pub(super) fn scale(&mut self, p: &Name, kf: &Name, k: &Name) -> Name {
        if self.scales() {
            return self.scale_where(p, kf, "-1");
        }
        let one = self.i(1);
        let k1 = self.iop("ashr", k, &one);
        let k2 = self.iop("sub", k, &k1);
        let (s1, s2) = (self.pow2(&k1), self.pow2(&k2));
        let r = self.mul(p, &s1);
        self.mul(&r, &s2)
    }
    /// Whether the processor multiplies these lanes by powers of two in one instruction.
    fn scales(&self) -> bool {
        self.n == 16 && self.e.machine.lanes == 16
    }
    /// p * 2^k in the lanes of a mask of 16 bits, else 0. Only where [`Self::scales`].
    fn scale_where(&mut self, p: &Name, k: &Name, mask: &str) -> Name {
        let t = self.t();
        let args = [(&*t, &**p), (&*t, &**k), (&*t, "zeroinitializer"), ("i16", mask), ("i32", "4")];
        self.e.text.call(self.d, &t, "llvm.x86.avx512.mask.scalef.ps.512", &args)
    }
    /// `power` of x, but 0 below `least`. There is no arithmetic on results that small: numbers below the normal range
    /// take some processors a hundred times as long, and rows are padded with minus infinity.
    fn power_from(&mut self, x: &Name, least: f32, power: impl FnOnce(&mut Self, &Name) -> Power) -> Name {
        let least = self.c(least);
        let counts = self.fcmp("uge", x, &least);
        if self.scales() {
            let Power { p, kf, .. } = power(self, x);
            let mask = self.e.text.emit(self.d, format!("bitcast <16 x i1> {counts} to i16"));
            return self.scale_where(&p, &kf, &mask);
        }
        let zero = self.c(0.0);
        let x = self.select(&counts, x, &zero);
        let Power { p, kf, k } = power(self, &x);
        let y = self.scale(&p, &kf, &k);
        self.select(&counts, &y, &zero)
    }
    /// x limited to at most `most`; NaN stays.
    fn at_most(&mut self, x: &Name, most: f32) -> Name {
        let most = self.c(most);
        let above = self.fcmp("ogt", x, &most);
        self.select(&above, &most, x)
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
    pub(super) fn exp(&mut self, x: &Name) -> Name {
        self.power_from(x, -104.0, |f, x| {
            let x = f.at_most(x, 89.0);
            let (r, kf, k) = f.reduce_ln2_both(&x);
            Power { p: f.exp_core(&r), kf, k }
        })
    }
    pub(super) fn exp2(&mut self, x: &Name) -> Name {
        self.power_from(x, -151.0, |f, x| {
            let x = f.at_most(x, 129.0);
            let (kf, k) = f.nearest(&x, 1.0);
            let fraction = f.sub(&x, &kf);
            let ln2 = f.c(std::f32::consts::LN_2);
            let r = f.mul(&fraction, &ln2);
            Power { p: f.exp_core(&r), kf, k }
        })
    }
    /// e^x - 1 = 2 (2^(k-1) m + 2^(k-1) - 1/2), m = e^r - 1.
    pub(super) fn expm1(&mut self, x0: &Name) -> Name {
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
    pub(super) fn tanh(&mut self, x0: &Name) -> Name {
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
    pub(super) fn erf(&mut self, a: &Name) -> Name {
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
    /// x/2 (1 + erf(x / sqrt 2)).
    pub(super) fn gelu(&mut self, x: &Name) -> Name {
        let (scale, half) = (self.c(std::f32::consts::FRAC_1_SQRT_2), self.c(0.5));
        let scaled = self.mul(x, &scale);
        let erf = self.erf(&scaled);
        let half = self.mul(x, &half);
        self.fma(&half, &erf, &half)
    }
    /// h + h / (2h + 1) with h = expm1(|x|) / 2, in halves so that the last doubling alone overflows; below 1 x + x^3
    /// P(x^2) with P minimax (2.4e-8).
    pub(super) fn sinh(&mut self, x: &Name) -> Name {
        let a = self.abs(x);
        let c = self.clamp(&a, 0.0, 89.5);
        let (r, k) = self.reduce_ln2(&c);
        let m = self.expm1_core(&r);
        let (two, quarter, four, one) = (self.i(2), self.c(0.25), self.c(4.0), self.c(1.0));
        let k = self.iop("sub", &k, &two);
        let s = self.pow2(&k);
        let t = self.sub(&s, &quarter);
        let h = self.fma(&s, &m, &t);
        let den = self.fma(&h, &four, &one);
        let q = self.op("fdiv", &h, &den);
        let y = self.add(&h, &q);
        let far = self.add(&y, &y);
        let z = self.mul(&a, &a);
        let p = self.horner(&z, &[2.037_283_27e-4, 8.330_274_37e-3, 1.666_671_63e-1]);
        let pz = self.mul(&p, &z);
        let near = self.fma(&pz, &a, &a);
        let is_near = self.fcmp("olt", &a, &one);
        let r = self.select(&is_near, &near, &far);
        self.copysign(&r, x)
    }
    /// 2 (h + 1 / (16 h)) with h = e^|x| / 4.
    pub(super) fn cosh(&mut self, x: &Name) -> Name {
        let a = self.abs(x);
        let c = self.clamp(&a, 0.0, 89.5);
        let (r, k) = self.reduce_ln2(&c);
        let p = self.exp_core(&r);
        let (two, sixteenth) = (self.i(2), self.c(0.0625));
        let k = self.iop("sub", &k, &two);
        let s = self.pow2(&k);
        let h = self.mul(&p, &s);
        let q = self.op("fdiv", &sixteenth, &h);
        let y = self.add(&h, &q);
        self.add(&y, &y)
    }
}
