//! A matmul as lowering sees it: sizes, operands as functions of an index, where its result goes, and what surrounds
//! it.
use crate::nest::lowering::Lowering;
use crate::scalar::epilogue_map::Lattice;
use crate::scalar::expr::Expr;
use crate::scalar::resolve::{Body, MatmulSource, Resolved, Resolver};
use kiln_block::Terms;
use kiln_graph::{DType, ValueId};
use kiln_plan::{Hardware, Precision};

/// An operand at an index.
pub type OperandAt<'a> = &'a dyn Fn(&mut Resolver, &[Expr]) -> Resolved;

/// A batched matmul; operands are resolved at (batch…, m, k) and (batch…, k, n).
pub struct Matmul<'a> {
    pub v: ValueId,
    /// The machine whose cost model chooses the schedule.
    pub machine: &'a Hardware<'a>,
    pub batch: Vec<usize>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Split-K: the full K, where `k` is that of a slice and the first axis of the batch counts slices.
    pub full_k: Option<usize>,
    /// Implicit GEMM: the array of the right operand, where K runs along two of its axes.
    pub run: Option<Run>,
    pub a: OperandAt<'a>,
    pub b: OperandAt<'a>,
    /// (batch…, m, n) from an index of the value.
    pub place: &'a dyn Fn(&[Expr]) -> Vec<Expr>,
    /// Which positions of the value it computes: all of them, or those of a lattice.
    pub lattice: &'a [Lattice],
    /// Bytes of the sectors that stores of the result touch, for each byte that they write.
    pub sectors: f64,
    /// Dual GEMM: a second right operand with as many columns, which come after those of the first.
    pub dual: Option<Dual<'a>>,
    /// How f32 is multiplied.
    pub precision: Precision,
    /// In tf32, operands are rounded to nearest, as in cuDNN, and not truncated by tensor cores.
    pub nearest: bool,
    /// The left operand is rounded to tf32 on its way to the tensor cores, in registers.
    pub rounded: bool,
    /// The result is stored with its rows contiguous, not its columns: operands are swapped.
    pub transposed: bool,
    /// 3xTF32: the low parts of the operands; `a` and `b` are then the high parts.
    pub low: Option<[OperandAt<'a>; 2]>,
    /// The terms of the sum: products, or functions of differences.
    pub terms: Terms,
    /// Length of the rows that the epilogue reduces. It can do so in a tile that has all columns, or in tiles as wide
    /// as a head.
    pub row: Option<usize>,
    /// Arithmetic of the epilogue: [`Op::weight`](kiln_graph::Op::weight) of every element outside of the matmul,
    /// whichever step computes it.
    pub epilogue_ops: f64,
    /// Bytes that the epilogue reads and writes beside the result.
    pub epilogue_bytes: f64,
}

/// Bytes that the epilogue reads and writes: those of the kernel, where the planner counted them, without the operands
/// of its matmuls and a result of their size.
pub fn epilogue_bytes(kernel: &Lowering, v: ValueId) -> f64 {
    let g = kernel.graph;
    let mut operands: Vec<ValueId> = g.values().filter(|u| g.op(*u) == g.op(v)).flat_map(|u| g.args(u)).collect();
    operands.sort_unstable();
    operands.dedup();
    let matmul_bytes: usize = operands.into_iter().chain([v]).map(|v| g.ty(v).bytes()).sum();
    kernel.bytes.saturating_sub(matmul_bytes as u64) as f64
}

/// Type of a matmul's operands.
pub fn operand_dtype(kernel: &Lowering, v: ValueId) -> DType {
    kernel.graph.args(v).first().map_or(DType::F32, |a| kernel.graph.dtype(*a))
}

/// Arithmetic of the epilogue: that of a kernel outside of its matmul.
pub fn epilogue_ops(kernel: &Lowering, v: ValueId) -> f64 {
    let g = kernel.graph;
    g.values().filter(|&u| u != v).map(|u| g.op(u).weight() * g.ty(u).count() as f64).sum()
}

/// Precision of a matmul: the plan's for f32 operands.
pub fn precision(kernel: &Lowering, v: ValueId) -> Precision {
    if operand_dtype(kernel, v) == DType::F32 { kernel.precision } else { Precision::Exact }
}

/// The second right operand of a dual GEMM.
#[derive(Clone, Copy)]
pub struct Dual<'a> {
    pub b: OperandAt<'a>,
    /// The second matmul; absent if this is the other half of the first one's columns.
    pub v: Option<ValueId>,
}

impl Matmul<'_> {
    /// The matmul with its operands swapped, which computes the transpose of the result.
    pub fn with_swapped<T>(&self, then: impl FnOnce(&Matmul) -> T) -> T {
        then(&Matmul {
            batch: self.batch.clone(),
            m: self.n,
            n: self.m,
            a: &|r, at| (self.b)(r, &swapped(at.to_vec())),
            b: &|r, at| (self.a)(r, &swapped(at.to_vec())),
            place: &|ix| swapped((self.place)(ix)),
            transposed: !self.transposed,
            ..*self
        })
    }
    /// Accumulators of a tile: two in a dual GEMM.
    pub fn sums(&self) -> usize {
        1 + usize::from(self.dual.is_some())
    }
    /// The body with its matmuls as nodes.
    pub(super) fn nodes<'b>(&self, kernel: &Lowering<'b>) -> Lowering<'b> {
        self.at(kernel, |_| MatmulSource::Node)
    }
    /// The body with its matmuls where `place` says.
    pub(super) fn at<'b>(&self, kernel: &Lowering<'b>, place: impl Fn(usize) -> MatmulSource) -> Lowering<'b> {
        let other = self.dual.and_then(|t| t.v);
        kernel.with_body(Body {
            matmul: Some((self.v, place(0))),
            second_output: other.map(|v| (v, place(1))),
            ..kernel.body
        })
    }
    /// The values that are stored where matmuls go through memory.
    pub fn values(&self) -> impl Iterator<Item = ValueId> {
        std::iter::once(self.v).chain(self.dual.and_then(|t| t.v))
    }
}

/// An array of `rows` rows of `pitch` elements, in which `len` elements of K follow each other. Everything beyond the
/// last row is zero.
#[derive(Clone, Copy)]
pub struct Run {
    pub len: usize,
    pub pitch: usize,
    pub rows: usize,
}

/// Swaps the last two.
pub fn swapped<T>(mut all: Vec<T>) -> Vec<T> {
    let n = all.len();
    all.swap(n - 2, n - 1);
    all
}
