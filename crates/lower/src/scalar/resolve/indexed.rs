//! Elements at indices that a program computes: each index is checked, and what is read is guarded.
use crate::scalar::dag::{Guard, NodeId, NodeOp};
use crate::scalar::expr::{Expr, linear};
use crate::scalar::resolve::guards::joined;
use crate::scalar::resolve::{ResolvePoint, Resolved, Resolver};
use kiln_graph::{BinaryOp, DType, Scalar, ValueId};

impl Resolver<'_> {
    /// An element of the first operand, at the index along `axis` that the second has at the same place.
    pub(super) fn gather(&mut self, args: &[ValueId], here: &ResolvePoint, axis: usize) -> Resolved {
        let (g, ix) = (self.graph, here.ix);
        let index = self.at(args[1], ix, here.guards)?;
        let mut inner = ix.to_vec();
        let place = linear(ix, g.shape(args[1]));
        let guards = self.indexed(index, g.shape(args[0])[axis], place, &mut inner[axis], here);
        self.at(args[0], &inner, &guards)
    }
    /// An element of a slice of the first operand along `axis`, of the number that the second has.
    pub(super) fn take(&mut self, args: &[ValueId], here: &ResolvePoint, axis: usize) -> Resolved {
        let (g, ix) = (self.graph, here.ix);
        let rank = g.shape(args[1]).len();
        let index = self.at(args[1], &ix[axis..axis + rank], here.guards)?;
        let mut at = Expr::default();
        let place = linear(&ix[axis..axis + rank], g.shape(args[1]));
        let guards = self.indexed(index, g.shape(args[0])[axis], place, &mut at, here);
        let inner = [&ix[..axis], &[at], &ix[axis + rank..]].concat();
        self.at(args[0], &inner, &guards)
    }
    /// Puts the index that a node computes into `at`, with a check unless it is known to be in range; returns the
    /// guards that mask reads outside of the axis. `place`: the position among all indices.
    fn indexed(&mut self, index: NodeId, len: usize, place: Expr, at: &mut Expr, here: &ResolvePoint) -> Vec<Guard> {
        let mut index = index;
        if matches!(self.dag.node(index).dtype, DType::I16 | DType::I8) {
            // The axis may be longer than these types can count.
            index = self.dag.add(NodeOp::Cast(index), DType::I32);
        }
        index = self.dag.as_index(index);
        let (min, max) = self.dag.range(index);
        if let NodeOp::Index(e) = &self.dag.node(index).op
            && min >= 0
            && max < len as i64
        {
            *at = e.clone();
            return here.guards.to_vec();
        }
        if min < 0 || max >= len as i64 {
            let guards = here.guards.to_vec();
            let check =
                NodeOp::Check { index, extent: len, site: self.within.map_or(here.v, |w| w.0), at: place, guards };
            index = self.dag.add(check, self.dag.node(index).dtype);
            if (1..=i32::MAX as usize).contains(&len) {
                // What a wrong index reads is of no interest: reads of the nearest element need no masks.
                index = self.dag.add(NodeOp::Cast(index), DType::I32);
                for (op, bound) in [(BinaryOp::Max, 0), (BinaryOp::Min, len as i64 - 1)] {
                    let bound = self.dag.add(NodeOp::Const(Scalar::Int(bound)), DType::I32);
                    index = self.dag.add(NodeOp::Binary(op, index, bound), DType::I32);
                }
            }
        }
        *at = Expr::value(index, len);
        let (min, max) = self.dag.range_anywhere(index);
        if min >= 0 && max < len as i64 {
            return here.guards.to_vec();
        }
        joined(here.guards, &[Guard { expr: at.clone(), lo: 0, hi: len as i64 }])
    }
}
