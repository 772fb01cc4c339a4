//! Ops that combine elements by a region, and ops that take elements from several blocks or positions.
use super::super::{Rule, rules::*};
use crate::{Elem, Op, Type};

/// Reductions and scans by a region.
pub fn region(s: &Checked) -> Rule {
    let (axis, keeps) = match s.data.op {
        Op::ReduceBy { axis } => (axis as usize, false),
        Op::ScanBy { axis, .. } => (axis as usize, true),
        _ => return Ok(()),
    };
    let n = s.data.args.len();
    ensure(n > 0, || "there is no operand; combine a block at least".into())?;
    count("results", s.data.results.len(), n, n)?;
    count("regions", s.data.regions.len(), 1, 1)?;
    let params = &s.data.regions[0].params;
    count("parameters of the region", params.len(), 2 * n, 2 * n)?;
    if let Some(v) = params.iter().find(|v| v.0 as usize >= s.k.values.len()) {
        return Err(format!("{v} does not exist"));
    }
    let (_, shape) = block("the first operand", s.ty(0))?;
    ensure(axis < shape.len(), || format!("axis {axis} of {}", s.ty(0)))?;
    let mut out = shape.to_vec();
    if !keeps {
        out.remove(axis);
    }
    for i in 0..n {
        let (elem, own) = block("an operand", s.ty(i))?;
        ensure(own == shape, || format!("operand {i} is {}, of another shape than {}", s.ty(i), s.ty(0)))?;
        same("a result", s.k.ty(s.data.results[i]), &Type::block(elem, out.clone()))?;
        for v in [params[i], params[n + i]] {
            same("a parameter of the region", s.k.ty(v), &Type::scalar(elem))?;
        }
    }
    let insts = s.data.regions[0].insts.iter().filter_map(|i| s.k.insts.get(i.0 as usize));
    for d in insts {
        let scalars = d.results.iter().all(|v| s.k.values.get(v.0 as usize).is_some_and(|v| v.ty.is_scalar()));
        ensure(d.op == Op::Yield || d.op.is_pure() && scalars, || {
            "the region computes a scalar from scalars; it has neither accesses nor branches".into()
        })?;
    }
    Ok(())
}

/// Join, split, concatenation and gather.
pub fn moves(s: &Checked) -> Rule {
    match s.data.op {
        Op::Join => {
            s.arity(2, 2, 1)?;
            let (elem, shape) = block("the first operand", s.ty(0))?;
            same("the second operand", s.ty(1), s.ty(0))?;
            same("the result", s.out(), &Type::block(elem, [shape, &[2]].concat()))
        }
        Op::Split(half) => {
            s.arity(1, 1, 1)?;
            let (elem, shape) = block("the operand", s.ty(0))?;
            ensure(half < 2, || format!("half {half}; 0 or 1"))?;
            let Some((2, rest)) = shape.split_last() else {
                return Err(format!("the operand is {}; a last axis of 2 is needed", s.ty(0)));
            };
            same("the result", s.out(), &Type::block(elem, rest))
        }
        Op::Cat { axis } => {
            s.arity(2, 2, 1)?;
            let (elem, shape) = block("the first operand", s.ty(0))?;
            same("the second operand", s.ty(1), s.ty(0))?;
            let mut out = shape.to_vec();
            let Some(size) = out.get_mut(axis as usize) else { return Err(format!("axis {axis} of {}", s.ty(0))) };
            *size *= 2;
            same("the result", s.out(), &Type::block(elem, out))
        }
        Op::Gather { axis } => {
            s.arity(2, 2, 1)?;
            let (elem, shape) = block("the first operand", s.ty(0))?;
            let (index, at) = block("the positions", s.ty(1))?;
            ensure((axis as usize) < shape.len(), || format!("axis {axis} of {}", s.ty(0)))?;
            let others = shape.iter().zip(at).enumerate().all(|(a, (n, m))| a == axis as usize || n == m);
            ensure(index == Elem::I32 && at.len() == shape.len() && others, || {
                format!(
                    "the positions are {}; i32 of the sizes of {} except along the axis are needed",
                    s.ty(1),
                    s.ty(0)
                )
            })?;
            same("the result", s.out(), &Type::block(elem, at))
        }
        _ => Ok(()),
    }
}
