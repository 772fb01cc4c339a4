//! Scatter: a copy of the operand, then indexed writes into it.
//!
//! Elements that may write to the same place lie on one line along the axis. Lines are distributed over instances and
//! lanes, and each is processed in order: the last of equal indices wins, and sums are added in the order of the
//! indices, however the work is divided. An index outside of the axis writes nothing, and is an error.
use crate::dag::{Scene, Store};
use crate::expr::{Expr, linear};
use crate::resolve::Body;
use crate::rows::Emitted;
use crate::{LowerError, math, pointwise};
use kiln_block::{BinaryOp as B, Builder, CmpOp, Elem, Kernel, Type, Value};
use kiln_graph::{DType, Graph, Op, ScatterMode, ValueId};
use kiln_plan::Hardware;
use kiln_plan::exec::{Slot, Work};

/// On a GPU one thread processes a line. Fewer lines than this that are longer than that are refused: the host is
/// faster.
const FEW_LINES: usize = 32;
const LONG_LINE: usize = 1 << 16;
/// Blocks are halved down to this many lanes, while there are fewer instances than enough.
const FEW_LANES: usize = 32;
const ENOUGH: usize = 64;

/// An axis other than the scatter's: elements along it never write to the same place.
#[derive(Clone, Copy)]
struct Across {
    extent: usize,
    /// Strides in the index and in the operand.
    index: usize,
    operand: usize,
}

pub fn lower(of: &Body, machine: &Hardware) -> Result<Emitted, LowerError> {
    let body = of.graph;
    let node = |&v: &ValueId| match body.op(v) {
        Op::Scatter { axis, mode } => Some((v, *axis, *mode)),
        _ => None,
    };
    let Some((v, axis, mode)) = body.outputs.iter().find_map(node) else {
        return Err(of.unsupported("a scatter kernel that ends in another op"));
    };
    let slot = |x: ValueId| body.inputs.iter().position(|i| *i == x).map(|i| Slot::Input(i as u32));
    let [x, index, source] = body.args(v)[..] else { return Err(of.unsupported("a scatter without operands")) };
    let (Some(_), Some(index_slot), Some(source_slot), [_]) = (slot(x), slot(index), slot(source), &body.outputs[..])
    else {
        return Err(of.unsupported("a scatter of computed operands"));
    };
    let (shape, walked) = (body.shape(x).to_vec(), body.shape(index).to_vec());
    let copy = |axes: &[Expr]| {
        let mut r = of.resolver();
        let value = r.at(x, axes, &[])?;
        let at = linear(axes, &shape);
        let store = Store { slot: Slot::Output(0), dtype: body.dtype(v), at, guards: vec![], value };
        Ok(Scene { dag: r.dag, stores: vec![store] })
    };
    let mut steps = vec![pointwise::points(&format!("{}_copy", of.name), &shape, &copy, machine)?];
    if walked.iter().all(|&n| n > 0) {
        let args = vec![index_slot, source_slot, Slot::Output(0), Slot::Faults];
        let code = writes(of, v, [body.dtype(v), body.dtype(index)], (&shape, &walked), (axis, mode), machine)?;
        steps.push(Work::Block { code, args });
    }
    Ok(Emitted { scratch: vec![], steps })
}

/// The input that the first step of a scatter copies, if no other step reads it.
pub fn copied(body: &Graph, steps: &[Work<Kernel>]) -> Option<u32> {
    let scatter = body.outputs.iter().find(|v| matches!(body.op(**v), Op::Scatter { .. }))?;
    let operand = body.args(*scatter)[0];
    let slot = body.inputs.iter().position(|i| *i == operand)? as u32;
    let reads = |w: &Work<Kernel>| matches!(w, Work::Block { args, .. } if args.contains(&Slot::Input(slot)));
    let rest = steps.get(1..)?;
    (!rest.iter().any(reads)).then_some(slot)
}

fn strides(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect()
}

/// The program of the indexed writes.
fn writes(
    of: &Body,
    site: ValueId,
    [dtype, index_dtype]: [DType; 2],
    (shape, walked): (&[usize], &[usize]),
    (axis, mode): (usize, ScatterMode),
    machine: &Hardware,
) -> Result<Kernel, LowerError> {
    let count = |s: &[usize]| s.iter().product::<usize>();
    if count(shape).max(count(walked)) > i32::MAX as usize {
        return Err(of.unsupported("a scatter over more than 2^31 elements"));
    }
    if !matches!(index_dtype, DType::I32 | DType::I64) || (dtype == DType::Bool && mode == ScatterMode::Add) {
        return Err(of.unsupported(format!("a scatter of {dtype} by {index_dtype}")));
    }
    let (own, full) = (strides(walked), strides(shape));
    let across = |d: usize| Across { extent: walked[d], index: own[d], operand: full[d] };
    let mut outer: Vec<Across> = (0..walked.len()).filter(|&d| d != axis).map(across).collect();
    let inner = outer.pop().unwrap_or(Across { extent: 1, index: 0, operand: 0 });
    let lines = inner.extent * count(&outer.iter().map(|a| a.extent).collect::<Vec<_>>());
    let most = match machine.arch.is_gpu() {
        // Several lanes are profitable only where they are contiguous.
        false if inner.index == 1 => 1024,
        false => 1,
        true if lines < FEW_LINES && walked[axis] > LONG_LINE => {
            return Err(of.unsupported("a scatter along few long lines"));
        }
        true => 128,
    };
    let mut block = inner.extent.next_power_of_two().min(most);
    let instances = |block: usize| inner.extent.div_ceil(block) * (lines / inner.extent);
    while block > FEW_LANES && instances(block) < ENOUGH {
        block /= 2;
    }
    let (blocks, grid) = (inner.extent.div_ceil(block), instances(block));
    let mut b = Builder::new(format!("{}_write", of.name), [grid, 1, 1], block.div_ceil(32).max(1));
    let (elem, index_elem) = (math::stored(dtype), math::stored(index_dtype));
    let (index, source, out) =
        (b.param("index", index_elem, true), b.param("source", elem, true), b.param("out", elem, false));
    let faults = b.param("faults", Elem::I64, false);

    let times = |b: &mut Builder, v: Value, n: usize| {
        let n = b.i32(n as i64);
        b.binary(B::Mul, v, n)
    };
    let split = |b: &mut Builder, v: Value, n: usize| {
        let n = b.i32(n as i64);
        (b.binary(B::Div, v, n), b.binary(B::Rem, v, n))
    };
    let pid = b.program_id(0);
    let (mut rest, place) = split(&mut b, pid, blocks);
    let start = times(&mut b, place, block);
    let lane = b.iota(block);
    let lane = b.binary(B::Add, start, lane);
    let (mut at_index, mut at_out) = (times(&mut b, lane, inner.index), times(&mut b, lane, inner.operand));
    for a in outer.iter().rev() {
        let (up, here) = split(&mut b, rest, a.extent);
        rest = up;
        let (i, o) = (times(&mut b, here, a.index), times(&mut b, here, a.operand));
        (at_index, at_out) = (b.binary(B::Add, at_index, i), b.binary(B::Add, at_out, o));
    }
    let extent = b.i32(inner.extent as i64);
    let inside = b.cmp(CmpOp::Lt, lane, extent);
    let (index, source, out) = (b.ptr_add(index, at_index), b.ptr_add(source, at_index), b.ptr_add(out, at_out));
    let bounds = [0, walked[axis] as i64, 1].map(|n| b.i32(n));
    b.for_loop(bounds, &[], |b, k, _| {
        let step = times(b, k, own[axis]);
        let (index, source) = (b.ptr_add(index, step), b.ptr_add(source, step));
        let i = b.load(index, Some(inside), None);
        let number = |b: &mut Builder, n: usize| {
            let n = kiln_block::Const::Int(n as i64);
            b.constant(Type::scalar(index_elem), n)
        };
        let (zero, len) = (number(b, 0), number(b, shape[axis]));
        let (low, high) = (b.cmp(CmpOp::Lt, i, zero), b.cmp(CmpOp::Ge, i, len));
        let bad = b.binary(B::Or, low, high);
        let good = b.unary(kiln_block::UnaryOp::Not, bad);
        let valid = b.binary(B::And, inside, good);
        let wide = b.cast(i, Elem::I64);
        let i = b.cast(i, Elem::I32);
        let along = times(b, i, full[axis]);
        let out = b.ptr_add(out, along);
        let mut v = b.load(source, Some(inside), None);
        if mode == ScatterMode::Add {
            let held = math::held(dtype);
            let old = b.load(out, Some(valid), None);
            let (old, new) = (b.cast(old, held), b.cast(v, held));
            let sum = b.binary(B::Add, old, new);
            v = b.cast(sum, elem);
        }
        b.store(out, v, Some(valid));
        b.check(faults, [bad, wide], Some(inside), site.0);
        vec![]
    });
    Ok(b.finish())
}
