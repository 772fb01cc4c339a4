//! The description of a machine.
use crate::{Arch, Attention, Gemm, Library, MachineError, Rows, Warpgroups};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything that stages ask of the hardware that they plan and generate code for. Plain data (`machines/*.json`); the host leaves out
/// what is a GPU's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub name: String,
    /// The device it describes, as its driver calls it; empty for none in particular.
    #[serde(default)]
    pub device: String,
    pub arch: Arch,
    /// Where the figures of a section come from, by its name.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    pub rates: Rates,
    pub templates: Templates,
    #[serde(default)]
    pub units: Units,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub rows: Rows,
    #[serde(default)]
    pub gemm: Gemm,
    #[serde(default)]
    pub warpgroups: Warpgroups,
    #[serde(default)]
    pub attention: Attention,
    #[serde(default)]
    pub library: Library,
}

/// What the roofline goes by. Rates as measured, not from data sheets: `kiln doctor --calibrate` fits them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Bytes per second of a large copy, read plus written.
    pub bandwidth: f64,
    /// Seconds per launch.
    pub launch: f64,
    /// Flops per second (f32) of what is no matmul.
    pub alu: f64,
    /// Matmul flops per second by the operands' type (the entry of `f32` is the default for others).
    pub matrix: BTreeMap<String, f64>,
    /// The same in f32 whose operands are taken as tf32, where the machine can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tf32: Option<f64>,
    /// The same in three such matmuls each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tf32x3: Option<f64>,
}

/// What Kiln's templates can hold, which the planner fuses by.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Templates {
    /// Bytes of a row, and of what is made of it, that a kernel can hold: in a block, or on a GPU with clusters in several.
    pub on_chip: u64,
    /// Columns of a matmul's tile: a row no wider can be reduced in its epilogue.
    pub tile: usize,
    /// Factor on a matmul's time when arithmetic on an operand takes it off the fast copy path.
    pub prologue: f64,
    /// Types whose matmuls share a kernel with another of the same left operand, in tiles with two sums.
    #[serde(default)]
    pub dual_gemm: Vec<String>,
}

/// What there is of a GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Units {
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Clock cycles of a second under load.
    pub clock: f64,
    /// Bytes of the second-level cache.
    pub l2: usize,
}

/// What blocks of a GPU can have (CUDA C++ programming guide, table of compute capabilities).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of shared memory of a block, and of a multiprocessor.
    pub shared_per_block: usize,
    pub shared_per_multiprocessor: usize,
    /// Registers of 32 bits of a thread, and of a multiprocessor.
    pub registers_per_thread: usize,
    pub registers_per_multiprocessor: usize,
    /// Warps and blocks that a multiprocessor has at a time.
    pub warps_per_multiprocessor: usize,
    pub blocks_per_multiprocessor: usize,
    /// Clusters by the number of their blocks, the smallest first; none where blocks do not share.
    #[serde(default)]
    pub clusters: Vec<Clusters>,
}

/// How many clusters there are at once, of blocks that have a multiprocessor to themselves: those of one lie in one of the GPU's parts
/// (`cudaOccupancyMaxActiveClusters`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clusters {
    pub blocks: usize,
    pub at_once: usize,
}

impl Limits {
    /// Blocks of a cluster, at most.
    pub fn cluster(&self) -> usize {
        self.clusters.last().map_or(1, |c| c.blocks)
    }
    /// Clusters of so many blocks that there are at once; none if there are no such clusters.
    pub fn clusters_of(&self, blocks: usize) -> usize {
        self.clusters.iter().find(|c| c.blocks == blocks.max(1)).map_or(0, |c| c.at_once)
    }
}

impl Machine {
    /// Reads a description, and says what is wrong with one that no plan could be made for.
    pub fn parse(text: &str) -> Result<Machine, MachineError> {
        let json: serde_json::Value = serde_json::from_str(text)?;
        // What such files had beside each other is in sections now.
        if json.get("arch").is_none() && json.get("bandwidth").is_some() {
            return Err(MachineError::Old);
        }
        let machine: Machine = serde_json::from_value(json)?;
        machine.check()?;
        Ok(machine)
    }
    /// Flops per second of matmuls whose operands have the type of this name.
    pub fn matrix_rate(&self, dtype: &str) -> f64 {
        let find = |d: &str| self.rates.matrix.get(d).copied();
        find(dtype).or_else(|| find("f32")).unwrap_or(self.rates.alu)
    }
    /// Whether two matmuls in this type share a kernel, as [`Templates::dual_gemm`].
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
            let all = [l.shared_per_block, l.registers_per_multiprocessor, l.warps_per_multiprocessor];
            there(all.iter().all(|n| *n > 0), "limits")?;
            there(self.rows.loading > 0, "rows")?;
            there(self.gemm.rate > 0.0 && self.gemm.read > 0.0, "gemm")?;
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
    fn what_earlier_versions_wrote_is_told_from_what_is_no_description() {
        let old = r#"{"name": "mine", "bandwidth": 1e12, "matrix": [["f32", 1e12]], "alu": 1e12, "launch": 1e-6, "gpu": true}"#;
        assert!(matches!(Machine::parse(old), Err(MachineError::Old)));
        assert!(matches!(Machine::parse("{}"), Err(MachineError::Json(_))));
        assert!(matches!(Machine::parse("12 monkeys"), Err(MachineError::Json(_))));
    }

    #[test]
    fn what_plans_cannot_be_made_for_is_refused_by_name() {
        let wrong = |change: fn(&mut Machine)| {
            let mut m = Arch::Sm90a.machine().clone();
            change(&mut m);
            let text = serde_json::to_string(&m).expect("writes");
            Machine::parse(&text).expect_err("is refused").to_string()
        };
        assert_eq!(wrong(|m| m.rates.bandwidth = 0.0), "rates: bandwidth is not positive");
        assert_eq!(wrong(|m| _ = m.rates.matrix.insert("bf16".into(), -1.0)), "rates: matrix bf16 is not positive");
        assert_eq!(wrong(|m| m.units = Units::default()), "it is of sm_90a, and says nothing of units");
        assert_eq!(wrong(|m| m.limits.clusters.clear()), "it is of sm_90a, and says nothing of limits: clusters");
        assert_eq!(wrong(|m| m.warpgroups = Warpgroups::default()), "it is of sm_90a, and says nothing of warpgroups");
    }

    #[test]
    fn rates_of_other_types_are_those_of_f32() {
        let m = Arch::Sm90a.machine();
        assert_eq!(m.matrix_rate("i32"), m.matrix_rate("f32"));
        assert!(m.matrix_rate("bf16") > m.matrix_rate("f32") && m.dual_gemm("bf16") && !m.dual_gemm("f32"));
    }
}
