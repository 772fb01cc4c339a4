//! What `ptxas` makes of a thread's program: registers, spills and instructions, fitted to programs that it assembled.
//! One file for each version whose programs were counted (`machines/ptxas-*.json`).
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The figures of one version of `ptxas`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ptxas {
    /// The version that assembled the programs.
    pub version: String,
    /// The target that they were assembled for.
    pub target: String,
    /// How the figures of each section were found, by name of the section.
    pub sources: BTreeMap<String, String>,
    /// Registers that it allocates to a thread without a limit.
    pub registers: Registers,
    /// Registers that a thread needs at least before values are kept in memory.
    pub spills: RegisterFit,
    /// Registers of a thread in loops that multiply by warpgroups.
    pub loops: LoopRegisters,
    /// Instructions of a thread, unless another unit is given.
    pub instructions: InstructionCounts,
    /// Instructions of functions by their names in the text form: on f32 (and wider types), and on half types.
    pub functions: BTreeMap<String, [f64; 2]>,
}

/// Registers of a thread: a base, and so many for what a thread holds. What a kind of program does not have is 0.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegisterFit {
    /// Registers of any program of the kind.
    pub base: f64,
    /// For a 32-bit word that is loaded, or that lives across a reduction.
    pub word: f64,
    /// For a word whose elements have bounds of their own.
    pub bounded_word: f64,
    /// For a word that is needed after a reduction.
    pub later_word: f64,
    /// For an element of the tile.
    pub element: f64,
    /// For an element of a half type.
    pub half_element: f64,
    /// For an element of more than 4 bytes.
    pub wide_element: f64,
    /// For a partial result of a reduction.
    pub result: f64,
    /// Where rows are peeled.
    pub peeled: f64,
    /// The same of half types.
    pub peeled_halves: f64,
    /// For a total that a thread waits for, less those for which it has registers.
    pub total: f64,
    /// Registers for totals that any program has.
    pub totals_in_place: f64,
}

/// Registers that a thread needs for addresses and arithmetic.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopRegisters {
    /// Beside its sums.
    pub beside_sums: usize,
    /// The same where a loop over tiles is around the loop.
    pub beside_sums_of_tiles: usize,
}

/// Registers by kind of program.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registers {
    /// Points: words are loaded after their bounds are computed.
    pub points: RegisterFit,
    /// Points of windows, with all registers that a thread may have: elements with places of their own are loaded
    /// first.
    pub windows: RegisterFit,
    /// A tile of whole rows.
    pub whole_rows: RegisterFit,
    /// A loop over chunks of rows.
    pub chunks: RegisterFit,
    /// A persistent kernel over rows.
    pub persistent: RegisterFit,
    /// Positions of maxima, in a loop over chunks.
    pub positions: RegisterFit,
    /// The same in a tile of whole rows.
    pub positions_of_whole_rows: RegisterFit,
    /// A scan in a loop over chunks of one row.
    pub scanned_rows: RegisterFit,
    /// The same of several rows.
    pub scanned_tiles: RegisterFit,
    /// A scan of whole rows.
    pub scanned_whole_rows: RegisterFit,
    /// The same of half types.
    pub scanned_whole_half_rows: RegisterFit,
    /// A scan by look-back: what is scanned stays in registers, in the type of the sums.
    pub look_back: RegisterFit,
}

/// Instructions of a thread.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstructionCounts {
    /// Start and end of a program.
    pub program: f64,
    /// An access: itself, and its part of an address.
    pub access: f64,
    /// More for an access where each element of a vector has an address of its own.
    pub crossing_access: f64,
    /// More for an access within bounds.
    pub guarded_access: f64,
    /// An element of a vector with bounds of its own.
    pub masked_element: f64,
    /// A loaded word of half types, whose elements are taken apart.
    pub half_word: f64,
    /// An instruction of an index: most are shared between accesses, or known before.
    pub index: f64,
    /// An element that is moved between threads.
    pub moved_element: f64,
    /// The same where several rows of a tile are staged: one side moves whole vectors.
    pub packed_element: f64,
    /// A step of a reduction between lanes, for a partial result.
    pub shuffle: f64,
    /// A step between warps.
    pub warp_exchange: f64,
    /// More for each warp that it comes from.
    pub exchanged_warp: f64,
    /// A step between blocks of a cluster.
    pub block_exchange: f64,
    /// A program of peeled rows.
    pub peel: f64,
    /// An element of a reduction of peeled rows.
    pub peeled_reduction: f64,
    /// An element that is stored by a warp which has an end of a peeled row.
    pub peeled_store: f64,
    /// An element of a tile with several rows, which are aligned differently.
    pub peeled_row: f64,
    /// More for each of these that is stored.
    pub peeled_row_store: f64,
    /// Elements of a row from which on most warps have no end of it.
    pub row_end_elements: f64,
    /// A scan of a chunk.
    pub scan: f64,
    /// An element of it.
    pub scanned_element: f64,
    /// A comparison with a bound, and what joins it to others.
    pub bound: f64,
    /// A quotient by a constant that is no power of two, and its remainder.
    pub quotient: f64,
    /// An element of a reduction that finds a position.
    pub position: f64,
    /// A power by a constant.
    pub small_power: f64,
    /// Least of a value that is not computed again at no cost.
    pub recomputed: f64,
    /// The approximate tanh of the hardware.
    pub approximate_tanh: f64,
}

/// The figures that prices use.
static PTXAS: LazyLock<Ptxas> = LazyLock::new(|| {
    // Invariant: the file is part of the program, and a test reads it.
    let read = serde_json::from_str(include_str!("../machines/ptxas-13.0.json"));
    read.unwrap_or_else(|e| panic!("the figures of ptxas: {e}"))
});

/// The figures of the newest version whose programs were counted.
pub fn ptxas() -> &'static Ptxas {
    &PTXAS
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_section_says_how_it_was_found() {
        let text = include_str!("../machines/ptxas-13.0.json");
        let json: serde_json::Value = serde_json::from_str(text).expect("is JSON");
        let sections = json.as_object().expect("is an object").iter().filter(|(k, v)| v.is_object() && *k != "sources");
        for (section, _) in sections {
            assert!(super::ptxas().sources.contains_key(section), "no source of {section}");
        }
    }
}
