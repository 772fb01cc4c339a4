//! Runs every command in the `console` blocks of the guide (docs/src) and compares the output with the page.
//!
//! With `GUIDE=write`, which `scripts/guide` sets, it writes the new outputs into the pages instead.
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Output of a shell command, run in a folder with the guide's model.
fn run(command: &str, folder: &Path) -> String {
    let kiln = Path::new(env!("CARGO_BIN_EXE_kiln")).parent().expect("a folder").display().to_string();
    let o = Command::new("sh")
        .args(["-c", &format!("({command}) 2>&1")])
        .current_dir(folder)
        .env("PATH", format!("{kiln}:{}", std::env::var("PATH").unwrap_or_default()))
        .env("LIBTORCH", libtorch())
        .env("COLUMNS", "100")
        .output()
        .expect("sh starts");
    let text = String::from_utf8_lossy(&o.stdout);
    assert!(!text.contains("panicked"), "{command}\n{text}");
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}
/// libtorch's folder: `LIBTORCH`, or the repository's own, as an absolute path, since commands run in another folder.
fn libtorch() -> String {
    let local = docs().join("../.deps/libtorch");
    let found = std::env::var("LIBTORCH").ok().or_else(|| Some(local.canonicalize().ok()?.display().to_string()));
    found.expect("libtorch is missing: run scripts/setup")
}

/// The page with the current output of every command in its `console` blocks.
fn renewed(page: &str, folder: &Path) -> String {
    let (mut out, mut inside) = (String::new(), false);
    for line in page.lines() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, _) => {
                // Drops the old output and writes the new output after its command.
                if let Some(command) = line.strip_prefix("$ ") {
                    let text = run(command, folder);
                    let _ = writeln!(out, "{line}");
                    if !text.is_empty() {
                        let _ = writeln!(out, "{text}");
                    }
                }
                continue;
            }
            _ => {}
        }
        let _ = writeln!(out, "{line}");
    }
    out
}

#[test]
fn the_guide_shows_what_the_commands_print() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for file in std::fs::read_dir(docs().join("model")).expect("docs/model").flatten() {
        std::fs::copy(file.path(), dir.path().join(file.file_name())).expect("copies");
    }
    let summary = std::fs::read_to_string(docs().join("src/SUMMARY.md")).expect("the guide");
    let pages: Vec<&str> = summary.split(['(', ')']).filter(|p| p.ends_with(".md")).collect();
    assert!(pages.len() >= 6, "{pages:?}");
    let mut wrong = vec![];
    for page in pages {
        let path = docs().join("src").join(page);
        let old = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let new = renewed(&old, dir.path());
        if std::env::var_os("GUIDE").is_some_and(|g| g == "write") {
            std::fs::write(&path, &new).expect("writes");
        } else if old != new {
            let line = old.lines().zip(new.lines()).position(|(a, b)| a != b).unwrap_or(old.lines().count());
            let shown = |t: &str| t.lines().skip(line).take(6).collect::<Vec<_>>().join("\n");
            wrong.push(format!("{page}, line {}:\n{}\n-- now:\n{}", line + 1, shown(&old), shown(&new)));
        }
    }
    assert!(wrong.is_empty(), "the guide is out of date; run scripts/guide to update it\n{}", wrong.join("\n\n"));
}
