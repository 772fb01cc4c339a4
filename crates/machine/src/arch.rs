//! Targets of code generation (instruction sets), and which instructions each one has.
//!
//! A target is an instruction set; a machine ([`Machine`](crate::Machine)) is one GPU of that target. Stages ask an
//! [`Arch`] what it can do (`has_wgmma`, `has_clusters`, …) and never compare targets by name. [`Arch::machine`] is the
//! machine that stands for a target where none is named. `sm_89` is compiled like `sm_80` (no `wgmma`, TMA or
//! clusters), with a machine description of its own.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The host CPU, or NVIDIA GPUs by the target name that ptxas uses.
///
/// The features of each target are listed in the PTX ISA's target notes and in the table of compute capabilities of the
/// CUDA C++ programming guide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Arch {
    /// The CPU that Kiln runs on; `kiln-cpu` chooses among its instruction sets.
    #[default]
    #[serde(rename = "cpu")]
    Cpu,
    /// Ampere (A100); also used for later GPUs that have no target of their own.
    #[serde(rename = "sm_80")]
    Sm80,
    /// Ada (RTX 4090, L40S).
    #[serde(rename = "sm_89")]
    Sm89,
    /// Hopper (H100, H200), with its architecture-specific instructions.
    #[serde(rename = "sm_90a")]
    Sm90a,
}

/// The name is not the name of a target.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no target `{0}`; targets are {all}", all = Arch::ALL.map(Arch::name).join(", "))]
pub struct NoSuchArch(pub String);

impl Arch {
    /// Every target.
    pub const ALL: [Arch; 4] = [Arch::Cpu, Arch::Sm80, Arch::Sm89, Arch::Sm90a];

    /// The name that ptxas and the command line use.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Cpu => "cpu",
            Arch::Sm80 => "sm_80",
            Arch::Sm89 => "sm_89",
            Arch::Sm90a => "sm_90a",
        }
    }
    /// The target for a GPU of this compute capability (major, minor); `None` before 8.0.
    pub fn of_capability(capability: (u32, u32)) -> Option<Arch> {
        match capability {
            (9, _) => Some(Arch::Sm90a),
            (8, 9) => Some(Arch::Sm89),
            (8.., _) => Some(Arch::Sm80),
            _ => None,
        }
    }

    /// Every target but [`Arch::Cpu`].
    pub fn is_gpu(self) -> bool {
        self != Arch::Cpu
    }
    /// Warpgroup matmuls with operands in shared memory (`wgmma`), and register reallocation between warpgroups
    /// (`setmaxnreg`).
    pub fn has_wgmma(self) -> bool {
        self == Arch::Sm90a
    }
    /// TMA: tile copies described by a tensor map (`cp.async.bulk.tensor`), and mbarriers that count the copied bytes.
    pub fn has_tma(self) -> bool {
        self == Arch::Sm90a
    }
    /// Thread block clusters with distributed shared memory.
    pub fn has_clusters(self) -> bool {
        self == Arch::Sm90a
    }
    /// Programmatic dependent launch: a kernel starts before the previous one has ended and waits for it itself
    /// (`griddepcontrol`).
    pub fn has_dependent_launch(self) -> bool {
        self == Arch::Sm90a
    }
    /// Atomic sums of vectors of f32 (`red.v4`).
    pub fn has_vector_atomics(self) -> bool {
        self == Arch::Sm90a
    }
    /// Asynchronous copies from global to shared memory (`cp.async`).
    pub fn has_cp_async(self) -> bool {
        self.is_gpu()
    }
    /// Cast instructions between f8 and f16 (`cvt.e4m3x2`).
    pub fn has_f8_casts(self) -> bool {
        matches!(self, Arch::Sm89 | Arch::Sm90a)
    }
    /// f8 matmuls on tensor cores.
    pub fn has_fp8_mma(self) -> bool {
        matches!(self, Arch::Sm89 | Arch::Sm90a)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = NoSuchArch;
    fn from_str(name: &str) -> Result<Arch, NoSuchArch> {
        Arch::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| NoSuchArch(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_every_target_has_a_machine_of_its_own() {
        for arch in Arch::ALL {
            assert_eq!(arch.name().parse().ok(), Some(arch));
            assert_eq!(serde_json::to_string(&arch).ok(), Some(format!("\"{arch}\"")));
            assert_eq!(arch.machine().arch, arch);
        }
        let wrong = "sm_75".parse::<Arch>().unwrap_err();
        assert_eq!(wrong.to_string(), "there is no target `sm_75`; targets are cpu, sm_80, sm_89, sm_90a");
    }

    #[test]
    fn capabilities_have_the_nearest_target_that_they_run() {
        let of = |major, minor| Arch::of_capability((major, minor)).map(Arch::name);
        let known = [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)].map(|(a, b)| of(a, b));
        assert_eq!(known, ["sm_80", "sm_80", "sm_80", "sm_89", "sm_90a", "sm_80", "sm_80"].map(Some));
        assert_eq!(of(7, 5), None);
    }
}
