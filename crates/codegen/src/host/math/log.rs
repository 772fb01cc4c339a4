//! Logarithms, as in FreeBSD's `e_logf.c`.
use super::F32;
use crate::host::text::Name;

pub(super) enum Base {
    E,
    Two,
    Ten,
}

impl F32<'_, '_> {
    /// x = 2^k m with sqrt(1/2) <= m < sqrt(2); gives m and k, for positive finite x.
    pub(super) fn split_exponent(&mut self, x0: &Name) -> (Name, Name) {
        // Denormals are scaled by 2^23 first.
        let (min, two23) = (self.c(f32::MIN_POSITIVE), self.c(8_388_608.0));
        let tiny = self.fcmp("olt", x0, &min);
        let up = self.mul(x0, &two23);
        let x = self.select(&tiny, &up, x0);
        let (zero, shift) = (self.c(0.0), self.c(-23.0));
        let extra = self.select(&tiny, &shift, &zero);
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
        (m, kf)
    }
    pub(super) fn log(&mut self, x0: &Name, base: Base) -> Name {
        let (m, kf) = self.split_exponent(x0);
        let zero = self.c(0.0);
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
    pub(super) fn log1p(&mut self, x: &Name) -> Name {
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
