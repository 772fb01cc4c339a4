//! The first and the end of the keys that a mask lets a query attend to, where the mask says so by comparisons: of `key
//! <= position` the end is `position + 1`, and of `position - key < window` the first is `position - window + 1`.
//! Attention loops over the keys in between, and reads no others.
//!
//! Takes: the scalar program of a masked score. Gives: a node that is computed without the key, and from which on (or
//! before which) every score is minus infinity, whatever it was before the mask. As everywhere with skipped keys, a
//! score that is NaN or infinite before an additive mask counts as masked.
//!
//! Never wrong: where arithmetic might wrap around, or a condition is not understood, there is no bound.
use crate::scalar::dag::{Dag, NodeId, NodeOp};
use crate::scalar::expr::{CoordId, Expr};
use kiln_graph::{BinaryOp, CompareOp, DType, Scalar, UnaryOp};

/// Offsets between keys and positions up to which their difference cannot wrap around.
const FAR: i64 = 1 << 40;
/// Nested conditions that are followed.
const DEEP: usize = 32;

/// The first of the keys from which on `score` is minus infinity: an i64 node in `0..=keys`. `key`: the coordinate of
/// the key.
pub fn key_end(dag: &mut Dag, score: NodeId, key: CoordId, keys: usize) -> Option<NodeId> {
    Search { dag, key, keys: keys as i64, masks: f64::NEG_INFINITY, side: Side::From }.bound(score)
}
/// The first of the keys before which `score` is not always minus infinity, and the first from which on it is: i64
/// nodes in `0..=keys`.
pub fn key_range(dag: &mut Dag, score: NodeId, key: CoordId, keys: usize) -> [Option<NodeId>; 2] {
    masked_range(dag, score, key, keys, f64::NEG_INFINITY)
}
/// The same for scores that a number of at most `masks` masks.
pub fn masked_range(dag: &mut Dag, score: NodeId, key: CoordId, keys: usize, masks: f64) -> [Option<NodeId>; 2] {
    [Side::Before, Side::From].map(|side| Search { dag, key, keys: keys as i64, masks, side }.bound(score))
}

/// Which keys a property holds for.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// Those from a bound on.
    From,
    /// Those before a bound.
    Before,
}

struct Search<'a> {
    dag: &'a mut Dag,
    key: CoordId,
    keys: i64,
    /// The greatest number that masks.
    masks: f64,
    side: Side,
}

/// An integer that is the key, or its negative, plus something that does not depend on it.
struct Linear {
    negative: bool,
    /// `None`: nothing is added.
    offset: Option<NodeId>,
}

impl Search<'_> {
    fn bound(&mut self, score: NodeId) -> Option<NodeId> {
        let bound = self.masked(score, DEEP)?;
        let (lowest, highest) = (self.number(0), self.number(self.keys));
        let bound = self.dag.binary(BinaryOp::Min, bound, highest);
        Some(self.dag.binary(BinaryOp::Max, bound, lowest))
    }
    /// The bound of a property that all keys have.
    fn all(&mut self) -> NodeId {
        let bound = if self.side == Side::From { 0 } else { self.keys };
        self.number(bound)
    }
    /// For which keys a float masks.
    fn masked(&mut self, n: NodeId, deep: usize) -> Option<NodeId> {
        let deep = deep.checked_sub(1)?;
        match self.dag.node(n).op.clone() {
            NodeOp::Const(s) => (s.as_f64() <= self.masks).then(|| self.all()),
            NodeOp::Cast(a) if self.dag.node(a).dtype.is_float() => self.masked(a, deep),
            NodeOp::Binary(BinaryOp::Add, a, b) => {
                let (a, b) = (self.masked(a, deep), self.masked(b, deep));
                self.either(a, b)
            }
            NodeOp::Select(c, a, b) => {
                let (a, b) = (self.masked(a, deep), self.masked(b, deep));
                self.chosen(c, a, b, deep)
            }
            _ => None,
        }
    }
    /// For which keys a condition is `value`.
    fn settled(&mut self, n: NodeId, value: bool, deep: usize) -> Option<NodeId> {
        let deep = deep.checked_sub(1)?;
        match self.dag.node(n).op.clone() {
            NodeOp::Const(Scalar::Bool(v)) => (v == value).then(|| self.all()),
            NodeOp::Unary(UnaryOp::Not, a) => self.settled(a, !value, deep),
            NodeOp::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b) => {
                let (a, b) = (self.settled(a, value, deep), self.settled(b, value, deep));
                // One false operand makes a conjunction false, one true operand a disjunction true.
                if (op == BinaryOp::Or) == value { self.either(a, b) } else { self.both(a, b) }
            }
            NodeOp::Select(c, a, b) => {
                let (a, b) = (self.settled(a, value, deep), self.settled(b, value, deep));
                self.chosen(c, a, b, deep)
            }
            NodeOp::Compare(op, a, b) => {
                let (varies_a, varies_b) = (self.varies(a), self.varies(b));
                let op = if value { negated(op) } else { op };
                match (varies_a, varies_b) {
                    (true, false) => self.passed(op, a, b),
                    (false, true) => self.passed(mirrored(op), b, a),
                    _ => None,
                }
            }
            _ => None,
        }
    }
    /// For which keys `c ? a : b` has a property that `a` and `b` have for these keys.
    fn chosen(&mut self, c: NodeId, a: Option<NodeId>, b: Option<NodeId>, deep: usize) -> Option<NodeId> {
        let (never, always) = (self.settled(c, false, deep), self.settled(c, true, deep));
        let (by_a, by_b, by_both) = (self.both(always, a), self.both(never, b), self.both(a, b));
        let one = self.either(by_a, by_b);
        self.either(one, by_both)
    }
    /// For which keys `side op limit` is false for integers.
    fn passed(&mut self, op: CompareOp, side: NodeId, limit: NodeId) -> Option<NodeId> {
        if !self.dag.node(limit).dtype.is_int() {
            return None;
        }
        // Farther than any key with its offset.
        let limit = self.within(limit, 4 * FAR);
        if let NodeOp::Unary(UnaryOp::Abs, a) = self.dag.node(side).op {
            let (min, _) = self.dag.node(a).dtype.int_range()?;
            // |a| is below a limit only if both a and -a are; the least integer is its own negative.
            if self.dag.range(a).0 == min {
                return None;
            }
            let zero = self.number(0);
            let lowest = self.dag.binary(BinaryOp::Sub, zero, limit);
            let (above, below) = match op {
                CompareOp::Lt | CompareOp::Le => (self.beyond(op, a, limit), self.beyond(mirrored(op), a, lowest)),
                _ => return None,
            };
            return self.either(above, below);
        }
        self.beyond(op, side, limit)
    }
    /// The same for a limit that is far from wrapping around.
    fn beyond(&mut self, op: CompareOp, side: NodeId, limit: NodeId) -> Option<NodeId> {
        let Linear { negative, offset } = self.key_plus(side)?;
        let (op, limit) = match (negative, offset) {
            (_, None) if !negative => (op, limit),
            (false, Some(offset)) => (op, self.dag.binary(BinaryOp::Sub, limit, offset)),
            (_, offset) => {
                let zero = self.number(0);
                (mirrored(op), self.dag.binary(BinaryOp::Sub, offset.unwrap_or(zero), limit))
            }
        };
        // The comparison of the key itself with the limit.
        let next = match (self.side, op) {
            (Side::From, CompareOp::Lt) | (Side::Before, CompareOp::Ge | CompareOp::Eq) => 0,
            (Side::From, CompareOp::Le | CompareOp::Eq) | (Side::Before, CompareOp::Gt) => 1,
            _ => return None,
        };
        let next = self.number(next);
        Some(self.dag.binary(BinaryOp::Add, limit, next))
    }
    /// The integer as the key plus something within [`FAR`] that does not depend on it, if the sum does not wrap
    /// around.
    fn key_plus(&mut self, n: NodeId) -> Option<Linear> {
        let node = self.dag.node(n).clone();
        let (lowest, highest) = node.dtype.int_range()?;
        let fits = |(lo, hi): (i64, i64)| lowest <= lo && hi <= highest && -FAR <= lo && hi <= FAR;
        match node.op {
            NodeOp::Index(e) if matches!(e.stride(self.key), Some(1 | -1)) && fits(e.range()) => {
                let key = e
                    .terms
                    .iter()
                    .find(|(a, _)| matches!(a, crate::scalar::expr::Atom::Coord { id, .. } if *id == self.key));
                let key = Expr { terms: key.cloned().into_iter().collect(), constant: 0 };
                let rest = e.plus(&key.scale(-1));
                let nothing = rest == Expr::default();
                let offset = (!nothing).then(|| self.dag.add(NodeOp::Index(rest), DType::I64));
                Some(Linear { negative: e.stride(self.key) == Some(-1), offset })
            }
            NodeOp::Cast(a) if self.dag.node(a).dtype.is_int() && fits(self.dag.range(a)) => self.key_plus(a),
            NodeOp::Binary(op @ (BinaryOp::Add | BinaryOp::Sub), a, b) => {
                let subtracts = op == BinaryOp::Sub;
                let ((al, ah), (bl, bh)) = (self.dag.range(a), self.dag.range(b));
                let (bl, bh) = if subtracts { (bh.checked_neg()?, bl.checked_neg()?) } else { (bl, bh) };
                if !fits((al.checked_add(bl)?, ah.checked_add(bh)?)) {
                    return None;
                }
                let (with_key, other, swapped) = match (self.varies(a), self.varies(b)) {
                    (true, false) => (a, b, false),
                    (false, true) => (b, a, true),
                    _ => return None,
                };
                let Linear { negative, offset } = self.key_plus(with_key)?;
                let zero = self.number(0);
                let offset = offset.unwrap_or(zero);
                let other = self.dag.add(NodeOp::Cast(other), DType::I64);
                let offset = match (subtracts, swapped) {
                    (true, true) => self.dag.binary(BinaryOp::Sub, other, offset),
                    (true, false) => self.dag.binary(BinaryOp::Sub, offset, other),
                    (false, _) => self.dag.binary(BinaryOp::Add, offset, other),
                };
                Some(Linear { negative: negative != (subtracts && swapped), offset: Some(offset) })
            }
            _ => None,
        }
    }
    /// An integer as i64, clamped to `-far..=far`.
    fn within(&mut self, n: NodeId, far: i64) -> NodeId {
        let (lo, hi) = self.dag.range(n);
        let wide = if self.dag.node(n).dtype == DType::I64 { n } else { self.dag.add(NodeOp::Cast(n), DType::I64) };
        if -far <= lo && hi <= far {
            return wide;
        }
        let (lowest, highest) = (self.number(-far), self.number(far));
        let n = self.dag.binary(BinaryOp::Min, wide, highest);
        self.dag.binary(BinaryOp::Max, n, lowest)
    }
    /// Whether a value depends on the key.
    fn varies(&self, n: NodeId) -> bool {
        let mut found = false;
        for n in self.dag.reach(&[n]) {
            self.dag.node(n).exprs(&mut |e| found |= e.uses(self.key));
        }
        found
    }
    /// The bound of the keys that have one property or the other, as far as known.
    fn either(&mut self, a: Option<NodeId>, b: Option<NodeId>) -> Option<NodeId> {
        let op = if self.side == Side::From { BinaryOp::Min } else { BinaryOp::Max };
        match (a, b) {
            (Some(a), Some(b)) if a != b => Some(self.dag.binary(op, a, b)),
            (a, b) => a.or(b),
        }
    }
    /// The bound of the keys that have both properties, if both are known.
    fn both(&mut self, a: Option<NodeId>, b: Option<NodeId>) -> Option<NodeId> {
        let (a, b) = (a?, b?);
        let op = if self.side == Side::From { BinaryOp::Max } else { BinaryOp::Min };
        let all = self.all();
        Some(match (a, b) {
            _ if a == b || b == all => a,
            _ if a == all => b,
            _ => self.dag.binary(op, a, b),
        })
    }
    fn number(&mut self, v: i64) -> NodeId {
        self.dag.add(NodeOp::Const(Scalar::Int(v)), DType::I64)
    }
}

/// The comparison with its operands swapped.
fn mirrored(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::Le => CompareOp::Ge,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::Ge => CompareOp::Le,
        CompareOp::Eq | CompareOp::Ne => op,
    }
}
/// The comparison that is true where this one is false. Not of floats, where NaN makes both false.
fn negated(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Ge,
        CompareOp::Le => CompareOp::Gt,
        CompareOp::Gt => CompareOp::Le,
        CompareOp::Ge => CompareOp::Lt,
        CompareOp::Eq => CompareOp::Ne,
        CompareOp::Ne => CompareOp::Eq,
    }
}
