//! The layouts that ops prefer: those of memory accesses and of matmuls.
use super::{SMALL, VECTOR};
use crate::analysis::{Analysis, Interleaved};
use crate::layout::{Flat, axis_bits, fragment, fragment::Tiling};
use crate::{BlockProgram, DotPrecision, Elem, InstData, Op, Role, Value};

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
    let order: Vec<usize> = (0..shape.len()).rev().collect();
    Flat::blocked(shape, &order, width(k, shape, 4), warp_bits(k), &[])
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

/// `wish`, reduced so that every thread gets an element.
pub(super) fn width(k: &BlockProgram, shape: &[usize], wish: usize) -> usize {
    let elements: usize = shape.iter().product();
    wish.min(elements / (32 << warp_bits(k))).max(1)
}

/// The preferred distribution of a memory access: the contiguous axis and the elements that one thread takes along it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    pub axis: usize,
    pub vector: usize,
    /// Length of the contiguous runs along the axis.
    pub run: usize,
    pub bytes: usize,
    /// Neighbours along another axis, which lie between those along this one.
    pub interleaved: Option<Interleaved>,
}

impl Access {
    pub fn of(k: &BlockProgram, facts: &Analysis, ptr: Value) -> Access {
        let (shape, bytes) = (k.ty(ptr).shape(), k.ty(ptr).elem().map_or(1, Elem::bytes));
        let last = shape.len().saturating_sub(1);
        let (mut axis, mut run, mut align) = (last, 1, bytes);
        for a in (0..shape.len()).rev() {
            let (r, al) = facts.alignment(ptr, a);
            if r > run {
                (axis, run, align) = (a, r, al);
            }
        }
        let short = |i: &Interleaved| run <= i.count && shape[i.across] > i.count;
        if let Some(i) = facts.interleaved(k, ptr).filter(short) {
            // Groups or parts of them, as they are aligned; lanes go through the rest.
            let vector = width(k, shape, (i.align / bytes).clamp(1, i.count));
            return Access { axis: i.along, vector, run: 1, bytes, interleaved: Some(i) };
        }
        let wide = (align.min(VECTOR) / bytes).max(1).min(run);
        Access { axis, vector: width(k, shape, wide), run, bytes, interleaved: None }
    }
    /// Rows that go through shared memory element by element: a short row belongs to one thread, so that lanes exchange
    /// nothing; in a longer one neighbouring lanes take neighbouring elements.
    pub fn of_rows(k: &BlockProgram, rows: Value) -> Access {
        let (shape, bytes) = (k.ty(rows).shape(), k.ty(rows).elem().map_or(1, Elem::bytes));
        let run = shape.last().copied().unwrap_or(1);
        let vector = if run <= 32 { width(k, shape, run.min(16)) } else { 1 };
        Access { axis: shape.len().saturating_sub(1), vector, run, bytes, interleaved: None }
    }
    /// Fastest axis first.
    pub fn order(&self, rank: usize) -> Vec<usize> {
        std::iter::once(self.axis).chain((0..rank).rev().filter(|a| *a != self.axis)).collect()
    }
    pub fn layout(&self, k: &BlockProgram, shape: &[usize], vector: usize, reduced: &[usize]) -> Flat {
        let order = self.order(shape.len());
        if let Some(i) = self.interleaved {
            let (group, lanes) = ((i.across, i.count), (vector, lane_bits(k)));
            return Flat::interleaved(shape, group, &order, lanes, warp_bits(k), reduced);
        }
        // Where other axes are reduced and each row has a 32-bit word for every thread, a column stays in one thread.
        // Sums that a loop carries are combined across threads only once, so loops need not do this.
        let loops = k.body.insts.iter().any(|i| k.inst(*i).op == Op::For);
        let across = !loops && !reduced.is_empty() && !reduced.contains(&self.axis);
        let each = shape.get(self.axis).map_or(0, |n| n >> (5 + warp_bits(k)));
        let vector = if across && each * self.bytes >= 4 { vector.min(each) } else { vector };
        Flat::blocked_by(shape, &order, (vector, lane_bits(k)), warp_bits(k), reduced)
    }
    /// The layout of what is scanned along `axis`. Along the contiguous axis a thread takes whole vectors even if these
    /// are unaligned: such a load takes two accesses and a shift, and stores are converted ([`Access::scatters`]).
    pub fn scanned(&self, k: &BlockProgram, shape: &[usize], vector: usize, axis: usize) -> Flat {
        let whole = (VECTOR / self.bytes).min(self.run);
        let vector = if axis == self.axis { vector.max(width(k, shape, whole)) } else { vector };
        Flat::scanned(shape, &self.order(shape.len()), (vector, lane_bits(k)), warp_bits(k), axis)
    }
    /// Whether a store in this layout writes fewer than 8 bytes at a time although the thread holds more neighbouring
    /// elements, so that each access writes a part of many sectors.
    pub fn scatters(&self, flat: &Flat, shape: &[usize]) -> bool {
        if self.run <= self.vector || self.vector * self.bytes >= 8 || self.is_small(shape) {
            return false;
        }
        let axis = axis_bits(shape, self.axis);
        let own = flat.registers.iter().zip(axis).take_while(|(r, b)| **r == *b).count();
        1 << own > self.vector
    }
    /// Whether it does not matter how a block of this shape is accessed.
    pub fn is_small(&self, shape: &[usize]) -> bool {
        shape.iter().product::<usize>() * self.bytes <= SMALL
    }
    /// Whether an access in this layout uses most of the bytes it moves: lanes fill 32-byte sectors in one instruction,
    /// a load fills them in two of one thread, which finds the other half in the L1 cache, or the block is so small
    /// that it does not matter.
    pub fn suits(&self, flat: &Flat, shape: &[usize], load: bool) -> bool {
        if self.run == 1 || self.is_small(shape) {
            return true;
        }
        let axis = axis_bits(shape, self.axis);
        let own = flat.registers.iter().zip(axis.clone()).take_while(|(r, b)| **r == *b).count();
        if load && self.vector * self.bytes == VECTOR && (1 << own) * self.bytes == 2 * VECTOR {
            return true;
        }
        let vector = own.min((VECTOR / self.bytes).max(1).ilog2() as usize) as u8;
        let lanes = (axis.start + vector..axis.end).take_while(|b| flat.lanes.contains(&Some(*b))).count() as u8;
        let run = 1usize << (vector + lanes);
        run * self.bytes >= 32 || run >= self.run
    }
}
