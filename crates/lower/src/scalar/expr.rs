//! Index expressions: integer affine sums of coordinates, quotients and remainders by constants, and indices read from
//! memory.
//!
//! Views rewrite these and nothing else, so a chain of views costs nothing where quotients and remainders cancel.
//! Expressions are in a canonical form: equal ones compare equal in the common cases, so they serve as keys.
//! Quotients round toward minus infinity. Where a value may be negative, a guard masks the access that uses it.

/// A coordinate of an iteration space.
pub type CoordId = u32;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Atom {
    /// Runs over `0..extent`.
    Coord {
        id: CoordId,
        extent: usize,
    },
    Div(Box<Expr>, i64),
    Mod(Box<Expr>, i64),
    /// An index computed by a node of the scalar program, in `0..extent`.
    Value {
        node: u32,
        extent: usize,
    },
}

/// `constant + Σ coefficient · atom`; atoms ascending, each once, coefficients not 0.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Expr {
    pub terms: Vec<(Atom, i64)>,
    pub constant: i64,
}

impl Expr {
    pub fn constant(v: i64) -> Expr {
        Expr { terms: vec![], constant: v }
    }
    /// A coordinate; of extent 1 it is the constant 0.
    pub fn coord(id: CoordId, extent: usize) -> Expr {
        if extent <= 1 { Expr::default() } else { Expr::atom(Atom::Coord { id, extent }) }
    }
    pub fn value(node: u32, extent: usize) -> Expr {
        Expr::atom(Atom::Value { node, extent })
    }
    fn atom(a: Atom) -> Expr {
        Expr { terms: vec![(a, 1)], constant: 0 }
    }
    /// The coordinate, if the expression is one and nothing else.
    pub fn as_coord(&self) -> Option<CoordId> {
        match &self.terms[..] {
            [(Atom::Coord { id, .. }, 1)] if self.constant == 0 => Some(*id),
            _ => None,
        }
    }
    /// Least and greatest value, as far as known.
    pub fn range(&self) -> (i64, i64) {
        let mut r = (self.constant, self.constant);
        for (a, c) in &self.terms {
            let (lo, hi) = a.range();
            let (x, y) = (lo.saturating_mul(*c), hi.saturating_mul(*c));
            r = (r.0.saturating_add(x.min(y)), r.1.saturating_add(x.max(y)));
        }
        r
    }
    pub fn scale(mut self, k: i64) -> Expr {
        if k == 0 {
            return Expr::default();
        }
        self.constant *= k;
        self.terms.iter_mut().for_each(|t| t.1 *= k);
        self
    }
    pub fn shift(mut self, k: i64) -> Expr {
        self.constant += k;
        self
    }
    pub fn plus(&self, o: &Expr) -> Expr {
        let mut sum = self.clone();
        sum.constant += o.constant;
        o.terms.iter().for_each(|(a, c)| sum.add_term(a.clone(), *c));
        sum.recombine();
        sum
    }
    fn add_term(&mut self, a: Atom, c: i64) {
        match self.terms.binary_search_by(|t| t.0.cmp(&a)) {
            Ok(i) => {
                self.terms[i].1 += c;
                if self.terms[i].1 == 0 {
                    self.terms.remove(i);
                }
            }
            Err(i) => self.terms.insert(i, (a, c)),
        }
    }
    /// Undoes splits: `m·(x / m) + x % m = x`, and `m·((x / m) % n) + x % m = x % (m·n)`.
    fn recombine(&mut self) {
        while let Some((at, partner, whole)) = self.find_split() {
            let c = self.terms[at].1;
            let (first, second) = (at.max(partner), at.min(partner));
            self.terms.remove(first);
            self.terms.remove(second);
            self.constant += whole.constant * c;
            whole.terms.into_iter().for_each(|(a, k)| self.add_term(a, k * c));
        }
    }
    fn find_split(&self) -> Option<(usize, usize, Expr)> {
        for (i, (a, c)) in self.terms.iter().enumerate() {
            let Atom::Mod(x, m) = a else { continue };
            let quotient = x.clone().div(*m);
            let wanted = c.checked_mul(*m)?;
            for (j, (p, d)) in self.terms.iter().enumerate() {
                if *d != wanted || i == j {
                    continue;
                }
                if quotient.is_atom(p) {
                    return Some((i, j, (**x).clone()));
                }
                if let Atom::Mod(y, n) = p
                    && **y == quotient
                {
                    return Some((i, j, x.clone().rem(m * n)));
                }
            }
        }
        None
    }
    /// Rewrites `k·(x / k)` as `x - x % k`, where `k` elements fit a vector and `x` has a coordinate of `lanes` with
    /// stride 1. The remainder is a constant of each register, so that an access vectorises as one at `x` does. Where
    /// the sum has that remainder, it vectorises along it.
    pub fn rounded_down(&self, lanes: impl Fn(CoordId) -> bool) -> Option<Expr> {
        let runs = |t: &(Atom, i64)| matches!(t, (Atom::Coord { id, .. }, 1) if lanes(*id));
        let rounds = |(a, c): &(Atom, i64)| match a {
            Atom::Div(x, k) if x.terms.iter().any(runs) => {
                let there = self.terms.iter().any(|t| matches!(&t.0, Atom::Mod(y, m) if (y, m) == (x, k)));
                k.count_ones() == 1 && *k <= 16 && c % k == 0 && x.range().0 >= 0 && !there
            }
            _ => false,
        };
        let (Atom::Div(x, k), c) = self.terms.iter().find(|t| rounds(t))? else { return None };
        let term = Expr { terms: vec![(Atom::Div(x.clone(), *k), -c)], constant: 0 };
        let rest = x.as_ref().clone().rem(*k).scale(-c / k);
        Some(self.plus(&term).plus(&x.as_ref().clone().scale(c / k)).plus(&rest))
    }
    fn is_atom(&self, a: &Atom) -> bool {
        matches!(&self.terms[..], [(b, 1)] if b == a) && self.constant == 0
    }
    /// Terms with a coefficient divisible by `k` (divided), and the remaining terms.
    fn divide_terms(self, k: i64) -> (Expr, Expr) {
        let mut whole = Expr::constant(self.constant.div_euclid(k));
        let mut rest = Expr::constant(self.constant.rem_euclid(k));
        for (a, c) in self.terms {
            if c % k == 0 {
                whole.terms.push((a, c / k));
            } else {
                rest.terms.push((a, c));
            }
        }
        (whole, rest)
    }
    /// `(g, y, z)` with `self = g·y + z`, where `g` is the largest factor of `k` for which `z` stays in `0..g`.
    fn apart(&self, k: i64) -> Option<(i64, Expr, Expr)> {
        let mut factors: Vec<i64> = self.terms.iter().map(|t| gcd(k, t.1.abs())).filter(|g| *g > 1).collect();
        factors.sort_unstable();
        factors.into_iter().rev().find_map(|g| {
            let (mut whole, mut rest) = self.clone().divide_terms(g);
            let (lo, hi) = rest.range();
            let by = lo.div_euclid(g);
            (by == hi.div_euclid(g)).then(|| {
                whole.constant += by;
                rest.constant -= by * g;
                (g, whole, rest)
            })
        })
    }
    /// Quotient by a positive constant.
    pub fn div(self, k: i64) -> Expr {
        if k <= 1 {
            return self;
        }
        let (whole, rest) = self.divide_terms(k);
        let (lo, hi) = rest.range();
        if lo.div_euclid(k) == hi.div_euclid(k) {
            return whole.shift(lo.div_euclid(k));
        }
        let part = if let Some((g, reduced, _)) = rest.apart(k) {
            reduced.div(k / g)
        } else {
            match &rest.terms[..] {
                [(Atom::Div(x, m), 1)] if rest.constant == 0 => x.clone().div(m * k),
                [(Atom::Mod(x, m), 1)] if rest.constant == 0 && m % k == 0 => x.clone().div(k).rem(m / k),
                _ => Expr::atom(Atom::Div(Box::new(rest), k)),
            }
        };
        whole.plus(&part)
    }
    /// Remainder by a positive constant, in `0..k`.
    pub fn rem(self, k: i64) -> Expr {
        if k <= 1 {
            return Expr::default();
        }
        let (lo, hi) = self.range();
        if lo.div_euclid(k) == hi.div_euclid(k) {
            return self.shift(-lo.div_euclid(k) * k);
        }
        let (_, rest) = self.divide_terms(k);
        let (lo, hi) = rest.range();
        if lo.div_euclid(k) == hi.div_euclid(k) {
            return rest.shift(-lo.div_euclid(k) * k);
        }
        if let Some((g, reduced, low)) = rest.apart(k) {
            return reduced.rem(k / g).scale(g).plus(&low);
        }
        match &rest.terms[..] {
            [(Atom::Mod(x, m), 1)] if rest.constant == 0 && m % k == 0 => x.clone().rem(k),
            _ => Expr::atom(Atom::Mod(Box::new(rest), k)),
        }
    }
    /// The same expression with coordinates replaced where `f` gives something.
    pub fn substitute(&self, f: &impl Fn(CoordId) -> Option<Expr>) -> Expr {
        self.terms.iter().fold(Expr::constant(self.constant), |sum, (a, c)| {
            let e = match a {
                Atom::Coord { id, .. } => f(*id).unwrap_or_else(|| Expr::atom(a.clone())),
                Atom::Div(x, k) => x.substitute(f).div(*k),
                Atom::Mod(x, k) => x.substitute(f).rem(*k),
                Atom::Value { .. } => Expr::atom(a.clone()),
            };
            sum.plus(&e.scale(*c))
        })
    }
    /// The same expression with coordinates and nodes replaced by others, where `f` gives one.
    pub fn renamed(&self, f: &impl Fn(&Atom) -> Option<Atom>) -> Expr {
        let mut terms: Vec<(Atom, i64)> = vec![];
        for (a, c) in &self.terms {
            let atom = match a {
                Atom::Coord { .. } | Atom::Value { .. } => f(a).unwrap_or_else(|| a.clone()),
                Atom::Div(x, k) => Atom::Div(Box::new(x.renamed(f)), *k),
                Atom::Mod(x, k) => Atom::Mod(Box::new(x.renamed(f)), *k),
            };
            terms.push((atom, *c));
        }
        terms.sort();
        Expr { terms, constant: self.constant }
    }
    /// The value at these coordinates; indices read from memory count as 0.
    pub fn value_at(&self, coord: &impl Fn(CoordId) -> i64) -> i64 {
        self.terms.iter().fold(self.constant, |sum, (a, c)| {
            let v = match a {
                Atom::Coord { id, .. } => coord(*id),
                Atom::Div(x, k) => x.value_at(coord).div_euclid(*k),
                Atom::Mod(x, k) => x.value_at(coord).rem_euclid(*k),
                Atom::Value { .. } => 0,
            };
            sum + c * v
        })
    }
    /// Visits the expression and every one inside it.
    pub fn walk<'a>(&'a self, f: &mut impl FnMut(&'a Expr)) {
        f(self);
        for (a, _) in &self.terms {
            if let Atom::Div(x, _) | Atom::Mod(x, _) = a {
                x.walk(f);
            }
        }
    }
    /// Calls `f` with every coordinate, also inside quotients.
    pub fn coords(&self, f: &mut impl FnMut(CoordId)) {
        self.walk(&mut |e| {
            for (a, _) in &e.terms {
                if let Atom::Coord { id, .. } = a {
                    f(*id);
                }
            }
        });
    }
    /// Calls `f` with every node whose value the expression reads.
    pub fn nodes(&self, f: &mut impl FnMut(u32)) {
        self.walk(&mut |e| {
            for (a, _) in &e.terms {
                if let Atom::Value { node, .. } = a {
                    f(*node);
                }
            }
        });
    }
    pub fn uses(&self, id: CoordId) -> bool {
        let mut found = false;
        self.coords(&mut |c| found |= c == id);
        found
    }
    /// Coefficient of a coordinate at the top level; `None` if it also occurs inside a quotient or remainder.
    pub fn stride(&self, id: CoordId) -> Option<i64> {
        let mut stride = 0;
        for (a, c) in &self.terms {
            match a {
                Atom::Coord { id: i, .. } if *i == id => stride = *c,
                Atom::Div(x, _) | Atom::Mod(x, _) if x.uses(id) => return None,
                _ => {}
            }
        }
        Some(stride)
    }
}

impl Atom {
    /// Least and greatest value.
    pub fn range(&self) -> (i64, i64) {
        match self {
            Atom::Coord { extent, .. } | Atom::Value { extent, .. } => (0, (*extent as i64 - 1).max(0)),
            Atom::Div(x, k) => {
                let (lo, hi) = x.range();
                (lo.div_euclid(*k), hi.div_euclid(*k))
            }
            Atom::Mod(_, k) => (0, k - 1),
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Row-major position of an index vector.
pub fn linear(index: &[Expr], shape: &[usize]) -> Expr {
    index.iter().zip(strides(shape)).fold(Expr::default(), |sum, (e, s)| sum.plus(&e.clone().scale(s)))
}

/// Index vector of a row-major position (known to be inside the shape).
pub fn delinear(position: &Expr, shape: &[usize]) -> Vec<Expr> {
    let strides = strides(shape);
    let total: i64 = shape.iter().map(|&d| d as i64).product();
    (shape.iter().zip(&strides))
        .map(|(&d, &s)| {
            let q = position.clone().div(s);
            if s * d as i64 == total && position.range().0 >= 0 && position.range().1 < total {
                q
            } else {
                q.rem(d as i64)
            }
        })
        .collect()
}

/// As `delinear`, without a remainder on the first axis: exact where the position is inside the shape.
pub fn delinear_unbounded(position: &Expr, shape: &[usize]) -> Vec<Expr> {
    let mut parts = delinear(position, shape);
    let inner: usize = shape.iter().skip(1).product();
    if let Some(first) = parts.first_mut() {
        *first = position.clone().div(inner as i64);
    }
    parts
}

fn strides(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i] as i64;
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c(id: u32, extent: usize) -> Expr {
        Expr::coord(id, extent)
    }

    #[test]
    fn reshape_of_whole_axes_cancels() {
        let at = linear(&[c(0, 4), c(1, 6), c(2, 5)], &[4, 6, 5]);
        assert_eq!(delinear(&at, &[24, 5]), [linear(&[c(0, 4), c(1, 6)], &[4, 6]), c(2, 5)]);
        assert_eq!(delinear(&at, &[4, 30]), [c(0, 4), linear(&[c(1, 6), c(2, 5)], &[6, 5])]);
        assert_eq!(delinear(&at, &[4, 6, 5]), [c(0, 4), c(1, 6), c(2, 5)]);
    }

    /// The channel of a position does not depend on the offset within a row.
    #[test]
    fn quotients_of_rows_drop_what_lies_within_them() {
        let at = linear(&[c(0, 3072), c(1, 49)], &[3072, 49]);
        assert_eq!(delinear(&at, &[96, 32 * 49])[0], c(0, 3072).div(32));
        assert_eq!(delinear(&at, &[96, 32, 49]), [c(0, 3072).div(32), c(0, 3072).rem(32), c(1, 49)]);
        assert_eq!(linear(&delinear(&at, &[96, 32 * 49]), &[96, 32 * 49]), at);
    }

    #[test]
    fn splits_recombine() {
        let x = c(0, 120);
        for shape in [&[2usize, 60][..], &[4, 5, 6], &[2, 3, 4, 5], &[120], &[1, 120]] {
            let parts = delinear(&x, shape);
            assert_eq!(linear(&parts, shape), x, "{shape:?}");
        }
        let (a, b) = (delinear(&x, &[10, 12]), delinear(&x, &[5, 24]));
        assert_eq!(linear(&a, &[10, 12]), linear(&b, &[5, 24]));
    }

    /// Every expression against plain arithmetic, for each value of the coordinates.
    #[test]
    fn agrees_with_arithmetic() {
        fn eval(e: &Expr, at: &[i64]) -> i64 {
            e.value_at(&|id| at[id as usize])
        }
        let (x, y) = (c(0, 12), c(1, 10));
        for a in [1, 2, 3, 4, 6, 10, -1] {
            for b in [0, 1, 2, 5] {
                for k in [1, 2, 3, 4, 6, 8, 12, 20] {
                    for m in [1, 2, 3, 4, 12] {
                        let e = x.clone().scale(a).plus(&y.clone().scale(b)).shift(b - 1);
                        let (q, r) = (e.clone().div(k), e.clone().rem(k));
                        let (qq, rr) = (q.clone().rem(m), r.clone().div(m));
                        let back = q.clone().scale(k).plus(&r);
                        let down = q.clone().scale(2 * k).shift(3).plus(&y);
                        let down = (down.clone(), down.rounded_down(|_| true).unwrap_or(down));
                        for i in 0..12 {
                            for j in 0..10 {
                                let v = a * i + b * j + b - 1;
                                assert_eq!(eval(&q, &[i, j]), v.div_euclid(k), "{e:?} / {k}");
                                assert_eq!(eval(&r, &[i, j]), v.rem_euclid(k), "{e:?} % {k}");
                                assert_eq!(eval(&qq, &[i, j]), v.div_euclid(k).rem_euclid(m), "{e:?} / {k} % {m}");
                                assert_eq!(eval(&rr, &[i, j]), v.rem_euclid(k).div_euclid(m), "{e:?} % {k} / {m}");
                                assert_eq!(eval(&back, &[i, j]), v);
                                assert_eq!(eval(&down.0, &[i, j]), eval(&down.1, &[i, j]), "{down:?}");
                            }
                        }
                    }
                }
            }
        }
    }
}
