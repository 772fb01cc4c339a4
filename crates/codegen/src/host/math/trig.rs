//! Trigonometric functions and their inverses. Polynomials are minimax; the error of each is given where it is used.
//!
//! Up to [`FAR`] an angle is reduced to |r| <= pi/4 by three parts of pi/2 (Cody and Waite); with FMAs the first step
//! is exact. Beyond, the whole vector goes through the library.
use super::F32;
use crate::host::text::{Name, vector};
use std::f32::consts::{FRAC_2_PI, FRAC_PI_2, PI};

const FAR: f32 = 131_072.0;
/// pi/2 as a sum of three f32.
const PARTS: [f32; 3] = [FRAC_PI_2, -4.371_138_8e-8, -1.715_124_5e-15];

impl F32<'_, '_> {
    /// r and, in its low bits, q of x = q pi/2 + r.
    fn reduce(&mut self, x: &Name) -> (Name, Name) {
        let (q, quadrant) = self.nearest(x, FRAC_2_PI);
        let [a, b, c] = PARTS.map(|p| self.c(-p));
        let r = self.fma(&q, &a, x);
        let r = self.fma(&q, &b, &r);
        (self.fma(&q, &c, &r), quadrant)
    }
    /// As `reduce`, with what the rounding of r lost (found as by Knuth's two-sum) between the two.
    fn reduce_exactly(&mut self, x: &Name) -> (Name, Name, Name) {
        let (q, quadrant) = self.nearest(x, FRAC_2_PI);
        let [a, b, c] = PARTS.map(|p| self.c(-p));
        let first = self.fma(&q, &a, x);
        let w = self.mul(&q, &b);
        let minus = self.neg(&w);
        let w_lost = self.fma(&q, &b, &minus);
        let r = self.add(&first, &w);
        let taken = self.sub(&r, &first);
        let left = self.sub(&r, &taken);
        let (of_first, of_w) = (self.sub(&first, &left), self.sub(&w, &taken));
        let lost = self.add(&of_first, &of_w);
        let lost = self.add(&lost, &w_lost);
        (r, self.fma(&q, &c, &lost), quadrant)
    }
    fn is_far(&mut self, x: &Name) -> Name {
        let (a, limit) = (self.abs(x), self.c(FAR));
        self.fcmp("ogt", &a, &limit)
    }
    /// Whether q is odd.
    fn odd(&mut self, q: &Name) -> Name {
        let (one, zero, it) = (self.i(1), self.i(0), self.it());
        let low = self.iop("and", q, &one);
        self.e.text.emit(self.d, format!("icmp ne {it} {low}, {zero}"))
    }
    /// The sine of x + `quarters` pi/2: a sine (4.1e-9) or a cosine (1.2e-10) of r.
    fn sine(&mut self, x: &Name, quarters: i32) -> Name {
        let (r, quadrant) = self.reduce(x);
        let s = self.mul(&r, &r);
        let p = self.horner(&s, &[-1.951_788_14e-4, 8.332_187_31e-3, -1.666_665_52e-1]);
        let ps = self.mul(&p, &s);
        let sin = self.fma(&ps, &r, &r);
        let cos = self.horner(&s, &[2.443_232_37e-5, -1.388_730_95e-3, 4.166_664_56e-2, -0.5, 1.0]);
        let (turn, two, top) = (self.i(quarters), self.i(30), self.i(i32::MIN));
        let n = self.iop("add", &quadrant, &turn);
        let odd = self.odd(&n);
        let y = self.select(&odd, &cos, &sin);
        let sign = self.iop("shl", &n, &two);
        let sign = self.iop("and", &sign, &top);
        let bits = self.bits(&y);
        let bits = self.iop("xor", &bits, &sign);
        self.of_bits(&bits)
    }
    pub(super) fn sin(&mut self, x: &Name) -> Name {
        let y = self.sine(x, 0);
        let y = self.keep_zero(x, &y);
        let far = self.is_far(x);
        self.unless(&far, y, "sinf", &[x])
    }
    pub(super) fn cos(&mut self, x: &Name) -> Name {
        let y = self.sine(x, 1);
        let far = self.is_far(x);
        self.unless(&far, y, "cosf", &[x])
    }
    /// tan r = r + r^3 P(r^2) (1.3e-9), its negated inverse in odd quadrants.
    pub(super) fn tan(&mut self, x: &Name) -> Name {
        let (r, lost, quadrant) = self.reduce_exactly(x);
        let s = self.mul(&r, &r);
        let p = self.horner(
            &s,
            &[
                4.383_586_35e-3,
                7.768_748_76e-5,
                1.084_222_83e-2,
                2.128_120_14e-2,
                5.405_969_92e-2,
                1.333_267_09e-1,
                3.333_334_92e-1,
            ],
        );
        let ps = self.mul(&p, &s);
        // d tan / dr is about 1 + r^2.
        let lost = self.fma(&lost, &s, &lost);
        let tail = self.fma(&ps, &r, &lost);
        let tan = self.add(&r, &tail);
        let minus = self.c(-1.0);
        let inverse = self.op("fdiv", &minus, &tan);
        let odd = self.odd(&quadrant);
        let y = self.select(&odd, &inverse, &tan);
        let y = self.keep_zero(x, &y);
        let far = self.is_far(x);
        self.unless(&far, y, "tanf", &[x])
    }
    /// `y`, but `x` where that is zero.
    fn keep_zero(&mut self, x: &Name, y: &Name) -> Name {
        let zero = self.c(0.0);
        let is_zero = self.fcmp("oeq", x, &zero);
        self.select(&is_zero, x, y)
    }

    /// asin t = t + e, e = t^3 P(t^2) (4.9e-9), for |x| <= 1/2 of t = |x|, else of t = sqrt((1 - |x|) / 2), where
    /// asin |x| = pi/2 - 2 asin t and acos |x| = 2 asin t. Gives |x| > 1/2, t, e.
    fn arc(&mut self, x: &Name) -> (Name, Name, Name) {
        let a = self.abs(x);
        let (half, minus) = (self.c(0.5), self.c(-0.5));
        let large = self.fcmp("ogt", &a, &half);
        let square = self.mul(&a, &a);
        let rest = self.fma(&a, &minus, &half);
        let z = self.select(&large, &rest, &square);
        let root = self.e.intrinsic(self.d, "sqrt", "float", self.n, &[&z]);
        let t = self.select(&large, &root, &a);
        let p = self.horner(&z, &[4.215_830_56e-2, 2.418_477_83e-2, 4.546_914_99e-2, 7.495_309_41e-2, 1.666_675_21e-1]);
        let tz = self.mul(&t, &z);
        let e = self.mul(&tz, &p);
        (large, t, e)
    }
    pub(super) fn asin(&mut self, x: &Name) -> Name {
        let (large, t, e) = self.arc(x);
        let small = self.add(&t, &e);
        let (minus2, right, low) = (self.c(-2.0), self.c(FRAC_PI_2), self.c(PARTS[1]));
        // pi/2 - 2t, with what its rounding lost.
        let hi = self.fma(&t, &minus2, &right);
        let lost = self.sub(&right, &hi);
        let lost = self.fma(&t, &minus2, &lost);
        let lost = self.add(&lost, &low);
        let tail = self.fma(&e, &minus2, &lost);
        let y = self.add(&hi, &tail);
        let y = self.select(&large, &y, &small);
        self.copysign(&y, x)
    }
    pub(super) fn acos(&mut self, x: &Name) -> Name {
        let (large, t, e) = self.arc(x);
        let (zero, right, straight) = (self.c(0.0), self.c(FRAC_PI_2), self.c(PI));
        let (two, one) = (self.c(2.0), self.c(1.0));
        let negative = self.fcmp("olt", x, &zero);
        // base + factor (t + e)
        let base = self.select(&negative, &straight, &zero);
        let base = self.select(&large, &base, &right);
        let factor = self.select(&large, &two, &one);
        let minus = self.neg(&factor);
        let up = self.e.text.emit(self.d, format!("xor {0} {large}, {negative}", vector("i1", self.n)));
        let factor = self.select(&up, &factor, &minus);
        let y = self.fma(&factor, &t, &base);
        self.fma(&factor, &e, &y)
    }
    /// atan t for 0 <= t <= 1 (2.6e-9).
    fn atan_core(&mut self, t: &Name) -> Name {
        let s = self.mul(t, t);
        let p = self.horner(
            &s,
            &[
                -1.787_547_6e-3,
                1.088_736_11e-2,
                -3.112_700_21e-2,
                5.790_654_57e-2,
                -8.400_475_23e-2,
                1.095_117_48e-1,
                -1.426_405_16e-1,
                1.999_853_1e-1,
                -3.333_329_86e-1,
            ],
        );
        let ps = self.mul(&p, &s);
        self.fma(&ps, t, t)
    }
    /// Above 1 by way of the atan of 1/|x|.
    pub(super) fn atan(&mut self, x: &Name) -> Name {
        let (a, one, right) = (self.abs(x), self.c(1.0), self.c(FRAC_PI_2));
        let large = self.fcmp("ogt", &a, &one);
        let inverse = self.op("fdiv", &one, &a);
        let t = self.select(&large, &inverse, &a);
        let r = self.atan_core(&t);
        let other = self.sub(&right, &r);
        let y = self.select(&large, &other, &r);
        self.copysign(&y, x)
    }
    /// From the atan of the smaller of |x|, |y| over the larger, by octant.
    pub(super) fn atan2(&mut self, y: &Name, x: &Name) -> Name {
        let (a, b) = (self.abs(x), self.abs(y));
        let steep = self.fcmp("ogt", &b, &a);
        let (num, den) = (self.select(&steep, &a, &b), self.select(&steep, &b, &a));
        let q = self.op("fdiv", &num, &den);
        // Two zeros or two infinities have no quotient.
        let (zero, one) = (self.c(0.0), self.c(1.0));
        let (same, none) = (self.fcmp("oeq", &num, &den), self.fcmp("oeq", &den, &zero));
        let diagonal = self.select(&none, &zero, &one);
        let t = self.select(&same, &diagonal, &q);
        let r = self.atan_core(&t);
        let (right, straight) = (self.c(FRAC_PI_2), self.c(PI));
        let other = self.sub(&right, &r);
        let r = self.select(&steep, &other, &r);
        let other = self.sub(&straight, &r);
        let left = self.is_signed(x);
        let r = self.select(&left, &other, &r);
        self.copysign(&r, y)
    }
    /// The sign bit, also a zero's.
    pub(super) fn is_signed(&mut self, x: &Name) -> Name {
        let (bits, zero, it) = (self.bits(x), self.i(0), self.it());
        self.e.text.emit(self.d, format!("icmp slt {it} {bits}, {zero}"))
    }
}
