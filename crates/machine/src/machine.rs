//! The description of a machine: its fields, reading it from JSON, and the check that a plan can be made for it.
use crate::{Arch, Attention, Gemm, Handwritten, Library, MachineError, Nests, Pipelines, Rows, Warpgroups};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything that stages need to know about the hardware they plan and generate code for. Plain data
/// (`machines/*.json`); the description of a host omits the sections that only GPUs have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Unique name, as given on the command line and noted in plans.
    pub name: String,
    /// Name of the described device, as the driver reports it; empty for no device in particular.
    #[serde(default)]
    pub device: String,
    /// The target that it runs.
    pub arch: Arch,
    /// Where the figures of each section come from, by name of the section.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    /// Offsets up to this many elements are computed in 32 bits, larger ones in 64.
    #[serde(default = "narrow_offsets", skip_serializing_if = "is_narrow_offsets")]
    pub narrow_offsets: u64,
    /// Roofline rates.
    pub rates: Rates,
    /// What Kiln's kernels can hold on chip.
    pub templates: Templates,
    /// Size and clock of a GPU.
    #[serde(default)]
    pub units: Units,
    /// Resource limits of blocks and multiprocessors.
    #[serde(default)]
    pub limits: Limits,
    /// Cost model of row kernels.
    #[serde(default)]
    pub rows: Rows,
    /// Cost model of schedules of points, rows and scans.
    #[serde(default)]
    pub nests: Nests,
    /// Cost model of matmuls without warpgroup instructions.
    #[serde(default)]
    pub gemm: Gemm,
    /// Cost model of warpgroup matmuls.
    #[serde(default)]
    pub warpgroups: Warpgroups,
    /// Cost model of fused attention.
    #[serde(default)]
    pub attention: Attention,
    /// Cost model of cuBLASLt matmuls.
    #[serde(default)]
    pub library: Library,
    /// Cost model of kernels written by hand.
    #[serde(default)]
    pub handwritten: Handwritten,
    /// Depths of software pipelines.
    #[serde(default)]
    pub pipelines: Pipelines,
}

/// Half of what 32 bits hold: positions rounded up to whole tiles still fit.
fn narrow_offsets() -> u64 {
    1 << 30
}
fn is_narrow_offsets(n: &u64) -> bool {
    *n == narrow_offsets()
}

/// Rates of the planner's roofline. Measured, not taken from data sheets: `kiln doctor --calibrate` fits them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Bytes per second of a large copy, reads plus writes.
    pub bandwidth: f64,
    /// Seconds of a kernel that does next to nothing, behind another one on the same stream: its start, one round trip
    /// to memory and its end. The constant of the roofline, and of launches that are priced by bytes alone. Larger than
    /// [`Nests::launch`](crate::Nests::launch), which has the start alone.
    pub launch: f64,
    /// f32 flops per second outside of matmuls.
    pub alu: f64,
    /// Matmul flops per second by the operands' type; types without an entry use that of `f32`.
    pub matrix: BTreeMap<String, f64>,
    /// The same of f32 matmuls with operands rounded to tf32, if the machine supports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tf32: Option<f64>,
    /// The same of f32 matmuls by 3xTF32, in flops of the f32 matmul.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tf32x3: Option<f64>,
}

/// What Kiln's kernels can hold on chip: legality limits of fusion.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Templates {
    /// Bytes of a row, including its intermediate values, that a kernel can hold: in one block, or in several on a GPU
    /// with clusters.
    pub on_chip: u64,
    /// Columns of a matmul tile: rows up to this width can be reduced in the epilogue.
    pub tile: usize,
    /// Operand types for which there are dual GEMMs: one kernel for two matmuls that share their left operand, with two
    /// accumulator tiles.
    #[serde(default)]
    pub dual_gemm: Vec<String>,
    /// Blocks for each multiprocessor up to which a kernel is launched before the one ahead of it has ended; 0: none
    /// is. Long kernels gain nothing, and a kernel that waits reads without the cache of constant data.
    #[serde(default)]
    pub dependent_blocks: usize,
}

/// Size and clock of a GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Units {
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Clock frequency under load, in Hz.
    pub clock: f64,
    /// Bytes of the L2 cache.
    pub l2: usize,
}

/// Resource limits of blocks and multiprocessors (CUDA C++ programming guide, table of compute capabilities).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Most bytes of shared memory per block.
    pub shared_per_block: usize,
    /// Bytes of shared memory per multiprocessor.
    pub shared_per_multiprocessor: usize,
    /// Most 32-bit registers per thread.
    pub registers_per_thread: usize,
    /// 32-bit registers per multiprocessor.
    pub registers_per_multiprocessor: usize,
    /// Most resident warps per multiprocessor.
    pub warps_per_multiprocessor: usize,
    /// Most resident blocks per multiprocessor.
    pub blocks_per_multiprocessor: usize,
    /// The cluster sizes and how many of each fit on the GPU, smallest first; empty on a GPU without clusters.
    #[serde(default)]
    pub clusters: Vec<Clusters>,
}

/// How many clusters of a size are resident at once when each block has a multiprocessor to itself
/// (`cudaOccupancyMaxActiveClusters`). All blocks of a cluster are in one graphics processing cluster (GPC) of the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clusters {
    /// Blocks per cluster.
    pub blocks: usize,
    /// Clusters resident at once.
    pub at_once: usize,
}

impl Limits {
    /// Blocks in the largest cluster; 1 on a GPU without clusters.
    pub fn cluster(&self) -> usize {
        self.clusters.last().map_or(1, |c| c.blocks)
    }
    /// Clusters of `blocks` blocks that are resident at once; 0 if there are no clusters of this size.
    pub fn clusters_of(&self, blocks: usize) -> usize {
        self.clusters.iter().find(|c| c.blocks == blocks.max(1)).map_or(0, |c| c.at_once)
    }
}

impl Machine {
    /// Reads a JSON description. An error if it cannot be read, has rates that are not positive, or lacks a section
    /// that its target needs.
    pub fn parse(text: &str) -> Result<Machine, MachineError> {
        let json: serde_json::Value = serde_json::from_str(text)?;
        // Earlier versions had these fields at the top level, without sections.
        if json.get("arch").is_none() && json.get("bandwidth").is_some() {
            return Err(MachineError::Old);
        }
        let machine: Machine = serde_json::from_value(json)?;
        machine.check()?;
        Ok(machine)
    }
    /// Seconds of the cheapest launch of any price in this description: no kernel takes less.
    pub fn cheapest_launch(&self) -> f64 {
        let cycles = [self.gemm.launch, self.gemm.dependent_launch, self.warpgroups.fill].map(|n| n / self.units.clock);
        let all = cycles.into_iter().chain([1e-6 * self.nests.launch, self.rates.launch]);
        all.filter(|s| *s > 0.0 && s.is_finite()).fold(f64::INFINITY, f64::min)
    }
    /// Seconds in which no kernel moves fewer than these bytes: what fits the L2 cache may be there from the run
    /// before.
    pub fn least_transfer(&self, bytes: f64) -> f64 {
        (bytes - self.units.l2 as f64).max(0.0) / (self.rates.bandwidth * self.nests.bandwidth.max(1.0))
    }
    /// Flops per second of matmuls with operands of the type of this name.
    pub fn matrix_rate(&self, dtype: &str) -> f64 {
        let find = |d: &str| self.rates.matrix.get(d).copied();
        find(dtype).or_else(|| find("f32")).unwrap_or(self.rates.alu)
    }
    /// Whether the machine has dual GEMMs for operands of this type ([`Templates::dual_gemm`]).
    pub fn dual_gemm(&self, dtype: &str) -> bool {
        self.templates.dual_gemm.iter().any(|d| d == dtype)
    }

    fn check(&self) -> Result<(), MachineError> {
        let r = &self.rates;
        let named = [("bandwidth", r.bandwidth), ("launch", r.launch), ("alu", r.alu)];
        let named = named.into_iter().map(|(what, v)| (what.to_string(), v));
        let options = [("tf32", r.tf32), ("tf32x3", r.tf32x3)];
        let options = options.into_iter().filter_map(|(what, v)| Some((what.to_string(), v?)));
        let matrix = r.matrix.iter().map(|(d, v)| (format!("matrix {d}"), *v));
        for (what, rate) in named.chain(options).chain(matrix) {
            if !rate.is_finite() || rate <= 0.0 {
                return Err(MachineError::NotPositive(format!("rates: {what}")));
            }
        }
        let arch = self.arch;
        let there = |holds: bool, section| if holds { Ok(()) } else { Err(MachineError::Missing { arch, section }) };
        if arch.is_gpu() {
            let (u, l) = (&self.units, &self.limits);
            there(u.multiprocessors > 0 && u.clock > 0.0 && u.l2 > 0, "units")?;
            let registers = [l.registers_per_thread, l.registers_per_multiprocessor];
            let all = [l.shared_per_block, l.warps_per_multiprocessor];
            there(all.iter().chain(&registers).all(|n| *n > 0), "limits")?;
            let p = &self.pipelines;
            // Two blocks share a multiprocessor with a stage less, too.
            let stages = [p.stages_of_two.saturating_sub(1), p.stages_of_one, p.producer_stages];
            there(stages.iter().all(|n| *n >= 2), "pipelines of at least two stages (of three for two blocks)")?;
            there(self.rows.prefetch_distance > 0, "rows")?;
            there(self.nests.launch > 0.0 && self.nests.bandwidth > 0.0, "nests")?;
            let rates = [("cache", self.nests.cache), ("stores", self.nests.stores)];
            if let Some((what, _)) = rates.iter().find(|(_, rate)| !rate.is_finite() || *rate <= 0.0) {
                return Err(MachineError::NotPositive(format!("nests: {what}")));
            }
            there(self.gemm.mma.rate > 0.0 && self.gemm.read > 0.0, "gemm")?;
            there(self.attention.half > 0.0 && self.attention.single > 0.0, "attention")?;
        }
        there(!arch.has_clusters() || !self.limits.clusters.is_empty(), "limits: clusters")?;
        there(!arch.has_wgmma() || self.warpgroups.all > 0.0, "warpgroups")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_of_earlier_versions_are_distinguished_from_other_files() {
        let old = r#"{"name": "mine", "bandwidth": 1e12, "matrix": [["f32", 1e12]], "alu": 1e12, "launch": 1e-6,
            "gpu": true}"#;
        assert!(matches!(Machine::parse(old), Err(MachineError::Old)));
        assert!(matches!(Machine::parse("{}"), Err(MachineError::Json(_))));
        assert!(matches!(Machine::parse("12 monkeys"), Err(MachineError::Json(_))));
    }

    #[test]
    fn incomplete_descriptions_are_refused_with_the_name_of_what_is_missing() {
        let wrong = |change: fn(&mut Machine)| {
            let mut m = Arch::Sm90a.machine().clone();
            change(&mut m);
            let text = serde_json::to_string(&m).expect("writes");
            Machine::parse(&text).expect_err("is refused").to_string()
        };
        assert_eq!(wrong(|m| m.rates.bandwidth = 0.0), "rates: bandwidth is not positive");
        assert_eq!(wrong(|m| _ = m.rates.matrix.insert("bf16".into(), -1.0)), "rates: matrix bf16 is not positive");
        assert_eq!(wrong(|m| m.nests.stores = 0.0), "nests: stores is not positive");
        assert_eq!(wrong(|m| m.units = Units::default()), "the description is for sm_90a but lacks units");
        assert_eq!(wrong(|m| m.limits.clusters.clear()), "the description is for sm_90a but lacks limits: clusters");
        assert_eq!(wrong(|m| m.limits.registers_per_thread = 0), "the description is for sm_90a but lacks limits");
        let short =
            "the description is for sm_90a but lacks pipelines of at least two stages (of three for two blocks)";
        assert_eq!(wrong(|m| m.pipelines.stages_of_one = 1), short);
        assert_eq!(wrong(|m| m.pipelines.stages_of_two = 2), short);
        assert_eq!(
            wrong(|m| m.warpgroups = Warpgroups::default()),
            "the description is for sm_90a but lacks warpgroups"
        );
    }

    #[test]
    fn rates_of_other_types_are_those_of_f32() {
        let m = Arch::Sm90a.machine();
        assert_eq!(m.matrix_rate("i32"), m.matrix_rate("f32"));
        assert!(m.matrix_rate("bf16") > m.matrix_rate("f32") && m.dual_gemm("bf16") && !m.dual_gemm("f32"));
    }
}
