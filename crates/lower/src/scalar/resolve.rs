//! Resolves graph values to scalar programs: a value is resolved at a vector of index expressions, and resolves its
//! operands in turn.
//!
//! Takes: a body, where its inputs (and values computed by earlier steps) are in memory, the reduction space. Gives:
//! nodes of a [`Dag`]. Never decides blocks or schedules.
pub mod composite;
pub mod guards;
mod indexed;
mod matmul_result;
mod movement;
mod products;
mod reduce;
pub mod row;

use crate::error::LowerError;
use crate::scalar::composite::Decomposed;
use crate::scalar::dag::{Dag, Guard, NodeId, NodeOp};
use crate::scalar::expr::{Expr, delinear, linear};
use crate::scalar::resolve::guards::joined;
use crate::scalar::row::Row;
use kiln_graph::{BinaryOp, DType, Graph, Op, ReduceOp, UnaryOp, ValueId};
use kiln_plan::Rounding;
use kiln_plan::exec::Slot;
use rustc_hash::FxHashMap;
use std::collections::HashMap;

/// Programs larger than this are refused (concatenations of concatenations can double at each level).
const MAX_NODES: usize = 40_000;

/// Where the result of a kernel's matmul is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MatmulSource {
    /// A node of the scalar program.
    Node,
    /// Zero everywhere: sums without terms.
    Zero,
    /// In memory, dense, in this dtype.
    At(Slot, DType),
    /// In memory as `count` split-K slices, one after the other, which are still to be summed.
    Parts { slot: Slot, dtype: DType, count: usize },
    /// Attention over `count` slices of its keys, in three scratch buffers from `scratch` on: weighted sums of values,
    /// maxima of scores, and sums of weights, in f32 and relative to the slice's maximum.
    KeyParts { scratch: u32, count: usize },
}

/// What is lowered: a graph with its inputs, and its matmul if another part of the program computes that.
#[derive(Clone, Copy)]
pub struct Body<'a> {
    pub name: &'a str,
    pub graph: &'a Graph,
    pub decomposed: &'a Decomposed,
    pub matmul: Option<(ValueId, MatmulSource)>,
    /// The second matmul of a dual GEMM, of the same left operand; or the log-sum-exp of an attention.
    pub second_output: Option<(ValueId, MatmulSource)>,
    pub rounding: Rounding,
}
impl<'a> Body<'a> {
    pub fn resolver(&self) -> Resolver<'a> {
        let mut r = Resolver::new(self.graph, self.decomposed, self.name);
        (r.matmul, r.second_output, r.rounding) = (self.matmul, self.second_output, self.rounding);
        r
    }
    pub fn unsupported(&self, why: impl Into<String>) -> LowerError {
        LowerError::Unsupported { kernel: self.name.to_string(), why: why.into() }
    }
    /// Whether `v` is the kernel's matmul or its dual.
    pub fn is_matmul(&self, v: ValueId) -> bool {
        self.matmul.iter().chain(&self.second_output).any(|p| p.0 == v)
    }
}

/// The column at which a program has the log-sum-exp of an attention: before those of its values.
pub const LOG_SUM_EXP: i64 = -1;

pub struct Resolver<'a> {
    /// The body, or the decomposition that is resolved in it.
    pub graph: &'a Graph,
    pub(crate) decomposed: &'a Decomposed,
    /// The composite whose decomposition `graph` is, and the body that has it.
    pub(crate) within: Option<(ValueId, &'a Graph)>,
    kernel: &'a str,
    pub dag: Dag,
    /// Values in memory, dense: inputs, and results of earlier steps in scratch, with the dtype they have there.
    pub places: HashMap<ValueId, (Slot, DType)>,
    /// The matmul that the kernel is built around: a node, or read from memory. The resolver adds its bias.
    pub matmul: Option<(ValueId, MatmulSource)>,
    /// The second matmul of a dual GEMM: as a node, its columns follow those of the first. Or the log-sum-exp of an
    /// attention.
    pub second_output: Option<(ValueId, MatmulSource)>,
    pub row: Option<Row>,
    /// How many reductions enclose what is being resolved.
    pub depth: u32,
    pub rounding: Rounding,
    /// The indices along the scan's axis at which scans were resolved.
    pub scan_at: Vec<Expr>,
    /// Guards of all that is read.
    pub bounds: Vec<Guard>,
    memo: FxHashMap<Key, NodeId>,
}

/// A value, of the body or of a composite's decomposition, at an index, within guards.
type Key = (Option<ValueId>, ValueId, Vec<Expr>, Vec<Guard>);

pub type Resolved = Result<NodeId, LowerError>;

impl<'a> Resolver<'a> {
    fn new(graph: &'a Graph, decomposed: &'a Decomposed, kernel: &'a str) -> Resolver<'a> {
        let places =
            (graph.inputs.iter().enumerate()).map(|(i, &v)| (v, (Slot::Input(i as u32), graph.dtype(v)))).collect();
        Resolver {
            graph,
            decomposed,
            within: None,
            kernel,
            dag: Dag::default(),
            places,
            matmul: None,
            second_output: None,
            row: None,
            depth: 0,
            rounding: Rounding::AtStores,
            scan_at: vec![],
            bounds: vec![],
            memo: FxHashMap::default(),
        }
    }
    pub fn unsupported(&self, why: impl Into<String>) -> LowerError {
        LowerError::Unsupported { kernel: self.kernel.to_string(), why: why.into() }
    }
    pub fn invariant(&self, what: impl Into<String>) -> LowerError {
        LowerError::Invariant { kernel: self.kernel.to_string(), what: what.into() }
    }

    /// The value's element at `ix` (one expression per axis), read only where `guards` hold.
    pub fn at(&mut self, v: ValueId, ix: &[Expr], guards: &[Guard]) -> Resolved {
        let all = if self.bounds.is_empty() { vec![] } else { joined(guards, &self.bounds) };
        let guards = if all.is_empty() { guards } else { &all };
        let key = (self.within.map(|w| w.0), v, ix.to_vec(), guards.to_vec());
        if let Some(&n) = self.memo.get(&key) {
            return Ok(n);
        }
        if self.dag.nodes.len() > MAX_NODES {
            return Err(self.unsupported("the scalar program is too large"));
        }
        let n = self.compute(v, ix, guards)?;
        let n = if self.rounds(v) { self.dag.add(NodeOp::Cast(n), self.graph.dtype(v)) } else { n };
        self.memo.insert(key, n);
        Ok(n)
    }

    /// Whether a value of a half type is rounded here: not if it is an element of one of its operands (views, maxima,
    /// …) or read from memory in its own type.
    fn rounds(&self, v: ValueId) -> bool {
        let dtype = self.graph.dtype(v);
        if self.rounding == Rounding::AtStores || dtype.compute() == dtype || self.within.is_some() {
            return false;
        }
        if let Some((_, stored)) = self.places.get(&v) {
            return *stored != dtype;
        }
        use {BinaryOp as B, UnaryOp as U};
        !matches!(
            self.graph.op(v),
            Op::Const(_)
                | Op::Iota { .. }
                | Op::Cast(_)
                | Op::Select
                | Op::Unary(U::Neg | U::Abs | U::Sign | U::Relu | U::Floor | U::Ceil | U::Round | U::Trunc)
                | Op::Binary(B::Max | B::Min)
                | Op::Reduce { op: ReduceOp::Max | ReduceOp::Min, .. }
                | Op::Reshape(_)
                | Op::Permute(_)
                | Op::Broadcast(_)
                | Op::Slice { .. }
                | Op::Flip(_)
                | Op::Pad { .. }
                | Op::Concat { .. }
                | Op::Gather { .. }
                | Op::Take { .. }
        )
    }

    fn compute(&mut self, v: ValueId, ix: &[Expr], guards: &[Guard]) -> Resolved {
        let g = self.graph;
        let here = ResolvePoint { v, ix, guards };
        if let Some(composite) = self.within {
            if let Op::Input(i) = g.op(v) {
                return self.operand(*i as usize, composite, &here);
            }
            return self.op(&here);
        }
        if let Some(&(slot, stored)) = self.places.get(&v) {
            return Ok(self.load(v, slot, stored, ix, guards));
        }
        match (self.matmul, self.second_output) {
            (Some((p, matmul)), _) if p == v => self.finished_matmul(matmul, &here, 0),
            (_, Some((p, matmul))) if p == v => self.finished_matmul(matmul, &here, 1),
            _ => self.op(&here),
        }
    }

    /// What an op makes of its operands.
    fn op(&mut self, here: &ResolvePoint) -> Resolved {
        let (g, &ResolvePoint { v, ix, guards }) = (self.graph, here);
        let (dtype, args, op) = (g.dtype(v), g.args(v), g.op(v).clone());
        match &op {
            Op::Const(s) => Ok(self.dag.add(NodeOp::Const(*s), dtype)),
            Op::Iota { axis } => Ok(self.dag.add(NodeOp::Index(ix[*axis].clone()), dtype)),
            Op::Unary(u) => {
                let a = self.arg(args[0], here)?;
                Ok(self.dag.add(NodeOp::Unary(*u, a), dtype))
            }
            Op::Binary(b) => {
                let (x, y) = (self.arg(args[0], here)?, self.arg(args[1], here)?);
                Ok(self.dag.add(NodeOp::Binary(*b, x, y), dtype))
            }
            Op::Compare(c) => {
                let (x, y) = (self.arg(args[0], here)?, self.arg(args[1], here)?);
                Ok(self.dag.add(NodeOp::Compare(*c, x, y), dtype))
            }
            Op::Select => {
                let (c, x, y) = (self.arg(args[0], here)?, self.arg(args[1], here)?, self.arg(args[2], here)?);
                Ok(self.dag.add(NodeOp::Select(c, x, y), dtype))
            }
            Op::Cast(_) => {
                let a = self.arg(args[0], here)?;
                Ok(if self.dag.node(a).dtype == dtype { a } else { self.dag.add(NodeOp::Cast(a), dtype) })
            }
            Op::Reshape(_) => {
                let ix = delinear(&linear(ix, g.shape(v)), g.shape(args[0]));
                self.at(args[0], &ix, guards)
            }
            Op::Permute(perm) => self.permuted(args[0], here, perm),
            Op::Broadcast(_) => self.arg(args[0], here),
            Op::Slice { axis, start, len, step } => {
                // A slice of one element takes no step; its `step` may be any number.
                let step = if *len > 1 { *step as i64 } else { 1 };
                let mut inner = ix.to_vec();
                inner[*axis] = inner[*axis].clone().scale(step).shift(*start as i64);
                self.at(args[0], &inner, guards)
            }
            Op::Flip(axes) => self.flipped(args[0], here, axes),
            Op::Pad { lo, .. } => self.pad(&args, here, lo),
            Op::Concat { axis } => self.concat(&args, here, *axis),
            Op::Gather { axis } => self.gather(&args, here, *axis),
            Op::Take { axis } => self.take(&args, here, *axis),
            Op::Reduce { op, axes } => self.reduce(*op, args[0], axes, here),
            Op::Scan { op, axis } => self.scan(*op, args[0], *axis, here),
            Op::Dot => self.dot(&args, here),
            Op::Linear => self.linear(&args, here),
            Op::Softmax { axis } => self.softmax_along(args[0], *axis, here),
            Op::Conv { .. } => self.conv(&op, &args, here),
            Op::Pool { .. } => self.pool(&op, &args, here),
            Op::Input(_) | Op::Param(_) => Err(self.unsupported("a parameter inside a kernel")),
            Op::Scatter { .. } => Err(self.unsupported("scatter inside a kernel")),
            Op::Attention { .. } => Err(self.unsupported("attention and another matmul in one kernel")),
            Op::Fallback(_) | Op::Launch(_) | Op::Result(_) => Err(self.unsupported("an opaque op inside a kernel")),
            _ => self.composite(here),
        }
    }

    /// An operand that broadcasts to the value being resolved.
    pub fn arg(&mut self, a: ValueId, here: &ResolvePoint) -> Resolved {
        let ix = broadcast_index(here.ix, self.graph.shape(a));
        self.at(a, &ix, here.guards)
    }

    fn load(&mut self, v: ValueId, slot: Slot, stored: DType, ix: &[Expr], guards: &[Guard]) -> NodeId {
        let at = linear(ix, self.graph.shape(v));
        // Guards only keep the address, or an index that is read, in bounds; other conditions are a select around the
        // load.
        let op = NodeOp::Load { slot, at, guards: guards.to_vec() };
        self.dag.add(op, stored)
    }
}

/// The value, index and guards being resolved.
pub struct ResolvePoint<'b> {
    pub v: ValueId,
    pub ix: &'b [Expr],
    pub guards: &'b [Guard],
}

/// Index and extent along the axes of a shape that are not reduced.
pub fn kept(ix: &[Expr], shape: &[usize], reduced: &[usize]) -> Vec<(Expr, usize)> {
    let all = ix.iter().cloned().zip(shape.iter().copied()).enumerate();
    all.filter(|(axis, _)| !reduced.contains(axis)).map(|(_, e)| e).collect()
}

/// Index of an operand that broadcasts: its last axes, 0 where its size is 1.
pub fn broadcast_index(ix: &[Expr], shape: &[usize]) -> Vec<Expr> {
    let skip = ix.len().saturating_sub(shape.len());
    ix[skip..].iter().zip(shape).map(|(e, &d)| if d == 1 { Expr::default() } else { e.clone() }).collect()
}
