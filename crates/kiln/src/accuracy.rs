//! Differences between results and a reference: absolute, relative, and in the 2-norm.
use kiln_graph::Tensor;
use serde::Serialize;

/// Largest absolute and relative difference, and the relative one in the 2-norm. NaN agrees with NaN only, an infinity
/// with itself.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Difference {
    /// Largest absolute difference of an element.
    pub max_abs: f64,
    /// Largest relative difference, over elements above a thousandth of the largest.
    pub max_rel: f64,
    /// ‖a − b‖₂ / ‖b‖₂.
    pub norm_rel: f64,
}

impl Difference {
    /// The larger of each of the figures.
    pub fn join(self, o: Difference) -> Difference {
        Difference {
            max_abs: worse(self.max_abs, o.max_abs),
            max_rel: worse(self.max_rel, o.max_rel),
            norm_rel: worse(self.norm_rel, o.norm_rel),
        }
    }
}

/// The larger; NaN is the largest.
fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// Difference of `a` from the reference `b`; infinite if their shapes differ.
pub fn difference(a: &Tensor, b: &Tensor) -> Difference {
    let infinite = Difference { max_abs: f64::INFINITY, max_rel: f64::INFINITY, norm_rel: f64::INFINITY };
    if a.ty.shape != b.ty.shape {
        return infinite;
    }
    let n = a.ty.count();
    let scale = (0..n).map(|i| b.get_f64(i).abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
    let (mut d, mut over, mut under) = (Difference::default(), 0.0, 0.0);
    for i in 0..n {
        let (x, y) = (a.get_f64(i), b.get_f64(i));
        if x == y || (x.is_nan() && y.is_nan()) {
            under += if y.is_finite() { y * y } else { 0.0 };
            continue;
        }
        if !x.is_finite() || !y.is_finite() {
            return infinite;
        }
        let e = (x - y).abs();
        d.max_abs = d.max_abs.max(e);
        if y.abs() > 1e-3 * scale {
            d.max_rel = d.max_rel.max(e / y.abs());
        }
        over += e * e;
        under += y * y;
    }
    d.norm_rel = if over == 0.0 { 0.0 } else { (over / under).sqrt() };
    d
}

/// Largest difference over several outputs; infinite if there is another number of them.
pub fn differences(a: &[Tensor], b: &[Tensor]) -> Difference {
    let start = if a.len() == b.len() {
        Difference::default()
    } else {
        Difference { max_abs: f64::INFINITY, max_rel: f64::INFINITY, norm_rel: f64::INFINITY }
    };
    a.iter().zip(b).fold(start, |d, (a, b)| d.join(difference(a, b)))
}
