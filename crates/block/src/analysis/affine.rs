//! Affine forms of integers and pointers over block coordinates.
//!
//! Forms are over the integers: index arithmetic that reaches a pointer or a bound is assumed not to wrap (an address
//! from a wrapped index would be outside its buffer). Arithmetic on anything else is not analysed.
use crate::{Op, Value};

/// Value of the element at coordinates x: `root + Σ k·scalar + constant + Σ coeffs[a]·x[a]`; pointers count in
/// elements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Affine {
    /// The scalar pointer it starts from; `None` for integers.
    pub root: Option<Value>,
    /// Integer scalars without a form of their own, with nonzero factors, sorted by value number.
    pub scalars: Vec<(Value, i64)>,
    pub constant: i64,
    /// One per axis of the block; 0 on axes of size 1.
    pub coeffs: Vec<i64>,
}

impl Affine {
    pub fn constant(c: i64, rank: usize) -> Affine {
        Affine { constant: c, coeffs: vec![0; rank], ..Affine::default() }
    }
    /// The form of one integer scalar.
    pub fn scalar(v: Value) -> Affine {
        Affine { scalars: vec![(v, 1)], ..Affine::default() }
    }
    /// Whether all elements of the block have the same value.
    pub fn is_uniform(&self) -> bool {
        self.coeffs.iter().all(|c| *c == 0)
    }
    pub fn as_constant(&self) -> Option<i64> {
        (self.root.is_none() && self.scalars.is_empty() && self.is_uniform()).then_some(self.constant)
    }
    /// The form without its coordinates, as a scalar.
    pub fn base(&self) -> Affine {
        Affine { coeffs: vec![], ..self.clone() }
    }
    /// `self + k·other`; `None` if numbers overflow, ranks differ or both have roots. Equal roots cancel when
    /// subtracted.
    pub fn add_scaled(&self, other: &Affine, k: i64) -> Option<Affine> {
        let root = match (self.root, other.root, k) {
            (r, None, _) => r,
            (None, r, 1) => r,
            (Some(a), Some(b), -1) if a == b => None,
            _ => return None,
        };
        if self.coeffs.len() != other.coeffs.len() {
            return None;
        }
        let fma = |a: i64, b: i64| b.checked_mul(k).and_then(|b| a.checked_add(b));
        let coeffs = self.coeffs.iter().zip(&other.coeffs).map(|(a, b)| fma(*a, *b)).collect::<Option<_>>()?;
        let mut scalars = self.scalars.clone();
        for &(v, c) in &other.scalars {
            match scalars.binary_search_by_key(&v, |s| s.0) {
                Ok(i) => scalars[i].1 = fma(scalars[i].1, c)?,
                Err(i) => scalars.insert(i, (v, c.checked_mul(k)?)),
            }
        }
        scalars.retain(|s| s.1 != 0);
        Some(Affine { root, scalars, constant: fma(self.constant, other.constant)?, coeffs })
    }
    /// `k·self` for an integer form.
    pub fn scaled(&self, k: i64) -> Option<Affine> {
        match self.root {
            Some(_) => None,
            None => Affine::constant(0, self.coeffs.len()).add_scaled(self, k),
        }
    }
    pub(super) fn with_coeffs(&self, coeffs: Vec<i64>) -> Affine {
        Affine { coeffs, ..self.clone() }
    }
    /// The form of the result of an op that only moves elements (splat, broadcast, expand_dims, permute, reshape).
    pub(super) fn moved(&self, op: &Op, from: &[usize], to: &[usize]) -> Option<Affine> {
        let c = &self.coeffs;
        if c.len() != from.len() {
            return None;
        }
        Some(self.with_coeffs(match op {
            Op::Splat => vec![0; to.len()],
            Op::Broadcast | Op::ConvertLayout => c.clone(),
            Op::ExpandDims(axis) => {
                let mut c = c.clone();
                c.insert((*axis as usize).min(c.len()), 0);
                c
            }
            Op::Permute(perm) => perm.iter().map(|p| c.get(*p as usize).copied()).collect::<Option<_>>()?,
            Op::Reshape => reshaped(c, from, to)?,
            _ => return None,
        }))
    }
}

/// Coefficients after a row-major reshape. Sizes are powers of two, so each axis splits into bits with a stride each;
/// the strides of the bits that form a new axis must double from one bit to the next.
fn reshaped(coeffs: &[i64], from: &[usize], to: &[usize]) -> Option<Vec<i64>> {
    let mut bits = vec![];
    for (c, n) in coeffs.iter().zip(from).rev() {
        for b in 0..n.trailing_zeros() {
            bits.push(c.checked_mul(1 << b)?);
        }
    }
    let mut bits = bits.into_iter();
    let mut out = vec![];
    for n in to.iter().rev() {
        let axis: Vec<i64> = bits.by_ref().take(n.trailing_zeros() as usize).collect();
        if axis.windows(2).any(|w| w[0].checked_mul(2) != Some(w[1])) {
            return None;
        }
        out.push(axis.first().copied().unwrap_or(0));
    }
    out.reverse();
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reshape may split axes and join contiguous ones.
    #[test]
    fn reshapes() {
        assert_eq!(reshaped(&[32, 1], &[4, 32], &[128]), Some(vec![1]));
        assert_eq!(reshaped(&[64, 1], &[4, 32], &[128]), None);
        assert_eq!(reshaped(&[3], &[16], &[2, 8]), Some(vec![24, 3]));
    }
}
