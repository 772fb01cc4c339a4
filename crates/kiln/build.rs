//! A digest of the sources that decide what code is made of a program: part of the keys of the cache
//! ([`crate::cache`]), so that entries of another version are never found. It is the same wherever these sources are
//! built.
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Crates on the way from a graph to code.
const CRATES: [&str; 11] =
    ["number", "graph", "machine", "cpu", "plan", "rewrite", "block", "lower", "codegen", "interp", "kiln"];

fn main() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec![crates.join("../Cargo.lock")];
    for name in CRATES {
        // A folder that is missing would make every build run this again.
        for folder in ["src", "machines"].map(|f| crates.join(name).join(f)).into_iter().filter(|f| f.is_dir()) {
            println!("cargo:rerun-if-changed={}", folder.display());
            list(&folder, &mut files);
        }
    }
    println!("cargo:rerun-if-changed={}", files[0].display());
    println!("cargo:rerun-if-changed=build.rs");
    files.sort();
    // FNV-1a of 128 bits.
    let mut sum: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            sum = (sum ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    };
    for file in files {
        // Names are relative, so that it does not matter where the sources are.
        let name = file.strip_prefix(&crates).unwrap_or(&file);
        add(name.to_string_lossy().as_bytes());
        add(&fs::read(&file).unwrap_or_default());
        add(&[0]);
    }
    println!("cargo:rustc-env=KILN_SOURCES={sum:032x}");
}

/// All files of a folder.
fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}
