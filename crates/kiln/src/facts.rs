//! Facts about PTX: instruction counts and access widths read from its text, registers and spills as `ptxas` reports
//! them.
use crate::Error;
use serde::Serialize;
use std::{collections::BTreeMap, io::Write as _, path::Path, process::Command};

/// What `ptxas -v` reports for one kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Assembled {
    pub registers: u64,
    pub spill_stores: u64,
    pub spill_loads: u64,
    pub stack: u64,
    pub barriers: u64,
    pub warnings: Vec<String>,
}

/// Instruction groups that are counted, by prefix.
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

/// Opcodes of the instructions in a PTX text, in order.
fn opcodes(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.lines().map(str::trim).filter_map(|line| {
        let mut words = line.split_whitespace();
        let first = words.next()?;
        if first.starts_with('@') { words.next() } else { Some(first) }
    })
}

/// Counts by instruction group; accesses to memory keep their vector width (`ld.global.v4`).
pub fn instruction_counts(ptx: &str) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for op in opcodes(ptx) {
        if let Some(kind) = COUNTED.iter().find(|k| op.starts_with(**k)) {
            let width = [".v8", ".v4", ".v2"].into_iter().find(|w| op.contains(w)).unwrap_or("");
            *counts.entry(format!("{kind}{width}")).or_default() += 1;
        }
    }
    counts
}

/// Number of instructions: lines that end with `;`, without directives and comments.
pub fn instructions(ptx: &str) -> usize {
    let code = |l: &&str| l.ends_with(';') && !l.starts_with('.') && !l.starts_with("//");
    ptx.lines().map(str::trim).filter(code).count()
}

/// How many accesses of each width the text has, in bytes, among instructions with this prefix (`ld.global`).
pub fn widths(ptx: &str, prefix: &str) -> BTreeMap<usize, usize> {
    let bytes = |op: &str| {
        let parts: Vec<&str> = op.trim_end_matches(';').split('.').collect();
        let lanes = parts.iter().find_map(|p| p.strip_prefix('v')?.parse::<usize>().ok()).unwrap_or(1);
        // `cp.async.cg` (copies to shared memory that bypass L1) always moves 16 bytes.
        if op.starts_with("cp.async.cg") {
            return 16;
        }
        let bits = parts.last().and_then(|p| p.trim_start_matches(char::is_alphabetic).parse::<usize>().ok());
        lanes * bits.unwrap_or(0) / 8
    };
    let mut counts = BTreeMap::new();
    opcodes(ptx).filter(|op| op.starts_with(prefix)).for_each(|op| *counts.entry(bytes(op)).or_default() += 1);
    counts
}

/// The widest access in bytes.
pub fn widest(ptx: &str, prefix: &str) -> usize {
    widths(ptx, prefix).into_keys().last().unwrap_or(0)
}

/// Runs `ptxas -v`; if it rejects the PTX, the error holds its output.
pub fn assemble(ptxas: &Path, ptx: &str, arch: &str) -> Result<Assembled, Error> {
    run(ptxas, ptx, arch, Path::new("/dev/null")).map(|log| parse(&log))
}

/// The machine code that `ptxas` makes of PTX; if it rejects it, the error holds its output.
pub fn cubin(ptxas: &Path, ptx: &str, arch: &str) -> Result<Vec<u8>, Error> {
    let file = tempfile::NamedTempFile::new().map_err(|e| failed(ptxas, &e.to_string()))?;
    run(ptxas, ptx, arch, file.path())?;
    std::fs::read(file.path()).map_err(|e| Error::reading(file.path(), e))
}

fn failed(ptxas: &Path, what: &str) -> Error {
    Error::failed(format!("{}: {what}", ptxas.display()), "`kiln doctor` shows which ptxas was found")
}

/// Assembles to a file; gives the log.
fn run(ptxas: &Path, ptx: &str, arch: &str, to: &Path) -> Result<String, Error> {
    let mut file = tempfile::NamedTempFile::new().map_err(|e| failed(ptxas, &e.to_string()))?;
    file.write_all(ptx.as_bytes()).map_err(|e| failed(ptxas, &e.to_string()))?;
    let mut call = Command::new(ptxas);
    let call = call.args(["-v", &format!("-arch={arch}"), "-o"]).arg(to).arg(file.path());
    let out = call.output().map_err(|e| failed(ptxas, &e.to_string()))?;
    let log = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    if out.status.success() { Ok(log) } else { Err(failed(ptxas, log.trim())) }
}

fn parse(log: &str) -> Assembled {
    let mut facts = Assembled::default();
    for line in log.lines() {
        let take = |label: &str| number_before(line, label);
        let pairs: [(&mut u64, Option<u64>); 5] = [
            (&mut facts.registers, take("registers")),
            (&mut facts.spill_stores, take("bytes spill stores")),
            (&mut facts.spill_loads, take("bytes spill loads")),
            (&mut facts.stack, take("bytes stack frame")),
            (&mut facts.barriers, take("barriers")),
        ];
        for (fact, found) in pairs {
            *fact = found.unwrap_or(*fact);
        }
        if line.contains("warning") {
            facts.warnings.push(line.trim().to_string());
        }
    }
    facts
}

/// The number in front of these words.
fn number_before(line: &str, label: &str) -> Option<u64> {
    let at = line.find(label)?;
    line[..at].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_ptxas_and_widths() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Compiling entry function 'k' for 'sm_90a'\n    \
                   16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 40 registers, used 1 barriers, 17888 bytes smem\n\
                   ptxas warning : something\n";
        let want = Assembled {
            registers: 40,
            spill_stores: 8,
            spill_loads: 12,
            stack: 16,
            barriers: 1,
            warnings: vec!["ptxas warning : something".into()],
        };
        assert_eq!(parse(log), want);
        let ptx =
            "@%p1 ld.global.v4.b32 {%r1,%r2}, [%rd1];\n st.global.b16 [%rd1], %rs1;\n ld.shared.v2.b32 {a,b}, [c];\n";
        assert_eq!((widest(ptx, "ld.global"), widest(ptx, "st.global"), widest(ptx, "mma")), (16, 2, 0));
        assert_eq!(instructions(ptx), 3);
        assert_eq!(
            instruction_counts(ptx).into_iter().collect::<Vec<_>>(),
            [("ld.global.v4".to_string(), 1), ("ld.shared.v2".to_string(), 1), ("st.global".to_string(), 1)]
        );
    }
}
