//! Ops that move elements: each reads an element of an operand at another index.
use crate::scalar::dag::{Guard, NodeId, NodeOp};
use crate::scalar::expr::Expr;
use crate::scalar::resolve::guards::{Inside, inside_within, joined};
use crate::scalar::resolve::{ResolvePoint, Resolved, Resolver};
use kiln_graph::{DType, ValueId};

impl Resolver<'_> {
    pub(super) fn permuted(&mut self, x: ValueId, here: &ResolvePoint, perm: &[usize]) -> Resolved {
        let mut inner = vec![Expr::default(); perm.len()];
        perm.iter().zip(here.ix).for_each(|(&p, e)| inner[p] = e.clone());
        self.at(x, &inner, here.guards)
    }
    pub(super) fn flipped(&mut self, x: ValueId, here: &ResolvePoint, axes: &[usize]) -> Resolved {
        let mut inner = here.ix.to_vec();
        for &a in axes {
            inner[a] = inner[a].clone().scale(-1).shift(self.graph.shape(here.v)[a] as i64 - 1);
        }
        self.at(x, &inner, here.guards)
    }
    pub(super) fn pad(&mut self, args: &[ValueId], here: &ResolvePoint, lo: &[i64]) -> Resolved {
        let shape = self.graph.shape(args[0]).to_vec();
        let inner: Vec<Expr> = here.ix.iter().zip(lo).map(|(e, l)| e.clone().shift(-l)).collect();
        let bounds = inner.iter().zip(&shape).map(|(e, &d)| (e.clone(), 0, d as i64));
        match inside_within(here.guards, bounds) {
            Inside::Always => self.at(args[0], &inner, here.guards),
            Inside::Never => self.at(args[1], &[], here.guards),
            Inside::When(needed) => {
                let x = self.at(args[0], &inner, &joined(here.guards, &needed))?;
                let value = self.at(args[1], &[], here.guards)?;
                let dtype = self.graph.dtype(here.v);
                let c = self.dag.add(NodeOp::Inside(needed), DType::Bool);
                Ok(self.dag.add(NodeOp::Select(c, x, value), dtype))
            }
        }
    }

    pub(super) fn concat(&mut self, args: &[ValueId], here: &ResolvePoint, axis: usize) -> Resolved {
        let dtype = self.graph.dtype(here.v);
        let mut parts: Vec<(Vec<Guard>, NodeId)> = vec![];
        let mut start = 0i64;
        for &a in args {
            let len = self.graph.shape(a)[axis] as i64;
            let bound = (here.ix[axis].clone(), start, start + len);
            let offset = start;
            start += len;
            let needed = match inside_within(here.guards, [bound].into_iter()) {
                Inside::Never => continue,
                Inside::Always => vec![],
                Inside::When(needed) => needed,
            };
            let mut inner = here.ix.to_vec();
            // A part of one element has no index but 0.
            inner[axis] = if len == 1 { Expr::default() } else { inner[axis].clone().shift(-offset) };
            let x = self.at(a, &inner, &joined(here.guards, &needed))?;
            parts.push((needed, x));
        }
        let Some((_, mut value)) = parts.pop() else {
            return Ok(self.dag.number(dtype, 0.0));
        };
        for (needed, x) in parts.into_iter().rev() {
            // Parts are tested in order, so the upper bound alone decides.
            let needed = needed.into_iter().map(|g| Guard { lo: i64::MIN, ..g }).collect();
            let c = self.dag.add(NodeOp::Inside(needed), DType::Bool);
            value = self.dag.add(NodeOp::Select(c, x, value), dtype);
        }
        Ok(value)
    }
}
