//! Reads of swizzled tiles in the layouts of tensor cores' operands, by `ldmatrix`: four matrices of 8x8 16-bit elements
//! at a time, whose rows of 16 bytes the lanes of a warp give the addresses of.
use super::emit::{Res, SHARED, mistyped};
use super::r#gen::Gen;
use super::index::Reg;
use super::tiles::Tile;
use inkwell::values::PointerValue;
use kiln_block::InstData;
use kiln_block::layout::{Flat, LANE_BITS};

/// Bits of a column within a row of a matrix.
const COLUMN: [Option<u8>; 3] = [Some(0), Some(1), Some(2)];
/// Register bits of the elements that one instruction gives a thread.
const QUAD: usize = 3;

/// How a block's registers come from matrices.
pub(super) struct Matrices {
    /// Which row each lane gives the address of; registers number the instructions.
    rows: Flat,
    /// Lanes get columns of matrices instead of rows.
    transposed: bool,
}

impl Matrices {
    /// `None` if the block in this layout does not consist of matrices.
    pub fn of(t: &Tile, flat: &Flat) -> Option<Matrices> {
        let (lanes, registers) = (&flat.lanes, &flat.registers);
        if t.elem.bytes() != 2 || t.swizzle.span().is_none() || registers.len() < QUAD || lanes.len() != LANE_BITS {
            return None;
        }
        let pair = Some(registers[0]);
        let (columns, rows, transposed) = match lanes[2..] == COLUMN {
            false => ([pair, lanes[0], lanes[1]], [lanes[2], lanes[3], lanes[4]], false),
            true => ([lanes[2], lanes[3], lanes[4]], [pair, lanes[0], lanes[1]], true),
        };
        let matrix = [Some(registers[1]), Some(registers[2])];
        let lanes: Vec<Option<u8>> = rows.into_iter().chain(matrix).collect();
        let whole = columns == COLUMN && lanes.iter().all(|b| b.is_some_and(|b| b as usize >= COLUMN.len()));
        let rows = Flat { registers: registers[QUAD..].to_vec(), lanes, warps: flat.warps.clone() };
        whole.then_some(Matrices { rows, transposed })
    }
}

impl<'c> Gen<'c, '_> {
    /// `shared_load` of a tile in a layout of matrices, and any other.
    pub fn fragment_load(&mut self, data: &InstData) -> Res<Vec<Reg<'c>>> {
        let ([tile, stage], [result]) = (&data.args[..], &data.results[..]) else {
            return Err(mistyped("a load from shared memory"));
        };
        let (t, flat) = (Tile::of(self.k, *tile)?, self.flat(*result)?);
        let Some(matrices) = Matrices::of(&t, &flat).filter(|_| !self.in_matrices(&t, &flat)) else {
            return self.tile_load(data);
        };
        let at = self.staged(*stage, t.stage_bytes())?;
        let base = self.tile_byte(self.places.at(*tile)?, Some(at))?;
        self.load_matrices_of(&t, base, &matrices)
    }
    /// The block from a stage that starts at `base`.
    fn load_matrices_of(&mut self, t: &Tile, base: PointerValue<'c>, m: &Matrices) -> Res<Vec<Reg<'c>>> {
        let places = self.vector_places(t, &m.rows, base)?;
        let transposed = if m.transposed { ".trans" } else { "" };
        let name = format!("llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{transposed}.b16");
        let mut out = vec![];
        for n in 0..m.rows.per_thread() {
            let at = self.vector_place(&places, t.byte_of(m.rows.register(n)))?;
            let quad = self.e.call(&name, &[self.e.ptr(SHARED).into()], &[at.into()])?;
            out.extend(self.unpack(&self.e.fields(quad, 4)?, t.elem)?.into_iter().map(|v| Reg::of(v, t.elem)));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_block::layout::fragment::Tiling;
    use kiln_block::{Elem, Swizzle};

    /// Both operands of a matmul, from tiles of either order, are matrices; each row that a lane gives the address of
    /// holds what the lanes of its register get.
    #[test]
    fn operands_are_matrices() {
        let tiling = Tiling::new([64, 64, 64], 16, 2, false).unwrap();
        let tile = Tile { elem: Elem::F16, rows: 64, columns: 64, swizzle: Swizzle::B128 };
        let swapped = |flat: &Flat| flat.permuted(&[64, 64], &[1, 0]);
        let (left, right) = (tiling.left(false), tiling.right(false));
        for (flat, transposed) in [(&left, false), (&swapped(&left), true), (&right, true), (&swapped(&right), false)] {
            let m = Matrices::of(&tile, flat).unwrap();
            assert_eq!(m.transposed, transposed);
            for (n, word, lane, half) in [(0, 0, 0, 0), (0, 1, 5, 1), (1, 2, 17, 0), (1, 3, 31, 1)] {
                let (row, column) =
                    if transposed { (2 * (lane % 4) + half, lane / 4) } else { (lane / 4, 2 * (lane % 4) + half) };
                let start = m.rows.at(n, 8 * word + row, 0);
                assert_eq!(flat.at(8 * n + 2 * word + half, lane, 0), start + column);
            }
        }
    }
}
