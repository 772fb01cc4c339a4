//! The report's HTML page in a browser: `page.py` clicks through it in Chromium.
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(command: &[&str], model: &Path, out: &Path) {
    let run = Command::new(env!("CARGO_BIN_EXE_kiln"))
        .args(command)
        .arg("--html")
        .args([out, model])
        .output()
        .expect("kiln starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Number of kernels in the page's report.
fn kernels(file: &Path) -> usize {
    let text = std::fs::read_to_string(file).expect("the page was written");
    let data = text.split_once("id=\"data\">").and_then(|t| t.1.split_once("</script>")).expect("the page has data").0;
    let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
    data["report"]["kernels"].as_array().expect("kernels").len()
}

/// Opens the page in Chromium and checks it. `kernels`: how many it must show once all repeats are unfolded.
/// `measured`: whether it has measured times.
fn look(file: &Path, kernels: usize, repeats: bool, measured: bool) {
    let python = root().join(".deps/browser/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/setup --browser", python.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page.py");
    let run = Command::new(python)
        .args([&script, file])
        .args([kernels.to_string(), repeats.to_string(), measured.to_string()])
        .output()
        .expect("python starts");
    assert!(run.status.success(), "{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
}

#[test]
fn the_page_of_a_block_works_in_a_browser() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("llama.html");
    page(&["explain", "--target", "sm_90a"], &root().join("graphs/llama_block.kiln"), &file);
    let kernels = kernels(&file);
    assert!(kernels > 3);
    look(&file, kernels, false, false);
}

#[test]
fn the_page_of_a_bench_shows_measured_beside_predicted() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("block.html");
    page(&["bench", "--device", "cpu", "--seconds", "0"], &root().join("graphs/vit_block.kiln"), &file);
    let kernels = kernels(&file);
    assert!(kernels > 3);
    look(&file, kernels, false, true);
}

#[test]
fn the_page_of_three_thousand_ops_works_in_a_browser() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut text = "graph long(%0: f32[64,64]) {\n".to_string();
    for i in 0..1000 {
        // Without fusion: three kernels, repeated.
        let _ = writeln!(text, "  %{} = tanh %{}", 3 * i + 1, 3 * i);
        let _ = writeln!(text, "  %{} = softmax %{} axis=1", 3 * i + 2, 3 * i + 1);
        let _ = writeln!(text, "  %{} = dot %{}, %0", 3 * i + 3, 3 * i + 2);
    }
    text += "  return %3000\n}\n";
    let (graph, file) = (dir.path().join("long.kiln"), dir.path().join("long.html"));
    std::fs::write(&graph, text).expect("a temporary file");
    page(&["explain", "--target", "sm_90a", "--unfused"], &graph, &file);
    assert!(std::fs::metadata(&file).expect("the page was written").len() < 4 << 20);
    look(&file, 3000, true, false);
}
