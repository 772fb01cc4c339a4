//! Untrusted files: whatever they request beyond computing is refused with one message and within the limits on time
//! and memory.
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

fn kiln(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kiln")).args(args).output().expect("kiln starts")
}

fn refused(out: &Output) -> String {
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{text}");
    // Undoes line wrapping.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An archive whose forward takes `x` and has this body.
fn archive(folder: &Path, name: &str, body: &[&str]) -> PathBuf {
    let path = folder.join(name);
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.deps/venv/bin/python");
    let lines: String = body.iter().map(|l| format!("    {l}\\n")).collect();
    let program = format!(
        "import torch\nm = torch.jit.ScriptModule()\nm.define('def forward(self, x):\\n{lines}')\n\
         torch.jit.save(m, '{}')",
        path.display()
    );
    let run = Command::new(python).args(["-c", &program]).output().expect("scripts/setup made the venv");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    path
}

#[test]
fn importing_has_a_limit_on_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = archive(folder.path(), "endless.pt", &["while bool((x == x).all()):", "    x = x + 0", "return x"]);
    let start = Instant::now();
    let out = kiln(&["explain", &path.display().to_string(), "--input", "f32[4]", "--import-seconds", "3"]);
    let text = refused(&out);
    assert!(text.contains("took more than 3 s") && text.contains("--import-seconds"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(200));
}

#[test]
fn importing_has_a_limit_on_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = archive(folder.path(), "large.pt", &["return x + torch.zeros([4000000000]).sum()"]);
    let out = kiln(&["explain", &path.display().to_string(), "--input", "f32[4]", "--import-memory", "1"]);
    let text = refused(&out);
    assert!(text.contains("took more than 1.0 GiB of memory") && text.contains("--import-memory"), "{text}");
}

#[test]
fn what_an_archive_prints_is_not_an_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = archive(folder.path(), "prints.pt", &["print(\"hello from forward\")", "return x + 1"]);
    let out = kiln(&["explain", &path.display().to_string(), "--input", "f32[4]"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_text_graph_may_not_name_any_operator() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("attack.kiln");
    for (name, args) in [
        ("aten::from_file", r#"[\"/etc/hostname\", false, 4, 6]"#),
        ("aten::save", r#"[{\"tensor\": 0}, \"/tmp/x\"]"#),
        ("aten::_reshape_alias", r#"[{\"tensor\": 0}, [99999], [1]]"#),
        ("prim::ConstantChunk", "[]"),
    ] {
        let line = format!(r#"fallback %0 name="{name}" overload="" args="{args}" results=[f32[4]] why="""#);
        std::fs::write(&path, format!("graph g(%0: f32[4]) {{\n  %1 = {line}\n  return %1\n}}")).expect("writes");
        let text = refused(&kiln(&["explain", &path.display().to_string()]));
        assert!(text.contains("is not among the operators that a graph may leave to libtorch"), "{text}");
    }
}
