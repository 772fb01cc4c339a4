//! Operands of a matmul or of attention that the kernel computes, which some forms can.
use super::{CheckedRegion, OF_SCORES, Reject};
use crate::dag::Dag;
use kiln_graph::ops::Class;
use kiln_graph::{BinaryOp, Op};
use kiln_plan::form::{FormNeeds, MAX_ROWS_OF_SUMS};
use std::collections::BTreeSet;

impl CheckedRegion<'_> {
    /// Checks that some form of the anchor computes this operand where it reads it.
    pub(super) fn prologue(&mut self, v: usize) -> Result<(), Reject> {
        let class = self.dag.class[v];
        let computed = match class {
            Class::Generator => Err(Reject::AnchorNeedsStoredOperands),
            Class::Pointwise => Err(Reject::ArithmeticBeforeMatmul),
            c if c.is_anchor() => return Err(Reject::TwoAnchors),
            Class::Reduce | Class::ArgReduce | Class::Row => return Err(Reject::RowReductionBeforeMatmul),
            _ => return Err(Reject::ArithmeticBeforeMatmul),
        };
        let Some(anchor) = self.anchor else { return computed };
        let forms = &self.dag.nodes[anchor].value.forms;
        let computes = |computed| forms.iter().any(|form| form.can_fuse(FormNeeds { computed, ..self.price.needs }));
        // Of which operand it is part is known once all are.
        let has_form = computes([true, false]) || computes([false, true]);
        let fits = match self.dag.class[anchor] {
            Class::Attention => {
                let dequantised = class == Class::Generator || dequantises(self.dag.op(v));
                self.reads_once && dequantised && (has_form || forms.is_empty())
            }
            // Sums along rows compute operands where they read them; other forms store them by a launch, which may as
            // well be a kernel. Which is cheaper depends on the number of rows.
            Class::Matmul => {
                let (rows, columns) = sides(self.dag, anchor);
                has_form && rows.min(columns) <= MAX_ROWS_OF_SUMS && !self.machine.contract.batch_invariant
            }
            _ => false,
        };
        if fits { Ok(()) } else { computed }
    }
    /// Whether the left and the right operand of what the region multiplies are computed by it.
    pub(super) fn computed_operands(&self) -> [bool; 2] {
        let (dag, members) = (self.dag, self.members);
        let is_member = |v: &usize| members.binary_search(v).is_ok();
        let multiplies = |v: &&usize| matches!(dag.class[**v], Class::Matmul | Class::Attention);
        [0, 1].map(|side| {
            let operands = |v: &usize| match (side, dag.class[*v]) {
                (0, _) => &dag.args(*v)[..1],
                (_, Class::Attention) => &dag.args(*v)[1..OF_SCORES],
                _ => &dag.args(*v)[1..2],
            };
            let mut todo: Vec<usize> = members.iter().filter(multiplies).flat_map(operands).copied().collect();
            let mut seen = BTreeSet::new();
            while let Some(v) = todo.pop() {
                if is_member(&v) && seen.insert(v) {
                    todo.extend(dag.args(v));
                }
            }
            seen.into_iter().any(|v| !matches!(dag.class[v], Class::Leaf | Class::View))
        })
    }
}

/// Arithmetic that dequantises. Of zeros, which are what is read outside of an operand, it makes no infinity.
pub(super) fn dequantises(op: &Op) -> bool {
    matches!(op, Op::Cast(_) | Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul))
}

/// Rows and columns of a matmul's result.
pub(super) fn sides(dag: &Dag, matmul: usize) -> (usize, usize) {
    // Invariant: inference gives a result of `dot` at least two axes, and one of `linear` at least one.
    let shape = dag.shape(matmul);
    let (lead, columns) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
    let rows = if *dag.op(matmul) == Op::Dot { lead[lead.len() - 1] } else { lead.iter().product() };
    (rows, columns)
}
