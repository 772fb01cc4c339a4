//! The matmul that a body is built around: read from the accumulators of its program, or from memory.
use crate::scalar::dag::{NodeId, NodeOp};
use crate::scalar::expr::{Expr, linear};
use crate::scalar::resolve::{LOG_SUM_EXP, MatmulSource, ResolvePoint, Resolved, Resolver};
use kiln_graph::{BinaryOp, CompareOp, DType, FullyMasked, Op, UnaryOp};
use kiln_plan::exec::Slot;

impl Resolver<'_> {
    /// The matmul's result with its bias. `before`: the number of matmuls whose columns come before its own.
    pub(super) fn finished_matmul(&mut self, matmul: MatmulSource, here: &ResolvePoint, before: i64) -> Resolved {
        let dtype = self.graph.dtype(here.v);
        let value = match matmul {
            MatmulSource::Node if matches!(self.graph.op(here.v), Op::Attention { lse: true, .. }) => {
                let mut at = here.ix.to_vec();
                if let Some(column) = at.last_mut() {
                    *column = Expr::default().shift(LOG_SUM_EXP);
                }
                self.dag.add(NodeOp::Anchor { at }, dtype)
            }
            MatmulSource::Node => {
                let mut at = here.ix.to_vec();
                if let (Some(column), Some(n)) = (at.last_mut(), self.graph.shape(here.v).last()) {
                    *column = column.clone().shift(before * *n as i64);
                }
                self.dag.add(NodeOp::Anchor { at }, dtype)
            }
            MatmulSource::Zero => self.dag.number(dtype, 0.0),
            MatmulSource::At(slot, stored) => self.load(here.v, slot, stored, here.ix, here.guards),
            MatmulSource::Parts { slot, dtype, count } => self.sum_of_parts(slot, dtype, count, here),
            MatmulSource::KeyParts { scratch, count } => self.joined_parts(scratch, count, here),
        };
        self.biased(value, here)
    }
    /// Adds the bias operand of a linear layer or convolution.
    fn biased(&mut self, value: NodeId, here: &ResolvePoint) -> Resolved {
        let args = self.graph.args(here.v);
        let axis = match self.graph.op(here.v) {
            Op::Linear => here.ix.len() - 1,
            Op::Conv { .. } => 1,
            _ => return Ok(value),
        };
        match args.get(2) {
            Some(&bias) => {
                let b = self.at(bias, &here.ix[axis..axis + 1], here.guards)?;
                Ok(self.dag.binary(BinaryOp::Add, value, b))
            }
            None => Ok(value),
        }
    }

    /// Sums split-K slices in order, so that results are the same from run to run.
    fn sum_of_parts(&mut self, slot: Slot, dtype: DType, count: usize, here: &ResolvePoint) -> NodeId {
        let at = linear(here.ix, self.graph.shape(here.v));
        let size = self.graph.ty(here.v).count();
        let mut sum = None;
        for part in 0..count {
            let at = at.clone().shift((part * size) as i64);
            let one = self.dag.add(NodeOp::Load { slot, at, guards: here.guards.to_vec() }, dtype);
            sum = Some(sum.map_or(one, |s| self.dag.binary(BinaryOp::Add, s, one)));
        }
        sum.unwrap_or_else(|| self.dag.number(dtype, 0.0))
    }

    /// Combines attention over slices of the keys, in order, or the logarithms of their sums of exponentials.
    fn joined_parts(&mut self, scratch: u32, count: usize, here: &ResolvePoint) -> NodeId {
        let shape = self.graph.shape(here.v);
        let (whole, lead) = (linear(here.ix, shape), shape.len() - 1);
        let row = linear(&here.ix[..lead], &shape[..lead]);
        let (size, rows) = (shape.iter().product(), shape[..lead].iter().product());
        let guards = here.guards;
        let dag = &mut self.dag;
        let mut load = |buffer: u32, at: &Expr, size: usize| -> Vec<NodeId> {
            let at = (0..count).map(|part| at.clone().shift((part * size) as i64));
            let slot = Slot::Scratch(scratch + buffer);
            at.map(|at| dag.add(NodeOp::Load { slot, at, guards: guards.to_vec() }, DType::F32)).collect()
        };
        let lse = matches!(self.graph.op(here.v), Op::Attention { lse: true, .. });
        let (maxima, weights) = (load(1, &row, rows), load(2, &row, rows));
        let values = if lse { vec![] } else { load(0, &whole, size) };
        let maximum = maxima[1..].iter().fold(maxima[0], |a, b| dag.binary(BinaryOp::Max, a, *b));
        let lowest = dag.number(DType::F32, f64::NEG_INFINITY);
        let (zero, one) = (dag.number(DType::F32, 0.0), dag.number(DType::F32, 1.0));
        // Where all keys are masked, the maximum is minus infinity, which must not be subtracted from itself.
        let nothing = dag.add(NodeOp::Compare(CompareOp::Eq, maximum, lowest), DType::Bool);
        let maximum = dag.add(NodeOp::Select(nothing, zero, maximum), DType::F32);
        let [mut sum, mut all] = [zero; 2];
        for (part, (of_part, weight)) in maxima.into_iter().zip(weights).enumerate() {
            let below = dag.binary(BinaryOp::Sub, of_part, maximum);
            let factor = dag.unary(UnaryOp::Exp, below);
            if let Some(&value) = values.get(part) {
                let value = dag.binary(BinaryOp::Mul, factor, value);
                sum = dag.binary(BinaryOp::Add, sum, value);
            }
            let weight = dag.binary(BinaryOp::Mul, factor, weight);
            all = dag.binary(BinaryOp::Add, all, weight);
        }
        if lse {
            let log = dag.unary(UnaryOp::Log, all);
            let log = dag.binary(BinaryOp::Add, maximum, log);
            // As PyTorch's, which subtracts no infinity.
            let infinity = dag.number(DType::F32, f64::INFINITY);
            let infinite = dag.add(NodeOp::Compare(CompareOp::Eq, maximum, infinity), DType::Bool);
            return dag.add(NodeOp::Select(infinite, maximum, log), DType::F32);
        }
        // Where all keys are masked, both sums are zero, and their quotient is NaN.
        if !matches!(self.graph.op(here.v), Op::Attention { fully_masked: FullyMasked::Nan, .. }) {
            let empty = dag.add(NodeOp::Compare(CompareOp::Eq, all, zero), DType::Bool);
            all = dag.add(NodeOp::Select(empty, one, all), DType::F32);
        }
        dag.binary(BinaryOp::Div, sum, all)
    }
}
