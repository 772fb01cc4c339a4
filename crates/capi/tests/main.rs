//! The header is what cbindgen makes of the source, and C programs that are linked with the library run models of every kind of file.
//!
//! Nothing here links Kiln: `cargo build` makes the library and has to come before these tests, as in scripts/test.
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
/// The folder where `cargo build` leaves programs and libraries.
fn built() -> PathBuf {
    let tests = std::env::current_exe().expect("this program");
    let folder = tests.ancestors().nth(2).expect("tests are in a folder of their own").to_path_buf();
    let library = folder.join("libkiln.so");
    let age = |p: &Path| p.metadata().and_then(|m| m.modified()).ok();
    let newest = std::fs::read_dir(here("src")).expect("src").flatten().filter_map(|f| age(&f.path())).max();
    assert!(
        age(&library) >= newest,
        "{} is missing or old; run `cargo build` in this profile first",
        library.display()
    );
    folder
}
fn done(call: &mut Command) -> String {
    let out = call.output().unwrap_or_else(|e| panic!("{call:?}: {e}"));
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    assert!(out.status.success(), "{call:?}:\n{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// Where the C programs are built, and the programs that models.py writes.
static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    done(Command::new(here("../../.deps/venv/bin/python")).arg(here("tests/models.py")).arg(folder.path()));
    folder
});

/// A C program, linked with the library as a user would.
fn compiled(source: &str) -> PathBuf {
    let program = FOLDER.path().join(Path::new(source).file_stem().expect("a name"));
    let library = built();
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]).arg(here(source));
    cc.arg("-I").arg(here("include")).arg("-L").arg(&library).args(["-lkiln", "-lm", "-lpthread"]);
    cc.arg(format!("-Wl,-rpath,{}", library.display())).arg("-o").arg(&program);
    done(&mut cc);
    program
}

#[test]
fn the_header_is_that_of_the_source() {
    let config = cbindgen::Config::from_file(here("cbindgen.toml")).expect("cbindgen.toml");
    // Modules of the crate are found from its root.
    let builder = cbindgen::Builder::new().with_config(config).with_src(here("src/lib.rs"));
    let mut text = vec![];
    builder.generate().expect("a header").write(&mut text);
    let (new, path) = (String::from_utf8(text).expect("text"), here("include/kiln.h"));
    if std::env::var_os("KILN_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, new).expect("written");
        return;
    }
    let old = std::fs::read_to_string(&path).expect("include/kiln.h");
    let line = old.lines().zip(new.lines()).position(|(a, b)| a != b).unwrap_or(old.lines().count());
    let shown = |t: &str| t.lines().skip(line).take(6).collect::<Vec<_>>().join("\n");
    assert!(
        old == new,
        "{} is out of date; run this test with KILN_BLESS=1. Line {}:\n{}\n-- now:\n{}",
        path.display(),
        line + 1,
        shown(&old),
        shown(&new)
    );
}

/// Outputs that the example prints: their lengths, and first values.
fn outputs(text: &str) -> Vec<(usize, Vec<f64>)> {
    let mut all: Vec<(usize, Vec<f64>)> = vec![];
    for line in text.lines() {
        match line.strip_prefix("output ").and_then(|l| l.split_whitespace().nth(1)) {
            Some(n) => all.push((n.parse().expect("a number"), vec![])),
            None => all.last_mut().into_iter().for_each(|o| o.1.extend(line.parse::<f64>())),
        }
    }
    all
}

/// Softmax of the example's input, which counts up by 1/8.
fn softmax(length: usize) -> Vec<f64> {
    let all: Vec<f64> = (0..length).map(|i| ((i as f64 - (length - 1) as f64) / 8.0).exp()).collect();
    let sum: f64 = all.iter().sum();
    all.iter().map(|x| x / sum).collect()
}

#[test]
fn the_example_runs_text_graphs_artifacts_and_programs_of_torch_export() {
    let (program, folder) = (compiled("examples/run.c"), FOLDER.path());
    let run = |args: &[&str]| outputs(&done(Command::new(&program).args(args)));
    let close = |got: &[f64], want: &[f64]| {
        assert_eq!(got.len(), 16);
        got.iter().zip(want).for_each(|(g, w)| assert!((g - w).abs() <= 1e-6 * w.abs() + 1e-30, "{g} for {w}"));
    };
    let graph = here("../../graphs/softmax.kiln");
    let all = run(&[graph.to_str().expect("UTF-8")]);
    assert_eq!(all.len(), 1);
    let text = std::fs::read_to_string(&graph).expect("the graph");
    let sizes = text.split_once("f32[").and_then(|t| t.1.split_once(']')).expect("a type").0;
    let sizes: Vec<usize> = sizes.split(',').map(|n| n.trim().parse().expect("a size")).collect();
    assert_eq!(all[0].0, sizes.iter().product::<usize>());
    // Values of a long row would be 0: the first of a short one are compared.
    let short = folder.join("short.kiln");
    std::fs::write(&short, "graph short(%0: f32[2,32]) {\n  %1 = softmax %0 axis=1\n  return %1\n}").expect("written");
    let artifact = folder.join("artifact.kiln");
    let mut kiln = Command::new(built().join("kiln"));
    done(kiln.arg("compile").arg(&short).arg("-o").arg(&artifact));
    for file in [&short, &artifact] {
        let all = run(&[file.to_str().expect("UTF-8")]);
        assert_eq!((all.len(), all[0].0), (1, 64));
        close(&all[0].1, &softmax(32));
    }
    let double = folder.join("double.pt2");
    for rows in [4, 7] {
        let all = run(&[double.to_str().expect("UTF-8"), &rows.to_string()]);
        assert_eq!((all.len(), all[0].0), (1, 3 * rows));
        let want: Vec<f64> = (0..16.min(3 * rows)).map(|i| 2.0 * (i as f64 / 8.0 - 1.0)).collect();
        assert_eq!(all[0].1, want);
    }
    let refused = Command::new(&program).args([double.to_str().expect("UTF-8"), "100"]).output().expect("starts");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("cannot be 100") && said.contains("export again"), "{said}");
}

#[test]
fn calls_do_what_the_header_says() {
    let folder = FOLDER.path();
    let mut calls = Command::new(compiled("tests/calls.c"));
    calls.arg(here("../../graphs/softmax.kiln")).arg(folder.join("double.pt2")).arg(folder.join("counter.pt2"));
    assert_eq!(done(&mut calls), "done\n");
}
