//! Figures of the cost models that choose templates and tiles: no facts of hardware, but measured on it, one set a machine.
use serde::{Deserialize, Serialize};

/// Rows that are reduced, scanned and summed.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// Bytes that are read between an instance and the one whose rows it asks for: enough to cover the memory's latency at its full
    /// speed, and few enough to be still there.
    pub prefetch_distance: usize,
    /// Instances of a scan that are faster with a row each than if they shared them and read twice.
    pub scans_alone: usize,
    /// Threads whose loads keep memory busy where each has eight in flight.
    pub loading: usize,
}

/// Matmuls without pipelining, sums along rows, and what goes through memory before and after a matmul.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gemm {
    /// Tiles of 128 by 128 from which on smaller ones are not needed to keep the GPU busy.
    pub large: usize,
    /// Tiles that a multiprocessor has at a time.
    pub tiles_per_multiprocessor: usize,
    /// FMAs a cycle of a multiprocessor.
    pub rate: f64,
    /// Cycles until the operands of a step of K are there: of aligned rows, and of such as start anywhere, which are read by elements.
    pub aligned: f64,
    pub unaligned: f64,
    /// Bytes a cycle, from memory to all, of rows that start anywhere.
    pub ragged: f64,
    /// Of sums along rows: bytes a cycle from memory to all, and FMAs a cycle of a multiprocessor.
    pub rows_read: f64,
    pub rows_rate: f64,
    /// Cycles of a launch, of one that begins while what is before it ends, and bytes that either reads in one.
    pub launch: f64,
    pub soon: f64,
    pub read: f64,
}

/// Gemm by warpgroups. All rates are of a clock cycle.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Warpgroups {
    /// Bytes from the second-level cache to a multiprocessor, and from memory to all.
    pub cache: f64,
    pub all: f64,
    /// Bytes of a multiprocessor's shared memory, written by copies and read by the tensor cores.
    pub shared: f64,
    /// Cycles until a copy has come from memory; one multiprocessor gets what is in flight in that time.
    pub latency: f64,
    /// Cycles for filling the ring, for finishing a tile: any, and more for one of 128 by 256.
    pub fill: f64,
    pub finish: f64,
    pub finish_wide: f64,
    /// An epilogue's arithmetic of a multiprocessor; cycles of a turn that passes from one consumer to the other.
    pub after: f64,
    pub pass: f64,
    /// FMAs from which a matmul in half precision ends at the power limit, and what is left of the clock there: while tensor
    /// cores are busy for so much of the time, and in tiles of less than 256 columns, which were slower by as much.
    pub hot: usize,
    pub busy: f64,
    pub power: f64,
    /// FMAs from which two blocks share an operand unasked. Waiting for each other costs a hundredth or two; but a matmul of
    /// some milliseconds runs at the power limit, where what is not read from the second-level cache pays.
    pub multicast: usize,
    pub engines: Engines,
}

/// FMAs of a multiprocessor.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engines {
    /// bf16 and f16.
    pub half: f64,
    pub tf32: f64,
    /// f32 by three matmuls in tf32.
    pub tf32x3: f64,
    pub f8: f64,
    /// f32 without tensor cores, by the size of a tile, the largest first; the last is of any size.
    pub single: Vec<Simt>,
}
/// Of a tile of at least so many elements: threads with few of them read more.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simt {
    pub area: usize,
    pub rate: f64,
    /// Where both operands' rows run along the result's axes.
    pub transposed: f64,
}

impl Engines {
    pub fn single(&self, area: usize, transposed: bool) -> f64 {
        let of = self.single.iter().find(|t| area >= t.area).or(self.single.last());
        of.map_or(0.0, |t| if transposed { t.transposed } else { t.rate })
    }
}

/// Attention in one program.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Flops a second of a multiprocessor: half types, and f32.
    pub half: f64,
    pub single: f64,
    /// Of a block alone, in half types: with fewer than 64 queries, and with more.
    pub half_narrow: f64,
    pub half_block: f64,
    /// In f32, the share of a multiprocessor's that a block has: of 1 query, 2, 4, … 128.
    pub single_shares: [f64; 8],
    /// Blocks that keep the GPU busy, if they are large; blocks side by side up to which more parts are a gain.
    pub enough: usize,
    pub most: usize,
    /// Seconds that a second step takes, which joins the parts.
    pub join: f64,
}

/// How long matmuls by a GPU's library take: shares of the time of Kiln's own template. What a description leaves out is an H200's.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Library {
    /// Of most matmuls.
    pub share: f64,
    /// Gemm in half precision of so much work, most of it along K: at the power limit the library draws less.
    pub long: Large,
    /// K of such a matmul in rows or columns, whichever are more.
    pub depth: f64,
    /// Gemm in tf32 of so much work, for which Kiln turns an operand.
    pub transposed: Large,
}

/// Gemm of a size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Large {
    /// FMAs, at least.
    pub work: u64,
    /// Of the time of Kiln's own template.
    pub share: f64,
}

impl Default for Library {
    /// cuBLASLt 13 on an H200: the table of GEMMs in `benches/results/gemm.md`. 4096x4096x65536 took 0.94 of the time; half of that
    /// K as long as Kiln's own, and so did wide matmuls of as much work. In tf32 4096 cubed took 0.92, 1024 cubed 1.5.
    fn default() -> Library {
        let long = Large { work: 1 << 40, share: 0.94 };
        Library { share: 1.02, long, depth: 8.0, transposed: Large { work: 1 << 36, share: 0.92 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_leave_out_what_they_like_of_the_library() {
        assert_eq!(serde_json::from_str::<Library>("{}").ok(), Some(Library::default()));
        let some = serde_json::from_str::<Library>(r#"{"share": 0.9}"#).ok();
        assert_eq!(some, Some(Library { share: 0.9, ..Library::default() }));
    }

    #[test]
    fn the_largest_tile_that_fits_says_what_multiply_adds_take() {
        let of = |area, rate, transposed| Simt { area, rate, transposed };
        let single = vec![of(4096, 70.0, 80.0), of(0, 45.0, 46.0)];
        let e = Engines { single, ..Engines::default() };
        assert_eq!([e.single(8192, false), e.single(4096, true), e.single(100, false)], [70.0, 80.0, 45.0]);
    }
}
