//! The machine that a plan is made for, and the contract that it is made under: what planning and lowering choose by.
use crate::{Contract, Precision};
use kiln_graph::{DType, Op};
use kiln_machine::Machine;

/// A machine under a contract. Facts of the machine are read through it.
#[derive(Clone, Copy, Debug)]
pub struct Hardware<'a> {
    pub machine: &'a Machine,
    pub contract: Contract,
}

impl std::ops::Deref for Hardware<'_> {
    type Target = Machine;
    fn deref(&self) -> &Machine {
        self.machine
    }
}

impl Hardware<'_> {
    /// The number of rows, or of blocks that have some, by which the order of a sum is chosen: under a batch-invariant contract as
    /// many as keep any machine busy, however many there are.
    pub fn counted(&self, rows: usize) -> usize {
        const MANY: usize = 1 << 24;
        if self.contract.batch_invariant { MANY } else { rows }
    }
    /// How a matmul or a convolution of f32 is made, and its flops per second.
    pub fn f32_matmul(&self, op: &Op) -> (Precision, f64) {
        // A transposed one is lowered as a matmul.
        let asked = if matches!(op, Op::Conv { transposed: false, .. }) {
            self.contract.conv()
        } else {
            self.contract.matmul()
        };
        let rate = match asked {
            Precision::Exact => None,
            Precision::Tf32x3 => self.rates.tf32x3,
            Precision::Tf32 => self.rates.tf32,
        };
        rate.map_or((Precision::Exact, self.matrix_rate(DType::F32.name())), |rate| (asked, rate))
    }
}
