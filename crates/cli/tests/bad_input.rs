//! Wrong calls and broken files: exit status 1 or 2, one clear message with a remedy, no panic, nothing half-written.
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn kiln(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kiln")).args(args).output().expect("kiln starts")
}
fn graph(name: &str) -> String {
    format!("{}/../../graphs/{name}.kiln", env!("CARGO_MANIFEST_DIR"))
}
fn file(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a temporary file");
    path.display().to_string()
}

/// Runs, and checks the exit status, words of the message, that nothing panicked, and that `out` was not left behind.
fn refuses(status: i32, args: &[&str], words: &[&str], out: Option<&Path>) {
    let o = kiln(args);
    let text = String::from_utf8_lossy(&o.stderr);
    assert_eq!(o.status.code(), Some(status), "kiln {args:?}\n{text}");
    assert!(!text.contains("panicked"), "kiln {args:?}\n{text}");
    for w in words {
        assert!(text.contains(w), "kiln {args:?}: no `{w}` in\n{text}");
    }
    if let Some(out) = out {
        assert!(!out.exists(), "kiln {args:?} left {} behind", out.display());
    }
}

#[test]
fn files_that_are_not_models() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out: PathBuf = dir.path().join("out.safetensors");
    let o = out.to_str().expect("UTF-8");
    let missing = dir.path().join("none.pt").display().to_string();
    refuses(1, &["run", &missing, "--outputs", o], &["cannot read", "check the path"], Some(&out));
    let empty = file(dir.path(), "empty.pt", b"");
    refuses(1, &["run", &empty, "--outputs", o], &["not a TorchScript archive"], Some(&out));
    let foreign = file(dir.path(), "foreign.kiln", b"\x7fELF\x02\x01");
    refuses(1, &["explain", &foreign], &["neither"], None);
    let zip = file(dir.path(), "cut.pt", b"PK\x03\x04aaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    refuses(1, &["explain", &zip, "--input", "f32[1]"], &["cut.pt"], None);
    let folder = dir.path().display().to_string();
    refuses(1, &["explain", &folder], &["cannot read"], None);
}

#[test]
fn artifacts_that_are_cut_short() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (g, out) = (graph("softmax"), dir.path().join("g.kiln").display().to_string());
    assert!(kiln(&["compile", &g, "-o", &out]).status.success());
    let whole = std::fs::read(&out).expect("written");
    let outputs = dir.path().join("out.safetensors");
    for len in [64, whole.len() / 2, whole.len() - 1] {
        let cut = file(dir.path(), "cut.kiln", &whole[..len]);
        let run = ["run", &cut, "--outputs", outputs.to_str().expect("UTF-8")];
        for args in [&run[..], &["explain", &cut], &["bench", &cut]] {
            refuses(1, args, &["is not a usable artifact", "compile the model again"], Some(&outputs));
        }
    }
}

#[test]
fn text_graphs_that_are_wrong() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (i, text) in [
        "graph",
        "graph x(",
        "graph x(%0: f32[2]) {\n  %1 = nonsense %0\n  return %1\n}",
        "graph x(%0: f32[2]) {\n  %1 = add %0, %7\n  return %1\n}",
        "graph x(%0: f32[2,3], %1: f32[4]) {\n  %2 = add %0, %1\n  return %2\n}",
        "graph x(%0: f32[99999999999999999999]) {\n  return %0\n}",
        "graph x(%0: f33[2]) {\n  return %0\n}",
    ]
    .iter()
    .enumerate()
    {
        let path = file(dir.path(), &format!("g{i}.kiln"), text.as_bytes());
        refuses(1, &["explain", &path], &[], None);
        refuses(1, &["print", &path], &[], None);
    }
}

#[test]
fn inputs_that_do_not_fit() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("out.safetensors");
    let o = out.to_str().expect("UTF-8");
    let g = graph("softmax");
    refuses(
        1,
        &["run", &g, "--input", "f32[2,2]", "--outputs", o],
        &["do not fit", "f32[583,931]", "f32[2,2]"],
        Some(&out),
    );
    refuses(1, &["run", &g, "--input", "f16[583,931]", "--outputs", o], &["do not fit"], Some(&out));
    refuses(
        1,
        &["run", &g, "--input", "f32[583,931]", "--input", "f32[1]", "--outputs", o],
        &["do not fit"],
        Some(&out),
    );
    refuses(2, &["run", &g, "--input", "float[1]", "--outputs", o], &["float"], Some(&out));
    refuses(2, &["run", &g, "--input", "f32[2", "--outputs", o], &["f32[2"], Some(&out));
    let junk = file(dir.path(), "in.safetensors", b"0123456789abcdef0123456789");
    refuses(1, &["run", &g, "--inputs", &junk, "--outputs", o], &["not a usable inputs file"], Some(&out));
}

#[test]
fn wrong_calls() {
    let g = graph("softmax");
    refuses(2, &[], &["Usage"], None);
    refuses(2, &["run", &g], &["--outputs"], None);
    refuses(2, &["bench", &g, "--against", "tensorflow"], &["tensorflow", "unfused"], None);
    refuses(2, &["print", &g, "--stage", "machine"], &["asm", "graph, plan, block, llvm, ptx, asm"], None);
    refuses(2, &["run", &g, "--device", "tpu", "--outputs", "/dev/null"], &["tpu"], None);
    refuses(
        2,
        &["run", &g, "--threads", "20000", "--outputs", "/dev/null"],
        &["20000 threads", "as many as the processor has cores"],
        None,
    );
    refuses(2, &["run", &g, "--threads", "0", "--outputs", "/dev/null"], &["threads"], None);
    refuses(2, &["opt", &g, "--passes", "nonsense"], &[], None);
}

#[test]
fn outputs_that_cannot_be_written() {
    let g = graph("softmax");
    refuses(
        1,
        &["run", &g, "--device", "cpu", "--outputs", "/nonexistent/folder/out.safetensors"],
        &["cannot write"],
        None,
    );
    refuses(1, &["run", &g, "--device", "cpu", "--outputs", "/"], &["cannot write"], None);
    refuses(1, &["compile", &g, "-o", "/nonexistent/folder/out.kiln"], &["cannot write"], None);
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let g = graph("softmax");
    let o = kiln(&["run", &g, "--device", "cuda:7", "--outputs", "/dev/null"]);
    assert_eq!(o.status.code(), Some(1));
    let text = String::from_utf8_lossy(&o.stderr).to_lowercase();
    assert!(text.contains("cuda") && !text.contains("panicked"), "{text}");
}

#[test]
fn stores_of_measurements_that_cannot_be_used() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = dir.path().join("store.json");
    let (s, g) = (store.to_str().expect("UTF-8"), graph("glu_mlp"));
    refuses(2, &["tune", &g], &["--store"], None);
    refuses(
        2,
        &["tune", &g, "--store", s, "--device", "cpu"],
        &["nothing to tune on the cpu", "NVIDIA GPU"],
        Some(&store),
    );
    refuses(2, &["tune", &g, "--store", s, "--device", "tpu"], &["no device `tpu`"], Some(&store));
    refuses(1, &["explain", &g, "--target", "sm_90a", "--tuned", s], &["cannot read"], None);
    let damaged = file(dir.path(), "damaged.json", b"{\"kiln_measurements\": 1, \"entries\": [{}]}");
    refuses(1, &["explain", &g, "--tuned", &damaged], &["is not a usable store", "kiln tune"], None);
    let newer = file(dir.path(), "newer.json", b"{\"kiln_measurements\": 2, \"entries\": []}");
    refuses(1, &["explain", &g, "--tuned", &newer], &["version 2", "reads version 1"], None);
}

#[test]
fn more_memory_than_there_is() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("out.safetensors");
    let o = out.to_str().expect("UTF-8");
    // 64 TB each: a valid type of a tensor that fits no machine's memory.
    let shape = "f32[4000000,4000000]";
    let given = file(
        dir.path(),
        "given.kiln",
        format!("graph given(%0: {shape}) {{\n  %1 = exp %0\n  return %1\n}}").as_bytes(),
    );
    let made = file(
        dir.path(),
        "made.kiln",
        "graph made(%0: f32[]) {\n  %1 = broadcast %0 shape=[4000000,4000000]\n  return %1\n}".as_bytes(),
    );
    let weights = file(
        dir.path(),
        "weights.kiln",
        format!("graph weights(%0: {shape}) {{\n  @w: {shape} = fill(1)\n  %2 = add %0, @w\n  return %2\n}}")
            .as_bytes(),
    );
    let words = ["bytes of memory", "are free", "use a smaller shape"];
    for g in [&given, &made, &weights] {
        refuses(1, &["run", g, "--device", "cpu", "--outputs", o], &words, Some(&out));
        refuses(1, &["run", g, "--unfused", "--device", "cpu", "--outputs", o], &words, Some(&out));
    }
    refuses(1, &["run", &graph("softmax"), "--input", shape, "--outputs", o], &words, Some(&out));
}

/// File names need not be UTF-8: every command takes them, except that libtorch refuses them with a message.
#[cfg(unix)]
#[test]
fn paths_that_are_not_utf8() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let dir = tempfile::tempdir().expect("a temporary folder");
    let named = |start: &str, end: &str| {
        let name = [start.as_bytes(), b"\xff\xfe", end.as_bytes()].concat();
        dir.path().join(OsStr::from_bytes(&name)).into_os_string()
    };
    let run = |args: &[&OsStr]| {
        let o = Command::new(env!("CARGO_BIN_EXE_kiln")).args(args).output().expect("kiln starts");
        let text = String::from_utf8_lossy(&o.stderr).into_owned();
        assert!(!text.contains("panicked"), "kiln {args:?}\n{text}");
        (o.status.code(), text)
    };
    let word = OsStr::new;
    let (g, artifact, inputs, outputs) = (named("g", ".kiln"), named("a", ".kiln"), named("i", ""), named("o", ""));
    std::fs::copy(graph("softmax"), &g).expect("copied");
    let (folder, json) = (named("stages", ""), named("j", ".json"));
    let done = |args: &[&OsStr]| assert_eq!(run(args).0, Some(0), "kiln {args:?}: {}", run(args).1);
    done(&[word("compile"), &g, word("-o"), &artifact, word("--emit-dir"), &folder, word("--json"), &json]);
    done(&[word("run"), &artifact, word("--device"), word("cpu"), word("--outputs"), &inputs]);
    done(&[word("run"), &g, word("--device"), word("cpu"), word("--inputs"), &inputs, word("--outputs"), &outputs]);
    done(&[word("explain"), &artifact, word("--html"), &named("p", ".html"), word("--json"), &json]);
    done(&[word("explain"), &json]);
    done(&[word("diff"), &g, &artifact]);
    let trace = named("t", ".json");
    let bench =
        [word("bench"), &g, word("--device"), word("cpu"), word("--seconds"), word("0"), word("--trace"), &trace];
    done(&bench);
    assert!([&artifact, &inputs, &outputs, &folder, &trace].iter().all(|p| Path::new(p).exists()));
    let archive = named("m", ".pt");
    std::fs::copy(graph("mlp").replace(".kiln", ".pt"), &archive).expect("copied");
    let (status, text) = run(&[word("run"), &archive, word("--outputs"), &outputs]);
    assert_eq!(status, Some(1));
    assert!(text.contains("it is not UTF-8") || text.contains("libtorch"), "{text}");
}
