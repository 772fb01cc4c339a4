//! Normalisations and softmax as scalar programs over the row, in their compute type.
use crate::LowerError;
use crate::dag::{Guard, NodeId};
use crate::expr::{Expr, delinear, linear};
use crate::resolve::{Here, Matmul, Resolved, Resolver, kept};
use kiln_graph::{BinaryOp, Op, ReduceOp, Scalar, UnaryOp, ValueId};

impl Resolver<'_> {
    pub(crate) fn composite(&mut self, op: &Op, args: &[ValueId], here: &Here) -> Resolved {
        let g = self.graph;
        match op {
            Op::Softmax { axis } | Op::LogSoftmax { axis } => {
                let len = g.shape(args[0])[*axis];
                let mut row = here.ix.to_vec();
                row[*axis] = self.row_of(len)?;
                let own = self.at(args[0], here.ix, here.guards)?;
                let other = self.other(args[0], &row, len, &kept(here.ix, g.shape(args[0]), &[*axis]), here.guards)?;
                self.softmax(own, other, len, matches!(op, Op::LogSoftmax { .. }))
            }
            Op::LayerNorm { axes, eps, .. } => {
                let shape = g.shape(args[0]);
                let (lead, last) = here.ix.split_at(shape.len() - axes);
                let along = self.row_index_or_one(&shape[lead.len()..])?;
                let row = [lead, &along].concat();
                let own = self.at(args[0], here.ix, here.guards)?;
                let len = shape[lead.len()..].iter().product();
                let other = self.other(args[0], &row, len, &kept(lead, shape, &[]), here.guards)?;
                let y = self.normalised(own, other, len, *eps)?;
                self.affine(y, &args[1..], last, here.guards)
            }
            Op::RmsNorm { eps } => {
                let len = *g.shape(args[0]).last().ok_or_else(|| self.unsupported("rms_norm of rank 0"))?;
                let last = here.ix.len() - 1;
                let mut row = here.ix.to_vec();
                row[last] = self.row_of(len)?;
                let own = self.at(args[0], here.ix, here.guards)?;
                let other = self.other(args[0], &row, len, &kept(here.ix, g.shape(args[0]), &[last]), here.guards)?;
                let square = self.dag.binary(BinaryOp::Mul, other, other);
                let mean = self.mean(square, len)?;
                let scale = self.rsqrt_of(mean, *eps);
                let y = self.dag.binary(BinaryOp::Mul, own, scale);
                let gain = self.at(args[1], &here.ix[last..], here.guards)?;
                Ok(self.dag.binary(BinaryOp::Mul, y, gain))
            }
            Op::GroupNorm { groups, eps, .. } => {
                let shape = g.shape(args[0]);
                let per = shape[1] / groups;
                let inner = [&[per], &shape[2..]].concat();
                let along = self.row_index_or_one(&inner)?;
                let group = here.ix[1].clone().div(per as i64);
                let kept = [(here.ix[0].clone(), shape[0]), (group.clone(), *groups)];
                let mut row = vec![here.ix[0].clone(), group.scale(per as i64).plus(&along[0])];
                row.extend_from_slice(&along[1..]);
                let own = self.at(args[0], here.ix, here.guards)?;
                let len = inner.iter().product();
                let other = self.other(args[0], &row, len, &kept, here.guards)?;
                let y = self.normalised(own, other, len, *eps)?;
                self.affine(y, &args[1..], &here.ix[1..2], here.guards)
            }
            Op::BatchNorm { eps } => {
                let channel = &here.ix[1..2];
                let x = self.at(args[0], here.ix, here.guards)?;
                let mean = self.at(args[3], channel, here.guards)?;
                let variance = self.at(args[4], channel, here.guards)?;
                let centred = self.dag.binary(BinaryOp::Sub, x, mean);
                let scale = self.rsqrt_of(variance, *eps);
                let y = self.dag.binary(BinaryOp::Mul, centred, scale);
                self.affine(y, &args[1..3], channel, here.guards)
            }
            _ => Err(self.unsupported("not a composite")),
        }
    }

    /// Whether the row is in the accumulators of a matmul.
    fn in_epilogue(&self) -> bool {
        matches!(self.matmul, Some((_, Matmul::Node)))
    }
    fn row_of(&self, len: usize) -> Result<Expr, LowerError> {
        Ok(self.row_index_or_one(&[len])?.swap_remove(0))
    }
    /// As `row_index`; rows of one element need no reduction space.
    fn row_index_or_one(&self, shape: &[usize]) -> Result<Vec<Expr>, LowerError> {
        if shape.iter().product::<usize>() == 1 {
            Ok(vec![Expr::default(); shape.len()])
        } else {
            self.row_index(shape)
        }
    }
    /// The element of the row at the reduction's coordinates; `kept` is the index of the row.
    fn other(&mut self, x: ValueId, ix: &[Expr], len: usize, kept: &[(Expr, usize)], guards: &[Guard]) -> Resolved {
        if len == 1 {
            return self.at(x, ix, guards);
        }
        self.body(kept, guards, |r, guards| r.at(x, ix, guards))
    }
    fn over_row(&mut self, op: ReduceOp, body: NodeId, len: usize) -> Resolved {
        if len == 1 { Ok(body) } else { self.reduced(op, body, len) }
    }
    fn mean(&mut self, body: NodeId, len: usize) -> Resolved {
        self.over_row(ReduceOp::Mean, body, len)
    }
    fn rsqrt_of(&mut self, x: NodeId, eps: Scalar) -> NodeId {
        let eps = self.dag.number(self.dag.node(x).dtype, eps.as_f64());
        let sum = self.dag.binary(BinaryOp::Add, x, eps);
        self.dag.unary(UnaryOp::Rsqrt, sum)
    }

    /// Softmax of `own`, an element of a row whose elements are `other`.
    pub(crate) fn softmax(&mut self, own: NodeId, other: NodeId, len: usize, log: bool) -> Resolved {
        let most = self.over_row(ReduceOp::Max, other, len)?;
        let shifted = self.dag.binary(BinaryOp::Sub, other, most);
        let term = self.dag.unary(UnaryOp::Exp, shifted);
        let sum = self.over_row(ReduceOp::Sum, term, len)?;
        let mine = self.dag.binary(BinaryOp::Sub, own, most);
        if log {
            let log = self.dag.unary(UnaryOp::Log, sum);
            return Ok(self.dag.binary(BinaryOp::Sub, mine, log));
        }
        let mine = self.dag.unary(UnaryOp::Exp, mine);
        if self.machine.arch.is_gpu() && !self.in_epilogue() {
            return Ok(self.dag.binary(BinaryOp::Div, mine, sum));
        }
        // One division per row: dividing every element takes as long as the exponentials, and in a matmul's epilogue
        // nothing hides that. The sum is at least 1.
        let one = self.dag.number(self.dag.node(sum).dtype, 1.0);
        let scale = self.dag.binary(BinaryOp::Div, one, sum);
        Ok(self.dag.binary(BinaryOp::Mul, mine, scale))
    }

    /// `(own - mean) · rsqrt(variance + eps)`, the variance from differences (not from squares, which cancel).
    fn normalised(&mut self, own: NodeId, other: NodeId, len: usize, eps: Scalar) -> Resolved {
        let mean = self.mean(other, len)?;
        let difference = self.dag.binary(BinaryOp::Sub, other, mean);
        let square = self.dag.binary(BinaryOp::Mul, difference, difference);
        let variance = self.mean(square, len)?;
        let scale = self.rsqrt_of(variance, eps);
        let centred = self.dag.binary(BinaryOp::Sub, own, mean);
        Ok(self.dag.binary(BinaryOp::Mul, centred, scale))
    }

    /// Gain and bias, if given.
    fn affine(&mut self, y: NodeId, gain_bias: &[ValueId], ix: &[Expr], guards: &[Guard]) -> Resolved {
        let [gain, bias] = gain_bias else { return Ok(y) };
        // Both are dense over the same axes.
        let shape = self.graph.shape(*gain).to_vec();
        let ix = delinear(&linear(ix, &shape), &shape);
        let (gain, bias) = (self.at(*gain, &ix, guards)?, self.at(*bias, &ix, guards)?);
        let y = self.dag.binary(BinaryOp::Mul, y, gain);
        Ok(self.dag.binary(BinaryOp::Add, y, bias))
    }
}
