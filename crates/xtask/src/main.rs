//! `cargo run -p kiln-xtask -- deps`: checks `cargo metadata` against ARCHITECTURE.md's table: which crate may depend on which, and
//! which one alone may use tch, egg, inkwell and cudarc. Development dependencies are free.
//! `-- tests`: that each crate's tests are one program, and that figures of hardware stand in crates/machine alone.
mod figures;
mod table;
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};
use table::Table;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("deps") => check().map(|n| format!("{n} crates depend on each other as the table says")),
        Some("tests") => check_tests().map(|(tests, sources)| {
            format!("{tests} files of tests are named where they have to be, {sources} of sources ask crates/machine for figures")
        }),
        _ => {
            eprintln!("usage: cargo run -p kiln-xtask -- deps|tests");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(text) => println!("{text}"),
        Err(problems) => {
            problems.iter().for_each(|p| eprintln!("error: {p}"));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn check_tests() -> Result<(usize, usize), Vec<String>> {
    let packages = workspace().map_err(|e| vec![e])?;
    let folders: Vec<PathBuf> = packages.values().map(|p| p.folder.clone()).collect();
    let asks = |p: &&Package| p.deps.iter().any(|d| d == "kiln-machine");
    let of_hardware: Vec<PathBuf> = packages.values().filter(asks).map(|p| p.folder.clone()).collect();
    Ok((tests::check(&folders)?, figures::check(&of_hardware)?))
}

/// Number of crates checked, or every breach of the table.
fn check() -> Result<usize, Vec<String>> {
    let packages = workspace().map_err(|e| vec![e])?;
    let text = std::fs::read_to_string("ARCHITECTURE.md").map_err(|e| vec![format!("ARCHITECTURE.md: {e}")])?;
    let table = Table::parse(&text).map_err(|e| vec![e])?;
    let root = std::env::current_dir().map_err(|e| vec![e.to_string()])?;
    let folder = |p: &Package| p.folder.strip_prefix(&root).unwrap_or(&p.folder).display().to_string();
    let by_folder: BTreeMap<String, &String> = packages.iter().map(|(name, p)| (folder(p), name)).collect();
    let mut problems: Vec<String> = table
        .folders()
        .filter(|f| !by_folder.contains_key(*f))
        .map(|f| format!("ARCHITECTURE.md's table has {f}, where no crate is"))
        .collect();
    for (name, package) in &packages {
        let own = folder(package);
        let Some(may) = table.may_use(&own) else {
            problems.push(format!("{own} is not in ARCHITECTURE.md's table"));
            continue;
        };
        for dep in &package.deps {
            if packages.get(dep).is_some_and(|d| !may.contains(&folder(d))) {
                problems.push(format!("{name} may not depend on {dep}: ARCHITECTURE.md's table does not list it"));
            }
            if let Some(sole) = table.sole_user(dep).filter(|sole| *sole != own) {
                problems.push(format!("{name} may not use {dep}: only {sole} does"));
            }
        }
    }
    if problems.is_empty() { Ok(packages.len()) } else { Err(problems) }
}

/// A crate of the workspace: its folder, its normal and build dependencies.
struct Package {
    folder: PathBuf,
    deps: Vec<String>,
}

fn workspace() -> Result<BTreeMap<String, Package>, String> {
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
    let folder =
        |p: &serde_json::Value| Path::new(&text(&p["manifest_path"])).parent().map(PathBuf::from).unwrap_or_default();
    Ok(packages.iter().map(|p| (text(&p["name"]), Package { folder: folder(p), deps: deps(p) })).collect())
}

#[cfg(test)]
mod checks {
    #[test]
    fn every_file_of_tests_is_named_and_figures_are_in_one_place() {
        super::check_tests().unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
    }

    /// A file beside `main.rs` that it does not name, and a crate with two programs.
    #[test]
    fn files_that_never_run_are_found() {
        let folder = std::env::temp_dir().join(format!("kiln-xtask-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("a/tests/main.rs", "mod known;\n");
        write("a/tests/known.rs", "");
        write("a/tests/forgotten.rs", "");
        write("b/tests/one.rs", "");
        write("b/tests/two.rs", "");
        let problems = super::tests::check(&[folder.join("a"), folder.join("b")]).expect_err("two problems");
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("forgotten.rs never runs"), "{}", problems[0]);
        assert!(problems[1].contains("2 test programs"), "{}", problems[1]);
    }
}
