//! Parameters of the program, and which of them are never written through.
use super::{Emitter, block_type};
use crate::error::Eval;
use crate::types::{Number, Scalar, TensorType};
use crate::unit::ArgumentFacts;
use crate::value::Tensor;
use kiln_block::{BlockProgram, Facts, InstData, Op, Param, Type, Value};

/// Most bytes that an address is known to be aligned to.
const MAX_ALIGN: u64 = 1 << 12;

impl Emitter {
    pub fn pointer_parameter(&mut self, name: &str, elem: Number, facts: ArgumentFacts) -> Eval<Tensor> {
        let known = facts.div.unwrap_or(1).max(1);
        let power = 1u64 << known.trailing_zeros().min(MAX_ALIGN.trailing_zeros());
        let align = power.max(u64::from(elem.bytes())) as usize;
        let facts = Facts { span32: facts.span32, noalias: facts.noalias, ..Facts::default() };
        self.parameter(name, TensorType { scalar: Scalar::Pointer(elem), shape: vec![] }, align, facts)
    }
    pub fn scalar_parameter(&mut self, name: &str, number: Number, facts: ArgumentFacts) -> Eval<Tensor> {
        let known = match number.is_int() {
            true => Facts {
                div: facts.div.and_then(|div| i64::try_from(div).ok()).unwrap_or(1).max(1),
                equals: facts.equals,
                least: facts.least,
                most: facts.most,
                ..Facts::default()
            },
            false => Facts::default(),
        };
        self.parameter(name, TensorType::scalar(number), 1, known)
    }
    fn parameter(&mut self, name: &str, ty: TensorType, align: usize, facts: Facts) -> Eval<Tensor> {
        let value = self.program.new_value(block_type(&ty)?);
        let mut name = super::identifier(name);
        while self.program.params.iter().any(|param| param.name == name) {
            name.push('_');
        }
        self.program.params.push(Param { name, value, align, readonly: false, array: None, launch_array: None, facts });
        Ok(Tensor { ty, value })
    }
}

/// Marks pointers that no store or update reaches, and whose memory no other argument has. Pointers flow through
/// pointer arithmetic, selections, loops and branches; values that flow into each other form a class, and a class that
/// is written through is not read-only.
pub fn mark_readonly(program: &mut BlockProgram) {
    let mut classes = Classes((0..program.values.len() as u32).collect());
    let mut written = vec![];
    let mut anywhere = false;
    program.walk(&mut |_, inst| {
        join_flows(program, inst, &mut classes);
        let writes =
            matches!(inst.op, Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. } | Op::AtomicInc | Op::Publish);
        match inst.args.first() {
            Some(pointer) if writes => written.push(*pointer),
            _ => anywhere |= makes_pointers(program, inst),
        }
    });
    let written: Vec<u32> = written.into_iter().map(|value| classes.root(value.0)).collect();
    for param in 0..program.params.len() {
        let value = program.params[param].value;
        let is_pointer = matches!(program.ty(value), Type::Ptr { .. });
        let alone = program.params[param].facts.noalias;
        program.params[param].readonly = is_pointer && alone && !anywhere && !written.contains(&classes.root(value.0));
    }
}

/// Whether an op makes a pointer out of a number, which may point anywhere.
fn makes_pointers(program: &BlockProgram, inst: &InstData) -> bool {
    let pointer = |value: &&Value| matches!(program.ty(**value), Type::Ptr { .. });
    inst.regions.is_empty() && inst.results.iter().any(|v| pointer(&v)) && !inst.args.iter().any(|v| pointer(&v))
}

fn join_flows(program: &BlockProgram, inst: &InstData, classes: &mut Classes) {
    let yields = |region: &kiln_block::Region| -> Vec<Value> {
        region.insts.last().map(|last| program.inst(*last).args.clone()).unwrap_or_default()
    };
    match inst.op {
        Op::For => {
            let carried = inst.args.iter().skip(3);
            for region in &inst.regions {
                let parameters = region.params.iter().skip(1);
                classes.join_all(parameters.clone(), carried.clone());
                classes.join_all(parameters, yields(region).iter());
                classes.join_all(inst.results.iter(), yields(region).iter());
            }
        }
        Op::While => {
            for region in &inst.regions {
                classes.join_all(region.params.iter(), inst.args.iter());
                classes.join_all(region.params.iter(), yields(region).iter().skip(1));
                classes.join_all(inst.results.iter(), yields(region).iter().skip(1));
            }
        }
        Op::If => {
            for region in &inst.regions {
                classes.join_all(inst.results.iter(), yields(region).iter());
            }
        }
        // Loads of pointers do not exist: what is loaded through a pointer has no part in its class.
        Op::Load(..) => {}
        _ => {
            for (arg, result) in inst.args.iter().flat_map(|arg| inst.results.iter().map(move |r| (arg, r))) {
                let pointers = [arg, result].map(|value| matches!(program.ty(*value), Type::Ptr { .. }));
                if pointers == [true, true] {
                    classes.join(arg.0, result.0);
                }
            }
        }
    }
}

/// Values in classes: each leads to another of its class, or is its root.
struct Classes(Vec<u32>);

impl Classes {
    fn root(&self, mut value: u32) -> u32 {
        while self.0[value as usize] != value {
            value = self.0[value as usize];
        }
        value
    }
    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a as usize] = b;
    }
    fn join_all<'v>(&mut self, a: impl Iterator<Item = &'v Value>, b: impl Iterator<Item = &'v Value>) {
        a.zip(b).for_each(|(a, b)| self.join(a.0, b.0));
    }
}
