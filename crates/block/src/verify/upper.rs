//! Types of the upper level's ops.
mod combine;
mod memory;

use super::{Facts, Rule, rules::*};
use crate::{
    Assembly, BinaryOp, BlockProgram, Const, DotPrecision, Elem, InstData, Op, ReduceOp, ScanOp, Terms, Type, UnaryOp,
    Value,
};

/// Operand and result counts, then types.
pub fn check(k: &BlockProgram, data: &InstData, facts: &Facts) -> Rule {
    let op = Checked { k, data, facts };
    match &data.op {
        Op::Const(_) | Op::ProgramId(_) | Op::NumPrograms(_) | Op::Iota => sources(&op),
        Op::Splat
        | Op::Broadcast
        | Op::ExpandDims(_)
        | Op::Reshape
        | Op::Permute(_)
        | Op::Part { .. }
        | Op::Unpack { .. }
        | Op::Pack { .. }
        | Op::MultipleOf(_) => shapes(&op),
        Op::Unary(_) | Op::Binary(_) | Op::Cmp(_) | Op::Select | Op::Cast(_) | Op::PtrAdd => pointwise(&op),
        Op::Bitcast | Op::CastToZero(_) | Op::Fma => pointwise(&op),
        Op::Asm(assembly) => inline(&op, assembly),
        Op::Load(..) | Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. } => memory::pointers(&op),
        Op::AtomicInc | Op::Publish | Op::Await | Op::Check { .. } => memory::records(&op),
        Op::Print(_) | Op::Assert(_) => memory::reports(&op),
        Op::TileLoad | Op::TileStore => tiles(&op),
        Op::Reduce { .. } | Op::Scan { .. } | Op::Dot { .. } => folds(&op),
        Op::ReduceBy { .. } | Op::ScanBy { .. } => combine::region(&op),
        Op::Join | Op::Split(_) | Op::Cat { .. } | Op::Gather { .. } => combine::moves(&op),
        Op::For | Op::While | Op::If => regions(&op),
        _ => Ok(()),
    }
}

/// Inline assembly: the constraints are those of its operands and results.
fn inline(s: &Checked, assembly: &Assembly) -> Rule {
    count("regions", s.data.regions.len(), 0, 0)?;
    ensure(!s.data.results.is_empty(), || "there is no result; assembly has one at least".into())?;
    ensure(assembly.has_valid_pack(), || {
        format!("{} elements are packed; a power of two to 32 is needed", assembly.pack)
    })?;
    let shape = s.out().shape();
    for v in s.data.args.iter().chain(&s.data.results) {
        let ty = s.k.ty(*v);
        held("an operand", ty)?;
        ensure(ty.shape() == shape, || format!("{v} is {ty}, of another shape than {}", s.out()))?;
    }
    let registers = assembly.registers()?;
    let types = |values: &[Value]| assembly.register_count(values.iter().map(|v| s.k.ty(*v)));
    let (results, operands) = (types(&s.data.results), types(&s.data.args));
    count("registers of results", registers.results.len(), results, results)?;
    count("registers of operands", registers.operands.len(), operands, operands)
}

/// Constants, positions in the grid and its sizes, and iota.
fn sources(s: &Checked) -> Rule {
    match &s.data.op {
        Op::Const(c) => {
            s.arity(0, 0, 1)?;
            constant(*c, block("the result", s.out())?.0)
        }
        Op::ProgramId(axis) | Op::NumPrograms(axis) => {
            s.arity(0, 0, 1)?;
            ensure(*axis < 3, || format!("axis {axis} of the grid; 0, 1 or 2"))?;
            scalar_i32("the result", s.out())
        }
        Op::Iota => {
            s.arity(0, 0, 1)?;
            ensure(matches!(s.out(), Type::Block { elem: Elem::I32, shape } if shape.len() == 1), || {
                format!("the result is {}; i32[n] is needed", s.out())
            })
        }
        _ => Ok(()),
    }
}

/// Ops that rename, repeat or leave out elements and compute none.
fn shapes(s: &Checked) -> Rule {
    match &s.data.op {
        Op::Splat => {
            s.arity(1, 1, 1)?;
            held("the operand", s.ty(0))?;
            ensure(s.ty(0).is_scalar(), || {
                format!("the operand is {}; a scalar is needed (or use broadcast)", s.ty(0))
            })?;
            ensure(!s.out().is_scalar(), || "the result is a scalar; a block is needed".into())?;
            same("the result", s.out(), &s.ty(0).with_shape(s.out().shape()))
        }
        Op::Broadcast => {
            s.arity(1, 1, 1)?;
            held("the operand", s.ty(0))?;
            let (from, to) = (s.ty(0).shape(), s.out().shape());
            ensure(from.len() == to.len() && from.iter().zip(to).all(|(f, t)| f == t || *f == 1), || {
                format!("{} does not become {}: axes of size 1 are repeated, the rank stays", s.ty(0), s.out())
            })?;
            same("the result", s.out(), &s.ty(0).with_shape(to))
        }
        Op::ExpandDims(axis) => {
            s.arity(1, 1, 1)?;
            held("the operand", s.ty(0))?;
            let mut shape = s.ty(0).shape().to_vec();
            ensure(*axis as usize <= shape.len(), || format!("axis {axis} of {}", s.ty(0)))?;
            shape.insert(*axis as usize, 1);
            same("the result", s.out(), &s.ty(0).with_shape(shape))
        }
        Op::Reshape => {
            s.arity(1, 1, 1)?;
            held("the operand", s.ty(0))?;
            ensure(s.ty(0).count() == s.out().shape().iter().fold(1usize, |a, b| a.saturating_mul(*b)), || {
                format!("{} and {} have different numbers of elements", s.ty(0), s.out())
            })?;
            same("the result", s.out(), &s.ty(0).with_shape(s.out().shape()))
        }
        Op::MultipleOf(divisors) => {
            s.arity(1, 1, 1)?;
            let integers = matches!(s.ty(0), Type::Ptr { .. }) || s.ty(0).elem().is_some_and(Elem::is_int);
            ensure(integers, || format!("the operand is {}; integers or pointers are needed", s.ty(0)))?;
            count("divisors", divisors.len(), s.ty(0).shape().len().max(1), s.ty(0).shape().len().max(1))?;
            ensure(divisors.iter().all(|d| *d > 0), || "a divisor is 0; use 1 where nothing is known".into())?;
            same("the result", s.out(), s.ty(0))
        }
        Op::Permute(perm) => {
            s.arity(1, 1, 1)?;
            held("the operand", s.ty(0))?;
            let shape = s.ty(0).shape();
            let mut sorted: Vec<usize> = perm.iter().map(|p| *p as usize).collect();
            sorted.sort();
            ensure(sorted.iter().copied().eq(0..shape.len()), || {
                format!("{perm:?} is no permutation of the {} axes of {}", shape.len(), s.ty(0))
            })?;
            let to: Vec<usize> = perm.iter().map(|p| shape[*p as usize]).collect();
            same("the result", s.out(), &s.ty(0).with_shape(to))
        }
        Op::Part { axis, at } => {
            s.arity(1, 1, 1)?;
            held("the operand", s.ty(0))?;
            let (axis, at) = (*axis as usize, *at as usize);
            let Some(have) = s.ty(0).shape().get(axis) else { return Err(format!("axis {axis} of {}", s.ty(0))) };
            let n = s.out().shape().get(axis).copied().unwrap_or(1).max(1);
            ensure(at.is_multiple_of(n) && at + n <= *have, || {
                format!("{n} elements at {at} of {}; a multiple of {n} inside the block is needed", s.ty(0))
            })?;
            let mut shape = s.ty(0).shape().to_vec();
            shape[axis] = n;
            same("the result", s.out(), &s.ty(0).with_shape(shape))
        }
        Op::Unpack { row } | Op::Pack { row } => {
            s.arity(1, 1, 1)?;
            block("the operand", s.ty(0))?;
            let (flat, rows) =
                if matches!(s.data.op, Op::Unpack { .. }) { (s.ty(0), s.out()) } else { (s.out(), s.ty(0)) };
            let ([all], [high, wide]) = (flat.shape(), rows.shape()) else {
                return Err(format!("{flat} and {rows} are not a block of one axis and one of two"));
            };
            let row = *row as usize;
            ensure(row <= *wide && high.saturating_mul(row) <= *all, || {
                format!("{high} rows of {row} elements do not fit {rows} and {flat}")
            })?;
            same("the result", s.out(), &s.ty(0).with_shape(s.out().shape()))
        }
        _ => Ok(()),
    }
}

/// One result element per operand element.
fn pointwise(s: &Checked) -> Rule {
    match &s.data.op {
        Op::Unary(op) => {
            s.arity(1, 1, 1)?;
            unary(*op, s.ty(0), s.out())
        }
        Op::Binary(op) => {
            s.arity(2, 2, 1)?;
            let (elem, _) = block("the first operand", s.ty(0))?;
            same("the second operand", s.ty(1), s.ty(0))?;
            ensure(binary_takes(*op, elem), || format!("the op is not defined on {elem}; cast first"))?;
            same("the result", s.out(), s.ty(0))
        }
        Op::Cmp(_) => {
            s.arity(2, 2, 1)?;
            let (elem, shape) = block("the first operand", s.ty(0))?;
            same("the second operand", s.ty(1), s.ty(0))?;
            ensure(!elem.is_f8(), || format!("{elem} is not compared; cast first"))?;
            same("the result", s.out(), &Type::block(Elem::Bool, shape))
        }
        Op::Select => {
            s.arity(3, 3, 1)?;
            held("the second operand", s.ty(1))?;
            same("the condition", s.ty(0), &Type::block(Elem::Bool, s.ty(1).shape()))?;
            same("the third operand", s.ty(2), s.ty(1))?;
            same("the result", s.out(), s.ty(1))
        }
        Op::Cast(to) => {
            s.arity(1, 1, 1)?;
            let (_, shape) = block("the operand", s.ty(0))?;
            same("the result", s.out(), &Type::block(*to, shape))
        }
        Op::CastToZero(to) => {
            s.arity(1, 1, 1)?;
            let (elem, shape) = block("the operand", s.ty(0))?;
            let narrower =
                matches!(elem, Elem::F32 | Elem::F64) && is_arithmetic_float(*to) && to.bytes() < elem.bytes();
            ensure(narrower, || format!("{elem} is not rounded toward zero to {to}; a float to a smaller one is"))?;
            same("the result", s.out(), &Type::block(*to, shape))
        }
        Op::Fma => {
            s.arity(3, 3, 1)?;
            let (elem, _) = block("the first factor", s.ty(0))?;
            ensure(is_arithmetic_float(elem), || format!("the op is not defined on {elem}; cast first"))?;
            same("the second factor", s.ty(1), s.ty(0))?;
            same("the addend", s.ty(2), s.ty(0))?;
            same("the result", s.out(), s.ty(0))
        }
        Op::Bitcast => {
            s.arity(1, 1, 1)?;
            bitcast(s.ty(0), s.out())
        }
        Op::PtrAdd => {
            s.arity(2, 2, 1)?;
            let (_, shape) = pointer("the first operand", s.ty(0))?;
            let (elem, offsets) = block("the offset", s.ty(1))?;
            ensure(matches!(elem, Elem::I32 | Elem::I64) && offsets == shape, || {
                format!("the offset is {}; i32 or i64 of the pointer's shape is needed", s.ty(1))
            })?;
            same("the result", s.out(), s.ty(0))
        }
        _ => Ok(()),
    }
}

/// Loads and stores of tiles through descriptors.
fn tiles(s: &Checked) -> Rule {
    match &s.data.op {
        Op::TileLoad => {
            s.arity(1, 6, 1)?;
            let tile = descriptor(s.ty(0))?;
            starts(s.k, &s.data.args[1..], tile.shape().len())?;
            same("the result", s.out(), &short(&tile, s.out()))
        }
        Op::TileStore => {
            s.arity(2, 7, 0)?;
            let tile = descriptor(s.ty(0))?;
            same("the value", s.ty(1), &short(&tile, s.ty(1)))?;
            ensure(!s.facts.roots.contains_key(&s.data.args[0]), || "the descriptor's parameter is readonly".into())?;
            starts(s.k, &s.data.args[2..], tile.shape().len())
        }
        _ => Ok(()),
    }
}

/// Reductions, scans and matmuls.
fn folds(s: &Checked) -> Rule {
    match &s.data.op {
        Op::Reduce { op, axis } => {
            s.arity(1, 1, 1)?;
            let (elem, shape) = block("the operand", s.ty(0))?;
            ensure((*axis as usize) < shape.len(), || format!("axis {axis} of {}", s.ty(0)))?;
            let fits = match op {
                ReduceOp::And | ReduceOp::Or => elem == Elem::Bool || elem.is_int(),
                ReduceOp::MaxNum | ReduceOp::MinNum => is_arithmetic_float(elem),
                _ => is_number(elem),
            };
            ensure(fits, || format!("the reduction is not defined on {elem}; cast first"))?;
            let mut shape = shape.to_vec();
            shape.remove(*axis as usize);
            let elem = if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) { Elem::I32 } else { elem };
            same("the result", s.out(), &Type::block(elem, shape))
        }
        Op::Scan { op: ScanOp::Sum | ScanOp::Prod | ScanOp::Max, axis } => {
            s.arity(1, 1, 1)?;
            let (elem, shape) = block("the operand", s.ty(0))?;
            ensure((*axis as usize) < shape.len(), || format!("axis {axis} of {}", s.ty(0)))?;
            ensure(is_number(elem), || format!("the scan is not defined on {elem}; cast first"))?;
            same("the result", s.out(), s.ty(0))
        }
        Op::Dot { precision, terms } => {
            s.arity(3, 3, 1)?;
            dot(*precision, s.ty(0), s.ty(1), s.ty(2))?;
            let exact = *precision == DotPrecision::Exact && s.ty(0).elem() == Some(Elem::F32);
            ensure(*terms == Terms::Products || exact, || "sums of differences are only for exact f32".into())?;
            same("the result", s.out(), s.ty(2))
        }
        _ => Ok(()),
    }
}

/// Loops and branches.
fn regions(s: &Checked) -> Rule {
    match &s.data.op {
        Op::For => for_loop(s.k, s.data, s.facts),
        Op::While => while_loop(s.k, s.data),
        Op::If => {
            count("operands", s.data.args.len(), 1, 1)?;
            same("the condition", s.ty(0), &Type::scalar(Elem::Bool))?;
            count("regions", s.data.regions.len(), 2, 2)?;
            ensure(s.data.regions.iter().all(|r| r.params.is_empty()), || "branches have no parameters".into())?;
            s.data.results.iter().try_for_each(|v| carried("a result", s.k.ty(*v)))
        }
        _ => Ok(()),
    }
}

/// Block type of a descriptor's tile.
pub fn descriptor(ty: &Type) -> Result<Type, String> {
    match ty {
        Type::Desc { elem, shape, .. } => Ok(Type::block(*elem, shape.clone())),
        _ => Err(format!("the operand is {ty}; a descriptor is needed")),
    }
}
/// A descriptor's tile with as many axes as the block has: leading ones of size 1 are dropped.
fn short(tile: &Type, block: &Type) -> Type {
    let (lead, rest) = tile.shape().split_at(tile.shape().len().saturating_sub(block.shape().len()));
    if lead.iter().all(|n| *n == 1) { tile.with_shape(rest) } else { tile.clone() }
}
pub fn starts(k: &BlockProgram, args: &[Value], rank: usize) -> Rule {
    count("starts of the tile", args.len(), rank, rank)?;
    args.iter().try_for_each(|v| scalar_i32("a start", k.ty(*v)))
}

fn constant(c: Const, elem: Elem) -> Rule {
    let fits = match c {
        Const::Float(_) => elem.is_float(),
        Const::Bool(_) => elem == Elem::Bool,
        Const::Int(_) if elem == Elem::U64 => true,
        Const::Int(n) => elem.int_range().is_some_and(|(lo, hi)| (lo..=hi).contains(&n)),
    };
    ensure(fits, || match c {
        Const::Int(n) if elem.is_float() => format!("{n} is an integer and the result {elem}; write {n}.0"),
        _ => format!("the constant does not fit {elem}"),
    })
}

/// Types of as many bits and one shape.
fn bitcast(from: &Type, to: &Type) -> Rule {
    held("the operand", from)?;
    held("the result", to)?;
    let bits = |ty: &Type| match ty {
        Type::Block { elem: Elem::Bool, .. } => 1,
        Type::Block { elem, .. } => 8 * elem.bytes(),
        _ => 64,
    };
    let is_pointer = |ty: &Type| matches!(ty, Type::Ptr { .. });
    let fits = |ty: &Type| is_pointer(ty) || ty.elem() == Some(Elem::I64);
    let pointers = !is_pointer(from) && !is_pointer(to) || fits(from) && fits(to);
    ensure(from.shape() == to.shape() && bits(from) == bits(to) && pointers, || {
        format!("{from} has not the bits of {to}; a type of as many bits is needed, for pointers a pointer or i64")
    })
}

fn unary(op: UnaryOp, ty: &Type, out: &Type) -> Rule {
    let (elem, shape) = block("the operand", ty)?;
    let fits = match op {
        UnaryOp::Neg | UnaryOp::Abs => is_number(elem),
        UnaryOp::Not => elem.is_int() || elem == Elem::Bool,
        UnaryOp::SqrtRn => matches!(elem, Elem::F32 | Elem::F64),
        UnaryOp::Gelu | UnaryOp::Tf32 | UnaryOp::Exp2Approx | UnaryOp::TanhApprox => elem == Elem::F32,
        _ => is_arithmetic_float(elem),
    };
    ensure(fits, || format!("the op is not defined on {elem}; cast first"))?;
    match op {
        UnaryOp::IsNan | UnaryOp::IsInf => same("the result", out, &Type::block(Elem::Bool, shape)),
        _ => same("the result", out, ty),
    }
}

fn binary_takes(op: BinaryOp, elem: Elem) -> bool {
    match op {
        BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::MaxNum | BinaryOp::MinNum => is_arithmetic_float(elem),
        BinaryOp::DivRn => matches!(elem, Elem::F32 | Elem::F64),
        BinaryOp::MulHi => elem.is_int() && elem.bytes() >= 4,
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => elem.is_int() || elem == Elem::Bool,
        BinaryOp::Shl | BinaryOp::Shr => elem.is_int(),
        _ => is_number(elem),
    }
}

fn dot(precision: DotPrecision, a: &Type, b: &Type, acc: &Type) -> Rule {
    let (ea, sa) = block("the first operand", a)?;
    let (eb, sb) = block("the second operand", b)?;
    let (ec, sc) = block("the accumulator", acc)?;
    let wanted = match ea {
        Elem::F64 => Elem::F64,
        Elem::U8 | Elem::I8 => Elem::I32,
        e if e.is_float() => Elem::F32,
        _ => return Err(format!("dot is not defined on {ea}; cast to a float, i8 or u8")),
    };
    ensure(ea == eb && ec == wanted, || {
        format!("{a} by {b} into {acc}; operands of one type into {wanted} are needed")
    })?;
    ensure(precision == DotPrecision::Exact || ea == Elem::F32, || "tf32 is for f32 operands".into())?;
    let fits = matches!((sa, sb, sc), ([m, k], [l, n], [p, q]) if k == l && m == p && n == q);
    ensure(fits, || format!("{a} by {b} into {acc}; [M,K] by [K,N] into [M,N] is needed"))
}

/// What loops carry and branches give.
fn carried(name: &str, ty: &Type) -> Rule {
    match ty {
        Type::Token { .. } => Ok(()),
        _ => held(name, ty),
    }
}

fn for_loop(k: &BlockProgram, data: &InstData, facts: &Facts) -> Rule {
    let n = data.results.len();
    count("operands", data.args.len(), 3 + n, 3 + n)?;
    let index = k.ty(data.args[0]);
    ensure(is_index(index), || format!("the lower bound is {index}; an i32 or i64 scalar is needed"))?;
    same("the upper bound", k.ty(data.args[1]), index)?;
    same("the step", k.ty(data.args[2]), index)?;
    ensure(facts.constants.get(&data.args[2]).is_none_or(|s| *s > 0), || "the step must be positive".into())?;
    count("regions", data.regions.len(), 1, 1)?;
    let params = &data.regions[0].params;
    count("parameters of the region", params.len(), n + 1, n + 1)?;
    if let Some(v) = params.iter().find(|v| v.0 as usize >= k.values.len()) {
        return Err(format!("{v} does not exist"));
    }
    same("the index", k.ty(params[0]), index)?;
    for i in 0..n {
        let ty = k.ty(data.results[i]);
        carried("a carried value", ty)?;
        same("an initial value", k.ty(data.args[3 + i]), ty)?;
        same("a parameter of the region", k.ty(params[1 + i]), ty)?;
    }
    Ok(())
}

fn is_index(ty: &Type) -> bool {
    ty.is_scalar() && matches!(ty, Type::Block { elem: Elem::I32 | Elem::I64, .. })
}

fn while_loop(k: &BlockProgram, data: &InstData) -> Rule {
    let least = if data.results.is_empty() { 0 } else { data.args.len() };
    count("results", data.results.len(), least, data.args.len())?;
    count("regions", data.regions.len(), 1, 1)?;
    let params = &data.regions[0].params;
    count("parameters of the region", params.len(), data.args.len(), data.args.len())?;
    if let Some(v) = params.iter().find(|v| v.0 as usize >= k.values.len()) {
        return Err(format!("{v} does not exist"));
    }
    if data.results.is_empty() {
        return data.args.iter().chain(params).try_for_each(|v| {
            scalar_i32("a carried value", k.ty(*v)).map_err(|e| format!("{e} in a loop without results"))
        });
    }
    for ((init, param), result) in data.args.iter().zip(params).zip(&data.results) {
        let ty = k.ty(*result);
        held("a carried value", ty)?;
        same("an initial value", k.ty(*init), ty)?;
        same("a parameter of the region", k.ty(*param), ty)?;
    }
    Ok(())
}

pub fn yields(k: &BlockProgram, data: &InstData, owner: &InstData) -> Rule {
    count("results", data.results.len(), 0, 0)?;
    count("regions", data.regions.len(), 0, 0)?;
    if owner.op == Op::While {
        let wanted = 1 + owner.args.len();
        count("yielded values", data.args.len(), wanted, wanted)?;
        same("the condition", k.ty(data.args[0]), &Type::scalar(Elem::Bool))?;
        let carried = data.args[1..].iter().zip(&owner.args);
        return carried.into_iter().try_for_each(|(v, init)| same("a yielded value", k.ty(*v), k.ty(*init)));
    }
    let wanted = owner.results.len();
    count("yielded values", data.args.len(), wanted, wanted)?;
    let scalars = matches!(owner.op, Op::ReduceBy { .. } | Op::ScanBy { .. });
    data.args.iter().zip(&owner.results).try_for_each(|(v, r)| match scalars {
        true => same("a yielded value", k.ty(*v), &k.ty(*r).with_shape([])),
        false => same("a yielded value", k.ty(*v), k.ty(*r)),
    })
}
