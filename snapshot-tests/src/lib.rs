//! Support for tests of whole stages: file tests, and facts about PTX in the form in which snapshots contain them.
pub mod filetest;

use kiln::facts::{assemble, instruction_counts};
use std::{fmt::Write as _, path::Path};

/// Instruction counts of a kernel, and its spills as `ptxas` reports them; an error if `ptxas` rejects the text.
pub fn ptx_facts(ptxas: &Path, ptx: &str) -> Result<String, kiln::Error> {
    let assembled = assemble(ptxas, ptx, "sm_90a")?;
    let mut t = String::new();
    for (name, n) in instruction_counts(ptx) {
        let _ = writeln!(t, "  {name} {n}");
    }
    let _ = writeln!(t, "  spill bytes {}", assembled.spill_stores);
    assembled.warnings.iter().for_each(|w| t += &format!("  {w}\n"));
    Ok(t)
}
