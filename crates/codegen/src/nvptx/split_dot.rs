//! 3xTF32 matmuls by `mma.sync`: operands go through shared memory, and each thread splits what it reads into two tf32
//! numbers.
//!
//! Operands come in the layouts of their loads and are stored in rows of K or of the other axis, whichever their
//! threads hold in vectors. A loop over K reads the fragments of a few instructions at a time: both parts of whole
//! operands do not fit registers. Which element of K an instruction counts as its first is free if both operands agree,
//! so a thread takes neighbours.
//!
//! Tensor cores truncate when they accumulate: each step of K is summed from zero, and added to the other steps in f32.
use super::emit::{Res, Val, float};
use super::exchange::Placement;
use super::r#gen::Gen;
use inkwell::FloatPredicate;
use inkwell::values::{FloatValue, IntValue};
use kiln_block::layout::bits_of;
use kiln_block::layout::fragment::Tiling;
use kiln_block::{Elem, InstData, Value};

/// Elements of K of one instruction, and of one iteration of the loop.
const INSTRUCTION: usize = 8;
const STEP: usize = 16;
const BYTES: usize = 4;
/// Bits of an f32 number below those of a tf32 number, and half of the last one's weight.
const BELOW: i64 = 0x1fff;
const HALF: i64 = 0x1000;

/// An operand in shared memory.
struct Staged<'c> {
    start: usize,
    /// Elements between neighbours along K, and along the other axis.
    along_k: usize,
    across: usize,
    /// The thread's offset in bytes.
    base: IntValue<'c>,
}

/// Registers of an operand of one instruction, by part: the large one and the rest.
type Parts<'c> = [Vec<Val<'c>>; 2];

impl<'c> Gen<'c, '_> {
    pub fn split_dot(&mut self, data: &InstData, t: &Tiling) -> Res<Vec<Val<'c>>> {
        let [a, b] = self.store_operands([data.args[0], data.args[1]], t)?;
        let acc = self.plain(data.args[2])?;
        let step = STEP.min(t.k);
        let end = self.e.int(t.k as i64);
        self.along_k((step, end), &acc, |g, now, sums| g.split_step([&a, &b], t, (now, step), sums))
    }
    /// Adds the products of the elements of K from `now` on.
    fn split_step(
        &mut self,
        [a, b]: [&Staged<'c>; 2],
        t: &Tiling,
        (now, step): (IntValue<'c>, usize),
        sums: &mut [Val<'c>],
    ) -> Res<()> {
        let [m_tiles, n_tiles] = t.instructions();
        let starts = [a, b].map(|s| self.e.add(s.base, self.e.mul(now, self.e.int((s.along_k * BYTES) as i64))?));
        let [from_a, from_b] = starts;
        let (from_a, from_b) = (from_a?, from_b?);
        let mut left = vec![];
        for m in 0..m_tiles {
            for k in (0..step).step_by(INSTRUCTION) {
                let rows = [16 * m, 16 * m + 8];
                left.push(self.fragment(a, from_a, k, &rows)?);
            }
        }
        let deep = step / INSTRUCTION;
        let zero: Val<'c> = self.e.f32().const_zero().into();
        for n in 0..n_tiles {
            let mut right = vec![];
            for k in (0..step).step_by(INSTRUCTION) {
                right.push(self.fragment(b, from_b, k, &[8 * n])?);
            }
            for m in 0..m_tiles {
                let mut c = vec![zero; 4];
                // The smaller products first; that of the two rests is below f32's precision.
                for [x, y] in [[1, 0], [0, 1], [0, 0]] {
                    for k in 0..deep {
                        c = self.tf32_mma(&left[m * deep + k][x], &right[k][y], &c)?;
                    }
                }
                let at = (m * n_tiles + n) * 4;
                for (sum, more) in sums[at..at + 4].iter_mut().zip(c) {
                    *sum = self.e.fadd(float(*sum)?, float(more)?)?.into();
                }
            }
        }
        Ok(())
    }
    /// The thread's elements of one instruction: two neighbours along K of each of these rows (or columns), split.
    fn fragment(&mut self, s: &Staged<'c>, from: IntValue<'c>, k: usize, rows: &[usize]) -> Res<Parts<'c>> {
        let mut neighbours = [vec![], vec![]];
        for row in rows {
            let at = s.start + (k * s.along_k + row * s.across) * BYTES;
            let pair = if s.along_k == 1 {
                let ptr = self.shared_at(from, at)?;
                self.shared_load(ptr, 2, Elem::F32)?
            } else {
                let mut pair = vec![];
                for i in 0..2 {
                    let ptr = self.shared_at(from, at + i * s.along_k * BYTES)?;
                    pair.extend(self.shared_load(ptr, 1, Elem::F32)?);
                }
                pair
            };
            neighbours.iter_mut().zip(pair).for_each(|(all, v)| all.push(v));
        }
        let (mut large, mut rest) = (vec![], vec![]);
        for v in neighbours.concat() {
            let parts = self.split(float(v)?)?;
            large.push(parts[0]);
            rest.push(parts[1]);
        }
        Ok([large, rest])
    }
    /// Two tf32 numbers that add up to a number, to 23 bits: the nearest one, and the rest, of which tensor cores
    /// ignore the last bit at most. An infinity (or what rounds to one) is split into ±1 and the rest, so that it never
    /// meets the other operand's rest, which may be 0. The rest of a NaN is NaN.
    fn split(&mut self, v: FloatValue<'c>) -> Res<[Val<'c>; 2]> {
        let e = &self.e;
        let bits = e.bits_of_float(v, e.i32())?;
        let near = e.and(e.add(bits, e.int(HALF))?, e.int(!BELOW))?;
        let large = e.float_of_bits(near, e.f32())?;
        let size = e.call_float("llvm.fabs", &[large])?;
        let infinite = e.fcmp(FloatPredicate::OEQ, size, e.f32().const_float(f64::INFINITY))?;
        let one = e.call_float("llvm.copysign", &[e.f32().const_float(1.0), v])?;
        let large = e.fselect(infinite, one, large)?;
        let rest = e.fsub(v, large)?;
        Ok([e.bits_of_float(large, e.i32())?.into(), e.bits_of_float(rest, e.i32())?.into()])
    }
    /// Stores both operands.
    fn store_operands(&mut self, operands: [Value; 2], t: &Tiling) -> Res<[Staged<'c>; 2]> {
        let mut plans = vec![];
        for (side, v) in operands.into_iter().enumerate() {
            let flat = self.flat(v)?;
            let across = if side == 0 { t.m } else { t.n };
            let deep = [true, false].map(|deep| placement(side, [t.k, across], deep));
            // Reading costs the same either way.
            let deep = deep[1].cost(&flat, BYTES) >= deep[0].cost(&flat, BYTES);
            plans.push((v, flat, placement(side, [t.k, across], deep), deep));
        }
        let sizes: Vec<usize> = plans.iter().map(|p| p.2.elements * BYTES).collect();
        let starts = self.room(&sizes)?;
        for ((v, flat, place, _), start) in plans.iter().zip(&starts) {
            let values = self.plain(*v)?;
            self.scatter(flat, place, *start, &values, Elem::F32)?;
        }
        self.filled()?;
        let mut out = vec![];
        for (side, ((_, _, _, deep), start)) in plans.iter().zip(&starts).enumerate() {
            let across = if side == 0 { t.m } else { t.n };
            let [along_k, across] = strides([t.k, across], *deep);
            let weights = own_rows(side, t, [along_k, across]);
            let base = self.threads.sum(&self.e, &weights)?.value(&self.e, &mut self.memo)?;
            out.push(Staged { start: *start, along_k, across, base });
        }
        out.try_into().map_err(|_| super::emit::mistyped("a matmul"))
    }
}

/// What each bit of the thread's index adds to the offset in bytes of its first element: pairs of K by lane, and the
/// warp's rows (or columns).
fn own_rows(side: usize, t: &Tiling, [along_k, across]: [usize; 2]) -> Vec<i64> {
    let columns = bits_of(&[t.n]) as u8;
    let warp = |bit: Option<u8>| match (bit, side) {
        (Some(b), 0) if b >= columns => across << (b - columns),
        (Some(b), 1) if b < columns => across << b,
        _ => 0,
    };
    let lanes = [2 * along_k, 4 * along_k, across, 2 * across, 4 * across];
    let warps = t.accumulator().warps.into_iter().map(warp);
    lanes.into_iter().chain(warps).map(|w| (w * BYTES) as i64).collect()
}

/// Elements between rows of a staged operand, so that the lanes of a warp read from different banks: four rows of four
/// pairs (K in rows), or eight neighbours of four pairs of rows.
fn pitch(row: usize, deep: bool) -> usize {
    row + if deep { 8 } else { 4 }
}

/// Elements between neighbours along K and along the other axis.
fn strides([k, across]: [usize; 2], deep: bool) -> [usize; 2] {
    if deep { [1, pitch(k, true)] } else { [pitch(across, false), 1] }
}

/// Where the elements of an operand are: in rows along K (`deep`), or along the other axis. `side`: 0 for `[m, k]`, 1
/// for `[k, n]`.
fn placement(side: usize, [k, across]: [usize; 2], deep: bool) -> Placement {
    let (low, high) = if side == 0 { (k, across) } else { (across, k) };
    let low = bits_of(&[low]) as u8;
    let all = low + bits_of(&[high]) as u8;
    // Does the operand's number count along the rows first?
    let order: Vec<u8> = if deep == (side == 0) { (0..all).collect() } else { (low..all).chain(0..low).collect() };
    let row = if deep { k } else { across };
    Placement::of(&order, bits_of(&[row]), pitch(row, deep) - row)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One instruction's reads: 64-bit ones by half warps, 32-bit ones by warps.
    #[test]
    fn fragments_are_read_without_bank_conflicts() {
        for row in [16, 32, 64, 128, 256] {
            let banks = |lanes: std::ops::Range<usize>, at: &dyn Fn(usize, usize) -> usize, words: usize| {
                let all = lanes.flat_map(|l| (0..words).map(move |w| (l, w)));
                let mut all: Vec<usize> = all.map(|(l, w)| (at(l / 4, l % 4) + w) % 32).collect();
                all.sort_unstable();
                all.dedup();
                all.len()
            };
            let (deep, flat) = (pitch(row, true), pitch(row, false));
            assert_eq!(banks(0..16, &|g, t| g * deep + 2 * t, 2), 32, "{row}");
            assert_eq!(banks(0..32, &|g, t| 2 * t * flat + g, 1), 32, "{row}");
        }
    }

    /// Lane 4·g + t of an instruction has sums of row g (and g + 8) by columns 2·t and 2·t + 1, reads row g of the left
    /// operand and column g of the right one, and elements t and t + 4 of K, which are 2·t and 2·t + 1 here (PTX
    /// manual, `mma.m16n8k8`).
    #[test]
    fn sums_are_those_of_the_rows_and_columns_that_are_read() {
        for (shape, warps) in
            [([64, 64, 128], 3), ([16, 64, 16], 2), ([64, 16, 32], 3), ([128, 32, 64], 3), ([32, 128, 64], 2)]
        {
            let t = Tiling::new(shape, 8, warps, true).unwrap();
            let [m, n, k] = shape;
            let [m_tiles, n_tiles] = t.instructions();
            for deep in [true, false] {
                // The offset that a lane reads, as the code adds it up, by its element of K and the first row of the
                // instruction.
                let read = |side: usize, thread: usize, at_k: usize, row: usize| {
                    let [along_k, across] = strides([k, if side == 0 { m } else { n }], deep);
                    let weights = own_rows(side, &t, [along_k, across]);
                    let own: i64 = (0..5 + warps).filter(|b| thread >> b & 1 == 1).map(|b| weights[b]).sum();
                    own as usize + (at_k * along_k + row * across) * BYTES
                };
                let places = [placement(0, [k, m], deep), placement(1, [k, n], deep)];
                for thread in 0..32 << warps {
                    let (warp, group, lane) = (thread >> 5, thread >> 2 & 7, thread & 3);
                    for (i, j, r) in
                        (0..m_tiles).flat_map(|i| (0..n_tiles).flat_map(move |j| (0..4).map(move |r| (i, j, r))))
                    {
                        let sum = t.accumulator().at((i * n_tiles + j) * 4 + r, thread & 31, warp);
                        let (row, column) = (sum / n, sum % n);
                        // Whoever reads element 2·l + next of K for this row and for this column.
                        for (l, next) in [(0, 0), (3, 1)] {
                            let at_k = 8 + next;
                            let left = (warp << 5) + (group << 2) + l;
                            let right = (warp << 5) + ((2 * lane + r % 2) << 2) + l;
                            let element = 8 + 2 * l + next;
                            let want = [places[0].at(row * k + element), places[1].at(element * n + column)];
                            let got = [read(0, left, at_k, 16 * i + 8 * (r / 2)), read(1, right, at_k, 8 * j)];
                            assert_eq!(got, want.map(|at| at * BYTES), "{shape:?} {deep} {thread} {i} {j} {r}");
                        }
                    }
                }
            }
        }
    }
}
