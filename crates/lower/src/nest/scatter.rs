//! Scatter: a copy of the operand, then indexed writes into it.
//!
//! Elements that may write to the same place lie on one line along the axis. On a GPU all elements are written at once:
//! sums by atomic updates, in f32 for half types; and of those that replace the same element, the last one is found
//! first, by atomic maxima of positions. Where rounding must not depend on an order (floats under the `exact` and
//! batch-invariant contracts), on short lines and on the host, lines are distributed over instances and lanes, and each
//! is processed in order. An index outside of the axis writes nothing, and is an error.
use crate::error::LowerError;
use crate::nest::{Nest, Visit, pointwise};
use crate::scalar::dag::{Guard, NodeOp, Scene, Store, Write};
use crate::scalar::expr::{Expr, linear};
use crate::scalar::resolve::{Body, Resolver};
use crate::scalar::space::Space;
use kiln_block::AtomicOp;
use kiln_graph::{BinaryOp, DType, Op, Scalar, ScatterMode, Type, ValueId};
use kiln_plan::exec::Slot;
use kiln_plan::{Hardware, Rounding};

/// Elements of a line up to which one thread processes it in order, which takes one launch.
const MAX_SHORT_LINE: usize = 8;
/// The scatter of a body.
pub struct Scatter<'a> {
    pub of: &'a Body<'a>,
    pub site: ValueId,
    pub operand: ValueId,
    pub index: ValueId,
    pub source: ValueId,
    pub axis: usize,
    pub mode: ScatterMode,
    pub dtype: DType,
    /// Of the result, and of the indices.
    pub shape: Vec<usize>,
    pub walked: Vec<usize>,
}

/// Where elements are written at once.
#[derive(Clone, Copy)]
pub enum Target {
    /// The result's own elements; `alone`: no two elements of the source have the same.
    Result { alone: bool },
    /// Sums in a scratch buffer of a wider type.
    Sums(DType),
}

/// Calls `f` with the nests of a scatter that writes all elements at once.
pub fn visit_nests(body: &Body, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
    let s = Scatter::of(body)?;
    match s.at_once(machine) {
        Some(target) if !s.walked.contains(&0) => s.nests(target, machine, f),
        _ => Ok(()),
    }
}

impl<'a> Scatter<'a> {
    pub fn of(of: &'a Body<'a>) -> Result<Scatter<'a>, LowerError> {
        let body = of.graph;
        let node = |&v: &ValueId| match body.op(v) {
            Op::Scatter { axis, mode } => Some((v, *axis, *mode)),
            _ => None,
        };
        let Some((site, axis, mode)) = body.outputs.iter().find_map(node) else {
            return Err(of.unsupported("a scatter kernel that ends in another op"));
        };
        let ([operand, index, source], [_]) = (&body.args(site)[..], &body.outputs[..]) else {
            return Err(of.unsupported("a scatter without operands, or with other results"));
        };
        let (dtype, by) = (body.dtype(site), body.dtype(*index));
        if !matches!(by, DType::I32 | DType::I64) || (dtype == DType::Bool && mode == ScatterMode::Add) {
            return Err(of.unsupported(format!("a scatter of {dtype} by {by}")));
        }
        let (shape, walked) = (body.shape(*operand).to_vec(), body.shape(*index).to_vec());
        let max = i32::MAX as usize;
        if shape[axis] > max || walked[axis] > max {
            return Err(of.unsupported("a scatter along an axis of more than 2^31 elements"));
        }
        Ok(Scatter { of, site, operand: *operand, index: *index, source: *source, axis, mode, dtype, shape, walked })
    }
    /// Where elements are written at once, if they may and that is profitable.
    pub fn at_once(&self, machine: &Hardware) -> Option<Target> {
        let ordered = machine.contract.batch_invariant || self.of.rounding == Rounding::PerOp;
        let n = self.walked[self.axis];
        if !machine.arch.is_gpu() || n > 1 && n <= MAX_SHORT_LINE {
            return None;
        }
        match (self.mode, self.dtype) {
            _ if n == 1 && self.mode == ScatterMode::Replace => Some(Target::Result { alone: true }),
            (ScatterMode::Replace, _) => Some(Target::Result { alone: false }),
            (ScatterMode::Add, DType::I32 | DType::I64) => Some(Target::Result { alone: false }),
            (ScatterMode::Add, DType::I16 | DType::I8 | DType::U8) => Some(Target::Sums(DType::I32)),
            (ScatterMode::Add, DType::F32 | DType::F64) if !ordered => Some(Target::Result { alone: false }),
            (ScatterMode::Add, DType::F16 | DType::Bf16) if !ordered => Some(Target::Sums(DType::F32)),
            _ => None,
        }
    }
    /// The copy of the operand, in a type.
    pub fn copied(&self, axes: &[Expr], slot: Slot, dtype: DType) -> Result<Scene, LowerError> {
        let mut r = self.of.resolver();
        let mut value = r.at(self.operand, axes, &[])?;
        if dtype != self.dtype {
            value = r.dag.add(NodeOp::Cast(value), dtype);
        }
        Ok(Scene { dag: r.dag, stores: vec![Store::new(slot, dtype, linear(axes, &self.shape), value)] })
    }
    /// The place along the axis that the element at `axes` of the indices is written to, and where it is one.
    pub fn place(&self, r: &mut Resolver, axes: &[Expr]) -> Result<(Expr, Vec<Guard>), LowerError> {
        let len = self.shape[self.axis];
        let index = r.at(self.index, axes, &[])?;
        let index = r.dag.as_index(index);
        let (min, max) = r.dag.range(index);
        let inside = min >= 0 && max < len as i64;
        if let NodeOp::Index(e) = &r.dag.node(index).op
            && inside
        {
            return Ok((e.clone(), vec![]));
        }
        let mut index = index;
        if !inside {
            let at = linear(axes, &self.walked);
            let check = NodeOp::Check { index, extent: len, site: self.site, at, guards: vec![] };
            index = r.dag.add(check, DType::I64);
            // Before the index loses bits.
            for (op, bound) in [(BinaryOp::Max, -1), (BinaryOp::Min, len as i64)] {
                let bound = r.dag.add(NodeOp::Const(Scalar::Int(bound)), DType::I64);
                index = r.dag.add(NodeOp::Binary(op, index, bound), DType::I64);
            }
        }
        let at = Expr::value(r.dag.add(NodeOp::Cast(index), DType::I32), len);
        Ok((at.clone(), vec![Guard { expr: at, lo: 0, hi: len as i64 }]))
    }
    /// Element `place` along the axis of an array of some axes of the result.
    pub fn element(&self, axes: &[Expr], place: &Expr, of: &[usize]) -> Expr {
        let index: Vec<Expr> = of.iter().map(|&d| if d == self.axis { place } else { &axes[d] }.clone()).collect();
        linear(&index, &of.iter().map(|&d| self.shape[d]).collect::<Vec<_>>())
    }
    pub fn axes(&self) -> Vec<usize> {
        (0..self.shape.len()).collect()
    }
    /// Axes along which indices differ, and the axis of the scatter.
    fn index_axes(&self) -> Result<Vec<usize>, LowerError> {
        let space = Space::new(&self.walked, &vec![false; self.walked.len()]);
        let mut r = self.of.resolver();
        let index = r.at(self.index, &space.axes, &[])?;
        let deps = r.dag.depends(&[]);
        let differ = |d: usize| space.axes[d].as_coord().is_some_and(|c| deps[index as usize].contains(&c));
        Ok(self.axes().into_iter().filter(|&d| d == self.axis || differ(d)).collect())
    }

    /// Where elements are written, in which type.
    pub fn written(&self, target: Target) -> (Slot, DType) {
        match target {
            Target::Result { .. } => (Slot::Output(0), self.dtype),
            Target::Sums(dtype) => (Slot::Scratch(0), dtype),
        }
    }
    /// Sums, or the last one of the elements that replace the same.
    pub fn scratch(&self, target: Target) -> Result<Vec<Type>, LowerError> {
        Ok(match target {
            Target::Sums(dtype) => vec![Type::new(dtype, &self.shape[..])],
            _ if self.finds_last(target) => {
                let shape: Vec<usize> = self.index_axes()?.iter().map(|&d| self.shape[d]).collect();
                vec![Type::new(DType::I32, &shape[..])]
            }
            Target::Result { .. } => vec![],
        })
    }
    /// Calls `f` with the nests that write all elements at once: a copy of the operand, what finds the last of several
    /// elements, the writes, and the sums in the result's type.
    pub fn nests(&self, target: Target, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
        let scratch = Slot::Scratch(0);
        let (slot, dtype) = self.written(target);
        let mut auxiliary = |part: &str, shape: &[usize], scene: &dyn Fn(&[Expr]) -> Result<Scene, LowerError>| {
            pointwise::of_points(&format!("{}_{part}", self.of.name), shape, &scene, machine, |nest| {
                f(&nest.auxiliary())
            })
        };
        auxiliary("copy", &self.shape, &|axes| self.copied(axes, slot, dtype))?;
        if self.finds_last(target) {
            let of = self.index_axes()?;
            let shape: Vec<usize> = of.iter().map(|&d| self.shape[d]).collect();
            auxiliary("none", &shape, &|axes| {
                let mut r = self.of.resolver();
                let value = r.dag.add(NodeOp::Const(Scalar::Int(-1)), DType::I32);
                Ok(Scene { dag: r.dag, stores: vec![Store::new(scratch, DType::I32, linear(axes, &shape), value)] })
            })?;
            // Along other axes, indices are the same.
            let walked: Vec<usize> =
                self.axes().iter().map(|d| if of.contains(d) { self.walked[*d] } else { 1 }).collect();
            auxiliary("last", &walked, &|axes| {
                let mut r = self.of.resolver();
                let (place, guards) = self.place(&mut r, axes)?;
                let value = r.dag.add(NodeOp::Index(axes[self.axis].clone()), DType::I32);
                let at = self.element(axes, &place, &of);
                let how = Write::Atomic(AtomicOp::Max);
                let store = Store::new(scratch, DType::I32, at, value).within(guards).how(how);
                Ok(Scene { dag: r.dag, stores: vec![store] })
            })?;
        }
        self.writes(target, machine, f)?;
        if let Target::Sums(dtype) = target {
            let rounded = |axes: &[Expr]| {
                let mut r = self.of.resolver();
                let at = linear(axes, &self.shape);
                let sum = r.dag.add(NodeOp::Load { slot, at: at.clone(), guards: vec![] }, dtype);
                let value = if dtype.is_float() { sum } else { r.dag.add(NodeOp::Cast(sum), self.dtype) };
                Ok(Scene { dag: r.dag, stores: vec![Store::new(Slot::Output(0), self.dtype, at, value)] })
            };
            let name = format!("{}_round", self.of.name);
            pointwise::of_points(&name, &self.shape, &rounded, machine, |nest| f(&nest.auxiliary()))?;
        }
        Ok(())
    }
    /// Whether the last one of the elements that replace the same has to be found.
    fn finds_last(&self, target: Target) -> bool {
        self.mode == ScatterMode::Replace && matches!(target, Target::Result { alone: false })
    }
    /// The nest of the writes.
    fn writes(&self, target: Target, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
        let (slot, dtype) = self.written(target);
        let of = if self.finds_last(target) { self.index_axes()? } else { vec![] };
        let at = |s: &Space| {
            let mut r = self.of.resolver();
            let (place, mut guards) = self.place(&mut r, &s.axes)?;
            let mut value = r.at(self.source, &s.axes, &[])?;
            let mut how = Write::Atomic(AtomicOp::Add);
            if self.mode == ScatterMode::Replace {
                how = Write::Set;
            } else if r.dag.node(value).dtype != dtype.compute() {
                value = r.dag.add(NodeOp::Cast(value), dtype);
            }
            if self.finds_last(target) {
                let load = NodeOp::Load {
                    slot: Slot::Scratch(0),
                    at: self.element(&s.axes, &place, &of),
                    guards: guards.clone(),
                };
                let last = r.dag.add(load, DType::I32);
                let ahead = Expr::value(last, self.walked[self.axis]).plus(&s.axes[self.axis].clone().scale(-1));
                guards.push(Guard { expr: ahead, lo: 0, hi: 1 });
            }
            let at = self.element(&s.axes, &place, &self.axes());
            Ok(Scene { dag: r.dag, stores: vec![Store::new(slot, dtype, at, value).within(guards).how(how)] })
        };
        let space = Space::new(&self.walked, &vec![false; self.walked.len()]);
        let name = format!("{}_write", self.of.name);
        f(&Nest::new(&name, space, &at, machine)?.of_body(self.of.graph))
    }
}
