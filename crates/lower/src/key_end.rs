//! The end of the keys that a mask lets a query attend to, where the mask says so by a comparison: of `key <= position`
//! it is `position + 1`. Attention loops over keys up to there, and reads none beyond.
//!
//! Takes: the scalar program of a masked score. Gives: a node that is computed without the key, and from which on every
//! score is minus infinity, whatever it was before the mask. As everywhere with skipped keys, a score that is NaN or
//! infinite before an additive mask counts as masked.
//!
//! Never wrong: where arithmetic might wrap around, or a condition is not understood, there is no end.
use crate::dag::{Dag, NodeId, NodeOp};
use crate::expr::{CoordId, Expr};
use kiln_graph::{BinaryOp, CompareOp, DType, Scalar, UnaryOp};

/// Offsets between keys and positions up to which their difference cannot wrap around.
const FAR: i64 = 1 << 40;
/// Nested conditions that are followed.
const DEEP: usize = 32;

/// The first of the keys from which on `score` is minus infinity: an i64 node in `0..=keys`. `key`: the coordinate of
/// the key.
pub fn key_end(dag: &mut Dag, score: NodeId, key: CoordId, keys: usize) -> Option<NodeId> {
    let mut s = Search { dag, key };
    let end = s.masked(score, DEEP)?;
    let most = s.number(keys as i64);
    let end = s.dag.binary(BinaryOp::Min, end, most);
    let zero = s.number(0);
    Some(s.dag.binary(BinaryOp::Max, end, zero))
}

struct Search<'a> {
    dag: &'a mut Dag,
    key: CoordId,
}

impl Search<'_> {
    /// From which key on a float is minus infinity.
    fn masked(&mut self, n: NodeId, deep: usize) -> Option<NodeId> {
        let deep = deep.checked_sub(1)?;
        match self.dag.node(n).op.clone() {
            NodeOp::Const(s) => (s.as_f64() == f64::NEG_INFINITY).then(|| self.number(0)),
            NodeOp::Cast(a) if self.dag.node(a).dtype.is_float() => self.masked(a, deep),
            NodeOp::Binary(BinaryOp::Add, a, b) => {
                let (a, b) = (self.masked(a, deep), self.masked(b, deep));
                self.first(a, b)
            }
            NodeOp::Select(c, a, b) => {
                let (a, b) = (self.masked(a, deep), self.masked(b, deep));
                self.chosen(c, a, b, deep)
            }
            _ => None,
        }
    }
    /// From which key on a condition is `value`.
    fn settled(&mut self, n: NodeId, value: bool, deep: usize) -> Option<NodeId> {
        let deep = deep.checked_sub(1)?;
        match self.dag.node(n).op.clone() {
            NodeOp::Const(Scalar::Bool(v)) => (v == value).then(|| self.number(0)),
            NodeOp::Unary(UnaryOp::Not, a) => self.settled(a, !value, deep),
            NodeOp::Binary(op @ (BinaryOp::And | BinaryOp::Or), a, b) => {
                let (a, b) = (self.settled(a, value, deep), self.settled(b, value, deep));
                // One false operand makes a conjunction false, one true operand a disjunction true.
                if (op == BinaryOp::Or) == value { self.first(a, b) } else { self.last(a, b) }
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
    /// The key from which on `c ? a : b` has a property that `a` and `b` have from these keys on.
    fn chosen(&mut self, c: NodeId, a: Option<NodeId>, b: Option<NodeId>, deep: usize) -> Option<NodeId> {
        let (never, always) = (self.settled(c, false, deep), self.settled(c, true, deep));
        let (by_a, by_b, either) = (self.last(always, a), self.last(never, b), self.last(a, b));
        let one = self.first(by_a, by_b);
        self.first(one, either)
    }
    /// The key from which on `key side op limit` is false for integers.
    fn passed(&mut self, op: CompareOp, side: NodeId, limit: NodeId) -> Option<NodeId> {
        let beyond = match op {
            CompareOp::Lt => 0,
            CompareOp::Le | CompareOp::Eq => 1,
            CompareOp::Ne | CompareOp::Gt | CompareOp::Ge => return None,
        };
        if !self.dag.node(limit).dtype.is_int() {
            return None;
        }
        let offset = self.key_plus(side)?;
        // Farther than any key with its offset.
        let mut end = self.within(limit, 4 * FAR);
        if let Some(offset) = offset {
            end = self.dag.binary(BinaryOp::Sub, end, offset);
        }
        let beyond = self.number(beyond);
        Some(self.dag.binary(BinaryOp::Add, end, beyond))
    }
    /// What is added to the key, if the integer is the key plus something within [`FAR`] that does not depend on it, and
    /// the sum does not wrap around. `Some(None)`: nothing is added.
    fn key_plus(&mut self, n: NodeId) -> Option<Option<NodeId>> {
        let node = self.dag.node(n).clone();
        let (least, most) = node.dtype.int_range()?;
        let fits = |(lo, hi): (i64, i64)| least <= lo && hi <= most && -FAR <= lo && hi <= FAR;
        match node.op {
            NodeOp::Index(e) if e.stride(self.key) == Some(1) && fits(e.range()) => {
                let own =
                    e.terms.iter().find(|(a, _)| matches!(a, crate::expr::Atom::Coord { id, .. } if *id == self.key));
                let own = Expr { terms: own.cloned().into_iter().collect(), constant: 0 };
                let rest = e.plus(&own.scale(-1));
                let nothing = rest == Expr::default();
                Some((!nothing).then(|| self.dag.add(NodeOp::Index(rest), DType::I64)))
            }
            NodeOp::Cast(a) if self.dag.node(a).dtype.is_int() && fits(self.dag.range(a)) => self.key_plus(a),
            NodeOp::Binary(op @ (BinaryOp::Add | BinaryOp::Sub), a, b) => {
                let (a, b) = if op == BinaryOp::Add && !self.varies(a) { (b, a) } else { (a, b) };
                let ((al, ah), (bl, bh)) = (self.dag.range(a), self.dag.range(b));
                let (bl, bh) = if op == BinaryOp::Add { (bl, bh) } else { (bh.checked_neg()?, bl.checked_neg()?) };
                if self.varies(b) || !fits((al.checked_add(bl)?, ah.checked_add(bh)?)) {
                    return None;
                }
                let before = self.key_plus(a)?;
                let more = self.dag.add(NodeOp::Cast(b), DType::I64);
                let zero = self.number(0);
                Some(Some(self.dag.binary(op, before.unwrap_or(zero), more)))
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
        let (least, most) = (self.number(-far), self.number(far));
        let n = self.dag.binary(BinaryOp::Min, wide, most);
        self.dag.binary(BinaryOp::Max, n, least)
    }
    /// Whether a value depends on the key.
    fn varies(&self, n: NodeId) -> bool {
        let mut found = false;
        for n in self.dag.reach(&[n]) {
            self.dag.node(n).exprs(&mut |e| found |= e.uses(self.key));
        }
        found
    }
    /// The smaller of what is known.
    fn first(&mut self, a: Option<NodeId>, b: Option<NodeId>) -> Option<NodeId> {
        match (a, b) {
            (Some(a), Some(b)) if a != b => Some(self.dag.binary(BinaryOp::Min, a, b)),
            (a, b) => a.or(b),
        }
    }
    /// The larger, if both are known.
    fn last(&mut self, a: Option<NodeId>, b: Option<NodeId>) -> Option<NodeId> {
        let (a, b) = (a?, b?);
        let zero = self.number(0);
        Some(match (a, b) {
            _ if a == b || b == zero => a,
            _ if a == zero => b,
            _ => self.dag.binary(BinaryOp::Max, a, b),
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
