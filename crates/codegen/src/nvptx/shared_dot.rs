//! Matmuls of shared tiles on the FMA engine: every thread computes a part of the result in registers and reads
//! operands 16 bytes at a time.
//!
//! A K-major tile gives a thread four elements along K of one row of the result per read; an M- or N-major tile gives
//! four neighbours at one position of K. The layout of the accumulators (`fragment::multiply_add_accumulator`) has
//! neighbours in different lanes in the first case and in one thread in the second, so that neither has bank conflicts.
use super::emit::{Fail, Res, Val, int, mistyped};
use super::r#gen::Gen;
use super::index::Reg;
use super::tiles::Tile;
use inkwell::values::{IntValue, PointerValue};
use kiln_block::layout::{Flat, axis_bits};
use kiln_block::{Elem, InstData, Swizzle, Terms, Value};

/// Elements per read.
const READ: usize = 4;
/// Elements of K per iteration of the loop; a swizzled tile repeats its pattern after as many rows.
const TRIP: usize = 8;
/// Bytes of a row of a swizzled panel.
const LINE: usize = 128;

/// An operand as one thread reads it.
struct Side<'c> {
    tile: Tile,
    /// The tile is K-major: its rows are contiguous along K.
    deep: bool,
    /// Start of the stage, plus the thread's rows (K-major) or its panel (M- or N-major).
    base: PointerValue<'c>,
    /// What the thread's rows XOR into the number of a 16-byte chunk (the swizzle).
    turn: IntValue<'c>,
    /// Positions along the result's axis that registers add, ascending, and for each accumulator register which of them
    /// it has.
    positions: Vec<usize>,
    of: Vec<usize>,
}

impl<'c> Gen<'c, '_> {
    pub fn shared_dot(&mut self, data: &InstData, terms: Terms, transposed: [bool; 2]) -> Res<Vec<Reg<'c>>> {
        let [a, sa, b, sb, acc, ref there @ ..] = data.args[..] else { return Err(mistyped("a matmul")) };
        let flat = self.flat(data.results[0])?;
        let shape = self.k.ty(data.results[0]).shape().to_vec();
        let sides = [
            self.read_side(&flat, &shape, 0, a, sa, !transposed[0])?,
            self.read_side(&flat, &shape, 1, b, sb, transposed[1])?,
        ];
        let depth = if transposed[0] { sides[0].tile.rows } else { sides[0].tile.columns };
        if !depth.is_multiple_of(TRIP) {
            return Err(Fail::Unsupported(format!("a matmul of tiles {depth} deep")));
        }
        // Past the valid part of K tiles are zero.
        let end = match there.first() {
            Some(n) => int(self.plain(*n)?[0])?,
            None => self.e.int(depth as i64),
        };
        let starts = self.plain(acc)?;
        let sums = self.along_k((TRIP, end), &starts, |g, now, sums| {
            (0..TRIP).step_by(READ).try_for_each(|first| g.four_of_k(terms, &sides, (now, first), sums))
        })?;
        // Any lane may release the stage next, on behalf of all lanes.
        self.effect("bar.warp.sync", &[self.e.int(-1).into()])?;
        Ok(sums.into_iter().map(Reg::Plain).collect())
    }
    /// Adds the products at four positions of K, from `now + first` on. Reads of the right operand are placed next to
    /// their FMAs, so that few are held at once. Rows go up and down alternately: each FMA shares an operand with the
    /// one before, which leaves two registers to read, one from each bank.
    fn four_of_k(
        &mut self,
        terms: Terms,
        [a, b]: &[Side<'c>; 2],
        (now, first): (IntValue<'c>, usize),
        sums: &mut [Val<'c>],
    ) -> Res<()> {
        let left = self.read(a, now, first, 0..a.positions.len())?;
        let together = if b.deep { 1 } else { READ };
        for column in (0..b.positions.len()).step_by(together) {
            let right = self.read(b, now, first, column..column + together)?;
            let mut order: Vec<usize> =
                (0..sums.len()).filter(|&r| (column..column + together).contains(&b.of[r])).collect();
            let row = |r: usize| if b.of[r] % 2 == 0 { a.of[r] } else { a.positions.len() - a.of[r] };
            order.sort_by_key(|&r| (b.of[r], row(r)));
            for (x, y) in left.iter().zip(&right) {
                for &r in &order {
                    sums[r] = self.e.term(terms, x[a.of[r]], y[b.of[r] - column], sums[r])?;
                }
            }
        }
        Ok(())
    }
    /// For each of four positions of K, the elements at some of the thread's positions.
    fn read(
        &mut self,
        s: &Side<'c>,
        now: IntValue<'c>,
        first: usize,
        which: std::ops::Range<usize>,
    ) -> Res<Vec<Vec<Val<'c>>>> {
        let mut all = vec![vec![]; READ];
        if s.deep {
            // The chunk's number, swizzled by the row's.
            let chunk = self.e.add(self.e.lshr(now, self.e.int(2))?, self.e.int((first / READ) as i64))?;
            let chunk = self.e.shl(self.e.xor(chunk, s.turn)?, self.e.int(4))?;
            let row = self.e.gep(self.e.i8().into(), s.base, chunk)?;
            for position in &s.positions[which] {
                let at = self.e.gep(self.e.i8().into(), row, self.e.int((position * LINE) as i64))?;
                let values = self.shared_load(at, READ, Elem::F32)?;
                all.iter_mut().zip(values).for_each(|(row, v)| row.push(v));
            }
            return Ok(all);
        }
        let pitch = s.tile.row_bytes();
        let rows = self.e.gep(self.e.i8().into(), s.base, self.e.mul(now, self.e.int(pitch as i64))?)?;
        for (k, row) in all.iter_mut().enumerate() {
            let k = first + k;
            let mut at = self.e.gep(self.e.i8().into(), rows, self.e.int((k * pitch) as i64))?;
            if s.tile.swizzle == Swizzle::B128 {
                let chunk = self.e.xor(s.turn, self.e.int((k % 8) as i64))?;
                at = self.e.gep(self.e.i8().into(), at, self.e.shl(chunk, self.e.int(4))?)?;
            }
            for group in s.positions[which.clone()].chunks(READ) {
                let fixed = group[0] * 4 / pitch * s.tile.panel_bytes() + group[0] * 4 % pitch;
                let at = self.e.gep(self.e.i8().into(), at, self.e.int(fixed as i64))?;
                row.extend(self.shared_load(at, READ, Elem::F32)?);
            }
        }
        Ok(all)
    }
    fn read_side(
        &mut self,
        flat: &Flat,
        shape: &[usize],
        axis: usize,
        tile: Value,
        stage: Value,
        deep: bool,
    ) -> Res<Side<'c>> {
        let t = Tile::of(self.k, tile)?;
        let bits = axis_bits(shape, axis);
        let weight = |b: u8| if bits.contains(&b) { 1usize << (b - bits.start) } else { 0 };
        let parts: Vec<usize> = flat.threads().map(|b| b.map_or(0, weight)).collect();
        let registers: Vec<usize> = flat.registers.iter().map(|b| weight(*b)).collect();
        let part = |r: usize| registers.iter().enumerate().filter(|(i, _)| r >> i & 1 == 1).map(|(_, w)| w).sum();
        let each: Vec<usize> = (0..flat.per_thread()).map(part).collect();
        let mut positions = each.clone();
        positions.sort_unstable();
        positions.dedup();
        let of = each.iter().map(|p| positions.binary_search(p).unwrap_or(0)).collect();
        let swizzled = t.swizzle == Swizzle::B128;
        let line = t.row_bytes() == LINE;
        // Registers step by whole periods of the swizzle, and in runs of four.
        let fits = match deep {
            true => swizzled && line && t.panels() == 1 && registers.iter().all(|w| w % 8 == 0),
            false => {
                let runs = positions.chunks(READ).all(|c| c.len() == READ && c[3] == c[0] + 3 && c[0] % READ == 0);
                let whole = registers.iter().all(|w| *w < READ || !swizzled || w * 4 % LINE == 0);
                runs && whole && (swizzled && line || t.swizzle == Swizzle::None)
            }
        };
        if t.elem != Elem::F32 || !fits {
            return Err(Fail::Unsupported(format!("a matmul of {} tiles swizzled {}", t.elem, t.swizzle)));
        }
        // Bytes of whole rows or panels, and the chunk within the swizzle's pattern.
        let panel = LINE / 4;
        let (fixed, turn): (Vec<i64>, Vec<i64>) = (parts.iter())
            .map(|&w| match deep {
                true => ((w * LINE) as i64, if w < 8 { w as i64 } else { 0 }),
                false if !swizzled => ((w * 4) as i64, 0),
                false if w < panel => (0, (w / READ) as i64),
                false => ((w / panel * t.panel_bytes()) as i64, 0),
            })
            .unzip();
        let at = self.staged(stage, t.stage_bytes())?;
        let start = self.tile_byte(self.places.at(tile)?, Some(at))?;
        let fixed = self.threads.sum(&self.e, &fixed)?.value(&self.e, &mut self.memo)?;
        let turn = self.threads.sum(&self.e, &turn)?.value(&self.e, &mut self.memo)?;
        let base = self.e.gep(self.e.i8().into(), start, fixed)?;
        Ok(Side { tile: t, deep, base, turn, positions, of })
    }
}
