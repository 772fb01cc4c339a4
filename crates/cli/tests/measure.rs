//! `kiln bench` with trace, plots and sweep; stages written as files; facts about PTX.
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn graph(name: &str) -> String {
    format!("{}/../../graphs/{name}", env!("CARGO_MANIFEST_DIR"))
}
/// Standard output; the status must be `status`.
fn says(status: i32, args: &[&str]) -> String {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kiln"));
    let o = c.args(args).env("COLUMNS", "100").output().expect("kiln starts");
    let errors = String::from_utf8_lossy(&o.stderr);
    assert_eq!(o.status.code(), Some(status), "kiln {args:?}\n{errors}");
    assert!(!errors.contains("panicked"), "kiln {args:?}\n{errors}");
    if status == 0 { String::from_utf8_lossy(&o.stdout).into_owned() } else { errors.into_owned() }
}
fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("written")).expect("JSON")
}
fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_measurement_with_its_trace_and_roofline() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = |n: &str| dir.path().join(n);
    let (trace, svg, figures) = (file("trace.json"), file("roofline.svg"), file("bench.json"));
    let options = ["--device", "cpu", "--seconds", "0.01", "--against", "unfused"];
    let files = ["--trace", name(&trace), "--roofline", name(&svg), "--json", name(&figures)];
    let text = says(0, &[&["bench", &graph("bert_layer.kiln")], &options[..], &files].concat());
    for word in ["gaps between kernels", "module", "intermediate.dense", "TFLOP/s", "predicted us"] {
        assert!(text.contains(word), "{word}:\n{text}");
    }
    let figures = json(&figures);
    let kernels = figures["kernels"].as_array().expect("kernels");
    let share =
        |list: &Value| -> f64 { list.as_array().into_iter().flatten().filter_map(|k| k["share"].as_f64()).sum() };
    assert!(text.contains("error against interpreter: abs"), "{text}");
    let (reference, compared) = (figures["reference"].as_str(), figures["compared"].as_u64());
    assert_eq!((reference, compared), (Some("interpreted"), figures["elements"].as_u64()));
    assert!((share(&figures["kernels"]) - 1.0).abs() < 1e-6 && (share(&figures["modules"]) - 1.0).abs() < 1e-6);

    let trace = json(&trace);
    let events = trace["traceEvents"].as_array().expect("events");
    let of = |track: i64| events.iter().filter(move |e| e["ph"] == "X" && e["tid"] == track).collect::<Vec<_>>();
    let (runs, device) = (of(1), of(2));
    assert_eq!(device.len(), runs.len() * kernels.len());
    let end = |e: &Value| e["ts"].as_f64().unwrap_or(0.0) + e["dur"].as_f64().unwrap_or(0.0);
    for (e, k) in device.iter().zip(kernels.iter().cycle()) {
        assert_eq!((&e["name"], &e["args"]["bytes"]), (&k["name"], &k["bytes"]));
        assert_eq!((&e["args"]["flops"], &e["args"]["predicted_us"]), (&k["flops"], &k["predicted_us"]));
        assert!(runs.iter().any(|r| r["ts"].as_f64() <= e["ts"].as_f64() && end(e) <= end(r)), "{e} lies in no run");
    }
    let svg = std::fs::read_to_string(svg).expect("written");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for word in ["memory: 20 GB/s", "f32 matmuls", "attention", "gemm", "bert_layer on cpu"] {
        assert!(svg.contains(word), "{word}");
    }
}

#[test]
fn a_measurement_without_libtorch_is_checked_at_a_sample() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    // A copy of the program in another folder finds no libtorch and no plugin.
    let (lone, source, figures) =
        (dir.path().join("kiln"), dir.path().join("attention.kiln"), dir.path().join("b.json"));
    std::fs::copy(env!("CARGO_BIN_EXE_kiln"), &lone).expect("copies");
    let text = "graph g(%q: f32[1,8,2048,64], %k: f32[1,8,2048,64], %v: f32[1,8,2048,64]) {\n  \
                %y = attention %q, %k, %v scale=0.125\n  return %y\n}\n";
    std::fs::write(&source, text).expect("written");
    let o = Command::new(&lone)
        .args(["bench", name(&source), "--device", "cpu", "--seconds", "0.01", "--json", name(&figures)])
        .current_dir(dir.path())
        .env_remove("LIBTORCH")
        .env_remove("KILN_TORCHSCRIPT_PLUGIN")
        .env_remove("CARGO_TARGET_DIR")
        .env("PATH", "")
        .env("COLUMNS", "200")
        .output()
        .expect("kiln starts");
    let text = String::from_utf8_lossy(&o.stdout);
    assert!(o.status.success(), "{text}\n{}", String::from_utf8_lossy(&o.stderr));
    assert!(text.contains("error against interpreter at ") && text.contains(" of 1048576 elements: abs"), "{text}");
    let figures = json(&figures);
    assert_eq!((figures["reference"].as_str(), figures["elements"].as_u64()), (Some("sampled"), Some(1 << 20)));
    assert!(figures["compared"].as_u64().is_some_and(|n| (1 << 14..1 << 20).contains(&n)), "{figures}");
    assert!(figures["max_abs_err"].as_f64().is_some_and(|e| e < 1e-4), "{figures}");
}

#[test]
fn a_sweep_over_the_batch() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (svg, figures) = (dir.path().join("sweep.svg"), dir.path().join("sweep.json"));
    let (model, inputs) = (graph("mlp.pt"), graph("mlp.safetensors"));
    let call = ["bench", &model, "--inputs", &inputs, "--device", "cpu", "--seconds", "0.01"];
    let more = ["--against", "unfused,torch", "--plot", name(&svg), "--json", name(&figures)];
    let text = says(0, &[&call[..], &more, &["--sweep", "batch=8,1"]].concat());
    assert!(text.contains("batch") && text.contains("/torch"), "{text}");
    let points = json(&figures)["points"].as_array().cloned().expect("points");
    assert_eq!(points.iter().map(|p| p["value"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(8)]);
    for p in &points {
        assert!(p["max_rel_err"].as_f64().is_some_and(|e| e < 1e-3), "{p}");
        assert_eq!(p["reference"], "libtorch", "{p}");
        assert!(p["torch"]["median_ms"].as_f64().is_some_and(|t| t > 0.0), "{p}");
    }
    let svg = std::fs::read_to_string(svg).expect("written");
    for word in ["fused", "unfused", "torch", "batch", "milliseconds"] {
        assert!(svg.contains(word), "{word}");
    }
    assert!(says(2, &[&call[..], &["--sweep", "heads=2"]].concat()).contains("only `batch`"));
    let fixed = says(2, &["bench", &graph("softmax.kiln"), "--device", "cpu", "--sweep", "batch=1,2"]);
    assert!(fixed.contains("fixed shapes") && fixed.contains("TorchScript archive"), "{fixed}");
}

#[test]
fn stages_of_every_kernel_as_files() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (target, last) in [("sm_90a", "ptx"), ("cpu", "asm")] {
        let (out, folder) = (dir.path().join("m.kiln"), dir.path().join(target));
        let g = graph("bert_layer.kiln");
        says(0, &["compile", &g, "--target", target, "-o", name(&out), "--emit-dir", name(&folder)]);
        let report: Value = serde_json::from_str(&says(0, &["explain", name(&out), "--json", "-"])).expect("JSON");
        let kernels =
            ["kernels", "load_kernels"].iter().flat_map(|k| report[k].as_array().cloned().unwrap_or_default());
        let kernels: Vec<String> = kernels.filter_map(|k| Some(k["name"].as_str()?.to_string())).collect();
        assert!(kernels.len() > 6);
        let read = |file: PathBuf| std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        for k in &kernels {
            for stage in ["block", "llvm", last] {
                assert!(!read(folder.join(format!("{k}.{stage}"))).is_empty(), "{k}.{stage}");
            }
        }
        let some = if target == "cpu" { "layer_norm_5" } else { "attention_3" };
        let words = if target == "cpu" { ".globl" } else { ".visible .entry attention_3" };
        assert!(read(folder.join(format!("{some}.{last}"))).contains(words));
        assert!(read(folder.join(format!("{some}.llvm"))).contains("define"));
        let again = says(0, &["opt", folder.join(format!("{some}.block")).to_str().expect("UTF-8")]);
        assert!(again.contains(some), "{again}");
        assert!(read(folder.join("model.plan")).starts_with("plan \"bert_layer\""));
        let one = ["print", &g, "--target", target, "--stage", "block", "--kernel", some];
        assert_eq!(says(0, &one), read(folder.join(format!("{some}.block"))));
    }
    let e = says(2, &["print", &graph("softmax.kiln"), "--stage", "block", "--kernel", "softmax"]);
    assert!(e.contains("did you mean `softmax_0`"), "{e}");
}

#[test]
fn facts_about_ptx_with_and_without_ptxas() {
    let call = ["ptx", &graph("bert_layer.kiln"), "--kernel", "attention_3"];
    assert!(says(0, &call).contains(".visible .entry attention_3"));
    let facts = says(0, &[&call[..], &["--facts", "--json", "-"]].concat());
    let facts: Value = serde_json::from_str(&facts).expect("JSON");
    let f = &facts[0];
    assert_eq!((f["kernel"].as_str(), f["widest_load"].as_u64()), (Some("attention_3"), Some(16)));
    assert!(f["assembled"]["registers"].as_u64().is_some_and(|n| n > 16), "{f}");
    assert_eq!(f["assembled"]["spill_stores"], 0);
    // A copy of the program in another folder finds no ptxas.
    let dir = tempfile::tempdir().expect("a temporary folder");
    let lone = dir.path().join("kiln");
    std::fs::copy(env!("CARGO_BIN_EXE_kiln"), &lone).expect("copies");
    let o = Command::new(&lone)
        .args([&call[..], &["--facts"]].concat())
        .current_dir(dir.path())
        .env("PATH", "")
        .output()
        .expect("kiln starts");
    let text = String::from_utf8_lossy(&o.stdout);
    assert!(o.status.success() && text.contains("unknown without ptxas") && text.contains("ld.global.v4"), "{text}");
    assert!(says(2, &["ptx", &graph("softmax.kiln"), "--target", "cpu"]).contains("no PTX"));
}
