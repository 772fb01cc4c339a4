//! Instruction sets for host code: which of them this processor has, and which one is used.
//!
//! Gives code generation and the runtime the same answer, so that generated loops and micro-kernels agree. The best
//! level is used unless `KILN_CPU` names a lower one, for tests and benches.
//! Never generates code.
use std::{fmt, sync::OnceLock};

/// Instruction sets, each including those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// The baseline of the compilation target.
    Portable,
    /// AVX2, FMA, and conversions of f16.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// The matrix unit for bf16, and AVX-512 BF16.
    Amx,
}

/// The variable that names the level to use.
pub const VARIABLE: &str = "KILN_CPU";

/// Why `KILN_CPU` cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LevelError {
    #[error(
        "KILN_CPU is `{given}`, which is no instruction set: set it to one of {}, or not at all",
        names(Level::here())
    )]
    Unknown { given: String },
    #[error(
        "KILN_CPU asks for {wanted}, which this processor does not have: set it to one of {}, or not at all",
        names(Level::here())
    )]
    Missing { wanted: Level },
}

fn names(levels: &[Level]) -> String {
    levels.iter().map(|l| l.name()).collect::<Vec<_>>().join(", ")
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Portable, Level::Avx2, Level::Avx512, Level::Amx];

    /// The name that `KILN_CPU` uses.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Amx => "amx",
        }
    }
    /// The levels of this processor, the best last.
    pub fn here() -> &'static [Level] {
        static HERE: OnceLock<usize> = OnceLock::new();
        &Level::ALL[..*HERE.get_or_init(|| 1 + Level::ALL[1..].iter().take_while(|l| has(**l)).count())]
    }
    /// The best level of this processor.
    pub fn best() -> Level {
        // Invariant: the portable level is always there.
        Level::here().last().copied().unwrap_or(Level::Portable)
    }
    /// What `KILN_CPU` names, or the best. The variable is read once.
    pub fn chosen() -> Result<Level, LevelError> {
        static CHOSEN: OnceLock<Result<Level, LevelError>> = OnceLock::new();
        CHOSEN
            .get_or_init(|| match std::env::var_os(VARIABLE) {
                None => Ok(Level::best()),
                Some(given) => Level::parse(&given.to_string_lossy(), Level::best()),
            })
            .clone()
    }
    /// As [`Level::chosen`]; the best level where that is an error, which opening a device and compiling report.
    pub fn used() -> Level {
        static USED: OnceLock<Level> = OnceLock::new();
        *USED.get_or_init(|| Level::chosen().unwrap_or(Level::best()))
    }
    /// The level of this name, on a processor whose best is given.
    fn parse(given: &str, best: Level) -> Result<Level, LevelError> {
        let level = Level::ALL.into_iter().find(|l| l.name().eq_ignore_ascii_case(given.trim()));
        let level = level.ok_or_else(|| LevelError::Unknown { given: given.into() })?;
        if level <= best { Ok(level) } else { Err(LevelError::Missing { wanted: level }) }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether this processor has what a level adds to those before it.
#[cfg(target_arch = "x86_64")]
fn has(level: Level) -> bool {
    match level {
        Level::Portable => true,
        Level::Avx2 => {
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
        }
        Level::Avx512 => {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        }
        Level::Amx => has_matrix_unit(),
    }
}
#[cfg(not(target_arch = "x86_64"))]
fn has(level: Level) -> bool {
    level == Level::Portable
}

/// Whether there is a matrix unit for bf16, and the system lets this process use it.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_matrix_unit() -> bool {
    use std::arch::x86_64::__cpuid_count;
    /// Bits of EDX of leaf 7: AMX-BF16 and AMX-TILE.
    const UNIT: u32 = 1 << 22 | 1 << 24;
    /// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`: threads that start later have the permission, too.
    const REQUEST: [libc::c_long; 2] = [0x1023, 18];
    // Loops around the unit round with AVX-512 BF16, which every processor with the unit has.
    is_x86_feature_detected!("avx512bf16")
        && __cpuid_count(7, 0).edx & UNIT == UNIT
        // SAFETY: changes nothing but this permission.
        && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST[0], REQUEST[1]) } == 0
}
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn has_matrix_unit() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_what_its_name_says_or_an_error_that_names_the_others() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.name(), Level::Amx), Ok(level));
            assert_eq!(Level::parse(&level.name().to_uppercase(), level), Ok(level));
        }
        let wrong = Level::parse("sse", Level::Amx).unwrap_err();
        assert_eq!(wrong, LevelError::Unknown { given: "sse".into() });
        assert!(wrong.to_string().contains("portable"), "{wrong}");
        let above = Level::parse("avx512", Level::Avx2).unwrap_err();
        assert_eq!(above, LevelError::Missing { wanted: Level::Avx512 });
        assert!(
            above.to_string().starts_with("KILN_CPU asks for avx512, which this processor does not have"),
            "{above}"
        );
    }

    #[test]
    fn levels_of_the_processor_begin_with_the_portable_one() {
        assert_eq!(Level::here().first(), Some(&Level::Portable));
        assert!(Level::here().is_sorted() && Level::here().contains(&Level::best()));
    }
}
