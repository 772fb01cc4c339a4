//! Loads, stores and updates of memory.
use super::Emitter;
use crate::error::{Eval, internal, unsupported};
use crate::types::{Number, Scalar};
use crate::value::Tensor;
use kiln_block::{AtomicOp, Atomicity, CachePolicy, LoadMode, Op};

/// The elements that an access takes, what a load gives for the others, and how long caches keep them.
#[derive(Clone, Default)]
pub struct Access {
    pub mask: Option<Tensor>,
    pub other: Option<Tensor>,
    pub cache: CachePolicy,
}

/// How an atomic update combines memory with a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicUpdate {
    Add,
    Max,
    Min,
    And,
    Or,
    Xor,
    Exchange,
}

impl AtomicUpdate {
    fn name(self) -> &'static str {
        match self {
            AtomicUpdate::Add => "atomic_add",
            AtomicUpdate::Max => "atomic_max",
            AtomicUpdate::Min => "atomic_min",
            AtomicUpdate::And => "atomic_and",
            AtomicUpdate::Or => "atomic_or",
            AtomicUpdate::Xor => "atomic_xor",
            AtomicUpdate::Exchange => "atomic_xchg",
        }
    }
}

impl Emitter {
    /// Elements outside of the mask are `other`, or 0.
    pub fn load(&mut self, pointer: &Tensor, access: &Access) -> Eval<Tensor> {
        let Scalar::Pointer(number) = pointer.ty.scalar else {
            return Err(internal("a load of what is no pointer"));
        };
        let operands = [Some(pointer), access.mask.as_ref(), access.other.as_ref()];
        let args: Vec<_> = operands.into_iter().flatten().map(|operand| operand.value).collect();
        self.one(Op::Load(LoadMode::Vectors, access.cache), &args, pointer.ty.with_number(number))
    }
    pub fn store(&mut self, pointer: &Tensor, value: &Tensor, access: &Access) {
        let operands = [Some(pointer), Some(value), access.mask.as_ref()];
        let args: Vec<_> = operands.into_iter().flatten().map(|operand| operand.value).collect();
        self.inst(Op::Store(access.cache), &args, vec![], vec![]);
    }
    /// Gives the elements as they were before, if they are asked for.
    pub fn atomic(
        &mut self,
        update: AtomicUpdate,
        pointer: &Tensor,
        value: &Tensor,
        mask: Option<&Tensor>,
    ) -> Eval<Option<Tensor>> {
        let number = value.number()?;
        let op = match update {
            AtomicUpdate::Add => AtomicOp::Add,
            AtomicUpdate::Max => AtomicOp::Max,
            _ => return Err(missing_update(update, number)),
        };
        if !op.takes(super::elem(number)?) {
            return Err(missing_update(update, number));
        }
        let args: Vec<_> = [Some(pointer), Some(value), mask].into_iter().flatten().map(|x| x.value).collect();
        self.inst(Op::Atomic { op, how: Atomicity::default() }, &args, vec![], vec![]);
        Ok(None)
    }
    pub fn compare_and_swap(&mut self, pointer: &Tensor, _compare: &Tensor, _value: &Tensor) -> Eval<Tensor> {
        Err(unsupported(
            format!("atomic_cas on {} is not supported yet", pointer.ty),
            "use atomic_add or atomic_max of int32",
        ))
    }
}

fn missing_update(update: AtomicUpdate, number: Number) -> Box<crate::KernelError> {
    unsupported(
        format!("{} of {number} is not supported yet", update.name()),
        "atomic_add of float32, float64, int32 and int64, and atomic_max of int32 exist",
    )
}
