//! The machine that a plan is made for together with the contract that it is made under: the basis of all choices of
//! planning and lowering.
use crate::{Contract, Precision};
use kiln_graph::{DType, Op};
use kiln_machine::Machine;

/// A machine under a contract; dereferences to the machine.
#[derive(Clone, Copy, Debug)]
pub struct Hardware<'a> {
    /// The machine that the plan is for.
    pub machine: &'a Machine,
    /// How results may differ from the graph as written.
    pub contract: Contract,
}

impl std::ops::Deref for Hardware<'_> {
    type Target = Machine;
    fn deref(&self) -> &Machine {
        self.machine
    }
}

impl Hardware<'_> {
    /// The number to use where the order of a sum is chosen by a number of rows, or of blocks of rows: `rows` itself,
    /// but under a batch-invariant contract a constant that is large enough to keep any machine busy.
    pub fn counted(&self, rows: usize) -> usize {
        const MANY: usize = 1 << 24;
        if self.contract.batch_invariant { MANY } else { rows }
    }
    /// The precision in which an f32 matmul or convolution is computed, and its flops per second.
    pub fn f32_matmul(&self, op: &Op) -> (Precision, f64) {
        let allowed = if matches!(op, Op::Conv { .. }) { self.contract.conv() } else { self.contract.matmul() };
        let rate = match allowed {
            Precision::Exact => None,
            Precision::Tf32x3 => self.rates.tf32x3,
            Precision::Tf32 => self.rates.tf32,
        };
        rate.map_or((Precision::Exact, self.matrix_rate(DType::F32.name())), |rate| (allowed, rate))
    }
}
