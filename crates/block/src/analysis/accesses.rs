//! What a program does to the memory of one of its parameters: which loads and stores go through it, and whether
//! anything else does.
use super::Writes;
use crate::{BlockProgram, Inst, Op, Type, Value};

/// Accesses through a pointer parameter, in program order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Accesses {
    pub loads: Vec<Inst>,
    pub stores: Vec<Inst>,
    /// Whether its memory is updated by atomics, or its address goes where pointers are not followed: to assembly, to
    /// numbers, to pointers of another type, or to a choice between it and another parameter.
    pub others: bool,
}

impl Accesses {
    /// Those through `param`, a pointer parameter of a verified program.
    pub fn through(program: &BlockProgram, writes: &Writes, param: Value) -> Accesses {
        let is_pointer = |v: &Value| matches!(program.ty(*v), Type::Ptr { .. });
        let reaches = |v: &Value| is_pointer(v) && writes.share_memory(*v, param);
        let is_shared = program.params.iter().any(|p| p.value != param && reaches(&p.value));
        let mut found = Accesses { others: writes.anywhere() || is_shared, ..Accesses::default() };
        program.walk(&mut |inst, data| {
            if !data.args.iter().any(reaches) {
                return;
            }
            match data.op {
                Op::Load(..) => found.loads.push(inst),
                Op::Store(_) => found.stores.push(inst),
                Op::Splat
                | Op::Broadcast
                | Op::ExpandDims(_)
                | Op::Reshape
                | Op::Permute(_)
                | Op::Part { .. }
                | Op::MultipleOf(_)
                | Op::PtrAdd
                | Op::Select
                | Op::For
                | Op::While
                | Op::If
                | Op::Yield => {}
                _ => found.others = true,
            }
        });
        found
    }
}
