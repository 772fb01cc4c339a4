//! Composites as scalar programs: an element of a composite is an element of the graph that it decomposes into
//! ([`kiln_graph::decompose`]), whose inputs are the composite's operands.
//!
//! Takes: a body with composites. Gives: nodes of the body's scalar program, in the type the decomposition computes in;
//! rounding to the composite's own type is left to whoever stores or casts it, as for any other op. Never: a formula of
//! its own, but for softmax, whose division has a cheaper form in a GEMM's epilogue and on the host.
use crate::scalar::dag::NodeId;
use crate::scalar::resolve::{ResolvePoint, Resolved, Resolver, kept};
use kiln_graph::{BinaryOp, Graph, Op, ReduceOp, UnaryOp, ValueId};

impl<'a> Resolver<'a> {
    /// An element of a composite, by its decomposition.
    pub(crate) fn composite(&mut self, here: &ResolvePoint) -> Resolved {
        let decomposed = self.decomposed;
        let part = match decomposed.get(here.v) {
            Some(part) if self.within.is_none() => part,
            _ => return Err(self.invariant(format!("{} without its decomposition", self.graph.op(here.v).name()))),
        };
        let out = part.outputs.first().copied().ok_or_else(|| self.invariant("a decomposition without a result"))?;
        // The last cast is the rounding of the composite's value.
        let out = match part.op(out) {
            Op::Cast(to) if to.compute() != *to => part.args(out)[0],
            _ => out,
        };
        let body = std::mem::replace(&mut self.graph, part);
        self.within = Some((here.v, body));
        let value = self.at(out, here.ix, here.guards);
        (self.graph, self.within) = (body, None);
        value
    }
    /// An operand of the composite that is being taken apart.
    pub(crate) fn operand(
        &mut self,
        input: usize,
        (composite, body): (ValueId, &'a Graph),
        here: &ResolvePoint,
    ) -> Resolved {
        let part = std::mem::replace(&mut self.graph, body);
        self.within = None;
        let value = self.at(body.args(composite)[input], here.ix, here.guards);
        (self.graph, self.within) = (part, Some((composite, body)));
        value
    }

    pub(crate) fn softmax_along(&mut self, x: ValueId, axis: usize, here: &ResolvePoint) -> Resolved {
        let shape = self.graph.shape(x);
        let len = shape[axis];
        let element = self.at(x, here.ix, here.guards)?;
        if len == 1 {
            return self.softmax(element, element, len);
        }
        let mut row = here.ix.to_vec();
        row[axis] = self.row_index(&[len])?.swap_remove(0);
        let other = self.body(&kept(here.ix, shape, &[axis]), here.guards, |r, guards| r.at(x, &row, guards))?;
        self.softmax(element, other, len)
    }
    /// Softmax of `element`, one of a row whose elements are `other`.
    pub(crate) fn softmax(&mut self, element: NodeId, other: NodeId, len: usize) -> Resolved {
        let over_row = |r: &mut Self, op, body| if len == 1 { Ok(body) } else { r.reduced(op, body, len) };
        let maximum = over_row(self, ReduceOp::Max, other)?;
        let difference = self.dag.binary(BinaryOp::Sub, other, maximum);
        let term = self.dag.unary(UnaryOp::Exp, difference);
        let sum = over_row(self, ReduceOp::Sum, term)?;
        let weight = self.dag.binary(BinaryOp::Sub, element, maximum);
        let weight = self.dag.unary(UnaryOp::Exp, weight);
        // One division a row: a vector of them takes as long as an exponential. The sum is at least 1.
        let one = self.dag.number(self.dag.node(sum).dtype, 1.0);
        let scale = self.dag.binary(BinaryOp::Div, one, sum);
        Ok(self.dag.binary(BinaryOp::Mul, weight, scale))
    }
}
