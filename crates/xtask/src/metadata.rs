//! Packages and their dependencies, as `cargo metadata` reports them.
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Packages of the workspace, or these and all of their dependencies.
#[derive(Debug, Default)]
pub struct Metadata {
    pub packages: Vec<Package>,
}

#[derive(Debug, Default, Clone)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub folder: PathBuf,
    /// An SPDX expression.
    pub license: Option<String>,
    /// The registry or repository it comes from; `None` for packages of the workspace.
    pub source: Option<String>,
    pub deps: Vec<Dep>,
}

#[derive(Debug, Default, Clone)]
pub struct Dep {
    pub name: String,
    /// A requirement such as `^1.2`; `*` matches any version.
    pub version: String,
    pub from_registry: bool,
    /// For tests, examples and benches only.
    pub dev: bool,
}

impl Metadata {
    /// The crates of this workspace.
    pub fn workspace() -> Result<Metadata, String> {
        read(&["--no-deps"])
    }
    /// Every package of a build for Linux on x86-64, including those of tests and build scripts.
    pub fn everything() -> Result<Metadata, String> {
        read(&["--filter-platform=x86_64-unknown-linux-gnu", "--locked"])
    }
}

fn read(args: &[&str]) -> Result<Metadata, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = std::process::Command::new(cargo)
        .args(["metadata", "--format-version=1"])
        .args(args)
        .output()
        .map_err(|e| format!("cannot run cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata failed:\n{}", String::from_utf8_lossy(&out.stderr)));
    }
    let json: Value = serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata gave no JSON: {e}"))?;
    let packages = json["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    Ok(Metadata { packages: packages.iter().map(package).collect() })
}

fn package(p: &Value) -> Package {
    let maybe = |v: &Value| v.as_str().map(str::to_string);
    let text = |v: &Value| maybe(v).unwrap_or_default();
    let dep = |d: &Value| Dep {
        name: text(&d["name"]),
        version: text(&d["req"]),
        from_registry: d["source"].is_string(),
        dev: d["kind"] == "dev",
    };
    Package {
        name: text(&p["name"]),
        version: text(&p["version"]),
        folder: Path::new(&text(&p["manifest_path"])).parent().map(PathBuf::from).unwrap_or_default(),
        license: maybe(&p["license"]),
        source: maybe(&p["source"]),
        deps: p["dependencies"].as_array().into_iter().flatten().map(dep).collect(),
    }
}
