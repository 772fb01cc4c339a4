//! `kiln kernel`: kernels of Python files at every stage, and what is said of files and arguments that are wrong.
use std::path::Path;
use std::process::{Command, Output};

fn kiln(folder: &Path, args: &[&str]) -> Output {
    let kernel = Command::new(env!("CARGO_BIN_EXE_kiln")).arg("kernel").args(args).current_dir(folder).output();
    kernel.expect("kiln starts")
}
fn says(folder: &Path, args: &[&str]) -> String {
    let o = kiln(folder, args);
    let errors = String::from_utf8_lossy(&o.stderr);
    assert!(o.status.success(), "kiln kernel {args:?}\n{errors}");
    String::from_utf8_lossy(&o.stdout).into_owned()
}
fn complains(folder: &Path, args: &[&str]) -> String {
    let o = kiln(folder, args);
    let errors = String::from_utf8_lossy(&o.stderr).into_owned();
    assert_eq!(o.status.code(), Some(2), "kiln kernel {args:?}\n{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    errors
}

/// A package of two files; nothing in it could be imported here.
fn package() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");
    write(
        "helpers.py",
        "import missing_module\nimport triton\nimport triton.language as tl\n\nLIMIT: tl.constexpr = 4\n\n\n\
         @triton.jit\ndef scaled(x, by=2.0):\n    return x * by + LIMIT\n",
    );
    write(
        "kernels.py",
        "import triton\nimport triton.language as tl\nfrom .helpers import scaled as grown\n\n\n\
         @triton.autotune(configs=[], key=['n'])\n@triton.jit\n\
         def scale(x_ptr, o_ptr, n, BLOCK: tl.constexpr, KIND: tl.constexpr = \"double\"):\n    \
         offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    x = tl.load(x_ptr + offs, mask=offs < n)\n    \
         if KIND == \"double\":\n        x = grown(x)\n    tl.store(o_ptr + offs, x, mask=offs < n)\n\n\n\
         @triton.jit\ndef twice(x_ptr):\n    tl.store(x_ptr, undefined(tl.load(x_ptr)))\n",
    );
    folder
}

#[test]
fn a_kernel_of_a_package_at_every_stage() {
    let folder = package();
    let args = ["kernels.py:scale", "--args", "*f32, *f32, i32=100000, BLOCK=1024", "--grid", "98"];
    let stage = |name: &str| says(folder.path(), &[&args[..], &["--stage", name]].concat());
    let facts = says(folder.path(), &args);
    assert!(facts.contains("predicted") && facts.contains("bound by memory"), "{facts}");
    assert!(facts.contains("of 16 bytes"), "{facts}");
    // The helper and its constant came from the other file.
    assert!(stage("block").contains("const 4.0"), "{}", stage("block"));
    assert!(stage("ptx").contains(".entry scale"));
    assert!(stage("llvm").contains("define"));
    let passes = stage("passes");
    assert!(passes.starts_with("== written\nkernel @scale(") && passes.contains("== layout"), "{passes}");
}

#[test]
fn facts_as_json_and_everything_as_a_page() {
    let folder = package();
    let args = ["kernels.py:scale", "--args", "*f16, *f16, n=i32:16, BLOCK=256, KIND=\"none\"", "--target", "sm_80"];
    let json: serde_json::Value =
        serde_json::from_str(&says(folder.path(), &[&args[..], &["--json", "-"]].concat())).expect("JSON");
    assert_eq!(json["code"]["threads"], 128);
    assert_eq!(json["predicted"], serde_json::Value::Null);
    says(folder.path(), &[&args[..], &["--html", "page.html"]].concat());
    let page = std::fs::read_to_string(folder.path().join("page.html")).expect("a page");
    assert!(page.contains("Pass fold") && !page.contains("http"), "{page}");
}

#[test]
fn on_the_processor_there_is_assembly() {
    let folder = package();
    let args = ["kernels.py:scale", "--args", "*f32,*f32,i32,64", "--target", "cpu", "--stage"];
    assert!(says(folder.path(), &[&args[..], &["asm"]].concat()).contains("ret"));
    assert!(complains(folder.path(), &[&args[..], &["ptx"]].concat()).contains("no PTX"));
}

#[test]
fn what_is_wrong_is_told_with_a_remedy() {
    let folder = package();
    for (args, words) in [
        (&["kernels.py"][..], &["FILE.py:NAME"][..]),
        (&["kernels.py:none"], &["no function `none`", "its kernels are scale, twice"]),
        (&["kernels.py:scale"], &["`x_ptr` is not described", "*f32"]),
        (&["kernels.py:scale", "--args", "*f32,*f99,i32,64"], &["`*f99` does not describe `o_ptr`"]),
        (&["kernels.py:scale", "--args", "*f32,*f32,i32,64", "--num-warps", "3"], &["a power of two from 1 to 32"]),
        (&["kernels.py:scale", "--args", "*f32,*f32,i32,64,1,2"], &["more than the 5 parameters"]),
        (&["kernels.py:scale", "--args", "*f32,*f32,i32,64,BLOCK=32"], &["described twice"]),
        (&["kernels.py:twice", "--args", "*f32"], &["`undefined` is not defined", "kernels.py:18"]),
    ] {
        let text = complains(folder.path(), args);
        for word in words {
            assert!(text.contains(word), "{args:?}: {word} is not in\n{text}");
        }
    }
}
