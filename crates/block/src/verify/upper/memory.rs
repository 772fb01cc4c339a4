//! Accesses to memory through pointers.
use super::super::{Rule, rules::*};
use crate::{Elem, Op, Type};

/// Loads, stores and updates of the elements that pointers point to.
pub fn pointers(s: &Checked) -> Rule {
    match &s.data.op {
        Op::Load(..) => {
            s.arity(1, 3, 1)?;
            let (elem, shape) = pointer("the first operand", s.ty(0))?;
            let loaded = Type::block(elem, shape);
            if s.data.args.len() > 1 {
                same("the mask", s.ty(1), &Type::block(Elem::Bool, shape))?;
            }
            if s.data.args.len() > 2 {
                same("the value outside the mask", s.ty(2), &loaded)?;
            }
            same("the result", s.out(), &loaded)
        }
        op @ (Op::Store(_) | Op::Atomic { .. }) => {
            let gives = matches!(op, Op::Atomic { .. }) && !s.data.results.is_empty();
            s.arity(2, 3, usize::from(gives))?;
            let (elem, shape) = pointer("the first operand", s.ty(0))?;
            same("the value", s.ty(1), &Type::block(elem, shape))?;
            if let Op::Atomic { op, .. } = op {
                ensure(op.takes(elem), || format!("elements of type {} have no such update", elem.name()))?;
            }
            if s.data.args.len() > 2 {
                same("the mask", s.ty(2), &Type::block(Elem::Bool, shape))?;
            }
            if gives {
                same("the result", s.out(), s.ty(1))?;
            }
            ensure(!s.facts.roots.contains_key(&s.data.args[0]), || {
                format!("parameter {} is readonly; drop that or store elsewhere", s.facts.roots[&s.data.args[0]])
            })
        }
        Op::CompareSwap { .. } => {
            s.arity(3, 3, 1)?;
            let (elem, shape) = pointer("the first operand", s.ty(0))?;
            ensure(elem.bytes() >= 2, || format!("{elem} is not exchanged; elements of 16, 32 or 64 bits are"))?;
            let ty = Type::block(elem, shape);
            same("the expected value", s.ty(1), &ty)?;
            same("the new value", s.ty(2), &ty)?;
            same("the result", s.out(), &ty)?;
            ensure(!s.facts.roots.contains_key(&s.data.args[0]), || {
                format!("parameter {} is readonly; drop that", s.facts.roots[&s.data.args[0]])
            })
        }
        _ => Ok(()),
    }
}

/// Words that instances share: counters, published values and the record of faults.
pub fn records(s: &Checked) -> Rule {
    match &s.data.op {
        op @ (Op::Publish | Op::Await) => {
            let gives = *op == Op::Await;
            s.arity(if gives { 1 } else { 2 }, if gives { 2 } else { 3 }, usize::from(gives))?;
            let (words, shape) = pointer("the first operand", s.ty(0))?;
            let value = if gives { s.out() } else { s.ty(1) };
            let (elem, own) = block("the value", value)?;
            ensure(words == Elem::I64 && matches!(elem, Elem::F32 | Elem::I32 | Elem::F64 | Elem::I64), || {
                "values of 4 or 8 bytes are published in words of i64".into()
            })?;
            ensure(own == shape, || format!("the value is {value}, of another shape than the pointers"))?;
            let mask = if gives { 1 } else { 2 };
            if s.data.args.len() > mask {
                same("the mask", s.ty(mask), &Type::block(Elem::Bool, shape))?;
            }
            ensure(!s.facts.roots.contains_key(&s.data.args[0]), || {
                format!("parameter {} is readonly; drop that", s.facts.roots[&s.data.args[0]])
            })
        }
        Op::AtomicInc => {
            s.arity(2, 2, 1)?;
            same("the first operand", s.ty(0), &Type::Ptr { elem: Elem::I32, shape: vec![] })?;
            scalar_i32("the limit", s.ty(1))?;
            scalar_i32("the result", s.out())?;
            ensure(!s.facts.roots.contains_key(&s.data.args[0]), || {
                format!("parameter {} is readonly; drop that", s.facts.roots[&s.data.args[0]])
            })
        }
        Op::Check { .. } => {
            s.arity(3, 4, 0)?;
            let (elem, shape) = pointer("the first operand", s.ty(0))?;
            ensure(elem == Elem::I64 && shape.is_empty(), || {
                format!("the first operand is {}; one pointer to an i64 is needed", s.ty(0))
            })?;
            let shape = s.ty(2).shape();
            same("the index", s.ty(2), &Type::block(Elem::I64, shape))?;
            same("the condition", s.ty(1), &Type::block(Elem::Bool, shape))?;
            if s.data.args.len() > 3 {
                same("the mask", s.ty(3), &Type::block(Elem::Bool, shape))?;
            }
            ensure(!s.facts.roots.contains_key(&s.data.args[0]), || {
                format!("parameter {} is readonly; drop that or check elsewhere", s.facts.roots[&s.data.args[0]])
            })
        }
        _ => Ok(()),
    }
}

/// What is told to the user while a program runs.
pub fn reports(s: &Checked) -> Rule {
    if let Op::Print(_) = s.data.op {
        s.arity(0, 2, 0)?;
        if s.data.args.len() > 1 {
            same("the mask", s.ty(1), &Type::block(Elem::Bool, s.ty(0).shape()))?;
        }
        return if s.data.args.is_empty() { Ok(()) } else { held("the operand", s.ty(0)) };
    }
    s.arity(1, 2, 0)?;
    let shape = s.ty(0).shape();
    same("the condition", s.ty(0), &Type::block(Elem::Bool, shape))?;
    if s.data.args.len() > 1 {
        same("the mask", s.ty(1), &Type::block(Elem::Bool, shape))?;
    }
    Ok(())
}
