//! Left operands of `wgmma` in registers, in f32: loads of M-major tiles from shared memory.
//!
//! A row of a swizzled panel is one position of K. The 32 lanes of a load read eight rows of the matmul at four
//! positions of K; at positions `t` of 0 to 3 two of them would read from the same banks, as a position's bits 1 and 2
//! select pairs of chunks. So odd lanes read position `t + 4` first: the four positions are 0, 5, 2, 7, which fill all
//! banks. The second load takes the others, and each thread puts the two in order.
use super::emit::{Res, Val, mistyped};
use super::r#gen::Gen;
use super::index::Reg;
use super::tiles::Tile;
use inkwell::IntPredicate;
use inkwell::values::PointerValue;
use kiln_block::layout::{Flat, fragment::warpgroup_left_wide};
use kiln_block::{Elem, Swizzle};

/// Bytes of a row of a swizzled panel, and columns of one.
const LINE: usize = 128;
const PANEL: usize = LINE / 4;
/// Positions of K of an instruction.
const STEP: usize = 8;
/// Rows that the warps of a group hold in one register.
const ROWS: usize = 64;
/// log2 of a warpgroup's warps.
const WARPS: usize = 2;
/// Bits of an offset that change four positions of K further: the row, and the chunk in it.
const FOUR_DEEPER: i64 = (4 * LINE + 4 * 16) as i64;
/// Bits that change eight rows of the matmul further: two chunks.
const EIGHT_ROWS: i64 = 2 * 16;

impl<'c> Gen<'c, '_> {
    /// The nearest tf32 number, computed where the program says: roles round operands while matmuls run, and LLVM
    /// would move that behind the wait for these.
    pub fn rounded_here(&self, x: Val<'c>) -> Res<Val<'c>> {
        let e = &self.e;
        let bits = e.asm("cvt.rna.tf32.f32 $0, $1;", "=r,f", Some(e.i32().into()), &[x], true, false)?;
        e.bitcast(bits.ok_or_else(|| mistyped("a rounded number"))?, e.f32())
    }
    /// Whether a block in this layout, of a tile `[K, M]`, is a left operand as `wgmma` has it.
    pub fn is_left_wide(&self, t: &Tile, flat: &Flat) -> bool {
        let swizzled = t.elem == Elem::F32 && t.swizzle == Swizzle::B128 && self.own_warp_bits() == WARPS;
        let whole = t.rows.is_multiple_of(STEP) && t.columns.is_multiple_of(ROWS);
        let (m, k) = (t.columns, t.rows);
        swizzled && whole && *flat == warpgroup_left_wide(m, k, WARPS).permuted(&[m, k], &[1, 0])
    }
    /// Loads it; `base`: start of the stage.
    pub fn load_left_wide(&mut self, t: &Tile, base: PointerValue<'c>) -> Res<Vec<Reg<'c>>> {
        let thread = self.threads.sum(&self.e, &[1, 2, 4, 8, 16, 32, 64])?.value(&self.e, &mut self.memo)?;
        let e = &self.e;
        let (lane, warp) = (e.and(thread, e.int(31))?, e.lshr(thread, e.int(5))?);
        let (position, row) = (e.and(lane, e.int(3))?, e.lshr(lane, e.int(2))?);
        let odd = e.and(lane, e.int(1))?;
        let position = e.add(position, e.mul(odd, e.int(4))?)?;
        // Chunks of 16 bytes: a warp has four of a panel's eight, and reads two of them at a time.
        let chunk = e.add(e.mul(e.and(warp, e.int(1))?, e.int(4))?, e.lshr(row, e.int(2))?)?;
        let chunk = e.mul(e.xor(chunk, position)?, e.int(16))?;
        let panel = e.mul(e.lshr(warp, e.int(1))?, e.int(t.panel_bytes() as i64))?;
        let line = e.add(e.mul(position, e.int(LINE as i64))?, e.mul(e.and(row, e.int(3))?, e.int(4))?)?;
        let offset = e.add(panel, e.add(line, chunk)?)?;
        let turned = e.icmp(IntPredicate::NE, odd, e.int(0))?;
        let mut places = vec![];
        for bits in [0, FOUR_DEEPER, EIGHT_ROWS, EIGHT_ROWS | FOUR_DEEPER] {
            places.push(e.gep(e.i8().into(), base, e.xor(offset, e.int(bits))?)?);
        }
        let mut out = vec![];
        let blocks = (0..t.columns).step_by(ROWS).map(|row| row / PANEL * t.panel_bytes());
        for fixed in blocks.flat_map(|block| (0..t.rows).step_by(STEP).map(move |k| block + k * LINE)) {
            let mut pairs = vec![];
            for pair in places.chunks(2) {
                let mut both = vec![];
                for place in pair {
                    let at = e.gep(e.i8().into(), *place, e.int(fixed as i64))?;
                    both.push(e.load(e.f32().into(), at, 4, false)?);
                }
                pairs.push([e.select(turned, both[1], both[0])?, e.select(turned, both[0], both[1])?]);
            }
            // Rows eight further are the next registers, positions four further those after them.
            let order: Vec<Val<'c>> = (0..2).flat_map(|deeper| pairs.iter().map(move |pair| pair[deeper])).collect();
            out.extend(order.into_iter().map(|v| Reg::of(v, t.elem)));
        }
        Ok(out)
    }
}
