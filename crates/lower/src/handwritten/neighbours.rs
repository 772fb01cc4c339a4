//! Elementwise ops around a launch, fused into its program: in place of loads, and after stores.
//!
//! Takes: a kernel's body, its launch, and the bound program. Gives: a program that loads what the kernel reads and
//! stores what it gives. An op before the launch is computed at the position of each load, in the type of the tensor
//! that it would have been stored in; an op after it at the position of each store. Never: another order of what the
//! program itself computes.
use super::{Place, point};
use crate::emit::emitter::Emitter;
use crate::error::LowerError;
use crate::scalar::composite::Decomposed;
use crate::scalar::dag::{Dag, NodeId, NodeOp};
use crate::scalar::expr::{Expr, delinear, linear};
use crate::scalar::resolve::{Body, MatmulSource};
use crate::scalar::types::{held, stored};
use kiln_block::analysis::{Accesses, Footprints, Writes};
use kiln_block::{BlockProgram, Builder, Elem, Facts, Inst, Op as BlockOp, Param, Type, Value, passes};
use kiln_graph::{DType, Graph, Op, ValueId};
use kiln_plan::Rounding;
use kiln_plan::exec::Slot;
use point::{Parts, Point};
use std::collections::HashMap;

/// Elements from which positions are computed in 64 bits.
const WIDE_POSITIONS: usize = 1 << 30;

/// A kernel with a launch.
pub struct Kernel<'a> {
    pub name: &'a str,
    pub body: &'a Graph,
    pub rounding: Rounding,
}

/// A program with what each of its parameters is given.
pub struct Fused {
    pub program: BlockProgram,
    pub args: Vec<Slot>,
}

/// Fuses the ops of a body into its launch's program. `places`: of each parameter, where its tensor is.
///
/// # Errors
/// What the planner should not have put into the kernel.
pub fn fused(kernel: &Kernel, program: BlockProgram, places: &[Place]) -> Result<Fused, LowerError> {
    let decomposed = Decomposed::of(kernel.name, kernel.body)?;
    let writes = Writes::of(&program);
    let footprints = Footprints::of(&program);
    let largest = kernel.body.values().map(|v| kernel.body.ty(v).count()).max().unwrap_or(0);
    let index = if largest > WIDE_POSITIONS { Elem::I64 } else { Elem::I32 };
    let mut fusion = Fusion {
        kernel,
        decomposed: &decomposed,
        footprints: &footprints,
        index,
        b: Builder::of(program.clone()),
        slots: program.params.iter().zip(places).filter_map(|(p, place)| Some((place.slot()?, p.value))).collect(),
        added: vec![],
    };
    for (param, place) in program.params.iter().zip(places) {
        let accesses = || Accesses::through(&program, &writes, param.value);
        match place {
            Place::Slot(_) => {}
            Place::Computed(v) => accesses().loads.iter().try_for_each(|load| fusion.prologue(*load, *v))?,
            Place::Result { value, .. } => {
                accesses().stores.iter().try_for_each(|store| fusion.epilogue(*store, *value, *place))?;
            }
        }
    }
    let Fusion { b, added, .. } = fusion;
    if let Some(what) = b.fault() {
        return Err(kernel.invariant(what.to_string()));
    }
    let mut program = b.into_program();
    kiln_block::verify::verify(&program).map_err(|e| kernel.invariant(format!("the fused program is wrong: {e}")))?;
    passes::canonicalise(&mut program).map_err(|e| kernel.invariant(e.to_string()))?;
    let slots: Vec<Option<Slot>> = places.iter().map(Place::slot).chain(added.into_iter().map(Some)).collect();
    without_unused(program, &slots).ok_or_else(|| kernel.invariant("a tensor that is not in memory is accessed".into()))
}

/// Drops parameters for tensors that are no longer in memory; `None` if one is still used.
fn without_unused(mut program: BlockProgram, slots: &[Option<Slot>]) -> Option<Fused> {
    let mut used = vec![false; program.values.len()];
    program.walk(&mut |_, data| data.args.iter().for_each(|v| used[v.0 as usize] = true));
    let mut args = vec![];
    let mut params = vec![];
    for (param, slot) in std::mem::take(&mut program.params).into_iter().zip(slots) {
        match slot {
            Some(slot) => {
                args.push(*slot);
                params.push(param);
            }
            None if used[param.value.0 as usize] => return None,
            None => {}
        }
    }
    program.params = params;
    Some(Fused { program: program.compacted(), args })
}

impl Kernel<'_> {
    fn invariant(&self, what: String) -> LowerError {
        LowerError::Invariant { kernel: self.name.to_string(), what }
    }
    fn unsupported(&self, why: &str) -> LowerError {
        LowerError::Unsupported { kernel: self.name.to_string(), why: why.to_string() }
    }
}

struct Fusion<'a> {
    kernel: &'a Kernel<'a>,
    decomposed: &'a Decomposed,
    /// Of the program as it was.
    footprints: &'a Footprints<'a>,
    index: Elem,
    b: Builder,
    /// Pointers by what they point to.
    slots: HashMap<Slot, Value>,
    /// What the parameters point to that were added.
    added: Vec<Slot>,
}

impl<'a> Fusion<'a> {
    fn body(&self, result: Option<ValueId>) -> Body<'a> {
        Body {
            name: self.kernel.name,
            graph: self.kernel.body,
            decomposed: self.decomposed,
            matmul: result.map(|v| (v, MatmulSource::Node)),
            second_output: None,
            rounding: self.kernel.rounding,
        }
    }
    fn point(&self, access: Inst) -> Result<Point<'a>, LowerError> {
        let position = self.footprints.offsets(access);
        let position = position.ok_or_else(|| self.kernel.unsupported("offsets of its program are not affine"))?;
        Ok(Point { footprints: self.footprints, access, position, index: self.index })
    }
    /// Computes an operand in place of a load of it.
    fn prologue(&mut self, load: Inst, operand: ValueId) -> Result<(), LowerError> {
        let ty = self.kernel.body.ty(operand).clone();
        let at = delinear(&Expr::coord(point::POSITION, ty.count()), &ty.shape);
        let mut resolver = self.body(None).resolver();
        let root = resolver.at(operand, &at, &[])?;
        let point = self.point(load)?;
        let value = self.emitted(&resolver.dag, root, &point, None)?;
        let data = self.b.program_mut().inst(load).clone();
        let (shape, elem) = (point.shape().to_vec(), stored(ty.dtype));
        let mut value = self.b.cast(value, elem);
        value = self.b.broadcast_to(value, &shape);
        if let Some(mask) = data.args.get(1).copied() {
            let other = data.args.get(2).copied();
            let other = other.unwrap_or_else(|| self.zero(elem));
            value = self.b.select(mask, value, other);
        }
        self.b.place_before(load);
        for result in data.results {
            self.b.program_mut().replace(result, value);
        }
        self.b.program_mut().remove(load);
        Ok(())
    }
    fn zero(&mut self, elem: Elem) -> Value {
        use kiln_block::Const;
        let zero = match elem {
            Elem::Bool => Const::Bool(false),
            elem if elem.is_float() => Const::Float(0.),
            _ => Const::Int(0),
        };
        self.b.constant(Type::scalar(elem), zero)
    }
    /// Computes what follows a result where it is stored, and stores that.
    fn epilogue(&mut self, store: Inst, result: ValueId, place: Place) -> Result<(), LowerError> {
        let body = self.kernel.body;
        let point = self.point(store)?;
        let data = self.b.program_mut().inst(store).clone();
        let BlockOp::Store(cache) = data.op else {
            return Err(self.kernel.invariant("a result is written by no store".into()));
        };
        let is_after = |v: ValueId| !matches!(body.op(v), Op::Launch(_) | Op::Result(_));
        for (n, &out) in body.outputs.iter().enumerate().filter(|(_, out)| is_after(**out)) {
            let ty = body.ty(out);
            let at = delinear(&Expr::coord(point::POSITION, ty.count()), &ty.shape);
            let mut resolver = self.body(Some(result)).resolver();
            let root = resolver.at(out, &at, &[])?;
            let value = self.emitted(&resolver.dag, root, &point, Some((result, data.args[1])))?;
            let value = self.b.cast(value, stored(ty.dtype));
            let value = self.b.broadcast_to(value, point.shape());
            let to = self.pointer(Slot::Output(n as u32), ty.dtype, false);
            let at = point.of_form(&mut self.b, &point.position);
            let to = point.address(&mut self.b, to, &at);
            let to = self.b.broadcast_to(to, point.shape());
            self.b.store_cached(to, value, data.args.get(2).copied(), cache);
        }
        self.b.place_before(store);
        if place.slot().is_none() {
            self.b.program_mut().remove(store);
        }
        Ok(())
    }
    /// The value of a node at the lanes of an access. `result`: the launch's result with what is stored there.
    fn emitted(
        &mut self,
        dag: &Dag,
        root: NodeId,
        point: &Point,
        result: Option<(ValueId, Value)>,
    ) -> Result<Value, LowerError> {
        let mut emitter = Emitter::new(dag, self.index);
        for id in dag.reach_until(&[root], |_| false) {
            let node = dag.node(id);
            let value = match (&node.op, result) {
                (NodeOp::Load { slot, at, guards }, _) if guards.is_empty() => {
                    self.load(point, *slot, at, node.dtype)?
                }
                (NodeOp::Index(e), _) => {
                    let v = point.value(&mut self.b, e);
                    crate::emit::math::cast(&mut self.b, v, node.dtype)
                }
                (NodeOp::Anchor { at }, Some((value, is_stored))) => {
                    let ty = self.kernel.body.ty(value);
                    if linear(at, &ty.shape) != Expr::coord(point::POSITION, ty.count()) {
                        return Err(self.kernel.unsupported("an op after its launch reads elements in another order"));
                    }
                    self.b.cast(is_stored, held(ty.dtype))
                }
                (
                    NodeOp::Const(_)
                    | NodeOp::Unary(..)
                    | NodeOp::TanhApprox(_)
                    | NodeOp::Binary(..)
                    | NodeOp::Compare(..)
                    | NodeOp::Select(..)
                    | NodeOp::Cast(_)
                    | NodeOp::Tf32 { .. },
                    _,
                ) => continue,
                _ => return Err(self.kernel.unsupported("an op around its launch is not elementwise")),
            };
            emitter.set(id, value);
        }
        Ok(emitter.value(&mut self.b, root))
    }
    fn load(&mut self, point: &Point, slot: Slot, at: &Expr, dtype: DType) -> Result<Value, LowerError> {
        let Slot::Input(n) = slot else { return Err(self.kernel.invariant("an op reads what is no input".into())) };
        let input = self.kernel.body.inputs.get(n as usize).copied();
        let input = input.ok_or_else(|| self.kernel.invariant("an op reads an input that is not there".into()))?;
        let elements = self.kernel.body.ty(input).count();
        let pointer = self.pointer(slot, dtype, true);
        let form = point.form(at);
        let parts = match &form {
            Some(form) => point.of_form(&mut self.b, form),
            None => Parts::whole(point.value(&mut self.b, at)),
        };
        let mask = point.mask(&mut self.b, form.as_ref(), elements);
        let mut from = point.address(&mut self.b, pointer, &parts);
        if let Some(mask) = mask {
            let shape = crate::emit::emitter::joint(&self.b.shape(from), &self.b.shape(mask));
            from = self.b.broadcast_to(from, &shape);
        }
        let value = self.b.load(from, mask, None);
        Ok(self.b.cast(value, held(dtype)))
    }
    /// The parameter for a tensor: one that the program has, or a new one.
    fn pointer(&mut self, slot: Slot, dtype: DType, readonly: bool) -> Value {
        if let Some(known) = self.slots.get(&slot) {
            return *known;
        }
        let name = match slot {
            Slot::Input(n) => format!("in{n}"),
            Slot::Output(n) => format!("out{n}"),
            Slot::Scratch(n) => format!("scratch{n}"),
            Slot::Faults | Slot::Counter => "more".to_string(),
        };
        let taken = |name: &str, params: &[Param]| params.iter().any(|p| p.name == name);
        let mut unique = name.clone();
        while taken(&unique, self.b.params_mut()) {
            unique.push('_');
        }
        let pointer = self.b.param(unique, stored(dtype), readonly);
        if let Some(param) = self.b.params_mut().last_mut() {
            param.facts = Facts { span32: self.index == Elem::I32, noalias: true, ..Facts::default() };
        }
        self.slots.insert(slot, pointer);
        self.added.push(slot);
        pointer
    }
}
