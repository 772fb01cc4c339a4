//! Masks of attention that say up to which key a query attends, by comparing the key's index with a number that does
//! not depend on it, as `key <= position`. Lowering ends the loop over keys there, so the arithmetic of such a mask is
//! not priced by scores ([`super::mask`]).
use super::CheckedRegion;
use crate::space::{Atom, AxisMap, Map, align};
use kiln_graph::ops::Class;
use kiln_graph::{BinaryOp, CompareOp, Op, UnaryOp};

/// Nested conditions that are followed.
const DEEP: usize = 32;

impl CheckedRegion<'_> {
    /// Whether the kernel computes this mask, and it is minus infinity, the least number or false from some key on.
    /// `keys`: the axis of the keys.
    pub(super) fn bounds_keys(&mut self, mask: usize, map: &Map, keys: &AxisMap) -> bool {
        let [key] = keys.atoms[..] else { return false };
        match self.dag.ty(mask).dtype.is_float() {
            true => self.is_masked(mask, map, key, DEEP),
            false => self.is_settled(mask, map, (key, false), DEEP),
        }
    }
    /// What a member is computed from, with the maps.
    fn operands_at(&mut self, v: usize, m: &Map) -> Option<Vec<(usize, Map)>> {
        let dag = self.dag;
        self.members.binary_search(&v).ok()?;
        match dag.class[v] {
            Class::View => Some(vec![(dag.args(v)[0], self.view(v, m))]),
            Class::Pointwise => Some(dag.args(v).iter().map(|&a| (a, align(dag.shape(a), m.len(), m))).collect()),
            _ => None,
        }
    }
    /// Does a float mask from some key on? The least number of a type does if every query sees a key, as is usual.
    fn is_masked(&mut self, v: usize, m: &Map, key: Atom, deep: usize) -> bool {
        let Some(deep) = deep.checked_sub(1) else { return false };
        if let Op::Const(s) = self.dag.op(v) {
            return s.as_f64() < self.dag.ty(v).dtype.mask_limit();
        }
        let (op, Some(from)) = (self.dag.op(v), self.operands_at(v, m)) else { return false };
        match (op, &from[..]) {
            (Op::Cast(_), [(a, m)]) => self.dag.ty(*a).dtype.is_float() && self.is_masked(*a, m, key, deep),
            (Op::Binary(BinaryOp::Add), both) => both.iter().any(|(a, m)| self.is_masked(*a, m, key, deep)),
            (Op::Select, [c, both @ ..]) => {
                let both: Vec<bool> = both.iter().map(|(a, m)| self.is_masked(*a, m, key, deep)).collect();
                self.chooses(c, &both, key, deep)
            }
            (op, [(a, m)]) if op.is_view() => self.is_masked(*a, m, key, deep),
            _ => false,
        }
    }
    /// Is a condition `value` from some key on?
    fn is_settled(&mut self, v: usize, m: &Map, (key, value): (Atom, bool), deep: usize) -> bool {
        let Some(deep) = deep.checked_sub(1) else { return false };
        let (op, Some(from)) = (self.dag.op(v), self.operands_at(v, m)) else { return false };
        match (op, &from[..]) {
            (Op::Unary(UnaryOp::Not), [(a, m)]) => self.is_settled(*a, m, (key, !value), deep),
            (Op::Binary(op @ (BinaryOp::And | BinaryOp::Or)), both) => {
                let mut one = |(a, m): &(usize, Map)| self.is_settled(*a, m, (key, value), deep);
                if (*op == BinaryOp::Or) == value { both.iter().any(one) } else { both.iter().all(&mut one) }
            }
            (Op::Select, [c, both @ ..]) => {
                let both: Vec<bool> = both.iter().map(|(a, m)| self.is_settled(*a, m, (key, value), deep)).collect();
                self.chooses(c, &both, key, deep)
            }
            (Op::Compare(op), [a, b]) => {
                use CompareOp::*;
                let (rises, falls) = match value {
                    false => (matches!(op, Lt | Le | Eq), matches!(op, Gt | Ge | Eq)),
                    true => (matches!(op, Gt | Ge | Ne), matches!(op, Lt | Le | Ne)),
                };
                (rises && self.is_key(a, key) && !self.varies(&b.1, key))
                    || (falls && self.is_key(b, key) && !self.varies(&a.1, key))
            }
            (op, [(a, m)]) if op.is_view() => self.is_settled(*a, m, (key, value), deep),
            _ => false,
        }
    }
    /// Has `c ? a : b` a property from some key on that its operands have or not?
    fn chooses(&mut self, (c, m): &(usize, Map), both: &[bool], key: Atom, deep: usize) -> bool {
        let [a, b] = both[..] else { return false };
        match (a, b) {
            (true, true) => true,
            (true, false) => self.is_settled(*c, m, (key, true), deep),
            (false, true) => self.is_settled(*c, m, (key, false), deep),
            (false, false) => false,
        }
    }
    /// Is this integer the index of the key, plus a constant?
    fn is_key(&mut self, (v, m): &(usize, Map), key: Atom) -> bool {
        if let Op::Iota { axis } = self.dag.op(*v) {
            let own = self.space.now(&[key]);
            let w = &m[*axis];
            return self.dag.ty(*v).dtype.is_int() && !w.computed && w.step == 1 && self.space.now(&w.atoms) == own;
        }
        let (op, Some(from)) = (self.dag.op(*v), self.operands_at(*v, m)) else { return false };
        match &from[..] {
            [a] if op.is_view() || matches!(op, Op::Cast(_)) => self.is_key(a, key),
            _ => false,
        }
    }
    fn varies(&self, m: &Map, key: Atom) -> bool {
        let own = self.space.now(&[key]);
        self.space.flat(m).iter().any(|a| own.contains(a))
    }
}
