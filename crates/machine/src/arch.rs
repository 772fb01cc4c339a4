//! What code is generated for, and which instructions it has.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The host, or GPUs of NVIDIA by the name that the assembler has for them.
///
/// What each has is in the PTX ISA's notes on targets, and in the table of compute capabilities of the CUDA C++ programming guide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Arch {
    /// The processor that Kiln runs on; which of its instruction sets is used is `kiln-cpu`'s.
    #[default]
    #[serde(rename = "cpu")]
    Cpu,
    /// Ampere (A100), and what later GPUs run that have no target of their own.
    #[serde(rename = "sm_80")]
    Sm80,
    /// Ada (RTX 4090, L40S).
    #[serde(rename = "sm_89")]
    Sm89,
    /// Hopper (H100, H200), with what is of this architecture alone.
    #[serde(rename = "sm_90a")]
    Sm90a,
}

/// A name that is no target's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no target `{0}`: give {all}", all = Arch::ALL.map(Arch::name).join(", "))]
pub struct NoSuchArch(pub String);

impl Arch {
    pub const ALL: [Arch; 4] = [Arch::Cpu, Arch::Sm80, Arch::Sm89, Arch::Sm90a];

    /// As the assembler and the command line call it.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Cpu => "cpu",
            Arch::Sm80 => "sm_80",
            Arch::Sm89 => "sm_89",
            Arch::Sm90a => "sm_90a",
        }
    }
    /// What code for a GPU of this compute capability is generated for; `None` before 8.0.
    pub fn of_capability(capability: (u32, u32)) -> Option<Arch> {
        match capability {
            (9, _) => Some(Arch::Sm90a),
            (8, 9) => Some(Arch::Sm89),
            (8.., _) => Some(Arch::Sm80),
            _ => None,
        }
    }

    pub fn is_gpu(self) -> bool {
        self != Arch::Cpu
    }
    /// Gemm by groups of four warps from shared memory (`wgmma`), registers that pass from group to group (`setmaxnreg`).
    pub fn has_wgmma(self) -> bool {
        self == Arch::Sm90a
    }
    /// Copies of tiles that a tensor map describes (`cp.async.bulk.tensor`), and barriers that count their bytes.
    pub fn has_tma(self) -> bool {
        self == Arch::Sm90a
    }
    /// Blocks that read and write each other's shared memory.
    pub fn has_clusters(self) -> bool {
        self == Arch::Sm90a
    }
    /// Launches that begin before the kernel ahead has ended, and wait for that themselves (`griddepcontrol`).
    pub fn has_dependent_launch(self) -> bool {
        self == Arch::Sm90a
    }
    /// Copies to shared memory that threads do not wait for (`cp.async`).
    pub fn has_cp_async(self) -> bool {
        self.is_gpu()
    }
    /// Casts between f8 and f16 (`cvt.e4m3x2`).
    pub fn has_f8_casts(self) -> bool {
        matches!(self, Arch::Sm89 | Arch::Sm90a)
    }
    /// Gemm of f8 on tensor cores.
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
        assert_eq!(wrong.to_string(), "there is no target `sm_75`: give cpu, sm_80, sm_89, sm_90a");
    }

    #[test]
    fn capabilities_have_the_nearest_target_that_they_run() {
        let of = |major, minor| Arch::of_capability((major, minor)).map(Arch::name);
        let known = [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)].map(|(a, b)| of(a, b));
        assert_eq!(known, ["sm_80", "sm_80", "sm_80", "sm_89", "sm_90a", "sm_80", "sm_80"].map(Some));
        assert_eq!(of(7, 5), None);
    }
}
