//! Masks of a number so low that no score beside it counts: the least number of a type, as models write masks that are
//! added to scores.
//!
//! The weight of such a score is zero if its query sees a key, as that of minus infinity is. But a query that sees no
//! key attends to all of them alike, where minus infinity leaves none. So the number becomes minus infinity where some
//! key is seen by every query, whatever tensors hold: the key at the query's own position, the first or the last one.
//! Bounds of the keys are then found as for any mask ([`crate::scalar::key_range`]).
//!
//! A bias with values of its own for each head is taken as finite.
use crate::scalar::dag::{Dag, Guard, NodeId, NodeOp};
use crate::scalar::expr::{Atom, CoordId, Expr};
use kiln_graph::{BinaryOp, CompareOp, DType, Scalar, UnaryOp};

/// Positions up to which differences cannot wrap around.
const FAR: i64 = 1 << 40;

/// The place of a score.
pub struct Place<'a> {
    /// Its index: batch.., head, query, key.
    pub at: &'a [Expr],
    /// Numbers of queries and keys.
    pub lengths: [usize; 2],
    /// Whether keys after the query are masked, too.
    pub causal: bool,
}

/// Whether a node is a number that masks scores of a type; minus infinity is one.
pub fn masks(dag: &Dag, n: NodeId, dtype: DType) -> bool {
    matches!(dag.node(n).op, NodeOp::Const(x) if x.as_f64() < dtype.mask_limit())
}

/// The mask, with minus infinity for every number that masks if every query sees a key.
pub fn exact(dag: &mut Dag, mask: NodeId, dtype: DType, place: &Place) -> NodeId {
    let finite = |n: NodeId| masks(dag, n, dtype) && !crate::scalar::dag::is_number(dag, n, f64::NEG_INFINITY);
    let [.., head, query, key] = place.at else { return mask };
    let (Some(key), [s, t]) = (key.as_coord(), place.lengths) else { return mask };
    if !dag.reach(&[mask]).into_iter().any(finite) {
        return mask;
    }
    let shift = t as i64 - s as i64;
    let seen = [query.clone(), query.clone().shift(shift), Expr::default(), Expr::constant(t as i64 - 1)];
    let sees = |seen: Expr| {
        let inside = |e: &Expr, end: i64| e.range().0 >= 0 && e.range().1 < end;
        let mut witness = Witness { dag: dag.clone(), dtype, key, head, seen };
        inside(&witness.seen, t as i64)
            && (!place.causal || query.plus(&witness.seen.clone().scale(-1)).range().0 >= 0)
            && witness.leaves(mask) == Some(true)
    };
    if seen.into_iter().any(sees) { infinite(dag, mask, dtype) } else { mask }
}

/// A choice of numbers with minus infinity for those that mask.
fn infinite(dag: &mut Dag, n: NodeId, dtype: DType) -> NodeId {
    let node = dag.node(n).clone();
    let op = match node.op {
        NodeOp::Const(_) if masks(dag, n, dtype) => NodeOp::Const(Scalar::Float(f64::NEG_INFINITY)),
        NodeOp::Select(c, a, b) => NodeOp::Select(c, infinite(dag, a, dtype), infinite(dag, b, dtype)),
        NodeOp::Binary(BinaryOp::Add, a, b) => {
            NodeOp::Binary(BinaryOp::Add, infinite(dag, a, dtype), infinite(dag, b, dtype))
        }
        NodeOp::Cast(a) if dag.node(a).dtype.is_float() => NodeOp::Cast(infinite(dag, a, dtype)),
        _ => return n,
    };
    dag.add(op, node.dtype)
}

/// What is known of a mask at one key of each query.
struct Witness<'a> {
    dag: Dag,
    dtype: DType,
    key: CoordId,
    head: &'a Expr,
    /// That key.
    seen: Expr,
}

impl Witness<'_> {
    /// Does the mask leave the key?
    fn leaves(&mut self, n: NodeId) -> Option<bool> {
        match self.dag.node(n).op {
            NodeOp::Const(x) => Some(x.as_f64() >= self.dtype.mask_limit()),
            NodeOp::Cast(a) if self.dag.node(a).dtype.is_float() => self.leaves(a),
            NodeOp::Binary(BinaryOp::Add, a, b) => conjunction(self.leaves(a), || self.leaves(b)),
            NodeOp::Select(c, a, b) => match self.at_key(c).and_then(|c| self.holds(c)) {
                Some(c) => self.leaves(if c { a } else { b }),
                None => conjunction(self.leaves(a), || self.leaves(b)).filter(|leaves| *leaves),
            },
            _ => self.is_bias(n).then_some(true),
        }
    }
    /// Is it computed from numbers that do not mask, and from tensors with values of their own for each head, by
    /// operations that give finite numbers of these?
    fn is_bias(&self, n: NodeId) -> bool {
        let of_head = |at: &Expr| {
            let mut found = false;
            let is_of_head = |(a, _): &(Atom, i64)| self.head.terms.iter().any(|(b, _)| a == b);
            at.walk(&mut |e| found |= e.terms.iter().any(is_of_head));
            found
        };
        self.dag.reach(&[n]).into_iter().all(|n| match &self.dag.node(n).op {
            _ if !self.dag.node(n).dtype.is_float() => true,
            NodeOp::Const(x) => x.as_f64().is_finite() && x.as_f64() >= self.dtype.mask_limit(),
            NodeOp::Load { at, .. } => of_head(at),
            NodeOp::Unary(op, _) => matches!(op, UnaryOp::Neg | UnaryOp::Abs),
            NodeOp::Binary(op, ..) => {
                matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Min | BinaryOp::Max)
            }
            NodeOp::Index(_) | NodeOp::Cast(_) | NodeOp::Select(..) => true,
            _ => false,
        })
    }
    /// A node at that key; `None` if it looks up elements at indices from memory.
    fn at_key(&mut self, n: NodeId) -> Option<NodeId> {
        let mut now = rustc_hash::FxHashMap::default();
        for n in self.dag.reach(&[n]) {
            let node = self.dag.node(n).clone();
            let mut looked_up = matches!(node.op, NodeOp::Check { .. } | NodeOp::Anchor { .. });
            node.exprs(&mut |e| e.nodes(&mut |_| looked_up = true));
            if looked_up {
                return None;
            }
            let current = |n: NodeId| now.get(&n).copied().unwrap_or(n);
            let put = |e: &Expr| e.substitute(&|id| (id == self.key).then(|| self.seen.clone()));
            let guards = |all: &[Guard]| all.iter().map(|g| Guard { expr: put(&g.expr), ..*g }).collect();
            let op = match &node.op {
                NodeOp::Index(e) => NodeOp::Index(put(e)),
                NodeOp::Load { slot, at, guards: all } => {
                    NodeOp::Load { slot: *slot, at: put(at), guards: guards(all) }
                }
                NodeOp::Inside(all) => NodeOp::Inside(guards(all)),
                NodeOp::Unary(op, a) => NodeOp::Unary(*op, current(*a)),
                NodeOp::Binary(op, a, b) => NodeOp::Binary(*op, current(*a), current(*b)),
                NodeOp::Compare(op, a, b) => NodeOp::Compare(*op, current(*a), current(*b)),
                NodeOp::Select(c, a, b) => NodeOp::Select(current(*c), current(*a), current(*b)),
                NodeOp::Cast(a) => NodeOp::Cast(current(*a)),
                NodeOp::Const(_) => continue,
                _ => return None,
            };
            now.insert(n, self.dag.add(op, node.dtype));
        }
        Some(now.get(&n).copied().unwrap_or(n))
    }
    /// Does a condition always hold, or never?
    fn holds(&self, n: NodeId) -> Option<bool> {
        match &self.dag.node(n).op {
            NodeOp::Const(Scalar::Bool(v)) => Some(*v),
            NodeOp::Unary(UnaryOp::Not, a) => Some(!self.holds(*a)?),
            NodeOp::Binary(BinaryOp::And, a, b) => conjunction(self.holds(*a), || self.holds(*b)),
            NodeOp::Binary(BinaryOp::Or, a, b) => {
                let not = |v: Option<bool>| v.map(|v| !v);
                not(conjunction(not(self.holds(*a)), || not(self.holds(*b))))
            }
            NodeOp::Select(c, a, b) => match self.holds(*c) {
                Some(c) => self.holds(if c { *a } else { *b }),
                None => self.holds(*a).filter(|v| self.holds(*b) == Some(*v)),
            },
            NodeOp::Inside(all) => {
                let inside = |g: &Guard| g.lo <= g.expr.range().0 && g.expr.range().1 < g.hi;
                all.iter().all(inside).then_some(true)
            }
            NodeOp::Compare(op, a, b) => self.compared(*op, *a, *b),
            _ => None,
        }
    }
    fn compared(&self, op: CompareOp, a: NodeId, b: NodeId) -> Option<bool> {
        if !self.dag.node(a).dtype.is_int() || !self.dag.node(b).dtype.is_int() {
            return None;
        }
        let (lo, hi) = if a == b {
            (0, 0)
        } else if let (Some(a), Some(b)) = (self.affine(a), self.affine(b)) {
            a.plus(&b.scale(-1)).range()
        } else {
            let (a, b) = (self.range(a), self.range(b));
            (a.0.saturating_sub(b.1), a.1.saturating_sub(b.0))
        };
        let (yes, no) = match op {
            CompareOp::Lt => (hi < 0, lo >= 0),
            CompareOp::Le => (hi <= 0, lo > 0),
            CompareOp::Gt => (lo > 0, hi <= 0),
            CompareOp::Ge => (lo >= 0, hi < 0),
            CompareOp::Eq => (lo == 0 && hi == 0, lo > 0 || hi < 0),
            CompareOp::Ne => (lo > 0 || hi < 0, lo == 0 && hi == 0),
        };
        if yes { Some(true) } else { no.then_some(false) }
    }
    /// Least and greatest value of an integer.
    fn range(&self, n: NodeId) -> (i64, i64) {
        if let Some(e) = self.affine(n) {
            return e.range();
        }
        match self.dag.node(n).op {
            NodeOp::Unary(UnaryOp::Abs, a) => match self.affine(a).map(|e| e.range()) {
                Some((lo, hi)) => (lo.max(-hi).max(0), hi.max(-lo)),
                None => self.dag.range(n),
            },
            _ => self.dag.range(n),
        }
    }
    /// An integer as an index expression, if its arithmetic does not wrap around.
    fn affine(&self, n: NodeId) -> Option<Expr> {
        let node = self.dag.node(n);
        let (min, max) = node.dtype.int_range()?;
        let e = match &node.op {
            NodeOp::Const(Scalar::Int(v)) => Expr::constant(*v),
            NodeOp::Index(e) => e.clone(),
            NodeOp::Cast(a) => self.affine(*a)?,
            NodeOp::Binary(BinaryOp::Add, a, b) => self.affine(*a)?.plus(&self.affine(*b)?),
            NodeOp::Binary(BinaryOp::Sub, a, b) => self.affine(*a)?.plus(&self.affine(*b)?.scale(-1)),
            _ => return None,
        };
        let (lo, hi) = e.range();
        (min.max(-FAR) <= lo && hi <= max.min(FAR)).then_some(e)
    }
}

/// Of two conditions that may be unknown.
fn conjunction(a: Option<bool>, b: impl FnOnce() -> Option<bool>) -> Option<bool> {
    match (a, b()) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}
