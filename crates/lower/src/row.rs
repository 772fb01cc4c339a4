//! The row of reductions and scans: a coordinate that they bind, so that nothing around them may speak of it.
//!
//! Takes: what is reduced, and where its result is wanted. Gives: bodies, resolved at the row's coordinates and within guards of their own.
//! Never: guards that a body inherits. A pad, a concatenation or a slice assignment around a reduction says which of its *results* are
//! wanted; all of them are made of whole rows.
//!
//! In programs that are emitted all reductions share the row's coordinates with what is written along the row, so that elements are read
//! once. [`Row::apart`] gives each level of nesting coordinates of its own instead: then a body that depends on a row around it is seen.
use crate::LowerError;
use crate::dag::{Guard, NodeId, NodeOp};
use crate::expr::{CoordId, Expr, delinear};
use crate::resolve::{Here, Inside, Resolved, Resolver, inside, joined, kept};
use crate::space::Space;
use kiln_graph::{BinaryOp, ReduceOp, ScanOp, ValueId};

/// How a reduction's elements are counted: position in the row as an expression of the row's coordinates.
#[derive(Clone, Debug)]
pub struct Row {
    position: Expr,
    pub len: usize,
    /// The row's coordinates; none where what is kept is an expression of them too.
    ids: Vec<CoordId>,
    /// Reductions inside of others have coordinates of their own: for checks.
    apart: bool,
}

impl Row {
    /// The row of a space, at this position of it.
    pub fn of(space: &Space, position: &Expr, len: usize) -> Row {
        Row { position: position.clone(), len, ids: space.row_ids(), apart: space.apart }
    }
    /// A row that has a coordinate which nothing else uses.
    pub fn alone(position: Expr, len: usize) -> Row {
        let mut ids = vec![];
        position.coords(&mut |c| ids.push(c));
        Row { position, len, ids, apart: false }
    }
    /// A part of a coordinate that has several rows, one after the other.
    pub fn part_of(coord: &Expr, len: usize) -> Row {
        let position = coord.clone().rem(len as i64);
        let ids = position.as_coord().into_iter().collect();
        Row { position, len, ids, apart: false }
    }
    /// The position that reductions inside so many others are resolved at.
    fn at(&self, depth: u32) -> Expr {
        if !self.apart || depth == 0 {
            return self.position.clone();
        }
        self.position.renamed(&|id| if self.ids.contains(&id) { level(id, depth) } else { id })
    }
    fn has(&self, id: CoordId) -> bool {
        self.ids.contains(&if self.apart { id & (LEVEL - 1) } else { id })
    }
}

/// Ids of a space are less.
const LEVEL: CoordId = 1 << 20;
/// A row's coordinate for reductions inside so many others.
fn level(id: CoordId, depth: u32) -> CoordId {
    id | (LEVEL * depth)
}

impl Resolver<'_> {
    /// The row as the index along axes of these lengths, for a reduction that is resolved now. The first fixes the row's length.
    pub fn row_index(&self, shape: &[usize]) -> Result<Vec<Expr>, LowerError> {
        let len: usize = shape.iter().product();
        match &self.row {
            Some(row) if row.len == len => Ok(delinear(&row.at(self.depth + 1), shape)),
            Some(row) => Err(self.unsupported(format!("rows of {len} and of {} elements", row.len))),
            None => Err(self.unsupported("a reduction in a kernel without rows")),
        }
    }

    /// What is reduced or scanned: `f` resolves it, at the row's coordinates and within the guards that it is given. `kept` is the
    /// index of the result along axes of these lengths, wanted where `guards` hold.
    pub fn body<T>(
        &mut self,
        kept: &[(Expr, usize)],
        guards: &[Guard],
        f: impl FnOnce(&mut Self, &[Guard]) -> Result<T, LowerError>,
    ) -> Result<T, LowerError> {
        let guards = self.own_guards(kept, guards)?;
        self.depth += 1;
        let found = f(self, &guards);
        self.depth -= 1;
        found
    }

    /// Guards for a body: of those around it, the ones that keep its index inside, in terms of what is kept alone.
    fn own_guards(&self, kept: &[(Expr, usize)], guards: &[Guard]) -> Result<Vec<Guard>, LowerError> {
        let Some(row) = &self.row else { return Ok(guards.to_vec()) };
        let along = |ids: &[CoordId]| ids.iter().any(|id| row.has(*id));
        let mut used = vec![];
        for (e, _) in kept {
            self.depends(e, &mut used);
        }
        if along(&used) {
            return Err(self.unsupported("a reduction at a place that lies along another's row"));
        }
        if row.ids.is_empty() && !guards.is_empty() {
            return Err(self.unsupported("parts of rows that lie side by side"));
        }
        let mut own = vec![];
        let mut dropped = false;
        for g in guards {
            let mut of = vec![];
            self.depends(&g.expr, &mut of);
            let shared = of.iter().any(|id| used.contains(id));
            match along(&of) {
                false if shared => own.push(g.clone()),
                // What it says of the index is said by the index itself.
                true if shared => dropped = true,
                _ => {}
            }
        }
        if dropped && let Inside::When(more) = inside(kept.iter().map(|(e, n)| (e.clone(), 0, *n as i64))) {
            own = joined(&own, &more);
        }
        Ok(own)
    }

    /// Coordinates that an expression depends on, also by what it reads from memory.
    fn depends(&self, e: &Expr, of: &mut Vec<CoordId>) {
        e.coords(&mut |c| of.push(c));
        let mut read = vec![];
        e.nodes(&mut |n| read.push(n));
        of.extend(self.free(&read));
    }
    /// Coordinates that nodes depend on, but for those that reductions below them bind.
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

    /// Elements along the axis up to the one asked for.
    pub fn scan(&mut self, op: ScanOp, x: ValueId, axis: usize, here: &Here) -> Resolved {
        let (shape, dtype) = (self.graph.shape(x), self.graph.dtype(here.v));
        if shape[axis] == 1 {
            return self.at(x, here.ix, here.guards);
        }
        let kept = kept(here.ix, shape, &[axis]);
        let mut ix = here.ix.to_vec();
        if self.row.as_ref().is_some_and(|row| row.apart) {
            ix[axis] = self.row_index(&shape[axis..axis + 1])?.swap_remove(0);
        } else {
            self.scan_at.push(ix[axis].clone());
        }
        let body = self.body(&kept, here.guards, |r, guards| r.at(x, &ix, guards))?;
        self.closed(body)?;
        Ok(self.dag.add(NodeOp::Scan { op, body }, dtype))
    }

    /// A body over the row; the mean is a sum and a division.
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

    /// Checks that a body reads no coordinate of a row around its reduction or scan, where these are told apart.
    pub fn closed(&self, body: NodeId) -> Result<(), LowerError> {
        let Some(row) = self.row.as_ref().filter(|row| row.apart) else { return Ok(()) };
        let binds = |n: NodeId| matches!(self.dag.node(n).op, NodeOp::Reduce { .. } | NodeOp::Scan { .. });
        let mut around = false;
        for n in self.dag.reach_until(&[body], binds).into_iter().filter(|n| !binds(*n)) {
            let own = |c: CoordId| c / LEVEL == self.depth + 1;
            self.dag.node(n).exprs(&mut |e| e.coords(&mut |c| around |= row.has(c) && !own(c)));
        }
        if around {
            return Err(self.invariant("what a reduction reads depends on a row around it"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::composite::Decomposed;
    use crate::resolve::Body;
    use kiln_graph::Graph;
    use kiln_machine::Arch;
    use kiln_plan::{Precision, Rounding};

    /// Rows of 8, and a guard that lets half of the elements written along them through.
    fn reduced(apart: bool, inherit: bool) -> Result<(), LowerError> {
        let graph: Graph = "graph k(%x: f32[4,8]) { %y = neg %x\n return %y }".parse().unwrap();
        let body = Body {
            name: "k",
            graph: &graph,
            decomposed: &Decomposed::default(),
            matmul: None,
            dual: None,
            machine: &kiln_plan::Hardware { machine: Arch::Cpu.machine(), contract: kiln_plan::Contract::default() },
            precision: Precision::Exact,
            rounding: Rounding::AtStores,
            template: None,
        };
        let space = Space::new(&[4, 8], &[false, true]);
        let space = if apart { space.apart() } else { space };
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
        // Told apart by nothing, the guard would be one of the body's own.
        assert!(reduced(false, true).is_ok());
        for apart in [false, true] {
            assert!(reduced(apart, false).is_ok());
        }
    }
}
