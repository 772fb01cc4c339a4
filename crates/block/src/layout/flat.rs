//! Linear layouts on row-major element numbers.
use super::Layout;
use std::ops::Range;

/// Bits of a lane's number.
pub const LANE_BITS: usize = 5;

/// Bits of an element's number in a block of this shape.
pub fn bits_of(shape: &[usize]) -> usize {
    shape.iter().map(|n| n.trailing_zeros() as usize).sum()
}

/// Bits of the element number that hold the coordinate on `axis`, lowest first.
pub fn axis_bits(shape: &[usize], axis: usize) -> Range<u8> {
    let low = bits_of(&shape[(axis + 1).min(shape.len())..]) as u8;
    low..low + bits_of(&shape[axis..=axis]) as u8
}

/// Which bit of the element number each register, lane and warp bit sets. Each element bit occurs exactly once; lane
/// and warp bits without one select replicas.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flat {
    pub registers: Vec<u8>,
    pub lanes: Vec<Option<u8>>,
    pub warps: Vec<Option<u8>>,
}

impl Flat {
    /// The layout of a scalar: a replica in every thread.
    pub fn scalar(warp_bits: usize) -> Flat {
        Flat { registers: vec![], lanes: vec![None; 5], warps: vec![None; warp_bits] }
    }
    pub fn per_thread(&self) -> usize {
        1 << self.registers.len()
    }
    /// Number of the element in register `r` of lane `l` of warp `w`.
    pub fn at(&self, r: usize, l: usize, w: usize) -> usize {
        let set = |bits: &[Option<u8>], n: usize| -> usize {
            bits.iter().enumerate().filter(|(i, _)| n >> i & 1 == 1).filter_map(|(_, b)| *b).map(|b| 1usize << b).sum()
        };
        self.register(r) + set(&self.lanes, l) + set(&self.warps, w)
    }
    /// Offset of register `r` in the element number.
    pub fn register(&self, r: usize) -> usize {
        self.registers.iter().enumerate().filter(|(i, _)| r >> i & 1 == 1).map(|(_, b)| 1usize << b).sum()
    }
    /// The register whose offset in the element number is `element`, if all bits of it are register bits.
    pub fn register_of(&self, element: usize) -> Option<usize> {
        let r: usize =
            self.registers.iter().enumerate().filter(|(_, b)| element >> **b & 1 == 1).map(|(i, _)| 1usize << i).sum();
        (self.register(r) == element).then_some(r)
    }
    /// Whether each of `bits` element bits occurs exactly once.
    pub fn covers(&self, bits: usize) -> bool {
        let mut seen = vec![0; bits];
        let places = self.registers.iter().copied().map(Some).chain(self.lanes.iter().chain(&self.warps).copied());
        for b in places.flatten() {
            match seen.get_mut(b as usize) {
                Some(n) => *n += 1,
                None => return false,
            }
        }
        seen.iter().all(|n| *n == 1) && self.lanes.len() == 5
    }
    /// Renumbers every element bit; bits that map to `None` are dropped (registers) or become replicas (lanes, warps).
    pub fn map(&self, f: impl Fn(u8) -> Option<u8>) -> Flat {
        let opt = |bits: &[Option<u8>]| bits.iter().map(|b| b.and_then(&f)).collect();
        Flat {
            registers: self.registers.iter().filter_map(|b| f(*b)).collect(),
            lanes: opt(&self.lanes),
            warps: opt(&self.warps),
        }
    }
    /// Removes the bits in `gone` and closes the gap: a slice along an axis.
    pub fn without(&self, gone: &Range<u8>) -> Flat {
        let n = gone.len() as u8;
        self.map(|b| match b {
            b if gone.contains(&b) => None,
            b if b >= gone.end => Some(b - n),
            b => Some(b),
        })
    }
    /// The layout of a block that joins two of this layout: each thread has the pairs of its elements.
    pub fn joined(&self) -> Flat {
        let mut pairs = self.map(|b| Some(b + 1));
        pairs.registers.insert(0, 0);
        pairs
    }
    /// The layout of both halves of a last axis of 2, if each thread has whole pairs.
    pub fn halves(&self) -> Option<Flat> {
        self.registers.contains(&0).then(|| self.without(&(0..1)))
    }
    /// The layout of a slice of shape `to` along `axis` of a block of shape `from`.
    pub fn part(&self, from: &[usize], to: &[usize], axis: usize) -> Flat {
        let (old, new) = (axis_bits(from, axis), axis_bits(to, axis));
        self.without(&(old.start + new.len() as u8..old.end))
    }
    /// The operand's layout in a broadcast from `from` to `to` whose result has this layout.
    pub fn unbroadcast(&self, from: &[usize], to: &[usize]) -> Flat {
        let mut at = self.clone();
        // From the outermost axis inwards, so that the bits of axes not processed yet keep their positions.
        for axis in 0..to.len().min(from.len()) {
            if from[axis] != to[axis] {
                let mut now = to.to_vec();
                now[..axis].copy_from_slice(&from[..axis]);
                at = at.without(&axis_bits(&now, axis));
            }
        }
        at
    }
    /// The result's layout in a permutation of an operand of shape `from` that has this layout.
    pub fn permuted(&self, from: &[usize], perm: &[u8]) -> Flat {
        let moves = permutation(from, perm);
        self.map(|b| moves.iter().find(|m| m.0 == b).map(|m| m.1))
    }
    /// The operand's layout in a permutation whose operand has shape `from` and whose result has this layout.
    pub fn unpermuted(&self, from: &[usize], perm: &[u8]) -> Flat {
        let moves = permutation(from, perm);
        self.map(|b| moves.iter().find(|m| m.1 == b).map(|m| m.0))
    }
    /// Element bits of the thread number's bits (lane bits, then warp bits).
    pub fn threads(&self) -> impl Iterator<Item = Option<u8>> + '_ {
        self.lanes.iter().chain(&self.warps).copied()
    }
    /// A blocked layout: runs of `vector` elements along `order[0]` in a thread, then lanes, then warps, then further
    /// registers, over the axes in `order` (fastest first). Warps take bits of axes outside `reduced` first, so that
    /// reductions along `reduced` stay within a warp.
    pub fn blocked(shape: &[usize], order: &[usize], vector: usize, warp_bits: usize, reduced: &[usize]) -> Flat {
        Flat::blocked_by(shape, order, (vector, LANE_BITS), warp_bits, reduced)
    }
    /// The same with at most 2^`along` lanes along `order[0]`, as far as other axes have elements for the rest.
    pub fn blocked_by(
        shape: &[usize],
        order: &[usize],
        (vector, along): (usize, usize),
        warp_bits: usize,
        reduced: &[usize],
    ) -> Flat {
        let bits: Vec<u8> = order.iter().flat_map(|a| axis_bits(shape, *a)).collect();
        let fastest = order.first().map_or(0, |a| axis_bits(shape, *a).len());
        Flat::in_order(shape, (bits, fastest), (vector, along), warp_bits, reduced)
    }
    /// The same for pointers that are contiguous across two axes: `count` neighbours along `across`, then further along
    /// `order[0]`.
    pub fn interleaved(
        shape: &[usize],
        (across, count): (usize, usize),
        order: &[usize],
        (vector, along): (usize, usize),
        warp_bits: usize,
        reduced: &[usize],
    ) -> Flat {
        let own = axis_bits(shape, across).take(count.max(1).ilog2() as usize);
        let others = order.iter().flat_map(|a| axis_bits(shape, *a)).filter(|b| !own.clone().any(|o| o == *b));
        let bits: Vec<u8> = own.clone().chain(others).collect();
        let fastest = own.count() + order.first().map_or(0, |a| axis_bits(shape, *a).len());
        Flat::in_order(shape, (bits, fastest), (vector, along), warp_bits, reduced)
    }
    /// The same for bits of the element number in their order in memory, of which the first `fastest` are contiguous.
    fn in_order(
        shape: &[usize],
        (mut bits, fastest): (Vec<u8>, usize),
        (vector, along): (usize, usize),
        warp_bits: usize,
        reduced: &[usize],
    ) -> Flat {
        let axis_of = |bit: u8| (0..shape.len()).find(|a| axis_bits(shape, *a).contains(&bit)).unwrap_or(0);
        let first = (vector.max(1).ilog2() as usize).min(fastest);
        let mut registers: Vec<u8> = bits.drain(..first).collect();
        let mut lanes: Vec<Option<u8>> = take_lanes(&mut bits, fastest - first, along).into_iter().map(Some).collect();
        let mut warps = vec![];
        for _ in 0..warp_bits {
            let at = bits.iter().position(|b| !reduced.contains(&axis_of(*b))).or((!bits.is_empty()).then_some(0));
            warps.push(at.map(|i| bits.remove(i)));
        }
        lanes.resize(LANE_BITS, None);
        registers.extend(bits);
        Flat { registers, lanes, warps }
    }
    /// As [`Flat::blocked`], for a scan along `axis`: a thread holds consecutive elements of the axis, as far as vector
    /// accesses allow, and warps hold what is furthest apart. So threads and warps exchange totals rather than
    /// elements.
    pub fn scanned(
        shape: &[usize],
        order: &[usize],
        (vector, along): (usize, usize),
        warp_bits: usize,
        axis: usize,
    ) -> Flat {
        let mut bits: Vec<u8> = order.iter().flat_map(|a| axis_bits(shape, *a)).collect();
        let fastest = order.first().map_or(0, |a| axis_bits(shape, *a).len());
        let first = (vector.max(1).ilog2() as usize).min(fastest);
        let mut registers: Vec<u8> = bits.drain(..first).collect();
        let own = axis_bits(shape, axis);
        if order.first() != Some(&axis) {
            let spare = bits.len().saturating_sub(5 + warp_bits);
            registers.extend(own.clone().take(spare));
            bits.retain(|b| !registers.contains(b));
        }
        let fastest = if order.first() == Some(&axis) { fastest - first } else { bits.len() };
        let mut lanes: Vec<Option<u8>> = take_lanes(&mut bits, fastest, along).into_iter().map(Some).collect();
        lanes.resize(LANE_BITS, None);
        let mut warps: Vec<Option<u8>> = vec![];
        for _ in 0..warp_bits {
            let at = bits.iter().position(|b| !own.contains(b)).or(bits.len().checked_sub(1));
            warps.push(at.map(|i| bits.remove(i)));
        }
        registers.extend(bits);
        Flat { registers, lanes, warps }
    }
    /// The same layout on coordinates.
    pub fn layout(&self, shape: &[usize]) -> Layout {
        let basis = |bit: Option<u8>| -> Vec<u32> {
            let one = |a: usize| match bit {
                Some(b) if axis_bits(shape, a).contains(&b) => 1u32 << (b - axis_bits(shape, a).start),
                _ => 0,
            };
            (0..shape.len()).map(one).collect()
        };
        Layout {
            registers: self.registers.iter().map(|b| basis(Some(*b))).collect(),
            lanes: self.lanes.iter().map(|b| basis(*b)).collect(),
            warps: self.warps.iter().map(|b| basis(*b)).collect(),
        }
    }
}

/// Takes the bits of a warp's lanes: at most `along` of the first `fastest` bits, then those behind them, then what is
/// left.
fn take_lanes<T>(bits: &mut Vec<T>, fastest: usize, along: usize) -> Vec<T> {
    let own = fastest.min(along).min(LANE_BITS).min(bits.len());
    let mut lanes: Vec<T> = bits.drain(..own).collect();
    let others = (fastest - own).min(bits.len());
    let more = (bits.len() - others).min(LANE_BITS - own);
    lanes.extend(bits.drain(others..others + more));
    let rest = bits.len().min(LANE_BITS - lanes.len());
    lanes.extend(bits.drain(..rest));
    lanes
}

/// Pairs (bit of the operand, bit of the result) of a permutation of axes.
fn permutation(from: &[usize], perm: &[u8]) -> Vec<(u8, u8)> {
    let to: Vec<usize> = perm.iter().map(|p| from[*p as usize]).collect();
    let axis = |(i, p): (usize, &u8)| axis_bits(from, *p as usize).zip(axis_bits(&to, i)).collect::<Vec<_>>();
    perm.iter().enumerate().flat_map(axis).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element is held in exactly `copies` places.
    fn check_covers(flat: &Flat, elements: usize, copies: usize) {
        let mut held = vec![0; elements];
        for w in 0..1 << flat.warps.len() {
            for l in 0..32 {
                (0..flat.per_thread()).for_each(|r| held[flat.at(r, l, w)] += 1);
            }
        }
        assert!(held.iter().all(|n| *n == copies), "{flat:?}: {held:?}");
    }

    #[test]
    fn blocked_covers_each_element_once() {
        for (shape, order, v) in [
            (vec![1024], vec![0], 4),
            (vec![4, 256], vec![1, 0], 8),
            (vec![64, 64], vec![0, 1], 4),
            (vec![2, 32, 16], vec![2, 1, 0], 2),
        ] {
            for reduced in [vec![], vec![shape.len() - 1]] {
                let flat = Flat::blocked(&shape, &order, v, 2, &reduced);
                let n: usize = shape.iter().product();
                check_covers(&flat, n, 1);
                assert!(flat.covers(bits_of(&shape)));
            }
        }
    }

    /// Along the contiguous axis, registers take lower bits than warps; along another axis, lower bits than lanes.
    #[test]
    fn scanned_neighbours_stay_in_a_thread() {
        for (shape, order, v, axis) in [
            (vec![2048], vec![0], 4, 0),
            (vec![4, 256], vec![1, 0], 8, 1),
            (vec![256, 32], vec![1, 0], 4, 0),
            (vec![512, 16], vec![1, 0], 1, 0),
            (vec![16, 4], vec![1, 0], 1, 0),
        ] {
            let flat = Flat::scanned(&shape, &order, (v, LANE_BITS), 2, axis);
            let n: usize = shape.iter().product();
            check_covers(&flat, n, if n < 128 { 128 / n } else { 1 });
        }
        let across = Flat::scanned(&[256, 32], &[1, 0], (4, LANE_BITS), 2, 0);
        assert_eq!(across.registers, [0, 1, 5, 6, 7, 8], "four columns of sixteen rows");
        assert_eq!(across.warps, [Some(12), Some(11)]);
        let along = Flat::scanned(&[2048], &[0], (4, LANE_BITS), 2, 0);
        assert_eq!((&along.registers[..], &along.warps[..]), (&[0, 1, 7, 8][..], &[Some(10), Some(9)][..]));
    }

    #[test]
    fn small_blocks_are_copied() {
        let flat = Flat::blocked(&[16], &[0], 4, 2, &[]);
        check_covers(&flat, 16, 32);
    }

    #[test]
    fn rows_stay_in_a_warp() {
        let flat = Flat::blocked(&[4, 256], &[1, 0], 4, 2, &[1]);
        assert_eq!(flat.warps, vec![Some(8), Some(9)]);
        let rows = flat.without(&axis_bits(&[4, 256], 1));
        check_covers(&rows, 4, 32);
    }

    #[test]
    fn permuting_there_and_back() {
        let (shape, perm) = ([4, 8, 16], [2, 0, 1]);
        let flat = Flat::blocked(&shape, &[2, 1, 0], 2, 1, &[]);
        let there = flat.permuted(&shape, &perm);
        assert_eq!(there.unpermuted(&shape, &perm), flat);
        for (r, l, w) in [(0, 0, 0), (3, 7, 1), (5, 31, 0)] {
            let n = flat.at(r, l, w);
            let (i, j, k) = (n / 128, n / 16 % 8, n % 16);
            assert_eq!(there.at(r, l, w), k * 32 + i * 8 + j);
        }
    }

    #[test]
    fn broadcast_operands_are_slices() {
        let to = [4, 8, 16];
        let flat = Flat::blocked(&to, &[2, 1, 0], 2, 2, &[]);
        for from in [[1, 8, 16], [4, 1, 16], [4, 8, 1], [1, 8, 1], [1, 1, 1]] {
            let part = flat.unbroadcast(&from, &to);
            assert!(part.covers(bits_of(&from)));
            for w in 0..4 {
                for l in 0..32 {
                    let n = flat.at(0, l, w);
                    let (i, j, k) = (n / 128 % from[0], n / 16 % 8 % from[1], n % 16 % from[2]);
                    assert_eq!(part.at(0, l, w), (i * from[1] + j) * from[2] + k);
                }
            }
        }
    }
}
