//! `cargo run -p kiln-xtask -- deps`: checks the crate table of ARCHITECTURE.md against `cargo metadata`: which crate may
//! depend on which, and which one alone may use tch, egg, inkwell and cudarc. Development dependencies are free.
use std::{collections::BTreeMap, process::ExitCode};

/// Crate, and the workspace crates it may depend on.
const MAY_USE: &[(&str, &[&str])] = &[
    ("kiln-graph", &[]),
    ("kiln-torch-host", &["kiln-graph"]),
    ("kiln-torchscript", &["kiln-graph"]),
    ("kiln-plan", &["kiln-graph"]),
    ("kiln-rewrite", &["kiln-graph", "kiln-plan"]),
    ("kiln-block", &[]),
    ("kiln-lower", &["kiln-graph", "kiln-plan", "kiln-block"]),
    ("kiln-codegen", &["kiln-block"]),
    ("kiln-interp", &["kiln-graph", "kiln-block"]),
    ("kiln-runtime", &["kiln-graph", "kiln-plan"]),
    ("kiln-tune", &["kiln-plan"]),
    (
        "kiln",
        &[
            "kiln-graph",
            "kiln-plan",
            "kiln-rewrite",
            "kiln-block",
            "kiln-lower",
            "kiln-codegen",
            "kiln-interp",
            "kiln-runtime",
            "kiln-torch-host",
            "kiln-tune",
        ],
    ),
    ("kiln-cli", &["kiln"]),
    ("kiln-snapshot-tests", &["kiln"]),
    ("kiln-benches", &["kiln"]),
    ("kiln-xtask", &[]),
];

/// Outside crate, and the only crate that may use it.
const SOLE_USER: &[(&str, &str)] = &[
    ("tch", "kiln-torchscript"),
    ("torch-sys", "kiln-torchscript"),
    ("egg", "kiln-rewrite"),
    ("inkwell", "kiln-codegen"),
    ("cudarc", "kiln-runtime"),
];

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("deps") => match check() {
            Ok(n) => {
                println!("{n} crates depend on each other as the table says");
                ExitCode::SUCCESS
            }
            Err(problems) => {
                problems.iter().for_each(|p| eprintln!("error: {p}"));
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: cargo run -p kiln-xtask -- deps");
            ExitCode::from(2)
        }
    }
}

/// Number of crates checked, or every breach of the table.
fn check() -> Result<usize, Vec<String>> {
    let packages = workspace().map_err(|e| vec![e])?;
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut problems = vec![];
    for (name, deps) in &packages {
        let Some(may) = allowed.get(name.as_str()) else {
            problems.push(format!("{name} is not in the table; add it to crates/xtask and ARCHITECTURE.md"));
            continue;
        };
        for dep in deps {
            if packages.contains_key(dep) && !may.contains(&dep.as_str()) {
                problems.push(format!(
                    "{name} may not depend on {dep}; move the code, or argue for the edge in ARCHITECTURE.md"
                ));
            }
            if let Some((_, sole)) = SOLE_USER.iter().find(|(d, sole)| d == dep && sole != name) {
                problems.push(format!("{name} may not use {dep}: only {sole} does"));
            }
        }
    }
    if problems.is_empty() { Ok(packages.len()) } else { Err(problems) }
}

/// Workspace crates with their normal and build dependencies.
fn workspace() -> Result<BTreeMap<String, Vec<String>>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = std::process::Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps"])
        .output()
        .map_err(|e| format!("cannot run cargo metadata: {e}"))?;
    let json: serde_json::Value =
        serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata gave no JSON: {e}"))?;
    let text = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_string();
    let packages = json["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let deps = |p: &serde_json::Value| {
        let all = p["dependencies"].as_array().cloned().unwrap_or_default();
        all.iter().filter(|d| d["kind"] != "dev").map(|d| text(&d["name"])).collect()
    };
    Ok(packages.iter().map(|p| (text(&p["name"]), deps(p))).collect())
}
