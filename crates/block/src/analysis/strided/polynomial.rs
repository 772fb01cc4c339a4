//! Sums of products of uniform scalars, with integer factors.
use crate::Value;
use std::collections::BTreeMap;

/// Uniform scalars that are multiplied, sorted; none: 1.
pub type Monomial = Vec<Value>;

/// A sum of monomials; no factor is 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Polynomial(BTreeMap<Monomial, i64>);

/// Most scalars in a product: an index times the strides of a batch, a head and a row need fewer.
const MAX_DEGREE: usize = 4;
/// Most products in a sum.
const MAX_TERMS: usize = 16;

impl Polynomial {
    pub fn constant(n: i64) -> Polynomial {
        Polynomial((n != 0).then(|| (vec![], n)).into_iter().collect())
    }
    pub fn scalar(v: Value) -> Polynomial {
        Polynomial([(vec![v], 1)].into_iter().collect())
    }
    /// A product with its factor.
    pub fn term(mut scalars: Monomial, factor: i64) -> Polynomial {
        scalars.sort_unstable();
        Polynomial((factor != 0).then_some((scalars, factor)).into_iter().collect())
    }
    /// The products with their factors, sorted.
    pub fn terms(&self) -> impl Iterator<Item = (&Monomial, i64)> {
        self.0.iter().map(|(monomial, factor)| (monomial, *factor))
    }
    pub fn scalars(&self) -> impl Iterator<Item = Value> {
        self.0.keys().flatten().copied()
    }
    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }
    pub fn as_constant(&self) -> Option<i64> {
        match self.0.len() {
            0 => Some(0),
            1 => self.0.get(&vec![]).copied(),
            _ => None,
        }
    }
    /// The only product, with its factor.
    pub fn as_term(&self) -> Option<(&Monomial, i64)> {
        match self.0.len() {
            1 => self.terms().next(),
            _ => None,
        }
    }
    /// `self + factor * other`; `None` where numbers overflow or there are too many terms.
    pub fn add_scaled(&self, other: &Polynomial, factor: i64) -> Option<Polynomial> {
        let mut sum = self.0.clone();
        for (monomial, n) in &other.0 {
            let term = sum.entry(monomial.clone()).or_default();
            *term = term.checked_add(n.checked_mul(factor)?)?;
        }
        sum.retain(|_, n| *n != 0);
        (sum.len() <= MAX_TERMS).then_some(Polynomial(sum))
    }
    /// `None` where numbers overflow, or products have too many factors.
    pub fn times(&self, other: &Polynomial) -> Option<Polynomial> {
        let mut product = Polynomial::default();
        for (a, n) in &self.0 {
            for (b, m) in &other.0 {
                let mut monomial = [&a[..], b].concat();
                monomial.sort_unstable();
                let term = Polynomial([(monomial, n.checked_mul(*m)?)].into_iter().collect());
                product = product.add_scaled(&term, 1)?;
            }
        }
        product.0.keys().all(|m| m.len() <= MAX_DEGREE).then_some(product)
    }
    /// `None` unless every factor is divisible.
    pub fn divided(&self, by: i64) -> Option<Polynomial> {
        let divided = |(m, n): (&Monomial, &i64)| (n.checked_rem(by)? == 0).then(|| (m.clone(), n / by));
        self.0.iter().map(divided).collect::<Option<_>>().map(Polynomial)
    }
    /// Quotient and remainder by one product with its factor: the terms that it divides, and the others.
    pub fn split(&self, (monomial, factor): (&Monomial, i64)) -> (Polynomial, Polynomial) {
        let (mut quotient, mut rest) = (Polynomial::default(), Polynomial::default());
        for (m, n) in &self.0 {
            match without(m, monomial).filter(|_| n.checked_rem(factor) == Some(0)) {
                Some(left) => _ = quotient.0.insert(left, n / factor),
                None => _ = rest.0.insert(m.clone(), *n),
            }
        }
        (quotient, rest)
    }
}

/// A product without the factors of another; `None` if it lacks some.
fn without(all: &Monomial, factors: &Monomial) -> Option<Monomial> {
    let mut left = all.clone();
    for v in factors {
        left.remove(left.iter().position(|x| x == v)?);
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(n: u32) -> Polynomial {
        Polynomial::scalar(Value(n))
    }

    /// `(x + 2)(y - 3) = xy - 3x + 2y - 6`, of which `y` divides `xy + 2y`.
    #[test]
    fn products_split_into_what_a_factor_divides() {
        let [two, three] = [2, 3].map(Polynomial::constant);
        let (x, y) = (scalar(1), scalar(2));
        let product = x.add_scaled(&two, 1).unwrap().times(&y.add_scaled(&three, -1).unwrap()).unwrap();
        let (quotient, rest) = product.split((&vec![Value(2)], 1));
        assert_eq!(quotient, x.add_scaled(&two, 1).unwrap());
        assert_eq!(rest, Polynomial::constant(-6).add_scaled(&x, -3).unwrap());
        assert_eq!(product.add_scaled(&product, -1), Some(Polynomial::default()));
    }

    #[test]
    fn limits_are_none() {
        let x = scalar(1);
        let squared = x.times(&x).unwrap();
        assert!(squared.times(&squared).is_some() && squared.times(&squared).unwrap().times(&x).is_none());
        assert_eq!(Polynomial::constant(i64::MAX).add_scaled(&Polynomial::constant(1), 1), None);
        assert_eq!(x.add_scaled(&x, 2).unwrap().divided(2), None);
        assert_eq!(x.add_scaled(&x, 3).unwrap().divided(2), x.add_scaled(&x, 1));
    }
}
