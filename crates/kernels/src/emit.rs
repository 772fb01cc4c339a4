//! The only module that writes block IR: one function an op, which makes the result's type from the operands'.
//!
//! Operands have the types that the op asks for: promotion and broadcasting are `ops`. What the IR cannot say yet is
//! refused here by name, so that a new op of the IR is a line here.
mod control;
mod differences;
mod memory;
mod pads;
mod parameters;
mod promises;
mod pure;
mod shapes;

pub use control::{Carried, Emitted, loop_counter};
pub use memory::{Access, Shown, Update};
pub use pads::retyped;

use crate::error::{Eval, internal, unsupported};
use crate::types::{Number, Scalar, TensorType, padded};
use crate::unit::{Printed, Site};
use crate::value::Tensor;
use kiln_block::{BlockProgram, Const, Elem, Grid, Inst, InstData, Op, Region, Type, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Axes of a block of the IR.
const MAX_AXES: usize = 6;
/// Operations of the largest program.
const MAX_INSTRUCTIONS: usize = 1 << 20;

/// A program under construction: the innermost open region takes what is emitted.
pub struct Emitter {
    pub program: BlockProgram,
    open: Vec<Region>,
    /// The part of the source that is walked.
    pub site: Site,
    /// Of each instruction.
    sites: Vec<Site>,
    /// What prints show.
    shown: BTreeMap<Inst, Printed>,
    /// Accesses whose mask leaves out pads alone.
    unmasked: BTreeSet<Inst>,
}

/// A program, the site of each of its instructions, what its prints show, and its accesses without a mask of the
/// kernel's.
pub struct Finished {
    pub program: BlockProgram,
    pub sites: Vec<Site>,
    pub shown: BTreeMap<u32, Printed>,
    pub unmasked: BTreeSet<u32>,
}

impl Emitter {
    pub fn new(name: &str, warps: usize) -> Emitter {
        let (name, grid) = (identifier(name.rsplit('.').next().unwrap_or(name)), Grid::Launch);
        let program = BlockProgram { name, grid, warps, blocks: 1, cluster: 1, ..BlockProgram::default() };
        Emitter {
            program,
            open: vec![Region::default()],
            site: Site::default(),
            sites: vec![],
            shown: BTreeMap::new(),
            unmasked: BTreeSet::new(),
        }
    }
    pub fn finish(mut self) -> Finished {
        self.program.body = self.open.pop().unwrap_or_default();
        parameters::mark_readonly(&mut self.program);
        memory::drop_unused_old_values(&mut self.program);
        let program = self.program.compacted();
        // Compacting keeps the order of what it keeps.
        let (mut before, mut after) = (vec![], vec![]);
        self.program.walk(&mut |inst, _| before.push(inst));
        program.walk(&mut |inst, _| after.push(inst));
        let mut sites = vec![Site::default(); program.insts.len()];
        let (mut shown, mut unmasked) = (BTreeMap::new(), BTreeSet::new());
        for (before, after) in before.into_iter().zip(after) {
            shown.extend(self.shown.remove(&before).map(|printed| (after.0, printed)));
            unmasked.extend(self.unmasked.contains(&before).then_some(after.0));
            sites[after.0 as usize] = self.sites.get(before.0 as usize).copied().unwrap_or_default();
        }
        Finished { program, sites, shown, unmasked }
    }
    /// Appends an instruction.
    fn inst(&mut self, op: Op, args: &[Value], results: Vec<Type>, regions: Vec<Region>) -> Vec<Value> {
        let results: Vec<Value> = results.into_iter().map(|ty| self.program.new_value(ty)).collect();
        let inst = self.program.new_inst(InstData { op, args: args.to_vec(), results: results.clone(), regions });
        self.sites.resize(inst.0 as usize, Site::default());
        self.sites.push(self.site);
        if let Some(region) = self.open.last_mut() {
            region.insts.push(inst);
        }
        results
    }
    /// Appends an instruction with one result.
    fn one(&mut self, op: Op, args: &[Value], ty: TensorType) -> Eval<Tensor> {
        if self.program.insts.len() >= MAX_INSTRUCTIONS {
            return Err(unsupported(
                format!("the kernel has more than {MAX_INSTRUCTIONS} operations"),
                "use `range` in place of `static_range`, or smaller bounds",
            ));
        }
        let results = self.inst(op, args, vec![block_type(&ty)?], vec![]);
        match results[..] {
            [value] => Ok(Tensor { ty, value }),
            _ => Err(internal("an op with one result has several")),
        }
    }

    pub fn int(&mut self, number: Number, value: i128) -> Eval<Tensor> {
        let value = i64::try_from(value)
            .or_else(|_| u64::try_from(value).map(|value| value as i64))
            .map_err(|_| internal(format!("the constant {value} has more than 64 bits")))?;
        let constant = if number == Number::Int1 { Const::Bool(value != 0) } else { Const::Int(value) };
        self.one(Op::Const(constant), &[], TensorType::scalar(number))
    }
    pub fn float(&mut self, number: Number, value: f64) -> Eval<Tensor> {
        self.one(Op::Const(Const::Float(value)), &[], TensorType::scalar(number))
    }
    fn defining(&self, value: Value) -> Option<&InstData> {
        self.program.insts.iter().rev().find(|inst| inst.results.contains(&value))
    }
    /// The constant that a scalar or splat is of.
    pub fn constant_of(&self, value: Value) -> Option<Const> {
        let inst = self.defining(value)?;
        match inst.op {
            Op::Const(constant) => Some(constant),
            Op::Splat => match self.defining(inst.args[0])?.op {
                Op::Const(constant) => Some(constant),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A Python name in the letters that names of the IR have.
fn identifier(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    let named: String = letters.collect();
    if named.starts_with(|c: char| c.is_ascii_digit()) || named.is_empty() { format!("_{named}") } else { named }
}

/// The IR's element of a number.
pub fn elem(number: Number) -> Eval<Elem> {
    match number {
        Number::Int1 => Ok(Elem::Bool),
        Number::Int8 => Ok(Elem::I8),
        Number::Int16 => Ok(Elem::I16),
        Number::Int32 => Ok(Elem::I32),
        Number::Int64 => Ok(Elem::I64),
        Number::UInt8 => Ok(Elem::U8),
        Number::UInt16 => Ok(Elem::U16),
        Number::UInt32 => Ok(Elem::U32),
        Number::UInt64 => Ok(Elem::U64),
        Number::Float8E4M3 => Ok(Elem::F8e4m3),
        Number::Float8E5M2 => Ok(Elem::F8e5m2),
        Number::Float16 => Ok(Elem::F16),
        Number::BFloat16 => Ok(Elem::Bf16),
        Number::Float32 => Ok(Elem::F32),
        Number::Float64 => Ok(Elem::F64),
        Number::Float8E4B15 | Number::Float8E4B8 | Number::Float8E5B16 => Err(unsupported(
            format!("type {number} is not supported in this architecture"),
            "use float8e4nv or float8e5",
        )),
    }
}

/// The IR's type of a run-time value: each axis has the next power of two of elements (`pads`).
pub fn block_type(ty: &TensorType) -> Eval<Type> {
    if ty.shape.len() > MAX_AXES {
        return Err(unsupported(
            format!("a block of shape {:?} has {} axes, and blocks have at most {MAX_AXES}", ty.shape, ty.shape.len()),
            "reshape it so that neighbouring axes are one",
        ));
    }
    let shape = padded(&ty.shape);
    Ok(match ty.scalar {
        Scalar::Number(number) => Type::block(elem(number)?, shape),
        Scalar::Pointer(number) | Scalar::ConstPointer(number) => Type::ptr(elem(number)?, shape),
    })
}
