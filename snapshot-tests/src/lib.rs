//! Facts about PTX that snapshots state: instruction counts, and what `ptxas` says.
use std::{collections::BTreeMap, fmt::Write as _, io::Write as _, path::Path, process::Command};

/// Instructions worth counting, by prefix.
const COUNTED: &[&str] = &[
    "ld.global",
    "st.global",
    "ld.shared",
    "st.shared",
    "mma.sync",
    "wgmma",
    "cp.async",
    "bar.sync",
    "barrier.sync",
    "shfl.sync",
    "ldmatrix",
    "call",
    "ld.local",
    "st.local",
];

/// One line an instruction kind with its count, sorted. Global accesses keep their width (`ld.global.v4`).
pub fn instruction_counts(ptx: &str) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in ptx.lines().map(str::trim) {
        let op = if line.starts_with('@') { line.split_whitespace().nth(1) } else { line.split_whitespace().next() };
        let Some(op) = op else { continue };
        if let Some(kind) = COUNTED.iter().find(|k| op.starts_with(**k)) {
            let width = [".v8", ".v4", ".v2"].into_iter().find(|w| op.contains(w)).unwrap_or("");
            *counts.entry(format!("{kind}{width}")).or_default() += 1;
        }
    }
    counts.into_iter().fold(String::new(), |mut s, (k, n)| {
        let _ = writeln!(s, "{k} {n}");
        s
    })
}

/// Whether the kernel spills, and warnings, by `ptxas`; `Err` if the PTX is refused.
pub fn assemble(ptxas: &Path, ptx: &str, arch: &str) -> Result<String, String> {
    let mut file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    file.write_all(ptx.as_bytes()).map_err(|e| e.to_string())?;
    let out = Command::new(ptxas)
        .args(["-v", &format!("-arch={arch}"), "-o", "/dev/null"])
        .arg(file.path())
        .output()
        .map_err(|e| format!("cannot run {}: {e}", ptxas.display()))?;
    let log = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        return Err(log);
    }
    let number = |line: &str, before: &str| -> Option<u64> {
        let words: Vec<&str> = line.split([' ', ',']).filter(|w| !w.is_empty()).collect();
        let i = words.windows(before.split(' ').count()).position(|w| w.join(" ") == before)?;
        words.get(i.checked_sub(1)?)?.parse().ok()
    };
    let mut facts = String::new();
    for line in log.lines() {
        if let Some(n) = number(line, "bytes spill stores") {
            let _ = writeln!(facts, "spill bytes {n}");
        }
        if line.contains("warning") {
            let _ = writeln!(facts, "{}", line.trim());
        }
    }
    Ok(facts)
}
