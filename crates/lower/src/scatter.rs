//! Scatter: a copy of the operand, then indexed writes into it.
//!
//! Elements that may write to the same place lie on one line along the axis. On a GPU all elements are written at once: sums by atomic
//! updates, in f32 for half types; and of those that replace the same element, the last one is found first, by atomic maxima of positions.
//! Where rounding must not depend on an order (floats under the `exact` and batch-invariant contracts), on short lines and on the host, lines
//! are distributed over instances and lanes, and each is processed in order. An index outside of the axis writes nothing, and is an error.
use crate::dag::{Guard, NodeOp, Scene, Store, Write};
use crate::emit::Lanes;
use crate::expr::{Expr, linear};
use crate::nest::{Nest, Visit};
use crate::resolve::{Body, Resolver};
use crate::rows::Emitted;
use crate::space::Space;
use crate::tile::{Cut, Shape, looped, open};
use crate::{LowerError, math, pointwise, schedule};
use kiln_block::{AtomicOp, Kernel};
use kiln_graph::{BinaryOp, DType, Graph, Op, Scalar, ScatterMode, Type, ValueId};
use kiln_plan::exec::{Slot, Work};
use kiln_plan::{Hardware, Rounding};

/// Elements of a line up to which one thread processes it in order, which takes one launch.
const SHORT: usize = 8;
/// In order, fewer lines than this that are longer than that are refused on a GPU: the host is faster.
const FEW_LINES: usize = 32;
const LONG_LINE: usize = 1 << 16;
/// Blocks are halved down to this many lanes, while there are fewer instances than enough.
const FEW_LANES: usize = 32;
const ENOUGH: usize = 64;

/// The scatter of a body.
struct Scatter<'a> {
    of: &'a Body<'a>,
    site: ValueId,
    operand: ValueId,
    index: ValueId,
    source: ValueId,
    axis: usize,
    mode: ScatterMode,
    dtype: DType,
    /// Of the result, and of the indices.
    shape: Vec<usize>,
    walked: Vec<usize>,
}

/// Where elements are written at once.
#[derive(Clone, Copy)]
enum Target {
    /// The result's own elements; `alone`: no two elements of the source have the same.
    Result { alone: bool },
    /// Sums in a scratch buffer of a wider type.
    Sums(DType),
}

pub fn lower(of: &Body, machine: &Hardware) -> Result<Emitted, LowerError> {
    let s = Scatter::of(of)?;
    if s.walked.contains(&0) {
        return Ok(Emitted::step(s.copy(machine)?));
    }
    match s.at_once(machine) {
        Some(target) => {
            let scratch = s.scratch(target)?;
            let out = schedule::all(of, scratch.len() as u32, |f| s.nests(target, machine, f))?;
            Ok(Emitted { scratch: scratch.into_iter().chain(out.scratch).collect(), ..out })
        }
        None => {
            let steps = vec![s.copy(machine)?, s.in_order(machine)?];
            Ok(Emitted { steps, ..Emitted::default() })
        }
    }
}

/// Calls `f` with the nests of a scatter that writes all elements at once.
pub fn each(of: &Body, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
    let s = Scatter::of(of)?;
    match s.at_once(machine) {
        Some(target) if !s.walked.contains(&0) => s.nests(target, machine, f),
        _ => Ok(()),
    }
}

/// The input that the first step of a scatter copies to the result, if no other step reads it.
pub fn copied(body: &Graph, steps: &[Work<Kernel>]) -> Option<u32> {
    let scatter = body.outputs.iter().find(|v| matches!(body.op(**v), Op::Scatter { .. }))?;
    let operand = body.args(*scatter)[0];
    let slot = body.inputs.iter().position(|i| *i == operand)? as u32;
    let uses = |w: &Work<Kernel>, slot: Slot| matches!(w, Work::Block { args, .. } if args.contains(&slot));
    let (first, rest) = steps.split_first()?;
    let copies = uses(first, Slot::Input(slot)) && uses(first, Slot::Output(0));
    (copies && !rest.iter().any(|w| uses(w, Slot::Input(slot)))).then_some(slot)
}

impl<'a> Scatter<'a> {
    fn of(of: &'a Body<'a>) -> Result<Scatter<'a>, LowerError> {
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
        let most = i32::MAX as usize;
        if shape[axis] > most || walked[axis] > most {
            return Err(of.unsupported("a scatter along an axis of more than 2^31 elements"));
        }
        Ok(Scatter { of, site, operand: *operand, index: *index, source: *source, axis, mode, dtype, shape, walked })
    }
    /// Where elements are written at once, if they may and that is profitable.
    fn at_once(&self, machine: &Hardware) -> Option<Target> {
        let ordered = machine.contract.batch_invariant || self.of.rounding == Rounding::PerOp;
        let n = self.walked[self.axis];
        if !machine.arch.is_gpu() || n > 1 && n <= SHORT {
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
    fn copied(&self, axes: &[Expr], slot: Slot, dtype: DType) -> Result<Scene, LowerError> {
        let mut r = self.of.resolver();
        let mut value = r.at(self.operand, axes, &[])?;
        if dtype != self.dtype {
            value = r.dag.add(NodeOp::Cast(value), dtype);
        }
        Ok(Scene { dag: r.dag, stores: vec![Store::new(slot, dtype, linear(axes, &self.shape), value)] })
    }
    fn copy(&self, machine: &Hardware) -> Result<Work<Kernel>, LowerError> {
        let scene = |axes: &[Expr]| self.copied(axes, Slot::Output(0), self.dtype);
        pointwise::points(&format!("{}_copy", self.of.name), &self.shape, &scene, machine)
    }
    /// The place along the axis that the element at `axes` of the indices is written to, and where it is one.
    fn place(&self, r: &mut Resolver, axes: &[Expr]) -> Result<(Expr, Vec<Guard>), LowerError> {
        let len = self.shape[self.axis];
        let index = r.at(self.index, axes, &[])?;
        let index = r.dag.as_index(index);
        let (least, most) = r.dag.range(index);
        let inside = least >= 0 && most < len as i64;
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
    fn element(&self, axes: &[Expr], place: &Expr, of: &[usize]) -> Expr {
        let index: Vec<Expr> = of.iter().map(|&d| if d == self.axis { place } else { &axes[d] }.clone()).collect();
        linear(&index, &of.iter().map(|&d| self.shape[d]).collect::<Vec<_>>())
    }
    fn axes(&self) -> Vec<usize> {
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
    fn written(&self, target: Target) -> (Slot, DType) {
        match target {
            Target::Result { .. } => (Slot::Output(0), self.dtype),
            Target::Sums(dtype) => (Slot::Scratch(0), dtype),
        }
    }
    /// Sums, or the last one of the elements that replace the same.
    fn scratch(&self, target: Target) -> Result<Vec<Type>, LowerError> {
        Ok(match target {
            Target::Sums(dtype) => vec![Type::new(dtype, &self.shape[..])],
            _ if self.finds_last(target) => {
                let shape: Vec<usize> = self.index_axes()?.iter().map(|&d| self.shape[d]).collect();
                vec![Type::new(DType::I32, &shape[..])]
            }
            Target::Result { .. } => vec![],
        })
    }
    /// Calls `f` with the nests that write all elements at once: a copy of the operand, what finds the last of several elements, the writes,
    /// and the sums in the result's type.
    fn nests(&self, target: Target, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
        let scratch = Slot::Scratch(0);
        let (slot, dtype) = self.written(target);
        let mut beside = |part: &str, shape: &[usize], scene: &dyn Fn(&[Expr]) -> Result<Scene, LowerError>| {
            pointwise::of_points(&format!("{}_{part}", self.of.name), shape, &scene, machine, |nest| f(&nest.beside()))
        };
        beside("copy", &self.shape, &|axes| self.copied(axes, slot, dtype))?;
        if self.finds_last(target) {
            let of = self.index_axes()?;
            let shape: Vec<usize> = of.iter().map(|&d| self.shape[d]).collect();
            beside("none", &shape, &|axes| {
                let mut r = self.of.resolver();
                let value = r.dag.add(NodeOp::Const(Scalar::Int(-1)), DType::I32);
                Ok(Scene { dag: r.dag, stores: vec![Store::new(scratch, DType::I32, linear(axes, &shape), value)] })
            })?;
            // Along other axes, indices are the same.
            let walked: Vec<usize> =
                self.axes().iter().map(|d| if of.contains(d) { self.walked[*d] } else { 1 }).collect();
            beside("last", &walked, &|axes| {
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
            pointwise::of_points(&name, &self.shape, &rounded, machine, |nest| f(&nest.beside()))?;
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

    /// Lines over instances and lanes, each in the order of its indices.
    fn in_order(&self, machine: &Hardware) -> Result<Work<Kernel>, LowerError> {
        let mut space = Space::new(&self.walked, &vec![false; self.walked.len()]);
        let mut r = self.of.resolver();
        let (place, guards) = self.place(&mut r, &space.axes)?;
        let value = r.at(self.source, &space.axes, &[])?;
        let at = self.element(&space.axes, &place, &self.axes());
        let scene =
            Scene { dag: r.dag, stores: vec![Store::new(Slot::Output(0), self.dtype, at, value).within(guards)] };
        let axis = space.axes[self.axis].as_coord();
        let steps = self.walked[self.axis];
        space.coords.retain(|c| Some(c.id) != axis);
        let lines: usize = space.count();
        // Lanes are along the innermost axis of the indices, unless that is the scatter's.
        let inner = space.coords.last().filter(|c| space.axes.last().and_then(Expr::as_coord) == Some(c.id)).copied();
        let most = match machine.arch.is_gpu() {
            // Several lanes are profitable only where they are contiguous.
            false if inner.is_some() => 1024,
            false => 1,
            true if lines < FEW_LINES && steps > LONG_LINE => {
                return Err(self.of.unsupported("a scatter along few long lines"));
            }
            true => 128,
        };
        let across = inner.or(space.coords.last().copied());
        let extent = across.map_or(1, |c| c.extent);
        let mut block = extent.next_power_of_two().min(most);
        while block > FEW_LANES && extent.div_ceil(block) * (lines / extent) < ENOUGH {
            block /= 2;
        }
        let cut = |c: &crate::space::Coord| match Some(c.id) == across.map(|a| a.id) {
            true => Cut { id: c.id, extent: c.extent, block, axis: 0 },
            false => Cut::uniform(c.id, c.extent),
        };
        let cuts: Vec<Cut> = space.coords.iter().map(cut).collect();
        let shape = Shape { cuts, rank: 1, parts: 1, warps: block.div_ceil(32).max(1), blocks: 1, reversed: false };
        let mut f = open(&format!("{}_write", self.of.name), &scene, &shape, self.of.machine);
        let bounds = [0, steps as i64, 1].map(|n| f.b.i32(n));
        looped(&mut f, bounds, &[], |f, k, _| {
            if let Some(axis) = axis {
                let k = f.b.cast(k, f.em.index);
                f.em.coords.insert(axis, Lanes::uniform(k));
            }
            scene.stores.iter().for_each(|s| match self.mode {
                ScatterMode::Add => f.accumulate(s, math::held(self.dtype)),
                ScatterMode::Replace => f.store(s),
            });
            vec![]
        });
        f.finish()
    }
}
