//! Reductions over axes of a value.
use crate::scalar::dag::NodeOp;
use crate::scalar::expr::Expr;
use crate::scalar::resolve::{ResolvePoint, Resolved, Resolver, kept};
use kiln_graph::{DType, ReduceOp, Scalar, ValueId};

impl Resolver<'_> {
    pub fn reduce(&mut self, op: ReduceOp, x: ValueId, axes: &[usize], here: &ResolvePoint) -> Resolved {
        let shape: Vec<usize> = axes.iter().map(|&a| self.graph.shape(x)[a]).collect();
        let len: usize = shape.iter().product();
        let mut ix = here.ix.to_vec();
        if len == 1 {
            axes.iter().for_each(|&a| ix[a] = Expr::default());
            if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
                return Ok(self.dag.number(DType::I64, 0.0));
            }
            return self.at(x, &ix, here.guards);
        }
        if len == 0 {
            let dtype = self.graph.dtype(here.v);
            return Ok(match op {
                ReduceOp::Any | ReduceOp::All => {
                    self.dag.add(NodeOp::Const(Scalar::Bool(op == ReduceOp::All)), DType::Bool)
                }
                ReduceOp::Mean => self.dag.number(dtype, f64::NAN),
                ReduceOp::Prod => self.dag.number(dtype, 1.0),
                _ => self.dag.number(dtype, 0.0),
            });
        }
        let mut order: Vec<usize> = (0..axes.len()).collect();
        order.sort_by_key(|&i| axes[i]);
        let sorted: Vec<usize> = order.iter().map(|&i| shape[i]).collect();
        for (&i, e) in order.iter().zip(self.row_index(&sorted)?) {
            ix[axes[i]] = e;
        }
        let kept = kept(here.ix, self.graph.shape(x), axes);
        let mut body = self.body(&kept, here.guards, |r, guards| r.at(x, &ix, guards))?;
        if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) && self.dag.node(body).dtype == DType::Bool {
            body = self.dag.add(NodeOp::Cast(body), DType::I32);
        }
        self.reduced(op, body, len)
    }
}
