//! Accesses that differ in their offsets alone, as those of a window: a thread's loads, and an instance's sectors,
//! serve several of them.
use crate::cost::features::SpanPattern;
use crate::cost::price::TiledAccess;
use kiln_block::passes::layout::WINDOW;
use kiln_machine::isa::SECTOR;

/// Most spans of memory that are compared with each other.
const SPANS: usize = 2048;

/// The accesses that differ from the n-th in their offsets alone, if it is the first of these.
fn alike(accesses: &[TiledAccess], n: usize, among: impl Fn(&TiledAccess) -> bool) -> Option<Vec<usize>> {
    let of = accesses[n].access;
    let like = |s: &TiledAccess| among(s) && s.access.slot == of.slot && s.access.same_strides_as == of.same_strides_as;
    let is_first = like(&accesses[n]) && !accesses[..n].iter().any(like);
    is_first.then(|| (n..accesses.len()).filter(|m| like(&accesses[*m])).collect())
}

/// Counts sectors once that several accesses of a tile touch. `inside`: extents of coordinates in the tile.
pub(super) fn share_sectors(accesses: &mut [TiledAccess], inside: impl Fn(usize) -> usize) {
    for n in 0..accesses.len() {
        let Some(all) = alike(accesses, n, |s| !s.again && !s.access.store).filter(|all| all.len() > 1) else {
            continue;
        };
        let offsets: Vec<i64> = all.iter().map(|m| accesses[*m].access.offset).collect();
        let pattern = accesses[n].access.span_pattern(&inside, accesses[n].access.gap());
        let shared = shared_sectors(&offsets, &pattern, accesses[n].access.bytes);
        all.into_iter().for_each(|m| accesses[m].spans *= shared);
    }
}

/// What a thread has along a coordinate.
pub(super) struct ThreadWindow {
    pub neighbours: usize,
    /// Of these so many have one mask.
    pub masked: usize,
    /// They are all elements along it.
    pub whole: bool,
}

/// Counts a window's loads of a thread, which has these elements along coordinate `last`.
pub(super) fn share_loads(accesses: &mut [TiledAccess], last: usize, thread: ThreadWindow) {
    for n in 0..accesses.len() {
        let access = accesses[n].access;
        let Some(stride) = access.strides[last] else { continue };
        let Some(all) = alike(accesses, n, |s| !s.access.store).filter(|all| all.len() >= WINDOW) else { continue };
        let neighbours = if stride == 0 { 1 } else { thread.neighbours };
        // Along a coordinate without a stride, any element may follow.
        let others = access.strides.iter().enumerate().filter(|(i, _)| *i != last).map(|(_, s)| s.unwrap_or(1));
        let bytes = |stride: i64| stride.unsigned_abs() as usize * access.bytes;
        let next = if thread.whole { 0 } else { stride * neighbours as i64 };
        let strides = others.chain([next]).filter(|s| *s != 0);
        let align = strides.map(|s| bytes(s).trailing_zeros()).fold(4, u32::min);
        let vector = ((1usize << align) / access.bytes.max(1)).min(thread.masked).max(1) as i64;
        let offsets: Vec<i64> = all.iter().map(|m| accesses[*m].access.offset).collect();
        let loads = of_window(&offsets, Neighbours { count: neighbours, stride }, vector);
        let loads = loads / (neighbours * all.len()) as f64;
        all.into_iter().for_each(|m| accesses[m].loads = Some((loads, vector as usize)));
    }
}

/// Elements of a thread along a coordinate, and elements of memory from one to the next.
#[derive(Clone, Copy)]
struct Neighbours {
    count: usize,
    stride: i64,
}

/// Loads of a thread for elements of a window at these offsets from each of its neighbours: aligned vectors of `vector`
/// elements, each once (`codegen/nvptx/gathered`).
fn of_window(offsets: &[i64], Neighbours { count, stride }: Neighbours, vector: i64) -> f64 {
    let near = offsets.iter().flat_map(|o| (0..count as i64).map(move |n| (o + n * stride).div_euclid(vector)));
    let mut found: Vec<i64> = near.collect();
    found.sort_unstable();
    found.dedup();
    found.len() as f64
}

/// Of accesses that differ in their offsets alone, such as those of a window: the sectors of a tile that they touch
/// together, relative to the sum of each. Offsets and spans are in elements of so many bytes.
fn shared_sectors(offsets: &[i64], pattern: &SpanPattern, bytes: usize) -> f64 {
    let length = pattern.length;
    let spans: usize = pattern.count() * offsets.len();
    if spans > SPANS {
        return 1.0;
    }
    let mut starts = offsets.to_vec();
    for axis in &pattern.axes {
        let Some(stride) = axis.stride else { return 1.0 };
        starts = (0..axis.extent as i64).flat_map(|n| starts.iter().map(move |s| s + n * stride as i64)).collect();
    }
    starts.sort_unstable();
    let (mut sum, mut end) = (0, i64::MIN);
    for start in starts {
        // A span of its own starts in the middle of a sector.
        sum += if start > end { (SECTOR / bytes.max(1)) as i64 / 2 } else { 0 };
        let from = start.max(end);
        end = end.max(start + length as i64);
        sum += end - from;
    }
    let alone = spans as f64 * (length as f64 + SECTOR as f64 / bytes as f64 / 2.0);
    (sum as f64 / alone).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::features::SpanAxis;

    #[test]
    fn loads_of_a_window() {
        let row: Vec<i64> = (-2..3).collect();
        let neighbours = |count, stride| Neighbours { count, stride };
        assert_eq!(of_window(&row, neighbours(4, 2), 8), 3.0, "from -2 to 8, by 8");
        assert_eq!(of_window(&row, neighbours(4, 1), 1), 8.0, "from -2 to 5");
        assert_eq!(of_window(&[0, 100], neighbours(2, 1), 2), 2.0, "two rows");
    }

    #[test]
    fn rows_of_a_window_overlap() {
        let rows = |extent, length| SpanPattern { axes: vec![SpanAxis { stride: Some(64), extent }], length };
        // 3 rows of 64 elements of 4 bytes, of which 8 rows are a tile: 10 rows of memory, not 24.
        let found = shared_sectors(&[0, 64, 128], &rows(8, 64), 4);
        assert!((found - 10.0 * 64.0 / (24.0 * 68.0)).abs() < 0.01, "{found}");
        assert_eq!(shared_sectors(&[0], &rows(8, 32), 4), 1.0, "alone");
        assert_eq!(shared_sectors(&[0, 1 << 20], &rows(8, 32), 4), 1.0, "far from each other");
        assert_eq!(shared_sectors(&[0, 64], &rows(100_000, 64), 4), 1.0, "too many to compare");
        let unknown = SpanPattern { axes: vec![SpanAxis { stride: None, extent: 8 }], length: 64 };
        assert_eq!(shared_sectors(&[0, 64], &unknown, 4), 1.0, "strides that are not known");
    }
}
