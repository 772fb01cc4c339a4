//! The row of reductions and scans: coordinates that they bind, so that nothing outside of a reduction may refer to
//! them.
//!
//! Takes: an operand that is reduced, and the index and guards of the result. Gives: the reduction's body, resolved at
//! the row's coordinates and within guards of its own.
//! Never passes the guards of the result on to the body. A pad, a concatenation or a slice assignment around a
//! reduction says which *results* are needed; each of them is a reduction of the whole row.
//!
//! In emitted programs all reductions share the row's coordinates with the stores along the row, so that elements are
//! read once. With [`crate::scalar::row::Row`] each level of nesting has coordinates of its own instead: a second
//! resolution checks with these that no body depends on the row of an enclosing reduction.
use crate::error::LowerError;
use crate::scalar::dag::{Guard, NodeId, NodeOp};
use crate::scalar::expr::{CoordId, Expr, delinear_unbounded};
use crate::scalar::resolve::guards::{Inside, inside, joined};
use crate::scalar::resolve::{ResolvePoint, Resolved, Resolver, kept};
use crate::scalar::row::LEVEL;
use kiln_graph::{BinaryOp, ReduceOp, ScanOp, ValueId};

impl Resolver<'_> {
    /// The row's position as an index along axes of these lengths, for the reduction being resolved. Their product must
    /// be the row's length.
    pub fn row_index(&self, shape: &[usize]) -> Result<Vec<Expr>, LowerError> {
        let len: usize = shape.iter().product();
        match &self.row {
            // Where a row is rounded up, what is beyond it is masked.
            Some(row) if row.len == len => Ok(delinear_unbounded(&row.at(self.depth + 1), shape)),
            Some(row) => Err(self.unsupported(format!("reductions over rows of {len} and of {} elements", row.len))),
            None => Err(self.unsupported("a reduction in a kernel without rows")),
        }
    }

    /// Resolves the operand of a reduction or scan with `f`, at the row's coordinates and within the guards that `f` is
    /// given. `kept`: index and length along each axis of the result, which is needed where `guards` hold.
    pub fn body<T>(
        &mut self,
        kept: &[(Expr, usize)],
        guards: &[Guard],
        f: impl FnOnce(&mut Self, &[Guard]) -> Result<T, LowerError>,
    ) -> Result<T, LowerError> {
        let guards = self.guards_of_body(kept, guards)?;
        self.depth += 1;
        let found = f(self, &guards);
        self.depth -= 1;
        found
    }

    /// Guards for a body: those of the result that bound the body's index and depend on kept coordinates alone.
    fn guards_of_body(&self, kept: &[(Expr, usize)], guards: &[Guard]) -> Result<Vec<Guard>, LowerError> {
        let Some(row) = &self.row else { return Ok(guards.to_vec()) };
        let along = |ids: &[CoordId]| ids.iter().any(|id| row.has(*id));
        let mut used = vec![];
        for (e, _) in kept {
            self.depends(e, &mut used);
        }
        if along(&used) {
            return Err(self.unsupported("a nested reduction whose index depends on the row of an enclosing one"));
        }
        if row.ids.is_empty() && !guards.is_empty() {
            return Err(self.unsupported("a guarded reduction of rows that are parts of one axis"));
        }
        let mut needed = vec![];
        let mut dropped = false;
        for g in guards {
            let mut coords = vec![];
            self.depends(&g.expr, &mut coords);
            let shared = coords.iter().any(|id| used.contains(id));
            match along(&coords) {
                false if shared => needed.push(g.clone()),
                // Replaced below by bounds on the index itself.
                true if shared => dropped = true,
                _ => {}
            }
        }
        if dropped && let Inside::When(more) = inside(kept.iter().map(|(e, n)| (e.clone(), 0, *n as i64))) {
            needed = joined(&needed, &more);
        }
        Ok(needed)
    }

    /// Coordinates that an expression depends on, directly or through indices read from memory.
    fn depends(&self, e: &Expr, of: &mut Vec<CoordId>) {
        e.coords(&mut |c| of.push(c));
        let mut read = vec![];
        e.nodes(&mut |n| read.push(n));
        of.extend(self.free(&read));
    }
    /// Coordinates that nodes depend on, without those that reductions below them bind.
    fn free(&self, nodes: &[NodeId]) -> Vec<CoordId> {
        if nodes.is_empty() {
            return vec![];
        }
        let bound = |id: CoordId| self.row.as_ref().is_some_and(|row| row.has(id));
        let reduces = |n: NodeId| matches!(self.dag.node(n).op, NodeOp::Reduce { .. });
        let mut found = vec![];
        for n in self.dag.reach_until(nodes, reduces) {
            if reduces(n) {
                let below = self.dag.reach(&[n]).into_iter();
                below.for_each(|m| {
                    self.dag.node(m).exprs(&mut |e| e.coords(&mut |c| found.extend((!bound(c)).then_some(c))))
                });
            }
            self.dag.node(n).exprs(&mut |e| e.coords(&mut |c| found.push(c)));
        }
        found
    }

    /// An inclusive scan along an axis, at the element being resolved.
    pub fn scan(&mut self, op: ScanOp, x: ValueId, axis: usize, here: &ResolvePoint) -> Resolved {
        let (shape, dtype) = (self.graph.shape(x), self.graph.dtype(here.v));
        if shape[axis] == 1 {
            return self.at(x, here.ix, here.guards);
        }
        let kept = kept(here.ix, shape, &[axis]);
        let mut ix = here.ix.to_vec();
        if self.row.as_ref().is_some_and(|row| row.has_distinct_inner_rows) {
            ix[axis] = self.row_index(&shape[axis..axis + 1])?.swap_remove(0);
        } else {
            self.scan_at.push(ix[axis].clone());
        }
        let body = self.body(&kept, here.guards, |r, guards| r.at(x, &ix, guards))?;
        self.closed(body)?;
        Ok(self.dag.add(NodeOp::Scan { op, body }, dtype))
    }

    /// Reduces a body over the row; a mean is a sum and a division.
    pub fn reduced(&mut self, op: ReduceOp, body: NodeId, len: usize) -> Resolved {
        let sum = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        self.closed(body)?;
        let sum = self.dag.reduce(sum, body);
        if op != ReduceOp::Mean {
            return Ok(sum);
        }
        let n = self.dag.number(self.dag.node(sum).dtype, len as f64);
        Ok(self.dag.binary(BinaryOp::Div, sum, n))
    }

    /// Checks that a body reads no row coordinate of an enclosing reduction or scan, where levels have coordinates of
    /// their own.
    pub fn closed(&self, body: NodeId) -> Result<(), LowerError> {
        let Some(row) = self.row.as_ref().filter(|row| row.has_distinct_inner_rows) else { return Ok(()) };
        let binds = |n: NodeId| matches!(self.dag.node(n).op, NodeOp::Reduce { .. } | NodeOp::Scan { .. });
        let mut around = false;
        for n in self.dag.reach_until(&[body], binds).into_iter().filter(|n| !binds(*n)) {
            let is_inner = |c: CoordId| c / LEVEL == self.depth + 1;
            self.dag.node(n).exprs(&mut |e| e.coords(&mut |c| around |= row.has(c) && !is_inner(c)));
        }
        if around {
            return Err(self.invariant("the operand of a reduction depends on the row of an enclosing reduction"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::composite::Decomposed;
    use crate::scalar::resolve::Body;
    use crate::scalar::row::Row;
    use crate::scalar::space::Space;
    use kiln_graph::Graph;
    use kiln_plan::Rounding;

    /// Reduces rows of 8 under a guard that holds for half of the elements stored along them.
    fn reduced(distinct_inner_rows: bool, inherit: bool) -> Result<(), LowerError> {
        let graph: Graph = "graph k(%x: f32[4,8]) { %y = neg %x\n return %y }".parse().unwrap();
        let body = Body {
            name: "k",
            graph: &graph,
            decomposed: &Decomposed::default(),
            matmul: None,
            second_output: None,
            rounding: Rounding::AtStores,
        };
        let space = Space::new(&[4, 8], &[false, true]);
        let space = if distinct_inner_rows { space.with_distinct_inner_rows() } else { space };
        let [i, j] = [0, 1].map(|axis: usize| space.axes[axis].clone());
        let mut r = body.resolver();
        r.row = Some(Row::of(&space, &j, 8));
        let guards = [Guard { expr: j, lo: 0, hi: 4 }];
        let along = r.row_index(&[8])?.swap_remove(0);
        let (x, ix) = (graph.inputs[0], [i.clone(), along]);
        let body = if inherit {
            r.at(x, &ix, &guards)?
        } else {
            r.body(&[(i, 4)], &guards, |r, guards| r.at(x, &ix, guards))?
        };
        r.reduced(ReduceOp::Sum, body, 8).map(|_| ())
    }

    #[test]
    fn a_body_that_inherits_guards_is_found() {
        assert!(matches!(reduced(true, true), Err(LowerError::Invariant { .. })));
        // Without separate coordinates the inherited guard cannot be distinguished from one of the body's own.
        assert!(reduced(false, true).is_ok());
        for distinct_inner_rows in [false, true] {
            assert!(reduced(distinct_inner_rows, false).is_ok());
        }
    }
}
