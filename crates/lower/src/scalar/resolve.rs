//! Resolves graph values to scalar programs: a value is resolved at a vector of index expressions, and resolves its
//! operands in turn.
//!
//! Takes: a body, where its inputs (and values computed by earlier steps) are in memory, the reduction space. Gives:
//! nodes of a [`Dag`]. Never decides blocks or schedules.
pub mod composite;
pub mod row;

use crate::error::LowerError;
use crate::scalar::composite::Decomposed;
use crate::scalar::dag::{Dag, Guard, NodeId, NodeOp};
use crate::scalar::expr::{Expr, delinear, linear};
use crate::scalar::row::Row;
use kiln_graph::{BinaryOp, CompareOp, DType, FullyMasked, Graph, Op, ReduceOp, Scalar, UnaryOp, ValueId};
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
    /// Attention over `count` slices of its keys, in three scratch buffers from `first` on: weighted sums of values,
    /// maxima of scores, and sums of weights, in f32 and relative to the slice's maximum.
    KeyParts { first: u32, count: usize },
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
        let own = if self.bounds.is_empty() { vec![] } else { joined(guards, &self.bounds) };
        let guards = if own.is_empty() { guards } else { &own };
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
            Op::Permute(perm) => {
                let mut inner = vec![Expr::default(); perm.len()];
                perm.iter().zip(ix).for_each(|(&p, e)| inner[p] = e.clone());
                self.at(args[0], &inner, guards)
            }
            Op::Broadcast(_) => self.arg(args[0], here),
            Op::Slice { axis, start, len, step } => {
                // A slice of one element takes no step; its `step` may be any number.
                let step = if *len > 1 { *step as i64 } else { 1 };
                let mut inner = ix.to_vec();
                inner[*axis] = inner[*axis].clone().scale(step).shift(*start as i64);
                self.at(args[0], &inner, guards)
            }
            Op::Flip(axes) => {
                let mut inner = ix.to_vec();
                for &a in axes {
                    inner[a] = inner[a].clone().scale(-1).shift(g.shape(v)[a] as i64 - 1);
                }
                self.at(args[0], &inner, guards)
            }
            Op::Pad { lo, .. } => self.pad(&args, here, lo),
            Op::Concat { axis } => self.concat(&args, here, *axis),
            Op::Gather { axis } => {
                let index = self.at(args[1], ix, guards)?;
                let mut inner = ix.to_vec();
                let place = linear(ix, g.shape(args[1]));
                let guards = self.indexed(index, g.shape(args[0])[*axis], place, &mut inner[*axis], here);
                self.at(args[0], &inner, &guards)
            }
            Op::Take { axis } => {
                let rank = g.shape(args[1]).len();
                let index = self.at(args[1], &ix[*axis..axis + rank], guards)?;
                let mut at = Expr::default();
                let place = linear(&ix[*axis..axis + rank], g.shape(args[1]));
                let guards = self.indexed(index, g.shape(args[0])[*axis], place, &mut at, here);
                let inner = [&ix[..*axis], &[at], &ix[axis + rank..]].concat();
                self.at(args[0], &inner, &guards)
            }
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
            Op::Fallback(_) | Op::Result(_) => Err(self.unsupported("a fallback inside a kernel")),
            _ => self.composite(here),
        }
    }

    /// The matmul's result with its bias. `before`: the number of matmuls whose columns come before its own.
    fn finished_matmul(&mut self, matmul: MatmulSource, here: &ResolvePoint, before: i64) -> Resolved {
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
            MatmulSource::KeyParts { first, count } => self.joined_parts(first, count, here),
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
    fn joined_parts(&mut self, first: u32, count: usize, here: &ResolvePoint) -> NodeId {
        let shape = self.graph.shape(here.v);
        let (whole, lead) = (linear(here.ix, shape), shape.len() - 1);
        let row = linear(&here.ix[..lead], &shape[..lead]);
        let (size, rows) = (shape.iter().product(), shape[..lead].iter().product());
        let guards = here.guards;
        let dag = &mut self.dag;
        let mut load = |buffer: u32, at: &Expr, size: usize| -> Vec<NodeId> {
            let at = (0..count).map(|part| at.clone().shift((part * size) as i64));
            let slot = Slot::Scratch(first + buffer);
            at.map(|at| dag.add(NodeOp::Load { slot, at, guards: guards.to_vec() }, DType::F32)).collect()
        };
        let lse = matches!(self.graph.op(here.v), Op::Attention { lse: true, .. });
        let (maxima, weights) = (load(1, &row, rows), load(2, &row, rows));
        let values = if lse { vec![] } else { load(0, &whole, size) };
        let most = maxima[1..].iter().fold(maxima[0], |a, b| dag.binary(BinaryOp::Max, a, *b));
        let lowest = dag.number(DType::F32, f64::NEG_INFINITY);
        let (zero, one) = (dag.number(DType::F32, 0.0), dag.number(DType::F32, 1.0));
        // Where all keys are masked, the maximum is minus infinity, which must not be subtracted from itself.
        let nothing = dag.add(NodeOp::Compare(CompareOp::Eq, most, lowest), DType::Bool);
        let most = dag.add(NodeOp::Select(nothing, zero, most), DType::F32);
        let [mut sum, mut all] = [zero; 2];
        for (part, (own, weight)) in maxima.into_iter().zip(weights).enumerate() {
            let below = dag.binary(BinaryOp::Sub, own, most);
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
            let log = dag.binary(BinaryOp::Add, most, log);
            // As PyTorch's, which subtracts no infinity.
            let infinity = dag.number(DType::F32, f64::INFINITY);
            let infinite = dag.add(NodeOp::Compare(CompareOp::Eq, most, infinity), DType::Bool);
            return dag.add(NodeOp::Select(infinite, most, log), DType::F32);
        }
        // Where all keys are masked, both sums are zero, and their quotient is NaN.
        if !matches!(self.graph.op(here.v), Op::Attention { fully_masked: FullyMasked::Nan, .. }) {
            let empty = dag.add(NodeOp::Compare(CompareOp::Eq, all, zero), DType::Bool);
            all = dag.add(NodeOp::Select(empty, one, all), DType::F32);
        }
        dag.binary(BinaryOp::Div, sum, all)
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

    fn pad(&mut self, args: &[ValueId], here: &ResolvePoint, lo: &[i64]) -> Resolved {
        let shape = self.graph.shape(args[0]).to_vec();
        let inner: Vec<Expr> = here.ix.iter().zip(lo).map(|(e, l)| e.clone().shift(-l)).collect();
        let bounds = inner.iter().zip(&shape).map(|(e, &d)| (e.clone(), 0, d as i64));
        match inside_within(here.guards, bounds) {
            Inside::Always => self.at(args[0], &inner, here.guards),
            Inside::Never => self.at(args[1], &[], here.guards),
            Inside::When(own) => {
                let x = self.at(args[0], &inner, &joined(here.guards, &own))?;
                let value = self.at(args[1], &[], here.guards)?;
                let dtype = self.graph.dtype(here.v);
                let c = self.dag.add(NodeOp::Inside(own), DType::Bool);
                Ok(self.dag.add(NodeOp::Select(c, x, value), dtype))
            }
        }
    }

    fn concat(&mut self, args: &[ValueId], here: &ResolvePoint, axis: usize) -> Resolved {
        let dtype = self.graph.dtype(here.v);
        let mut parts: Vec<(Vec<Guard>, NodeId)> = vec![];
        let mut start = 0i64;
        for &a in args {
            let len = self.graph.shape(a)[axis] as i64;
            let bound = (here.ix[axis].clone(), start, start + len);
            let offset = start;
            start += len;
            let own = match inside_within(here.guards, [bound].into_iter()) {
                Inside::Never => continue,
                Inside::Always => vec![],
                Inside::When(own) => own,
            };
            let mut inner = here.ix.to_vec();
            // A part of one element has no index but 0.
            inner[axis] = if len == 1 { Expr::default() } else { inner[axis].clone().shift(-offset) };
            let x = self.at(a, &inner, &joined(here.guards, &own))?;
            parts.push((own, x));
        }
        let Some((_, mut value)) = parts.pop() else {
            return Ok(self.dag.number(dtype, 0.0));
        };
        for (own, x) in parts.into_iter().rev() {
            // Parts are tested in order, so the upper bound alone decides.
            let own = own.into_iter().map(|g| Guard { lo: i64::MIN, ..g }).collect();
            let c = self.dag.add(NodeOp::Inside(own), DType::Bool);
            value = self.dag.add(NodeOp::Select(c, x, value), dtype);
        }
        Ok(value)
    }

    /// Puts the index that a node computes into `at`, with a check unless it is known to be in range; returns the
    /// guards that mask reads outside of the axis. `place`: the position among all indices.
    fn indexed(&mut self, index: NodeId, len: usize, place: Expr, at: &mut Expr, here: &ResolvePoint) -> Vec<Guard> {
        let mut index = index;
        if matches!(self.dag.node(index).dtype, DType::I16 | DType::I8) {
            // The axis may be longer than these types can count.
            index = self.dag.add(NodeOp::Cast(index), DType::I32);
        }
        index = self.dag.as_index(index);
        let (least, most) = self.dag.range(index);
        if let NodeOp::Index(e) = &self.dag.node(index).op
            && least >= 0
            && most < len as i64
        {
            *at = e.clone();
            return here.guards.to_vec();
        }
        if least < 0 || most >= len as i64 {
            let guards = here.guards.to_vec();
            let check =
                NodeOp::Check { index, extent: len, site: self.within.map_or(here.v, |w| w.0), at: place, guards };
            index = self.dag.add(check, self.dag.node(index).dtype);
            if (1..=i32::MAX as usize).contains(&len) {
                // What a wrong index reads is of no interest: reads of the nearest element need no masks.
                index = self.dag.add(NodeOp::Cast(index), DType::I32);
                for (op, bound) in [(BinaryOp::Max, 0), (BinaryOp::Min, len as i64 - 1)] {
                    let bound = self.dag.add(NodeOp::Const(Scalar::Int(bound)), DType::I32);
                    index = self.dag.add(NodeOp::Binary(op, index, bound), DType::I32);
                }
            }
        }
        *at = Expr::value(index, len);
        let (least, most) = self.dag.range_anywhere(index);
        if least >= 0 && most < len as i64 {
            return here.guards.to_vec();
        }
        joined(here.guards, &[Guard { expr: at.clone(), lo: 0, hi: len as i64 }])
    }

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
    fn dot(&mut self, args: &[ValueId], here: &ResolvePoint) -> Resolved {
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

    fn linear(&mut self, args: &[ValueId], here: &ResolvePoint) -> Resolved {
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

pub enum Inside {
    Always,
    Never,
    When(Vec<Guard>),
}

/// Which of the bounds have to be checked, from the ranges of their expressions.
pub fn inside(bounds: impl Iterator<Item = (Expr, i64, i64)>) -> Inside {
    inside_within(&[], bounds)
}
/// The same where `within` holds. So of a concatenation of concatenations, as several assignments to slices are, each
/// region of the result is resolved once, and not once for every part of every concatenation.
fn inside_within(within: &[Guard], bounds: impl Iterator<Item = (Expr, i64, i64)>) -> Inside {
    let mut guards = vec![];
    for (expr, lo, hi) in bounds {
        let (least, most) = within.iter().fold(expr.range(), |range, g| narrowed(range, &expr, g));
        if most < lo || least >= hi {
            return Inside::Never;
        }
        if least < lo || most >= hi {
            guards.push(Guard { expr, lo, hi });
        }
    }
    if guards.is_empty() { Inside::Always } else { Inside::When(guards) }
}

/// The range of an expression where a guard holds that bounds the same expression, or one that differs by a constant.
fn narrowed((least, most): (i64, i64), expr: &Expr, guard: &Guard) -> (i64, i64) {
    if guard.expr.terms != expr.terms {
        return (least, most);
    }
    let by = expr.constant.saturating_sub(guard.expr.constant);
    // Unbounded on one side: nothing is known there.
    let lo = if guard.lo == i64::MIN { i64::MIN } else { guard.lo.saturating_add(by) };
    let hi = if guard.hi == i64::MAX { i64::MAX } else { guard.hi.saturating_add(by).saturating_sub(1) };
    (least.max(lo), most.min(hi))
}

pub fn joined(a: &[Guard], b: &[Guard]) -> Vec<Guard> {
    let mut all = [a, b].concat();
    all.sort();
    all.dedup();
    all
}
