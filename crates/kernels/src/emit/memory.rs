//! Loads, stores and updates of memory.
use super::Emitter;
use crate::error::{Eval, internal, unsupported};
use crate::unit::{Printed, Variable};
use crate::value::Tensor;
use kiln_block::{AtomicOp, Atomicity, BlockProgram, CachePolicy, Inst, LoadMode, Op};
use std::collections::HashSet;

/// The elements that an access takes, what a load gives for the others, and how long caches keep them.
#[derive(Clone, Default)]
pub struct Access {
    pub mask: Option<Tensor>,
    pub other: Option<Tensor>,
    pub cache: CachePolicy,
}

/// A block that is printed, or a variable at a breakpoint.
pub struct Shown {
    pub value: Tensor,
    pub variable: Option<Variable>,
}

/// An atomic update: how it combines memory with a value, and its order and scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update {
    pub op: AtomicOp,
    pub how: Atomicity,
}

impl Emitter {
    /// Elements outside of the mask are `other`, or 0.
    pub fn load(&mut self, pointer: &Tensor, access: &Access) -> Eval<Tensor> {
        let Some(number) = pointer.pointee() else {
            return Err(internal("a load of what is no pointer"));
        };
        let mask = self.masked(access.mask.as_ref(), &pointer.ty.shape)?;
        let operands = [Some(pointer), mask.as_ref(), access.other.as_ref()];
        let args: Vec<_> = operands.into_iter().flatten().map(|operand| operand.value).collect();
        let loaded = self.one(Op::Load(LoadMode::Vectors, access.cache), &args, pointer.ty.with_number(number));
        self.note_pads(access.mask.as_ref(), mask.as_ref());
        loaded
    }
    /// Notes the last instruction if its mask leaves out pads alone.
    fn note_pads(&mut self, given: Option<&Tensor>, used: Option<&Tensor>) {
        if given.is_none() && used.is_some() {
            self.unmasked.insert(Inst(self.program.insts.len() as u32 - 1));
        }
    }
    pub fn store(&mut self, pointer: &Tensor, value: &Tensor, access: &Access) -> Eval<()> {
        let mask = self.masked(access.mask.as_ref(), &pointer.ty.shape)?;
        let operands = [Some(pointer), Some(value), mask.as_ref()];
        let args: Vec<_> = operands.into_iter().flatten().map(|operand| operand.value).collect();
        self.inst(Op::Store(access.cache), &args, vec![], vec![]);
        self.note_pads(access.mask.as_ref(), mask.as_ref());
        Ok(())
    }
    /// Gives the elements as they were before; 0 outside of the mask.
    pub fn atomic(&mut self, update: Update, pointer: &Tensor, value: &Tensor, mask: Option<&Tensor>) -> Eval<Tensor> {
        let number = value.number()?;
        let Update { op, how } = update;
        if !op.takes(super::elem(number)?) {
            return Err(unsupported(
                format!("elements of type {number} have no atomic {op:?}").to_lowercase(),
                "integers of 32 and 64 bits have all; floats are added, and f32 and f64 exchanged",
            ));
        }
        let given = mask;
        let mask = self.masked(given, &pointer.ty.shape)?;
        let args: Vec<_> = [Some(pointer), Some(value), mask.as_ref()].into_iter().flatten().map(|x| x.value).collect();
        let before = self.one(Op::Atomic { op, how }, &args, value.ty.clone());
        self.note_pads(given, mask.as_ref());
        before
    }
    /// Writes the text, or each element of a block after it, to standard output.
    pub fn print(&mut self, text: &str, shown: Option<Shown>) -> Eval<()> {
        let mut args = vec![];
        if let Some(Shown { value, .. }) = &shown {
            let counted = self.masked(None, &value.ty.shape)?;
            args = [Some(value), counted.as_ref()].into_iter().flatten().map(|x| x.value).collect();
        }
        self.inst(Op::Print(text.into()), &args, vec![], vec![]);
        let last = Inst(self.program.insts.len() as u32 - 1);
        if let Some(Shown { value, variable }) = shown {
            self.shown.insert(last, Printed { shape: value.ty.shape.clone(), variable });
        }
        Ok(())
    }
    /// Ends the launch with the text where the condition does not hold.
    pub fn assert(&mut self, text: &str, condition: &Tensor, mask: Option<&Tensor>) -> Eval<()> {
        let mask = self.masked(mask, &condition.ty.shape)?;
        let args: Vec<_> = [Some(condition), mask.as_ref()].into_iter().flatten().map(|x| x.value).collect();
        self.inst(Op::Assert(text.into()), &args, vec![], vec![]);
        Ok(())
    }
    /// Where memory has the bits of `expected` it becomes `new`; gives the elements as they were before.
    pub fn compare_swap(&mut self, how: Atomicity, pointer: &Tensor, expected: &Tensor, new: &Tensor) -> Eval<Tensor> {
        let number = new.number()?;
        if number.bits() < 16 {
            return Err(unsupported(
                format!("elements of type {number} are not compared and swapped"),
                "use elements of 16, 32 or 64 bits",
            ));
        }
        if pointer.ty.has_pads() {
            return Err(unsupported(
                format!("a block of shape {:?} is not compared and swapped", pointer.ty.shape),
                "sizes are powers of two here; use the next one, with pointers to memory that is not used elsewhere",
            ));
        }
        self.one(Op::CompareSwap { how }, &[pointer.value, expected.value, new.value], new.ty.clone())
    }
}

/// Updates whose old values nothing uses give none, which is faster.
pub fn drop_unused_old_values(program: &mut BlockProgram) {
    let mut used = HashSet::new();
    let mut updates = vec![];
    program.walk(&mut |inst, data| {
        used.extend(data.args.iter().copied());
        if matches!(data.op, Op::Atomic { .. }) {
            updates.push(inst);
        }
    });
    for inst in updates {
        program.inst_mut(inst).results.retain(|result| used.contains(result));
    }
}
