//! Operands and accumulators of tensor-core matmuls (`mma.sync`, `wgmma`) and of matmuls on the FMA engine, as linear
//! layouts.
//!
//! Source of the orders: the PTX manual's fragment tables of `mma.m16n8k16` and `mma.m16n8k8`.
use super::{Flat, bits_of};

/// How the warps of a block share a matmul of `[m, k]` by `[k, n]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tiling {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// log2 of the warps along m and along n; further warps hold replicas.
    pub warps_m: usize,
    pub warps_n: usize,
    /// log2 of all warps.
    pub warps: usize,
}

/// Lowest bit and count of an operand's axis within its element number.
struct Axis {
    low: u8,
    bits: u8,
}
impl Axis {
    fn bit(&self, i: u8) -> Option<u8> {
        (i < self.bits).then_some(self.low + i)
    }
}

impl Tiling {
    /// Distributes `warps` (log2) over the matmul, along m first if `rows`, else so that each warp's part is about
    /// square. `None` if the matmul is smaller than one instruction (16 × 8 × `k_min`).
    pub fn new([m, n, k]: [usize; 3], k_min: usize, warps: usize, rows: bool) -> Option<Tiling> {
        if m < 16 || n < 8 || k < k_min {
            return None;
        }
        let (max_m, max_n) = (bits_of(&[m / 16]), bits_of(&[n / 8]));
        let (mut wm, mut wn) = (0, 0);
        while wm + wn < warps && (wm < max_m || wn < max_n) {
            let along_m = wn >= max_n || wm < max_m && (rows || m >> wm >= n >> wn);
            if along_m { wm += 1 } else { wn += 1 }
        }
        Some(Tiling { m, n, k, warps_m: wm, warps_n: wn, warps })
    }
    /// Instructions of a warp along m and along n.
    pub fn instructions(&self) -> [usize; 2] {
        [(self.m / 16) >> self.warps_m, (self.n / 8) >> self.warps_n]
    }
    fn warp_bits(&self, along_m: Option<&Axis>, along_n: Option<&Axis>) -> Vec<Option<u8>> {
        let top = |axis: Option<&Axis>, count: usize| -> Vec<Option<u8>> {
            (0..count).map(|i| axis.and_then(|a| a.bit(a.bits - (count - i) as u8))).collect()
        };
        let mut bits = top(along_m, self.warps_m);
        bits.extend(top(along_n, self.warps_n));
        bits.resize(self.warps, None);
        bits
    }
    fn axes(&self, outer: usize, inner: usize) -> (Axis, Axis) {
        let low = bits_of(&[inner]) as u8;
        (Axis { low, bits: bits_of(&[outer]) as u8 }, Axis { low: 0, bits: low })
    }
    /// Accumulator `[m, n]`: register bits n0, m3, then the further instruction tiles along n, then along m.
    pub fn accumulator(&self) -> Flat {
        let (m, n) = self.axes(self.m, self.n);
        let mut registers: Vec<u8> = [n.bit(0), m.bit(3)].into_iter().flatten().collect();
        registers.extend((3..n.bits - self.warps_n as u8).filter_map(|i| n.bit(i)));
        registers.extend((4..m.bits - self.warps_m as u8).filter_map(|i| m.bit(i)));
        let lanes = vec![n.bit(1), n.bit(2), m.bit(0), m.bit(1), m.bit(2)];
        Flat { registers, lanes, warps: self.warp_bits(Some(&m), Some(&n)) }
    }
    /// Left operand `[m, k]` in 16-bit elements (`wide` false) or 32-bit ones.
    pub fn left(&self, wide: bool) -> Flat {
        let (m, k) = self.axes(self.m, self.k);
        let (first, lanes, rest) = match wide {
            false => (vec![k.bit(0), m.bit(3), k.bit(3)], [k.bit(1), k.bit(2)], 4),
            true => (vec![m.bit(3), k.bit(2)], [k.bit(0), k.bit(1)], 3),
        };
        let mut registers: Vec<u8> = first.into_iter().flatten().collect();
        registers.extend((rest..k.bits).filter_map(|i| k.bit(i)));
        registers.extend((4..m.bits - self.warps_m as u8).filter_map(|i| m.bit(i)));
        let lanes = vec![lanes[0], lanes[1], m.bit(0), m.bit(1), m.bit(2)];
        Flat { registers, lanes, warps: self.warp_bits(Some(&m), None) }
    }
    /// Right operand `[k, n]`.
    pub fn right(&self, wide: bool) -> Flat {
        let (k, n) = self.axes(self.k, self.n);
        let (first, lanes, rest) = match wide {
            false => (vec![k.bit(0), k.bit(3)], [k.bit(1), k.bit(2)], 4),
            true => (vec![k.bit(2)], [k.bit(0), k.bit(1)], 3),
        };
        let mut registers: Vec<u8> = first.into_iter().flatten().collect();
        registers.extend((rest..k.bits).filter_map(|i| k.bit(i)));
        registers.extend((3..n.bits - self.warps_n as u8).filter_map(|i| n.bit(i)));
        let lanes = vec![lanes[0], lanes[1], n.bit(0), n.bit(1), n.bit(2)];
        Flat { registers, lanes, warps: self.warp_bits(None, Some(&n)) }
    }
}

/// Accumulator `[m, n]` of `wgmma`: four warps hold 64 rows in the layout of `mma.sync`, further warpgroups hold the
/// upper rows, and the remaining rows lie in further registers.
pub fn warpgroup_accumulator(m: usize, n: usize, warps: usize) -> Flat {
    let (low, columns) = (bits_of(&[n]) as u8, bits_of(&[n]) as u8);
    let row = |i: u8| low + i;
    let rows = bits_of(&[m]) as u8;
    let groups = warps.saturating_sub(2) as u8;
    let upper = rows.saturating_sub(groups).max(6);
    let mut registers = vec![0, row(3)];
    registers.extend(3..columns);
    registers.extend((6..upper).map(row));
    let warps = [Some(row(4)), Some(row(5))].into_iter().chain((upper..upper + groups).map(|i| Some(row(i))));
    Flat { registers, lanes: vec![Some(1), Some(2), Some(row(0)), Some(row(1)), Some(row(2))], warps: warps.collect() }
}

/// Left operand `[m, k]` of `wgmma` in registers, in 32-bit elements: four warps hold 64 rows in the layout of
/// `mma.sync`, and the remaining rows lie as in an accumulator.
pub fn warpgroup_left_wide(m: usize, k: usize, warps: usize) -> Flat {
    let columns = bits_of(&[k]) as u8;
    let mut flat = warpgroup_accumulator(m, k, warps);
    let above = flat.registers.split_off(columns as usize - 1);
    flat.registers = [columns + 3, 2].into_iter().chain(3..columns).chain(above).collect();
    flat.lanes[..2].copy_from_slice(&[Some(0), Some(1)]);
    flat
}

/// Accumulator `[m, n]` of matmuls on the FMA engine from shared tiles. The 4 x 8 lanes of a warp are interleaved over
/// rows and columns, so that neighbouring lanes read the same addresses. Along an axis in which an operand is
/// contiguous (`runs`) a thread holds four neighbours, which are one access; along the other axes neighbours lie in
/// different lanes, whose rows are in different banks of a swizzled tile.
pub fn multiply_add_accumulator([m, n]: [usize; 2], warps: usize, runs: [bool; 2]) -> Flat {
    let (rows, columns) = (bits_of(&[m]) as u8, bits_of(&[n]) as u8);
    let along_m = warps.div_ceil(2) as u8;
    let threads = [2 + along_m, 3 + (warps as u8 - along_m)];
    // Of an axis: the bits selected by the thread number, and those selected by registers.
    let split = |axis: usize, bits: u8| -> (Vec<Option<u8>>, Vec<u8>) {
        let first = if runs[axis] { 2 } else { 0 };
        let low = if axis == 0 { columns } else { 0 };
        let place = |i: u8| (i < bits).then_some(low + i);
        let of_threads = first..first + threads[axis];
        let others = (0..bits).filter(|i| !of_threads.contains(i)).map(|i| low + i);
        (of_threads.clone().map(place).collect(), others.collect())
    };
    let (r, mut registers) = split(0, rows);
    let (c, along_n) = split(1, columns);
    registers.splice(0..0, along_n);
    let lanes = vec![c[0], r[0], c[1], r[1], c[2]];
    Flat { registers, lanes, warps: r[2..].iter().chain(&c[3..]).copied().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warpgroups_hold_their_rows() {
        for (m, n, warps) in [(64, 256, 2), (128, 128, 2), (128, 256, 3), (256, 64, 3)] {
            assert!(warpgroup_accumulator(m, n, warps).covers(bits_of(&[m, n])), "{m} {n} {warps}");
        }
        let flat = warpgroup_accumulator(128, 64, 2);
        // Register i of lane l of warp w: row 16w + l/4 + 8·(i/2 % 2), column 8·(i/4) + 2·(l % 4) + i % 2; then 64 rows
        // on.
        for (i, l, w) in [(0, 0, 0), (1, 5, 0), (2, 31, 3), (7, 17, 2), (32, 3, 1), (61, 30, 3)] {
            let row = 16 * w + l / 4 + 8 * (i / 2 % 2) + 64 * (i / 32);
            let column = 8 * (i % 32 / 4) + 2 * (l % 4) + i % 2;
            assert_eq!(flat.at(i, l, w), row * 64 + column);
        }
    }

    #[test]
    fn wide_left_operands_are_the_manual_s_fragments() {
        for (m, k, warps) in [(64, 8, 2), (64, 32, 2), (128, 32, 2), (128, 64, 3)] {
            assert!(warpgroup_left_wide(m, k, warps).covers(bits_of(&[m, k])), "{m} {k} {warps}");
        }
        let flat = warpgroup_left_wide(128, 32, 2);
        // Register i of lane l of warp w: row 16w + l/4 + 8·(i % 2), column 8·(i/4) + 4·(i/2 % 2) + l % 4; then 64
        // rows on.
        for (i, l, w) in [(0, 0, 0), (1, 5, 0), (2, 31, 3), (7, 17, 2), (16, 3, 1), (31, 30, 3)] {
            let row = 16 * w + l / 4 + 8 * (i % 2) + 64 * (i / 16);
            let column = 8 * (i % 16 / 4) + 4 * (i / 2 % 2) + l % 4;
            assert_eq!(flat.at(i, l, w), row * 32 + column);
        }
    }

    #[test]
    fn multiply_adds_cover_their_blocks() {
        for (shape, warps) in
            [([64, 256], 2), ([64, 128], 2), ([32, 64], 2), ([16, 32], 2), ([64, 64], 3), ([8, 16], 2)]
        {
            for runs in [[false, false], [false, true], [true, false], [true, true]] {
                let flat = multiply_add_accumulator(shape, warps, runs);
                assert!(flat.covers(bits_of(&shape)), "{shape:?} {warps} {runs:?}: {flat:?}");
            }
        }
    }

    #[test]
    fn fragments_cover_their_blocks() {
        for (shape, warps, rows) in
            [([64, 64, 32], 2, false), ([16, 8, 16], 2, false), ([128, 32, 64], 3, true), ([64, 128, 16], 2, false)]
        {
            let t = Tiling::new(shape, 16, warps, rows).unwrap();
            let [m, n, k] = shape;
            assert!(t.accumulator().covers(bits_of(&[m, n])), "{t:?}");
            for wide in [false, true] {
                assert!(t.left(wide).covers(bits_of(&[m, k])), "{t:?}");
                assert!(t.right(wide).covers(bits_of(&[k, n])), "{t:?}");
            }
        }
    }

    /// The manual's tables for one instruction: group g = lane / 4, t = lane % 4.
    #[test]
    fn one_instruction_is_the_manual_s_fragment() {
        let t = Tiling::new([16, 8, 16], 16, 0, false).unwrap();
        let (a, b, c) = (t.left(false), t.right(false), t.accumulator());
        for lane in 0..32 {
            let (g, q) = (lane / 4, lane % 4);
            for i in 0..8 {
                let row = g + if i % 4 >= 2 { 8 } else { 0 };
                let col = q * 2 + (i & 1) + if i >= 4 { 8 } else { 0 };
                assert_eq!(a.at(i, lane, 0), row * 16 + col);
            }
            for i in 0..4 {
                let k = q * 2 + (i & 1) + if i >= 2 { 8 } else { 0 };
                assert_eq!(b.at(i, lane, 0), k * 8 + g);
                let row = g + if i >= 2 { 8 } else { 0 };
                assert_eq!(c.at(i, lane, 0), row * 8 + q * 2 + (i & 1));
            }
        }
    }

    /// Softmax weights pass from the accumulator to the left operand of the next matmul without an exchange between
    /// threads.
    #[test]
    fn accumulator_and_left_operand_share_threads() {
        let scores = Tiling::new([64, 32, 16], 16, 2, true).unwrap().accumulator();
        let weights = Tiling::new([64, 16, 32], 16, 2, true).unwrap().left(false);
        assert_eq!((scores.lanes, scores.warps), (weights.lanes, weights.warps));
    }
}
