//! Parameters of the program, and which of them are never written through.
use super::{Emitter, block_type};
use crate::error::Eval;
use crate::types::{Number, Scalar, TensorType};
use crate::unit::ArgumentFacts;
use crate::value::Tensor;
use kiln_block::{BlockProgram, Facts, Param, Type, analysis::Writes};

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

/// Marks pointers that no store or update reaches, and whose memory no other argument has.
pub fn mark_readonly(program: &mut BlockProgram) {
    let writes = Writes::of(program);
    for param in 0..program.params.len() {
        let value = program.params[param].value;
        let is_pointer = matches!(program.ty(value), Type::Ptr { .. });
        let alone = program.params[param].facts.noalias;
        program.params[param].readonly = is_pointer && alone && !writes.anywhere() && !writes.through(value);
    }
}
