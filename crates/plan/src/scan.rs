//! Scans of few long rows on a GPU: program instances share a row, which is then read twice, for the totals of its slices and for the
//! scan itself. Lowering decides by these functions, and the planner prices scans by them.
use crate::Hardware;
use kiln_machine::Machine;

/// Program instances per multiprocessor that keep a GPU busy.
const BUSY: usize = 2;
/// Number of program instances that keep this GPU busy without sharing rows.
pub fn busy(m: &Machine) -> usize {
    BUSY * m.units.multiprocessors
}

/// Factor on the chunk size of a scan along an axis that is not innermost, if no rows are shared: its threads synchronise once per chunk,
/// so chunks are larger.
pub const COLUMN_CHUNKS: usize = 2;

/// Least number of chunks of a row for which reading it twice is profitable.
const CHUNKS: usize = 8;

/// Elements per thread for rows whose widest element has `bytes` bytes: four loads of 16 bytes in flight.
pub fn per_thread(bytes: usize) -> usize {
    (64 / bytes.max(1)).clamp(4, 32)
}

/// Whether several program instances share a row of `n` elements, where otherwise `instances` of them would scan it in chunks of `chunk`.
pub fn in_parts(instances: usize, n: usize, chunk: usize, m: &Hardware) -> bool {
    m.counted(instances) < m.rows.scans_alone && n >= CHUNKS * chunk
}

/// Whether a scan over the middle axis of `[outer, n, inner]`, of elements of `bytes` bytes, reads its operand twice.
pub fn reads_twice([outer, n, inner]: [usize; 3], bytes: usize, m: &Hardware) -> bool {
    let tile = 256 * per_thread(bytes);
    if inner == 1 {
        return in_parts(outer, n, tile, m);
    }
    let wide = (64 / bytes.max(1)).max(8).min(inner.next_power_of_two());
    in_parts(outer * inner.div_ceil(wide), n, tile / wide, m)
}

#[cfg(test)]
mod tests {
    #[test]
    fn few_long_rows_are_read_twice() {
        let reads_twice = |sizes, bytes| {
            let machine = kiln_machine::Arch::Sm90a.machine();
            super::reads_twice(sizes, bytes, &crate::Hardware { machine, contract: crate::Contract::default() })
        };
        assert!(reads_twice([20, 1_000_000, 1], 4));
        assert!(reads_twice([1, 1_000_000, 16], 4));
        assert!(!reads_twice([200, 1_000_000, 1], 4), "enough rows");
        assert!(!reads_twice([16, 4096, 256], 4), "enough strips of columns");
        assert!(!reads_twice([20, 32767, 1], 4), "short rows");
        assert!(!reads_twice([1, 4096, 8192], 4), "enough columns");
    }
}
