//! Fixed rules for scans on a GPU: how few rows are shared by instances, which read the row twice or look back.
use crate::dag::NodeOp;
use crate::nest::Nest;
use crate::pointwise::widest;
use crate::schedule;
use kiln_machine::Machine;
use kiln_plan::{Axis, Hardware, Schedule, Step};

/// Program instances per multiprocessor that keep a GPU busy.
const BUSY: usize = 2;
/// Number of program instances that keep this GPU busy without sharing rows.
pub fn busy(m: &Machine) -> usize {
    BUSY * m.units.multiprocessors
}

/// Factor on the chunk size of a scan along an axis that is not innermost, if no rows are shared: its threads synchronise once per chunk,
/// so chunks are larger.
pub const COLUMN_CHUNKS: usize = 2;

/// Least number of chunks of a row that instances share.
const CHUNKS: usize = 8;

/// Elements per thread for rows whose widest element has `bytes` bytes: four loads of 16 bytes in flight.
pub fn per_thread(bytes: usize) -> usize {
    (64 / bytes.max(1)).clamp(4, 32)
}

/// Whether several program instances share a row of `n` elements, where otherwise `instances` of them would scan it in chunks of `chunk`.
pub fn in_parts(instances: usize, n: usize, chunk: usize, m: &Hardware) -> bool {
    m.counted(instances) < m.rows.scans_alone && n >= CHUNKS * chunk
}

/// Elements of a chunk that an instance scans before it looks back, and its warps, so that a thread holds 32: smaller chunks wait more often.
/// Chunks of little work are smaller, so that all multiprocessors have one.
const HELD: usize = 16384;
const LEAST: usize = 2048;
/// Columns of such a chunk.
const COLUMNS: usize = 32;
/// Most chunks of a row for which all totals before a chunk are read in little time.
const TOTALS: usize = 1024;
/// Columns of a tile that goes down its columns alone, where there are enough of these, and its rows.
const NARROW: [usize; 2] = [512, 16];
/// The same of columns that keep the machine busy in wider tiles: a thread holds 32 elements of a column.
const SQUARE: usize = 64;

/// The schedule of a nest with scans in place of one by the rules of other rows, if there is a better one.
pub fn improved(nest: &Nest, fixed: &Schedule) -> Option<Schedule> {
    let machine = nest.machine;
    let scans = nest.scene.live().iter().any(|n| matches!(nest.scene.dag.node(*n).op, NodeOp::Scan { .. }));
    let n = nest.row().filter(|_| scans && machine.arch.is_gpu() && !machine.contract.batch_invariant)?;
    let multiprocessors = machine.units.multiprocessors;
    let rows: usize = nest.kept().map(|c| c.extent).product();
    let shared = fixed.steps.iter().any(|s| matches!(s, Step::SplitReduce(..)));
    let splits: Vec<(Axis, usize)> = (fixed.steps.iter())
        .filter_map(|s| if let Step::Split(axis, block) = s { Some((*axis, *block)) } else { None })
        .collect();
    let fits = |s: &Schedule| {
        let mut tiled = schedule::tile(nest, s).ok()?;
        schedule::row_plan(nest, s, &mut tiled).ok()
    };
    let found: Vec<Schedule> = match splits[..] {
        [(Axis::Row, _)] if shared && widest(&nest.scene) >= 4 => {
            let chunk = (rows.saturating_mul(n) / multiprocessors).next_power_of_two().clamp(LEAST, HELD);
            let steps = [Step::Split(Axis::Row, chunk), Step::Warps((chunk / 1024).max(4)), Step::LookBack(Axis::Row)];
            Some(steps.into_iter().collect()).filter(|_| n.div_ceil(chunk) <= TOTALS).into_iter().collect()
        }
        [(Axis::Row, block), (Axis::Kept(k), _)] if block < n => {
            let extent = nest.kept().nth(usize::from(k))?.extent;
            let tiles = |wide: usize| rows / extent * extent.div_ceil(wide);
            let tile = |high: usize, wide: usize, warps: usize| {
                let steps = [Step::Split(Axis::Row, high), Step::Split(Axis::Kept(k), wide), Step::Warps(warps)];
                steps.into_iter().collect::<Schedule>()
            };
            let held = tile(HELD / COLUMNS, COLUMNS, 16);
            let slices = multiprocessors.div_ceil(tiles(COLUMNS)).clamp(1, (n * COLUMNS / HELD / 2).max(1));
            if extent >= SQUARE && 2 * tiles(SQUARE) >= busy(machine) {
                vec![tile(SQUARE, SQUARE, if tiles(SQUARE) < busy(machine) { 8 } else { 4 })]
            } else if 20 * tiles(NARROW[1]) >= 19 * busy(machine) {
                vec![tile(NARROW[0], NARROW[1], 8)]
            } else if shared {
                vec![held.clone().then(Step::LookBack(Axis::Row)), held.then(Step::SplitReduce(Axis::Row, slices))]
            } else {
                vec![]
            }
        }
        _ => vec![],
    };
    found.into_iter().find(|s| fits(s).is_some())
}

#[cfg(test)]
mod tests {
    use kiln_plan::{Contract, Hardware};

    #[test]
    fn few_long_rows_are_shared() {
        let machine = kiln_machine::Arch::Sm90a.machine();
        let shared = |rows, n| super::in_parts(rows, n, 4096, &Hardware { machine, contract: Contract::default() });
        assert!(shared(20, 1_000_000));
        assert!(!shared(200, 1_000_000), "enough rows");
        assert!(!shared(20, 32767), "short rows");
    }
}
