//! Matmuls as reductions over the row, for vectors, small and integer matmuls.
use crate::scalar::dag::{Guard, NodeOp};
use crate::scalar::expr::Expr;
use crate::scalar::resolve::{ResolvePoint, Resolved, Resolver, broadcast_index, kept};
use kiln_graph::{BinaryOp, ReduceOp, ValueId};

impl Resolver<'_> {
    /// An element of a matmul's operand, in the type that the matmul multiplies in.
    fn factor(&mut self, v: ValueId, ix: &[Expr], guards: &[Guard]) -> Resolved {
        let (n, dtype) = (self.at(v, ix, guards)?, self.graph.dtype(v));
        Ok(if dtype.matmul() == dtype { n } else { self.dag.add(NodeOp::Cast(n), dtype.matmul()) })
    }
    /// The sum over `k` products of two operands at these indices.
    fn sum_of_products(
        &mut self,
        [x, y]: [ValueId; 2],
        [xi, yi]: [&[Expr]; 2],
        k: usize,
        here: &ResolvePoint,
    ) -> Resolved {
        let products = |r: &mut Self, guards: &[Guard]| {
            let (a, b) = (r.factor(x, xi, guards)?, r.factor(y, yi, guards)?);
            Ok(r.dag.binary(BinaryOp::Mul, a, b))
        };
        if k == 1 {
            return products(self, here.guards);
        }
        let body = self.body(&kept(here.ix, self.graph.shape(here.v), &[]), here.guards, products)?;
        self.reduced(ReduceOp::Sum, body, k)
    }
    /// A matmul as a reduction over the row (K): for vectors, small and integer matmuls.
    pub(super) fn dot(&mut self, args: &[ValueId], here: &ResolvePoint) -> Resolved {
        let (x, y) = (self.graph.shape(args[0]).to_vec(), self.graph.shape(args[1]).to_vec());
        let (batch, mn) = here.ix.split_at(here.ix.len() - 2);
        let k = x[x.len() - 1];
        if k == 0 {
            return Ok(self.dag.number(self.graph.dtype(here.v), 0.0));
        }
        let along = if k == 1 { Expr::default() } else { self.row_index(&[k])?[0].clone() };
        let mut xi = broadcast_index(batch, &x[..x.len() - 2]);
        xi.extend([mn[0].clone(), along.clone()]);
        let mut yi = broadcast_index(batch, &y[..y.len() - 2]);
        yi.extend([along, mn[1].clone()]);
        self.sum_of_products([args[0], args[1]], [&xi, &yi], k, here)
    }

    pub(super) fn linear(&mut self, args: &[ValueId], here: &ResolvePoint) -> Resolved {
        let k = self.graph.shape(args[1])[1];
        let (n, lead) = here.ix.split_last().ok_or_else(|| self.unsupported("a linear layer of rank 0"))?;
        let mut sum = if k == 0 {
            self.dag.number(self.graph.dtype(here.v), 0.0)
        } else {
            let along = if k == 1 { Expr::default() } else { self.row_index(&[k])?[0].clone() };
            let xi = [lead, std::slice::from_ref(&along)].concat();
            self.sum_of_products([args[0], args[1]], [&xi, &[n.clone(), along]], k, here)?
        };
        if let Some(&bias) = args.get(2) {
            let b = self.at(bias, std::slice::from_ref(n), here.guards)?;
            sum = self.dag.binary(BinaryOp::Add, sum, b);
        }
        Ok(sum)
    }
}
