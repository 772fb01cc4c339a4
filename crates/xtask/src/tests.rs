//! Checks that each crate's integration tests are one program: `tests/main.rs` names every other file in `tests/` as a
//! module.
//!
//! Every test program links all of the crate's dependencies, 150 MB where LLVM is one of them, so one program per crate
//! links LLVM once. A file that `main.rs` does not name would never run.
use std::{collections::BTreeSet, path::Path};

/// Number of test files, or the problems: files that `main.rs` does not name, crates with several test programs.
pub fn check(crates: &[std::path::PathBuf]) -> Result<usize, Vec<String>> {
    let (mut count, mut problems) = (0, vec![]);
    for folder in crates.iter().map(|c| c.join("tests")).filter(|f| f.is_dir()) {
        let files = match sources(&folder) {
            Ok(files) => files,
            Err(e) => {
                problems.push(format!("cannot list {}: {e}", folder.display()));
                continue;
            }
        };
        count += files.len();
        let main = std::fs::read_to_string(folder.join("main.rs")).unwrap_or_default();
        if main.is_empty() && files.len() > 1 {
            problems.push(format!(
                "{} has {} test programs; make them modules of tests/main.rs",
                folder.display(),
                files.len()
            ));
        }
        if !main.is_empty() {
            let named: BTreeSet<&str> =
                main.lines().filter_map(|l| l.strip_prefix("mod ")?.strip_suffix(';')).collect();
            let missing = files.iter().filter(|f| !named.contains(f.as_str()) && *f != "main");
            problems.extend(
                missing.map(|f| format!("{}/{f}.rs never runs; add `mod {f};` to {0}/main.rs", folder.display())),
            );
        }
    }
    if problems.is_empty() { Ok(count) } else { Err(problems) }
}

/// Names of a folder's Rust files, without extension.
fn sources(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = vec![];
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") {
            names.extend(path.file_stem().map(|s| s.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}
