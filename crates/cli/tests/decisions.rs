//! Snapshots of what the commands about fusion decisions print, and their exit statuses.
use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

fn graph(name: &str) -> String {
    format!("{}/../../graphs/{name}.kiln", env!("CARGO_MANIFEST_DIR"))
}
fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kiln"));
    c.args(args).env("COLUMNS", "100").env_remove("NO_COLOR");
    c
}
fn kiln(args: &[&str]) -> Output {
    command(args).output().expect("kiln starts")
}
/// Standard output; the status must be `status`.
fn says(status: i32, args: &[&str]) -> String {
    let o = kiln(args);
    let errors = String::from_utf8_lossy(&o.stderr);
    assert_eq!(o.status.code(), Some(status), "kiln {args:?}\n{errors}");
    assert!(!errors.contains("panicked"), "kiln {args:?}\n{errors}");
    String::from_utf8_lossy(&o.stdout).into_owned()
}
fn complains(status: i32, args: &[&str]) -> String {
    let o = kiln(args);
    let errors = String::from_utf8_lossy(&o.stderr).into_owned();
    assert_eq!(o.status.code(), Some(status), "kiln {args:?}\n{errors}");
    assert!(!errors.contains("panicked"), "kiln {args:?}\n{errors}");
    errors
}
fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a temporary file");
    path.display().to_string()
}
const GPU: [&str; 2] = ["--target", "sm_90a"];

#[test]
fn the_summary_the_table_and_one_kernel() {
    let g = graph("bert_layer");
    insta::assert_snapshot!("summary", says(0, &[&["explain", &g], &GPU[..]].concat()));
    insta::assert_snapshot!("all", says(0, &[&["explain", &g, "--all"], &GPU[..]].concat()));
    for (name, kernel) in [("attention", "attention_3"), ("gemm", "gemm_gelu_erf_6")] {
        insta::assert_snapshot!(name, says(0, &[&["explain", &g, "--kernel", kernel], &GPU[..]].concat()));
    }
    let e = complains(2, &[&["explain", &g, "--kernel", "gemm_gelu_erf"], &GPU[..]].concat());
    assert!(e.contains("no kernel") && e.contains("gemm_gelu_erf_6"), "{e}");
}

/// A scatter has a schedule of several launches, which is pinned and asked about like others.
#[test]
fn schedules_of_launches() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (g, pins) = (path("sums.kiln"), path("pins.toml"));
    let text = "graph sums(%x: f32[400,70], %i: i64[190,70], %s: f32[190,70]) {\n  %y = scatter %x, %i, %s axis=0 \
                mode=add\n  return %y\n}\n";
    std::fs::write(&g, text).expect("writes");
    says(0, &[&["plan", "pin", &g, "-o", &pins], &GPU[..]].concat());
    let pinned = std::fs::read_to_string(&pins).expect("reads");
    assert!(pinned.contains("schedule = \"launch copy (") && pinned.contains("); launch write ("), "{pinned}");
    let explained = |more: &[&str]| says(0, &[&["explain", &g, "--kernel", "scatter_0"], &GPU[..], more].concat());
    assert_eq!(explained(&["--constraints", &pins]), explained(&[]));
    let ask = |schedule: &str| says(0, &[&["explain", &g, "--why-not", "scatter_0", schedule], &GPU[..]].concat());
    let own = pinned.split("schedule = \"").nth(1).and_then(|s| s.split('"').next()).expect("a schedule");
    assert!(ask(own).contains("it is the schedule of the kernel"), "{}", ask(own));
    let slow = ask("launch copy (bind warp 1)");
    assert!(slow.contains("it is predicted to be slower"), "{slow}");
    let unknown = ask("launch round (bind warp 1)");
    assert!(unknown.contains("names no launch of the kernel; there are: copy, write"), "{unknown}");
}

#[test]
fn why_and_why_not() {
    let g = graph("bert_layer");
    let ask = |a: &str, b: &str, question: &str| says(0, &[&["explain", &g, question, a, b], &GPU[..]].concat());
    insta::assert_snapshot!("why", ask("intermediate.dense", "op:gelu_erf", "--why"));
    insta::assert_snapshot!("why_not_rows", ask("output.dense", "output.LayerNorm", "--why-not"));
    insta::assert_snapshot!("why_not_far", ask("attention.self.query", "modeling_bert.py:315", "--why-not"));
    assert!(ask("gelu_erf", "intermediate.dense", "--why").contains("gemm_gelu_erf_6"), "an op's bare name");
    let schedule = |text: &str| ask("layer_norm_5", text, "--why-not");
    insta::assert_snapshot!("why_not_schedule", schedule("split i0 8; split r 1024; bind warp 8"));
    insta::assert_snapshot!("why_not_form", ask("gemm_gelu_erf_6", "gemm{library}(a, b)", "--why-not"));
    let refused = schedule("split r 64; bind warp 4; look-back r");
    assert!(refused.contains("`look-back r` does not fit") && refused.contains("chosen"), "{refused}");
    let e = complains(2, &[&["explain", &g, "--why-not", "layer_norm", "split r 64"], &GPU[..]].concat());
    assert!(e.contains("no kernel `layer_norm`") && e.contains("did you mean `layer_norm_"), "{e}");
    let e = complains(2, &["explain", &g, "--why-not", "layer_norm_5", "split r 64", "--target", "cpu"]);
    assert!(e.contains("schedules of the host have no prices"), "{e}");
    let e = complains(2, &[&["explain", &g, "--why", "intermediat.dense", "%3"], &GPU[..]].concat());
    assert!(e.contains("intermediat.dense") && e.contains("did you mean `intermediate.dense`"), "{e}");
}

#[test]
fn the_report_travels_with_the_artifact() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (g, out) = (graph("gpt2_block"), dir.path().join("g.kiln").display().to_string());
    says(0, &["compile", &g, "--target", "sm_90a", "-o", &out]);
    let json = |model: &str, target: &[&str]| says(0, &[&["explain", model, "--json", "-"], target].concat());
    let report = json(&g, &GPU);
    assert_eq!(report, json(&out, &[]));
    let file = write(dir.path(), "report.json", &report);
    assert_eq!(report, json(&file, &[]));
    let value: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(value["schema"], 3);
    for key in ["kernels", "fallback", "nodes", "lower_bound_us", "predicted_us"] {
        assert!(!value[key].is_null(), "{key}");
    }
    for key in ["name", "kind", "nodes", "bytes_read", "bytes_written", "flops", "predicted_us", "reason"] {
        assert!(!value["kernels"][0][key].is_null(), "{key}");
    }
    let old = write(dir.path(), "old.json", &report.replace("\"schema\": 3", "\"schema\": 1"));
    let e = complains(1, &["explain", &old]);
    assert!(e.contains("schema 1") && e.contains("make it again"), "{e}");
    assert!(complains(1, &["explain", &write(dir.path(), "x.json", "{}")]).contains("not a Kiln report"));
}

#[test]
fn a_pinned_plan_comes_back_and_constraints_that_cannot_be_met_say_why() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let g = graph("bert_layer");
    let pin = dir.path().join("pin.toml").display().to_string();
    says(0, &["plan", "pin", &g, "--target", "sm_90a", "-o", &pin]);
    insta::assert_snapshot!("pin", std::fs::read_to_string(&pin).expect("written"));
    says(0, &["diff", &g, &g, "--target", "sm_90a", "--constraints", &pin]);
    let bad = write(dir.path(), "bad.toml", "must_fuse = [[\"intermediate.dense\", \"output.dense\"]]\n");
    insta::assert_snapshot!("impossible", complains(1, &["explain", &g, "--target", "sm_90a", "--constraints", &bad]));
    for (text, words) in [
        ("must_fuse = [[\"nowhere\"]]", "nothing in bert_layer is called"),
        ("must = 3", "unknown field"),
        ("must_fuse = 3", "not a constraints file"),
    ] {
        let file = write(dir.path(), "x.toml", text);
        let o = kiln(&["explain", &g, "--constraints", &file]);
        let e = String::from_utf8_lossy(&o.stderr);
        assert!(!o.status.success() && e.contains(words), "{text}: {e}");
    }
}

#[test]
fn schedules_of_matmuls_are_chosen_by_constraint() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let g = graph("bert_layer");
    let wish = |at: &str, schedule: &str| {
        write(dir.path(), "t.toml", &format!("[[use_schedule]]\nat = \"{at}\"\nschedule = \"{schedule}\"\n"))
    };
    let kernel = |file: &str| {
        let depth = ["--constraints", file, "--kernel", "gemm_gelu_erf_6"];
        let text = says(0, &[&["explain", &g], &GPU[..], &depth].concat());
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let tile = "fma 16x32x32; bind warp 1";
    // The library has no such epilogue: a launch has it, whose schedule is chosen.
    for (schedule, more) in
        [(tile, " schedules"), ("split r 128; bind warp 1", " schedules"), ("call library", "; launch epilogue (")]
    {
        let text = kernel(&wish("intermediate.dense", schedule));
        assert!(text.contains(&format!("schedule {schedule}{more}")), "{text}");
        assert!(text.matches("us call library").count() <= 1, "{text}");
    }
    // The artifact and a pinned plan keep the schedule.
    let file = wish("intermediate.dense", tile);
    let (out, pin) =
        (dir.path().join("t.kiln").display().to_string(), dir.path().join("pin.toml").display().to_string());
    says(0, &[&["compile", &g], &GPU[..], &["--constraints", &file, "-o", &out]].concat());
    says(0, &[&["plan", "pin", &g], &GPU[..], &["--constraints", &file, "-o", &pin]].concat());
    let of_artifact = says(0, &["explain", &out, "--kernel", "gemm_gelu_erf_6", "--json", "-"]);
    assert!(of_artifact.contains(&format!("\"schedule\": \"{tile}\"")), "{of_artifact}");
    assert!(kernel(&pin).contains(&format!("schedule {tile}")));
    let refused = |status: i32, at: &str, schedule: &str| {
        complains(status, &[&["explain", &g], &GPU[..], &["--constraints", &wish(at, schedule)]].concat())
    };
    insta::assert_snapshot!("schedule_refused", refused(1, "op:linear", "fma 256x256x32; stage a,b shared 2"));
    insta::assert_snapshot!("schedule_of_no_matmul", refused(1, "op:layer_norm", tile));
    assert!(refused(2, "op:linear", "tyle").contains("tensor-core wgmma MxNxK"));
}

#[test]
fn plans_that_differ() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let g = graph("bert_layer");
    let never = write(dir.path(), "never.toml", "never_fuse = [[\"op:gelu_erf\", \"op:linear\"]]\n");
    insta::assert_snapshot!("diff", says(1, &["diff", &g, &g, "--target", "sm_90a", "--constraints", &never]));
    insta::assert_snapshot!("diff_unfused", says(1, &["diff", &g, &g, "--target", "sm_90a", "--unfused"]));
    let plan = write(dir.path(), "a.plan", &says(0, &["print", &g, "--stage", "plan", "--target", "sm_90a"]));
    says(0, &["diff", &plan, &g, "--target", "sm_90a"]);
    says(1, &["diff", &plan, &graph("gpt2_block"), "--target", "sm_90a"]);
    complains(2, &["diff", &plan, "/nonexistent.kiln"]);
}

#[test]
fn snapshots_of_a_folder() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let folder = dir.path().display().to_string();
    complains(2, &["snapshot", "check", &folder]);
    for name in ["softmax", "bias_gelu"] {
        std::fs::copy(graph(name), dir.path().join(format!("{name}.kiln"))).expect("copies");
    }
    let missing = says(1, &["snapshot", "check", &folder]);
    assert!(missing.contains("missing  bias_gelu") && missing.contains("0 of 2 plans are the same"), "{missing}");
    assert!(says(0, &["snapshot", "bless", &folder]).contains("new      softmax"));
    assert_eq!(says(0, &["snapshot", "check", &folder]), "2 of 2 plans are the same (h200)\n");
    let proofs = says(0, &["snapshot", "check", &folder, "--proofs"]);
    assert!(proofs.contains("2 of 2 plans shown to compute their graphs ("), "{proofs}");
    let file = dir.path().join("bias_gelu.kiln");
    let text = std::fs::read_to_string(&file).expect("reads");
    std::fs::write(&file, text.replace("gelu_erf", "tanh").replace("gelu_tanh", "tanh")).expect("writes");
    std::fs::remove_file(dir.path().join("softmax.kiln")).expect("removes");
    let changed = says(1, &["snapshot", "check", &folder]);
    assert!(changed.contains("changed  bias_gelu") && changed.contains("stale    softmax"), "{changed}");
    assert!(complains(2, &["snapshot", "check", &folder, "--machine", "abacus"]).contains("h200"));
}

#[test]
fn a_bad_model_does_not_end_a_folder_and_what_is_skipped_is_named() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let folder = dir.path().display().to_string();
    std::fs::copy(graph("softmax"), dir.path().join("softmax.kiln")).expect("copies");
    write(dir.path(), "a_bad_one.kiln", "graph g(%x: f32[2]) {\n %y = frobnicate %x\n return %y\n}");
    write(dir.path(), "alone.pt", "an archive without its inputs");
    std::fs::create_dir(dir.path().join("plans")).expect("a folder");
    let kept = write(&dir.path().join("plans"), "a_bad_one.plan", "as it was");
    let blessed = says(1, &["snapshot", "bless", &folder]);
    assert!(blessed.contains("new      softmax") && blessed.contains("failed   a_bad_one: "), "{blessed}");
    assert!(blessed.contains("skipped  alone: alone.safetensors"), "{blessed}");
    assert_eq!(std::fs::read_to_string(kept).expect("is there"), "as it was");
    let checked = says(1, &["snapshot", "check", &folder]);
    assert!(checked.contains("frobnicate") && checked.ends_with("1 of 2 plans are the same (h200)\n"), "{checked}");
    std::fs::remove_file(dir.path().join("a_bad_one.kiln")).expect("removes");
    assert!(says(0, &["snapshot", "bless", &folder]).contains("removed  a_bad_one"));
    let checked = says(0, &["snapshot", "check", &folder]);
    assert!(checked.ends_with("1 of 1 plan is the same (h200)\n") && checked.contains("skipped  alone"), "{checked}");
}

#[test]
fn a_stage_that_the_target_lacks_leaves_the_artifact() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let out = dir.path().join("m.kiln");
    let (g, path) = (graph("softmax"), out.display().to_string());
    assert!(complains(2, &["compile", &g, "-o", &path, "--emit", "plan,ptx"]).contains("has no PTX"));
    assert!(says(0, &["explain", &path]).contains("1 kernel on cpu"));
    assert!(dir.path().join("m.plan").exists());
    assert!(complains(2, &["compile", &g, "-o", &path, "--emit", "cubin"]).contains("has no cubin"));
    let same = dir.path().join("m.plan").display().to_string();
    assert!(complains(2, &["compile", &g, "-o", &same, "--emit", "plan"]).contains("both be written"));
}

/// Machine code is a part of the artifact, and no file of its own.
#[test]
fn machine_code_goes_into_the_artifact() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("m.kiln").display().to_string();
    says(0, &["compile", &graph("softmax"), "--target", "sm_90a", "-o", &path, "--emit", "cubin,plan"]);
    let artifact = std::fs::read(&path).expect("written");
    assert!(artifact.windows(11).any(|w| w == b"kiln/cubin/"));
    let files: Vec<_> = std::fs::read_dir(dir.path()).expect("the folder").flatten().map(|f| f.file_name()).collect();
    assert!(files.len() == 2 && dir.path().join("m.plan").exists(), "{files:?}");
    // Opened for the CPU, it is planned again; there is nothing to trust.
    let out = dir.path().join("out.safetensors").display().to_string();
    says(0, &["run", &path, "--device", "cpu", "--trust-machine-code", "--outputs", &out]);
}

#[test]
fn sixty_columns_and_a_closed_pipe() {
    let g = graph("bert_layer");
    for extra in [&[][..], &["--all"], &["--kernel", "attention_3"], &["--why-not", "output.dense", "output.LayerNorm"]]
    {
        let args = [&["explain", g.as_str()], &GPU[..], extra].concat();
        let o = command(&args).env("COLUMNS", "60").output().expect("kiln starts");
        let text = String::from_utf8_lossy(&o.stdout);
        let wide: Vec<&str> = text.lines().filter(|l| l.chars().count() > 60).collect();
        assert!(o.status.success() && wide.is_empty(), "{extra:?}: {wide:#?}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }
    let mut child =
        command(&["explain", &g, "--json", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    drop(child.stdout.take());
    let o = child.wait_with_output().expect("ends");
    assert!(o.status.success() && o.stderr.is_empty(), "{}", String::from_utf8_lossy(&o.stderr));
}

#[test]
fn completions_and_man_pages() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(says(0, &["completions", shell]).contains("kiln"), "{shell}");
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    says(0, &["man", dir.path().to_str().expect("UTF-8")]);
    let page = std::fs::read_to_string(dir.path().join("kiln-explain.1")).expect("a page for every command");
    assert!(page.contains("why\\-not"), "{page}");
}

/// Hash seeds differ between processes; neither they nor the number of threads may change a plan or a report.
#[test]
fn twenty_runs_give_the_same_bytes() {
    let run = |i: usize| {
        let (g, threads) = (graph("llama_block"), (1 + i % 4).to_string());
        let at = |args: &[&str]| {
            let o = command(args).env("RAYON_NUM_THREADS", &threads).output().expect("kiln starts");
            assert!(o.status.success());
            o.stdout
        };
        // Reports need code generation, so the large graph's report is made in every fifth run only.
        let report = |g: &str| at(&["explain", g, "--target", "sm_90a", "--json", "-"]);
        let large = i.is_multiple_of(5).then(|| report(&g));
        (at(&["print", &g, "--stage", "plan", "--target", "sm_90a"]), report(&graph("causal_attention")), large)
    };
    let first = run(0);
    for i in 1..20 {
        let (plan, report, large) = run(i);
        assert!(plan == first.0 && report == first.1, "run {i}");
        assert!(large.is_none() || large == first.2, "run {i}");
    }
}
