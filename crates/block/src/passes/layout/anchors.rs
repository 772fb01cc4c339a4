//! The layouts that ops prefer: those of memory accesses and of matmuls.
use crate::analysis::Analysis;
use crate::layout::{Combined, Flat, Interleaved, Tile, TileAccess, choose, fragment, fragment::Tiling};
use crate::{BlockProgram, DotPrecision, Elem, InstData, Op, Role, Value};
use kiln_machine::isa::VECTOR;

/// The kernel's roles, if it has any.
pub fn roles(k: &BlockProgram) -> Option<&[Role]> {
    k.body.insts.iter().find_map(|i| match &k.inst(*i).op {
        Op::Roles(roles) => Some(&roles[..]),
        _ => None,
    })
}

/// log2 of the warps that hold a block: the kernel's, or with roles those of one copy of the largest role.
pub fn warp_bits(k: &BlockProgram) -> usize {
    let warps = roles(k).map_or(k.warps, |r| r.iter().map(|r| r.warps).max().unwrap_or(1));
    warps.max(1).ilog2() as usize
}

/// log2 of the lanes of a warp along the contiguous axis, at most.
fn lane_bits(k: &BlockProgram) -> usize {
    k.lanes.unwrap_or(32).ilog2() as usize
}

/// How warps share a tensor-core matmul, and whether its operands are 32 bits wide (tf32). `None`: computed on the FMA
/// engine in the accumulator's layout.
pub fn tensor_matmul(k: &BlockProgram, dot: &InstData) -> Option<(Tiling, bool)> {
    let Op::Dot { precision, .. } = dot.op else { return None };
    let [a, b, _] = dot.args[..] else { return None };
    let wide = match (k.ty(a).elem()?, precision) {
        (Elem::F16 | Elem::Bf16, _) => false,
        (Elem::F32, DotPrecision::Tf32 | DotPrecision::Tf32x3) => true,
        _ => return None,
    };
    let ([m, kk], [_, n]) = (k.ty(a).shape(), k.ty(b).shape()) else { return None };
    let mut dots = 0;
    k.walk(&mut |_, d| dots += usize::from(matches!(d.op, Op::Dot { .. })));
    // With several matmuls each warp keeps whole rows, so that one's result is another's operand without a conversion.
    let tiling = Tiling::new([*m, *n, *kk], if wide { 8 } else { 16 }, warp_bits(k), dots > 1)?;
    Some((tiling, wide))
}

/// Whether a tensor-core matmul takes its operands in any layout, through shared memory: those of 3xTF32, whose parts
/// would fill a thread's registers.
pub fn takes_any_layout(dot: &InstData) -> bool {
    matches!(dot.op, Op::Dot { precision: DotPrecision::Tf32x3, .. })
}

/// Layout of a block without a preference.
pub(super) fn default_layout(k: &BlockProgram, shape: &[usize]) -> Flat {
    choose(&tile(k, shape), &[]).layout
}

/// The layout of a matmul's accumulator.
pub(super) fn accumulator(k: &BlockProgram, dot: &InstData) -> Flat {
    if let (Op::Wgmma { .. }, [m, n]) = (&dot.op, k.ty(dot.results[0]).shape()) {
        return fragment::warpgroup_accumulator(*m, *n, warp_bits(k));
    }
    if let (Op::SharedDot { transpose_a, transpose_b, .. }, [m, n]) = (&dot.op, k.ty(dot.results[0]).shape()) {
        return fragment::multiply_add_accumulator([*m, *n], warp_bits(k), [*transpose_a, !transpose_b]);
    }
    match tensor_matmul(k, dot) {
        Some((t, _)) => t.accumulator(),
        None => default_layout(k, k.ty(dot.results[0]).shape()),
    }
}

/// The layout of a left operand that `wgmma` takes from registers: in 16-bit elements that of sums of its size.
pub(super) fn left_operand(k: &BlockProgram, v: Value) -> Flat {
    match (k.ty(v).shape(), k.ty(v).elem()) {
        ([m, depth], Some(Elem::F32)) => fragment::warpgroup_left_wide(*m, *depth, warp_bits(k)),
        ([m, depth], _) => fragment::warpgroup_accumulator(*m, *depth, warp_bits(k)),
        (other, _) => default_layout(k, other),
    }
}

/// A tile of this shape that the kernel holds, of which nothing is reduced.
pub(super) fn tile<'a>(k: &BlockProgram, shape: &'a [usize]) -> Tile<'a> {
    let loops = k.body.insts.iter().any(|i| k.inst(*i).op == Op::For);
    Tile {
        shape,
        warp_bits: warp_bits(k),
        lane_bits: lane_bits(k),
        bound_vector: k.vector,
        reduced: &[],
        scanned: None,
        combined: if loops { Combined::AfterLoop } else { Combined::PerTile },
    }
}

/// The access to memory at these pointers.
pub(super) fn access(k: &BlockProgram, facts: &Analysis, ptr: Value) -> TileAccess {
    let (shape, bytes) = (k.ty(ptr).shape(), k.ty(ptr).elem().map_or(1, Elem::bytes));
    let tile = tile(k, shape);
    let last = shape.len().saturating_sub(1);
    let (mut axis, mut run, mut align) = (last, 1, bytes);
    for a in (0..shape.len()).rev() {
        let (r, al) = facts.alignment(ptr, a);
        if r > run {
            (axis, run, align) = (a, r, al);
        }
    }
    let elements = k.ty(ptr).count();
    let short = |i: &Interleaved| run <= i.count && shape[i.across] > i.count;
    if let Some(i) = facts.interleaved(k, ptr).filter(short) {
        // Groups or parts of them, as they are aligned; lanes go through the rest.
        let vector = tile.vector((i.align / bytes).clamp(1, i.count));
        let interleaved = Some(i);
        return TileAccess { axis: i.along, vector, run: 1, bytes, elements, staged_rows: false, interleaved };
    }
    let vector = tile.vector((align.min(VECTOR) / bytes).max(1).min(run));
    TileAccess { axis, vector, run, bytes, elements, staged_rows: false, interleaved: None }
}

/// The access to a shared tile whose rows are neighbours along an axis of what is stored.
pub(super) fn tile_rows(k: &BlockProgram, stored: Value, axis: usize) -> TileAccess {
    let (shape, bytes) = (k.ty(stored).shape(), k.ty(stored).elem().map_or(1, Elem::bytes));
    let (run, vector) = (shape.get(axis).copied().unwrap_or(1), tile(k, shape).vector(VECTOR / bytes));
    let elements = k.ty(stored).count();
    TileAccess { axis, vector: vector.min(run), run, bytes, elements, staged_rows: false, interleaved: None }
}

/// The access to rows that go through shared memory.
pub(super) fn staged_rows(k: &BlockProgram, rows: Value) -> TileAccess {
    let shape = k.ty(rows).shape();
    TileAccess::of_staged_rows(&tile(k, shape), shape.len().saturating_sub(1), k.ty(rows).elem().map_or(1, Elem::bytes))
}
