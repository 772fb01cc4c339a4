//! Repository checks. `cargo run -p kiln-xtask -- deps` compares `cargo metadata` with the table in ARCHITECTURE.md:
//! which crate may depend on which, and which single crate may use tch, egg, inkwell and cudarc. Development
//! dependencies are not restricted. `-- tests`: each crate's tests are one program, and hardware constants occur in
//! crates/machine alone. `-- licences`: dependencies are under licences that deny.toml allows. `-- circles`: modules of
//! a crate have no circular imports. `-- words`: that no text uses a private word where the field has one.
mod circles;
mod figures;
mod licences;
mod metadata;
mod table;
mod tests;
mod words;

use metadata::{Metadata, Package};
use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, process::ExitCode};
use table::Table;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("deps") => check().map(|n| format!("{n} crates depend on each other as the table allows")),
        Some("tests") => check_tests().map(|(tests, sources)| {
            format!("{tests} test files are named in their main.rs, {sources} source files hold no hardware constants")
        }),
        Some("licences") => check_licences().map(|n| format!("{n} packages are under licences that deny.toml allows")),
        Some("circles") => check_circles().map(|n| format!("{n} crates have no circular imports")),
        Some("words") => words::check(Path::new(".")).map(|n| format!("{n} files speak the words of the field")),
        _ => {
            eprintln!("usage: cargo run -p kiln-xtask -- deps|tests|licences|circles|words");
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
    let packages = Metadata::workspace().map_err(|e| vec![e])?.packages;
    let folders: Vec<PathBuf> = packages.iter().map(|p| p.folder.clone()).collect();
    let asks = |p: &&metadata::Package| p.deps.iter().any(|d| d.name == "kiln-machine");
    let of_hardware: Vec<PathBuf> = packages.iter().filter(asks).map(|p| p.folder.clone()).collect();
    Ok((tests::check(&folders)?, figures::check(&of_hardware)?))
}

fn check_licences() -> Result<usize, Vec<String>> {
    let deny = std::fs::read_to_string("deny.toml").map_err(|e| vec![format!("deny.toml: {e}")])?;
    licences::check(&Metadata::everything().map_err(|e| vec![e])?, &deny)
}

fn check_circles() -> Result<usize, Vec<String>> {
    circles::check(&Metadata::workspace().map_err(|e| vec![e])?.packages)
}

/// Number of crates checked, or every violation of the table.
fn check() -> Result<usize, Vec<String>> {
    let metadata = Metadata::workspace().map_err(|e| vec![e])?;
    let packages: BTreeMap<&str, &Package> = metadata.packages.iter().map(|p| (p.name.as_str(), p)).collect();
    let text = std::fs::read_to_string("ARCHITECTURE.md").map_err(|e| vec![format!("ARCHITECTURE.md: {e}")])?;
    let table = Table::parse(&text).map_err(|e| vec![e])?;
    let root = std::env::current_dir().map_err(|e| vec![e.to_string()])?;
    let folder = |p: &Package| p.folder.strip_prefix(&root).unwrap_or(&p.folder).display().to_string();
    let by_folder: BTreeMap<String, &str> = packages.iter().map(|(name, p)| (folder(p), *name)).collect();
    let mut problems: Vec<String> = table
        .folders()
        .filter(|f| !by_folder.contains_key(*f))
        .map(|f| format!("ARCHITECTURE.md's table lists {f}, which is not a crate"))
        .collect();
    for (name, package) in &packages {
        let own = folder(package);
        let Some(may) = table.may_use(&own) else {
            problems.push(format!("{own} is not in ARCHITECTURE.md's table"));
            continue;
        };
        for dep in package.deps.iter().filter(|d| !d.dev).map(|d| d.name.as_str()) {
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

#[cfg(test)]
mod checks {
    #[test]
    fn words_are_those_of_the_field() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        super::words::check(super::Path::new(root)).unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
    }

    #[test]
    fn every_file_of_tests_is_named_and_figures_are_in_one_place() {
        super::check_tests().unwrap_or_else(|problems| panic!("{}", problems.join("\n")));
    }

    /// A file next to `main.rs` that it does not name, and a crate with two test programs.
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
